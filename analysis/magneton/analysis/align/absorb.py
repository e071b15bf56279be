"""Fused operators: one call with many kernels replaces several single operators of the other side.

Example: a function compiled by ``torch.compile``. The operators it replaces are often interleaved with operators that both
sides have, such as gradient accumulation between the layers of a backward pass. Sequence alignment leaves them in many separate
gaps. Here the fused call gathers them, outwards from its own place, under four conditions:

* they belong to the same pass, forward or backward;
* they share a tensor size with the call, where sizes are known;
* together they have at most ``MAX_RATIO`` kernels for each kernel of the call;
* no run of ``SOLID_RUN`` matched operators lies in between.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from magneton.analysis.align.similarity import Similarity
from magneton.analysis.align.tree import Node

# A leaf with at least this many kernels is taken for a fused operator.
MIN_KERNELS = 8
# It replaces at most this many kernels for each of its own (fusion saves kernels).
MAX_RATIO = 4.0
# A stretch of this many matched operators without an unmatched one ends the search.
SOLID_RUN = 24


@dataclass(slots=True)
class Fused:
    """A fused leaf and the leaves of the other side it stands for."""

    leaf: Node
    parts: list[Node]
    agreement: float


def kernels(leaf: Node) -> float:
    """Return the number of device activities of one call of a leaf. The work of a leaf may be per sample or token."""
    return (leaf.work.n_kernels + leaf.work.n_transfers) / (leaf.work.n_calls or 1.0) if leaf.work else 0.0


def gather(
    own: list[Node],
    other: list[Node],
    partner: dict[Node, int],
    free: set[Node],
    similarity: Similarity,
) -> list[Fused]:
    """Let the fused leaves of one side gather unmatched leaves of the other.

    Args:
        own: all leaves of the side whose fused leaves are looked for, in order.
        other: all leaves of the other side, in order.
        partner: for a matched leaf of ``own``, the position in ``other`` of the leaf it matched.
        free: unmatched leaves of both sides; gathered ones are removed.
        similarity: for the tensor sizes of leaves.
    """
    fused = sorted(
        (
            (kernels(leaf), -index, leaf)
            for index, leaf in enumerate(own)
            if leaf in free and kernels(leaf) >= MIN_KERNELS
        ),
        key=lambda item: item[:2],
        reverse=True,
    )
    # If the fused side has as many unmatched calls of an operator, these are the partners, and not the fused call.
    left_own = Counter(leaf.token for leaf in own if leaf in free)
    left_other = Counter(leaf.token for leaf in other if leaf in free)
    kept = {name for name, count in left_other.items() if left_own[name] >= count}
    found: list[Fused] = []
    for count, negative, leaf in fused:
        sizes = set(similarity.profile(leaf).sizes)
        place = _place(own, partner, -negative)
        if place is None:
            continue
        candidates = {part for part in free if part.backward == leaf.backward and part.token not in kept}
        parts = _outwards(other, candidates, place, sizes, MAX_RATIO * count, similarity)
        if parts:
            shared = {size for part in parts for size in similarity.profile(part).sizes} & sizes
            found.append(Fused(leaf, parts, len(shared) / len(sizes) if sizes else 0.0))
            free.difference_update(parts)
            free.discard(leaf)
    return found


def _place(own: list[Node], partner: dict[Node, int], index: int) -> int | None:
    """Return where in the other side a leaf belongs: just after the partner of the nearest matched leaf before it."""
    for before in range(index - 1, -1, -1):
        if own[before] in partner:
            return partner[own[before]] + 1
    for after in range(index + 1, len(own)):
        if own[after] in partner:
            return partner[own[after]]
    return None


def _outwards(
    other: list[Node], free: set[Node], place: int, sizes: set[int], budget: float, similarity: Similarity
) -> list[Node]:
    taken: list[tuple[int, Node]] = []
    positions = [place - 1, place]  # next position to look at, to the left and to the right
    solid = [0, 0]
    open_ends = [True, True]
    while budget > 0 and any(open_ends):
        for end, move in ((1, 1), (0, -1)):
            if not open_ends[end]:
                continue
            at = positions[end]
            if not 0 <= at < len(other) or solid[end] >= SOLID_RUN:
                open_ends[end] = False
                continue
            positions[end] += move
            leaf = other[at]
            if leaf not in free:
                solid[end] += 1
                continue
            solid[end] = 0
            if kernels(leaf) <= budget and (not sizes or sizes & set(similarity.profile(leaf).sizes)):
                taken.append((at, leaf))
                budget -= kernels(leaf)
    return [leaf for _, leaf in sorted(taken, key=lambda item: item[0])]
