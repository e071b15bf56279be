"""Answers of Prometheus' HTTP API: ``/api/v1/query_range`` (matrix) and ``/api/v1/query`` (vector).

``values`` are pairs of Unix seconds (a number, kept as text so that nothing is rounded) and the value as a string. Also
read: the ``data`` object alone, or its ``result`` list alone, as ``promtool`` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from magneton.schemas.errors import InputFormatError
from magneton.schemas.kinds import Flag
from magneton.transforms.power.builder import LogBuilder
from magneton.transforms.power.log import PowerLog, PowerOptions, realtime_only
from magneton.transforms.power.prometheus.metrics import MetricReader
from magneton.transforms.reading.decimals import time_ns
from magneton.transforms.reading.textfile import read_bytes

NAME = "prometheus-json"


class _Result(msgspec.Struct):
    metric: dict[str, str] = {}
    values: list[msgspec.Raw] = []
    value: msgspec.Raw = msgspec.Raw()
    histograms: list[msgspec.Raw] = []
    histogram: msgspec.Raw = msgspec.Raw()


class _Data(msgspec.Struct, rename="camel"):
    result: list[_Result]
    result_type: str = "matrix"


class _Answer(msgspec.Struct, rename="camel"):
    data: _Data | None = None
    status: str | None = None
    error: str | None = None
    error_type: str | None = None
    warnings: list[str] = []
    infos: list[str] = []
    result: list[_Result] | None = None


def sniff(head: str) -> bool:
    """Say whether the start of a file is this format."""
    text = head.lstrip("\ufeff \t\r\n")
    if not text.startswith(("{", "[")):
        return False
    start = text[:4096]
    return '"resultType"' in start or '"metric"' in start or ('"status"' in start and '"errorType"' in start)


def read(path: Path, options: PowerOptions) -> PowerLog:
    """Read an answer of the HTTP API.

    Raises:
        InputFormatError: not such an answer, or the answer is an error.
    """
    builder = LogBuilder(path, NAME, options)
    realtime_only(options, path)
    data = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
    try:
        if data.lstrip()[:1] == b"[":
            results = msgspec.json.decode(data, type=list[_Result])
        else:
            answer = msgspec.json.decode(data, type=_Answer)
            if answer.status == "error":
                raise InputFormatError(f"is an error answer: {answer.error_type}: {answer.error}", path=path)
            results = answer.data.result if answer.data else answer.result or []
            builder.report.notes += answer.warnings + answer.infos
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputFormatError(f"is not an answer of Prometheus: {error}", path=path) from error
    metrics = MetricReader(builder)
    kept: dict[int, str] = {}
    for result in results:
        name = result.metric.get("__name__", "(unnamed)")
        labels = {k: v for k, v in result.metric.items() if k != "__name__"}
        for raw, stamp, value in _samples(result):
            position = builder.report.n_rows
            if stamp is None or value is None:
                builder.drop(position, Flag.ROW_MALFORMED, raw)
            else:
                kept[position] = raw
                metrics.sample(name, labels, value, time_ns(stamp, 9), f"{name} {raw}")
        for _ in range(len(result.histograms) + bool(bytes(result.histogram))):
            builder.ignore(f"{name} (histogram)")
    return builder.finish(lambda positions: {p: kept.get(p, "") for p in positions})


def _samples(result: _Result) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield (pair as written, time text or None, value text or None)."""
    for pair in [*result.values, *([result.value] if bytes(result.value) else [])]:
        raw = bytes(pair)
        text = raw.decode("utf-8", "replace")
        try:
            parts: Any = msgspec.json.decode(raw, type=tuple[msgspec.Raw, msgspec.Raw])
            value = msgspec.json.decode(parts[1], type=str | float)
        except (msgspec.DecodeError, RecursionError):
            yield text, None, None
            continue
        yield text, bytes(parts[0]).decode().strip('"'), value if isinstance(value, str) else repr(value)
