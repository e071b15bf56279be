"""Values as lists of slices, and where the slices of one value are in another.

A signature has a few numbers for each slice. Slices that are the same have nearly the same numbers, wherever they are.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from magneton.analysis.values.columns import Bools, Floats, Ints, Rows
from magneton.analysis.values.fingerprints import Fingerprints
from magneton.schemas.sketch import MIN_SIGNS

# Rounding is not spread evenly: a slice may be this many times as far off as the tolerance of the whole allows on average.
_UNEVEN = 4.0
# The distance of signatures estimates the distance of values, the better the more numbers there are.
_SLACK, _SLACK_OF_FEW, _FEW = 1.3, 2.0, 64
# A match must be as unlikely among unrelated values as so many bits that agree.
MIN_BITS = 30.0
# Slices of a value that are looked up first.
N_ANCHORS = 8
# An anchor that is near to more slices than this says nothing. Candidates of one comparison in memory at once.
_CROWDED, _MAX_CANDIDATES = 256, 1 << 21
# A few numbers cannot tell slices apart at a wide tolerance. Values of single precision differ by far less than this anyway.
_WIDEST, _COARSE_NOISE = 1e-3, 1e-5
# Signatures with at least so many distinct numbers, all of them multiples of a step, up to so many steps, are those of a mask.
_LEAST_STEPS, _MOST_STEPS = 3, 1e4
# Axes of a slice, number of slices, and which of the entries that share both.
_Form = tuple[str, int, int]

# Below this part of the usual size a slice counts as zeros.
_ZERO = 1e-6


@dataclass(eq=False)
class Signed:
    """A value of a side as a list of slices.

    Attributes:
        group: the group that defines the value first.
        numbers: ``float32[slices, numbers]``.
        again: the same for the second input, or None.
        elements: elements of a slice.
        error: how far two slices of this value may be apart, as root mean square per element, on each input.
        size: root mean square of the elements, on each input.
        defined: operator that defines the value.
    """

    group: int
    numbers: Rows
    again: Rows | None
    elements: int
    error: tuple[float, float]
    size: tuple[float, float]
    defined: int

    def __len__(self) -> int:
        """Return the number of slices."""
        return len(self.numbers)

    @cached_property
    def zero(self) -> Bools:
        """Which slices are zeros."""
        small: Bools = np.abs(self.numbers).max(axis=1) <= _ZERO * self.size[0] * np.sqrt(self.elements)
        return small

    @cached_property
    def order(self) -> Ints:
        """Slices sorted by their first number."""
        return np.argsort(self.numbers[:, 0], kind="stable")

    @cached_property
    def anchors(self) -> Ints:
        """A few slices that are no zeros, the first and the last among them."""
        some = np.flatnonzero(~self.zero)
        return some[np.unique(np.linspace(0, len(some) - 1, min(N_ANCHORS, len(some))).round().astype(np.int64))]


@dataclass(frozen=True)
class Place:
    """Where slices of a part are in a whole: ``at[i]`` is the slice of the whole that slice ``i`` is, -1 for none.

    ``ratio`` is the distance relative to the tolerance.
    """

    at: Ints
    ratio: float

    @property
    def n_found(self) -> int:
        """Number of slices found."""
        return int(np.count_nonzero(self.at >= 0))


def signed_values(prints: Fingerprints, side: int, definitions: dict[int, list[int]]) -> dict[str, list[Signed]]:
    """Return values of a side as lists of slices, by the axes of a slice.

    Args:
        prints: fingerprints of both sides.
        side: which side.
        definitions: for each value, by its first definition, all groups that hold it.
    """
    graph, groups = prints.sides[side], prints.groups[side]
    values, second = graph.values, graph.second if prints.second else None
    found: dict[str, list[Signed]] = defaultdict(list)
    for first, same in definitions.items():
        tolerance, noise = float(groups.tolerance[first]), float(groups.noise[first])
        if noise < _COARSE_NOISE:
            tolerance = min(tolerance, _WIDEST)
        seen: set[_Form] = set()
        for member in (m for group in same for m in graph.members[group]):
            entries = _by_form(values.signatures.of(member))
            others = _by_form(second.signatures.of(member)) if second is not None and entries else {}
            for form in entries:
                if form in seen:
                    continue
                seen.add(form)
                key, numbers, again = form[0], entries[form], others.get(form)
                inputs = [values] if again is None or second is None else [values, second]
                spread = [float(v.std[member]) for v in inputs]
                size = [float(np.hypot(v.std[member], v.mean[member])) for v in inputs]
                error = [tolerance * s + noise * z for s, z in zip(spread, size, strict=True)]
                made = Signed(
                    first,
                    numbers,
                    again,
                    int(values.numel[member]) // len(numbers),
                    (error[0], error[-1]),
                    (size[0], size[-1]),
                    int(groups.defined[first]),
                )
                if size[0] > 0 and len(made.anchors) and not _counts(numbers):
                    found[key].append(made)
    return found


def _counts(numbers: Rows) -> bool:
    """Return whether the numbers are multiples of one step, as of masks: sums of 0 and 1 agree by accident.

    Example: two draws of one dropout mask had more than half of their columns in common by their signatures.
    """
    found = np.unique(numbers.astype(np.float64))
    gaps = np.diff(found)
    gaps = gaps[gaps > 1e-4 * max(float(np.abs(found).max()), 1e-30)]
    if len(gaps) < _LEAST_STEPS:
        return False
    steps = found / gaps.min()
    return bool(np.abs(steps).max() < _MOST_STEPS and np.abs(steps - np.round(steps)).max() < 0.02)


def _by_form(entries: list[tuple[str, Rows]]) -> dict[_Form, Rows]:
    found: dict[_Form, Rows] = {}
    for key, numbers in entries:
        form = key, len(numbers), 0
        # The rows and the columns of a square are two entries of one form.
        found[form if form not in found else (key, len(numbers), 1)] = numbers
    return found


class Index:
    """The slices of many values, sorted by their first number, so that a slice is found among all of them at once."""

    def __init__(self, values: list[Signed]) -> None:
        self._values = values
        rows = np.concatenate([v.numbers[:, :MIN_SIGNS] for v in values])
        self._owner = np.repeat(np.arange(len(values)), [len(v) for v in values])
        self._order = np.argsort(rows[:, 0], kind="stable")
        self._rows = rows
        self._along = rows[self._order, 0]
        self._error = max(v.error[0] for v in values)

    def hits(self, parts: list[Signed]) -> tuple[Ints, Ints, Ints]:
        """Return which anchors of parts are near to a slice of which value: part, anchor, value; each triple once."""
        part = np.repeat(np.arange(len(parts)), [len(p.anchors) for p in parts])
        anchor = np.concatenate([np.arange(len(p.anchors)) for p in parts])
        rows = np.concatenate([p.numbers[p.anchors, :MIN_SIGNS] for p in parts])
        window = np.array([_UNEVEN * max(p.error[0], self._error) * p.elements**0.5 for p in parts])[part]
        low = np.searchsorted(self._along, rows[:, 0] - window)
        high = np.searchsorted(self._along, rows[:, 0] + window, side="right")
        high = np.where(high - low > _CROWDED, low, high)
        at, near = _expanded(low, high)
        near = self._order[near]
        keep = (np.abs(rows[at, 1:] - self._rows[near, 1:]) <= window[at, None]).all(axis=1)
        at, owner = at[keep], self._owner[near[keep]]
        found = np.unique(np.column_stack([part[at], anchor[at], owner]), axis=0)
        return found[:, 0], found[:, 1], found[:, 2]


def _expanded(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Return the pairs (window, position in it) of windows ``low`` to ``high``."""
    lengths = high - low
    window = np.repeat(np.arange(len(low)), lengths)
    inside = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return window, inside + np.repeat(low, lengths)


def locate(whole: Signed, part: Signed, free: Bools) -> Place | None:
    """Return where the slices of a part are in a whole, each at a place of its own; None if the rest is no evidence.

    Args:
        whole: the value to look in.
        part: the value to find.
        free: which slices of the whole may be taken.
    """
    compared = _Compared(whole, part)
    at = compared.in_a_row(free)
    if at is None:
        at = compared.anywhere(free)
    return None if at is None else compared.judged(at)


class _Compared:
    """A whole and a part with as many numbers as both have."""

    def __init__(self, whole: Signed, part: Signed) -> None:
        self.whole, self.part = whole, part
        width = min(whole.numbers.shape[1], part.numbers.shape[1])
        pairs = [(whole.numbers, part.numbers)]
        if whole.again is not None and part.again is not None:
            pairs.append((whole.again, part.again))
        self.pairs = [(w[:, :width], p[:, :width]) for w, p in pairs]
        self.errors = [
            max(a, b) * part.elements**0.5 for a, b in zip(whole.error[: len(pairs)], part.error, strict=False)
        ]

    def near(self, in_whole: Ints, in_part: Ints) -> Floats:
        """Return how far slices are apart relative to the limit for one slice."""
        found = np.zeros(len(in_part))
        for (w, p), error in zip(self.pairs, self.errors, strict=True):
            apart = np.abs(w[in_whole] - p[in_part]).max(axis=1)
            found = np.maximum(found, apart / (_UNEVEN * error + 1e-30))
        return found

    def in_a_row(self, free: Bools) -> Ints | None:
        """Return the place of the whole part in one piece, or None."""
        n, m = len(self.whole), len(self.part)
        anchor = int(self.part.anchors[0])
        every = np.flatnonzero(free)
        starts = every[self.near(every, np.full(len(every), anchor)) <= 1] - anchor
        for start in starts[(starts >= 0) & (starts + m <= n)][:N_ANCHORS].tolist():
            at = np.arange(start, start + m)
            if free[at].all() and (self.near(at, np.arange(m)) <= 1).all():
                return at
        return None

    def anywhere(self, free: Bools) -> Ints | None:
        """Return the place of each slice, in any order."""
        (w, p), window = self.pairs[0], _UNEVEN * self.errors[0]
        order = self.whole.order[free[self.whole.order]]
        along = w[order, 0]
        low = np.searchsorted(along, p[:, 0] - window)
        high = np.where(self.part.zero, low, np.searchsorted(along, p[:, 0] + window, side="right"))
        if (high - low).sum() > _MAX_CANDIDATES:
            return None
        in_part, near = _expanded(low, high)
        in_whole = order[near]
        apart = self.near(in_whole, in_part)
        keep = apart <= 1
        in_part, in_whole, apart = in_part[keep], in_whole[keep], apart[keep]
        by_slice = np.lexsort((in_whole, in_part))
        in_part, in_whole, apart = in_part[by_slice], in_whole[by_slice], apart[by_slice]
        at = np.full(len(self.part), -1)
        starts = np.searchsorted(in_part, np.arange(len(at) + 1))
        taken = np.zeros(len(self.whole), dtype=bool)
        last = -1
        for number in np.flatnonzero(np.diff(starts)).tolist():
            part = slice(starts[number], starts[number + 1])
            open_ = ~taken[in_whole[part]]
            places, far = in_whole[part][open_], apart[part][open_]
            if not len(places):
                continue
            # Of equal slices the next one in order.
            alike = places[far <= max(2 * far.min(), 0.05)]
            later = alike[alike > last]
            at[number] = last = int(later[0] if len(later) else alike[0])
            taken[last] = True
        return at

    def judged(self, at: Ints) -> Place | None:
        """Return a place if what was found there is near enough and no accident."""
        found = np.flatnonzero(at >= 0)
        if not len(found):
            return None
        width = self.pairs[0][0].shape[1]
        ratio = 0.0
        for (w, p), error in zip(self.pairs, self.errors, strict=True):
            distance = np.sqrt(np.square(w[at[found]] - p[found], dtype=np.float64).sum() / width)
            ratio = max(ratio, float(distance / (error * len(found) ** 0.5 + 1e-30)))
        slack = _SLACK if len(found) * width >= _FEW else _SLACK_OF_FEW
        if ratio > slack or self._bits(found, width) < MIN_BITS:
            return None
        return Place(at, ratio)

    def _bits(self, found: Ints, width: int) -> float:
        """Return how unlikely it is that unrelated slices agree, in bits. Equal slices count once."""
        along = np.sort(self.pairs[0][1][found, 0])
        different = 1 + np.count_nonzero(np.diff(along) > 2 * _UNEVEN * self.errors[0])
        bits = 0.0
        for error, size in zip(self.errors, self.part.size[: len(self.errors)], strict=True):
            # Numbers of unrelated slices lie as far apart as they are large.
            chance = 0.56 * _UNEVEN * error / (size * self.part.elements**0.5 + 1e-30)
            bits -= np.log2(min(1.0, max(chance, 1e-12)))
        return float(bits * width * different)
