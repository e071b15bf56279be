"""Classes of equal values.

Duplicates within one side form a class with one representative. A representative of A and one of B then match if each is
the nearest of the other.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from magneton.analysis.values.columns import Floats, Ints
from magneton.analysis.values.components import components
from magneton.analysis.values.fingerprints import Fingerprints

# If the second-best candidate is within this factor of the best, definition order decides.
UNCLEAR = 4.0


@dataclass(frozen=True)
class ValueClass:
    """Groups of both sides that hold the same value, in order of definition.

    ``ratio`` is their distance divided by the tolerance; 1 is the limit.
    """

    a: tuple[int, ...]
    b: tuple[int, ...]
    ratio: float


@dataclass(frozen=True)
class _Pairs:
    """Pairs of representatives that agree, each pair once, sorted by the representative of A."""

    a: Ints
    b: Ints
    ratio: Floats

    def first_of(self, side: int) -> tuple[Ints, Ints]:
        """Return an order that puts candidates of one representative together, nearest first, and where each begins."""
        owner, other = (self.a, self.b) if side == 0 else (self.b, self.a)
        order = np.lexsort((other, self.ratio, owner))
        fresh = np.ones(len(order), dtype=bool)
        fresh[1:] = np.diff(owner[order]) != 0
        return order, np.flatnonzero(fresh)


def find_classes(prints: Fingerprints) -> list[ValueClass]:
    """Return the classes of values that both sides hold, in order of their first definition on side A."""
    first = prints.duplicates(0), prints.duplicates(1)
    a, b, ratio = prints.across()
    pairs = _nearest_of_each(first[0][a], first[1][b], ratio)
    chosen = _mutual(pairs, prints) if prints.settings.mutual else np.arange(len(pairs.a))
    members = tuple(_members(prints, side, first[side], owner[chosen]) for side, owner in enumerate((pairs.a, pairs.b)))
    found = [ValueClass(x, y, r) for x, y, r in zip(members[0], members[1], pairs.ratio[chosen].tolist(), strict=True)]
    defined = prints.groups[0].defined
    return sorted(found, key=lambda c: (defined[c.a[0]], c.a[0], c.b[0]))


def _nearest_of_each(a: Ints, b: Ints, ratio: Floats) -> _Pairs:
    order = np.lexsort((ratio, b, a))
    a, b, ratio = a[order], b[order], ratio[order]
    fresh = np.ones(len(a), dtype=bool)
    fresh[1:] = (np.diff(a) != 0) | (np.diff(b) != 0)
    return _Pairs(a[fresh], b[fresh], ratio[fresh])


def _members(prints: Fingerprints, side: int, first: Ints, wanted: Ints) -> list[tuple[int, ...]]:
    """Return for each wanted representative the groups it stands for, in order of definition."""
    numbers = np.flatnonzero(np.isin(first, wanted))
    order = np.lexsort((numbers, prints.groups[side].defined[numbers], first[numbers]))
    numbers = numbers[order]
    owner = first[numbers]
    starts, ends = np.searchsorted(owner, wanted).tolist(), np.searchsorted(owner, wanted, side="right").tolist()
    listed = numbers.tolist()
    return [tuple(listed[s:e]) for s, e in zip(starts, ends, strict=True)]


def _mutual(pairs: _Pairs, prints: Fingerprints) -> Ints:
    """Return the pairs that are each other's nearest.

    Two candidates whose distances differ by less than ``UNCLEAR`` count as equally near; the order of definition decides
    between them.
    """
    if not len(pairs.a):
        return np.zeros(0, np.int64)
    nearest: list[dict[int, int]] = []
    unclear: list[Ints] = []
    for side in (0, 1):
        order, start = pairs.first_of(side)
        owner, other = (pairs.a, pairs.b) if side == 0 else (pairs.b, pairs.a)
        nearest.append(dict(zip(owner[order[start]].tolist(), other[order[start]].tolist(), strict=True)))
        several = start[np.diff(np.append(start, len(order))) > 1]
        best, second = pairs.ratio[order[several]], pairs.ratio[order[several + 1]]
        unclear.append(owner[order[several]][second < UNCLEAR * best])
    if prints.settings.definition_order:
        for a, b in _by_order(pairs, unclear, prints):
            nearest[0][a], nearest[1][b] = b, a
    # Definition order may pair what is nearest to neither.
    chosen = [
        nearest[0][a] == b and nearest[1][b] == a for a, b in zip(pairs.a.tolist(), pairs.b.tolist(), strict=True)
    ]
    return np.flatnonzero(chosen)


def _by_order(pairs: _Pairs, unclear: list[Ints], prints: Fingerprints) -> list[tuple[int, int]]:
    """Pair representatives with several equally near candidates by their order: the first of A with the first of B.

    This is done only where both sides have equally many of them.
    """
    near = np.isin(pairs.a, unclear[0]) | np.isin(pairs.b, unclear[1])
    if not near.any():
        return []
    a, b = pairs.a[near], pairs.b[near]
    sides = [prints.groups[side].in_order(np.unique(found)) for side, found in enumerate((a, b))]
    # Nodes are the representatives of A, then of B, each in order of definition.
    place = [np.empty(len(groups.eligible), np.int64) for groups in prints.groups]
    place[0][sides[0]] = np.arange(len(sides[0]))
    place[1][sides[1]] = len(sides[0]) + np.arange(len(sides[1]))
    label = components(len(sides[0]) + len(sides[1]), place[0][a], place[1][b])
    known = set(zip(pairs.a.tolist(), pairs.b.tolist(), strict=True))
    members: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, labels in enumerate((label[: len(sides[0])], label[len(sides[0]) :])):
        for number, component in zip(sides[side].tolist(), labels.tolist(), strict=True):
            members[component][side].append(number)
    chosen = []
    for ordered in members.values():
        found = list(zip(*ordered, strict=False))
        if len(ordered[0]) == len(ordered[1]) and all(pair in known for pair in found):
            chosen += found
    return chosen
