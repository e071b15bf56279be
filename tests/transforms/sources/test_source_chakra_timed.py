"""Chakra traces with times: protocol buffers of the converter, and JSON of the linker. SYNTHETIC, made from the schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.made_traces import KINDS
from tests.support.normalized import Normalizer, Run

from magneton.schemas.errors import InputFormatError, TruncatedInputError
from magneton.transforms.normalize import normalize


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def blob(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def attr(name: str, value: Any) -> bytes:
    body = blob(1, name.encode())
    if isinstance(value, bool):
        return blob(10, body + number(27, int(value)))
    if isinstance(value, int):
        return blob(10, body + number(9, value))
    return blob(10, body + blob(29, str(value).encode()))


def node(
    identity: int, name: str, kind: int, start: int, dur: int, *, deps: tuple[int, ...] = (), **attrs: Any
) -> bytes:
    body = number(1, identity) + blob(2, name.encode()) + number(3, kind)
    body += blob(5, b"".join(map(varint, deps))) if deps else b""
    body += number(6, start) + number(7, dur) if dur else b""
    body += blob(8, blob(1, b"[]") + blob(2, b"[[4, 4]]") + blob(3, b"['Tensor(float)']"))
    return body + b"".join(attr(k, v) for k, v in attrs.items())


def file(*nodes: bytes) -> bytes:
    return b"".join(varint(len(m)) + m for m in (blob(1, b"0.0.4"), *nodes))


COLLECTIVE = {"is_cpu_op": False, "stream": 9, "comm_type": 0, "comm_size": 1024, "pg_name": "1"}
NODES = (
    node(1, "aten::mm", 4, 10, 50, is_cpu_op=True),
    node(2, "gemm", 4, 70, 30, deps=(1,), is_cpu_op=False, stream=7, num_ops=5),
    node(3, "c10d::allreduce_", 4, 60, 10, is_cpu_op=True),
    node(4, "ncclAllReduce", 7, 110, 40, deps=(3, 2), **COLLECTIVE),
)


def by_op(run: Run) -> dict[str | None, int]:
    ops = {row["op_id"]: row["name"] for row in run.rows("ops")}
    return {ops.get(row["op_id"]): row["dur_ns"] for row in run.rows("kernels")}


def test_protocol_buffers(tmp_path: Path, normalized: Normalizer) -> None:
    (tmp_path / "chakra.0.et").write_bytes(file(*NODES))
    run = normalized(tmp_path / "chakra.0.et")
    assert by_op(run) == {"aten::mm": 30_000, "c10d::allreduce_": 40_000}
    assert {row["name"]: row["kernel_class"] for row in run.rows("kernels")}["ncclAllReduce"] == "collective"
    assert {row["stream"] for row in run.rows("kernels")} == {7, 9}
    (capture,) = run.rows("captures")
    assert (capture["source_format"], capture["n_raw"]) == ("chakra_protobuf", 4)
    assert "no_times" not in run.warnings()


def test_made_by_hand_without_times(tmp_path: Path, normalized: Normalizer) -> None:
    nodes = node(0, "COMP", 4, 0, 0, num_ops=9), node(1, "ALL", 7, 0, 0, deps=(0,), comm_type=0)
    (tmp_path / "sim.et").write_bytes(file(*nodes))
    run = normalized(tmp_path / "sim.et")
    assert [row["dur_ns"] for row in run.rows("kernels")] == [None, None]
    assert run.warnings()["no_times"] == 1


def test_a_cut_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.et").write_bytes(file(*NODES)[:-5])
    with pytest.raises(TruncatedInputError):
        normalize([tmp_path / "a.et"], tmp_path / "run")


@KINDS
@given(cut=st.integers(1, 200), at=st.integers(0, 200), byte=st.integers(0, 255))
def test_damage_never_ends_in_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, cut: int, at: int, byte: int
) -> None:
    content = bytearray(file(*NODES)[: max(20, len(file(*NODES)) - cut)])
    content[at % len(content)] = byte
    path = tmp_path_factory.mktemp("et") / "a.et"
    path.write_bytes(bytes(content))
    try:
        normalize([path], path.parent / "run")
    except InputFormatError as error:
        assert "\n" not in str(error)


def test_linked_json(tmp_path: Path, normalized: Normalizer) -> None:
    empty: dict[str, Any] = {"values": [], "shapes": [], "types": []}

    def linked(identity: int, name: str, ts: float, dur: float, above: int, **more: Any) -> dict[str, Any]:
        times = {"ts": ts, "inclusive_dur": dur, "exclusive_dur": dur}
        return {"id": identity, "name": name, "ctrl_deps": above, "inputs": empty, "outputs": empty, **times, **more}

    def attrs(identity: int) -> list[dict[str, Any]]:
        return [{"name": "rf_id", "type": "uint64", "value": identity}, {"name": "tid", "type": "uint64", "value": 3}]

    nodes = [
        linked(2, "aten::mm", 10, 50, 1, attrs=attrs(2)),
        linked(9, "gemm", 70.5, 30, 2, cat="kernel", stream=7),
        linked(3, "aten::add", 100.25, 5, 1, attrs=attrs(3)),
    ]
    (tmp_path / "linked.json").write_text(json.dumps({"schema": "1.0.2-chakra.0.0.4", "pid": 4, "nodes": nodes}))
    run = normalized(tmp_path / "linked.json")
    assert by_op(run) == {"aten::mm": 30_000}
    assert [(row["ts_ns"], row["dur_ns"]) for row in run.rows("ops")] == [(10_000, 50_000), (100_250, 5000)]
    assert "no_times" not in run.warnings()
