"""Host times of the steps of a bare program: rows of the table ``steps`` as a raw file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from magneton.collectors.raw.rows import keep_rows
from magneton.schemas.kinds import StepKind

_PHASE = ("phase", "context_tokens", "context_requests", "generation_tokens", "generation_requests")
FILE = "steps.parquet"


def of_phase(phase: str | None, tokens: int | None, requests: int | None) -> dict[str, Any]:
    """Return the columns that say what a step did.

    Args:
        phase: ``prefill``, ``decode``, ``mixed`` or None.
        tokens: tokens that were processed, where known.
        requests: requests that they belong to, where known.
    """
    if phase is None:
        return {}
    # How much of a mixed step is prefill is unknown.
    context, generation = (None, None) if phase == "mixed" else (phase == "prefill", phase == "decode")
    found: dict[str, Any] = {"phase": phase}
    for name, part in (("context", context), ("generation", generation)):
        found[f"{name}_tokens"] = None if part is None else tokens if part else 0
        found[f"{name}_requests"] = None if part is None else requests if part else 0
    return found


def write_steps(
    path: Path,
    spans: Sequence[tuple[int, int]],
    keys: Mapping[str, Any],
    phases: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Keep the steps of a capture for a raw file.

    Args:
        path: file to be made.
        spans: begin and end of each step in ns on CLOCK_MONOTONIC; the anchors of the capture tie them to the wall clock.
        keys: capture, rank, repeat and input of the rows.
        phases: for each step what ``of_phase`` returned; empty where steps have no phases.
    """
    steps = [dict(phase) for phase in phases] or [{}] * len(spans)
    numbers = list(range(len(spans)))
    columns: dict[str, list[Any]] = {
        "name": [f"step {number}" for number in numbers],
        "ts_ns": [begin for begin, _ in spans],
        "dur_ns": [end - begin for begin, end in spans],
        "step_id": numbers,
        "kind": [str(StepKind.BARE_STEP) for _ in spans],
        "index": numbers,
    }
    columns |= {name: [step.get(name) for step in steps] for name in _PHASE}
    keep_rows(path, "steps", columns, {"run_id": None} | dict(keys))
