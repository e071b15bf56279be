"""Several processes in one file are ranks: each with its own launches, devices and times."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.made_traces import KINDS, document, run_of
from tests.support.normalized import Normalizer, Run

FOUND = Path(__file__).resolve().parents[1] / "found"


def slice_(cat: str, name: str, pid: Any, tid: Any, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def call(host: Any, device: Any, number: int, at: float, us: float, name: str = "aten::mm", n: int = 0) -> list[Any]:
    """An operator, its launch and its kernel; ``n`` is the device's number."""
    return [
        slice_("cpu_op", name, host, 83, at, 20, **{"External id": number}),
        slice_("cuda_runtime", "cudaLaunchKernel", host, 83, at + 5, 4, correlation=number),
        slice_("kernel", f"k {name}", device, 7, at + 30, us, correlation=number, device=n, stream=7),
    ]


def linked(run: Run) -> dict[int, list[tuple[str, int, int]]]:
    """For each rank: operator, device and length of its kernels, in order of time."""
    ops = {row["op_id"]: (row["rank"], row["name"]) for row in run.rows("ops")}
    out: dict[int, list[tuple[str, int, int]]] = {}
    for row in sorted(run.rows("kernels"), key=lambda r: r["ts_ns"]):
        rank, name = ops[row["op_id"]]
        assert rank == row["rank"]
        out.setdefault(rank, []).append((name, row["device"], row["dur_ns"]))
    return out


def test_found_nsys_two_processes(normalized: Normalizer) -> None:
    for name, addmm in (("a", 85_000), ("b", 76_500)):
        run = normalized(FOUND / "nsys-two-processes" / f"{name}.sqlite")
        assert {row["rank"] for row in run.rows("captures")} == {0, 1}
        times = linked(run)
        assert {rank: {device for _, device, _ in rows} for rank, rows in times.items()} == {0: {0}, 1: {1}}
        for rows in times.values():
            assert len(rows) == 48
            lengths = [length for op, _, length in rows if op == "aten::addmm"]
            assert sum(lengths) / len(lengths) == addmm
        assert run.warnings()["processes_as_ranks"] == 2


def test_found_merged_other_order(normalized: Normalizer) -> None:
    run = normalized(FOUND / "merged-other-order" / "merged.json")
    ops = {row["op_id"]: row["pid"] for row in run.rows("ops")}
    of = {row["rank"]: (ops[row["op_id"]], row["dur_ns"]) for row in run.rows("kernels")}
    assert of == {0: ("[TP00] 83", 20_000), 1: ("[TP01] 83", 30_000)}


def test_found_nsys_custom_op_no_grad(normalized: Normalizer) -> None:
    run = normalized(FOUND / "nsys-custom-op-no-grad" / "a.sqlite")
    ops = {row["op_id"]: row["name"] for row in run.rows("ops")}
    times: dict[str, int] = {}
    for row in run.rows("kernels"):
        times[ops[row["op_id"]]] = times.get(ops[row["op_id"]], 0) + row["dur_ns"]
    per_call = times["vllm::unified_attention"] // sum(n == "vllm::unified_attention" for n in ops.values())
    assert per_call == 30_000
    assert not any("op_id" in name for name in ops.values())


@pytest.mark.parametrize("tag", ["[TP{}] ", "[rank{}] ", "rank{}/", "[DP0 TP{}] ", "[worker {}] "])
def test_tags_before_process_ids(tag: str) -> None:
    events = []
    for rank in (1, 0):
        events += call(f"{tag.format(rank)}83", f"{tag.format(rank)}0", 5, 0, 10 + rank)
    assert linked(run_of(document(events))) == {0: [("aten::mm", 0, 10_000)], 1: [("aten::mm", 0, 11_000)]}


def test_merged_without_tags() -> None:
    """Two host processes with some ids in common; kineto gives devices process ids of their own."""
    events = []
    for host, device, first in ((200, 0, 1), (100, 1, 3)):
        for number in range(first, first + 5):
            events += call(host, device, number, number * 100.0, 10 + device, n=device)
    random.Random(1).shuffle(events)  # noqa: S311
    times = linked(run_of(document(events)))
    assert times == {0: [("aten::mm", 0, 10_000)] * 5, 1: [("aten::mm", 1, 11_000)] * 5}


def test_two_processes_on_one_device_stay_together_and_are_said() -> None:
    events = call(100, 0, 1, 0, 10) + call(200, 0, 2, 100, 12, "aten::add")
    run = run_of(document(events))
    assert {row["rank"] for row in run.rows("captures")} == {0}
    assert linked(run) == {0: [("aten::mm", 0, 10_000), ("aten::add", 0, 12_000)]}
    assert run.warnings()["processes_mixed"] == 1


def test_a_process_without_device_work_is_no_rank() -> None:
    events = [*call(100, 0, 1, 0, 10), slice_("cpu_op", "load", 300, 300, 0, 50)]
    run = run_of(document(events))
    assert [row["rank"] for row in run.rows("captures")] == [0]
    assert {row["name"] for row in run.rows("ops")} == {"aten::mm", "load"}


def test_a_process_that_hardly_uses_a_device_is_no_rank() -> None:
    events = [e for i in range(300) for e in call("[TP0] 1", "[TP0] 0", i + 1, i * 100.0, 10)]
    events += call("[TP1] 2", "[TP1] 0", 1, 0, 10, "tiny")
    run = run_of(document(events))
    assert [row["rank"] for row in run.rows("captures")] == [0]


def test_books_are_balanced_over_the_ranks() -> None:
    events = call("[TP0] 1", "[TP0] 0", 1, 0, 10) + call("[TP1] 2", "[TP1] 0", 1, 0, 10)
    events.append({"ph": "X", "name": "no time", "pid": "[TP1] 2", "tid": 1})
    events.append({"ph": "C", "name": "c", "pid": "[TP1] 2", "tid": 1, "ts": 1, "args": {"a": 1, "b": 2}})
    run = run_of(document(events))
    rows = run.rows("captures")
    assert sum(row["n_raw"] for row in rows) == len(events)
    for row in rows:
        assert row["n_raw"] == sum(row[f"n_{c}"] for c in ("kept", "merged", "ignored", "quarantined"))


@KINDS
@given(
    ranks=st.integers(2, 4),
    calls=st.integers(1, 12),
    seed=st.integers(0, 1000),
    tagged=st.booleans(),
    reuse=st.booleans(),
    skew=st.floats(0, 500),
)
def test_each_kernel_belongs_to_its_process(
    ranks: int, calls: int, seed: int, tagged: bool, reuse: bool, skew: float
) -> None:
    """Oracle: what was made for a rank is found in that rank, with its own operators and device."""
    draw = random.Random(seed)  # noqa: S311
    events, wanted = [], {}
    for rank in range(ranks):
        host, device = (f"[TP{rank}] 83", f"[TP{rank}] 0") if tagged else (1000 + rank, rank)
        # Ids that no other process has show who owns a device; without tags there must be one.
        first = 1 if reuse and tagged else 1 + rank * 100
        wanted[rank] = []
        for i in range(calls):
            us = draw.randrange(1, 60)
            events += call(host, device, first + i, round(rank * skew + i * 100, 3), us, f"op{i % 3}", n=rank)
            wanted[rank].append((f"op{i % 3}", rank, us * 1000))
    draw.shuffle(events)
    assert linked(run_of(document(events))) == wanted
