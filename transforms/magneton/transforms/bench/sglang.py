"""``python -m sglang.bench_serving --output-file``: one object per line, appended run after run.

There are no start times and no date. Per-request lists are there with ``--output-details`` only. Older versions lack
several keys, the model is not named in any.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from magneton.transforms.bench import result as r
from magneton.transforms.bench import vllm

NAME = "sglang-bench"


def recognises(document: dict[str, Any]) -> bool:
    """Say whether a decoded object is this format."""
    telling = {"total_output_tokens_retokenized", "sharegpt_output_len", "random_input_len"}
    return "completed" in document and "total_output_tokens" in document and bool(telling & document.keys())


def read(path: Path, documents: list[Any], options: r.BenchOptions) -> r.BenchResult:
    """Read the result.

    Raises:
        InputFormatError: lists of different length.
    """
    document, warnings = r.pick(documents, options, path)
    info = document.get("server_info")
    model = r.text(info.get("model_path")) if isinstance(info, dict) else None
    result = r.BenchResult(NAME, vllm.workload(document, NAME, model), warnings=warnings)
    result.requests = vllm.requests(document, path)
    r.check_totals(result, path)
    return result
