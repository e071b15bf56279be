"""An execution trace joins the trace of the same run and gives its operators their tensors.

Counts of the shared pairs come from a plain ``json.load`` of both files: equal ids with equal names (89 of 89, 430 of 430),
and, for files of 2023, equal sequences of names per thread (28; 954 + 679).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from magneton.transforms.job import NormalizeOptions
from magneton.transforms.normalize import normalize

OPS = ["aten::linear", "aten::t", "aten::addmm", "aten::relu"]


def trace(path: Path, *, pid: int = 7, first: int = 10, ids: bool = True, names: list[str] = OPS) -> Path:
    events = []
    for number, name in enumerate(names):
        args = {"External id": first + number} | ({"Record function id": first + number} if ids else {})
        times = {"ts": 100 + 10 * number, "dur": 5}
        events.append({"ph": "X", "cat": "cpu_op", "name": name, "pid": pid, "tid": pid, **times, "args": args})
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def execution_trace(path: Path, *, pid: int = 7, first: int = 10, names: list[str] = OPS) -> Path:
    nodes: list[dict[str, Any]] = [node(1, "[pytorch|profiler|execution_trace|process]", 0)]
    nodes += [node(100 + number, name, first + number) for number, name in enumerate(names)]
    path.write_text(json.dumps({"schema": "1.0.1", "pid": pid, "nodes": nodes}))
    return path


def node(identity: int, name: str, rf_id: int) -> dict[str, Any]:
    tensor = [identity, 3, 0, 6, 4, "cpu"]
    sides = {"inputs": [tensor], "input_shapes": [[2, 3]], "input_types": ["Tensor(float)"], "outputs": [tensor]}
    more = {
        "output_shapes": [[2, 3]],
        "output_types": ["Tensor(float)"],
        "seq_id": -1,
        "scope": 0,
        "tid": 1,
        "fw_tid": 0,
    }
    return {"id": identity, "name": name, "rf_id": rf_id, "parent": 1, **sides, **more}


def tables(run: Path, *names: str) -> list[list[dict[str, Any]]]:
    return [pq.read_table(run / "tables" / f"{name}.parquet").to_pylist() for name in names]


def used(run: Path) -> list[tuple[str, str, int]]:
    ops, uses = tables(run, "ops", "uses")
    name_of = {row["op_id"]: row["name"] for row in ops}
    return [(name_of[row["op_id"]], row["direction"], row["tensor_id"]) for row in uses]


EXPECTED = [(name, side, 100 + n) for n, name in enumerate(OPS) for side in ("input", "output")]


@pytest.mark.parametrize("ids", [True, False])
def test_tensors_reach_the_operators_of_the_trace(tmp_path: Path, ids: bool) -> None:
    # without `Record function id` the numbers differ (External ids began earlier), the order of calls does not
    files = [trace(tmp_path / "t.json", ids=ids, first=10 if ids else 500), execution_trace(tmp_path / "et.json")]
    manifest = normalize(files, tmp_path / "run")
    assert sorted(used(tmp_path / "run")) == sorted(EXPECTED)
    (capture,) = tables(tmp_path / "run", "captures")[0]
    assert (capture["source_format"], capture["n_raw"]) == ("kineto", 4)
    said = json.loads(capture["metadata"])["execution_trace"]
    assert said["joined_by"] == ("record_function_id" if ids else "thread_order")
    assert (said["calls"], said["joined"], said["file"]) == (4, 4, "raw/profile/rank0/et.json")
    assert [row["record_function_id"] for row in tables(tmp_path / "run", "ops")[0]] == [10, 11, 12, 13]
    assert {f.path for f in manifest.files if f.role == "primary"} == {
        "raw/profile/rank0/t.json",
        "raw/profile/rank0/et.json",
    }


def test_a_trace_that_holds_part_of_the_calls_takes_theirs(tmp_path: Path) -> None:
    more = ["aten::zeros", *OPS, "aten::sum"]
    for ids in (True, False):
        files = [trace(tmp_path / "t.json", ids=ids, first=11), execution_trace(tmp_path / "et.json", names=more)]
        normalize(files, tmp_path / "run", NormalizeOptions(overwrite=True))
        assert [n for n, side, _ in sorted(used(tmp_path / "run"), key=lambda u: u[2]) if side == "input"] == OPS
        (warnings,) = tables(tmp_path / "run", "warnings")
        assert [w["count"] for w in warnings if w["code"] == "execution_trace_partial"] == [2]


def test_an_execution_trace_of_another_run_is_left_out_and_said(tmp_path: Path) -> None:
    other = execution_trace(tmp_path / "et.json", names=["aten::mul", "aten::add", "aten::div", "aten::sub"])
    for ids in (True, False):
        normalize([trace(tmp_path / "t.json", ids=ids), other], tmp_path / "run", NormalizeOptions(overwrite=True))
        warnings, uses, captures = tables(tmp_path / "run", "warnings", "uses", "captures")
        assert "execution_trace_unjoined" in {w["code"] for w in warnings}
        assert (uses, len(captures)) == ([], 1)


def test_ranks_with_equal_calls_are_told_apart_by_their_process(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in (0, 1):
        trace(folder / f"rank{rank}.json", pid=70 + rank, ids=False)
    execution_trace(folder / "et_b.json", pid=70)
    execution_trace(folder / "et_a.json", pid=71)
    normalize([folder], tmp_path / "run")
    captures = tables(tmp_path / "run", "captures")[0]
    said = {row["rank"]: json.loads(row["metadata"])["execution_trace"]["file"] for row in captures}
    assert said == {0: "raw/profile/rank0/et_b.json", 1: "raw/profile/rank1/et_a.json"}


def test_alone_it_is_a_capture_of_its_own(tmp_path: Path) -> None:
    normalize([execution_trace(tmp_path / "et.json")], tmp_path / "run")
    captures, ops, uses = tables(tmp_path / "run", "captures", "ops", "uses")
    assert (captures[0]["source_format"], captures[0]["n_raw"], captures[0]["n_merged"]) == ("chakra", 5, 1)
    assert [row["name"] for row in ops] == OPS
    assert {row["dur_ns"] for row in ops} == {None}
    assert sorted(used(tmp_path / "run")) == sorted(EXPECTED)
    assert len(uses) == 8


@pytest.mark.parametrize(
    ("files", "ops", "uses", "joined_by"),
    [
        (("systems/samples/torch/mlp_full.json.gz", "systems/samples/torch/mlp_execution_trace.json.gz"), 88, 207, "record_function_id"),
        (("systems/samples/transformers/gpt2_eager.json.gz", "systems/samples/transformers/gpt2_eager_execution_trace.json.gz"), 429, 929, "record_function_id"),
        (("systems/samples/transformers/gpt2_sdpa.json.gz", "systems/samples/transformers/gpt2_sdpa_execution_trace.json.gz"), 334, 735, "record_function_id"),
        (("traces/odd/execution_trace_kineto.json.gz", "traces/odd/execution_trace_et.json.gz"), 28, 52, "thread_order"),
        (("traces/multirank/dlrm_v100_8rank/rank0.json.gz", "traces/multirank/dlrm_v100_8rank/execution_trace_rank0.json.gz"), 1633, 3293, "thread_order"),
    ],
)  # fmt: skip
def test_shared_pairs(
    shared: Path, tmp_path: Path, files: tuple[str, ...], ops: int, uses: int, joined_by: str
) -> None:
    normalize([shared / f for f in files], tmp_path / "run")
    captures, rows, tensors = tables(tmp_path / "run", "captures", "ops", "uses")
    said = json.loads(captures[0]["metadata"])["execution_trace"]
    assert (said["calls"], said["joined"], said["joined_by"]) == (ops, ops, joined_by)
    assert len(rows) == ops
    assert len(tensors) == uses
    assert {t["op_id"] for t in tensors} <= {r["op_id"] for r in rows}
