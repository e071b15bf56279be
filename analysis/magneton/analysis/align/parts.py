"""Wholes and parts: several calls of one operator whose tensors add up to those of one call on the other side.

Example: three projections for queries, keys and values against one fused projection. The input is the same, and the sizes of the
three weights add up to the size of the fused weight. Sequence alignment pairs one of the three calls and leaves two unmatched.
Here the two join the pair.
"""

from __future__ import annotations

from math import prod

from magneton.analysis.align.tree import Node

# How far apart, in operators that carry work, the parts may lie.
WINDOW = 12


def sizes(leaf: Node) -> tuple[int, ...]:
    """Return the number of elements of each tensor input."""
    return tuple(prod(shape) for shape in leaf.shapes or ())


def parts_of(whole: Node, part: Node, left_over: list[tuple[int, Node]], place: int) -> list[Node]:
    """Return the unmatched calls whose tensors, together with those of ``part``, add up to those of ``whole``.

    Args:
        whole: call of the other side.
        part: call it was paired with, of the same name on smaller tensors.
        left_over: calls of the part's side without a partner, with their position in order of execution.
        place: position of ``part``.
    """
    total, own = sizes(whole), sizes(part)
    if whole.token != part.token or len(total) != len(own) or not own:
        return []
    shared = [i for i in range(len(own)) if own[i] == total[i]]
    summed = [i for i in range(len(own)) if own[i] != total[i]]
    if not shared or not summed or any(own[i] > total[i] for i in summed):
        return []
    near = [(at, leaf) for at, leaf in left_over if abs(at - place) <= WINDOW and leaf.token == part.token]
    fits = [
        (at, leaf)
        for at, leaf in near
        if len(sizes(leaf)) == len(own) and all(sizes(leaf)[i] == own[i] for i in shared)
    ]
    line = sorted([*fits, (place, part)], key=lambda item: item[0])
    here = next(i for i, (_, leaf) in enumerate(line) if leaf is part)
    for length in range(2, len(line) + 1):
        for start in range(max(0, here - length + 1), min(here, len(line) - length) + 1):
            run = [leaf for _, leaf in line[start : start + length]]
            if all(sum(sizes(leaf)[i] for leaf in run) == total[i] for i in summed):
                return [leaf for leaf in run if leaf is not part]
    return []
