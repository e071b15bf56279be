"""Operators without a partner beside an operator that another one stands for: both together are what the other side fused.

The alignment of sequences pairs one operator with one. Where B fused four operators into one of another name, it pairs the fused one with the
most similar of the four. The other three would look as if B did not do their work at all.

Example: A runs ``addmm, add, layer_norm``, B runs ``fused`` on the tensors of ``addmm``. ``addmm`` is paired with ``fused``; what follows in A up to
the next pair joins it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from magneton.analysis.align.matcher import MAX_CALL, MAX_TIMES, Correspondence
from magneton.analysis.align.moved import held_leaves
from magneton.analysis.align.tree import Node
from magneton.schemas.kinds import Evidence

# Likeness of a pair that leftovers have joined, at most.
JOINED = 0.3


def with_fused(found: list[Correspondence], a: Node, b: Node) -> list[Correspondence]:
    """Return the correspondences of two trees in which leftovers beside a pair of other names have joined the pair.

    Operators join only if they fill the place between the pair and the next one on their side, and nothing is left over there
    on the other side: then there is nothing else that they could be.

    Args:
        found: all correspondences of the trees; every leaf is in exactly one.
        a: tree of side A.
        b: tree of side B.
    """
    held = {leaf for one in found for leaf in (*one.a, *one.b)}
    leaves = held_leaves(a, held), held_leaves(b, held)
    at = tuple({leaf: index for index, leaf in enumerate(side)} for side in leaves)
    alone = {
        leaf: one
        for one in found
        if not (one.a and one.b) and len(one.a) + len(one.b) == 1
        for leaf in (*one.a, *one.b)
    }
    renamed = [one for one in found if len(one.a) == len(one.b) == 1 and one.a[0].token != one.b[0].token]
    renamed.sort(key=lambda one: (at[0][one.a[0]], at[1][one.b[0]]))
    gone: set[int] = set()
    # A fused operator most often stands where the first of those began that it replaces, so what follows has the say before what precedes.
    for step in (1, -1):
        for one in renamed:
            for side, run in zip((one.a, one.b), _beside(one, leaves, at, alone, step), strict=True):
                if run and _plausible(side, run, one.b if side is one.a else one.a):
                    gone |= {id(alone.pop(leaf)) for leaf in run}
                    side.extend(run)
    for one in renamed:
        if len(one.a) + len(one.b) > 2:
            one.a.sort(key=at[0].__getitem__)
            one.b.sort(key=at[1].__getitem__)
            one.evidence = (one.evidence | {Evidence.ORDER}) - {Evidence.NAME}
            one.score = min(one.score or 0.0, JOINED)
    return [one for one in found if id(one) not in gone]


def _beside(
    one: Correspondence,
    leaves: tuple[Sequence[Node], Sequence[Node]],
    at: tuple[Mapping[Node, int], ...],
    alone: Mapping[Node, Correspondence],
    step: int,
) -> tuple[list[Node], list[Node]]:
    """Return the leftovers of both sides next to a pair, in one direction; nothing where both sides have some."""
    runs: list[list[Node]] = []
    for side, leaf, places in zip(leaves, (one.a[0], one.b[0]), at, strict=True):
        run: list[Node] = []
        place = places[leaf] + step
        while 0 <= place < len(side) and side[place] in alone:
            run.append(side[place])
            place += step
        runs.append(run)
    return ([], []) if all(runs) else (runs[0], runs[1])


def _plausible(side: list[Node], run: list[Node], other: list[Node]) -> bool:
    """Tell whether a pair may grow by a run: few operators, all of one pass, and times of one order."""
    if len(side) + len(run) > MAX_CALL or any(leaf.backward != side[0].backward for leaf in run):
        return False
    times = sum(leaf.device_ns for leaf in (*side, *run)), sum(leaf.device_ns for leaf in other)
    return 0 < max(times) <= MAX_TIMES * min(times)
