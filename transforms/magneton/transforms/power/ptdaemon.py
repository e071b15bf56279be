"""Logs of SPEC PTDaemon as MLPerf keeps them (``spl.txt``): ``Time,<t>,Watts,<w>,Volts,<v>,Amps,<a>,PF,<pf>,Mark,<m>``.

With several analysers a line holds the sum of their Watts, then ``,Analyzer1,<line>,Analyzer2,<line>``. The sum becomes
the device ``wall``, each analyser a ``wall_part``, so that adding up devices of one kind counts nothing twice. Dates are
month-day in MLPerf's checker and day-month in its documentation: the file decides where it can (``localtime.date_order``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from magneton.schemas.kinds import Clock, Flag, PowerField
from magneton.transforms.power import fields
from magneton.transforms.power.builder import LogBuilder
from magneton.transforms.power.csvrows import cells_of
from magneton.transforms.power.log import PowerLog, PowerOptions, realtime_only
from magneton.transforms.power.readings import Series
from magneton.transforms.power.textrows import TextRows
from magneton.transforms.reading.decimals import reading
from magneton.transforms.reading.localtime import LocalClock, date_order, nanoseconds, parse_zone
from magneton.transforms.reading.textfile import TextFile

NAME = "ptdaemon"
TIME = re.compile(r"(\d\d?)-(\d\d?)-(\d{4}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?", re.ASCII)
_PART = re.compile(r"(?:Analyzer|Ch)\d+", re.ASCII)
_VALUES = {
    "Watts": (PowerField.POWER, "W"),
    "Volts": ("voltage", "V"),
    "Amps": ("current", "A"),
    "PF": ("power_factor", "1"),
}
_SUM_TOLERANCE_W = 0.01
MLPERF_ZONE = "UTC"


def sniff(head: str) -> bool:
    """Say whether the start of a file is this format."""
    return any(line.startswith("Time,") and ",Watts," in line for line in head.split("\n"))


def read(path: Path, options: PowerOptions) -> PowerLog:
    """Read a log of PTDaemon; without a zone its times are UTC, as MLPerf's checker reads them.

    Raises:
        InputFormatError: no date order fits all dates.
    """
    builder = LogBuilder(path, NAME, options)
    realtime_only(options, path)
    report = builder.report
    order, why = date_order(_dates(path), path, options.date_order)
    report.date_order, report.date_order_source = order, why
    if why == "assumed":
        builder.warn("date_order_assumed", "days and months may be exchanged; read as month-day")
    clock = LocalClock(parse_zone(options.tz or MLPERF_ZONE))
    report.time_zone, report.time_zone_source = options.tz or MLPERF_ZONE, "given" if options.tz else "format"
    rows = TextRows(path, builder)
    for position, line, last in rows:
        groups = _groups(line)
        if groups is None or (last and not rows.final_newline and not _whole(groups)):
            builder.drop(position, Flag.ROW_CUT if last and not rows.final_newline else Flag.ROW_MALFORMED, line)
            continue
        parts = [_cells(builder, name, pairs, len(groups) > 1) for name, pairs in groups]
        _check_sum(builder, parts)
        builder.row(position, _time(groups[0][1].get("Time", ""), order, clock), [c for p in parts for c in p], line)
    if clock.ambiguous:
        builder.warn("local_time_ambiguous", "the hour in which daylight saving ends", clock.ambiguous)
    return builder.finish(rows.raw)


def _dates(path: Path) -> Iterator[tuple[int, int, int]]:
    for line in TextFile(path):
        if match := TIME.match(line, 5 if line.startswith("Time,") else 0):
            yield int(match.group(1)), int(match.group(2)), int(match.group(3))


Groups = list[tuple[str, dict[str, str]]]


def _groups(line: str) -> Groups | None:
    """Return the line's own values and those of each analyser, or None when it is not such a line."""
    cells = cells_of(line)
    if cells is None or cells[0] != "Time":
        return None
    groups: Groups = [("total", {})]
    at = 0
    while at < len(cells):
        if _PART.fullmatch(cells[at]):
            groups.append((cells[at], {}))
            at += 1
        elif at + 1 < len(cells):
            groups[-1][1].setdefault(cells[at], cells[at + 1])
            at += 2
        else:
            return None
    return groups if "Watts" in groups[0][1] else None


def _whole(groups: Groups) -> bool:
    """Say whether a line without a newline came to its last value, the mark."""
    return all("Mark" in pairs for _, pairs in groups)


def _time(text: str, order: str, clock: LocalClock) -> int | str:
    match = TIME.fullmatch(text)
    if match is None:
        return "ts_not_numeric" if text else "ts_missing"
    a, b, year, hour, minute, second = (int(part) for part in match.groups()[:6])
    month, day = (a, b) if order == "mdy" else (b, a)
    return clock.unix_ns((year, month, day, hour, minute, second), nanoseconds(match.group(7)))


def _cells(builder: LogBuilder, name: str, pairs: dict[str, str], several: bool) -> list[fields.Cell]:
    kind = "wall" if name == "total" else "wall_part"
    device = name.lower() if several else None
    labels = {"mark": pairs["Mark"]} if "Mark" in pairs else {}
    result: list[fields.Cell] = []
    for key, text in pairs.items():
        if key not in _VALUES:
            continue
        field, unit = _VALUES[key]
        series = builder.series(Series(key, NAME, kind, device or "meter", field, unit, Clock.REALTIME), labels)
        # PTDaemon writes -1 where there is no reading.
        given = "" if reading(text) == -1 else text
        result.append(fields.read_cell(series, field, fields.unit_scale(unit), given))
    return result


def _check_sum(builder: LogBuilder, parts: list[list[fields.Cell]]) -> None:
    if len(parts) < 2:
        return
    watts = [next((v for s, v, _ in part if v is not None and builder.unit_of(s) == "W"), None) for part in parts]
    if watts[0] is None or any(w is None for w in watts):
        return
    difference = abs(watts[0] - sum(w for w in watts[1:] if w is not None))
    if difference > _SUM_TOLERANCE_W * len(watts):
        builder.warn("analyzer_sum_mismatch", f"first by {difference:.3f} W")
