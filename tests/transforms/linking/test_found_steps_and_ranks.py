"""Ranks that only file names give, and steps of speculative decoding and of XLA devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.normalized import Normalizer, Run

from magneton.schemas.errors import RankError
from magneton.transforms.naming.rank_names import ranks_of_names

FOUND = Path(__file__).resolve().parents[2] / "found"


@pytest.mark.parametrize("folder", ["vllm-rank-names", "sglang-rank-names"])
def test_names_give_ranks(normalized: Normalizer, folder: str) -> None:
    run = normalized(*sorted((FOUND / folder).iterdir()))
    assert {row["rank"]: row["device"] for row in run.rows("kernels")} == {0: 0, 1: 1}


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["rank-0.json.gz", "rank-1.json.gz"], [0, 1]),
        (["rank_3.json", "rank_1.json"], [3, 1]),
        (["globalrank9_localrank1.json", "globalrank8_localrank0.json"], [9, 8]),
        (["localrank1_globalrank9.json", "localrank0_globalrank8.json"], [9, 8]),
        (["ds_tp0_pp0.json", "ds_tp1_pp0.json", "ds_tp0_pp1.json", "ds_tp1_pp1.json"], [0, 1, 2, 3]),
        (["1759-TP-3-DP-0-PP-0.json.gz", "1759-TP-1-DP-0-PP-0.json.gz"], [3, 1]),
        (["tp0.json", "tp1.json"], [0, 1]),
        (["profile_0.json", "profile_1.json", "profile_2.json"], [0, 1, 2]),
        (["r1-1718000000.json", "r0-1718000003.json"], [1, 0]),
        (["host_4711.1718.pt.trace.json", "host_4712.1718.pt.trace.json"], [None, None]),
        (["bert-tp2.json", "bert-tp2-b.json"], [None, None]),
        (["a_rank5.json"], [5]),
    ],
)
def test_ways_of_writing_a_rank(names: list[str], ranks: list[int | None]) -> None:
    assert ranks_of_names(names) == ranks


def test_files_that_say_nothing_are_refused_with_the_way_to_say_it(tmp_path: Path, normalized: Normalizer) -> None:
    events = [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]
    paths = [tmp_path / "host_17.json", tmp_path / "host_99.json"]
    for path in paths:
        path.write_text(json.dumps({"traceEvents": events, "made": path.name}))
    with pytest.raises(RankError, match=r"_rank0\.json"):
        normalized(*paths)


def test_steps_of_speculative_decoding(normalized: Normalizer) -> None:
    steps = normalized(FOUND / "sglang-target-verify" / "trace.json").rows("steps")
    assert [row["phase"] for row in steps] == ["prefill", "decode", "decode", "decode"]
    assert {(row["generation_requests"], row["generation_tokens"]) for row in steps[1:]} == {(4, None)}


def times_by_step(run: Run) -> dict[str, int]:
    names = {row["step_id"]: row["name"] for row in run.rows("steps")}
    out: dict[str, int] = {}
    for row in run.rows("kernels"):
        name = names.get(row["step_id"], "none")
        out[name] = out.get(name, 0) + row["dur_ns"]
    return out


def test_steps_that_only_the_device_knows(normalized: Normalizer) -> None:
    run = normalized(FOUND / "jax-steps-only-names" / "t.trace.json")
    assert [(row["name"], row["index"], row["dur_ns"]) for row in run.rows("steps")] == [
        ("5", 5, 100_000),
        ("6", 6, 100_000),
    ]
    assert times_by_step(run) == {"5": 40_000, "6": 60_000}


def test_steps_of_several_devices_are_one(normalized: Normalizer, tmp_path: Path) -> None:
    text = json.loads((FOUND / "jax-steps-only-names" / "t.trace.json").read_text())
    events = [e for e in text["traceEvents"] if e]
    second = [json.loads(json.dumps(e).replace("GPU:0", "GPU:1").replace('"pid": 1', '"pid": 2')) for e in events]
    for event in second:
        event["ts"] += 3
    (tmp_path / "t.trace.json").write_text(json.dumps({**text, "traceEvents": [*events, *second, {}]}))
    run = normalized(tmp_path / "t.trace.json")
    assert [(row["name"], row["dur_ns"]) for row in run.rows("steps")] == [("5", 103_000), ("6", 103_000)]
    assert times_by_step(run) == {"5": 80_000, "6": 120_000}


def test_steps_of_the_host_come_first(normalized: Normalizer, tmp_path: Path) -> None:
    text = json.loads((FOUND / "jax-steps-only-names" / "t.trace.json").read_text())
    host = [
        {"ph": "M", "name": "process_name", "pid": 9, "tid": 0, "ts": 0, "args": {"name": "/host:CPU"}},
        {"ph": "X", "pid": 9, "tid": 1, "name": "train", "ts": 0, "dur": 90, "args": {"step_num": "1"}},
    ]
    (tmp_path / "t.trace.json").write_text(json.dumps({**text, "traceEvents": [*host, *text["traceEvents"]]}))
    assert [row["name"] for row in normalized(tmp_path / "t.trace.json").rows("steps")] == ["train"]


def test_a_loop_of_a_tpu_does_not_count_beside_its_body(normalized: Normalizer, tmp_path: Path) -> None:
    names = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "/device:TPU:0"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 3, "ts": 0, "args": {"name": "XLA Ops"}},
    ]
    ops = [
        ("while.1", 0, 100),
        ("call.2", 0, 45),
        ("f.3", 0, 20),
        ("f.4", 20, 25),
        ("f.3", 50, 45),
        ("copy.5", 100, 10),
    ]
    events = [
        {"ph": "X", "pid": 1, "tid": 3, "name": name, "ts": ts, "dur": dur, "args": {"hlo_op": name}}
        for name, ts, dur in ops
    ]
    (tmp_path / "t.trace.json").write_text(json.dumps({"traceEvents": [*names, *events, {}]}))
    run = normalized(tmp_path / "t.trace.json")
    assert sum(row["dur_ns"] for row in run.rows("kernels")) == 100_000
    assert {row["name"] for row in run.rows("annotations")} == {"while.1", "call.2"}
    assert "activity_overrun" not in run.warnings()
