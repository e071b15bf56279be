"""The matcher: fingerprints of two programs in, corresponding values and regions out."""

from __future__ import annotations

from dataclasses import dataclass

from magneton.analysis.values.classes import ValueClass, find_classes
from magneton.analysis.values.concatenations import Union, find_unions
from magneton.analysis.values.definitions import feeds_own_class, pair_definitions
from magneton.analysis.values.fingerprints import Fingerprints
from magneton.analysis.values.graph import ValueGraph
from magneton.analysis.values.regions import ValueRegion, cut_and_glue
from magneton.analysis.values.settings import MatchSettings
from magneton.analysis.values.shared_slices import find_shared
from magneton.schemas.kinds import Evidence

# Two correct implementations differ by a fraction of the tolerance. A pair with a larger ratio than this needs support.
EDGE = 0.5

__all__ = ["MatchSettings", "MatchedRegion", "MatchedValue", "ValueMatch", "match_values"]


@dataclass(frozen=True)
class MatchedValue:
    """A value that both sides hold: tensor ids of its definitions, and their distance divided by the tolerance."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    ratio: float
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class MatchedRegion:
    """Operators of both sides (op ids) that compute the same values from the same values; one side may be empty."""

    ops_a: tuple[int, ...]
    ops_b: tuple[int, ...]
    movement: bool


@dataclass(frozen=True)
class ValueMatch:
    """The result: regions partition the operators of both sides.

    Attributes:
        regions: in order of execution.
        pairs: corresponding definitions, one each side.
        unions: values of one side against values of the other that together hold the same slices.
        cuts_a: tensor ids of side A whose groups are cuts.
        cuts_b: the same of side B.
        second_input: whether matches were confirmed by a second input.
    """

    regions: tuple[MatchedRegion, ...]
    pairs: tuple[MatchedValue, ...]
    unions: tuple[MatchedValue, ...]
    cuts_a: frozenset[int]
    cuts_b: frozenset[int]
    second_input: bool


def match_values(a: ValueGraph, b: ValueGraph, settings: MatchSettings | None = None) -> ValueMatch:
    """Match two graphs by what they compute.

    Two values match if their fingerprints agree within the tolerance of their precision and no other value is nearer. The
    operators between matched values form the regions. See "Matching by value" in docs/design.md.

    Args:
        a: graph of side A.
        b: graph of side B.
        settings: tolerance, and switches for the parts of the method.
    """
    settings = settings or MatchSettings()
    if not settings.copies:
        a.finish(use_copies=False)
        b.finish(use_copies=False)
    prints = Fingerprints(a, b, settings)
    classes = _supported((a, b), find_classes(prints))
    pairs = pair_definitions(a, b, classes, use_context=settings.context)
    class_of = tuple({g: n for n, c in enumerate(classes) for g in (c.a, c.b)[side]} for side in (0, 1))
    matched = (set(class_of[0]), set(class_of[1]))
    unions = find_unions(prints, matched) if settings.unions else []
    unions += find_shared(prints, matched, pairs, unions) if settings.unions else []
    cuts = _cuts((a, b), class_of, pairs, unions)
    regions = cut_and_glue((a, b), cuts, pairs, unions)
    return ValueMatch(
        regions=tuple(_with_ids(a, b, region) for region in regions),
        pairs=tuple(_pair(a, b, x, y, classes[n], prints.second) for x, y, n in pairs),
        unions=tuple(_union(a, b, union) for union in unions),
        cuts_a=frozenset(i for g in cuts[0] for i in a.ids(g)),
        cuts_b=frozenset(i for g in cuts[1] for i in b.ids(g)),
        second_input=prints.second,
    )


def _supported(graphs: tuple[ValueGraph, ValueGraph], classes: list[ValueClass]) -> list[ValueClass]:
    """Drop classes that agree by accident.

    Two kinds of classes are dropped. First: the distance is above ``EDGE`` times the tolerance, other values are computed from
    the class, and none of them matches. Second: the class is a by-product that no operator reads, and no other output of its
    operator matches. Example of a by-product: the mean that a layer norm returns, in a program that does not train.
    """
    class_of = tuple({g: n for n, c in enumerate(classes) for g in (c.a, c.b)[side]} for side in (0, 1))
    sides = [[(c.a, c.b)[side] for c in classes] for side in (0, 1)]
    unread = [{n for n, found in enumerate(sides[s]) if _unread(graphs[s], found)} for s in (0, 1)]
    # A by-product is not read. Another output of its operator must match, and that output must not be a by-product itself.
    beside = {
        n: [_beside(graphs[side], class_of[side], sides[side][n]) for side in (0, 1)] for n in unread[0] | unread[1]
    }
    lost = {n for n, found in beside.items() if any(n in unread[s] and found[s][0] for s in (0, 1))}
    kept = [c for n, c in enumerate(classes) if n not in lost or (beside[n][0][1] & beside[n][1][1]) - lost]
    if all(c.ratio <= EDGE for c in kept):
        return kept
    leads = [_leads_to_match(graph, set(class_of[side])) for side, graph in enumerate(graphs)]

    def alone(side: int, groups: tuple[int, ...]) -> bool:
        read = [g for g in groups if any(graphs[side].consumers[v] for v in graphs[side].members[g])]
        return bool(read) and not any(leads[side][g] for g in read)

    return [c for c in kept if c.ratio <= EDGE or not (alone(0, c.a) and alone(1, c.b))]


def _unread(graph: ValueGraph, groups: tuple[int, ...]) -> bool:
    """Tell whether groups were computed by operators and are read by none."""
    return all(
        graph.producers[v] and not graph.consumers[v] and graph.values.role[v] is None
        for g in groups
        for v in graph.members[g]
    )


def _beside(graph: ValueGraph, class_of: dict[int, int], groups: tuple[int, ...]) -> tuple[bool, set[int]]:
    """Return whether the other outputs of the operators of groups are used, and the classes of these outputs."""
    makers = {o for g in groups for v in graph.members[g] for o in graph.producers[v]}
    beside = {v for o in makers for v in graph.operators[o].writes if graph.group[v] not in groups}
    used = any(graph.consumers[v] or graph.values.role[v] is not None for v in beside)
    return used, {class_of[graph.group[v]] for v in beside if graph.group[v] in class_of}


def _leads_to_match(graph: ValueGraph, matched: set[int]) -> dict[int, bool]:
    """Return for each group whether another, matched group is computed from it."""
    leads = dict.fromkeys(graph.members, False)
    for operator in reversed(graph.operators):
        written = {graph.group[v] for v in operator.writes}
        read = {graph.group[v] for v in operator.reads}
        if any(g in matched for g in written - read) or any(leads[g] for g in written):
            for group in read:
                leads[group] = True
    return leads


def _cuts(
    graphs: tuple[ValueGraph, ValueGraph],
    class_of: tuple[dict[int, int], ...],
    pairs: list[tuple[int, int, int]],
    unions: list[Union],
) -> tuple[set[int], set[int]]:
    """Return the groups that cut: their values separate the regions.

    These are paired definitions, wholes and parts of concatenations, and unpaired definitions of a matched value. An unpaired
    definition does not cut if another definition of the same value is computed from it.
    """
    paired = ({x for x, _, _ in pairs}, {y for _, y, _ in pairs})
    cuts = tuple(
        {g for g in class_of[side] if g in paired[side] or not feeds_own_class(graphs[side], class_of[side], g)}
        for side in (0, 1)
    )
    for union in unions:
        cuts[0].update(union.a)
        cuts[1].update(union.b)
    return cuts[0], cuts[1]


def _with_ids(a: ValueGraph, b: ValueGraph, region: ValueRegion) -> MatchedRegion:
    return MatchedRegion(
        tuple(a.operators[o].op_id for o in region.a), tuple(b.operators[o].op_id for o in region.b), region.movement
    )


def _pair(a: ValueGraph, b: ValueGraph, x: int, y: int, found: ValueClass, second: bool) -> MatchedValue:
    evidence = [Evidence.VALUES]
    evidence += [Evidence.SECOND_INPUT] if second else []
    evidence += [Evidence.CONTEXT] if len(found.a) != len(found.b) else []
    return MatchedValue(a.ids(x), b.ids(y), found.ratio, tuple(evidence))


def _union(a: ValueGraph, b: ValueGraph, union: Union) -> MatchedValue:
    left, right = (tuple(i for g in groups for i in graph.ids(g)) for graph, groups in ((a, union.a), (b, union.b)))
    return MatchedValue(left, right, 1.0, (Evidence.UNION, *([Evidence.PARTIAL] if union.partial else [])))
