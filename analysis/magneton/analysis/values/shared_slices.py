"""Values of both sides that together hold the same slices, whatever their lengths and order.

Sketches of slices (``concatenations``) find equal parts along a short axis. Signatures find the rest: a prompt in chunks of 37 and 27
tokens, the same in chunks of 32, a batch of 20 in parts, the columns of a product over several ranks, rows in another order, and
sequences with padding.

There are three steps. Each step leaves to the next ones what it does not explain.

* A whole of one side consists of parts of the other side.
* Several values of A together are several values of B.
* At least half of a whole consists of parts, and at least half of each part is in the whole. The rest is padding.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from magneton.analysis.values.components import components
from magneton.analysis.values.concatenations import Union, assign, union_of
from magneton.analysis.values.definitions import chains
from magneton.analysis.values.fingerprints import Fingerprints
from magneton.analysis.values.signed import Index, Place, Signed, locate, signed_values

# Of a whole with padding, and of each of its parts, so much must be on the other side.
MIN_SHARE = 0.5
# Parts whose distances to a whole differ by less than this factor are equally near. The first defined one is taken.
_UNCLEAR = 4.0

# For each value of one side the values of the other side that hold some of its anchors, with how many.
_Hits = dict[Signed, dict[Signed, int]]


def find_shared(
    prints: Fingerprints,
    matched: tuple[set[int], set[int]],
    pairs: Sequence[tuple[int, int, int]],
    unions: Sequence[Union],
) -> list[Union]:
    """Return the values that together hold the same slices, among those that neither match nor are in a union.

    Args:
        prints: fingerprints of both sides.
        matched: groups of each side whose value is on the other side.
        pairs: groups that correspond. A matched group that is in no pair is another definition of its value. It may consist of parts.
        unions: the concatenations that are known.
    """
    search = _Search(prints, matched, pairs, unions)
    return [*search.wholes(exact=True), *search.several(), *search.wholes(exact=False)]


class _Search:
    """The values that are still open on each side, by their first definitions."""

    def __init__(
        self,
        prints: Fingerprints,
        matched: tuple[set[int], set[int]],
        pairs: Sequence[tuple[int, int, int]],
        unions: Sequence[Union],
    ) -> None:
        self._prints = prints
        self._open: list[dict[int, list[int]]] = []
        self._values: list[dict[str, list[Signed]]] = []
        # Values that are on both sides as a whole. They are no parts.
        self._whole: list[set[int]] = []
        for side in (0, 1):
            groups, first_of = prints.groups[side], prints.duplicates(side)
            in_unions = [g for u in unions for g in (u.a, u.b)[side]]
            may_be = groups.eligible & ~groups.constant & groups.floating
            may_be &= ~np.isin(first_of, first_of[np.array(in_unions, np.int64)])
            may_be[[pair[side] for pair in pairs]] = False
            definitions: dict[int, list[int]] = defaultdict(list)
            for number in groups.in_order(np.flatnonzero(may_be)).tolist():
                definitions[int(first_of[number])].append(number)
            self._open.append(dict(definitions))
            self._whole.append(set(first_of[np.array(sorted(matched[side]), np.int64)].tolist()))
            self._values.append(signed_values(prints, side, self._open[side]))
        keys = self._values[0].keys() & self._values[1].keys()
        # What holds slices of what does not change: it is looked up once, in both directions.
        self._hits: tuple[dict[str, _Hits], dict[str, _Hits]] = (
            {key: _hits(self._values[0][key], self._values[1][key]) for key in keys},
            {key: _hits(self._values[1][key], self._values[0][key]) for key in keys},
        )

    def wholes(self, *, exact: bool) -> Iterator[Union]:
        """Yield the wholes of either side that consist of parts of the other; unless ``exact``, with padding."""
        for side in (0, 1):
            for first, forms in self._candidates(side).items():
                if first not in self._open[side] or (first in self._whole[side] and not exact):
                    continue
                pieces = max(
                    (self._parts(side, form, exact) for form in forms),
                    key=lambda parts: sum(share for _, share in parts),
                    default=[],
                )
                if not pieces:
                    continue
                parts = tuple(part.group for part, _ in pieces)
                definitions = self._open[side].pop(first)
                for number, chosen in assign(self._prints, side, definitions, parts):
                    yield union_of(side, (number,), chosen, partial=not exact)
                for part in parts:
                    self._open[1 - side].pop(part, None)

    def _candidates(self, side: int) -> dict[int, list[tuple[Signed, list[tuple[Signed, int]]]]]:
        """Return for each open value of a side its forms, each with values of the other that may be parts."""
        forms: dict[Signed, list[tuple[Signed, int]]] = defaultdict(list)
        for hits in self._hits[1 - side].values():
            for part, wholes in hits.items():
                for whole, often in wholes.items():
                    forms[whole].append((part, often))
        found: dict[int, list[tuple[Signed, list[tuple[Signed, int]]]]] = defaultdict(list)
        for whole in sorted(forms, key=lambda form: (form.defined, form.group)):
            found[whole.group].append((whole, forms[whole]))
        return found

    def _parts(
        self, side: int, form: tuple[Signed, list[tuple[Signed, int]]], exact: bool
    ) -> list[tuple[Signed, float]]:
        """Return the parts of a whole in order, each with the share of the whole that it is; none if they are too little."""
        whole, candidates = form
        free = ~whole.zero
        wanted = int(np.count_nonzero(free))
        placed: list[tuple[tuple[float, ...], Signed, Place]] = []
        for part, often in candidates:
            if not self._may_be_part(1 - side, part) or often < (len(part.anchors) if exact else 2):
                continue
            if len(part) > len(whole) and exact:
                continue
            place = locate(whole, part, free)
            if place is not None and _enough(place, part, exact) and not _in_place(place, whole):
                near = round(math.log(max(place.ratio, 0.03), _UNCLEAR))
                placed.append(((-place.n_found, near, part.defined, part.group), part, place))
        placed.sort(key=lambda entry: entry[0])
        chosen: list[tuple[int, Signed, int]] = []
        for _, part, place in placed:
            at = place.at[place.at >= 0]
            if not free[at].all():
                # Equal slices elsewhere may still be free.
                other = locate(whole, part, free) if exact and free.any() else None
                if other is None or not _enough(other, part, exact):
                    continue
                at = other.at[other.at >= 0]
            free[at] = False
            chosen.append((int(at.min()), part, len(at)))
            if not free.any():
                break
        covered = sum(n for _, _, n in chosen)
        if covered < (wanted if exact else MIN_SHARE * wanted):
            return []
        chosen.sort(key=lambda entry: entry[0])
        return [(part, n / wanted) for _, part, n in chosen]

    def _may_be_part(self, side: int, value: Signed) -> bool:
        return value.group in self._open[side] and value.group not in self._whole[side]

    def several(self) -> Iterator[Union]:
        """Yield values of A that together are values of B."""
        for key in sorted(self._hits[0]):
            for sides in self._clusters(key):
                if not all(sides) or not _same_slices(*sides):
                    continue
                yield from self._assigned(sides)
                for side, values in enumerate(sides):
                    for value in values:
                        self._open[side].pop(value.group, None)

    def _clusters(self, key: str) -> list[tuple[list[Signed], list[Signed]]]:
        """Return the open values that share slices, of both sides, in order of definition."""
        values = [[v for v in self._values[side][key] if self._may_be_part(side, v)] for side in (0, 1)]
        number = {v: n for n, v in enumerate(chain(*values))}
        near = {(x, y) for x, others in self._hits[0][key].items() for y in others}
        near |= {(x, y) for y, others in self._hits[1][key].items() for x in others}
        places = [
            (x, y, place)
            for x, y in sorted((pair for pair in near if pair[0] in number and pair[1] in number), key=_place_of_pair)
            if (place := locate(x, y, ~x.zero)) is not None
        ]
        edges = [(number[x], number[y]) for x, y in _disjoint(places)]
        if not edges:
            return []
        ends = np.array(sorted(edges), np.int64)
        found: dict[int, tuple[list[Signed], list[Signed]]] = defaultdict(lambda: ([], []))
        for value, label in zip(number, components(len(number), ends[:, 0], ends[:, 1]).tolist(), strict=True):
            found[label][number[value] >= len(values[0])].append(value)
        return [
            (self._made(0, a), self._made(1, b)) for _, (a, b) in sorted(found.items()) if len(a) > 1 and len(b) > 1
        ]

    def _made(self, side: int, values: list[Signed]) -> list[Signed]:
        """Leave out what is only put together from others of the same values, for example a cache."""
        graph = self._prints.sides[side]
        members = {g for value in values for g in self._open[side][value.group]}

        def moved(group: int) -> bool:
            makers = [graph.operators[o] for v in graph.members[group] for o in graph.producers[v]]
            return bool(makers) and all(
                o.move and any(graph.group[v] in members and graph.group[v] != group for v in o.reads) for o in makers
            )

        kept = [value for value in values if not moved(value.group)]
        return sorted(kept, key=lambda value: (value.defined, value.group))

    def _assigned(self, sides: tuple[list[Signed], list[Signed]]) -> Iterator[Union]:
        """Yield the definitions of values that together are one another: the last of each, the one before, and so on."""
        links = [
            [chains(self._prints.sides[side], self._open[side][value.group])[-1] for value in values]
            for side, values in enumerate(sides)
        ]
        for back in range(1, min(len(link) for link in chain(*links)) + 1):
            a, b = (tuple(link[-back] for link in side) for side in links)
            yield Union(a, b)


def _place_of_pair(pair: tuple[Signed, Signed]) -> tuple[int, ...]:
    x, y = pair
    return x.defined, x.group, y.defined, y.group, len(x), len(y)


def _disjoint(places: list[tuple[Signed, Signed, Place]]) -> list[tuple[Signed, Signed]]:
    """Return the pairs of values that share slices which neither shares with a value that it has more in common with.

    Example of what is left out: under a causal mask the first token attends to itself alone. So the first row of the result of
    attention is the first row of the values that went into it.
    """
    free: dict[Signed, np.ndarray] = {}
    kept = []
    for x, y, place in sorted(places, key=lambda entry: -entry[2].n_found):
        in_x, in_y = place.at[place.at >= 0], place.at >= 0
        open_x = free.setdefault(x, np.ones(len(x), dtype=bool))
        open_y = free.setdefault(y, np.ones(len(y), dtype=bool))
        if open_x[in_x].all() and open_y[in_y].all():
            open_x[in_x] = False
            open_y[in_y] = False
            kept.append((x, y))
    return kept


def _hits(values: list[Signed], others: list[Signed]) -> _Hits:
    """Return for each value the others that hold some of its anchors."""
    # A value of one slice holds no parts.
    wholes = [v for v in others if len(v) > 1]
    found: _Hits = defaultdict(dict)
    if wholes and values:
        part, _, owner = Index(wholes).hits(values)
        for (p, w), often in zip(*_counted(part, owner), strict=True):
            found[values[p]][wholes[w]] = often
    return found


def _counted(*columns: np.ndarray) -> tuple[list[list[int]], list[int]]:
    rows, often = np.unique(np.column_stack(columns), axis=0, return_counts=True)
    return rows.tolist(), often.tolist()


def _enough(place: Place, part: Signed, exact: bool) -> bool:
    n = len(part) if exact else int(np.count_nonzero(~part.zero)) * MIN_SHARE
    return place.n_found >= n


def _in_place(place: Place, whole: Signed) -> bool:
    """Tell whether two values of one length share slices only at the same places.

    If they share all of them, they are one value, and the matcher of values has judged that. If they share some of them, they differ
    in the others, and that is no padding.
    """
    found = np.flatnonzero(place.at >= 0)
    return len(place.at) == len(whole) and bool((place.at[found] == found).all())


def _same_slices(a: list[Signed], b: list[Signed]) -> bool:
    """Tell whether the slices of several values of A are those of several values of B, each one once."""
    if sum(map(len, a)) != sum(map(len, b)):
        return False
    left, right = _joined(a), _joined(b)
    place = locate(left, right, np.ones(len(left), dtype=bool))
    return place is not None and place.n_found == len(right)


def _joined(values: list[Signed]) -> Signed:
    """Return several values as one list of slices."""
    width = min(v.numbers.shape[1] for v in values)
    again = [v.again[:, :width] for v in values if v.again is not None]
    return Signed(
        values[0].group,
        np.concatenate([v.numbers[:, :width] for v in values]),
        np.concatenate(again) if len(again) == len(values) else None,
        values[0].elements,
        (max(v.error[0] for v in values), max(v.error[1] for v in values)),
        (max(v.size[0] for v in values), max(v.size[1] for v in values)),
        values[0].defined,
    )
