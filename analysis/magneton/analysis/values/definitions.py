"""Which definition of a value on one side corresponds to which on the other, when a value is defined several times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from magneton.analysis.values.classes import ValueClass
from magneton.analysis.values.components import components
from magneton.analysis.values.graph import ValueGraph

# Weights of the context of a definition. Values computed from it say more than values that it is computed from.
READ_BY = 1.0
READS = 0.25
# A neighbour that is in no class and was only moved: look at most this many movements further.
_DEPTH = 3
_MAX_CELLS = 250_000

Context = frozenset[tuple[str, int]]
_Links = dict[bool, list[int]]  # the links of a chain that were moved (True) or computed


def pair_definitions(
    a: ValueGraph, b: ValueGraph, classes: list[ValueClass], *, use_context: bool
) -> list[tuple[int, int, int]]:
    """Return pairs of groups that correspond, with the class they are of.

    A program may compute one value several times. Each time is a definition, and a group is one definition. This function
    assigns the definitions of A to those of B. The rules:

    * Definitions in a row form a chain. Example: a tensor times 1 is the same value again, computed from the first. Chains
      are assigned to chains. Within two chains the last definitions correspond, and the others correspond from the first on.
    * Computed definitions are assigned to computed ones, and moved ones to moved ones, where both sides have computed ones.
      Example of a moved definition: a slice of a padded tensor.
    * Equally many chains on both sides: first, chains that are read by the same classes are paired. The order alone would
      cross two attention heads that run in another order on side B. The remaining chains are paired in order.
    * Unequally many chains: they are aligned in order, so that pairs do not cross. A pair scores by its context: classes
      computed from the chain have the weight ``READ_BY``, classes that the chain is computed from have ``READS``. Equal
      scores pair the first of A with the first of B, because a value that is computed again is the later one.
    """
    class_a = {group: number for number, c in enumerate(classes) for group in c.a}
    class_b = {group: number for number, c in enumerate(classes) for group in c.b}
    pairs = []
    for number, found in enumerate(classes):
        if len(found.a) == len(found.b) == 1:
            pairs.append((found.a[0], found.b[0], number))
        elif not use_context:
            same = len(found.a) == len(found.b)
            pairs += [(x, y, number) for x, y in zip(found.a, found.b, strict=False)][: None if same else 1]
        else:
            several = chains(a, list(found.a)), chains(b, list(found.b))
            around = (
                [_context(a, class_a, chain) for chain in several[0]],
                [_context(b, class_b, chain) for chain in several[1]],
            )
            links = [_links(a, chain) for chain in several[0]], [_links(b, chain) for chain in several[1]]
            pairs += [(x, y, number) for x, y in _align_chains(around, links)]
    return pairs


def _align_chains(
    around: tuple[list[Context], list[Context]], links: tuple[list[_Links], list[_Links]]
) -> list[tuple[int, int]]:
    pairs = []
    for these, those in _comparable(*links):
        for i, j in _by_context([around[0][p] for p in these], [around[1][p] for p in those]):
            one, other = links[0][these[i]], links[1][those[j]]
            alike = _ends_then_begins(one[False], other[False]) + _ends_then_begins(one[True], other[True])
            pairs += alike or _ends_then_begins(one[False] or one[True], other[False] or other[True])
    return pairs


def _links(graph: ValueGraph, chain: list[int]) -> _Links:
    """Return the definitions of a chain that were computed (key False) and those that were only moved (key True)."""
    found: _Links = {False: [], True: []}
    for group in chain:
        makers = [graph.operators[o] for v in graph.members[group] for o in graph.producers[v]]
        found[bool(makers) and all(o.move for o in makers)].append(group)
    return found


def _comparable(links_a: list[_Links], links_b: list[_Links]) -> list[tuple[list[int], list[int]]]:
    """Return which chains to align with which, by position: first the computed chains, then those that were only moved."""
    computed = [[p for p, links in enumerate(side) if links[False]] for side in (links_a, links_b)]
    if not all(computed):
        return [(list(range(len(links_a))), list(range(len(links_b))))]
    moved = [[p for p, links in enumerate(side) if not links[False]] for side in (links_a, links_b)]
    return [(computed[0], computed[1]), (moved[0], moved[1])]


def _ends_then_begins(a: list[int], b: list[int]) -> list[tuple[int, int]]:
    return [*zip(a[:-1], b[:-1], strict=False), (a[-1], b[-1])] if a and b else []


def _by_context(around_a: list[Context], around_b: list[Context]) -> list[tuple[int, int]]:
    """Return which chains of two lists correspond, by position, judged by the classes around them."""
    n, m = len(around_a), len(around_b)
    if n == m:
        return _alike_then_in_order(around_a, around_b)
    if n * m > _MAX_CELLS:
        return list(zip(range(n), range(m), strict=False))
    return _align(around_a, around_b)


def _alike_then_in_order(around_a: list[Context], around_b: list[Context]) -> list[tuple[int, int]]:
    read_by: tuple[dict[Context, list[int]], dict[Context, list[int]]] = (defaultdict(list), defaultdict(list))
    for side, around in enumerate((around_a, around_b)):
        for position, context in enumerate(around):
            readers = frozenset(c for c in context if c[0] == "out")
            if readers:
                read_by[side][readers].append(position)
    aligned = []
    for readers, found in read_by[0].items():
        others = read_by[1].get(readers, [])
        if len(found) == len(others):
            aligned += list(zip(found, others, strict=True))
    known = ({i for i, _ in aligned}, {j for _, j in aligned})
    rest = [[p for p in range(len(around_a)) if p not in k] for k in known]
    return aligned + list(zip(*rest, strict=True))


def _align(around_a: list[Context], around_b: list[Context]) -> list[tuple[int, int]]:
    n, m = len(around_a), len(around_b)
    weights = np.empty((n, m))
    for i, one in enumerate(around_a):
        for j, other in enumerate(around_b):
            shared = READ_BY * _agreement(one, other, "out") + READS * _agreement(one, other, "in")
            weights[i, j] = shared + 0.01 - 1e-4 * abs(i - j) / max(n, m)
    # Unlike `align.sequence` there is no gap cost: an unmatched definition says nothing about its neighbours.
    best = np.zeros((n + 1, m + 1))
    for i in range(n - 1, -1, -1):
        for j in range(m - 1, -1, -1):
            best[i, j] = max(best[i + 1, j], best[i, j + 1], best[i + 1, j + 1] + weights[i, j])
    pairs = []
    i = j = 0
    while i < n and j < m:
        if best[i, j] == best[i + 1, j + 1] + weights[i, j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best[i, j] == best[i + 1, j]:
            i += 1
        else:
            j += 1
    return pairs


def _agreement(one: Context, other: Context, direction: str) -> float:
    """Return the share of the smaller context that the larger one holds too.

    It is not the share of both, because a value that is computed again has fewer readers.
    """
    left = {number for tag, number in one if tag == direction}
    right = {number for tag, number in other if tag == direction}
    return len(left & right) / min(len(left), len(right)) if left and right else 0.0


def _context(graph: ValueGraph, class_of: dict[int, int], chain: list[int]) -> Context:
    """Return the classes that a chain is computed from and that are computed from it; its own class is left out.

    Where a neighbour was only moved, the class before or after the movement is taken.
    """
    own = class_of[chain[0]]
    found: set[tuple[str, int]] = set()
    for value in (v for group in chain for v in graph.members[group]):
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
    """Return the definitions of one value by chain. Two belong to one chain if one is computed from the other."""
    place = {group: at for at, group in enumerate(definitions)}
    edges = [(place[group], place[other]) for group in definitions for other in _fed(graph, group) if other in place]
    if not edges:
        return [[group] for group in definitions]
    ends = np.array(edges, dtype=np.int64)
    found: dict[int, list[int]] = defaultdict(list)
    for group, label in zip(definitions, components(len(definitions), ends[:, 0], ends[:, 1]).tolist(), strict=True):
        found[label].append(group)
    return list(found.values())


def feeds_own_class(graph: ValueGraph, class_of: dict[int, int], group: int) -> bool:
    """Tell whether another definition of the same value is computed from a definition."""
    return any(class_of.get(other) == class_of[group] for other in _fed(graph, group))


def _fed(graph: ValueGraph, group: int) -> Iterator[int]:
    """Yield the other groups that are computed directly from a group."""
    for value in graph.members[group]:
        for consumer in graph.consumers[value]:
            for target in graph.operators[consumer].writes:
                if graph.group[target] != group:
                    yield graph.group[target]
