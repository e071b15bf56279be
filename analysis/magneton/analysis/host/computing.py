"""Which operators compute on the host, and which only dispatch others.

Without device activity the time of an operator is its own time: its length without the operators that it calls.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

# Operators that only make a view or allocate, by their schema. On a CPU their time is counted apart, as dispatch.
VIEW_OPS = frozenset(
    "aten::" + name
    for name in [
        "alias",
        "_reshape_alias",
        "as_strided",
        "as_strided_",
        "detach",
        "detach_",
        "diagonal",
        "empty",
        "empty_like",
        "empty_strided",
        "expand",
        "expand_as",
        "flatten",
        "lift",
        "lift_fresh",
        "movedim",
        "mT",
        "narrow",
        "new_empty",
        "new_empty_strided",
        "numpy_T",
        "permute",
        "real",
        "resolve_conj",
        "resolve_neg",
        "reshape",
        "resize_",
        "result_type",
        "select",
        "set_",
        "size",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "squeeze_",
        "stride",
        "t",
        "t_",
        "tensor_split",
        "chunk",
        "transpose",
        "transpose_",
        "unbind",
        "unfold",
        "unsqueeze",
        "unsqueeze_",
        "unflatten",
        "_unsafe_view",
        "view",
        "view_as",
        "view_as_real",
        "view_as_complex",
    ]
)

# Dispatching a call takes a few microseconds. An operator that takes this long by itself, in the mean of its calls, does work of
# its own, whatever else it calls.
MIN_OWN_NS = 20_000.0


def computing_names(ops: Mapping[int, Mapping[str, Any]], own: Mapping[int, float]) -> frozenset[str]:
    """Return the names of the operators whose own time is work, and not only the dispatch of others.

    An operator computes if most of its time, over the whole capture, is its own, or if its own time is long. Examples:
    ``aten::addmm`` copies its bias through another operator and computes. ``aten::linear`` takes a few microseconds and calls
    others. A compiled region computes for 800 us by itself, although it also calls a matrix product of 700 us. Views never
    compute.

    Args:
        ops: rows of the table ``ops`` with ``name``, ``parent_id`` and ``dur_ns``, by ``op_id``.
        own: own time of each operator whose length is known, ns.
    """
    total: defaultdict[str, float] = defaultdict(float)
    inner: defaultdict[str, float] = defaultdict(float)
    calls: Counter[str] = Counter()
    for op_id, row in ops.items():
        total[row["name"]] += own.get(op_id, 0.0)
        calls[row["name"]] += 1
        parent = ops.get(row["parent_id"])
        if parent is not None and row["name"] not in VIEW_OPS:
            inner[parent["name"]] += float(row["dur_ns"] or 0)
    return frozenset(
        name
        for name, time in total.items()
        if name not in VIEW_OPS and (time >= inner[name] or time >= MIN_OWN_NS * calls[name])
    )
