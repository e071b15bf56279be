"""Time of the host: the parts of a step add up to its length, to the nanosecond."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.host_oracle import host_time, rows
from tests.support.normalized import Normalizer
from tests.support.traces import SHARED, real_traces

from magneton.analysis.align.tree import Interner, freeze
from magneton.analysis.align.work import host_names, load_side
from magneton.analysis.diff.document import DiffResult
from magneton.analysis.diff.pipeline import diff
from magneton.analysis.diff.settings import DiffSettings
from magneton.analysis.recording import Recording
from magneton.schemas.documents.diff import HostTimeDoc
from magneton.schemas.errors import NotComparableError

SHIPPED = ("gpt2-fused", "gpt2-hf", "llama-fused", "llama-hf")
MAIN, OTHER = 1, 2


def event(category: str, name: str, start: float, length: float, thread: int = MAIN, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length, "args": args
    }  # fmt: skip


def step(number: int, start: float, length: float) -> dict[str, Any]:
    return event("user_annotation", f"ProfilerStep#{number}", start, length)


def op(name: str, start: float, length: float, thread: int = MAIN) -> dict[str, Any]:
    return event("cpu_op", name, start, length, thread)


def frame(name: str, start: float, length: float, thread: int = MAIN) -> dict[str, Any]:
    return event("python_function", name, start, length, thread)


@pytest.fixture
def recording(tmp_path: Path, normalized: Normalizer):  # type: ignore[no-untyped-def]
    def of(name: str, *events: dict[str, Any]) -> Recording:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"traceEvents": events, "schemaVersion": 1}))
        return Recording.open(normalized(path).path)

    return of


def in_us(time: HostTimeDoc) -> dict[str, float]:
    names = ("wall", "operators", "dispatch", "python", "waiting", "beside")
    return {name: getattr(time, f"{name}_ns") / 1e3 for name in names}


def against_itself(recording: Recording) -> DiffResult:
    return diff(recording, recording, DiffSettings(), "test")


def adds_up(time: HostTimeDoc) -> bool:
    parts = time.operators_ns + time.dispatch_ns + time.python_ns + time.waiting_ns - time.beside_ns
    return abs(parts - time.wall_ns) < 1.0


# One step of 1,000 us: 300 us of a matrix product, of which a copy takes 50; a linear layer of 10 us more around it; sleep of 400.
ONE_THREAD = (
    step(0, 0, 1000),
    op("aten::linear", 100, 310),
    op("aten::addmm", 105, 300),
    op("aten::copy_", 110, 50),
    frame("<built-in function sleep>", 500, 400),
)


def test_parts_of_a_step(recording) -> None:  # type: ignore[no-untyped-def]
    document = against_itself(recording("one", *ONE_THREAD)).document
    right = {"wall": 1000, "operators": 300, "dispatch": 10, "python": 290, "waiting": 400, "beside": 0}
    assert in_us(document.a.host_time) == right
    assert [in_us(time) for time in document.a.host_steps] == [right]


def test_python_and_waiting_are_rows_matched_with_each_other(recording) -> None:  # type: ignore[no-untyped-def]
    a = recording("a", *ONE_THREAD)
    b = recording("b", *ONE_THREAD[:-1])
    document = diff(a, b, DiffSettings(), "test").document
    rows = {r.kernel_class_a or r.kernel_class_b: (r.kind, r.time_ns_a, r.time_ns_b) for r in document.regions}
    assert rows["host_wait"] == ("only_a", 400_000, None)
    assert rows["python"] == ("paired", 290_000, 690_000)
    # They are neither operator time nor aligned.
    assert document.totals["time_ns"].a == document.totals["time_ns"].b == 300_000
    assert document.coverage.a == document.coverage.b == 1.0
    assert (document.coverage.n_paired, document.coverage.n_only_a) == (2, 0)
    assert sum(row.time_ns.a or 0.0 for row in document.rollups["op"]) == 300_000


def test_waiting_inside_an_operator_is_not_its_own_time(recording) -> None:  # type: ignore[no-untyped-def]
    events = [step(0, 0, 100), op("mine::read", 10, 80), frame("<built-in function sleep>", 20, 60)]
    time = against_itself(recording("inside", *events)).document.a.host_time
    assert in_us(time) == {"wall": 100, "operators": 20, "dispatch": 0, "python": 20, "waiting": 60, "beside": 0}


def test_work_of_another_thread_counts_while_the_step_waits_for_it(recording) -> None:  # type: ignore[no-untyped-def]
    """The step's thread sleeps from 100 to 500. Another multiplies from 50 to 300: 50 beside, 200 instead of waiting."""
    events = [
        step(0, 0, 600),
        op("aten::relu", 10, 90),
        frame("<built-in function sleep>", 100, 400),
        op("aten::mm", 50, 250, OTHER),
    ]
    time = against_itself(recording("threads", *events)).document.a.host_time
    assert in_us(time) == {"wall": 600, "operators": 340, "dispatch": 0, "python": 110, "waiting": 200, "beside": 50}


def test_a_thread_that_sleeps_in_the_background_keeps_nobody_waiting(recording) -> None:  # type: ignore[no-untyped-def]
    events = [step(0, 0, 100), op("aten::mm", 10, 20), frame("<built-in function sleep>", 0, 100, OTHER)]
    time = against_itself(recording("background", *events)).document.a.host_time
    assert in_us(time) == {"wall": 100, "operators": 20, "dispatch": 0, "python": 80, "waiting": 0, "beside": 0}


def test_an_operator_that_ends_after_its_step_is_beside_it(recording) -> None:  # type: ignore[no-untyped-def]
    events = [step(0, 0, 100), op("aten::relu", 10, 20), op("aten::mm", 50, 80, OTHER)]
    time = against_itself(recording("late", *events)).document.a.host_time
    assert in_us(time) == {"wall": 100, "operators": 100, "dispatch": 0, "python": 30, "waiting": 0, "beside": 30}


def test_a_capture_without_step_marks_runs_from_its_first_record_to_its_last(recording) -> None:  # type: ignore[no-untyped-def]
    events = [op("aten::mm", 10, 20), op("aten::relu", 40, 10), frame("<built-in function sleep>", 60, 15)]
    time = against_itself(recording("bare", *events)).document.a.host_time
    assert in_us(time) == {"wall": 65, "operators": 30, "dispatch": 0, "python": 20, "waiting": 15, "beside": 0}


def test_model_calls_of_a_capture_without_marks_share_its_time(recording) -> None:  # type: ignore[no-untyped-def]
    """Each call runs to the begin of the next, so that nothing between them is lost."""
    events = []
    for at in (0, 1000, 2000):
        events += [
            frame("nn.Module: Net_0", at, 500),
            op("aten::mm", at + 100, 100),
            op("aten::relu", at + 300, 50),
            frame("<built-in function sleep>", at + 600, 300),
        ]
    document = against_itself(recording("calls", *events)).document
    right = {"wall": 1000, "operators": 150, "dispatch": 0, "python": 550, "waiting": 300, "beside": 0}
    assert document.comparison.unit == "call"
    assert [in_us(time)["operators"] for time in document.a.host_steps] == [150, 150, 150]
    assert in_us(document.a.host_steps[1]) == right
    assert all(adds_up(time) for time in document.a.host_steps)


def test_without_lengths_nothing_is_said(shared: Path, normalized: Normalizer) -> None:
    side = load_side(Recording.open(normalized(shared / "traces/odd/execution_trace_et.json.gz").path), 0)
    assert [step.host for step in side.steps] in ([], [None])


@pytest.mark.parametrize("name", real_traces())
def test_the_host_identity_of_real_traces(normalized: Normalizer, name: str) -> None:
    check_identity(Recording.open(normalized(SHARED / "traces" / name).path))


@pytest.mark.parametrize("name", SHIPPED)
def test_the_host_identity_of_shipped_recordings(root: Path, normalized: Normalizer, name: str) -> None:
    (trace,) = (root / "examples" / "recordings" / name).rglob("*.trace.json.gz")
    check_identity(Recording.open(normalized(trace).path))


def check_identity(recording: Recording) -> None:
    """In every step: the parts add up, equal an instant by instant sweep, and hold exactly the rows; so does the document."""
    for rank in recording.ranks():
        side = load_side(recording, rank)
        names = host_names(recording, rank) or frozenset()
        for one in side.steps:
            if one.host is None:
                assert not any(row["dur_ns"] for row in rows(recording, "ops", rank))
                continue
            host = one.host
            waiting = sum(host.waiting_ns.values())
            parts = host.operators_ns + host.dispatch_ns + host.python_ns + waiting - host.beside_ns
            assert abs(parts - host.wall_ns) < 1.0
            if not side.on_device:
                freeze(one.tree, Interner())
                own = sum(leaf.work.time_ns for leaf in one.tree.leaves() if leaf.work)
                assert abs(own - host.operators_ns) < 1.0
            if one.row is not None:
                right = host_time(recording, rank, one.row, names)
                found = {name: getattr(host, f"{name}_ns") for name in right if name != "waiting"} | {
                    "waiting": waiting
                }
                assert found == right
    try:
        result = against_itself(recording)
    except NotComparableError:
        return
    document = result.document
    for time in (document.a.host_time, *document.a.host_steps):
        assert time is None or adds_up(time)
    if not document.a.on_device and document.a.host_time is not None:
        table = result.tables["region_steps"][1].to_pylist()
        for number, time in enumerate(document.a.host_steps):
            rows_ns = sum(r["time_ns"] for r in table if r["side"] == "a" and r["step_number"] == number)
            assert abs(rows_ns + time.dispatch_ns - time.beside_ns - time.wall_ns) < 1.0
