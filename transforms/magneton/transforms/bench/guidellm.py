"""GuideLLM's ``benchmarks.json``: a list of benchmarks, each with its requests and Unix times.

A report may hold several (a sweep over rates); one of them is read. Warm-up and cool-down requests are not in the lists.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from magneton.schemas.kinds import Clock
from magneton.schemas.manifest import Workload
from magneton.transforms.bench import result as r

NAME = "guidellm"
_STATES = (("successful", True), ("errored", False), ("incomplete", False))


def recognises(document: dict[str, Any]) -> bool:
    """Say whether a decoded object is this format."""
    benchmarks = document.get("benchmarks")
    return isinstance(benchmarks, list) and all(isinstance(b, dict) and "requests" in b for b in benchmarks)


def read(path: Path, documents: list[Any], options: r.BenchOptions) -> r.BenchResult:
    """Read one benchmark of a report.

    Raises:
        InputFormatError: the report holds no benchmark.
    """
    report = documents[0]
    benchmark, warnings = r.pick(report["benchmarks"], options, path)
    listed = benchmark["requests"] if isinstance(benchmark["requests"], dict) else {}
    rows = [(row, ok) for state, ok in _STATES for row in r.column(listed, state) if isinstance(row, dict)]
    requests = [_request(i, row, ok) for i, (row, ok) in enumerate(rows)]
    done = [q for q in requests if q.ok]
    totals = _of(benchmark, "metrics", "request_totals")
    work = Workload(
        model=_model(report, benchmark),
        requests=_first(r.whole(totals.get("successful")), len(done) if requests else None),
        input_tokens=_total(done, "input_tokens", benchmark, "prompt_token_count"),
        output_tokens=_total(done, "output_tokens", benchmark, "output_token_count"),
        duration_s=r.seconds(benchmark.get("duration")),
        source=NAME,
        details=_details(report, benchmark, totals),
    )
    result = r.BenchResult(NAME, work, requests, warnings=warnings)
    start, end = r.nanoseconds(benchmark.get("start_time")), r.nanoseconds(benchmark.get("end_time"))
    if start is not None and end is not None and end >= start:
        result.window_unix_ns = (start, end)
    starts = [r.nanoseconds(_start(row)) for row, _ in rows]
    r.place(result, starts, Clock.REALTIME, None, options.anchors)
    r.check_totals(result, path)
    return result


def _of(document: Any, *keys: str) -> dict[str, Any]:
    """Return the object under a path of keys, or an empty one."""
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def _first(*values: int | None) -> int | None:
    return next((v for v in values if v is not None), None)


def _start(row: dict[str, Any]) -> Any:
    timings = _of(row, "info", "timings")
    return row.get("request_start_time") or timings.get("request_start") or row.get("start_time")


def _request(index: int, row: dict[str, Any], ok: bool) -> r.Request:
    inputs, outputs = _of(row, "input_metrics"), _of(row, "output_metrics")
    ttft_ms = r.seconds(row.get("time_to_first_token_ms"))
    return r.Request(
        index=index,
        ok=ok,
        input_tokens=_first(r.whole(row.get("prompt_tokens")), r.whole(inputs.get("text_tokens"))),
        output_tokens=_first(r.whole(row.get("output_tokens")), r.whole(outputs.get("text_tokens"))),
        ttft_s=None if ttft_ms is None else ttft_ms / 1e3,
        latency_s=r.seconds(row.get("request_latency")),
    )


def _total(done: list[r.Request], field: str, benchmark: dict[str, Any], metric: str) -> int | None:
    """Return tokens over the requests that succeeded: from their list, else from the statistics."""
    values = [getattr(q, field) for q in done]
    if values and None not in values:
        return int(sum(values))
    return r.whole(_of(benchmark, "metrics", metric, "successful").get("total_sum"))


def _model(report: dict[str, Any], benchmark: dict[str, Any]) -> str | None:
    places = (_of(report, "config"), _of(report, "args"), _of(benchmark, "config"), _of(benchmark, "config", "backend"))
    return next((found for place in places if (found := r.text(place.get("model")))), None)


def _details(report: dict[str, Any], benchmark: dict[str, Any], totals: dict[str, Any]) -> dict[str, Any]:
    details = r.scalars(benchmark, ("duration", "type_"))
    details |= {f"requests_{key}": value for key, value in r.scalars(totals).items()}
    details |= {f"strategy_{key}": value for key, value in r.scalars(_of(benchmark, "config", "strategy")).items()}
    version = r.text(_of(report, "metadata").get("guidellm_version"))
    return details | ({"guidellm_version": version} if version else {})
