"""Operators that one program runs earlier than the other: partners by what they are, although their order differs.

The alignment of sequences never crosses two pairs. So of two operators that run in the other order on the other side, it
finds one, or crosses both with the wrong partners. Here operators that are exactly the same find each other across a short
distance, where that makes the sum of all likenesses larger.

Example: A runs ``bmm [8,64,32]``, then ``bmm [8,64,64]``; B runs them the other way round. In order, each meets the other shape,
twice with a likeness of 0.5; by what they are, twice with a likeness of 1. The larger sum wins. Of equal sums, the one that keeps the order of
time wins.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from magneton.analysis.align.assignment import heaviest_assignment
from magneton.analysis.align.matcher import Correspondence
from magneton.analysis.align.similarity import Similarity
from magneton.analysis.align.tree import Node

# How far an operator may have moved, in operators that carry work.
WINDOW = 12
# The same for an operator of which neither tensors nor module are known: its name alone finds it, close by and where nothing else is left over.
NEAR = 4
# Share of all operators that must have a partner before operators may be taken for moved ones.
MIN_PAIRED_SHARE = 0.3
# Likeness of two operators of one name and shape that call other operators inside.
OTHER_CALLS = 0.9
# What a pair in order counts more than one out of order.
_IN_ORDER = 0.02
# What a pair counts less, times the square of how far it moved: of equal sums the one nearest to the order of time wins.
_PER_PLACE = 1e-4

_Pair = tuple[int, int]


@dataclass
class _Open:
    """One side: its leaves, the positions of those that may get another partner, its modules, and the positions without a partner."""

    leaves: Sequence[Node]
    positions: list[int]
    modules: frozenset[str | None]
    alone: set[int]


def with_moved(found: list[Correspondence], a: Node, b: Node, similarity: Similarity) -> list[Correspondence]:
    """Return the correspondences of two trees with operators that moved given their partners.

    Only leaves without a partner, and pairs of single leaves that are not exactly the same, change.

    Args:
        found: all correspondences of the trees; every leaf is in exactly one.
        a: tree of side A.
        b: tree of side B.
        similarity: for the tensor sizes of leaves.
    """
    held = {leaf for one in found for leaf in (*one.a, *one.b)}
    leaves_a, leaves_b = held_leaves(a, held), held_leaves(b, held)
    paired = sum(len(c.a) + len(c.b) for c in found if c.a and c.b)
    if paired < MIN_PAIRED_SHARE * (len(leaves_a) + len(leaves_b)):
        return found
    at_a = {leaf: index for index, leaf in enumerate(leaves_a)}
    at_b = {leaf: index for index, leaf in enumerate(leaves_b)}
    sure, likeness, alone = _sorted_out(found, at_a, at_b)
    open_a = _Open(
        leaves_a, sorted({i for i, _ in likeness} | alone[0]), frozenset(n.module for n in leaves_a), alone[0]
    )
    open_b = _Open(
        leaves_b, sorted({j for _, j in likeness} | alone[1]), frozenset(n.module for n in leaves_b), alone[1]
    )
    moved = _same_elsewhere(open_a, open_b, sure, similarity) if open_a.positions and open_b.positions else {}
    moved = {pair: weight for pair, weight in moved.items() if pair not in likeness}
    if not moved:
        return found
    chosen = heaviest_assignment(moved | {pair: score + _IN_ORDER for pair, score in likeness.items()})
    return _exchanged(found, leaves_a, leaves_b, likeness.keys() - chosen, chosen & moved.keys())


def held_leaves(tree: Node, held: set[Node]) -> list[Node]:
    """Return the leaves in order; a call whose replayed graph was taken apart is that graph's kernels."""
    return [
        part for leaf in tree.leaves() for part in ([leaf] if leaf in held or not leaf.inner else leaf.inner.leaves())
    ]


def _sorted_out(
    found: list[Correspondence], at_a: Mapping[Node, int], at_b: Mapping[Node, int]
) -> tuple[list[_Pair], dict[_Pair, float], tuple[set[int], set[int]]]:
    """Return pairs of leaves that are exactly the same, the likeness of pairs that are not, and leaves without a partner."""
    sure: list[_Pair] = []
    likeness: dict[_Pair, float] = {}
    alone: tuple[set[int], set[int]] = (set(), set())
    for one in found:
        if len(one.a) == len(one.b) == 1:
            u, v = one.a[0], one.b[0]
            pair = at_a[u], at_b[v]
            if u.strict != v.strict:
                likeness[pair] = min(one.score or 0.0, OTHER_CALLS)
            elif u.calls != v.calls:
                likeness[pair] = OTHER_CALLS
            else:
                sure.append(pair)
        elif not one.b:
            alone[0].update(at_a[leaf] for leaf in one.a)
        elif not one.a:
            alone[1].update(at_b[leaf] for leaf in one.b)
    return sorted(sure), likeness, alone


def _same_elsewhere(a: _Open, b: _Open, sure: list[_Pair], similarity: Similarity) -> dict[_Pair, float]:
    """Return the pairs of open leaves that are exactly the same and not far apart, with their weight."""
    by_key: dict[Hashable, list[int]] = defaultdict(list)
    for j in b.positions:
        by_key[_key(b.leaves[j])].append(j)
    from_a, from_b = _Places(sure), _Places(sorted((j, i) for i, j in sure))
    weights: dict[_Pair, float] = {}
    for i in a.positions:
        u = a.leaves[i]
        for j in by_key.get(_key(u), ()):
            known = _known_to_be_same(u, b.leaves[j], a.modules, b.modules, similarity)
            if not known and not (i in a.alone and j in b.alone and _unknown(u, b.leaves[j], similarity)):
                continue
            distance = min(from_a.distance(i, j), from_b.distance(j, i))
            if distance <= (WINDOW if known else NEAR):
                weights[i, j] = 1.0 - _PER_PLACE * distance**2
    return weights


def _key(leaf: Node) -> Hashable:
    return leaf.strict, leaf.backward, leaf.calls


def _known_to_be_same(
    u: Node, v: Node, modules_a: frozenset[str | None], modules_b: frozenset[str | None], similarity: Similarity
) -> bool:
    """Tell whether two leaves of one name and shape are the same work wherever they lie: by tensors or by module.

    A leaf whose module the other side has too belongs there.
    """
    if u.module == v.module:
        return u.module is not None or similarity.profile(u).has_shapes
    return similarity.profile(u).has_shapes and u.module not in modules_b and v.module not in modules_a


def _unknown(u: Node, v: Node, similarity: Similarity) -> bool:
    """Tell whether neither tensors nor modules of two leaves are known, so that nothing speaks against a pair of one name."""
    return u.module == v.module is None and not similarity.profile(u).has_shapes


class _Places:
    """Where a leaf of one side is expected on the other: as far from a sure pair as on its own side.

    Args:
        sure: pairs of positions on this side and on the other, sorted.
    """

    def __init__(self, sure: list[_Pair]) -> None:
        self._sure = sure
        self._own = [own for own, _ in sure]

    def distance(self, own: int, other: int) -> int:
        """Return how far a position of the other side is from the place expected by the sure pairs before and after."""
        after = bisect_left(self._own, own)
        near = [self._sure[at] for at in (after - 1, after) if 0 <= at < len(self._sure)] or [(0, 0)]
        return min(abs((other - there) - (own - here)) for here, there in near)


def _exchanged(
    found: list[Correspondence],
    leaves_a: Sequence[Node],
    leaves_b: Sequence[Node],
    broken: set[_Pair],
    moved: set[_Pair],
) -> list[Correspondence]:
    """Return the correspondences without the broken pairs, and with the moved ones; who loses a partner stands alone."""
    apart = {(leaves_a[i], leaves_b[j]) for i, j in broken}
    new = {leaf for i, j in moved for leaf in (leaves_a[i], leaves_b[j])}
    result: list[Correspondence] = []
    for one in found:
        single = len(one.a) == len(one.b) == 1
        if not (one.a and one.b) or (single and (one.a[0], one.b[0]) in apart):
            result += [Correspondence([leaf], [], None) for leaf in one.a if leaf not in new]
            result += [Correspondence([], [leaf], None) for leaf in one.b if leaf not in new]
        else:
            result.append(one)
    for i, j in sorted(moved):
        u, v = leaves_a[i], leaves_b[j]
        evidence = {"name"} | ({"shapes"} if u.shapes else set()) | ({"module"} if u.module == v.module else set())
        result.append(Correspondence([u], [v], 1.0, frozenset(evidence)))
    return result
