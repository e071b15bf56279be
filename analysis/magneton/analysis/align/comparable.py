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
    """Side B's shapes are side A's with one length multiplied by ``factor``; ``a`` and ``b`` are that length.

    Attributes:
        samples: number of samples of a step of A and of B, None where the shapes do not tell.
        tokens: the same of tokens: rows of the inputs.
        by_rows: only tensors of two axes grew, so that the rows may be samples or tokens.
    """

    factor: Fraction
    a: int
    b: int
    op: str
    shapes_a: Shape
    shapes_b: Shape
    samples: tuple[int, int] | None = None
    tokens: tuple[int, int] | None = None
    by_rows: bool = False

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
    grown: dict[Fraction, list[tuple[str, Shape, Shape]]] = defaultdict(list)
    votes: Counter[Fraction | None] = Counter()
    lengths: Counter[tuple[int, int]] = Counter()
    example: dict[Fraction, tuple[str, Shape, Shape]] = {}
    for name in sorted(calls_a.keys() & calls_b.keys()):
        if len(calls_a[name]) != len(calls_b[name]):
            continue
        for left, right in zip(calls_a[name], calls_b[name], strict=True):
            factor = _factor(left, right, lengths)
            votes[factor] += 1
            if factor is not None:
                example.setdefault(factor, (name, left, right))
                grown[factor].append((name, left, right))
    best = max(
        (f for f in votes if f is not None and f != 1),
        key=lambda f: (votes[f], f.numerator, f.denominator),
        default=None,
    )
    if best is None or votes[best] < MIN_SCALE_SHARE * votes.total() or votes[best] <= votes[Fraction(1)]:
        return None
    pair = max((p for p in lengths if Fraction(p[1], p[0]) == best), key=lambda p: (lengths[p], -p[0]))
    op, left, right = example[best]
    samples, tokens, by_rows = _samples_and_tokens(grown[best], pair)
    return Scale(best, *pair, op, left, right, samples, tokens, by_rows)


_Counts = tuple[int, int] | None


def _samples_and_tokens(calls: list[tuple[str, Shape, Shape]], pair: tuple[int, int]) -> tuple[_Counts, _Counts, bool]:
    """Tell from tensors of three and more axes whether the length that grew counts samples or what one sample holds.

    The first axis counts samples: ``[2, 4, 128, 64]`` is two samples. Where a later axis grew, the samples are as many as before. Tensors of
    two axes tell less: their rows are samples, or the tokens of all samples. Batched matrix products put samples and heads
    on the first axis.
    """
    first: set[tuple[int, int]] = set()
    later: set[tuple[int, int, int]] = set()
    for name, left, right in calls:
        for one, other in zip(left, right, strict=True):
            if len(one) < 3 or one == other or "bmm" in name:
                continue
            if one[0] != other[0]:
                first.add((one[0], other[0]))
            else:
                later |= {(one[0], x, y) for x, y in zip(one, other, strict=True) if x != y}
    if not first and not later:
        return pair, pair, True
    if first == {pair} and not later:
        return pair, None, False
    if len(later) == 1 and not first:
        ((samples, length_a, length_b),) = later
        return (samples, samples), (samples * length_a, samples * length_b), False
    return None, None, False


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
