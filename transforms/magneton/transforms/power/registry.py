"""Which reader reads a power log, and how its rows join a capture."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from magneton.schemas.clocks import INT64_MAX, INT64_MIN, REALTIME, clock_map
from magneton.schemas.errors import ClockAlignmentError, InputFormatError, InputNotFoundError
from magneton.schemas.manifest import ClockAnchor
from magneton.transforms.power import (
    amd_smi,
    neutral_csv,
    nvidia_smi,
    prometheus_json,
    prometheus_text,
    ptdaemon,
)
from magneton.transforms.power.log import PowerLog, PowerOptions
from magneton.transforms.textfile import head


@dataclass(frozen=True)
class PowerFormat:
    """One format: its name, a test on the first 64 K characters, and its reader."""

    name: str
    sniff: Callable[[str], bool]
    read: Callable[[Path, PowerOptions], PowerLog]


# In order of how unmistakable their first lines are.
FORMATS = tuple(
    PowerFormat(module.NAME, module.sniff, module.read)
    for module in (neutral_csv, prometheus_json, ptdaemon, amd_smi, nvidia_smi, prometheus_text)
)


def find_format(path: Path) -> PowerFormat | None:
    """Return the format of a file by its contents (never by its name), or NULL when it is no power log we know.

    Raises:
        InputNotFoundError: the file cannot be opened.
    """
    if not path.is_file():
        raise InputNotFoundError("no such file" if not path.exists() else "is not a file", path=path)
    start = head(path)
    return next((f for f in FORMATS if f.sniff(start)), None)


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
            "is not a power log we know",
            path=path,
            remedy="known: " + ", ".join(f.name for f in FORMATS) + "; any other can be converted to the long CSV form",
        )
    return found.read(path, options or PowerOptions())


def rebase(log: PowerLog, base_unix_ns: int | None, anchors: Iterable[ClockAnchor] = ()) -> pa.Table:
    """Return the readings of a log on the time line of a capture: columns of table ``power`` without the run keys.

    Args:
        log: the log.
        base_unix_ns: Unix time of ``ts_ns = 0`` of the capture.
        anchors: what ties ``monotonic`` or ``boottime`` to the wall clock.

    Raises:
        ClockAlignmentError: the capture has no absolute time, or no anchor ties the log's clock to the wall clock.
    """
    table = log.table
    ts = table["ts_ns"].combine_chunks()
    known = np.array(pc.is_valid(ts))
    if base_unix_ns is None and known.any():
        raise ClockAlignmentError(
            "cannot be joined: the trace has no absolute time",
            path=log.report.file,
            remedy="record with a newer profiler",
        )
    stamps = np.array(pc.fill_null(ts, 0), dtype=np.int64)
    clocks = table["clock"].combine_chunks()
    given = list(anchors)
    for clock in pc.unique(clocks).to_pylist():
        if clock in (None, REALTIME):
            continue
        chosen = np.array(pc.fill_null(pc.equal(clocks, clock), False)) & known
        stamps[chosen] = clock_map(given, clock).convert_array(stamps[chosen])
    stamps[~known] = base = base_unix_ns or 0
    if len(stamps) and not (int(stamps.min()) - base >= INT64_MIN and int(stamps.max()) - base <= INT64_MAX):
        raise ClockAlignmentError("has time stamps too far from those of the trace", path=log.report.file)
    relative = pa.array(stamps - np.int64(base), mask=~known)
    moved = table.set_column(table.schema.get_field_index("ts_ns"), "ts_ns", relative)
    return moved.append_column("dur_ns", pa.nulls(moved.num_rows, pa.int64()))
