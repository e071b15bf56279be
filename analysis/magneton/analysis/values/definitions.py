"""Which definition of a value on one side corresponds to which on the other, when a value is defined several times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import networkx as nx
import numpy as np

from magneton.analysis.values.classes import ValueClass
from magneton.analysis.values.graph import ValueGraph

# What the rest of the program reads of a definition says more than what the definition reads.
READ_BY = 1.0
READS = 0.25
# Movement looked through when a neighbour is not itself in a class.
_DEPTH = 3
_MAX_CELLS = 250_000

Context = frozenset[tuple[str, int]]


def pair_definitions(
    a: ValueGraph, b: ValueGraph, classes: list[ValueClass], *, use_context: bool
) -> list[tuple[int, int, int]]:
    """Return pairs of groups that correspond, with the class they are of.

    Definitions that the same classes read pair n-th with n-th where both sides have equally many of them: order alone would
    cross two heads that run in another order. Of the rest, equally many pair in order, others are aligned monotonically by
    the classes around them, what reads a definition weighing 4 to 1 over what it reads; ties pair the last with the last.
    """
    class_a = {group: number for number, c in enumerate(classes) for group in c.a}
    class_b = {group: number for number, c in enumerate(classes) for group in c.b}
    pairs = []
    for number, found in enumerate(classes):
        if len(found.a) == len(found.b) == 1 or not use_context:
            aligned = (
                list(zip(found.a, found.b, strict=False))
                if len(found.a) == len(found.b)
                else [(found.a[0], found.b[0])]
            )
        else:
            aligned = _by_context(
                {g: _context(a, class_a, g) for g in found.a}, {g: _context(b, class_b, g) for g in found.b}
            )
        pairs += [(x, y, number) for x, y in aligned]
    return pairs


def _by_context(around_a: dict[int, Context], around_b: dict[int, Context]) -> list[tuple[int, int]]:
    read_by: tuple[dict[Context, list[int]], dict[Context, list[int]]] = (defaultdict(list), defaultdict(list))
    for side, around in enumerate((around_a, around_b)):
        for group, context in around.items():
            readers = frozenset(c for c in context if c[0] == "out")
            if readers:
                read_by[side][readers].append(group)
    aligned = []
    for readers, found in read_by[0].items():
        others = read_by[1].get(readers, [])
        if len(found) == len(others):
            aligned += list(zip(found, others, strict=True))
    known_a, known_b = {x for x, _ in aligned}, {y for _, y in aligned}
    rest_a, rest_b = [g for g in around_a if g not in known_a], [g for g in around_b if g not in known_b]
    if len(rest_a) == len(rest_b) or len(rest_a) * len(rest_b) > _MAX_CELLS:
        return aligned + list(zip(rest_a, rest_b, strict=False))
    return aligned + _align(rest_a, rest_b, [around_a[g] for g in rest_a], [around_b[g] for g in rest_b])


def _align(a: list[int], b: list[int], around_a: list[Context], around_b: list[Context]) -> list[tuple[int, int]]:
    n, m = len(a), len(b)
    weights = np.empty((n, m), dtype=np.float32)
    for i, one in enumerate(around_a):
        for j, other in enumerate(around_b):
            shared = READ_BY * _agreement(one, other, "out") + READS * _agreement(one, other, "in")
            weights[i, j] = shared + 0.01 - 1e-4 * abs((n - i) - (m - j)) / max(n, m)
    # The gap cost of the alignment has no place here: every definition counts alone.
    best = np.zeros((n + 1, m + 1))
    for i in range(n - 1, -1, -1):
        for j in range(m - 1, -1, -1):
            best[i, j] = max(best[i + 1, j], best[i, j + 1], best[i + 1, j + 1] + weights[i, j])
    pairs = []
    i = j = 0
    while i < n and j < m:
        if best[i, j] == best[i + 1, j + 1] + weights[i, j]:
            pairs.append((a[i], b[j]))
            i, j = i + 1, j + 1
        elif best[i, j] == best[i + 1, j]:
            i += 1
        else:
            j += 1
    return pairs


def _agreement(one: Context, other: Context, direction: str) -> float:
    left = {number for tag, number in one if tag == direction}
    right = {number for tag, number in other if tag == direction}
    if not left or not right:
        return 0.0
    return (len(left & right) + 0.01) / (len(left | right) + 0.01)


def _context(graph: ValueGraph, class_of: dict[int, int], group: int) -> Context:
    """Return the classes next to a definition, looking through movement; its own class does not count."""
    own = class_of[group]
    found: set[tuple[str, int]] = set()
    for value in graph.members[group]:
        for producer in graph.producers[value]:
            for source in graph.operators[producer].reads:
                _look(graph, class_of, source, "in", own, found)
        for consumer in graph.consumers[value]:
            for target in graph.operators[consumer].writes:
                _look(graph, class_of, target, "out", own, found)
    return frozenset(found)


def _look(
    graph: ValueGraph, class_of: dict[int, int], value: int, direction: str, own: int, found: set[tuple[str, int]]
) -> None:
    queue = [(value, _DEPTH)]
    while queue:
        at, depth = queue.pop()
        number = class_of.get(graph.group[at])
        if number is not None:
            if number != own:
                found.add((direction, number))
            continue
        if not depth:
            continue
        for operator in graph.producers[at] if direction == "in" else graph.consumers[at]:
            step = graph.operators[operator]
            if step.move:
                queue += [(v, depth - 1) for v in (step.reads if direction == "in" else step.writes)]


def chains(graph: ValueGraph, definitions: list[int]) -> list[list[int]]:
    """Return the definitions of one value by chain: what is read to define another, and the other, belong together."""
    joined: nx.utils.UnionFind = nx.utils.UnionFind(definitions)
    among = set(definitions)
    for group in definitions:
        for other in _fed(graph, group):
            if other in among:
                joined.union(group, other)
    found: dict[int, list[int]] = defaultdict(list)
    for group in definitions:
        found[joined[group]].append(group)
    return list(found.values())


def feeds_own_class(graph: ValueGraph, class_of: dict[int, int], group: int) -> bool:
    """Tell whether a definition is read to define another group of its class: it lies in a chain of identities."""
    return any(class_of.get(other) == class_of[group] for other in _fed(graph, group))


def _fed(graph: ValueGraph, group: int) -> Iterator[int]:
    """Yield the other groups that are defined by operators that read a group."""
    for value in graph.members[group]:
        for consumer in graph.consumers[value]:
            for target in graph.operators[consumer].writes:
                if graph.group[target] != group:
                    yield graph.group[target]
