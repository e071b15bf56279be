"""Work on the host: the own time of operators, and which operators compute.

Without device activity the time of an operator is its own time: its length without the operators that it calls.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from magneton.analysis.align.tree import VIEW_OPS

# Dispatching a call takes a few microseconds. An operator that takes this long by itself, in the mean of its calls, does work of
# its own, whatever else it calls.
MIN_OWN_NS = 20_000.0


def own_times(ops: Mapping[int, Mapping[str, Any]]) -> dict[int, float]:
    """Return the own time of each operator, ns.

    Args:
        ops: rows of the table ``ops`` with ``parent_id`` and ``dur_ns``, by ``op_id``.
    """
    own = {op_id: float(row["dur_ns"] or 0) for op_id, row in ops.items()}
    for row in ops.values():
        parent = row["parent_id"]
        if parent in own:
            own[parent] -= float(row["dur_ns"] or 0)
    return {op_id: max(time, 0.0) for op_id, time in own.items()}


def computing_names(ops: Mapping[int, Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of the operators whose own time is work, and not only the dispatch of others.

    An operator computes if most of its time, over the whole capture, is its own, or if its own time is long. Examples:
    ``aten::addmm`` copies its bias through another operator and computes. ``aten::linear`` takes a few microseconds and calls
    others. A compiled region computes for 800 us by itself, although it also calls a matrix product of 700 us. Views never
    compute.
    """
    own = own_times(ops)
    total: defaultdict[str, float] = defaultdict(float)
    inner: defaultdict[str, float] = defaultdict(float)
    calls: Counter[str] = Counter()
    for op_id, row in ops.items():
        total[row["name"]] += own[op_id]
        calls[row["name"]] += 1
        parent = ops.get(row["parent_id"])
        if parent is not None and row["name"] not in VIEW_OPS:
            inner[parent["name"]] += float(row["dur_ns"] or 0)
    return frozenset(
        name
        for name, time in total.items()
        if name not in VIEW_OPS and (time >= inner[name] or time >= MIN_OWN_NS * calls[name])
    )
