"""XSpace (*.xplane.pb): the wire decoder, what its events become, and damage.

Right values come from a direct walk over the bytes with a decoder written apart from the product (every field of every
message printed, sums made from the printout), except for what the test itself encodes.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magneton.schemas.errors import InputFormatError, TruncatedInputError
from magneton.transforms.reading.codecs import TraceInput
from magneton.transforms.reading.limits import Limits
from magneton.transforms.sources.rows import Notes, round_to_ns
from magneton.transforms.sources.xla import protowire, xplane
from magneton.transforms.sources.xla.xspace import XSpace, looks_like_xspace

# --- an encoder of XSpace, written for these tests ---


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, body: bytes | str) -> bytes:
    body = body.encode() if isinstance(body, str) else body
    return varint(field << 3 | 2) + varint(len(body)) + body


class PlaneMaker:
    """Builds one XPlane; names of events and statistics are interned as the profiler does it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kinds: dict[tuple[str, str], int] = {}
        self.stats: dict[str, int] = {}
        self.lines = b""
        self.own = b""

    def stat(self, name: str, value: Any, *, ref: bool = False) -> bytes:
        key = number(1, self.stats.setdefault(name, len(self.stats) + 1))
        if ref:
            return key + number(7, self.stats.setdefault(value, len(self.stats) + 1))
        if isinstance(value, float):
            return key + varint(2 << 3 | 1) + struct.pack("<d", value)
        if isinstance(value, str):
            return key + message(5, value)
        if isinstance(value, bytes):
            return key + message(6, value)
        return key + number(4, value)

    def event(self, name: str, offset_ps: int, duration_ps: int, display: str = "", **stats: Any) -> bytes:
        kind = self.kinds.setdefault((name, display), len(self.kinds) + 1)
        body = number(1, kind) + number(2, offset_ps) + number(3, duration_ps)
        return body + b"".join(message(4, self.stat(k, v, ref=k == "hlo_op")) for k, v in stats.items())

    def line(self, id_: int, name: str, timestamp_ns: int, *events: bytes) -> None:
        body = number(1, id_) + message(2, name) + number(3, timestamp_ns)
        self.lines += message(3, body + b"".join(message(4, e) for e in events))

    def encode(self) -> bytes:
        body = message(2, self.name) + self.lines
        for (name, display), key in self.kinds.items():
            kind = number(1, key) + message(2, name) + (message(4, display) if display else b"")
            body += message(4, number(1, key) + message(2, kind))
        for name, key in self.stats.items():
            body += message(5, number(1, key) + message(2, number(1, key) + message(2, name)))
        return message(1, body + self.own)


def rows_of(data: bytes) -> tuple[dict[str, list[dict[str, Any]]], Notes]:
    notes = Notes()
    found: dict[str, list[dict[str, Any]]] = {}
    for kind, row in xplane.decode(data, notes):
        found.setdefault(kind, []).append(row)
    return found, notes


def gpu_profile() -> bytes:
    """Two dispatches of one HLO instruction whose runtime calls lie on a line of their own, as ROCm's tracer does it."""
    device = PlaneMaker("/device:GPU:1")
    details = "regs:32 static_shared:16 dynamic_shared:48 grid:4,2,1 block:128,1,1 occ_pct:62.5"
    device.line(
        7,
        "Stream #14(Compute)",
        1_000,
        device.event("fusion_kernel", 5_000_000, 2_500_500, correlation_id=1, hlo_op="add.1", kernel_details=details),
        device.event("fusion_kernel", 9_000_000, 1_000_000, correlation_id=2, hlo_op="add.1", kernel_details=details),
        device.event(
            "MemcpyD2H", 11_000_000, 500_000, correlation_id=3, memcpy_details="kind_src:device size:4096 dest:0"
        ),
    )
    device.line(8, "XLA Ops - from #14", 1_000, device.event("add.1", 5_000_000, 2_500_500))
    host = PlaneMaker("/host:CPU")
    host.line(
        3,
        "Host Threads/3",
        0,
        host.event("hipLaunchKernel", 1_500_000, 200_000, correlation_id=1, hlo_op="add.1"),
        host.event("hipLaunchKernel", 3_500_000, 200_000, correlation_id=2, hlo_op="add.1"),
        host.event("hipMemcpyAsync", 4_500_000, 200_000, correlation_id=3),
    )
    host.line(
        -1,
        "python",
        0,
        host.event("train", 0, 6_000_000, step_num=4, _r=1),
        host.event("$model.py:12 forward", 500_000, 5_000_000),
        host.event("PjitFunction(f)", 900_000, 4_000_000),
        host.event("add.1", 1_000_000, 1_000_000),
        host.event("add.1", 3_000_000, 1_000_000),
        host.event("ThreadpoolListener::Record", 5_000_000, 0, _pt=1),
        host.event(
            "MemoryAllocation", 5_500_000, 0, allocator_name="GPU_1_bfc", bytes_allocated=4096, bytes_reserved=0
        ),
        host.event("scope/mm:MatMul", 5_600_000, 100_000, display="MatMul"),
        host.event("EagerExecute", 5_800_000, 100_000, eager_op="Neg", is_func=0),
        host.event("EagerExecute", 5_900_000, 50_000, eager_op="__inference_f", is_func=1),
    )
    environment = PlaneMaker("Task Environment")
    environment.own = message(6, environment.stat("profile_start_time", 1_700_000_000_000_000_000))
    return host.encode() + device.encode() + environment.encode() + message(4, "host")


def test_what_events_of_a_gpu_profile_become() -> None:
    found, notes = rows_of(gpu_profile())
    kernel, _, copy = found["kernels"]
    # 1000 ns + 5,000,000 ps; 2,500,500 ps is half-way and goes to the even neighbour
    assert (kernel["ts_ns"], kernel["dur_ns"]) == (6_000, 2_500)
    assert (kernel["device"], kernel["stream"], kernel["correlation"]) == (1, 14, 1)
    assert (kernel["grid"], kernel["block"], kernel["registers_per_thread"]) == ([4, 2, 1], [128, 1, 1], 32)
    assert (kernel["shared_memory_bytes"], kernel["occupancy_percent"]) == (64, 62.5)
    assert (copy["category"], copy["bytes"]) == ("gpu_memcpy", 4096)
    assert [(r["name"], r["correlation"]) for r in found["launches"]] == [
        ("hipLaunchKernel", 1),
        ("hipLaunchKernel", 2),
        ("hipMemcpyAsync", 3),
    ]
    # runtime calls that name the operation belong to the thread that dispatched it; the copy names none
    python = str(2**32 - 1)
    assert [r["tid"] for r in found["launches"]] == [python, python, "3"]
    assert [(r["name"], r["ts_ns"], r["tid"]) for r in found["ops"]] == [
        ("add.1", 1_000, python),
        ("add.1", 3_000, python),
        ("MatMul", 5_600, python),
        ("Neg", 5_800, python),
    ]
    assert json.loads(found["ops"][2]["attributes"]) == {"node": "scope/mm"}
    assert [r["name"] for r in found["frames"]] == ["model.py(12): forward"]
    annotations = {r["name"]: r for r in found["annotations"]}
    assert annotations["train"]["step"] == 4
    assert annotations["ThreadpoolListener::Record"]["kind"] == "instant"
    assert annotations["add.1"]["category"] == "XLA Ops"
    assert [(r["series"], r["value"]) for r in found["counters"]] == [
        ("bytes_allocated", 4096.0),
        ("bytes_reserved", 0.0),
    ]
    assert notes.base_unix_ns == 1_700_000_000_000_000_000
    assert (notes.framework, notes.n_raw, notes.n_kept) == ("jax", 17, 17)


def test_a_tpu_plane_has_operations_but_no_streams() -> None:
    device = PlaneMaker("/device:TPU:0")
    device.line(1, "XLA Ops", 0, device.event("fusion.1", 0, 1_000_000))
    device.line(2, "XLA Modules", 0, device.event("jit_f(1)", 0, 1_000_000))
    found, _ = rows_of(device.encode())
    assert [(r["name"], r["device"], r["stream"]) for r in found["kernels"]] == [("fusion.1", 0, None)]
    assert [(r["name"], r["category"]) for r in found["annotations"]] == [("jit_f(1)", "XLA Modules")]


def test_an_event_without_time_or_with_an_impossible_one_is_set_aside() -> None:
    plane = PlaneMaker("/host:CPU")
    aggregated = number(1, 1) + number(5, 3) + number(3, 10)
    backwards = plane.event("b", 0, -1000)
    endless = plane.event("c", 0, 8 * 86_400 * 10**12)
    plane.line(1, "t", 0, plane.event("a", 0, 1000), aggregated, backwards, endless)
    found, notes = rows_of(plane.encode())
    assert Counter(r["reason"] for r in found["quarantine"]) == Counter(
        {"ts_missing": 1, "dur_negative": 1, "dur_implausible": 1}
    )
    assert (notes.n_raw, notes.n_kept, notes.n_quarantined) == (4, 1, 3)


def test_lines_that_count_from_1970_are_absolute() -> None:
    plane = PlaneMaker("/host:CPU")
    plane.line(1, "t", 1_700_000_000_000_000_123, plane.event("a", 1000, 1000))
    found, notes = rows_of(plane.encode())
    assert found["annotations"][0]["ts_ns"] == 1_700_000_000_000_000_124
    assert (notes.base_unix_ns, notes.clock) == (0, "realtime")


@given(st.integers(-(10**15), 10**15))
def test_rounding_to_nanoseconds_is_half_to_even(ps: int) -> None:
    assert round_to_ns(ps) == round(ps / 1000) if abs(ps) < 10**12 else abs(round_to_ns(ps) * 1000 - ps) <= 500


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_wire_error(data: bytes) -> None:
    try:
        list(protowire.fields(data, 0, len(data)))
        rows_of(data)
    except protowire.WireError:
        pass
    looks_like_xspace(data)


@given(st.integers(0, len(gpu_profile()) - 1), st.integers(0, 255))
def test_a_changed_byte_never_escapes_as_another_error(position: int, value: int) -> None:
    data = bytearray(gpu_profile())
    data[position] = value
    with contextlib.suppress(protowire.WireError):
        rows_of(bytes(data))


def test_a_profile_cut_off_anywhere_is_refused_as_such(tmp_path: Path) -> None:
    whole = gpu_profile()
    for size in (len(whole) - 1, len(whole) // 2, 10):
        path = tmp_path / "cut.xplane.pb"
        path.write_bytes(whole[:size])
        with pytest.raises(TruncatedInputError, match="stops in the middle"):
            xplane.read(TraceInput(path, Limits()), None, Limits())  # type: ignore[arg-type]


def test_damage_inside_a_plane_is_not_called_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "damaged.xplane.pb"
    path.write_bytes(message(1, message(2, "/host:CPU") + b"\x1a\x7f"))
    with pytest.raises(InputFormatError, match="damaged") as caught:
        xplane.read(TraceInput(path, Limits()), None, Limits())  # type: ignore[arg-type]
    assert not isinstance(caught.value, TruncatedInputError)


def test_text_is_not_taken_for_a_profile() -> None:
    assert not looks_like_xspace(b'\n{"traceEvents": [], "otherData": {}}' + b" " * 100)
    assert not looks_like_xspace(b"")
    assert not looks_like_xspace(b"PK\x03\x04")
    assert looks_like_xspace(gpu_profile()[:4096])


# --- recordings ---


def test_jax_on_cpu(shared: Path) -> None:
    data = gzip.decompress((shared / "systems/samples/jax/host.xplane.pb.gz").read_bytes())
    found, notes = rows_of(data)
    assert {kind: len(rows) for kind, rows in found.items()} == {"ops": 10, "frames": 9, "annotations": 46}
    assert sum(r["dur_ns"] for r in found["ops"]) == 83_972
    assert [(r["name"], r["step"]) for r in found["annotations"] if r.get("step") is not None] == [
        ("train", 0),
        ("train", 1),
    ]
    assert (notes.framework, notes.base_unix_ns) == ("jax", 1795959805636340260)
    assert notes.versions == {"jaxlib_version": "0.10.2", "cpu_version": "cpu", "jax_version": "0.10.2"}
    first = found["ops"][0]
    assert (first["name"], first["ts_ns"], first["dur_ns"]) == ("ynn_fusion.1", 3_608_459, 42_596)
    # shapes and origin come from the compiled program that the profile carries
    assert (first["input_dims"], first["input_types"]) == ("[[16,64],[64,256]]", '["f32","f32"]')
    assert json.loads(first["attributes"])["op_name"] == "jit(f)/mlp/dot_general"


def test_tensorflow_on_cpu(shared: Path) -> None:
    found, notes = rows_of((shared / "systems/samples/tensorflow/host.xplane.pb").read_bytes())
    assert {kind: len(rows) for kind, rows in found.items()} == {"ops": 29, "annotations": 123}
    assert (notes.framework, notes.n_raw) == ("tensorflow", 152)
    graph = [r for r in found["ops"] if "node" in json.loads(r["attributes"])]
    # two steps of ten operators each, and nine eager ones outside
    assert Counter(r["name"] for r in graph) == Counter(
        {"ReadVariableOp": 4, "_MklMatMul": 4, "Neg": 2, "Mul": 6, "Erfc": 2, "Sum": 2}
    )
    assert sum(r["dur_ns"] for r in graph) == 208_014
    assert len(found["ops"]) - len(graph) == 9
    assert [r["step"] for r in found["annotations"] if r.get("step") is not None] == [0, 1]


def test_jax_on_mi355(shared: Path) -> None:
    found, notes = rows_of((shared / "traces/jax/mi355_te_fused_attn.xplane.pb").read_bytes())
    assert {kind: len(rows) for kind, rows in found.items()} == {
        "kernels": 150,
        "launches": 150,
        "ops": 100,
        "frames": 59,
        "annotations": 1474,
        "counters": 177,
    }
    assert sum(r["dur_ns"] for r in found["kernels"]) == 12_133_585
    assert sum(r["dur_ns"] for r in found["launches"]) == 3_697_277
    assert {r["tid"] for r in found["launches"]} == {r["tid"] for r in found["ops"]}
    assert notes.base_unix_ns == 1779266702889805563
    assert XSpace((shared / "traces/jax/mi355_te_fused_attn.xplane.pb").read_bytes()).hostnames
