"""Fault cases of linking: who launched what, what encloses what, ranks and steps. One test per expected value."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.fault_cases import (
    COUNTS,
    Case,
    Context,
    accept,
    accept_with_warning,
    busy_ns,
    capture,
    equal,
    kernel_ns_by_op,
    op_of,
    params,
    rows,
)
from tests.support.normalized import Normalizer, Run

from magneton.transforms.job import NormalizeOptions
from magneton.transforms.normalize import normalize


def _host_parents(run: Run) -> dict[str, str | None]:
    """Name of the operator around each operator and launch, by name."""
    ops = {o["op_id"]: o["name"] for o in run.rows("ops")}
    found = {o["name"]: ops.get(o["parent_id"]) for o in run.rows("ops")}
    return found | {launch["name"]: ops.get(launch["op_id"]) for launch in run.rows("launches")}


# --- 16 depth ----------------------------------------------------------------------------------------------------------


def _ancestors(context: Context, value: int) -> None:
    run = context.run()
    frames = {f["frame_id"]: f["parent_id"] for f in run.rows("frames")}
    at, count = run.rows("ops")[0]["frame_id"], 0
    while at is not None:
        at, count = frames[at], count + 1
    assert count == value


def _in_seconds(context: Context, value: Any) -> None:
    start = time.monotonic()
    normalize([context.file()], context.tmp_path / "timed", NormalizeOptions(keep_raw=False))
    assert time.monotonic() - start < 5


DEEP = Case(
    "16-very-deep-python-stack",
    COUNTS
    | {
        "verdict": accept,
        # The case counts the outermost slice as 1, our depth is the number of slices around.
        "max_depth_cpu": lambda c, v: equal(max(r["depth"] for r in c.run().rows("launches")) + 1, v),
        "ancestors_of_leaf": _ancestors,
        "forbidden.0": accept,
        "forbidden.1": _in_seconds,
        "forbidden.2": lambda c, v: equal(len(c.run().rows("frames")), 3000),
    },
)

# --- 21, 27: ids that are not unique, arrows ----------------------------------------------------------------------------

DUPLICATES = Case(
    "21-duplicate-external-ids",
    COUNTS
    | {
        "verdict": accept,
        "n_links": lambda c, v: equal(sum(k["op_id"] is not None for k in c.run().rows("kernels")), v),
        "kernel_ns_by_op.*": lambda c, v, k: equal(kernel_ns_by_op(c.run())[k], v),
        "kernel_ns_total": lambda c, v: equal(sum(kernel_ns_by_op(c.run()).values()), v),
        "forbidden.0": lambda c, v: equal(sum(kernel_ns_by_op(c.run()).values()), 34_000),
        "forbidden.1": lambda c, v: equal(op_of(c.run(), "relu_k"), "aten::relu"),
    },
)


def _arrows(run: Run, category: str) -> list[list[str]]:
    names = {
        table: {r[f"{table[:-1]}_id" if table != "launches" else "launch_id"]: r["name"] for r in run.rows(table)}
        for table in ("ops", "launches", "kernels")
    }
    return [
        [names[f["source_kind"]][f["source_id"]], names[f["target_kind"]][f["target_id"]]]
        for f in run.rows("flows")
        if f["category"] == category and f["state"] == "linked"
    ]


def _launch_of(run: Run) -> dict[str, str | None]:
    launches = {launch["launch_id"]: launch["name"] for launch in run.rows("launches")}
    return {k["name"]: launches.get(k["launch_id"]) for k in run.rows("kernels")}


FLOWS = Case(
    "27-flow-events",
    COUNTS
    | {
        "verdict": accept_with_warning,
        "n_slices": lambda c, v: equal(len(rows(c.run())), v),
        "n_flow_raw": lambda c, v: equal(capture(c.run())["n_raw"] - len(rows(c.run())), v),
        "n_flow_links": lambda c, v: equal(Counter(f["state"] for f in c.run().rows("flows"))["linked"], v),
        "flow_links.*": lambda c, v, k: equal(_arrows(c.run(), k), v),
        "dangling.starts": lambda c, v: equal(Counter(f["state"] for f in c.run().rows("flows"))["dangling_start"], v),
        "dangling.ends": lambda c, v: equal(Counter(f["state"] for f in c.run().rows("flows"))["dangling_end"], v),
        "unlinked_kernels": lambda c, v: equal([k for k, launch in _launch_of(c.run()).items() if launch is None], v),
        "forbidden.0": lambda c, v: equal(len(rows(c.run())), 10),
        "forbidden.1": lambda c, v: equal(_launch_of(c.run())["K4a"], "L4a"),
        "forbidden.2": lambda c, v: equal(_arrows(c.run(), "fwdbwd"), [["fwd", "bwd"]]),
    },
)

# --- 23, 24, 29, 72: launches and their activities -------------------------------------------------------------------------


def _by_correlation(run: Run, value: str) -> dict[str, Any]:
    """Device time or number of kernels by correlation of their launch."""
    launches = {launch["launch_id"]: launch for launch in run.rows("launches")}
    out: Counter[str] = Counter()
    for k in run.rows("kernels"):
        launch = launches[k["launch_id"]]
        out[str(launch["correlation"])] += 1 if value == "count" else k["dur_ns"]
        assert launch["name"] == "cudaGraphLaunch"
    return out


def _by_annotation(context: Context, value: int, key: str) -> None:
    run = context.run()
    (around,) = [a for a in run.rows("annotations") if a["name"] == key]
    end = around["ts_ns"] + around["dur_ns"]
    inside = {la["launch_id"] for la in run.rows("launches") if around["ts_ns"] <= la["ts_ns"] <= end}
    assert sum(k["dur_ns"] for k in run.rows("kernels") if k["launch_id"] in inside) == value


def _coverage(run: Run, column: str) -> float:
    device = run.rows("kernels")
    return sum(k["dur_ns"] for k in device if k[column] is not None) / sum(k["dur_ns"] for k in device)


def _nodes_match(context: Context, value: bool) -> None:
    replays: dict[int, list[tuple[int, str]]] = {}
    for k in context.run().rows("kernels"):
        assert k["graph_launch"]
        replays.setdefault(k["launch_id"], []).append((k["graph_node_id"], k["name"]))
    one, two = replays.values()
    assert (one == two) is value


GRAPH = Case(
    "23-cuda-graph-replay",
    COUNTS
    | {
        "verdict": accept_with_warning,
        "n_kernels": lambda c, v: equal(len(c.run().rows("kernels")), v),
        "links_to_launch.*": lambda c, v, k: equal(_by_correlation(c.run(), "count")[k.partition("#")[2]], v),
        "links_to_aten": lambda c, v: equal(sum(k["op_id"] is not None for k in c.run().rows("kernels")), v),
        "kernel_ns_by_launch.*": lambda c, v, k: equal(_by_correlation(c.run(), "time")[k], v),
        "kernel_ns_by_annotation.*": _by_annotation,
        "op_level_coverage": lambda c, v: equal(_coverage(c.run(), "op_id"), v),
        "kernel_level_coverage": lambda c, v: equal(_coverage(c.run(), "launch_id"), v),
        "node_keys_match_across_replays": _nodes_match,
        "forbidden.0": lambda c, v: equal(len(c.run().rows("kernels")), 6),
        "forbidden.1": lambda c, v: equal(c.run().warnings()["graph_replay_no_op"], 6),
        "forbidden.2": lambda c, v: equal(busy_ns(c.run()), 180_000),
    },
)

UNLAUNCHED = Case(
    "24-kernels-without-launch",
    COUNTS
    | {
        "verdict": lambda c, v: equal(c.run().warnings()["kernel_without_launch"], 2),
        "unattributed_ns": lambda c, v: equal(
            sum(k["dur_ns"] for k in c.run().rows("kernels") if k["op_id"] is None), v
        ),
        "forbidden.0": lambda c, v: equal({"early_a", "early_b"} <= set(c.run().by_name("kernels")), True),
    },
)


def _first(context: Context, value: int) -> None:
    assert capture(context.run())["ts_ns"] == value


SKEWED = Case(
    "29-kernel-before-launch-and-ts-zero",
    COUNTS
    | {
        "verdict": accept_with_warning,
        "launch_latency_ns.*": lambda c, v, k: equal(c.run().by_name("kernels")[k]["launch_latency_ns"], v),
        "trace_start_ns": _first,
        "k0": lambda c, v: equal([r["reason"] for r in c.run().rows("quarantine")], ["kernel_ts_zero"]),
        "forbidden.0": lambda c, v: equal(op_of(c.run(), "k"), "op"),
        "forbidden.1": lambda c, v: equal(c.run().by_name("kernels")["k"]["launch_latency_ns"], -300),
        "forbidden.2": lambda c, v: _first(c, 95_000),
    },
)


def _waiting(run: Run) -> list[dict[str, Any]]:
    used = {k["launch_id"] for k in run.rows("kernels")}
    return [la for la in run.rows("launches") if la["expects_device_activity"] and la["launch_id"] not in used]


def _missing(context: Context, value: list[str]) -> None:
    run = context.run()
    ops = {o["op_id"]: o["name"] for o in run.rows("ops")}
    assert [ops[la["op_id"]] for la in _waiting(run)] == value


def _expecting(run: Run) -> int:
    return sum(bool(la["expects_device_activity"]) for la in run.rows("launches"))


LOST = Case(
    "72-launches-without-kernels",
    COUNTS
    | {
        "verdict": accept_with_warning,
        "n_launches": lambda c, v: equal(_expecting(c.run()), v),
        "n_launches_with_kernel": lambda c, v: equal(_expecting(c.run()) - len(_waiting(c.run())), v),
        "missing_launches": _missing,
        "launch_coverage": lambda c, v: equal(1 - len(_waiting(c.run())) / _expecting(c.run()), v),
        # No row is NULL here: nothing was measured, so there is nothing to sum.
        "gpu_ns_by_op.*": lambda c, v, k: equal(kernel_ns_by_op(c.run()).get(k), v),
        "forbidden.1": lambda c, v: equal([la["name"] for la in _waiting(c.run())], ["cudaLaunchKernel"] * 2),
    },
)

# --- 30 nesting ---------------------------------------------------------------------------------------------------------


def _chain(context: Context, value: list[str]) -> None:
    run = context.run()
    parents = _host_parents(run)
    at, chain = op_of(run, "K"), []
    while at is not None:
        chain.append(at)
        at = parents[at]
    assert chain == value


BLEEDING = Case(
    "30-bleeding-child",
    COUNTS
    | {
        "verdict": accept,
        "parents.*": lambda c, v, k: equal(_host_parents(c.run())[k], v),
        "op_chain_of_K": _chain,
        "depth.*": lambda c, v, k: equal(rows(c.run())[k]["depth"], v),
        "kernel_ns_by_op.*": lambda c, v, k: equal(kernel_ns_by_op(c.run())[k], v),
        "forbidden.0": lambda c, v: equal(_host_parents(c.run())["hipLaunchKernel"], "C"),
        "forbidden.1": lambda c, v: equal(_host_parents(c.run())["hipLaunchKernel"], "C"),
        "forbidden.2": lambda c, v: equal(_host_parents(c.run())["Q"], "P"),
    },
)

# --- 33, 34: ranks and steps -----------------------------------------------------------------------------------------------


def _duplicate(context: Context, value: Any) -> None:
    error = context.error("dup")
    assert error.code == "RankError"
    assert "a.json" in str(error)
    assert "b.json" in str(error)


def _missing_ranks(context: Context, value: list[int]) -> None:
    found = context.run("missing").rows("captures")
    assert sorted(set(range(found[0]["world_size"])) - {c["rank"] for c in found}) == value
    (message,) = [w["message"] for w in context.run("missing").rows("warnings") if w["code"] == "missing_ranks"]
    assert all(str(rank) in message for rank in value)


RANKS = Case(
    "33-rank-identity",
    {
        "dup.*": _duplicate,
        "missing.verdict": lambda c, v: equal(c.run("missing").warnings()["missing_ranks"], 1),
        "missing.n_ranks": lambda c, v: equal(len(c.run("missing").rows("captures")), v),
        "missing.missing_ranks": _missing_ranks,
        "missing.run_flag": lambda c, v: equal(
            (c.run("missing").manifest.incomplete, all(r[v] for r in c.run("missing").rows("captures"))), (True, True)
        ),
        "single.verdict": lambda c, v: equal(c.run("single").warnings(), {}),
        "single.rank": lambda c, v: equal(capture(c.run("single"))["rank"], v),
        "out_of_range.*": lambda c, v: equal(c.error("out_of_range").code, "RankError"),
        "forbidden.0": _duplicate,
        "forbidden.1": lambda c, v: equal(capture(c.run("single"))["rank"], 0),
    },
)


def _steps(context: Context, value: Any, key: str) -> None:
    file, _, what = key.rpartition(".")
    run = context.run(file)
    found = {
        "verdict": "accept" if not run.warnings() else "accept_with_warning",
        "n_kernels_used": len(run.rows("kernels")),
        "kernel_busy_ns": busy_ns(run),
        "n_steps": len(run.rows("steps")),
    }
    assert found[what] == value


STEPS = Case(
    "34-one-or-no-step-marker",
    {
        "forbidden.0": lambda c, v: equal([len(c.run(f).rows("kernels")) for f in ("none.json", "one.json")], [1, 1]),
        "*": _steps,
    },
)

CASES = (DEEP, DUPLICATES, GRAPH, UNLAUNCHED, FLOWS, SKEWED, BLEEDING, RANKS, STEPS, LOST)


@pytest.mark.parametrize(("case", "path", "value"), params(*CASES))
def test_value(case: Case, path: str, value: Any, normalized: Normalizer, tmp_path: Path) -> None:
    case.check(Context(case.name, normalized, tmp_path), path, value)
