"""Host times of the steps of a bare program: rows of the table ``steps`` as a raw file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from magneton.schemas.kinds import StepKind
from magneton.schemas.tables.parquet import write_table
from magneton.schemas.tables.run import STEPS

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
    """Write the steps of a capture.

    Args:
        path: file to write.
        spans: begin and end of each step in ns on CLOCK_MONOTONIC; the anchors of the capture tie them to the wall clock.
        keys: capture, rank, repeat and input of the rows.
        phases: for each step what ``of_phase`` returned; empty where steps have no phases.
    """
    rows = [
        {
            "run_id": None,
            "name": f"step {index}",
            "ts_ns": begin,
            "dur_ns": end - begin,
            "step_id": index,
            "kind": StepKind.BARE_STEP,
            "index": index,
        }
        | dict(keys)
        | dict.fromkeys(_PHASE)
        | dict(phases[index] if phases else {})
        for index, (begin, end) in enumerate(spans)
    ]
    schema = STEPS.arrow_schema()
    columns = {name: pa.array([row[name] for row in rows], schema.field(name).type) for name in rows[0]} if rows else {}
    write_table(path, STEPS, pa.table(columns) if rows else STEPS.empty())
