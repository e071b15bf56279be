"""``vllm bench serve --save-result`` and ``--save-detailed`` (one object, or one per line with ``--append-result``).

``start_times`` are the client's ``time.perf_counter()`` (on Linux the monotonic clock), not Unix times, and ``date`` is
local and taken after the run: neither says when it was without an anchor. Failed requests count in ``input_lens`` but
not in the totals.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from magneton.schemas.errors import InputFormatError
from magneton.schemas.kinds import Clock
from magneton.schemas.manifest import Workload
from magneton.transforms.bench import result as r

NAME = "vllm-bench"
_TAKEN = {"completed", "total_input_tokens", "total_output_tokens", "duration", "model_id"}


def recognises(document: dict[str, Any]) -> bool:
    """Say whether a decoded object is this format."""
    return "model_id" in document and "completed" in document and "total_input_tokens" in document


def read(path: Path, documents: list[Any], options: r.BenchOptions) -> r.BenchResult:
    """Read the result.

    Raises:
        InputFormatError: lists of different length.
    """
    document, warnings = r.pick(documents, options, path)
    result = r.BenchResult(NAME, workload(document, NAME, r.text(document.get("model_id"))), warnings=warnings)
    result.requests = requests(document, path)
    starts = [r.nanoseconds(s) for s in r.column(document, "start_times")]
    if starts and len(starts) == len(result.requests):
        r.place(result, starts, Clock.MONOTONIC, r.nanoseconds(document.get("duration")), options.anchors)
    r.check_totals(result, path)
    return result


def workload(document: dict[str, Any], source: str, model: str | None) -> Workload:
    """Return the totals that vLLM's and SGLang's results have in common."""
    return Workload(
        model=model,
        requests=r.whole(document.get("completed")),
        input_tokens=r.whole(document.get("total_input_tokens")),
        output_tokens=r.whole(document.get("total_output_tokens")),
        duration_s=r.seconds(document.get("duration")),
        source=source,
        details=r.scalars(document, _TAKEN),
    )


def requests(document: dict[str, Any], path: Path) -> list[r.Request]:
    """Return the per-request lists that vLLM's and SGLang's results have in common.

    Raises:
        InputFormatError: lists of different length.
    """
    keys = ("input_lens", "output_lens", "ttfts", "errors", "itls", "latencies")
    columns = {key: r.column(document, key) for key in keys}
    lists = {key: values for key, values in columns.items() if values}
    if not columns["input_lens"] and not columns["output_lens"]:
        return []
    lengths = {len(values) for values in lists.values()}
    if len(lengths) > 1:
        told = ", ".join(f"{key} {len(values)}" for key, values in lists.items())
        raise InputFormatError(f"lists requests in columns of different length ({told})", path=path)
    found = []
    for i in range(lengths.pop()):
        cell = {key: values[i] for key, values in lists.items()}
        ttft = r.seconds(cell.get("ttfts"))
        gaps = [r.seconds(v) for v in cell["itls"]] if isinstance(cell.get("itls"), list) else None
        latency = r.seconds(cell.get("latencies"))
        if latency is None and ttft is not None and gaps is not None and None not in gaps:
            latency = ttft + sum(g for g in gaps if g is not None)
        found.append(
            r.Request(
                index=i,
                ok=not cell["errors"] if "errors" in cell else None,
                input_tokens=r.whole(cell.get("input_lens")),
                output_tokens=r.whole(cell.get("output_lens")),
                ttft_s=ttft,
                latency_s=latency,
            )
        )
    return found
