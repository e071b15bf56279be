"""What an event says beyond the columns stays in ``attributes``, in bounded memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.made_traces import document, kernel, op, run_of
from tests.support.normalized import Normalizer

from magneton.transforms.sources.kineto import attributes

FOUND = Path(__file__).resolve().parents[2] / "found"


def said(row: dict[str, Any]) -> dict[str, Any]:
    text = row["attributes"]
    return {} if text is None else json.loads(text)


def test_found_args_lost(normalized: Normalizer) -> None:
    run = normalized(FOUND / "args-lost" / "trace.json")
    assert said(run.rows("ops")[0]) == {"Call stack": "a.py(1): f", "Module Hierarchy": "top.fc", "foo": "bar"}
    assert said(run.rows("kernels")[0]) == {
        "context": 1,
        "queued": 0,
        "priority": -1,
        "blocks per SM": 1.5,
        "warps per SM": 6.0,
        "myfield": "z",
    }


@pytest.mark.parametrize("value", ["text", 3, -1.5, True, [1, [2]], {"a": {"b": None}}, "\u20ac", 2**70])
def test_values_of_any_type(value: Any) -> None:
    run = run_of(
        document([op("a", 1, 2, args={"mine": value}), op("b", 5, 1), kernel(args={"stream": 7, "mine": value})])
    )
    expected = str(value) if value == 2**70 else value
    rows = run.by_name("ops")
    assert str(said(rows["a"])["mine"]) == str(expected) or said(rows["a"])["mine"] == expected
    assert said(rows["b"]) == {}
    assert said(run.rows("kernels")[0]).keys() == {"mine"}


def test_a_damaged_event_keeps_them_too() -> None:
    run = run_of(
        document([op("a", "1", 2, args={"mine": "x", "External id": "7"}), kernel(args={"bytes": "8", "q": 1})])
    )
    assert said(run.rows("ops")[0]) == {"mine": "x"}
    assert said(run.rows("kernels")[0]) == {"q": 1}


def test_a_slice_of_two_events_keeps_them() -> None:
    begin = {"ph": "B", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "args": {"mine": "x"}}
    run = run_of(document([begin, {"ph": "E", "pid": 1, "tid": 1, "ts": 3}]))
    assert said(run.rows("ops")[0]) == {"mine": "x"}


def test_numbers_that_only_count_events_are_left_out() -> None:
    run = run_of(document([op("a", 1, 2, args={"Ev Idx": 1, "Profiler Event Index": 4, "mine": 1})]))
    assert said(run.rows("ops")[0]) == {"mine": 1}


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attributes, "MAX_BYTES", 200)
    run = run_of(document([op(f"o{i}", i, 1, args={"number": i, "same": "y" * 20}) for i in range(50)]))
    kept = [row for row in run.rows("ops") if row["attributes"] is not None]
    assert 0 < len(kept) < 10
    assert run.warnings()["attributes_left_out"] == 50 - len(kept)
