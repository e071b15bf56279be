"""A matcher that sees the values themselves: what perfect fingerprints would give. It checks labels and bounds the matcher."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx
import numpy as np

from benchmarks.matching.metric import SMALLEST, Truth
from benchmarks.matching.raw_values import Array, agree, squeezed
from magneton.analysis.values.classes import ValueClass
from magneton.analysis.values.concatenations import Union, union_of
from magneton.analysis.values.definitions import pair_definitions
from magneton.analysis.values.graph import ValueGraph
from magneton.analysis.values.match import MatchedRegion, MatchedValue, ValueMatch
from magneton.analysis.values.regions import cut_and_glue

MAX_PARTS = 8


@dataclass(frozen=True, eq=False)
class _Candidate:
    group: int
    seen: tuple[tuple[Array, ...], ...]
    tensors: tuple[int, ...]
    constant: bool
    kind: str

    @property
    def size(self) -> int:
        return int(self.seen[0][0].size)


def oracle_match(truth: Truth, a: ValueGraph, b: ValueGraph) -> ValueMatch:
    """Match two graphs by exact comparison of all values on all inputs, in every arrangement."""
    found = [_candidates(truth, side, graph) for side, graph in enumerate((a, b))]
    classes = _classes(truth, found)
    pairs = pair_definitions(a, b, classes, use_context=True)
    matched = ({g for c in classes for g in c.a}, {g for c in classes for g in c.b})
    ends = [_ends(truth, graph, candidates) for graph, candidates in zip((a, b), found, strict=True)]
    unions = [u for side in (0, 1) for u in _unions(truth, side, ends, matched)]
    cuts = (set(matched[0]), set(matched[1]))
    for union in unions:
        cuts[0].update(union.a)
        cuts[1].update(union.b)
    paired = ({x for x, _, _ in pairs}, {y for _, y, _ in pairs})
    for side, graph in enumerate((a, b)):
        class_of = {g: n for n, c in enumerate(classes) for g in (c.a, c.b)[side]}
        cuts[side].difference_update(g for g in matched[side] - paired[side] if _feeds_its_class(graph, class_of, g))
    regions = cut_and_glue((a, b), cuts, pairs, unions)
    return ValueMatch(
        regions=tuple(
            MatchedRegion(
                tuple(a.operators[o].op_id for o in r.a), tuple(b.operators[o].op_id for o in r.b), r.movement
            )
            for r in regions
        ),
        pairs=tuple(MatchedValue(a.ids(x), b.ids(y), 0.0, ("oracle",)) for x, y, _ in pairs),
        unions=tuple(_union(a, b, u) for u in unions),
        cuts_a=frozenset(i for g in cuts[0] for i in a.ids(g)),
        cuts_b=frozenset(i for g in cuts[1] for i in b.ids(g)),
        second_input=min(len(side.known) for side in truth.sides) > 1,
    )


def _union(a: ValueGraph, b: ValueGraph, union: Union) -> MatchedValue:
    left, right = (tuple(i for g in groups for i in graph.ids(g)) for graph, groups in ((a, union.a), (b, union.b)))
    return MatchedValue(left, right, 0.0, ("oracle",))


def _feeds_its_class(graph: ValueGraph, class_of: dict[int, int], group: int) -> bool:
    for value in graph.members[group]:
        for consumer in graph.consumers[value]:
            for target in graph.operators[consumer].writes:
                other = graph.group[target]
                if other != group and class_of.get(other) == class_of[group]:
                    return True
    return False


def _ends(truth: Truth, graph: ValueGraph, candidates: list[_Candidate]) -> list[_Candidate]:
    """Leave out what is only a step in a chain of identities (a product with a weight of ones)."""
    known = {c.group: c for c in candidates}
    found = []
    for candidate in candidates:
        targets = {
            graph.group[t]
            for v in graph.members[candidate.group]
            for consumer in graph.consumers[v]
            for t in graph.operators[consumer].writes
        }
        targets.discard(candidate.group)
        again = (known[t] for t in targets if t in known and known[t].size == candidate.size)
        if not any(_same(truth, (0, candidate), (0, other)) for other in again):
            found.append(candidate)
    return found


def _candidates(truth: Truth, side: int, graph: ValueGraph) -> list[_Candidate]:
    flow = truth.flows[side]
    found = []
    for group in graph.members:
        ids = graph.ids(group)
        if flow.numel[ids[0]] < SMALLEST or flow.dtype[ids[0]] == "bool":
            continue
        seen = tuple(tuple(truth.seen(side, which, ids)) for which in range(len(truth.sides[side].known)))
        if not all(seen):
            continue
        constant = all(i in flow.constant for i in ids)
        dtype = flow.dtype[ids[0]]
        kind = (
            "real" if dtype.startswith(("float", "bfloat")) else "complex" if dtype.startswith("complex") else "whole"
        )
        found.append(_Candidate(group, seen, ids, constant, kind))
    return sorted(found, key=lambda c: (_defined(graph, c.group), c.group))


def _defined(graph: ValueGraph, group: int) -> int:
    makers = [graph.producers[value] for value in graph.members[group]]
    return min(numbers[0] if numbers else -1 for numbers in makers)


def _classes(truth: Truth, found: list[list[_Candidate]]) -> list[ValueClass]:
    everyone = [(side, c) for side in (0, 1) for c in found[side]]
    joined: nx.utils.UnionFind[int] = nx.utils.UnionFind(range(len(everyone)))
    by_kind: dict[tuple[int, bool, str], list[int]] = defaultdict(list)
    for number, (_, candidate) in enumerate(everyone):
        by_kind[candidate.size, candidate.constant, candidate.kind].append(number)
    for numbers in by_kind.values():
        for x, y in _close(everyone, numbers):
            if joined[x] != joined[y] and _same(truth, everyone[x], everyone[y]):
                joined.union(x, y)
    classes: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for number, (side, candidate) in enumerate(everyone):
        classes[joined[number]][side].append(candidate.group)
    return [ValueClass(tuple(a), tuple(b), 0.0) for a, b in classes.values() if a and b]


def _close(everyone: list[tuple[int, _Candidate]], numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Pairs whose statistics do not rule out that they are the same."""
    stats = [_statistics(everyone[n][1].seen[0][0]) for n in numbers]
    for i, x in enumerate(numbers):
        for j in range(i + 1, len(numbers)):
            if _may_be(stats[i], stats[j]):
                yield x, numbers[j]


def _may_be(one: tuple[float, float], other: tuple[float, float]) -> bool:
    (mean_a, std_a), (mean_b, std_b) = one, other
    room = 0.05 * max(std_a, std_b) + 0.01 * abs(mean_a) + 1e-12
    return abs(mean_a - mean_b) <= room and abs(std_a - std_b) <= room


def _statistics(x: Array) -> tuple[float, float]:
    finite = x[np.isfinite(x) & (np.abs(x) < 1e30)]
    return (float(finite.mean()), float(finite.std())) if finite.size else (0.0, 0.0)


def _same(truth: Truth, one: tuple[int, _Candidate], other: tuple[int, _Candidate]) -> bool:
    if one[0] == other[0]:
        tolerance, noise = 1e-6, 1e-6
    else:
        a, b = sorted((one, other), key=lambda entry: entry[0])
        tolerance, noise = truth.tolerance(a[1].tensors, b[1].tensors)
    return all(agree(x, y, tolerance, noise) for x, y in zip(one[1].seen, other[1].seen, strict=False))


def _unions(
    truth: Truth, side: int, found: list[list[_Candidate]], matched: tuple[set[int], set[int]]
) -> Iterator[Union]:
    """Wholes of a side that are slices along their first axis, one after another, on the other side."""
    parts: dict[int, list[_Candidate]] = defaultdict(list)
    for candidate in found[1 - side]:
        if candidate.group not in matched[1 - side] and not candidate.constant:
            parts[candidate.size].append(candidate)
    for whole in found[side]:
        if whole.group in matched[side] or whole.constant:
            continue
        for pieces in range(2, MAX_PARTS + 1):
            if whole.size % pieces == 0 and (chosen := _parts(truth, side, whole, pieces, parts[whole.size // pieces])):
                yield union_of(side, (whole.group,), chosen)
                break


def _parts(truth: Truth, side: int, whole: _Candidate, pieces: int, among: list[_Candidate]) -> tuple[int, ...]:
    for shape in dict.fromkeys(squeezed(x).shape for x in whole.seen[0]):
        if not shape or shape[0] % pieces:
            continue
        wholes = [next((squeezed(x) for x in seen if squeezed(x).shape == shape), None) for seen in whole.seen]
        if any(x is None for x in wholes):
            continue
        cut = [np.split(x, pieces) for x in wholes if x is not None]
        chosen: list[_Candidate] = []
        for number in range(pieces):
            part = _part(truth, side, whole, [c[number] for c in cut], [p for p in among if p not in chosen])
            if part is None:
                break
            chosen.append(part)
        if len(chosen) == pieces:
            return tuple(c.group for c in chosen)
    return ()


def _part(
    truth: Truth, side: int, whole: _Candidate, wanted: list[Array], among: list[_Candidate]
) -> _Candidate | None:
    statistics = _statistics(wanted[0])
    for part in among:
        if not _may_be(statistics, _statistics(part.seen[0][0])):
            continue
        ids = (whole.tensors, part.tensors) if side == 0 else (part.tensors, whole.tensors)
        tolerance, noise = truth.tolerance(*ids)
        if all(agree([w], seen, tolerance, noise) for w, seen in zip(wanted, part.seen, strict=False)):
            return part
    return None
