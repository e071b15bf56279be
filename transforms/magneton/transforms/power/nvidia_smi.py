"""``nvidia-smi --query-gpu=... --format=csv[,nounits]``: one line per GPU and poll, local time without a zone.

Units stand in the cells, only in the header, or nowhere. A restarted tool writes its header again, perhaps with other
columns. Redirected by PowerShell the file is UTF-16.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from magneton.schemas.errors import InputFormatError
from magneton.schemas.kinds import Clock, DeviceKind, Flag, PowerField
from magneton.transforms.power import fields
from magneton.transforms.power.builder import LogBuilder
from magneton.transforms.power.csvrows import cells_of, may_be_cut
from magneton.transforms.power.log import PowerLog, PowerOptions, realtime_only
from magneton.transforms.power.readings import Series
from magneton.transforms.power.textrows import TextRows
from magneton.transforms.reading.decimals import is_missing
from magneton.transforms.reading.localtime import LocalClock, nanoseconds, need_zone

NAME = "nvidia-smi"
_TIME = re.compile(r"(\d{4})/(\d\d)/(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?", re.ASCII)
_HEAD_CELL = re.compile(r"([A-Za-z][\w.]*)\s*(?:\[(.*)\])?", re.ASCII)
_CELL = re.compile(r"([^\s]+)\s+([A-Za-z%µ°][\w%]*)")
_MAY_BE_HEADER = re.compile(r"power|energy|temperature|clocks|utilization|memory|fan", re.IGNORECASE)
_BITS = re.compile(r"0x[0-9a-fA-F]{1,16}", re.ASCII)
_KNOWN_CELLS = 1 << 16
_IDENTITY = ("uuid", "gpu_uuid", "index", "pci.bus_id", "gpu_bus_id", "pci.bus", "serial", "gpu_serial")
_DESCRIPTION = (
    "name",
    "gpu_name",
    "index",
    "uuid",
    "gpu_uuid",
    "pci.bus_id",
    "gpu_bus_id",
    "driver_version",
    "mig.mode.current",
)

# column -> (field, unit when neither cell nor header gives one)
_COLUMNS: dict[str, tuple[str, str]] = {
    "power.draw": (PowerField.POWER, "W"),
    "power.draw.average": (PowerField.POWER_AVERAGE, "W"),
    "power.draw.instant": (PowerField.POWER_INSTANT, "W"),
    "module.power.draw.average": ("module_power_average", "W"),
    "module.power.draw.instant": ("module_power_instant", "W"),
    "gpu_memory.power.draw.average": ("memory_power_average", "W"),
    "gpu_memory.power.draw.instant": ("memory_power_instant", "W"),
    "total_energy_consumption": (PowerField.ENERGY_COUNTER, "mJ"),
    "power.limit": (PowerField.POWER_LIMIT, "W"),
    "enforced.power.limit": (PowerField.POWER_LIMIT, "W"),
    "temperature.gpu": ("temperature", "degC"),
    "temperature.memory": ("temperature_memory", "degC"),
    "clocks.current.sm": ("clock_sm", "MHz"),
    "clocks.sm": ("clock_sm", "MHz"),
    "clocks.current.memory": ("clock_memory", "MHz"),
    "clocks.mem": ("clock_memory", "MHz"),
    "clocks.current.graphics": ("clock_graphics", "MHz"),
    "clocks.gr": ("clock_graphics", "MHz"),
    "utilization.gpu": ("utilization", "%"),
    "utilization.memory": ("utilization_memory", "%"),
    "memory.used": ("memory_used", "MiB"),
    "fan.speed": ("fan_speed", "%"),
    "clocks_event_reasons.active": ("throttle_reasons", "1"),
    "clocks_throttle_reasons.active": ("throttle_reasons", "1"),
}


@dataclass
class _Header:
    """Where a header puts what: names, units and the columns that are readings."""

    cells: list[str]
    names: list[str]
    units: list[str | None]

    def __post_init__(self) -> None:
        self.time = self.names.index("timestamp") if "timestamp" in self.names else None
        self.identity = next((self.names.index(n) for n in _IDENTITY if n in self.names), None)
        self.readings = [i for i, name in enumerate(self.names) if name in _COLUMNS]
        self.described = [(n, self.names.index(n)) for n in _DESCRIPTION if n in self.names]
        # Series by (device id, column), and cells by (device id, column, text): readings repeat themselves.
        self.series: dict[tuple[str | None, int, str | None], int] = {}
        self.known: dict[tuple[str | None, int, str], fields.Cell] = {}


def _header(cells: list[str]) -> _Header | None:
    parsed = [_HEAD_CELL.fullmatch(cell) for cell in cells]
    names = [match.group(1).lower() if match else "" for match in parsed]
    if not any(name in _COLUMNS for name in names):
        return None
    return _Header(cells, names, [match.group(2) if match else None for match in parsed])


def sniff(head: str) -> bool:
    """Say whether the start of a file is this format."""
    for line in head.split("\n"):
        header = _header(cells_of(line) or [])
        if header and any(
            name.startswith(("power.", "clocks.", "utilization.", "temperature.")) for name in header.names
        ):
            return True
    return False


def read(path: Path, options: PowerOptions) -> PowerLog:
    """Read a log of ``nvidia-smi``.

    Raises:
        ClockAlignmentError: no time zone was given.
        InputFormatError: there is no header, so the columns are not known.
    """
    builder = LogBuilder(path, NAME, options)
    realtime_only(options, path)
    clock: LocalClock | None = None
    header: _Header | None = None
    before: list[str] | None = None
    rows = TextRows(path, builder)
    for position, line, last in rows:
        cells = cells_of(line)
        if cells and _MAY_BE_HEADER.search(line) and (found := _header(cells)) is not None:
            if header is not None:
                rows.repeated_header()
            if header is None or header.cells != cells:
                header, before = found, None
                if header.time is not None and clock is None:
                    clock = LocalClock(need_zone(options.tz, path))
                    builder.report.time_zone, builder.report.time_zone_source = options.tz, "given"
            continue
        open_end = last and not rows.final_newline
        if header is None or cells is None or len(cells) != len(header.cells):
            builder.drop(position, Flag.ROW_CUT if open_end and header else Flag.ROW_MALFORMED, line)
        elif open_end and may_be_cut(cells, before):
            builder.drop(position, Flag.ROW_CUT, line)
        else:
            before = cells
            builder.row(position, _time(clock, header, cells), _cells(builder, header, cells), line)
    if header is None:
        raise InputFormatError(
            "has no header line naming the columns",
            path=path,
            remedy="record without the option noheader, or add the line",
        )
    if clock is not None and clock.ambiguous:
        builder.warn("local_time_ambiguous", "the hour in which daylight saving ends", clock.ambiguous)
    columns = [name for i, name in enumerate(header.names) if i not in header.readings and i != header.time]
    if columns:
        builder.report.notes.append("columns not read: " + ", ".join(columns))
    return builder.finish(rows.raw)


def _time(clock: LocalClock | None, header: _Header, cells: list[str]) -> int | str | None:
    if clock is None or header.time is None:
        return None
    text = cells[header.time]
    match = _TIME.fullmatch(text)
    if match is None:
        return "ts_missing" if is_missing(text) else "ts_not_numeric"
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    return clock.unix_ns((year, month, day, hour, minute, second), nanoseconds(match.group(7)))


def _cells(builder: LogBuilder, header: _Header, cells: list[str]) -> list[fields.Cell]:
    device = None if header.identity is None or is_missing(cells[header.identity]) else cells[header.identity]
    if len(header.known) > _KNOWN_CELLS:
        header.known.clear()
    result: list[fields.Cell] = []
    for i in header.readings:
        key = (device, i, cells[i])
        cell = header.known.get(key)
        if cell is None:
            cell = header.known[key] = _cell(builder, header, cells, device, i)
        result.append(cell)
    return result


def _cell(builder: LogBuilder, header: _Header, cells: list[str], device: str | None, i: int) -> fields.Cell:
    field, unit = _COLUMNS[header.names[i]]
    text = cells[i]
    if _BITS.fullmatch(text):
        text = str(int(text, 16))
    match = None if is_missing(text) else _CELL.fullmatch(text)
    if match:
        text, unit = match.groups()
    elif header.units[i]:
        unit = header.units[i] or unit
    scale = fields.unit_scale(unit)
    base = scale[0] if scale else fields.expected_unit(field)
    series = header.series.get((device, i, base))
    if series is None:
        labels = {name: cells[at] for name, at in header.described}
        series = header.series[(device, i, base)] = builder.series(
            Series(header.names[i], NAME, DeviceKind.GPU, device, field, base, Clock.REALTIME), labels
        )
    return fields.read_cell(series, field, scale, text, DeviceKind.GPU)
