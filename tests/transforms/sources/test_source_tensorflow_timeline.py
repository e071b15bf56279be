"""TensorFlow v1 timelines. Right values come from a plain ``json.load`` of the sample; the rest is made here."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import msgspec

from magneton.transforms.sources import tensorflow_timeline
from magneton.transforms.sources.rows import Notes

Found = dict[str, list[dict[str, Any]]]
CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


def rows_of(text: bytes) -> tuple[Found, Notes]:
    events = msgspec.json.decode(text, type=dict[str, msgspec.Raw])["traceEvents"]
    raws = [bytes(raw) for raw in msgspec.json.decode(events, type=list[msgspec.Raw])]
    notes = Notes()
    found: Found = defaultdict(list)
    for kind, row in tensorflow_timeline.decode(lambda: raws, notes):
        found[kind].append(row)
    return found, notes


def process(pid: int, name: str) -> dict[str, Any]:
    return {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}


def op(pid: int, name: str, ts: int, dur: int, /, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "Op", "name": name, "pid": pid, "tid": 0, "ts": ts, "dur": dur, "args": args}


def test_operators_tensors_and_streams() -> None:
    described = "dtype: DT_FLOAT\nshape {\n  dim {\n    size: 16\n  }\n  dim {\n    size: -1\n  }\n}\nallocation_description {\n  requested_bytes: 4\n}\n"
    events = [
        process(1, f"{CPU} Compute"),
        process(2, "/device:GPU:3/stream:all Compute"),
        process(3, "/device:GPU:3/stream:14 Compute"),
        op(1, "MatMul", 100, 5, name="layer/mm", op="MatMul", input0="x", input1="w:1", input10="^control"),
        op(2, "MatMul", 103, 4, name="layer/mm", op="MatMul"),
        op(2, "MEMCPYHtoD", 101, 1, name="edge", op="MEMCPYHtoD"),
        op(3, "MatMul", 103, 4, name="layer/mm", op="MatMul"),
        {"ph": "O", "cat": "Tensor", "name": "x", "pid": 4, "tid": 0, "ts": 99, "id": 0, "args": {"snapshot": {"tensor_description": described}}},
        {"ph": "C", "cat": "Memory", "name": "cpu", "pid": 0, "tid": 0, "ts": 99, "args": {"cpu": 4}},
        {"ph": "s", "cat": "DataFlow", "name": "x", "pid": 1, "tid": 0, "ts": 99, "id": 0},
        {"ph": "t", "cat": "DataFlow", "name": "x", "pid": 1, "tid": 0, "ts": 100, "id": 0},
    ]  # fmt: skip
    found, notes = rows_of(json.dumps({"traceEvents": events}).encode())
    (operator,) = found["ops"]
    assert (operator["input_dims"], operator["input_types"]) == ("[[16,-1],null]", '["DT_FLOAT",null]')
    assert json.loads(operator["attributes"]) == {"node": "layer/mm", "inputs": ["x", "w:1", "^control"], "device": CPU}
    # the process of all streams has each kernel; that of one stream repeats it
    assert [(r["name"], r["category"], r["device"], r["stream"]) for r in found["kernels"]] == [
        ("MatMul", "kernel", 3, None),
        ("MEMCPYHtoD", "gpu_memcpy", 3, None),
    ]
    assert Counter(r["kind"] for r in found["annotations"]) == Counter({"slice": 1, "instant": 1})
    assert [(r["value"], r["unit"]) for r in found["counters"]] == [(4.0, "bytes")]
    assert [r["phase"] for r in found["flows"]] == ["s", "t"]
    assert (notes.n_raw, notes.n_kept, notes.n_merged) == (9, 6, 3)  # the two flows are counted by the shared steps


def test_single_streams_count_where_there_is_no_process_of_all() -> None:
    events = [process(3, "/device:GPU:0/stream:14 Compute"), op(3, "MatMul", 103, 4)]
    found, _ = rows_of(json.dumps({"traceEvents": events}).encode())
    assert [r["stream"] for r in found["kernels"]] == [14]


def test_sniffing() -> None:
    path = Path("x")
    head = b'{\n "traceEvents": [ {"name": "process_name", "args": {"name": "/job:localhost/replica:0/device:CPU:0 Compute"}}'
    assert tensorflow_timeline.sniff(head, path)
    assert not tensorflow_timeline.sniff(b'{"traceEvents": [], "name": "/job:x"}', path)


def test_the_sample(shared: Path) -> None:
    found, notes = rows_of(gzip.decompress((shared / "systems/samples/tensorflow/v1_timeline.json.gz").read_bytes()))
    assert {kind: len(rows) for kind, rows in found.items()} == {
        "ops": 14,
        "annotations": 36,
        "flows": 8,
        "counters": 24,
    }
    assert sum(r["dur_ns"] for r in found["ops"]) == 172_000
    assert (notes.n_raw, notes.n_kept, notes.n_merged) == (77, 74, 3)
    assert found["ops"][0]["ts_ns"] + (notes.base_unix_ns or 0) == 1795960176467840_000
    by_node = {json.loads(r["attributes"])["node"]: r for r in found["ops"]}
    assert (by_node["matmul"]["name"], by_node["matmul"]["input_dims"]) == ("_MklMatMul", "[[16,64],[64,256]]")
    assert json.loads(by_node["Gelu/mul"]["attributes"])["inputs"] == ["Gelu/Erfc", "Gelu/mul/x"]
