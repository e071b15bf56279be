"""Graph replays in the tables of a run: which kernels gain an operator and a layer, and what is said about it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from magneton.schemas.tables.run import RUN_TABLES
from magneton.transforms.cuda_graphs.columns import CHANGED_COLUMNS, Warned, place_replays

LAYER = ["norm", "qkv", "attention", "out", "mlp"]
PASS = ["embedding", *LAYER * 4, "head"]


def _table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    schema = RUN_TABLES[name].arrow_schema()
    return pa.Table.from_pylist([{"run_id": "r", "rank": 0, **row} for row in rows], schema=schema)


class _Run:
    """A run of one profile with two steps and captures of graphs, as tables."""

    def __init__(self) -> None:
        self.kernels: list[dict[str, Any]] = []
        self.launches: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.captures: list[dict[str, Any]] = [{"capture": "profile", "kind": "profile"}]
        self.steps: list[dict[str, Any]] = [
            {"step_id": 1, "context_tokens": 0, "generation_tokens": 30},
            {"step_id": 2},
        ]

    def replay(self, launch_id: int | None, names: list[str], *, step: int = 1, rank: int = 0, **columns: Any) -> None:
        for name in names:
            at = len(self.kernels) * 10
            self.kernels.append(
                {"kernel_id": len(self.kernels), "capture": "profile", "rank": rank, "name": name, "ts_ns": at,
                 "dur_ns": 10, "category": "kernel", "device": rank, "launch_id": launch_id, "step_id": step,
                 "graph_launch": True} | columns
            )  # fmt: skip

    def capture(self, name: str, names: list[str], *, rank: int = 0, size: int | None = None) -> list[int]:
        """Add the capture of one graph; return the ids of its calls. Operators are 1000 above their calls."""
        if {"capture": name, "kind": "graph_capture", "rank": rank} not in self.captures:
            self.captures.append({"capture": name, "kind": "graph_capture", "rank": rank})
        begin = len(self.launches)
        ids: list[int] = []
        for api in ["hipStreamBeginCapture", *["hipLaunchKernel"] * len(names), "hipStreamEndCapture"]:
            number = 500 + len(self.launches)
            row = {
                "launch_id": number,
                "capture": name,
                "rank": rank,
                "name": api,
                "ts_ns": number,
                "pid": "1",
                "tid": "1",
            }
            if api == "hipLaunchKernel":
                row |= {"kernel_name": names[len(ids)], "expects_device_activity": False}
                row |= {"op_id": number + 1000, "module_id": 7, "module_call": 70}
                ids.append(number)
            self.launches.append(row)
        if size is not None:
            span = {"ts_ns": 500 + begin, "dur_ns": len(self.launches) - begin}
            self.annotations.append({"capture": name, "rank": rank, "name": f"capture_{size}_FULL"} | span)
        return ids

    def place(self) -> tuple[dict[str, list[Any]], list[Warned]]:
        columns, warned = place_replays(
            _table("kernels", self.kernels),
            _table("launches", self.launches),
            _table("captures", self.captures),
            _table("steps", self.steps),
            _table("annotations", self.annotations),
        )
        return {name: values.to_pylist() for name, values in columns.items()}, warned


def test_replay_gains_operators_modules_and_layers() -> None:
    run = _Run()
    calls = run.capture("capture", PASS)
    run.replay(90, PASS)
    columns, warned = run.place()
    assert tuple(columns) == CHANGED_COLUMNS
    assert columns["capture_launch_id"] == calls
    assert columns["op_id"] == [number + 1000 for number in calls]
    assert set(columns["module_id"]) == {7}
    assert set(columns["module_call"]) == {70}
    assert set(columns["link"]) == {"capture"}
    assert columns["layer"] == [None, *[k for k in range(4) for _ in LAYER], None]
    assert columns["layer_position"][1:6] == [0, 1, 2, 3, 4]
    assert [(w.capture, w.rank, w.code, w.count) for w in warned] == [("profile", 0, "graph_replay_placed", 22)]
    assert "22 of 22 activities of graph replays (100.0 % of their time) placed by capture" in warned[0].message
    assert "4 layers found by repetition hold 90.9 % of their time" in warned[0].message


def test_without_a_capture_layers_are_numbered_and_coverage_is_stated() -> None:
    run = _Run()
    run.replay(90, PASS)
    columns, warned = run.place()
    assert set(columns["op_id"]) == set(columns["link"]) == {None}
    assert columns["layer"] == [None, *[k for k in range(4) for _ in LAYER], None]
    assert [(w.code, w.count) for w in warned] == [("graph_replay_no_op", 22)]
    assert "4 layers found by repetition hold 90.9 % of their time" in warned[0].message


def test_a_run_without_replays_is_left_alone() -> None:
    run = _Run()
    run.replay(90, PASS, graph_launch=False)
    run.capture("capture", PASS)
    assert run.place() == ({}, [])


def test_operators_of_single_kernels_stay() -> None:
    run = _Run()
    run.replay(90, PASS, module_id=4, link="external_id")
    for number, row in enumerate(run.kernels[:-1]):
        row["op_id"] = 3 + number
    calls = run.capture("capture", PASS)
    columns, _ = run.place()
    assert columns["op_id"] == [*range(3, 3 + len(PASS) - 1), calls[-1] + 1000]
    assert columns["module_id"] == [*[4] * (len(PASS) - 1), 7]
    assert columns["link"] == [*["external_id"] * (len(PASS) - 1), "capture"]
    assert columns["capture_launch_id"] == calls


def test_an_operator_around_the_whole_replay_gives_way() -> None:
    run = _Run()
    run.replay(90, PASS, op_id=3, module_id=4, link="external_id")
    calls = run.capture("capture", PASS)
    columns, _ = run.place()
    assert columns["op_id"] == [number + 1000 for number in calls]
    assert set(columns["link"]) == {"capture"}


def test_calls_that_ran_while_capturing_are_no_part_of_the_graph() -> None:
    run = _Run()
    calls = run.capture("capture", ["norm", *PASS])
    warm_up = {"kernel_id": 999, "capture": "capture", "name": "norm", "ts_ns": 0, "dur_ns": 5, "launch_id": calls[0]}
    run.replay(90, PASS)
    run.kernels.append(warm_up)
    columns, _ = run.place()
    assert columns["capture_launch_id"] == [*calls[1:], None]


def test_own_rank_is_preferred_and_another_one_serves() -> None:
    run = _Run()
    run.capture("capture", PASS, rank=0)
    calls = run.capture("capture", PASS, rank=1)
    run.replay(90, PASS, rank=1)
    assert run.place()[0]["capture_launch_id"] == calls
    run = _Run()
    calls = run.capture("capture", PASS, rank=0)
    run.replay(90, PASS, rank=5)
    assert run.place()[0]["capture_launch_id"] == calls


@pytest.mark.parametrize("order", [(64, 32, 16), (16, 32, 64)])
def test_the_graph_of_the_batch_size_is_taken(order: tuple[int, ...]) -> None:
    run = _Run()
    calls = {size: run.capture("capture", PASS, size=size) for size in order}
    run.replay(90, PASS, step=1)
    assert run.place()[0]["capture_launch_id"] == calls[32]


def test_node_numbers_order_kernels_of_parallel_streams() -> None:
    run = _Run()
    calls = run.capture("capture", PASS)
    run.replay(90, PASS)
    for number, row in enumerate(run.kernels):
        row["graph_node_id"] = 40 + number
    run.kernels[2]["ts_ns"], run.kernels[3]["ts_ns"] = run.kernels[3]["ts_ns"], run.kernels[2]["ts_ns"]
    assert run.place()[0]["capture_launch_id"] == calls


def test_a_replay_whose_launch_lies_before_the_recording_is_placed() -> None:
    run = _Run()
    calls = run.capture("capture", PASS)
    for launch in (4, 5):
        run.replay(None, PASS, correlation=launch)
    assert run.place()[0]["capture_launch_id"] == calls * 2
