"""Chakra execution traces: both layouts, tensors of calls, odd nodes.

Right values come from a plain ``json.load`` of the samples (nodes counted by scope, tensor arguments counted by type).
"""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magneton.transforms.sources import chakra
from magneton.transforms.sources.rows import Notes, UnusableEvent

Found = dict[str, list[dict[str, Any]]]


class Listed:
    """Stands for the elements of a file."""

    def __init__(self, text: bytes) -> None:
        document = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        self._raws = [bytes(raw) for raw in msgspec.json.decode(document.pop("nodes"), type=list[msgspec.Raw])]
        self.metadata = {name: json.loads(bytes(raw)) for name, raw in document.items()}

    def __call__(self) -> Iterator[bytes]:
        return iter(self._raws)


def rows_of(text: bytes) -> tuple[Found, Notes]:
    notes = Notes()
    found: Found = defaultdict(list)
    for kind, row in chakra.decode(Listed(text), notes):  # type: ignore[arg-type]
        found[kind].append(row)
    return found, notes


TENSOR = [5, 6, 2, 4096, 4, "cuda:0"]
OLD = {
    "name": "aten::cat", "id": 8, "rf_id": 3, "parent": 4, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0,
    "op_schema": "aten::cat(Tensor[] tensors, int dim=0) -> Tensor",
    "inputs": [[TENSOR, [7, 8, 0, 1, 4, "cpu"]], 1], "input_shapes": [[[64, 64], []], []],
    "input_types": ["GenericList[Tensor(float),Tensor(long int)]", "Int"],
    "outputs": [[9, 6, 0, 1, 4, "cpu"]], "output_shapes": [[]], "output_types": ["Tensor(float)"],
}  # fmt: skip
NEW = {
    "id": 8, "name": "aten::cat", "ctrl_deps": 4,
    "inputs": {"values": OLD["inputs"], "shapes": OLD["input_shapes"], "types": OLD["input_types"],
               "strides": [[[64, 1], []], []]},
    "outputs": {"values": OLD["outputs"], "shapes": [[]], "types": ["Tensor(float)"], "strides": [[]]},
    "attrs": [{"name": k, "type": "uint64", "value": OLD[k]} for k in ("rf_id", "seq_id", "scope", "tid", "fw_tid", "op_schema")],
}  # fmt: skip


def test_both_layouts_say_the_same() -> None:
    old, new = chakra.parse(json.dumps(OLD).encode()), chakra.parse(json.dumps(NEW).encode())
    for name in ("id", "name", "parent", "rf_id", "scope", "tid", "fwd_tid", "sequence_number", "schema"):
        assert getattr(old, name) == getattr(new, name)
    first, second, written = chakra.uses(new)
    assert first == {
        "direction": "input", "position": 0, "element": 0, "tensor_id": 5, "storage_id": 6, "storage_offset": 2,
        "numel": 4096, "itemsize": 4, "device": "cuda:0", "dtype": "float", "dims": [64, 64], "strides": [64, 1],
    }  # fmt: skip
    assert (second["element"], second["dtype"], second["dims"]) == (1, "long int", [])
    assert (written["direction"], written["position"], written.get("element")) == ("output", 0, None)
    assert [{**u, "strides": None} for u in chakra.uses(old)] == [{**u, "strides": None} for u in chakra.uses(new)]


def test_a_lone_trace_has_order_and_no_times() -> None:
    marker = {**OLD, "id": 3, "name": "## forward ##", "rf_id": 2, "scope": 7}
    root = {**OLD, "id": 1, "name": "[pytorch|profiler|execution_trace|process]", "rf_id": 0}
    found, notes = rows_of(json.dumps({"schema": "1.0.1", "pid": 77, "nodes": [OLD, marker, root, 3, {}]}).encode())
    (operator,) = found["ops"]
    assert (operator["ts_ns"], operator["dur_ns"], operator["record_function_id"]) == (8, None, 3)
    assert (operator["input_types"], operator["concrete_inputs"]) == (
        json.dumps(OLD["input_types"], separators=(",", ":")),
        '["","1"]',
    )
    assert [r["record_function_id"] for r in found["uses"]] == [3, 3, 3]
    assert [r["name"] for r in found["annotations"]] == ["## forward ##"]
    assert (notes.n_raw, notes.n_kept, notes.n_merged, notes.n_quarantined) == (5, 2, 1, 2)
    assert "no_times" in notes.warnings


def test_values_that_are_no_json_do_not_lose_a_node() -> None:
    raw = json.dumps({**OLD, "inputs": [float("inf")], "input_types": ["Double"], "input_shapes": [[]]}).encode()
    assert b"Infinity" in raw
    assert chakra.parse(raw).name == "aten::cat"
    assert chakra.parse(raw.replace(b"Infinity", b"-inf")).name == "aten::cat"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda c: st.lists(c, max_size=4), max_leaves=12
)


@given(
    st.dictionaries(
        st.sampled_from([*OLD, *NEW]), JSON | st.sampled_from(["Tensor(float)", "GenericList[Tensor(float)]"])
    )
)
def test_any_node_is_read_or_set_aside(node: dict[str, Any]) -> None:
    try:
        found = chakra.parse(json.dumps(node).encode())
    except UnusableEvent:
        return
    chakra.operator(found)
    list(chakra.uses(found))


def test_sniffing() -> None:
    path = Path("x")
    assert chakra.sniff(b'{\n  "schema": "1.1.1-chakra.0.0.4", "pid": 16778,\n  "nodes": [', path)
    assert not chakra.sniff(b'{"schemaVersion": 1, "traceEvents": [], "nodes": 3}', path)


@pytest.mark.parametrize(
    ("name", "ops", "annotations", "merged", "uses"),
    [
        ("systems/samples/torch/mlp_execution_trace.json.gz", 88, 1, 2, 207),
        ("systems/samples/transformers/gpt2_eager_execution_trace.json.gz", 429, 1, 2, 929),
        ("systems/samples/transformers/gpt2_sdpa_execution_trace.json.gz", 334, 1, 2, 735),
        ("traces/odd/execution_trace_et.json.gz", 28, 8, 2, 52),
        ("traces/multirank/dlrm_v100_8rank/execution_trace_rank0.json.gz", 1633, 39, 3, 3293),
        ("traces/multirank/dlrm_v100_8rank/execution_trace_rank1.json.gz", 1633, 39, 3, 3293),
    ],
)
def test_samples(shared: Path, name: str, ops: int, annotations: int, merged: int, uses: int) -> None:
    text = gzip.decompress((shared / name).read_bytes())
    found, notes = rows_of(text)
    assert (len(found["ops"]), len(found["annotations"]), len(found["uses"])) == (ops, annotations, uses)
    assert (notes.n_raw, notes.n_merged, notes.n_quarantined) == (ops + annotations + merged, merged, 0)
    # every tensor of a call, counted apart from the product: lists of six whose last is a device, wherever they are
    # (those of a user's scope, `nccl:all_to_all`, are the same as those of the call around it)
    assert sum(tensors(node) for node in json.loads(text)["nodes"] if b'"value": 7' not in scope(node)) == uses


def scope(node: dict[str, Any]) -> bytes:
    written = next((a for a in node.get("attrs", []) if a["name"] == "scope"), {"value": node.get("scope")})
    return json.dumps(written).encode()


def tensors(node: dict[str, Any]) -> int:
    found: Counter[bool] = Counter()

    def walk(value: Any) -> None:
        if isinstance(value, list):
            found[len(value) == 6 and isinstance(value[5], str) and all(isinstance(v, int) for v in value[:5])] += 1
            for part in value:
                walk(part)

    for side in ("inputs", "outputs"):
        walk(node[side]["values"] if isinstance(node[side], dict) else node[side])
    return found[True]
