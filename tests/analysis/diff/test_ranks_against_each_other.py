"""Ranks of one job against each other: every row's time is that of an independent parse, with what ran inside the row's operators."""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from tests.support.normalized import Normalizer

from magneton.analysis.diff.pipeline import diff
from magneton.analysis.diff.settings import DiffSettings
from magneton.analysis.recording import Recording

LAUNCH = {"cuda_runtime", "cuda_driver"}
RANKS = range(8)


def oracle(path: Path) -> Counter[tuple[str, float] | None]:
    """Return kernel time, ns, by name and start of the innermost operator that runs when the kernel is launched.

    None stands for kernels whose launch is not in the file, or runs in no operator.
    """
    events = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e.get("ph") == "X"]
    ops = defaultdict(list)
    for e in sorted((e for e in events if e.get("cat") == "cpu_op"), key=lambda e: (e["ts"], -e["dur"])):
        ops[e["tid"]].append(e)
    launched = {e["args"]["correlation"]: e for e in events if e.get("cat") in LAUNCH and "correlation" in e["args"]}
    time: Counter[tuple[str, float] | None] = Counter()
    for kernel in (e for e in events if e.get("cat") == "kernel"):
        call = launched.get(kernel["args"]["correlation"], {"tid": None, "ts": 0})
        before = ops[call["tid"]][: bisect_right(ops[call["tid"]], call["ts"], key=lambda e: e["ts"])]
        inner = next((e for e in reversed(before) if call["ts"] < e["ts"] + e["dur"]), None)
        time[inner and (inner["name"], inner["ts"])] += round(1000 * kernel["dur"])
    return time


@pytest.mark.parametrize("rank", RANKS)
def test_time_of_every_row_is_that_of_an_independent_parse(shared: Path, normalized: Normalizer, rank: int) -> None:
    folder = shared / "traces" / "multirank" / "dlrm_v100_8rank"
    files = [folder / f"rank{r}.json.gz" for r in (rank, (rank + 1) % len(RANKS))]
    recordings = [Recording.open(normalized(path).path) for path in files]
    result = diff(*recordings, DiffSettings(energy=False), "test")
    shown = {r.region_id: (r.time_ns_a, r.time_ns_b) for r in result.document.regions}
    for side, recording, path in zip((0, 1), recordings, files, strict=True):
        ops = {row["op_id"]: row for row in recording.table("ops").to_pylist()}
        by_place = oracle(path)
        nowhere = by_place.pop(None, 0)
        # Both clocks count from a zero of their own: the first operator with a kernel is the same.
        zero = min(start for _, start in by_place)
        owners = {row["op_id"] for row in recording.table("kernels").to_pylist() if row["category"] == "kernel"}
        first = min(ops[owner]["ts_ns"] for owner in owners if owner is not None)
        times = {(name, first + round(1000 * (start - zero))): ns for (name, start), ns in by_place.items()}
        rows: Counter[int] = Counter()
        for match in result.tables["matches"][1].to_pylist():
            if match["side"] == "ab"[side] and match["op_id"] is not None:
                op = ops[match["op_id"]]
                rows[match["region_id"]] += times.pop((op["name"], op["ts_ns"]), 0)
        assert not times  # every operator with a kernel stands in a row
        assert {r: t[side] or 0 for r, t in shown.items()} == {r: rows[r] for r in shown}
        total = sum(row["dur_ns"] for row in recording.table("kernels").to_pylist() if row["category"] == "kernel")
        assert sum(rows.values()) + nowhere == total
