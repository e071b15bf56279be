"""ONNX Runtime profiles: fences, devices, and one model before and after optimisation.

Right values come from a plain ``json.load`` of the files (counts and sums by operator, shapes multiplied by hand).
"""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import msgspec

from magneton.transforms.sources import onnxruntime
from magneton.transforms.sources.rows import Notes

Found = dict[str, list[dict[str, Any]]]


def rows_of(text: bytes) -> tuple[Found, Notes]:
    raws = [bytes(raw) for raw in msgspec.json.decode(text, type=list[msgspec.Raw])]
    notes = Notes()
    found: Found = defaultdict(list)
    for kind, row in onnxruntime.decode(lambda: raws, notes):
        found[kind].append(row)
    return found, notes


def event(category: str, name: str, ts: int, dur: int, pid: int = 3, **args: Any) -> dict[str, Any]:
    return {"cat": category, "pid": pid, "tid": pid, "dur": dur, "ts": ts, "ph": "X", "name": name, "args": args}


def test_fences_are_no_work(root: Path) -> None:
    """Fault case 36, `trace_alone`."""
    found, notes = rows_of((root / "tests/faults/cases/36-onnxruntime-session-relative/ort.json").read_bytes())
    assert (notes.framework, notes.n_kept, notes.n_raw) == ("onnxruntime", 12, 12)
    by_op: Counter[str] = Counter()
    for row in found["ops"]:
        by_op[row["name"]] += row["dur_ns"]
    assert by_op == {"Conv": 130_000, "Relu": 10_000}
    assert len(found["ops"]) == 3
    assert sum(r["dur_ns"] for r in found["ops"]) == 140_000
    (run,) = [r for r in found["annotations"] if r["step"] is not None]
    assert (run["name"], run["dur_ns"], run["step"]) == ("model_run", 200_000, 0)
    assert [r["name"] for r in found["annotations"] if "fence" in r["name"]] == [
        f"{node}_fence_{side}" for node in ("conv1", "relu1", "conv2") for side in ("before", "after")
    ]
    # times count from the session's start, which the file does not tell: nothing may place them in 1970
    assert (notes.base_unix_ns, notes.clock) == (None, "session")


def test_device_activities_belong_to_their_node() -> None:
    text = json.dumps([
        event("Node", "mm_kernel_time", 10, 5, op_name="MatMul", node_index="4", provider="CUDAExecutionProvider"),
        event("Kernel", "gemm<float>", 11, 4, pid=-1, op_name="MatMul", stream="7", **{f"{s}_{a}": "2" for s in ("grid", "block") for a in "xyz"}),
        event("Api", "hipLaunchKernel", 10, 1, pid=-1, op_name="MatMul"),
        event("Node", "add_kernel_time", 20, 5, op_name="Add"),
        event("Kernel", "Memcpy HtoD", 21, 1, pid=-1, op_name="Add", stream="", size="4096"),
    ]).encode()  # fmt: skip
    found, _ = rows_of(text)
    first, second = found["ops"]
    gemm, copy = found["kernels"]
    assert (gemm["external_id"], copy["external_id"]) == (first["external_id"], second["external_id"])
    assert first["external_id"] != second["external_id"]
    assert (gemm["pid"], gemm["stream"], gemm["grid"], gemm["block"]) == ("3", 7, [2, 2, 2], [2, 2, 2])
    assert (copy["category"], copy["stream"], copy["bytes"], copy["grid"]) == ("gpu_memcpy", None, 4096, None)
    assert found["launches"][0]["external_id"] == first["external_id"]


def test_odd_arguments_are_unknown() -> None:
    text = json.dumps([
        event("Node", "a_kernel_time", 1, 1, op_name=None, node_index="x", input_type_shape=[{"float": [1]}, {}, 3]),
        event("Node", "b_kernel_time", 2, 1, input_type_shape="none", output_size="99999999999999999999999"),
        {"cat": "Node", "ph": "X", "name": "c_kernel_time", "ts": 3, "args": None},
    ]).encode()  # fmt: skip
    found, notes = rows_of(text)
    assert [(r["name"], r["input_types"], r["input_dims"]) for r in found["ops"]] == [
        ("a_kernel_time", '["float"]', "[[1]]"),
        ("b_kernel_time", None, None),
        ("c_kernel_time", None, None),
    ]
    assert found["ops"][2]["dur_ns"] is None
    assert notes.n_kept == 3


def test_nodes_after_the_last_run_mean_that_the_profiler_stopped() -> None:
    whole = [event("Node", "a_kernel_time", 10, 5, op_name="Add"), event("Session", "model_run", 9, 8)]
    _, notes = rows_of(json.dumps(whole).encode())
    assert "maybe_incomplete" not in notes.warnings
    _, notes = rows_of(json.dumps([*whole, event("Node", "b_kernel_time", 30, 5, op_name="Add")]).encode())
    assert notes.warnings["maybe_incomplete"][0] == 1


def test_sniffing() -> None:
    path = Path("x")
    assert onnxruntime.sniff(b'[\n{"cat" : "Session","pid" :22710', path)
    assert not onnxruntime.sniff(b'[{"cat": "cpu_op"}', path)
    assert not onnxruntime.sniff(b'{"traceEvents": [{"cat": "Session"}]}', path)


def recorded(shared: Path, name: str) -> tuple[Found, Notes]:
    return rows_of(gzip.decompress((shared / "systems/samples/onnxruntime" / name).read_bytes()))


def test_totals_of_each_recording(shared: Path) -> None:
    for name, nodes, total in (("gpt2_opt_none.json.gz", 164, 40_548_000), ("gpt2_opt_all.json.gz", 126, 22_731_000)):
        found, notes = recorded(shared, name)
        assert len(found["ops"]) == nodes
        assert sum(r["dur_ns"] for r in found["ops"]) == total
        assert notes.n_raw == notes.n_kept == nodes + 6
        assert [r["step"] for r in found["annotations"] if r["step"] is not None] == [0, 1]


MATRIX_PRODUCTS = {"MatMul", "Gemm", "FusedMatMul", "FusedGemm"}


def work(row: dict[str, Any]) -> int:
    """Multiply-adds of a matrix product, from its shapes."""
    outputs = json.loads(row["attributes"])["output_dims"][0]
    return math.prod(outputs) * json.loads(row["input_dims"])[0][-1]


def test_one_model_before_and_after_optimisation_does_equal_work(shared: Path) -> None:
    """Optimisation fuses and folds nodes, so their number, kinds, bytes and times differ and are not compared.

    What cannot differ is the work the model asks for: runs, the tokens that go in, the logits that come out, and the
    matrix products (26 with 34,406,400 multiply-adds over the two runs: 17,203,200 a run).
    """
    totals = {}
    for name in ("gpt2_opt_none.json.gz", "gpt2_opt_all.json.gz"):
        found, _ = recorded(shared, name)
        products = [r for r in found["ops"] if r["name"] in MATRIX_PRODUCTS]
        last = max(found["ops"], key=lambda r: r["ts_ns"])
        tokens = {
            tuple(shape)
            for r in found["ops"]
            for kind, shape in zip(json.loads(r["input_types"]), json.loads(r["input_dims"]), strict=True)
            if kind == "int64" and len(shape) == 2
        }
        totals[name] = {
            "runs": sum(r["step"] is not None for r in found["annotations"]),
            "products": len(products),
            "multiply_adds": sum(map(work, products)),
            "logits": json.loads(last["attributes"])["output_dims"],
            "tokens": tokens,
        }
    before, after = totals.values()
    assert before == after
    assert before == {
        "runs": 2,
        "products": 26,
        "multiply_adds": 34_406_400,
        "logits": [[1, 32, 1000]],
        "tokens": {(1, 32)},
    }
