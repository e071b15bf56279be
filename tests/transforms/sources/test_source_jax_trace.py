"""JAX trace JSON, alone and against the xplane.pb of the same run or of the same program.

Right values come from a plain ``json.load`` of the file (sums by process and thread) and from a direct walk over the
bytes of the xplane.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import msgspec

from magneton.transforms.sources import jax_trace
from magneton.transforms.sources.rows import Notes
from magneton.transforms.sources.xla import xplane

Found = dict[str, list[dict[str, Any]]]


def rows_of(trace: dict[str, Any] | bytes) -> tuple[Found, Notes]:
    text = trace if isinstance(trace, bytes) else json.dumps(trace).encode()
    events = msgspec.json.decode(text, type=dict[str, msgspec.Raw])["traceEvents"]
    raws = [bytes(raw) for raw in msgspec.json.decode(events, type=list[msgspec.Raw])]
    notes = Notes()
    found: Found = defaultdict(list)
    for kind, row in jax_trace.decode(lambda: raws, notes):
        found[kind].append(row)
    return found, notes


def named(pid: int, process: str, **threads: str) -> list[dict[str, Any]]:
    found = [{"ph": "M", "pid": pid, "name": "process_name", "args": {"name": process}}]
    for tid, name in threads.items():
        found.append({"ph": "M", "pid": pid, "tid": int(tid[1:]), "name": "thread_name", "args": {"name": name}})
    return found


def slice_(pid: int, tid: int, ts: float, dur: float, name: str, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur, "name": name, **({"args": args} if args else {})}


def test_names_of_threads_may_come_last_and_views_are_no_kernels() -> None:
    events = [
        slice_(701, 1, 1.0, 0.5, "add.1"),
        slice_(701, 9, 1.1, 0.2, "hipLaunchKernel", correlation_id="4", hlo_op="add.1"),
        slice_(1, 1, 2.0, 0.25, "fusion.kd", correlation_id="4", hlo_op="add.1"),
        slice_(1, 2, 2.0, 0.25, "add.1"),
        slice_(701, 1, 3.0, 1e-06, "ThreadpoolListener::Record", _src="x.cc"),
        slice_(701, 1, 0.0, 9.0, "train", step_num="7"),
        slice_(701, 1, 4.0, 1.0, "$api.py:3105 block_until_ready"),
        slice_(701, 1, 4.2, 0.1, "$builtins isinstance"),
        slice_(701, 1, 5.0, 0.5, "MatMul", long_name="scope/mm:MatMul"),
        *named(1, "/device:GPU:0", t1="Stream #13", t2="XLA Ops - from #13"),
        *named(701, "/host:CPU", t1="python", t9="Host Threads/9"),
        {},
    ]
    found, notes = rows_of({"displayTimeUnit": "ns", "traceEvents": events})
    assert [(r["name"], r["dur_ns"], r["stream"], r["correlation"]) for r in found["kernels"]] == [
        ("fusion.kd", 250, 13, 4)
    ]
    assert [(r["name"], r["tid"]) for r in found["launches"]] == [("hipLaunchKernel", "1")]  # the dispatching thread
    assert [r["name"] for r in found["ops"]] == ["add.1", "MatMul"]
    assert [r["name"] for r in found["frames"]] == ["api.py(3105): block_until_ready", "<built-in function isinstance>"]
    annotations = {r["name"]: r for r in found["annotations"]}
    assert annotations["add.1"]["category"] == "XLA Ops"
    assert (annotations["ThreadpoolListener::Record"]["kind"], annotations["ThreadpoolListener::Record"]["dur_ns"]) == (
        "instant",
        0,
    )
    assert annotations["train"]["step"] == 7
    assert (notes.n_raw, notes.n_kept, notes.n_merged, notes.n_ignored) == (16, 9, 6, 1)


def test_time_stamps_are_exact() -> None:
    text = (
        b'{"traceEvents": [{"ph": "X", "pid": 1, "tid": 1, "ts": 1795960176467850.1235, "dur": 0.0005, "name": "a"}]}'
    )
    found, _ = rows_of(text)
    assert (found["annotations"][0]["ts_ns"], found["annotations"][0]["dur_ns"]) == (1795960176467850124, 0)


def test_events_that_are_none_are_set_aside() -> None:
    text = b"""{"traceEvents": [7, null, {}, {"name": "x"}, {"ph": "Q", "ts": 1}, {"ph": "X", "ts": null, "name": "a"},
        {"ph": "X", "ts": "soon", "dur": 1}, {"ph": "X", "ts": 1, "dur": -1}, {"ph": "X", "ts": 1, "dur": 9e30},
        {"ph": "X", "ts": 1, "dur": 2, "pid": [1], "name": {"odd": 1}}]}"""
    found, notes = rows_of(text)
    assert Counter(r["reason"] for r in found["quarantine"]) == Counter(
        {
            "not_an_object": 2,
            "phase_missing": 1,
            "phase_unknown": 1,
            "ts_missing": 1,
            "ts_not_numeric": 1,
            "dur_negative": 1,
        }
    )
    assert (notes.n_raw, notes.n_kept, notes.n_ignored, notes.n_quarantined) == (10, 2, 1, 7)
    assert notes.warnings["dur_missing"][0] == 1  # a length that is no length is unknown


def test_sniffing() -> None:
    path = Path("x")
    assert jax_trace.sniff(b'{"displayTimeUnit": "ns", "traceEvents": [{"args": {"name": "/host:CPU"}}', path)
    assert not jax_trace.sniff(b'{"schemaVersion": 1, "traceEvents": [{"args": {"name": "/host:CPU"}}', path)
    assert not jax_trace.sniff(b'{"traceEvents": [{"args": {"name": "python"}}', path)


# --- recordings ---


def recorded(shared: Path, name: str) -> tuple[Found, Notes]:
    return rows_of(gzip.decompress((shared / name).read_bytes()))


def profiled(shared: Path, name: str) -> Found:
    data = (shared / name).read_bytes()
    found: Found = defaultdict(list)
    for kind, row in xplane.decode(gzip.decompress(data) if name.endswith("gz") else data, Notes()):
        found[kind].append(row)
    return found


def test_jax_on_cpu(shared: Path) -> None:
    found, notes = recorded(shared, "systems/samples/jax/perfetto_trace.json.gz")
    assert {kind: len(rows) for kind, rows in found.items()} == {"ops": 93, "frames": 7, "annotations": 128}
    assert sum(r["dur_ns"] for r in found["ops"]) == 1_854_572
    assert (notes.n_raw, notes.n_kept, notes.n_merged, notes.n_ignored) == (237, 228, 8, 1)
    assert (notes.framework, notes.base_unix_ns, notes.clock) == ("jax", None, "session")


def test_one_run_in_two_formats_gives_the_same_rows(shared: Path) -> None:
    """The JSON was derived from the xplane: all they share is equal, event by event.

    Apart from that the xplane has the 59 allocations, which the JSON leaves out; the JSON has 242 slices on four tracks
    that repeat the stream by module, operation and scope, and knows no programs (so no shapes).
    """
    trace, _ = recorded(shared, "traces/jax/mi355_te_fused_attn.trace.json.gz")
    profile = profiled(shared, "traces/jax/mi355_te_fused_attn.xplane.pb")
    for kind, count, total in (
        ("kernels", 150, 12_133_585),
        ("launches", 150, 3_697_277),
        ("ops", 100, 4_496_672),
        ("frames", 59, 9_726_888_595),
    ):
        assert len(trace[kind]) == len(profile[kind]) == count
        assert sum(r["dur_ns"] for r in trace[kind]) == sum(r["dur_ns"] for r in profile[kind]) == total
    for kind, columns in (
        (
            "kernels",
            ("name", "ts_ns", "dur_ns", "pid", "tid", "device", "stream", "correlation", "grid", "block", "category"),
        ),
        ("launches", ("name", "ts_ns", "dur_ns", "pid", "tid", "correlation", "category")),
        ("ops", ("name", "ts_ns", "dur_ns", "pid", "tid")),
        ("frames", ("name", "ts_ns", "dur_ns", "pid", "tid")),
    ):
        assert keys(trace[kind], columns) == keys(profile[kind], columns)
    views = [r for r in trace["annotations"] if r["category"] is not None]
    assert Counter(r["category"] for r in views) == Counter(
        {"XLA Ops": 100, "Framework Ops": 90, "Framework Name Scope": 51, "XLA Modules": 1}
    )
    rest = [r for r in trace["annotations"] if r["category"] is None]
    columns = ("name", "ts_ns", "dur_ns", "tid", "kind")
    assert keys(rest, columns) == keys(profile["annotations"], columns)
    assert len(rest) == 1474


def keys(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return sorted(tuple(str(row.get(c)) for c in columns) for row in rows)


def test_one_program_recorded_twice_has_equal_work_a_run(shared: Path) -> None:
    """The same process ran the same compiled function twice under the xplane and once under the JSON recording.

    Times differ (other executions); what ran, in which order, and how often per run is the total that must agree.
    """
    trace, _ = recorded(shared, "systems/samples/jax/perfetto_trace_python.json.gz")
    profile = profiled(shared, "systems/samples/jax/host.xplane.pb.gz")
    expected = ["ynn_fusion.1", "multiply_multiply_fusion", "ynn_fusion", "wrapped_reduce-window", "wrapped_reduce"]
    assert [row["name"] for row in trace["ops"]] == expected
    assert [row["name"] for row in profile["ops"]] == expected * 2
