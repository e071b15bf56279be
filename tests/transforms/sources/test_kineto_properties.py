"""Laws of the normaliser, on generated traces: nesting, two paths that agree, and an order that does not matter."""

from __future__ import annotations

import itertools
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.normalized import Normalizer, Run

from magneton.schemas.tables.run import RUN_TABLES
from magneton.transforms.job import NormalizeOptions
from magneton.transforms.linking import nest
from magneton.transforms.normalize import normalize
from magneton.transforms.sources.kineto import source as kineto
from magneton.transforms.staging import stage as staging

Event = dict[str, Any]
LAWS = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
_CATEGORY = {"annotation": "user_annotation", "frame": "python_function", "op": "cpu_op", "launch": "cuda_runtime"}
_RANK = {"annotation": 0, "frame": 1, "op": 2, "launch": 3}


def run_of(events: list[Event], **top: Any) -> Run:
    """Normalise events and read all tables into memory."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "trace.json"
        path.write_text(json.dumps({"schemaVersion": 1, **top, "traceEvents": events}))
        run = Run(Path(name) / "run", normalize([path], Path(name) / "run", NormalizeOptions(keep_raw=False)))
        for table in RUN_TABLES:
            run.rows(table)
    return run


# --- nesting -----------------------------------------------------------------------------------------------------------


@st.composite
def slices(draw: st.DrawFn) -> list[Event]:
    """Slices of a few threads that touch, coincide, nest and overlap, in any order; instants are few, so ties are many."""
    events = []
    for number in range(draw(st.integers(1, 40))):
        kind = draw(st.sampled_from(["op", "op", "frame", "launch", "annotation"]))
        args = {"frame": {}, "launch": {"correlation": number + 1}}.get(kind, {"External id": number + 1})
        events.append(
            {
                "ph": "X",
                "cat": _CATEGORY[kind],
                "name": f"{kind}{number}",
                "pid": 1,
                "tid": draw(st.integers(1, 2)),
                "ts": draw(st.integers(0, 12)),
                "dur": draw(st.integers(0, 8)),
                "args": args,
            }
        )
    return events


class Naive:
    """The same by looking at every pair."""

    def __init__(self, events: list[Event]) -> None:
        self.events = sorted(events, key=self._order)
        self.kind = {e["name"]: next(k for k in _RANK if e["name"].startswith(k)) for e in events}

    def _order(self, e: Event) -> tuple[Any, ...]:
        kind = next(k for k in _RANK if e["name"].startswith(k))
        native = next(iter(e["args"].values()), -1)
        return (e["ts"], -(e["ts"] + e["dur"]), _RANK[kind], native, e["name"])

    def innermost(self, event: Event, kind: str, until: int) -> Event | None:
        before = itertools.takewhile(lambda e: e is not event, self.events)
        around = [
            e
            for e in before
            if self.kind[e["name"]] == kind and e["tid"] == event["tid"] and e["ts"] + e["dur"] >= until
        ]
        return around[-1] if around else None

    def parent(self, event: Event, kind: str) -> Event | None:
        found = self.innermost(event, kind, event["ts"] + event["dur"])
        if found is None and self.kind[event["name"]] == "launch":
            found = self.innermost(event, kind, event["ts"])
        return found

    def depth(self, event: Event, kind: str) -> int:
        parent = self.parent(event, kind)
        if parent is None:
            return 0
        return 1 + self.depth(parent, kind)


@pytest.mark.parametrize("batch", [5, 122_880])
@given(events=slices())
@LAWS
def test_nesting_equals_a_look_at_every_pair(batch: int, events: list[Event]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "BATCH_ROWS", batch)
        patch.setattr(nest, "_STEPS", batch // 5000)  # jump at once, or climb
        run = run_of(events)
    naive = Naive(events)
    names = {
        "ops": {r["op_id"]: r["name"] for r in run.rows("ops")},
        "frames": {r["frame_id"]: r["name"] for r in run.rows("frames")},
        "annotations": {r["annotation_id"]: r["name"] for r in run.rows("annotations")},
    }
    by_name = {e["name"]: e for e in events}

    def name_of(event: Event | None) -> str | None:
        return None if event is None else event["name"]

    for row in run.rows("ops"):
        event = by_name[row["name"]]
        assert names["ops"].get(row["parent_id"]) == name_of(naive.parent(event, "op"))
        assert names["frames"].get(row["frame_id"]) == name_of(naive.parent(event, "frame"))
        assert row["depth"] == sum(naive.depth(event, k) for k in ("op", "frame", "annotation"))
    for row in run.rows("launches"):
        event = by_name[row["name"]]
        assert names["ops"].get(row["op_id"]) == name_of(naive.parent(event, "op"))
        assert names["frames"].get(row["frame_id"]) == name_of(naive.parent(event, "frame"))
        assert row["depth"] == sum(naive.depth(event, k) for k in ("op", "frame", "annotation"))
    for row in run.rows("frames"):
        assert names["frames"].get(row["parent_id"]) == name_of(naive.parent(by_name[row["name"]], "frame"))
    for row in run.rows("annotations"):
        found = names["annotations"].get(row["parent_id"])
        assert found == name_of(naive.parent(by_name[row["name"]], "annotation"))
    for table in ("ops", "frames", "launches", "annotations"):
        starts = [r["ts_ns"] for r in run.rows(table)]
        assert starts == sorted(starts), "ids follow time"


# --- whole traces ------------------------------------------------------------------------------------------------------


@st.composite
def traces(draw: st.DrawFn) -> list[Event]:
    """Traces with everything in them: frames, modules, operators, backward, launches, kernels, flows, counters, steps."""
    events: list[Event] = []
    time = itertools.count(1, draw(st.sampled_from([0, 0, 1, 3])))
    python, external, correlation = itertools.count(1), itertools.count(1), itertools.count(100)

    def us() -> float:
        return next(time) + draw(st.sampled_from([0, 0.5, 0.125]))

    def add(ph: str, cat: str, name: str, ts: float, dur: float | None = None, **more: Any) -> None:
        event = {"ph": ph, "cat": cat, "name": name, "pid": 7, "tid": 7, "ts": ts, **more}
        events.append(event if dur is None else event | {"dur": dur})

    for step in range(draw(st.integers(1, 3))):
        begin = us()
        for layer in range(draw(st.integers(1, 3))):
            call, t0 = next(python), us()
            seq = 10 * step + layer
            for op in draw(st.lists(st.sampled_from(["aten::mm", "aten::add", "aten::copy_"]), min_size=1, max_size=3)):
                ext, t1 = next(external), us()
                dims = draw(st.sampled_from([[[2, 3]], [[]], [[4], [4]]]))
                corr, t2 = next(correlation), us()
                add("X", "cuda_runtime", "cudaLaunchKernel", t2, 0.25, args={"correlation": corr, "External id": ext})
                if draw(st.booleans()):
                    device = {"device": 0, "stream": 3, "correlation": corr, "External id": ext, "grid": [1, 2, 3]}
                    ts = t2 + draw(st.integers(0, 9))
                    add("X", "kernel", f"k_{op}", ts, draw(st.integers(0, 4)), args=device, pid=0, tid=3)
                    if draw(st.booleans()):
                        add("s", "ac2g", "ac2g", t2, id=corr)
                        add("f", "ac2g", "ac2g", ts, id=corr, pid=0, tid=3, bp="e")
                args = {"External id": ext, "Sequence number": seq, "Fwd thread id": 0, "Input Dims": dims}
                add("X", "cpu_op", op, t1, max(us() - t1, 0), args=args)
            args = {"Python id": call, "Python parent id": None}
            add("X", "python_function", f"nn.Module: Linear_{layer}", t0, max(us() - t0, 0), args=args)
            back = {"External id": next(external), "Sequence number": seq, "Fwd thread id": 1}
            add("X", "cpu_op", "MmBackward0", us() + 1000, 1, args=back, tid=8)
        add(
            "X",
            "user_annotation",
            f"ProfilerStep#{step}",
            begin,
            max(us() - begin, 0),
            args={"External id": next(external)},
        )
        add("C", "", "GPU 0 Utilization", us(), args={"value": step, "other": 1.5})
        add("i", "cpu_instant_event", "[memory]", us(), args={"Total Allocated": 5, "Device Type": 1, "Device Id": 0})
    if draw(st.booleans()):
        add("s", "fwdbwd", "fwdbwd", 2, id=1)
        add("f", "fwdbwd", "fwdbwd", 1005, id=1, tid=8)
    if draw(st.booleans()):
        events.append({"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0, "args": {"name": "python"}})
    return events


def tables(run: Run) -> dict[str, pa.Table]:
    """All tables but for what may differ: the run id, and the names of files."""
    found = {}
    for name in RUN_TABLES:
        table = run.table(name)
        found[name] = table.drop_columns(
            [c for c in ("run_id", "file", "position", "raw") if c in table.column_names and name != "frames"]
        )
    return found


def assert_same(one: Run, two: Run) -> None:
    a, b = tables(one), tables(two)
    for name in a:
        mine, others = a[name].to_pylist(), b[name].to_pylist()
        for row in (*mine, *others):
            row.pop("run_id", None)
        assert mine == others, name


@given(events=traces(), seed=st.integers(0, 1000))
@LAWS
def test_order_of_events_does_not_matter(events: list[Event], seed: int) -> None:
    shuffled = events.copy()
    random.Random(seed).shuffle(shuffled)  # noqa: S311
    assert_same(run_of(events), run_of(shuffled))


def _only_slow(patch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, events: Any, position: int) -> None:
        raise kineto._Dirty

    patch.setattr(kineto._Reader, "_stage_all", refuse)


@given(events=traces())
@LAWS
def test_event_by_event_gives_the_same(events: list[Event]) -> None:
    fast = run_of(events)
    with pytest.MonkeyPatch.context() as patch:
        _only_slow(patch)
        slow = run_of(events)
    assert_same(fast, slow)


@pytest.mark.parametrize(
    "file",
    [
        "systems/samples/torch/mlp_full.json.gz",
        "systems/samples/torch/mlp_train.json.gz",
        "systems/samples/vllm/worker_rank0.pt.trace.json.gz",
        "traces/torch/mi250_minitoy_train.json.gz",
        "traces/torch_infer_h100_mi300/bert_small_h100.json.gz",
        "traces/odd/cuda_event_sync_multi_stream.json.gz",
        "traces/multirank/dlrm_v100_8rank/rank1.json.gz",
        "traces/vllm/decode_full/replay.json.gz",
    ],
)
def test_event_by_event_gives_the_same_on_real_files(
    file: str, shared: Path, normalized: Normalizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = normalized(shared / file)
    _only_slow(monkeypatch)
    slow = normalize([shared / file], tmp_path / "run", NormalizeOptions(keep_raw=False))
    assert_same(fast, Run(tmp_path / "run", slow))


@given(events=traces(), shift=st.integers(-500, 500))
@LAWS
def test_a_shift_of_all_times_changes_times_only(events: list[Event], shift: int) -> None:
    moved = [e | {"ts": e["ts"] + shift + 600} for e in events]
    one, two = tables(run_of(events)), tables(run_of(moved))
    for name in ("ops", "launches", "kernels", "frames", "annotations", "steps", "modules"):
        for a, b in zip(one[name].to_pylist(), two[name].to_pylist(), strict=True):
            assert b.pop("ts_ns") - a.pop("ts_ns") == (shift + 600) * 1000
            a.pop("run_id", None), b.pop("run_id", None)
            assert a == b
