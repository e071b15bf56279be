"""Classes of equal values: duplicates within each side, then mutually nearest representatives across the sides."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import count

import networkx as nx
import numpy as np

from magneton.analysis.values.graph import MIN_NUMEL, Stats, Value, ValueGraph, is_floating
from magneton.analysis.values.near import SLACK, Column, Near, near_pairs, nearest, pair_ratio
from magneton.analysis.values.settings import MatchSettings, noise_of, tolerance_of

# Duplicates within a side are computed by the same operators: they agree far better than two implementations do.
DUPLICATE_TOLERANCE = 1e-5
DUPLICATE_NOISE = 2e-7
# If the second-best candidate is within this factor of the best, definition order decides.
UNCLEAR = 4.0
Entry = tuple[int, np.ndarray, np.ndarray | None]  # group, sketch, sketch of the second input
# Only mutually nearest values match: this many nearest of each are enough to tell.
_MAX_NEAREST = 6
# Arrangements of one key that a group may have (permutations of equal axes are several entries of one value).
_MAX_ENTRIES = 6


@dataclass(slots=True)
class Group:
    """What is known of a group of values that hold the same elements."""

    value: Value
    again: Value | None
    precision: str
    constant: bool
    defined: int


@dataclass(frozen=True)
class ValueClass:
    """Groups of both sides that hold the same value, in order of definition, and how far they differ (1: tolerance)."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    ratio: float


def groups(graph: ValueGraph) -> dict[int, Group]:
    """Return the groups that may be matched: enough elements, a fingerprint, not a mask, not a by-product."""
    found = {}
    for number, members in graph.members.items():
        if all(_by_product(graph, member) for member in members):
            continue
        first = next((m for m in members if graph.values[m].stats or graph.values[m].hash), None)
        if first is None:
            continue
        value = graph.values[first]
        if value.numel < MIN_NUMEL or value.dtype == "bool":
            continue
        precision = max((graph.values[m].precision for m in members), key=lambda p: (noise_of(p), p))
        found[number] = Group(
            value,
            graph.second[first] if graph.second else None,
            precision if is_floating(value.dtype) else value.dtype,
            all(graph.values[m].constant for m in members),
            graph.defined(number),
        )
    return found


def _by_product(graph: ValueGraph, value: int) -> bool:
    """Whether nobody reads a value that comes out beside another: statistics of a norm, say, where nothing is trained."""
    if graph.consumers[value] or graph.values[value].role is not None or not graph.producers[value]:
        return False
    beside = [v for o in graph.producers[value] for v in graph.operators[o].writes if v != value]
    return any(graph.consumers[v] or graph.values[v].role is not None for v in beside)


class Fingerprints:
    """The sketches of both sides as columns per arrangement, and the pairs of groups that agree."""

    def __init__(self, a: ValueGraph, b: ValueGraph, settings: MatchSettings) -> None:
        self.sides = (a, b)
        self.settings = settings
        self.groups = (groups(a), groups(b))
        self.second = settings.second_input and a.second is not None and b.second is not None
        self._labels: dict[object, int] = defaultdict(count().__next__)
        self._first_of: dict[int, dict[int, int]] = {}
        self._columns = tuple(self._build(graph, found) for graph, found in zip(self.sides, self.groups, strict=True))

    def _build(self, graph: ValueGraph, found: dict[int, Group]) -> dict[str, tuple[Column, Column | None]]:
        entries: dict[str, list[Entry]] = defaultdict(list)
        self._rows: dict[bool, dict[int, tuple[float, ...]]] = {False: {}, True: {}}
        for number, group in found.items():
            if not group.value.stats:
                continue
            seen: dict[str, int] = defaultdict(int)
            for member in graph.members[number]:
                value = graph.values[member]
                again = graph.second[member].sketches if graph.second else []
                kept = value.sketches if self.settings.views else value.sketches[:2]
                for index, (key, sketch) in enumerate(kept):
                    if seen[key] < _MAX_ENTRIES:
                        seen[key] += 1
                        same = index < len(again) and again[index][0] == key
                        entries[key].append((number, sketch, again[index][1] if same else None))
        return {key: self._column(list_, found, len(graph.operators)) for key, list_ in entries.items()}

    def _column(self, entries: list[Entry], found: dict[int, Group], length: int) -> tuple[Column, Column | None]:
        owners = [number for number, _, _ in entries]
        first = self._filled(owners, [s for _, s, _ in entries], found, length, again=False)
        again = [sketch for _, _, sketch in entries if sketch is not None]
        if not self.second or len(again) < len(entries):
            return first, None
        if any((g := found[o].again) is None or g.stats is None for o in owners):
            return first, None
        return first, self._filled(owners, again, found, length, again=True)

    def _filled(
        self,
        owners: list[int],
        sketches: list[np.ndarray],
        found: dict[int, Group],
        length: int,
        *,
        again: bool,
    ) -> Column:
        known = self._rows[again]
        rows = []
        for number in owners:
            if number not in known:
                known[number] = self._row(found[number], length, again=again)
            rows.append(known[number])
        offset, spread, tolerance, floor, label, place = map(np.asarray, zip(*rows, strict=True))
        return Column(
            np.asarray(owners, np.int64),
            np.stack(sketches),
            offset,
            spread,
            tolerance,
            floor,
            label.astype(np.int64),
            place,
        )

    def _row(self, group: Group, length: int, *, again: bool) -> tuple[float, ...]:
        """Return offset, spread, tolerance, floor, label and place of a group."""
        value = group.again if again and group.again else group.value
        stats = value.stats
        if stats is None:  # _column asks for statistics of both inputs first
            raise ValueError(f"value {value.tensor_id} has no statistics")
        return (
            stats.mean * math.sqrt(value.numel),
            stats.centred_norm(value.numel),
            tolerance_of(group.precision, self.settings) if is_floating(value.dtype) else 1e-9,
            noise_of(group.precision) * stats.norm(value.numel),
            self._labels[self._label(group, stats)],
            (group.defined + 1) / (length + 1),
        )

    @staticmethod
    def _label(group: Group, stats: Stats) -> tuple[object, ...]:
        return group.value.numel, stats.holes, group.constant, is_floating(group.value.dtype)

    def in_order(self, side: int, numbers: list[int]) -> list[int]:
        """Return groups of a side in order of definition."""
        found = self.groups[side]
        return sorted(numbers, key=lambda number: (found[number].defined, number))

    def duplicates(self, side: int) -> dict[int, int]:
        """Return for each group of a side the first defined group that holds the same value."""
        if side not in self._first_of:
            self._first_of[side] = self._duplicates(side)
        return self._first_of[side]

    def _duplicates(self, side: int) -> dict[int, int]:
        near: dict[int, list[int]] = defaultdict(list)
        for first, again in self._columns[side].values():
            exact = _exact(first)
            pairs = near_pairs(exact, exact, same=True)
            left, right = pairs.left, pairs.right
            if again is not None:
                keep = _ratio(_exact(again), left, _exact(again), right) <= SLACK
                left, right = left[keep], right[keep]
            for a, b in zip(exact.owner[left].tolist(), exact.owner[right].tolist(), strict=True):
                near[a].append(b)
                near[b].append(a)
        for numbers in self._by_hash(side).values():
            for a in numbers[1:]:
                near[numbers[0]].append(a)
                near[a].append(numbers[0])
        found = self.groups[side]
        first_of: dict[int, int] = {}
        for number in sorted(found, key=lambda n: (found[n].defined, n)):
            if number not in first_of:
                first_of[number] = number
                for other in near[number]:
                    first_of.setdefault(other, number)
        return first_of

    def across(self) -> dict[tuple[int, int], float]:
        """Return the pairs of groups of both sides that agree, with the distance relative to the tolerance."""
        best: dict[tuple[int, int], float] = {}
        for key in sorted(self._columns[0].keys() & self._columns[1].keys()):
            (left, left_again), (right, right_again) = self._columns[0][key], self._columns[1][key]
            pairs = near_pairs(left, right)
            i, j, ratio = pairs.left, pairs.right, pairs.ratio
            if left_again is not None and right_again is not None and len(i):
                again = _ratio(left_again, i, right_again, j)
                keep = again <= SLACK
                i, j, ratio = i[keep], j[keep], np.maximum(ratio[keep], again[keep])
            few = nearest(Near(i, j, ratio), _MAX_NEAREST)
            owners = left.owner[few.left].tolist(), right.owner[few.right].tolist()
            for a, b, value in zip(*owners, few.ratio.tolist(), strict=True):
                if value < best.get((a, b), np.inf):
                    best[a, b] = value
        hashes_a, hashes_b = self._by_hash(0), self._by_hash(1)
        for key_ in hashes_a.keys() & hashes_b.keys():
            for a in hashes_a[key_]:
                for b in hashes_b[key_]:
                    best[a, b] = 0.0
        return best

    def _by_hash(self, side: int) -> dict[object, list[int]]:
        found: dict[object, list[int]] = defaultdict(list)
        for number, group in self.groups[side].items():
            if group.value.hash is not None:
                again = group.again.hash if self.second and group.again else None
                found[group.value.numel, group.value.hash, again, group.constant].append(number)
        return found


def _exact(column: Column) -> Column:
    """Return a column with the tolerance for duplicates within a side."""
    return replace(
        column,
        tolerance=np.full(len(column.owner), DUPLICATE_TOLERANCE),
        floor=DUPLICATE_NOISE * np.hypot(column.spread, column.offset),
    )


def _ratio(left: Column, i: np.ndarray, right: Column, j: np.ndarray) -> np.ndarray:
    """Return the distance of given pairs relative to their tolerance; infinite for values that may not match at all."""
    return np.where(left.label[i] == right.label[j], pair_ratio(left, i, right, j), np.inf)


def find_classes(prints: Fingerprints) -> list[ValueClass]:
    """Return the classes of values that both sides hold, in order of their first definition on side A."""
    first_a, first_b = prints.duplicates(0), prints.duplicates(1)
    best: dict[tuple[int, int], float] = {}
    for (a, b), ratio in prints.across().items():
        pair = (first_a[a], first_b[b])
        if ratio < best.get(pair, np.inf):
            best[pair] = ratio
    chosen = _mutual(best, prints) if prints.settings.mutual else best
    members: tuple[dict[int, list[int]], dict[int, list[int]]] = (defaultdict(list), defaultdict(list))
    for side, first in enumerate((first_a, first_b)):
        for number, representative in first.items():
            members[side][representative].append(number)
    found = []
    for (a, b), ratio in chosen.items():
        ordered = [tuple(prints.in_order(side, members[side][number])) for side, number in enumerate((a, b))]
        found.append(ValueClass(ordered[0], ordered[1], ratio))
    return sorted(found, key=lambda c: (prints.groups[0][c.a[0]].defined, c.a[0], c.b[0]))


def _mutual(best: dict[tuple[int, int], float], prints: Fingerprints) -> dict[tuple[int, int], float]:
    """Keep mutually nearest pairs; between nearly equal candidates the order of definition decides."""
    candidates: tuple[dict[int, list[tuple[float, int]]], dict[int, list[tuple[float, int]]]] = (
        defaultdict(list),
        defaultdict(list),
    )
    for (a, b), ratio in best.items():
        candidates[0][a].append((ratio, b))
        candidates[1][b].append((ratio, a))
    nearest = tuple({number: min(found)[1] for number, found in side.items()} for side in candidates)
    if prints.settings.definition_order:
        for a, b in _by_order(best, candidates, prints):
            nearest[0][a], nearest[1][b] = b, a
    return {(a, b): best[a, b] for a, b in nearest[0].items() if nearest[1].get(b) == a}


def _by_order(
    best: dict[tuple[int, int], float],
    candidates: tuple[dict[int, list[tuple[float, int]]], dict[int, list[tuple[float, int]]]],
    prints: Fingerprints,
) -> list[tuple[int, int]]:
    """Pair the representatives of unclear neighbourhoods n-th with n-th, where both sides have equally many."""
    unclear: tuple[set[int], set[int]] = (set(), set())
    for side in (0, 1):
        for number, found in candidates[side].items():
            two = sorted(found)[:2]
            if len(two) == 2 and two[1][0] < UNCLEAR * two[0][0]:
                unclear[side].add(number)
    if not unclear[0] and not unclear[1]:
        return []
    joined = nx.Graph()
    joined.add_edges_from(((0, a), (1, b)) for a, b in best if a in unclear[0] or b in unclear[1])
    chosen = []
    for component in nx.connected_components(joined):
        ordered = [prints.in_order(side, [n for s, n in component if s == side]) for side in (0, 1)]
        pairs = list(zip(*ordered, strict=False))
        if len(ordered[0]) == len(ordered[1]) and all(pair in best for pair in pairs):
            chosen += pairs
    return chosen
