"""MLPerf's ``mlperf_log_detail.txt``: lines ``:::MLLOG {json}``. The power window and the facts about the run are read.

``power_begin`` and ``power_end`` are wall times as text, UTC as MLPerf's checker reads them, month-day or day-month.
"""

from __future__ import annotations

import decimal
from pathlib import Path
from typing import Any

import msgspec

from magneton.schemas.errors import InputFormatError
from magneton.schemas.kinds import Clock
from magneton.schemas.manifest import Workload
from magneton.transforms.bench import result as r
from magneton.transforms.power.ptdaemon import MLPERF_ZONE, TIME
from magneton.transforms.reading.localtime import LocalClock, date_order, nanoseconds, parse_zone
from magneton.transforms.reading.textfile import TextFile

NAME = "mlperf-log"
PREFIX = ":::MLLOG "
_REQUEST_KEYS = ("result_query_count", "generated_query_count")


def sniff(head: str) -> bool:
    """Say whether the start of a file is this format."""
    return any(line.startswith(PREFIX) for line in head.split("\n"))


def read(path: Path, options: r.BenchOptions) -> r.BenchResult:
    """Read a detail log.

    Raises:
        InputFormatError: no line of it can be read, or ``power_end`` lies before ``power_begin``.
    """
    values: dict[str, Any] = {}
    broken = 0
    decoder = msgspec.json.Decoder(float_hook=decimal.Decimal)
    for line in TextFile(path):
        if not line.startswith(PREFIX):
            continue
        try:
            entry = decoder.decode(line[len(PREFIX) :])
        except msgspec.DecodeError:
            broken += 1
            continue
        if isinstance(entry, dict) and isinstance(entry.get("key"), str):
            values[entry["key"]] = entry.get("value")
    if not values:
        raise InputFormatError("holds no MLLOG line that can be read", path=path)
    result = r.BenchResult(NAME, Workload(source=NAME, details=r.scalars(values)))
    if broken:
        result.warnings.append(("truncated", broken, f"{path.name}: MLLOG lines that are not whole"))
    result.workload.requests = next((n for key in _REQUEST_KEYS if (n := r.whole(values.get(key))) is not None), None)
    _power_window(result, values, path, options)
    return result


def _power_window(result: r.BenchResult, values: dict[str, Any], path: Path, options: r.BenchOptions) -> None:
    matches = [TIME.fullmatch(str(values.get(key))) for key in ("power_begin", "power_end")]
    found = [m for m in matches if m is not None]
    if len(found) < 2:
        return
    order, why = date_order(
        [(int(m.group(1)), int(m.group(2)), int(m.group(3))) for m in found], path, options.date_order
    )
    if why == "assumed":
        message = f"{path.name}: days and months may be exchanged; read as month-day"
        result.warnings.append(("date_order_assumed", 1, message))
    zone = options.tz or MLPERF_ZONE
    clock = LocalClock(parse_zone(zone))
    times: list[int] = []
    for m in found:
        a, b, year, hour, minute, second = (int(part) for part in m.groups()[:6])
        month, day = (a, b) if order == "mdy" else (b, a)
        stamp = clock.unix_ns((year, month, day, hour, minute, second), nanoseconds(m.group(7)))
        if isinstance(stamp, str):
            raise InputFormatError("states a power window at a time that does not exist", path=path)
        times.append(stamp)
    begin, end = times
    if end < begin:
        raise InputFormatError("states a power window that ends before it begins", path=path)
    result.window_unix_ns = (begin, end)
    result.start_clock = Clock.REALTIME
    result.workload.duration_s = (end - begin) / 1e9
    result.workload.details |= {"time_zone": zone, "date_order": order, "date_order_source": why}
