"""The edits of ``benchmarks.alignment`` on a trace of two steps whose truth is written down here."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from benchmarks.matching import edits
from tests.support.kineto import Trace

NAMES = ("aten::mm", "aten::softmax", "aten::bmm", "aten::gelu", "aten::add")


@pytest.fixture
def trace(tmp_path: Path) -> edits.Trace:
    made = Trace()
    for step in range(3):
        with made.step(step):
            for place, name in enumerate(NAMES):
                made.op(name, us=10.0 * (place + 1), dims=[[4, place + 2]])
    return edits.read(made.write(tmp_path / "trace.json"))


def _names(trace: edits.Trace) -> list[str]:
    return [op["name"] for op in sorted(trace.operators, key=lambda op: op["ts"])]


def _times(trace: edits.Trace) -> dict[int, float]:
    return {edits.number_of(e): e["dur"] for e in trace.device()}


def test_activities_are_numbered_and_belong_to_their_operators(trace: edits.Trace) -> None:
    assert sorted(_times(trace)) == list(range(15))
    assert trace.in_steps() == {step: list(range(5 * step, 5 * step + 5)) for step in range(3)}


def test_the_slowed_class_takes_a_fifth_longer_and_nothing_overlaps(trace: edits.Trace) -> None:
    found = edits.edit(trace, "slow class")
    assert found is not None and found.changed == {4, 9, 14}  # aten::add: 50 of 150 us, the most below 35 %
    assert _times(found.trace) == {n: t * (1.2 if n in found.changed else 1.0) for n, t in _times(trace).items()}
    row = sorted(found.trace.device(), key=lambda e: e["ts"])
    assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(row))


def test_a_held_up_step_is_three_times_as_long(trace: edits.Trace) -> None:
    found = edits.edit(trace, "hold up a step")
    assert found is not None and found.changed == set(range(5, 10))
    assert sum(_times(found.trace).values()) == 5 * 150.0


def test_one_operator_of_every_step_is_dropped(trace: edits.Trace) -> None:
    found = edits.edit(trace, "drop one")
    assert found is not None and len(found.dropped) == 3 and len({n % 5 for n in found.dropped}) == 1
    assert set(_times(found.trace)) == set(range(15)) - found.dropped
    assert len(found.trace.operators) == 12


def test_four_operators_become_one_in_half_the_time(trace: edits.Trace) -> None:
    found = edits.edit(trace, "fuse")
    assert found is not None
    # Two places in a step hold four operators with a softmax; the one with more time, at most 35 % of all, is the later.
    first = min(found.truth)
    assert found.truth == {first + 5 * step: [first + 5 * step + k for k in range(4)] for step in range(3)}
    assert _names(found.trace).count("example::fused") == 3 and len(found.trace.operators) == 6
    times = _times(trace)
    assert all(_times(found.trace)[n] == 0.5 * sum(times[m] for m in parts) for n, parts in found.truth.items())


def test_neighbours_change_places_with_their_kernels(trace: edits.Trace) -> None:
    for event in trace.operators:
        if event["name"] == "aten::softmax":
            event["name"] = "aten::mm"
    found = edits.edit(trace, "swap shapes")
    assert found is not None
    shapes = [op["args"]["Input Dims"] for op in sorted(found.trace.operators, key=lambda op: op["ts"])]
    assert shapes == [[[4, n]] for n in (3, 2, 4, 5, 6)] * 3
    # The kernels stay with their operators.
    assert [edits.number_of(e) for i in range(5) for e in found.trace.kernels[i]] == list(range(5))


def test_stripped_traces_hold_neither_shapes_nor_frames(trace: edits.Trace) -> None:
    bare = trace.copy()
    edits.strip(bare, shapes=True, stacks=True)
    assert "Input Dims" not in json.dumps(bare.events) and "Input Dims" in json.dumps(trace.events)
    assert _times(bare) == _times(trace)


def test_a_cut_loses_a_quarter_of_the_time(trace: edits.Trace) -> None:
    begin, end = edits.edit(trace, "cut begin"), edits.edit(trace, "cut end")
    assert begin is not None and end is not None
    assert _names(begin.trace) == _names(trace)[-len(begin.trace.operators) :]
    assert _names(end.trace) == _names(trace)[: len(end.trace.operators)]
    assert {len(begin.trace.operators), len(end.trace.operators)} <= {10, 11, 12}


def test_written_in_another_order_it_is_the_same_trace(trace: edits.Trace, tmp_path: Path) -> None:
    trace.write(tmp_path / "a.json", indent=1)
    trace.write(tmp_path / "b.json", shuffled=3)
    a, b = (json.loads((tmp_path / name).read_text())["traceEvents"] for name in ("a.json", "b.json"))
    assert a != b and sorted(map(json.dumps, a)) == sorted(map(json.dumps, b))
