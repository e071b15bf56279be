"""Structure fills what values leave open.

Values decide first. What both sides have by value stands, with one exception: a coarse region. Such a region is right, but it holds so much
of the time that it says little. So the partners by structure within it are rows of their own. Then structure decides about operators
that only one side has by value, and about those that the capture of values does not know. Example: two runs with dropout and no
common seed. After the first dropout all values differ, and structure still finds every operator's partner.

What is left lies between matched neighbours. There, operators of one name and shape are partners in their order. Example: a loss is
summed to one number. One number is too little to match by value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import pairwise

import numpy as np

from magneton.analysis.align.matcher import Correspondence
from magneton.analysis.align.sequence import heaviest_common_subsequence, longest_increasing
from magneton.analysis.align.tree import Node
from magneton.schemas.kinds import Evidence

# The same name on shapes that one side did not record.
_NAME_ONLY = 0.6


def fill(
    trees: tuple[Node, Node],
    by_value: list[Correspondence],
    coarse: list[Correspondence],
    structural: Iterable[Correspondence],
) -> list[Correspondence]:
    """Return the correspondences of two trees, every leaf in exactly one.

    Args:
        trees: averaged trees of A and B.
        by_value: pairs by value that stand.
        coarse: pairs by value that may be divided.
        structural: correspondences by structure.
    """
    found = list(by_value)
    region: dict[Node, int] = {leaf: n for n, c in enumerate(coarse) for leaf in (*c.a, *c.b)}
    free = {leaf for tree in trees for leaf in tree.leaves()} - {leaf for c in found for leaf in (*c.a, *c.b)}
    for known in structural:
        a, b = _allowed(known, free, region)
        if a and b:
            found.append(Correspondence(a, b, known.score, known.evidence))
            free.difference_update(a, b)
    for rest in coarse:
        a, b = [leaf for leaf in rest.a if leaf in free], [leaf for leaf in rest.b if leaf in free]
        if a and b:
            whole = len(a) == len(rest.a) and len(b) == len(rest.b)
            found.append(Correspondence(a, b, rest.score, rest.evidence, rest.calls if whole else None))
            free.difference_update(a, b)
    for left, right, score, evidence in _between(trees, found, free):
        found.append(Correspondence([left], [right], score, evidence))
        free -= {left, right}
    found += [Correspondence([leaf], [], None) for leaf in trees[0].leaves() if leaf in free]
    found += [Correspondence([], [leaf], None) for leaf in trees[1].leaves() if leaf in free]
    return found


def _allowed(known: Correspondence, free: Collection[Node], region: dict[Node, int]) -> tuple[list[Node], list[Node]]:
    """Return what is free of a pair by structure. Values forbid a pair of leaves of two different coarse regions."""
    a, b = [leaf for leaf in known.a if leaf in free], [leaf for leaf in known.b if leaf in free]
    regions = [{region[leaf] for leaf in side if leaf in region} for side in (a, b)]
    if regions[0] and regions[1]:
        both = regions[0] & regions[1]
        a, b = ([leaf for leaf in side if leaf not in region or region[leaf] in both] for side in (a, b))
    return a, b


def _between(
    trees: tuple[Node, Node], found: list[Correspondence], free: Collection[Node]
) -> list[tuple[Node, Node, float, frozenset[str]]]:
    """Return free leaves of one name that stand in one order between matched neighbours.

    The beginning and the end of a step count as neighbours where anything is matched at all.
    """
    leaves = trees[0].leaves(), trees[1].leaves()
    if not found or any(all(leaf not in free for leaf in side) for side in leaves):
        return []
    at = [{leaf: index for index, leaf in enumerate(side)} for side in leaves]
    anchors = sorted((min(at[0][x] for x in c.a), min(at[1][x] for x in c.b)) for c in found if c.a and c.b)
    chain = [(-1, -1), *longest_increasing(anchors), (len(leaves[0]), len(leaves[1]))]
    pairs = []
    for (i, j), (k, m) in pairwise(chain):
        left = [leaf for leaf in leaves[0][i + 1 : k] if leaf in free]
        right = [leaf for leaf in leaves[1][j + 1 : m] if leaf in free]
        pairs += _in_order(left, right)
    return pairs


def _in_order(left: list[Node], right: list[Node]) -> list[tuple[Node, Node, float, frozenset[str]]]:
    if not left or not right:
        return []
    ids: list[list[int]] = []
    kinds: list[list[Node]] = []
    for nodes in (left, right):
        numbers: dict[object, int] = {}
        first: list[Node] = []
        ids.append([])
        for node in nodes:
            key = (node.token, node.shapes, node.backward)
            if key not in numbers:
                numbers[key] = len(first)
                first.append(node)
            ids[-1].append(numbers[key])
        kinds.append(first)
    scores = np.array([[_score(u, v) for v in kinds[1]] for u in kinds[0]], dtype=np.float32)
    pairs = heaviest_common_subsequence(np.array(ids[0]), np.array(ids[1]), scores)
    words = {Evidence.ORDER, Evidence.NAME}
    return [
        (u, v, _score(u, v), frozenset(words | {Evidence.SHAPES} if u.shapes and u.shapes == v.shapes else words))
        for u, v in ((left[i], right[j]) for i, j in pairs)
    ]


def _score(u: Node, v: Node) -> float:
    if u.token != v.token or u.backward != v.backward:
        return 0.0
    if u.shapes == v.shapes:
        return 1.0
    return 0.0 if u.shapes and v.shapes else _NAME_ONLY
