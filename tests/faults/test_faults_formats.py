"""Fault case of a format with its own time and rows that are no work: ONNX Runtime. One test per expected value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.fault_cases import Case, Context, capture, equal, params
from tests.support.normalized import Normalizer

from magneton.flows.traces import ExtraFiles, normalize
from magneton.schemas.errors import MagnetonError
from magneton.transforms.job import NormalizeOptions


def _alone(context: Context, value: Any, key: str) -> None:
    run = context.run("ort.json")
    row = capture(run)
    ops = run.rows("ops")
    by_op: dict[str, int] = {}
    for op in ops:
        by_op[op["name"]] = by_op.get(op["name"], 0) + op["dur_ns"]
    (step,) = run.rows("steps")
    found = {
        "verdict": "accept" if not run.warnings() else "accept_with_warning",
        "n_kept": row["n_kept"],
        "framework": row["framework"],
        "n_nodes": len(ops),
        "node_ns_total": sum(op["dur_ns"] for op in ops),
        "run_span_ns": step["dur_ns"],
        **{f"op_ns.{name}": total for name, total in by_op.items()},
    }
    assert found[key] == value


def _refusal(context: Context) -> MagnetonError:
    out = context.tmp_path / "run"
    extras = ExtraFiles(power=[context.file("power.csv")])
    with pytest.raises(MagnetonError) as caught:
        normalize([context.file("ort.json")], out, NormalizeOptions(), extras=extras)
    assert not out.exists()
    return caught.value


def _fences_are_no_work(context: Context, value: Any) -> None:
    run = context.run("ort.json")
    assert not any("fence" in op["name"] for op in run.rows("ops"))
    assert sum("_fence_" in row["name"] for row in run.rows("annotations")) == 6


SESSION_RELATIVE = Case(
    "36-onnxruntime-session-relative",
    {
        "trace_alone.*": _alone,
        "with_power.verdict": lambda c, v: equal(_refusal(c).exit_code, 2),
        "with_power.error": lambda c, v: equal(_refusal(c).code, v),
        "with_power.hint": lambda c, v: equal(v in str(_refusal(c)), True),
        "forbidden.0": _fences_are_no_work,
        # no absolute time, so nothing can place the run in 1970
        "forbidden.1": lambda c, v: equal(capture(c.run("ort.json"))["base_unix_ns"], None),
    },
)


CASES = (SESSION_RELATIVE,)


@pytest.mark.parametrize(("case", "path", "value"), params(*CASES))
def test_value(case: Case, path: str, value: Any, normalized: Normalizer, tmp_path: Path) -> None:
    case.check(Context(case.name, normalized, tmp_path), path, value)
