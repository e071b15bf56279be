"""Fingerprints of both sides by arrangement, and the pairs of groups that agree: within one side, and across the sides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from magneton.analysis.values.columns import Bools, Floats, Ints, Values, is_floating
from magneton.analysis.values.graph import MIN_NUMEL, ValueGraph
from magneton.analysis.values.neighbours import SLACK, Column, Near, near_pairs, nearest, pair_ratio
from magneton.analysis.values.settings import MatchSettings, noise_of, tolerance_of

# Duplicates within a side are computed by the same operators, so they agree better than two implementations do.
DUPLICATE_TOLERANCE = 1e-5
DUPLICATE_NOISE = 2e-7
# Whole numbers agree exactly; only their sketches are rounded.
_WHOLE_TOLERANCE = 1e-9
# Only mutually nearest values match, so a few nearest candidates of each are enough.
_MAX_NEAREST = 6
# Arrangements of one key that a group may have (permutations of equal axes are several entries of one value).
_MAX_ENTRIES = 6


@dataclass
class Groups:
    """What is known of the groups of a side. Entry ``i`` of each array belongs to group ``i`` and holds where ``eligible[i]``.

    Attributes:
        eligible: the group may be matched: enough elements, a fingerprint, not a mask.
        value: the member whose fingerprint stands for the group.
        numel: number of elements.
        floating: of floating numbers.
        constant: derives from parameters alone.
        tolerance: relative tolerance of its precision.
        noise: rounding noise of its precision, relative to the norm.
        defined: number of the operator that defines it first, -1 for inputs and parameters.
    """

    eligible: Bools
    value: Ints
    numel: Ints
    floating: Bools
    constant: Bools
    tolerance: Floats
    noise: Floats
    defined: Ints

    def in_order(self, numbers: Ints) -> Ints:
        """Return groups in order of definition."""
        return numbers[np.lexsort((numbers, self.defined[numbers]))]


def groups_of(graph: ValueGraph, settings: MatchSettings) -> Groups:
    """Return what is known of the groups of a side."""
    values, n = graph.values, len(graph.values)
    group, every = np.asarray(graph.group, np.int64), np.arange(n)
    usable = values.known | np.array([text is not None for text in values.hash], dtype=bool)
    first = np.full(n, n)
    np.minimum.at(first, group[usable], every[usable])
    value = np.minimum(first, n - 1)
    dtype = np.array(values.dtype, dtype=object)[value]
    floating = np.fromiter(map(is_floating, dtype), bool, n)
    eligible = (first < n) & (values.numel[value] >= MIN_NUMEL) & (dtype != "bool")
    producer = np.fromiter((p[0] if p else -1 for p in graph.producers), np.int64, n)
    defined = np.full(n, len(graph.operators))
    np.minimum.at(defined, group, producer)
    kinds = sorted(set(values.precision), key=lambda p: (noise_of(p), p))
    rank = np.zeros(n, np.int64)
    np.maximum.at(
        rank, group, np.fromiter(map({p: i for i, p in enumerate(kinds)}.__getitem__, values.precision), int, n)
    )
    noise = np.array([noise_of(p) for p in kinds] or [0.0])[rank]
    tolerance = np.array([tolerance_of(p, settings) for p in kinds] or [0.0])[rank]
    return Groups(
        eligible=eligible,
        value=value,
        numel=values.numel[value],
        floating=floating,
        constant=np.bincount(group[~values.constant], minlength=n) == 0,
        tolerance=np.where(floating, tolerance, _WHOLE_TOLERANCE),
        noise=np.where(floating, noise, noise_of("float32")),
        defined=defined,
    )


@dataclass
class _Measures:
    """Offset, spread, floor and label of each group, for one input."""

    known: Bools
    offset: Floats
    spread: Floats
    floor: Floats
    label: Ints


def _measures(values: Values, groups: Groups) -> _Measures:
    mean, std, root = values.mean[groups.value], values.std[groups.value], np.sqrt(groups.numel)
    kinds = np.column_stack([groups.numel, groups.constant, groups.floating, values.holes[groups.value]])
    return _Measures(
        values.known[groups.value], mean * root, std * root, groups.noise * root * np.hypot(std, mean), kinds
    )


@dataclass
class _Entries:
    """The sketches of the eligible groups of a side, sorted by arrangement: rows ``at[key]`` of the arrays."""

    at: dict[str, slice]
    owner: Ints
    row: Ints
    row_again: Ints  # -1 where the second input has no such sketch


class Fingerprints:
    """The sketches of both sides as columns per arrangement, and the pairs of groups that agree."""

    def __init__(self, a: ValueGraph, b: ValueGraph, settings: MatchSettings) -> None:
        self.sides = (a, b)
        self.settings = settings
        self.groups = (groups_of(a, settings), groups_of(b, settings))
        self.second = settings.second_input and a.second is not None and b.second is not None
        self._entries = (self._entries_of(0), self._entries_of(1))
        self._measured: dict[tuple[int, bool], _Measures] = {}
        inputs = [(side, again) for side in (0, 1) for again in ((False, True) if self.second else (False,))]
        for side, again in inputs:
            self._measured[side, again] = _measures(self._values(side, again), self.groups[side])
        labels = np.concatenate([self._measured[k].label for k in inputs])
        numbers = np.unique(labels, axis=0, return_inverse=True)[1].ravel()
        at = 0
        for key in inputs:
            length = len(self._measured[key].label)
            self._measured[key].label = numbers[at : at + length]
            at += length
        self._first_of: dict[int, Ints] = {}

    def _values(self, side: int, again: bool) -> Values:
        graph = self.sides[side]
        return graph.second if again and graph.second is not None else graph.values

    def _entries_of(self, side: int) -> _Entries:
        graph, groups = self.sides[side], self.groups[side]
        sketches, group = graph.values.sketches, np.asarray(graph.group, np.int64)
        lengths = np.diff(sketches.start)
        value = np.repeat(np.arange(len(lengths)), lengths)
        row = np.arange(len(value))
        place = row - sketches.start[value]
        owner = group[value]
        keep = groups.eligible[owner] & graph.values.known[groups.value[owner]]
        if not self.settings.views:
            keep &= place < 2
        row, owner, place, value = row[keep], owner[keep], place[keep], value[keep]
        key = sketches.key[row]
        # Values are in order of definition, so rows are too: the first few of each group and arrangement stay.
        order = np.lexsort((row, owner, key))
        row, owner, key, place, value = row[order], owner[order], key[order], place[order], value[order]
        keep = _rank_within(key, owner) < _MAX_ENTRIES
        row, owner, key, place, value = row[keep], owner[keep], key[keep], place[keep], value[keep]
        bounds = np.searchsorted(key, np.arange(len(sketches.names) + 1)).tolist()
        at = {name: slice(bounds[k], bounds[k + 1]) for k, name in enumerate(sketches.names)}
        return _Entries(
            {name: part for name, part in at.items() if part.stop > part.start},
            owner,
            row,
            self._rows_again(side, key, value, place) if self.second else np.full(len(row), -1),
        )

    def _rows_again(self, side: int, key: Ints, value: Ints, place: Ints) -> Ints:
        first, again = self.sides[side].values.sketches, self._values(side, True).sketches
        code = {name: k for k, name in enumerate(first.names)}
        translated = np.array([code.get(name, -1) for name in again.names] or [-1])
        found = again.start[value] + place
        there = found < again.start[value + 1]
        found = np.where(there, found, 0)
        if len(again.key):
            there &= translated[again.key[found]] == key
        return np.where(there, found, -1)

    def _column(self, side: int, key: str, *, again: bool) -> Column | None:
        """Return the sketches of an arrangement; None if the second input lacks some of them."""
        entries, measures, groups = self._entries[side], self._measured[side, again], self.groups[side]
        part = entries.at[key]
        owner, rows = entries.owner[part], (entries.row_again if again else entries.row)[part]
        if again and ((rows < 0).any() or not measures.known[owner].all()):
            return None
        return Column(
            owner,
            self._values(side, again).sketches.rows[rows],
            measures.offset[owner],
            measures.spread[owner],
            groups.tolerance[owner],
            measures.floor[owner],
            measures.label[owner],
            (groups.defined[owner] + 1) / (len(self.sides[side].operators) + 1),
        )

    def _columns(self, side: int, key: str) -> tuple[Column, Column | None]:
        first = self._column(side, key, again=False)
        if first is None:
            raise ValueError(f"arrangement {key} has no sketches")
        return first, self._column(side, key, again=True) if self.second else None

    def in_order(self, side: int, numbers: list[int]) -> list[int]:
        """Return groups of a side in order of definition."""
        found: list[int] = self.groups[side].in_order(np.asarray(numbers, np.int64)).tolist()
        return found

    def duplicates(self, side: int) -> Ints:
        """Return for each eligible group of a side the first defined group that holds the same value; -1 for others."""
        if side not in self._first_of:
            self._first_of[side] = self._duplicates(side)
        return self._first_of[side]

    def _duplicates(self, side: int) -> Ints:
        near: dict[int, set[int]] = defaultdict(set)
        for left, right in self._alike(side):
            for a, b in zip(left.tolist(), right.tolist(), strict=True):
                near[a].add(b)
                near[b].add(a)
        groups = self.groups[side]
        first_of = np.where(groups.eligible, np.arange(len(groups.eligible)), -1)
        done: set[int] = set()
        for number in groups.in_order(np.array(sorted(near), np.int64)).tolist():
            if number not in done:
                done.add(number)
                others = near[number] - done
                first_of[list(others)] = number
                done |= others
        return first_of

    def _alike(self, side: int) -> Iterator[tuple[Ints, Ints]]:
        for key in self._entries[side].at:
            first, again = self._columns(side, key)
            exact = _exact(first)
            pairs = near_pairs(exact, exact, same=True)
            left, right = pairs.left, pairs.right
            if again is not None and len(left):
                keep = _ratio(_exact(again), left, _exact(again), right) <= SLACK
                left, right = left[keep], right[keep]
            yield exact.owner[left], exact.owner[right]
        for numbers in self._by_hash(side).values():
            yield np.full(len(numbers) - 1, numbers[0]), np.array(numbers[1:], np.int64)

    def across(self) -> tuple[Ints, Ints, Floats]:
        """Return the pairs of groups of both sides that agree, with the distance relative to the tolerance."""
        found: list[tuple[Ints, Ints, Floats]] = []
        for key in sorted(self._entries[0].at.keys() & self._entries[1].at.keys()):
            (left, left_again), (right, right_again) = self._columns(0, key), self._columns(1, key)
            pairs = near_pairs(left, right)
            i, j, ratio = pairs.left, pairs.right, pairs.ratio
            if left_again is not None and right_again is not None and len(i):
                again = _ratio(left_again, i, right_again, j)
                keep = again <= SLACK
                i, j, ratio = i[keep], j[keep], np.maximum(ratio[keep], again[keep])
            few = nearest(Near(i, j, ratio), _MAX_NEAREST)
            found.append((left.owner[few.left], right.owner[few.right], few.ratio))
        hashes_a, hashes_b = self._by_hash(0), self._by_hash(1)
        same = [(a, b) for key in hashes_a.keys() & hashes_b.keys() for a in hashes_a[key] for b in hashes_b[key]]
        found.append((*np.array(same, np.int64).reshape(-1, 2).T, np.zeros(len(same))))
        a, b, ratio = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return a, b, ratio

    def _by_hash(self, side: int) -> dict[tuple[object, ...], list[int]]:
        groups = self.groups[side]
        found: dict[tuple[object, ...], list[int]] = defaultdict(list)
        first, again = self._values(side, False), self._values(side, True)
        for number in np.flatnonzero(groups.eligible & ~groups.floating).tolist():
            value = int(groups.value[number])
            text = first.hash[value]
            if text is not None:
                other = again.hash[value] if self.second else None
                found[int(groups.numel[number]), text, other, bool(groups.constant[number])].append(number)
        return found


def _rank_within(*keys: Ints) -> Ints:
    """Return the position of each entry among those with the same keys; entries are sorted by the keys."""
    n = len(keys[0])
    if not n:
        return np.zeros(0, np.int64)
    fresh = np.ones(n, dtype=bool)
    fresh[1:] = np.logical_or.reduce([np.diff(key) != 0 for key in keys])
    start = np.flatnonzero(fresh)
    return np.arange(n) - np.repeat(start, np.diff(np.append(start, n)))


def _exact(column: Column) -> Column:
    """Return a column with the tolerance for duplicates within a side."""
    return replace(
        column,
        tolerance=np.full(len(column.owner), DUPLICATE_TOLERANCE),
        floor=DUPLICATE_NOISE * np.hypot(column.spread, column.offset),
    )


def _ratio(left: Column, i: Ints, right: Column, j: Ints) -> Floats:
    """Return the distance of given pairs relative to their tolerance; infinite for values that may not match at all."""
    return np.where(left.label[i] == right.label[j], pair_ratio(left, i, right, j), np.inf)
