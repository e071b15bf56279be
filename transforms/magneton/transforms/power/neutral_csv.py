"""The neutral long form: ``timestamp_ns,clock,device_kind,device_id,field,value,unit``, one reading a row.

The time column may be ``timestamp_ns``, ``_us``, ``_ms`` or ``_s``. ``clock``, ``device_kind`` and ``device_id`` may be
absent; the clock must then be given by the user.
"""

from __future__ import annotations

import re
from pathlib import Path

from magneton.schemas.clocks import CLOCKS
from magneton.schemas.errors import ClockAlignmentError, InputFormatError, UsageError
from magneton.schemas.kinds import Flag, PowerField
from magneton.transforms.power import fields
from magneton.transforms.power.builder import LogBuilder
from magneton.transforms.power.csvrows import cells_of, may_be_cut
from magneton.transforms.power.log import PowerLog, PowerOptions
from magneton.transforms.power.readings import Series
from magneton.transforms.power.textrows import TextRows
from magneton.transforms.reading.decimals import time_ns

NAME = "csv"
_EXPONENTS = {"timestamp_ns": 0, "timestamp_us": 3, "timestamp_ms": 6, "timestamp_s": 9}
_NEEDED = {"field", "value", "unit"}
_FIELD_NAMES = {
    "energy_total": PowerField.ENERGY_COUNTER,
    "temp": "temperature",
    "throttle_reasons": "throttle_reasons",
}
# `power_average_1s` is an average, `package_power` a power; `memory_power` is a part of the device and stays itself.
_DEVICE = r"(?:(?:graphics_)?package|board|device|gpu|cpu|socket|total|wall|chip|asic|module|node|host|psys|platform)"
_AVERAGE, _INSTANT = r"(?:average|avg|mean)", r"(?:instant(?:aneous)?|inst|current)"
_FIELD_PATTERNS = (
    (
        re.compile(rf"power_{_AVERAGE}(?:_\w+)?|{_AVERAGE}_(?:{_DEVICE}_)?power|{_DEVICE}_power_{_AVERAGE}"),
        PowerField.POWER_AVERAGE,
    ),
    (
        re.compile(rf"power_{_INSTANT}(?:_\w+)?|{_INSTANT}_(?:{_DEVICE}_)?power|{_DEVICE}_power_{_INSTANT}"),
        PowerField.POWER_INSTANT,
    ),
    (re.compile(rf"(?:{_DEVICE}_)?power(?:_(?:draw|usage|consumption|w|watts))?"), PowerField.POWER),
    (
        re.compile(
            rf"(?:total_|{_DEVICE}_)?energy(?:_(?:counter|consumption|consumed|accumulated|accumulator|total))?|{_DEVICE}_energy_total|accumulated_energy"
        ),
        PowerField.ENERGY_COUNTER,
    ),
    (re.compile(rf"(?:enforced_)?power_(?:limit|cap)|max_power|{_DEVICE}_power_(?:limit|cap)"), PowerField.POWER_LIMIT),
)


def _header(line: str) -> list[str] | None:
    cells = [cell.lower() for cell in cells_of(line) or []]
    return cells if set(cells) >= _NEEDED and any(c.startswith("timestamp") for c in cells) else None


def _field(name: str) -> str:
    known = _FIELD_NAMES.get(name)
    return known or next((field for pattern, field in _FIELD_PATTERNS if pattern.fullmatch(name)), name)


def sniff(head: str) -> bool:
    """Say whether the start of a file is this format."""
    return any(_header(line) for line in head.split("\n")[:20])


def read(path: Path, options: PowerOptions) -> PowerLog:
    """Read a file in the long form.

    Raises:
        InputFormatError: the header names no time column with its unit, or there is no header.
        ClockAlignmentError: neither the file nor the user names the clock.
        UsageError: they contradict one another.
    """
    builder = LogBuilder(path, NAME, options)
    rows = TextRows(path, builder)
    header: list[str] | None = None
    before: list[str] | None = None
    index: dict[str, int] = {}
    time_column, exponent = "", 0
    for position, line, last in rows:
        found = _header(line)
        if found is not None:
            if header is not None:
                rows.repeated_header()
            header, index = found, {name: i for i, name in enumerate(found)}
            times = [name for name in found if name in _EXPONENTS]
            if not times:
                raise InputFormatError(
                    "does not say the unit of its time stamps",
                    path=path,
                    remedy="name the column timestamp_ns, timestamp_us, timestamp_ms or timestamp_s",
                )
            time_column, exponent = times[0], _EXPONENTS[times[0]]
            if "clock" not in index and options.clock is None:
                raise ClockAlignmentError(
                    "does not say which clock stamped it", path=path, remedy="name it: magneton normalize --clock"
                )
            continue
        cells = cells_of(line)
        if header is None or cells is None or len(cells) != len(header):
            builder.drop(position, Flag.ROW_CUT if last and not rows.final_newline else Flag.ROW_MALFORMED, line)
            continue
        if last and not rows.final_newline and may_be_cut(cells, before):
            builder.drop(position, Flag.ROW_CUT, line)
            continue
        before = cells
        _row(
            builder, position, {name: cells[i] for name, i in index.items()}, cells[index[time_column]], exponent, line
        )
    if header is None:
        raise InputFormatError("has no header of the long CSV form", path=path)
    return builder.finish(rows.raw)


def _row(builder: LogBuilder, position: int, named: dict[str, str], time: str, exponent: int, line: str) -> None:
    clock = named.get("clock") or builder.options.clock
    if clock is not None and clock.lower() in CLOCKS:
        clock = clock.lower()
    else:
        return builder.drop(position, "clock_unknown", line)
    if builder.options.clock not in (None, clock):
        raise UsageError(
            f"has times of the clock {clock}, not of {builder.options.clock}",
            path=builder.report.file,
            remedy="leave --clock away",
        )
    name = named["field"]
    if not name:
        return builder.drop(position, "field_missing", line)
    field = _field(name.lower())
    scale = fields.unit_scale(named["unit"])
    series = builder.series(
        Series(
            name,
            NAME,
            named.get("device_kind") or None,
            named.get("device_id") or None,
            field,
            scale[0] if scale else fields.expected_unit(field),
            clock,
        )
    )
    cell = fields.read_cell(series, field, scale, named["value"], named.get("device_kind"))
    return builder.row(position, time_ns(time, exponent), [cell], line)
