"""Small kineto documents for tests, and recordings made of them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from tests.support.normalized import Run

from magneton.schemas.tables.run import RUN_TABLES
from magneton.transforms.job import NormalizeOptions
from magneton.transforms.normalize import normalize

KINDS = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
Event = dict[str, Any]


def run_of(*files: bytes, name: str = "trace.json", **options: Any) -> Run:
    """Normalise files with these contents and read all tables into memory."""
    with tempfile.TemporaryDirectory() as directory:
        paths = []
        for number, content in enumerate(files):
            path = Path(directory) / str(number) / name
            path.parent.mkdir()
            path.write_bytes(content)
            paths.append(path)
        out = Path(directory) / "run"
        run = Run(out, normalize(paths, out, NormalizeOptions(keep_raw=False, **options)))
        for table in RUN_TABLES:
            run.rows(table)
        (capture, *_) = run.rows("captures")
        assert capture["n_raw"] == sum(capture[f"n_{c}"] for c in ("kept", "merged", "ignored", "quarantined"))
    return run


def kernel(name: str = "k", ts: Any = 1, dur: Any = 2, **more: Any) -> Event:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": ts,
        "dur": dur,
        "args": {"device": 0, "stream": 7},
    } | more


def op(name: str, ts: Any, dur: Any, **more: Any) -> Event:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur} | more


def document(events: list[Any], **top: Any) -> bytes:
    return json.dumps({"schemaVersion": 1, **top, "traceEvents": events}, indent=1).encode()
