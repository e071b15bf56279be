"""What a reader of benchmark results returns."""

from __future__ import annotations

import decimal
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from magneton.schemas.checks import need_one_of, need_whole
from magneton.schemas.clocks import REALTIME, clock_map
from magneton.schemas.errors import InputFormatError
from magneton.schemas.manifest import ClockAnchor, Workload
from magneton.transforms.reading.localtime import DATE_ORDERS, parse_zone
from magneton.transforms.reading.textfile import read_bytes

MAX_DETAIL_TEXT = 200
Warning_ = tuple[str, int, str]


class Request(msgspec.Struct):
    """One request. Times are NULL where the file does not give them, or gives them on a clock that nothing ties down.

    Attributes:
        index: position in the file.
        ok: it succeeded; NULL where the file does not say.
        input_tokens: prompt tokens.
        output_tokens: generated tokens.
        start_unix_ns: Unix time of its start, ns.
        ttft_s: time to the first token, s.
        latency_s: time to its end, s.
    """

    index: int
    ok: bool | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    start_unix_ns: int | None = None
    ttft_s: float | None = None
    latency_s: float | None = None


@dataclass
class BenchResult:
    """A benchmark result, read.

    Attributes:
        format: format of the file.
        workload: totals over the requests that succeeded, for the manifest; NULL where the file does not say.
        requests: the requests, where the file lists them.
        window_unix_ns: Unix start and end of the benchmark, where the file or an anchor gives them.
        start_clock: clock of the file's own start times (``realtime``, ``monotonic``), NULL without any.
        warnings: (code, count, message).
    """

    format: str
    workload: Workload
    requests: list[Request] = field(default_factory=list)
    window_unix_ns: tuple[int, int] | None = None
    start_clock: str | None = None
    warnings: list[Warning_] = field(default_factory=list)


@dataclass(frozen=True)
class BenchOptions:
    """What the user says about a benchmark result. A value that makes no sense raises ``UsageError``.

    Attributes:
        index: which of several results in one file (from 0; negative counts from the end); NULL takes the last.
        anchors: what ties the client's monotonic clock to the wall clock.
        tz: zone of local times (MLPerf); NULL takes UTC there.
        date_order: ``mdy`` or ``dmy`` (MLPerf).
    """

    index: int | None = None
    anchors: tuple[ClockAnchor, ...] = ()
    tz: str | None = None
    date_order: str | None = None

    def __post_init__(self) -> None:
        if self.index is not None:
            need_whole("index", self.index)
        if self.tz is not None:
            parse_zone(self.tz)
        if self.date_order is not None:
            need_one_of("date_order", self.date_order, DATE_ORDERS)


def decode(path: Path) -> list[Any]:
    """Return the JSON documents of a file: one, or one per line. Fractions become ``Decimal``, so that no digit is lost.

    Raises:
        InputFormatError: not JSON.
    """
    data = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
    try:
        return [_document(data)]
    except (ValueError, RecursionError) as whole:
        lines = [line for line in data.split(b"\n") if line.strip()]
        try:
            return [_document(line) for line in lines]
        except (ValueError, RecursionError) as error:
            # The message about the whole is the telling one when there is one document over many lines.
            told = error if len(lines) > 1 and lines[0].rstrip().endswith(b"}") else whole
            raise InputFormatError(f"is not JSON: {told}", path=path) from error


def _document(data: bytes) -> Any:
    """Decode one document; Python writes NaN and Infinity, which are no JSON and are read as NULL."""
    try:
        return msgspec.json.Decoder(float_hook=decimal.Decimal).decode(data)
    except msgspec.DecodeError:
        if not re.search(rb"\b(?:NaN|Infinity)\b", data):
            raise
        return json.loads(data, parse_float=decimal.Decimal, parse_constant=lambda _: None)


def pick(documents: list[Any], options: BenchOptions, path: Path) -> tuple[dict[str, Any], list[Warning_]]:
    """Return the one result to read, warning when there are several.

    Raises:
        InputFormatError: there is none, or none of that number.
    """
    found = [d for d in documents if isinstance(d, dict)]
    if not found:
        raise InputFormatError("holds no benchmark result", path=path)
    index = -1 if options.index is None else options.index
    try:
        chosen = found[index]
    except IndexError as error:
        raise InputFormatError(f"holds {len(found)} results; there is no number {index}", path=path) from error
    if len(found) > 1 and options.index is None:
        return chosen, [("several_benchmarks", len(found), f"{path.name}: {len(found)} results; the last is read")]
    return chosen, []


def whole(value: object) -> int | None:
    """Return a count, or NULL for anything that is not a whole number from 0 to what 63 bits hold."""
    if isinstance(value, decimal.Decimal) and value.is_finite() and value.adjusted() < 18 and value == int(value):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def number(value: object) -> float | None:
    """Return a finite number as a float, or NULL."""
    if not isinstance(value, int | decimal.Decimal) or isinstance(value, bool):
        return None
    try:
        result = float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return None
    return result if math.isfinite(result) else None


def seconds(value: object) -> float | None:
    """Return a length of time, s, or NULL for anything that is not a finite number of at least 0."""
    found = number(value)
    return found if found is not None and found >= 0 else None


def nanoseconds(seconds: object) -> int | None:
    """Return seconds as integer nanoseconds, exactly, half to even; NULL for anything that is not a finite number."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | decimal.Decimal):
        return None
    exact = decimal.Decimal(seconds)
    if not exact.is_finite() or exact.adjusted() > 12:
        return None
    return int((exact * 10**9).to_integral_value(decimal.ROUND_HALF_EVEN))


def text(value: object) -> str | None:
    """Return a non-empty text, or NULL."""
    return value if isinstance(value, str) and value else None


def scalars(document: Mapping[str, Any], leave_out: Iterable[str] = ()) -> dict[str, Any]:
    """Return the single values of a result (settings, rates, percentiles), without lists, objects and long texts."""
    skip = set(leave_out)
    result: dict[str, Any] = {}
    for key, value in document.items():
        if key in skip or value is None:
            continue
        if isinstance(value, decimal.Decimal):
            if (found := number(value)) is not None:
                result[key] = found
        elif isinstance(value, bool | int) or (isinstance(value, str) and len(value) <= MAX_DETAIL_TEXT):
            result[key] = value
    return result


def column(document: Mapping[str, Any], key: str) -> list[Any]:
    """Return a list of a result, or an empty one."""
    value = document.get(key)
    return value if isinstance(value, list) else []


def check_totals(result: BenchResult, path: Path) -> None:
    """Warn when totals differ from the sums over the requests that succeeded."""
    done = [r for r in result.requests if r.ok is not False]
    work = result.workload
    pairs = (
        ("requests", work.requests, [1 for _ in done]),
        ("input tokens", work.input_tokens, [r.input_tokens for r in done]),
        ("output tokens", work.output_tokens, [r.output_tokens for r in done]),
    )
    for what, total, values in pairs:
        if not result.requests or total is None or any(v is None for v in values):
            continue
        found = sum(v for v in values if v is not None)
        if found != total:
            message = f"{path.name}: {total} {what} in all, {found} over the requests listed"
            result.warnings.append(("bench_totals_disagree", 1, message))


def place(
    result: BenchResult,
    starts_ns: list[int | None],
    clock: str,
    duration_ns: int | None,
    anchors: tuple[ClockAnchor, ...],
) -> None:
    """Give requests their Unix start times, if the clock of the file can be tied to the wall clock.

    Without an anchor for it nothing is placed: only totals are known, and that is no error.

    Args:
        result: result to complete.
        starts_ns: start of each request on ``clock``, ns.
        clock: clock of the start times.
        duration_ns: length of the benchmark, ns.
        anchors: anchors given by the user.
    """
    known = [s for s in starts_ns if s is not None]
    if not known:
        return
    result.start_clock = clock
    if clock != REALTIME and not any(a.clock == clock for a in anchors):
        return
    convert = clock_map(anchors, clock).convert
    for request, start in zip(result.requests, starts_ns, strict=True):
        request.start_unix_ns = None if start is None else convert(start)
    if result.window_unix_ns is None and duration_ns is not None and duration_ns >= 0:
        first = min(known)
        result.window_unix_ns = (convert(first), convert(first + duration_ns))
