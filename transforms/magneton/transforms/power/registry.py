"""Which reader reads a power log, and how its rows join a capture."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from magneton.schemas.clocks import INT64_MAX, INT64_MIN, ClockMap, clock_map
from magneton.schemas.errors import ClockAlignmentError, InputFormatError, InputNotFoundError, UsageError
from magneton.schemas.kinds import Clock
from magneton.schemas.manifest import ClockAnchor
from magneton.transforms.power.log import PowerLog, PowerOptions
from magneton.transforms.reading.textfile import head


@dataclass(frozen=True)
class PowerFormat:
    """One format: its name, a test on the first 64 K characters, and its reader."""

    name: str
    sniff: Callable[[str], bool]
    read: Callable[[Path, PowerOptions], PowerLog]


# Modules of this package with a ``NAME``, a ``sniff`` and a ``read``, in the order in which they are asked: those
# whose first lines are least mistakable first.
FORMATS: list[str] = [
    "recorded",
    "neutral_csv",
    "prometheus.response",
    "ptdaemon",
    "amd_smi",
    "nvidia_smi",
    "prometheus.exposition",
]


def formats() -> tuple[PowerFormat, ...]:
    """Return the formats, in the order in which they are asked."""
    found = (importlib.import_module(f"magneton.transforms.power.{name}") for name in FORMATS)
    return tuple(PowerFormat(module.NAME, module.sniff, module.read) for module in found)


def find_format(path: Path) -> PowerFormat | None:
    """Return the format of a file by its contents (never by its name), or None when it is no power log we know.

    Raises:
        InputNotFoundError: the file cannot be opened.
    """
    if not path.is_file():
        raise InputNotFoundError("no such file" if not path.exists() else "is not a file", path=path)
    start = head(path)
    return next((f for f in formats() if f.sniff(start)), None)


def read_power(path: Path, options: PowerOptions | None = None) -> PowerLog:
    """Read a power log of any known format.

    Raises:
        InputNotFoundError: the file cannot be opened.
        InputFormatError: no known format, broken, or without a power or energy reading.
        ClockAlignmentError: its clock or time zone is not known.
        UsageError: an option that the file contradicts.
        LimitExceededError: larger than the limits.
    """
    found = find_format(path)
    if found is None:
        raise InputFormatError(
            "is not a power log of a known format",
            path=path,
            remedy="known: "
            + ", ".join(f.name for f in formats())
            + "; any other can be converted to the long CSV form",
        )
    return found.read(path, options or PowerOptions())


def rebase(log: PowerLog, base_unix_ns: int | None, anchors: Iterable[ClockAnchor] = ()) -> Iterator[pa.Table]:
    """Yield the readings of a log on the time line of a capture, in batches: columns of ``power`` without the run keys.

    Args:
        log: the log.
        base_unix_ns: Unix time of ``ts_ns = 0`` of the capture.
        anchors: relate ``monotonic`` or ``boottime`` to the wall clock, unless the log was read with an offset.

    Raises:
        UsageError: another clock than the wall clock was given both an offset and anchors.
        ClockAlignmentError: the capture has no absolute time, no anchor ties the log's clock to the wall clock, or the
            time stamps lie too far from those of the capture. Raised before anything is yielded.
    """
    readings = log.readings
    known = readings.known_times()
    if base_unix_ns is None and known.any():
        raise ClockAlignmentError(
            "cannot be joined: the trace has no absolute time",
            path=log.report.file,
            remedy="needs session start time: record with a profiler that writes it",
        )
    given = list(anchors)
    offset = log.report.offset_ns
    stamps = readings.ts_ns.copy()
    of_series = np.array([s.clock for s in readings.series], dtype=object)
    for clock in {s.clock or Clock.REALTIME for s in readings.series}:
        chosen = np.isin(readings.code, np.flatnonzero(of_series == clock)) & known
        if offset is not None:
            if clock != Clock.REALTIME and any(a.clock == clock for a in given):
                raise UsageError(f"has both an offset and anchors for {clock}", path=log.report.file, remedy="give one")
            # An offset is one anchor. For the wall clock itself it is an anchor of a clock that is wrong by the offset.
            convert = ClockMap([[(0, offset)]])
        else:
            convert = clock_map(given, clock)
        stamps[chosen] = convert.convert_array(stamps[chosen])
    base = base_unix_ns or 0
    timed = stamps[known]
    if len(timed) and (int(timed.min()) - base <= INT64_MIN or int(timed.max()) - base > INT64_MAX):
        raise ClockAlignmentError("has time stamps too far from those of the trace", path=log.report.file)
    stamps[known] -= np.int64(base)
    moved = replace(readings, ts_ns=stamps)
    return (t.append_column("dur_ns", pa.nulls(t.num_rows, pa.int64())) for t in moved.batches())
