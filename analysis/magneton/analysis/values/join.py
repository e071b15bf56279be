"""Joining a capture of values to the profile of the same program.

The capture of values has every dispatched operator and no times. The profile has times, and it also has composite operators such as
``aten::linear`` around the dispatched ones. Both saw the same program, so their calls are joined in order: by the heaviest
common subsequence on names and shapes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from magneton.analysis.align.sequence import heaviest_common_subsequence
from magneton.analysis.recording import Recording
from magneton.analysis.values.graph import ValueGraph

# A call whose shapes differ (or were not recorded) still joins by name, at less weight.
_NAME_ONLY = 0.6


@dataclass
class ValueSide:
    """The capture of values of one recording."""

    recording: Recording
    rank: int
    graph: ValueGraph
    rows: list[dict[str, Any]]


def join_calls(values: list[dict[str, Any]], profile: list[dict[str, Any]]) -> dict[int, int]:
    """Return for each joined call of the profile (op id) the same call of the capture of values (op id).

    Args:
        values: rows of ``ops`` of the capture of values (``op_id``, ``name``, ``input_dims``), in order.
        profile: rows of ``ops`` of one step of the profile, in order of start.
    """
    known = {row["name"] for row in values}
    seen = [row for row in profile if row["name"] in known]
    if not values or not seen:
        return {}
    ids_left, left = _symbols(values)
    ids_right, right = _symbols(seen)
    by_name: dict[str, list[int]] = defaultdict(list)
    for index, (name, _) in enumerate(right):
        by_name[name].append(index)
    similarity = np.zeros((len(left), len(right)), dtype=np.float32)
    for index, (name, dims) in enumerate(left):
        for other in by_name.get(name, ()):
            similarity[index, other] = 1.0 if dims is not None and dims == right[other][1] else _NAME_ONLY
    pairs = heaviest_common_subsequence(ids_left, ids_right, similarity)
    return {seen[j]["op_id"]: values[i]["op_id"] for i, j in pairs}


def _symbols(rows: list[dict[str, Any]]) -> tuple[np.ndarray, list[tuple[str, str | None]]]:
    numbers: dict[tuple[str, str | None], int] = {}
    ids = np.empty(len(rows), dtype=np.int64)
    for index, row in enumerate(rows):
        dims = row["input_dims"]
        key = (row["name"], None if dims is None else dims.replace(" ", ""))
        ids[index] = numbers.setdefault(key, len(numbers))
    return ids, list(numbers)
