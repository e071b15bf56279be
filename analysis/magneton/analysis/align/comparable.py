"""Whether two recordings did the same work: batch and token counts from shapes, devices from the manifests."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from fractions import Fraction

from magneton.analysis.align.tree import Node, Shape

# At least this share of the comparable operator calls must differ by one and the same factor.
MIN_SCALE_SHARE = 0.5


@dataclass(frozen=True)
class Scale:
    """Side B's shapes are side A's with one length multiplied by ``factor``; ``a`` and ``b`` are that length."""

    factor: Fraction
    a: int
    b: int
    op: str
    shapes_a: Shape
    shapes_b: Shape

    def describe(self) -> str:
        """Return one clause naming the operator and both shapes."""
        return f"{self.op} ran on {_text(self.shapes_a)} on side A and on {_text(self.shapes_b)} on side B"


def _text(shapes: Shape) -> str:
    return "[" + ", ".join(str(list(s)) for s in shapes) + "]"


def find_scale(a: Node, b: Node) -> Scale | None:
    """Tell whether one side ran the same program on a larger batch (or more tokens).

    Calls of one operator are paired by their number; a pair votes for the factor by which all its differing lengths
    differ. Returns None when equal shapes prevail, or when no factor holds for at least half of the pairs.
    """
    calls_a, calls_b = _calls(a), _calls(b)
    votes: Counter[Fraction | None] = Counter()
    lengths: Counter[tuple[int, int]] = Counter()
    example: dict[Fraction, tuple[str, Shape, Shape]] = {}
    for name in sorted(calls_a.keys() & calls_b.keys()):
        if len(calls_a[name]) != len(calls_b[name]):
            continue
        for left, right in zip(calls_a[name], calls_b[name], strict=True):
            factor = _factor(left, right, lengths)
            votes[factor] += 1
            if factor is not None and factor not in example:
                example[factor] = (name, left, right)
    best = max(
        (f for f in votes if f is not None and f != 1),
        key=lambda f: (votes[f], f.numerator, f.denominator),
        default=None,
    )
    if best is None or votes[best] < MIN_SCALE_SHARE * votes.total() or votes[best] <= votes[Fraction(1)]:
        return None
    pair = max((p for p in lengths if Fraction(p[1], p[0]) == best), key=lambda p: (lengths[p], -p[0]))
    op, left, right = example[best]
    return Scale(best, pair[0], pair[1], op, left, right)


def _calls(tree: Node) -> dict[str, list[Shape]]:
    found: dict[str, list[Shape]] = defaultdict(list)
    for leaf in tree.leaves():
        if leaf.shapes:
            found[leaf.name].append(leaf.shapes)
    return found


def _factor(left: Shape, right: Shape, lengths: Counter[tuple[int, int]]) -> Fraction | None:
    """Return the one factor between two lists of shapes: 1 when equal, None when there is no single one."""
    if left == right:
        return Fraction(1)
    if len(left) != len(right):
        return None
    found: set[Fraction] = set()
    pairs: list[tuple[int, int]] = []
    for one, other in zip(left, right, strict=True):
        if len(one) != len(other):
            return None
        for x, y in zip(one, other, strict=True):
            if x != y:
                if not x or not y:
                    return None
                found.add(Fraction(y, x))
                pairs.append((x, y))
    if len(found) != 1:
        return None
    lengths.update(pairs)
    return found.pop()
