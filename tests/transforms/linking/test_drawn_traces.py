"""Chrome traces of several processes, threads and streams, drawn at random: the tables equal what a short oracle reads in the events.

Processes use the same correlation ids, and one process uses an id again once its kernel is over. Activities of different streams overlap.
A record that lost its end reaches beyond its successor.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.made_traces import document, run_of

Event = dict[str, Any]
Facts = set[tuple[int, str, str | None, int | None, int | None]]
LOST_END = 4_294_967.295
CALM = [HealthCheck.too_slow, HealthCheck.data_too_large]


def oracle(events: list[Event]) -> tuple[Facts, Facts]:
    """Return operators with the operator around them, and kernels with operator, stream and length; both with their rank."""
    ops, launches, kernels = (
        sorted((e for e in events if e["cat"] == c), key=lambda e: (e["ts"], -e["dur"]))
        for c in ("cpu_op", "cuda_runtime", "kernel")
    )

    def inside(e: Event) -> str | None:
        around = [
            o for o in ops if (o["pid"], o["tid"]) == (e["pid"], e["tid"]) and o["ts"] < e["ts"] < o["ts"] + o["dur"]
        ]
        return around[-1]["name"] if around else None

    def rank(e: Event) -> int:
        return int(e["pid"][3])

    facts: Facts = set()
    for k in kernels:
        calls = [e for e in launches if rank(e) == rank(k) and e["args"] == {"correlation": k["args"]["correlation"]}]
        launch = [e for e in calls if e["ts"] <= k["ts"]][-1]
        after = [e["ts"] for e in kernels if (e["pid"], e["tid"]) == (k["pid"], k["tid"]) and e["ts"] > k["ts"]]
        facts.add(
            (rank(k), k["name"], inside(launch), k["tid"], round(1000 * min([k["dur"], *(t - k["ts"] for t in after)])))
        )
    return {(rank(o), o["name"], inside(o), None, round(1000 * o["dur"])) for o in ops}, facts


@st.composite
def traces(draw: st.DrawFn) -> list[Event]:
    """Events in any order."""
    events: list[Event] = []

    def add(cat: str, name: str, pid: str, tid: int, ts: int, dur: float, **args: Any) -> Event:
        events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args})
        return events[-1]

    for rank in range(draw(st.integers(1, 3))):
        # A process without device work would be no rank: the first operator launches something.
        host, device = f"[TP{rank}] 83", f"[TP{rank}] 0"
        launches = []
        for thread in range(draw(st.integers(1, 2))):
            at = draw(st.integers(0, 90))
            for number in range(draw(st.integers(1, 5))):
                depth, calls = draw(st.integers(1, 3)), draw(st.integers(int(not launches), 3))
                length = 2 * depth + 10 * calls + 2
                for level in range(depth):
                    add("cpu_op", f"op{thread}.{number}.{level}", host, 90 + thread, at + level, length - 2 * level)
                launches += [(at + depth + 1 + 10 * call, 90 + thread) for call in range(calls)]
                at += length + draw(st.integers(0, 90))
        # Kernels in the order of their launches: streams are serial, ids are free again once their kernel is over.
        free_at: dict[int, int] = {}
        ids: dict[int, int] = {}
        rows: dict[int, list[Event]] = {}
        for number, (ts, tid) in enumerate(sorted(launches)):
            again = [i for i, end in ids.items() if end < ts]
            name = draw(st.sampled_from(again)) if again and draw(st.booleans()) else len(ids) + 1
            add("cuda_runtime", "cudaLaunchKernel", host, tid, ts, 4, correlation=name)
            stream, us = draw(st.integers(7, 9)), draw(st.integers(1, 60))
            start = max(ts + draw(st.integers(1, 40)), free_at.get(stream, 0))
            made = add("kernel", f"k{number}", device, stream, start, us, correlation=name, device=rank, stream=stream)
            rows.setdefault(stream, []).append(made)
            free_at[stream] = ids[name] = start + us
        cut = [row[draw(st.integers(0, len(row) - 2))] for row in rows.values() if len(row) > 1]
        if cut and draw(st.booleans()):
            cut[0]["dur"] = LOST_END
    return draw(st.permutations(events))


def check(events: list[Event]) -> None:
    """Compare the tables with the oracle."""
    run = run_of(document(events))
    ops = {row["op_id"]: row for row in run.rows("ops")}
    found = {
        (
            r["rank"],
            r["name"],
            ops[r["parent_id"]]["name"] if r["parent_id"] is not None else None,
            None,
            r["dur_ns"],
        )
        for r in ops.values()
    }
    kernels = {
        (r["rank"], r["name"], ops[r["op_id"]]["name"] if r["op_id"] is not None else None, r["stream"], r["dur_ns"])
        for r in run.rows("kernels")
    }
    assert (found, kernels) == oracle(events)


@settings(max_examples=25, deadline=None, suppress_health_check=CALM)
@given(events=traces())
def test_tables_equal_the_oracle(events: list[Event]) -> None:
    check(events)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=CALM)
@given(events=traces())
def test_tables_of_many_traces_equal_the_oracle(events: list[Event]) -> None:
    check(events)


def test_a_lost_end_is_cut_where_its_correlation_id_is_used_again() -> None:
    """Four launches, three of them with id 1; the first kernel lost its end and is over when the second begins."""
    events: list[Event] = []
    for number, (name, length) in enumerate(((1, LOST_END), (1, 5), (1, 5), (2, 5))):
        at = 100 * number
        events += [
            {"ph": "X", "cat": "cpu_op", "name": f"op{number}", "pid": 1, "tid": 1, "ts": at, "dur": 20, "args": {}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at + 5, "dur": 4}
            | {"args": {"correlation": name}},
            {"ph": "X", "cat": "kernel", "name": f"k{number}", "pid": 0, "tid": 7, "ts": at + 30, "dur": length}
            | {"args": {"correlation": name, "device": 0, "stream": 7}},
        ]
    run = run_of(document(events))
    assert {row["name"]: row["dur_ns"] for row in run.rows("kernels")} == {
        "k0": 100_000,
        "k1": 5_000,
        "k2": 5_000,
        "k3": 5_000,
    }
    assert run.warnings()["activity_overrun"] == 1
