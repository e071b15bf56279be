"""Which reader reads a benchmark result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magneton.schemas.errors import InputFormatError, InputNotFoundError
from magneton.transforms.bench import guidellm, mlperf, sglang, vllm
from magneton.transforms.bench.result import BenchOptions, BenchResult, decode
from magneton.transforms.reading.textfile import head


@dataclass(frozen=True)
class BenchFormat:
    """One JSON format: its name, a test on a decoded object, and its reader of the decoded documents of a file."""

    name: str
    recognises: Callable[[dict[str, Any]], bool]
    read: Callable[[Path, list[Any], BenchOptions], BenchResult]


# vLLM and SGLang share keys; each names something the other does not.
JSON_FORMATS = tuple(BenchFormat(m.NAME, m.recognises, m.read) for m in (guidellm, sglang, vllm))
FORMATS = (*(f.name for f in JSON_FORMATS), mlperf.NAME)


def read_bench(path: Path, options: BenchOptions | None = None) -> BenchResult:
    """Read a benchmark result of any known format, recognised by its contents.

    Raises:
        InputNotFoundError: the file cannot be opened.
        InputFormatError: no known format, or broken.
        ClockAlignmentError: anchors that contradict one another.
        LimitExceededError: larger than the limits.
    """
    if not path.is_file():
        raise InputNotFoundError("no such file" if not path.exists() else "is not a file", path=path)
    chosen = options or BenchOptions()
    if mlperf.sniff(head(path)):
        return mlperf.read(path, chosen)
    documents = decode(path)
    objects = [d for d in documents if isinstance(d, dict)]
    for candidate in JSON_FORMATS:
        if objects and all(candidate.recognises(d) for d in objects):
            return candidate.read(path, documents, chosen)
    raise InputFormatError(
        "is not a benchmark result of a known format", path=path, remedy="known: " + ", ".join(FORMATS)
    )
