"""Alignment that does not depend on which side is called A.

Where several alignments are equally good, the matcher takes the first that it meets, and that depends on which tree is the left
one. So the trees are put in an order of their own first: by what they hold, and by nothing else. Names and times of
recordings, ids and labels have no say.
"""

from __future__ import annotations

from fractions import Fraction

from magneton.analysis.align.fused import with_fused
from magneton.analysis.align.matcher import Correspondence, Matcher
from magneton.analysis.align.moved import with_moved
from magneton.analysis.align.similarity import Similarity
from magneton.analysis.align.tree import Node


def match_symmetric(a: Node, b: Node, factor: Fraction = Fraction(1)) -> list[Correspondence]:
    """Align two frozen trees; ``match_symmetric(b, a, 1 / factor)`` returns the mirror image.

    Args:
        a: tree of side A.
        b: tree of side B.
        factor: how many times larger the batch (or token count) of side B is.
    """
    if content(a) <= content(b):
        return _match(a, b, Similarity(factor))
    found = _match(b, a, Similarity(1 / factor))
    return [Correspondence(c.b, c.a, c.score, c.evidence, c.calls and (c.calls[1], c.calls[0])) for c in found]


def _match(left: Node, right: Node, similarity: Similarity) -> list[Correspondence]:
    found = with_moved(Matcher(similarity).match(left, right), left, right, similarity)
    return with_fused(found, left, right)


def content(tree: Node) -> list[str]:
    """Return all that the matcher looks at in a tree, in order of execution: equal for trees that it cannot tell apart."""
    found: list[str] = []
    stack = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        work = node.work
        counts = (sorted(work.class_ns), work.n_kernels, work.n_transfers, work.n_calls) if work else ()
        facts = (depth, node.kind, node.name, node.detail, node.shapes, node.module, node.backward, node.calls, counts)
        found.append(repr(facts))
        stack.extend((child, depth + 1) for child in reversed(node.children))
        if node.inner is not None:
            stack.append((node.inner, depth + 1))
    return found
