"""Which definition of a value on one side corresponds to which on the other, when a value is defined several times."""

from __future__ import annotations

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

    Equally many definitions pair in order. Otherwise they are aligned monotonically by the classes around them, what reads a
    definition weighing 4 to 1 over what it reads; ties pair the last with the last.
    """
    class_a = {group: number for number, c in enumerate(classes) for group in c.a}
    class_b = {group: number for number, c in enumerate(classes) for group in c.b}
    pairs = []
    for number, found in enumerate(classes):
        if len(found.a) == len(found.b) or len(found.a) * len(found.b) > _MAX_CELLS:
            aligned = list(zip(found.a, found.b, strict=False))
        elif not use_context:
            aligned = [(found.a[0], found.b[0])]
        else:
            aligned = _align(
                found, [_context(a, class_a, g) for g in found.a], [_context(b, class_b, g) for g in found.b]
            )
        pairs += [(x, y, number) for x, y in aligned]
    return pairs


def _align(found: ValueClass, around_a: list[Context], around_b: list[Context]) -> list[tuple[int, int]]:
    n, m = len(found.a), len(found.b)
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
            pairs.append((found.a[i], found.b[j]))
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


def feeds_own_class(graph: ValueGraph, class_of: dict[int, int], group: int) -> bool:
    """Tell whether a definition is read to define another group of its class: it lies in a chain of identities."""
    for value in graph.members[group]:
        for consumer in graph.consumers[value]:
            for target in graph.operators[consumer].writes:
                other = graph.group[target]
                if other != group and class_of.get(other) == class_of[group]:
                    return True
    return False
