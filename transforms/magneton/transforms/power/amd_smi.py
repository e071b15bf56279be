"""``amd-smi metric --csv`` (snapshots without a time) and ``amd-smi monitor --csv -w N`` (a stream in whole seconds).

Nested values are flattened into columns without a prefix, cells carry no units and say ``N/A`` where there is nothing.
"""

from __future__ import annotations

from pathlib import Path

from magneton.schemas.errors import InputFormatError
from magneton.schemas.kinds import Clock, DeviceKind, Flag, PowerField
from magneton.transforms.power import fields
from magneton.transforms.power.builder import LogBuilder
from magneton.transforms.power.csvrows import cells_of, may_be_cut
from magneton.transforms.power.log import PowerLog, PowerOptions, realtime_only
from magneton.transforms.power.readings import Series
from magneton.transforms.power.textrows import TextRows
from magneton.transforms.reading.decimals import is_missing, time_ns

NAME = "amd-smi"
# `socket_power` is the current power where the chip gives it and an average otherwise: so plain power.
_COLUMNS: dict[str, tuple[str, str]] = {
    "socket_power": (PowerField.POWER, "W"),
    "power_usage": (PowerField.POWER, "W"),
    "current_socket_power": (PowerField.POWER_INSTANT, "W"),
    "average_socket_power": (PowerField.POWER_AVERAGE, "W"),
    "total_energy_consumption": (PowerField.ENERGY_COUNTER, "J"),
    "power_limit": (PowerField.POWER_LIMIT, "W"),
    "max_power": (PowerField.POWER_LIMIT, "W"),
    "hotspot_temperature": ("temperature", "degC"),
    "hotspot": ("temperature", "degC"),
    "memory_temperature": ("temperature_memory", "degC"),
    "gfx_clock": ("clock_graphics", "MHz"),
    "gfx_clk": ("clock_graphics", "MHz"),
    "mem_clock": ("clock_memory", "MHz"),
    "gfx": ("utilization", "%"),
    "gfx_util": ("utilization", "%"),
    "gfx_activity": ("utilization", "%"),
}
_TELLING = {"socket_power", "power_usage", "current_socket_power", "average_socket_power", "total_energy_consumption"}


def _header(line: str) -> list[str] | None:
    names = [cell.lower() for cell in cells_of(line) or []]
    return names if "gpu" in names and _TELLING & set(names) else None


def sniff(head: str) -> bool:
    """Say whether the start of a file is this format."""
    return any(_header(line) for line in head.split("\n"))


def read(path: Path, options: PowerOptions) -> PowerLog:
    """Read a log of ``amd-smi``.

    A snapshot has no time; ``PowerOptions.at_unix_ns`` gives it one, otherwise its ``ts_ns`` is NULL.

    Raises:
        InputFormatError: there is no header.
    """
    builder = LogBuilder(path, NAME, options)
    realtime_only(options, path)
    header: list[str] | None = None
    before: list[str] | None = None
    rows = TextRows(path, builder)
    for position, line, last in rows:
        if (found := _header(line)) is not None:
            if header is not None:
                rows.repeated_header()
            header = found
            continue
        cells = cells_of(line)
        open_end = last and not rows.final_newline
        if header is None or cells is None or len(cells) != len(header):
            builder.drop(position, Flag.ROW_CUT if open_end and header else Flag.ROW_MALFORMED, line)
        elif open_end and may_be_cut(cells, before):
            builder.drop(position, Flag.ROW_CUT, line)
        else:
            before = cells
            ts = time_ns(cells[header.index("timestamp")], 9) if "timestamp" in header else None
            builder.row(position, ts, _cells(builder, header, cells), line)
    if header is None:
        raise InputFormatError("has no header of amd-smi", path=path)
    if "timestamp" in header:
        builder.warn("coarse_time_stamps", "amd-smi cuts its time stamps to whole seconds", builder.report.n_rows)
    columns = [name for name in header if name not in _COLUMNS and name not in {"gpu", "timestamp"}]
    if columns:
        builder.report.notes.append("columns not read: " + ", ".join(columns))
    return builder.finish(rows.raw)


def _cells(builder: LogBuilder, header: list[str], cells: list[str]) -> list[fields.Cell]:
    gpu = cells[header.index("gpu")]
    device = None if is_missing(gpu) else gpu
    result: list[fields.Cell] = []
    for name, text in zip(header, cells, strict=True):
        if name not in _COLUMNS:
            continue
        field, unit = _COLUMNS[name]
        series = builder.series(Series(name, NAME, DeviceKind.GPU, device, field, unit, Clock.REALTIME), {"gpu": gpu})
        result.append(fields.read_cell(series, field, fields.unit_scale(unit), text, DeviceKind.GPU))
    return result
