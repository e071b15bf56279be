"""Files beside the traces: power logs and results of serving benchmarks, read for a recording."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from magneton.schemas.checks import need_whole
from magneton.schemas.clocks import anchors_from_readings
from magneton.schemas.errors import ClockAlignmentError, InputFormatError, UsageError
from magneton.schemas.files.json import read_json
from magneton.schemas.kinds import DeviceKind, SensorKind
from magneton.schemas.manifest import ClockAnchor, Workload
from magneton.transforms.bench.registry import read_bench
from magneton.transforms.bench.result import BenchOptions
from magneton.transforms.job import Extra
from magneton.transforms.power.join import PowerInput, open_power
from magneton.transforms.power.log import PowerOptions
from magneton.transforms.reading.decimals import time_ns

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeviceName:
    """Which GPU of a power log a device of the trace is.

    Attributes:
        device: number of the device in the trace.
        name: id of the GPU in the log.
        rank: rank whose trace counts so; None for all ranks.
    """

    device: int
    name: str
    rank: int | None = None


_ENTRY = re.compile(r"(?:(\d{1,6}):)?(\d{1,6})=(\S+)")


def parse_device_map(text: str) -> list[DeviceName]:
    """Return what ``0=GPU-aaaa,1=GPU-bbbb`` says; ``3:0=GPU-cccc`` is of rank 3 alone.

    Raises:
        UsageError: not such a text.
    """
    found = []
    for entry in text.split(","):
        match = _ENTRY.fullmatch(entry.strip())
        if match is None:
            raise UsageError(
                f"{entry[:60]!r} does not say which GPU a device is",
                remedy="give DEVICE=ID or RANK:DEVICE=ID, for example 0=GPU-aaaa",
            )
        rank, device, name = match.groups()
        found.append(DeviceName(int(device), name, None if rank is None else int(rank)))
    return found


@dataclass(frozen=True)
class ExtraFiles:
    """Files beside the traces, and how to read them.

    Attributes:
        power: power logs.
        bench: result of a serving benchmark.
        options: clock, zone and so on of the power logs; zone and date order hold for the benchmark too.
        anchors: JSON file of clock anchors: ``{"clock_anchors": [{"realtime_ns": .., "boottime_ns": ..}, ..]}`` or the list
            alone.
        bench_index: which of several results in one file (from 0; negative counts from the end).
        devices: which GPU of the power log is which device of the trace, where the user says so.
    """

    power: Sequence[Path] = ()
    bench: Path | None = None
    options: PowerOptions = field(default_factory=PowerOptions)
    anchors: Path | None = None
    bench_index: int | None = None
    devices: tuple[DeviceName, ...] = ()

    def __post_init__(self) -> None:
        if self.bench_index is not None:
            need_whole("bench_index", self.bench_index)


_UNITS = (("ns", 0), ("us", 3), ("µs", 3), ("ms", 6), ("s", 9), ("", 9))


def parse_offset(text: str) -> int:
    """Return an offset written as seconds, or with a unit, in ns.

    Raises:
        UsageError: not a number with an optional unit.
    """
    unit, exponent = next(pair for pair in _UNITS if text.endswith(pair[0]))
    value = time_ns(text.removesuffix(unit), exponent)
    if isinstance(value, str):
        raise UsageError(f"{text[:40]!r} is not an offset", remedy="give seconds, or a unit: 1.5, 250ms, -3us, 7ns")
    return value


def read_anchors(path: Path) -> tuple[ClockAnchor, ...]:
    """Return the clock anchors in a JSON file.

    Raises:
        InputNotFoundError: the file cannot be opened.
        InputFormatError: no anchors in it.
        ClockAlignmentError: an anchor without ``realtime_ns``, or one that is not in whole nanoseconds of 64 bits.
        LimitExceededError: the file is nested too deeply.
    """
    document = read_json(path)
    readings = document.get("clock_anchors") if isinstance(document, dict) else document
    if not isinstance(readings, list) or not readings or not all(isinstance(r, dict) for r in readings):
        raise InputFormatError("holds no list of clock anchors", path=path)
    try:
        return tuple(anchors_from_readings(readings))
    except ClockAlignmentError as error:
        raise ClockAlignmentError(error.reason, path=path) from error


def read_extras(files: ExtraFiles, known: Mapping[str, Any] | None = None) -> Extra:
    """Read the files beside the traces.

    Args:
        files: which, and how.
        known: fields of ``Extra`` that are already known (of a recording that is normalised again).

    Raises:
        MagnetonError: a file is refused.
    """
    anchors = () if files.anchors is None else read_anchors(files.anchors)
    power = [open_power(path, files.options, anchors) for path in files.power]
    fields = {"power": (), "workload": None, "files": (), "notes": (), "tables": {}} | dict(known or {})
    fields["power"] = [*fields["power"], *power]
    if files.devices:
        fields["sensors"] = [
            *(s for s in fields.get("sensors", ()) if s.get("kind") != SensorKind.DEVICE_MAP),
            *_device_maps(files.devices, fields["power"]),
        ]
    if files.bench is None:
        return Extra(**fields)
    options = BenchOptions(files.bench_index, anchors, files.options.tz, files.options.date_order)
    result = read_bench(files.bench, options)
    LOG.info("%s: benchmark result read as %s", files.bench, result.workload.source)
    if result.window_unix_ns is not None:
        result.workload.details["window_unix_ns"] = list(result.window_unix_ns)
    fields["workload"] = _merged(fields["workload"], result.workload)
    fields["files"] = [*fields["files"], files.bench]
    if result.warnings:
        rows = [{"code": code, "count": count, "message": message} for code, count, message in result.warnings]
        fields["tables"] = {"warnings": pa.Table.from_pylist(rows)} | fields["tables"]
    return Extra(**fields)


def _device_maps(stated: Sequence[DeviceName], power: Sequence[PowerInput]) -> list[dict[str, Any]]:
    """Return the entries of the manifest that say which GPU a device is.

    Raises:
        UsageError: no log has a GPU of that name, or several have.
    """
    logged = {d.device_id for item in power for d in item.log.report.devices if d.device_kind == DeviceKind.GPU}
    names = sorted(name for name in logged if name is not None)
    maps: dict[int | None, dict[str, str]] = {}
    for one in stated:
        # A UUID may be cut short as long as it stays unique.
        matches = [one.name] if one.name in names else [name for name in names if name.startswith(one.name)]
        if len(matches) != 1:
            raise UsageError(
                f"the power log has {'no' if not matches else 'several'} GPU {one.name[:60]}",
                remedy=f"give one of {', '.join(names[:16])}" if names else "give a power log that names its GPUs",
            )
        maps.setdefault(one.rank, {})[str(one.device)] = matches[0]
    return [{"kind": SensorKind.DEVICE_MAP, "rank": rank, "devices": devices} for rank, devices in maps.items()]


def _merged(known: Workload | None, found: Workload) -> Workload:
    """Return a workload with the numbers of the benchmark, and with the earlier ones where the benchmark has none."""
    if known is None:
        return found
    merged = {
        f: getattr(found, f) if getattr(found, f) is not None else getattr(known, f) for f in Workload.__struct_fields__
    }
    return Workload(**merged | {"details": known.details | found.details})
