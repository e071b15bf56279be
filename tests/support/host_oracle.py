"""Where the host's time goes in a step, worked out instant by instant from the tables alone."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from typing import Any

from magneton.analysis.recording import Recording

WAITS = re.compile(
    r"(?i:.*synchronize.*)|<built-in function (sleep|select|waitpid|_cuda_synchronize)>.*"
    r"|<built-in method (acquire of (_thread|_multiprocessing)\.|poll of select\.|(recv|recv_into|accept) of _?socket\."
    r"|get of _queue\.|synchronize of ).*"
)


def host_time(recording: Recording, rank: int, step: dict[str, Any], computing: Collection[str]) -> dict[str, int]:
    """Return the parts of a step's wall time by a plain sweep over everything that begins or ends.

    At every instant the innermost slice of each thread has the time. Times are whole nanoseconds.
    """
    ops = [row | {"op": True} for row in rows(recording, "ops", rank) if row["step_id"] == step["step_id"]]
    numbers = {row["op_id"] for row in ops}
    marks = [
        m for m in rows(recording, "annotations", rank) if m["step_id"] == step["step_id"] and span(m) == span(step)
    ]
    own_thread = (marks[0]["pid"], marks[0]["tid"])
    waits = [
        row | {"op": False, "depth": 1 << 30}
        for table, pattern in (("launches", r"(?i).*synchronize.*"), ("frames", r"<built-in.*"))
        for row in rows(recording, table, rank)
        if re.fullmatch(pattern, row["name"] or "") and WAITS.fullmatch(row["name"] or "")
    ]
    everything = rows(recording, "ops", rank)
    others = [row | {"op": None} for row in everything if row["op_id"] not in numbers]
    edges: defaultdict[int, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for row in (*ops, *waits, *others):
        if row["dur_ns"]:
            edges[row["ts_ns"]].append((1, row))
            edges[row["ts_ns"] + row["dur_ns"]].append((-1, row))
    first, last = span(step)
    edges[first], edges[last] = edges[first], edges[last]
    threads: defaultdict[Any, dict[int, dict[str, Any]]] = defaultdict(dict)
    found = dict.fromkeys(("operators", "dispatch", "python", "waiting", "beside", "wall"), 0)
    at = min(edges)
    for time in sorted(edges):
        length, covered, waiting = time - at, 0, False
        for thread, slices in threads.items():
            if not slices:
                continue
            inner = max(slices.values(), key=lambda row: (row["ts_ns"], row["depth"]))
            around = [row for row in slices.values() if row["op"] is not False]
            if inner["op"]:
                covered += 1
                found["operators" if inner["name"] in computing else "dispatch"] += length
            elif inner["op"] is False:
                inside = around and max(around, key=lambda row: (row["ts_ns"], row["depth"]))["op"]
                waiting = waiting or thread == own_thread or bool(inside)
        if first <= at < last:
            found["wall"] += length
            found["beside"] += max(covered - 1, 0) * length
            found["waiting" if waiting else "python"] += 0 if covered else length
        else:
            found["beside"] += covered * length
        for change, row in edges[time]:
            slices = threads[row["pid"], row["tid"]]
            slices[id(row)] = row
            if change < 0:
                del slices[id(row)]
        at = time
    return found


def rows(recording: Recording, table: str, rank: int) -> list[dict[str, Any]]:
    """Rows of a rank that have a time."""
    return [row for row in recording.of_rank(table, rank).to_pylist() if row["ts_ns"] is not None]


def span(row: dict[str, Any]) -> tuple[int, int]:
    """First and last instant of a row."""
    return row["ts_ns"], row["ts_ns"] + (row["dur_ns"] or 0)
