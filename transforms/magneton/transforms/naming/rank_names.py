"""Ranks that the names of trace files give, for files that name no rank inside.

Examples: ``dp0_pp0_tp1_dcp0_ep0_rank1.178.pt.trace.json.gz`` (vLLM), ``175-TP-1-DP-0-PP-0-EP-0.trace.json.gz`` (SGLang),
``rank-1.json.gz`` (Megatron), ``globalrank9_localrank1.json`` (DeepSpeed and others), ``trace_1.json`` beside ``trace_0.json``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_RANK = re.compile(r"(?P<local>local[_-]?)?rank[_-]?(?P<rank>\d{1,6})(?!\d)", re.IGNORECASE)
# Axes of a process grid, the slowest first: ranks count the last one fastest.
_AXES = ("pp", "dp", "edp", "pcp", "cp", "dcp", "sp", "ep", "mp", "tp")
_COORDINATE = re.compile(rf"(?<![a-z])(?P<axis>{'|'.join(_AXES)})[_-]?(?P<value>\d{{1,6}})(?![\da-z])", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+)")


def ranks_of_names(names: Sequence[str]) -> list[int | None]:
    """Return the rank that each name gives; None where it gives none.

    Ways, the most explicit first; the first that tells all names apart is used. If none does, what the first one says is returned.

    * a number behind ``rank`` that is not a local rank;
    * the place in the grid of parallelism (``tp1``, ``PP-0``);
    * a number at one place of otherwise like names that counts from 0.

    Args:
        names: names of the files of one job.
    """
    stated = [_stated(name) for name in names]
    if len(names) < 2 or len(set(stated) - {None}) == len(names):
        return stated
    return _by_grid(names) or _by_counting(names) or stated


def _stated(name: str) -> int | None:
    return next((int(found["rank"]) for found in _RANK.finditer(name) if not found["local"]), None)


def _by_grid(names: Sequence[str]) -> list[int | None] | None:
    places = [{f["axis"].lower(): int(f["value"]) for f in _COORDINATE.finditer(name)} for name in names]
    axes = [axis for axis in _AXES if all(axis in place for place in places)]
    keys = [tuple(place[axis] for axis in axes) for place in places]
    if not axes or any(len(place) != len(axes) for place in places) or len(set(keys)) < len(keys):
        return None
    varying = [column for column in zip(*keys, strict=True) if len(set(column)) > 1]
    if len(varying) == 1:
        return list(varying[0])
    order = sorted(keys)
    return [order.index(key) for key in keys]


def _by_counting(names: Sequence[str]) -> list[int | None] | None:
    parts = [_NUMBER.split(name) for name in names]
    if len({tuple(part[::2]) for part in parts}) > 1:
        return None
    columns = [[int(part[i]) for part in parts] for i in range(1, len(parts[0]), 2)]
    counting = [column for column in columns if sorted(column) == list(range(len(names)))]
    return list(counting[0]) if len(counting) == 1 else None
