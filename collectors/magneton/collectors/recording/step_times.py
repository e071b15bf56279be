"""Host times of the steps of a bare program: rows of the table ``steps`` as a raw file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from magneton.schemas.kinds import StepKind
from magneton.schemas.tables.parquet import write_table
from magneton.schemas.tables.run import STEPS

FILE = "steps.parquet"


def write_steps(path: Path, spans: Sequence[tuple[int, int]], keys: Mapping[str, Any]) -> None:
    """Write the steps of a capture.

    Args:
        path: file to write.
        spans: begin and end of each step in ns on CLOCK_MONOTONIC; the anchors of the capture tie them to the wall clock.
        keys: capture, rank, repeat and input of the rows.
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
        for index, (begin, end) in enumerate(spans)
    ]
    schema = STEPS.arrow_schema()
    columns = {name: pa.array([row[name] for row in rows], schema.field(name).type) for name in rows[0]} if rows else {}
    write_table(path, STEPS, pa.table(columns) if rows else STEPS.empty())
