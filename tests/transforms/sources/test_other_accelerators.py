"""Accelerators and writers besides CUDA: Meta MTIA, kinds that nobody knows, Huawei Ascend, Triton's Proton, WebGPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.made_traces import document, run_of
from tests.support.normalized import Normalizer, Run

FOUND = Path(__file__).resolve().parents[2] / "found"


def by_op(run: Run) -> dict[str | None, int]:
    """Device time of each operator."""
    ops = {row["op_id"]: row["name"] for row in run.rows("ops")}
    out: dict[str | None, int] = {}
    for row in run.rows("kernels"):
        name = ops.get(row["op_id"])
        out[name] = out.get(name, 0) + row["dur_ns"]
    return out


# --- MTIA, HPU, XPU and unknown kinds ---------------------------------------------------------------------------------------

MTIA = (FOUND / "mtia" / "mtia_min.json").read_text()


def test_found_mtia(normalized: Normalizer) -> None:
    run = normalized(FOUND / "mtia" / "mtia_min.json")
    (row,) = run.rows("kernels")
    assert (row["dur_ns"], row["device"], row["stream"], row["link"]) == (400_000, 9, 1, "launch")
    assert by_op(run) == {"aten::mul": 400_000}


def test_what_was_launched_is_device_work_whatever_it_is_called() -> None:
    run = run_of(MTIA.replace("mtia_ccp_events", "zzz_events").encode())
    (row,) = run.rows("kernels")
    assert (row["dur_ns"], row["device"], row["stream"]) == (400_000, 9, 1)
    assert json.loads(row["attributes"])["category"] == "zzz_events"
    assert run.warnings()["device_kind_assumed"] == 1
    assert by_op(run) == {"aten::mul": 400_000}


def test_events_on_a_device_that_nothing_ties_to_a_launch_are_said() -> None:
    run = run_of(MTIA.replace("mtia_ccp_events", "zzz_events").replace('"correlation":7,"stream"', '"stream"').encode())
    assert run.rows("kernels") == []
    assert run.warnings()["device_work_unread"] == 1


@pytest.mark.parametrize("category", ["cuda_sync", "gpu_user_annotation", "overhead", "cuda_event"])
def test_what_is_no_work_stays_an_annotation(category: str) -> None:
    run = run_of(MTIA.replace("mtia_ccp_events", category).encode())
    assert run.rows("kernels") == []
    assert not {"device_kind_assumed", "device_work_unread"} & set(run.warnings())


def test_queues_of_xpu_are_streams() -> None:
    args = {"sycl queue": 64, "l0 queue": "0x1", "correlation": 3, "device": 0}
    event = {"ph": "X", "cat": "kernel", "name": "g", "pid": 0, "tid": 0, "ts": 1, "dur": 2, "args": args}
    (row,) = run_of(document([event])).rows("kernels")
    assert row["stream"] == 64
    assert json.loads(row["attributes"]) == {"l0 queue": "0x1"}


def test_gaudi_operations_are_device_work() -> None:
    event = {"ph": "X", "cat": "hpu_op", "name": "g", "pid": 0, "tid": 0, "ts": 1, "dur": 2}
    assert [row["dur_ns"] for row in run_of(document([event])).rows("kernels")] == [2000]


# --- Ascend -----------------------------------------------------------------------------------------------------------------

ASCEND = json.loads((FOUND / "ascend-npu" / "trace_view.json").read_text())


@pytest.mark.parametrize(("name", "mm"), [("trace_view.json", 100_000), ("trace_view_slow.json", 200_000)])
def test_found_ascend(normalized: Normalizer, name: str, mm: int) -> None:
    run = normalized(FOUND / "ascend-npu" / name)
    work = [row for row in run.rows("kernels") if row["kernel_class"] != "collective"]
    assert len(work) == 2
    assert {row["device"] for row in work} == {0}
    assert {row["stream"] for row in work} == {12}
    assert by_op(run) == {"aten::mm": mm, "aten::add": 20_000, None: 300_000}
    (collective,) = [row for row in run.rows("kernels") if row["kernel_class"] == "collective"]
    assert collective["dur_ns"] == 300_000
    (capture,) = run.rows("captures")
    assert (capture["source_format"], capture["base_unix_ns"]) == ("ascend", 0)
    assert capture["n_raw"] == len(ASCEND)


def without(events: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    return [e for e in events if e.get("cat") != category]


def test_ascend_without_arrows_goes_by_the_queue() -> None:
    run = run_of(json.dumps(without(ASCEND, "async_npu")).encode(), name="trace_view.json")
    assert by_op(run) == {"aten::mm": 100_000, "aten::add": 20_000, None: 300_000}


def test_ascend_in_any_order() -> None:
    run = run_of(json.dumps(ASCEND[::-1]).encode(), name="trace_view.json")
    assert by_op(run) == {"aten::mm": 100_000, "aten::add": 20_000, None: 300_000}


def test_waiting_on_ascend_is_no_work() -> None:
    task = next(e for e in ASCEND if e["name"] == "Add")
    wait = {**task, "name": "EVENT_WAIT", "ts": "1790952812000300.000", "args": {"Task Type": "EVENT_WAIT_SQE"}}
    run = run_of(json.dumps([*ASCEND, wait]).encode(), name="trace_view.json")
    assert len(run.rows("kernels")) == 3
    assert "EVENT_WAIT" in {row["name"] for row in run.rows("annotations")}


def test_the_parts_of_a_collective_are_not_counted_beside_it() -> None:
    plane = {"ph": "X", "name": "Memcpy", "pid": 4001, "tid": 9, "ts": "1790952812000250.000", "dur": 9, "args": {}}
    run = run_of(json.dumps([*ASCEND, plane]).encode(), name="trace_view.json")
    assert len(run.rows("kernels")) == 3


def test_two_cards_are_two_devices() -> None:
    other = [{**e, "pid": 3002} for e in ASCEND if e.get("pid") == 3001 and e["ph"] in "MX"]
    run = run_of(json.dumps([*ASCEND, *other]).encode(), name="trace_view.json")
    assert {row["device"] for row in run.rows("kernels") if row["kernel_class"] != "collective"} == {0, 1}


# --- Proton -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["proton.chrome_trace", "proton_old.chrome_trace"])
def test_found_proton(normalized: Normalizer, name: str) -> None:
    run = normalized(FOUND / "proton-trace" / name)
    assert by_op(run) == {"fwd": 20_000, "bwd": 10_000}
    assert {(row["stream"], row["device"]) for row in run.rows("kernels")} == {(7, None)}


def test_proton_scopes_that_are_entered_twice_and_nest() -> None:
    def event(category: str, name: str, ts: int, dur: int, *stack: str) -> dict[str, Any]:
        tid = "stream 1" if category == "kernel" else "thread 0"
        args = {"call_stack": ["ROOT", *stack]}
        return {"name": name, "cat": category, "ph": "X", "tid": tid, "ts": ts, "dur": dur, "args": args}

    events = [
        event("kernel", "k", 5, 1, "a", "b", "k"),
        event("scope", "a", 0, 100, "a"),
        event("scope", "b", 2, 8, "a", "b"),
        event("scope", "b", 20, 8, "a", "b"),
        event("kernel", "k", 25, 2, "a", "b", "k"),
        event("kernel", "m", 50, 4, "a", "m"),
    ]
    run = run_of(json.dumps({"displayTimeUnit": "us", "traceEvents": events}).encode())
    ops = {row["op_id"]: (row["name"], row["ts_ns"]) for row in run.rows("ops")}
    of = {row["ts_ns"]: ops[row["op_id"]] for row in run.rows("kernels")}
    assert of == {5000: ("b", 2000), 25_000: ("b", 20_000), 50_000: ("a", 0)}


# --- ONNX Runtime on WebGPU -------------------------------------------------------------------------------------------------


def test_found_ort_webgpu_zero(normalized: Normalizer) -> None:
    run = normalized(FOUND / "ort-webgpu-zero" / "onnxruntime_profile.json")
    rows = run.rows("kernels")
    assert [(row["name"], row["dur_ns"]) for row in rows] == [("MatMul&MatMulPacked", 30_000), ("Add", 20_000)]
    assert {row["op_id"] for row in rows} == {None}
    assert {row["device"] for row in rows} == {None}
    assert run.warnings()["kernel_before_launch"] == 2
