"""Cut and glue: from matched values to the finest partition of both graphs that is consistent with the matches.

A matched value is a cut. The rules:

* Two operators that share a value that is not a cut belong to one region.
* The operators that compute a matched value on side A and on side B belong to one region.
* A value that is computed from constants alone joins no operators.
* A value that is computed from whole numbers alone is a mask or a position. Every program computes masks in its own way, and
  every layer reads them. So a mask does not join its readers. The operators that make the masks of one region on both sides
  form a region of their own.
* An operator that only moves data (by its schema) is a region of its own if all its inputs and its output are cuts.

The connected components are the regions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from magneton.analysis.values.columns import Ints
from magneton.analysis.values.components import components
from magneton.analysis.values.concatenations import Union
from magneton.analysis.values.graph import Operator, ValueGraph


@dataclass(frozen=True)
class ValueRegion:
    """Operators (numbers in the graphs) of both sides that together compute the same values from the same values."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    movement: bool = False


def cut_and_glue(
    graphs: tuple[ValueGraph, ValueGraph],
    cuts: tuple[set[int], set[int]],
    pairs: list[tuple[int, int, int]],
    unions: list[Union],
) -> list[ValueRegion]:
    """Return the regions, in order of execution on side A, then B.

    Args:
        graphs: both sides.
        cuts: groups of each side that are cuts.
        pairs: corresponding groups of A and B.
        unions: groups of A that together are groups of B.
    """
    n = len(graphs[0].operators)
    offset = (0, n)
    joined = _Joined(n + len(graphs[1].operators))
    movement = [_movement(graph, cut) for graph, cut in zip(graphs, cuts, strict=True)]
    steering: list[tuple[int, int]] = []
    for side, graph in enumerate(graphs):
        selectors, constant, shift = graph.selectors(), graph.values.constant.tolist(), offset[side]
        for value, number in enumerate(graph.group):
            if constant[value] or number in cuts[side] or not graph.producers[value]:
                continue
            readers = graph.consumers[value]
            if selectors[value]:
                steered = [o for o in readers if not all(selectors[v] for v in graph.operators[o].writes)]
                steering += [(graph.producers[value][0] + shift, o + shift) for o in steered]
                readers = [o for o in readers if o not in steered]
            joined.union([o + shift for o in (*graph.producers[value], *readers)])
    _glue_definitions(graphs, pairs, unions, movement, joined)
    _glue_selectors(steering, joined, n)
    members: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for node, label in enumerate(joined.labels().tolist()):
        members[label][node >= n].append(node - n if node >= n else node)
    regions = []
    for a, b in members.values():
        only_moves = all(o in movement[0] for o in a) and all(o in movement[1] for o in b)
        regions.append(ValueRegion(tuple(a), tuple(b), only_moves))
    return sorted(regions, key=lambda r: (r.a[0] if r.a else r.b[0], 0 if r.a else 1))


class _Joined:
    """Operators that belong together. Those of side B are numbered after those of side A."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._left: list[int] = []
        self._right: list[int] = []

    def union(self, nodes: Sequence[int]) -> None:
        """Join nodes."""
        self._left += nodes[:-1]
        self._right += nodes[1:]

    def labels(self) -> Ints:
        """Return for each node the lowest node it is joined with."""
        return components(self._n, np.array(self._left, np.int64), np.array(self._right, np.int64))


def _movement(graph: ValueGraph, cut: set[int]) -> dict[int, int]:
    """Return the operators that only move data from cuts to a cut, with the group they write."""
    found = {}
    for number, operator in enumerate(graph.operators):
        if not operator.move or operator.constant or not operator.writes:
            continue
        sources = [graph.group[v] for v in operator.reads if not graph.values.constant[v]]
        targets = [graph.group[v] for v in operator.writes]
        if sources and all(g in cut for g in sources) and all(g in cut for g in targets):
            found[number] = targets[0]
    return found


def _glue_definitions(
    graphs: tuple[ValueGraph, ValueGraph],
    pairs: list[tuple[int, int, int]],
    unions: list[Union],
    movement: list[dict[int, int]],
    joined: _Joined,
) -> None:
    offset = (0, len(graphs[0].operators))
    partner: list[dict[int, int]] = [{}, {}]
    for index, (a, b, _) in enumerate(pairs):
        partner[0][a] = partner[1][b] = index
        ours, theirs = _definers(graphs[0], a, movement[0]), _definers(graphs[1], b, movement[1])
        if ours and theirs:
            joined.union([*ours, *(o + offset[1] for o in theirs)])
    for union in unions:
        ours = [o for g in union.a for o in _definers(graphs[0], g, movement[0])]
        theirs = [o for g in union.b for o in _definers(graphs[1], g, movement[1])]
        if ours and theirs:
            joined.union([*ours, *(o + offset[1] for o in theirs)])
    # Movements that write the same value on both sides correspond.
    same: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for side in (0, 1):
        for number, group in movement[side].items():
            matched = partner[side].get(group)
            same[("pair", matched) if matched is not None else ("alone", side, group)].append(number + offset[side])
    for found in same.values():
        joined.union(found)


def _glue_selectors(steering: list[tuple[int, int]], joined: _Joined, n: int) -> None:
    """Join the operators that make the masks of one region, on both sides."""
    if not steering:
        return
    labels = joined.labels()
    makers: dict[int, list[int]] = defaultdict(list)
    for maker, reader in steering:
        makers[int(labels[reader])].append(maker)
    for found in makers.values():
        if min(found) < n <= max(found):
            joined.union(found)


def _definers(graph: ValueGraph, group: int, movement: dict[int, int]) -> list[int]:
    """Return the operators that compute the elements of a group, without those that only move them within the group."""
    found = []
    for value in graph.members[group]:
        for number in graph.producers[value]:
            operator = graph.operators[number]
            if number not in movement and not _within(graph, operator, group):
                found.append(number)
    return found


def _within(graph: ValueGraph, operator: Operator, group: int) -> bool:
    return operator.move and any(graph.group[v] == group for v in operator.reads)
