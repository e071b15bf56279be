"""Concatenations: one value of one side consists of several values of the other side, joined along an axis.

Examples: one fused projection against three, a batched pass against two passes, a stacked tensor against the steps of a loop.
Sketches are linear. So the sketch of a concatenation follows from the sketches of its slices, and the data need not be read
again. The axis may be one that the parts have (``cat``) or a new one (``stack``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from magneton.analysis.values.columns import Rows
from magneton.analysis.values.definitions import chains
from magneton.analysis.values.fingerprints import Fingerprints
from magneton.analysis.values.neighbours import SLACK
from magneton.schemas.sketch import arrangement_key, assignments, ones_sketch


@dataclass(frozen=True)
class Union:
    """Groups of A that together are groups of B. Often one side is a single group, the concatenation of those of the other.

    ``partial``: some slices of either side have no partner. Example: rows of padding.
    """

    a: tuple[int, ...]
    b: tuple[int, ...]
    partial: bool = False


def union_of(side: int, whole: tuple[int, ...], parts: tuple[int, ...], *, partial: bool = False) -> Union:
    """Return the union of groups of a side with groups of the other one."""
    return Union(whole, parts, partial) if side == 0 else Union(parts, whole, partial)


# Shape the slices were taken of, their buckets ``[n, 64]``, and the buckets for the second input.
_Slices = list[tuple[tuple[int, ...], Rows, Rows | None]]
# Arrangement of a slice, slices along the axis, elements.
_Shape = tuple[str, int, int]


@dataclass(slots=True)
class _Part:
    group: int
    first: np.ndarray
    again: np.ndarray | None


class _Parts:
    """The values of one side that may be a part of a whole, by shape."""

    def __init__(self, prints: Fingerprints, side: int, wanted: set[_Shape]) -> None:
        self._by_shape: dict[_Shape, list[_Part]] = defaultdict(list)
        groups = prints.groups[side]
        numel = np.array(sorted({shape[2] for shape in wanted}), np.int64)
        for number in np.flatnonzero(groups.eligible & ~groups.constant & np.isin(groups.numel, numel)).tolist():
            for shape, part in _as_part(prints, side, number, wanted):
                self._by_shape[shape].append(part)
        self._stacked: dict[_Shape, np.ndarray] = {}

    def of(self, shape: _Shape) -> tuple[list[_Part], np.ndarray] | None:
        """Return the parts of a shape and their sketches, one a row."""
        found = self._by_shape.get(shape)
        if not found:
            return None
        if shape not in self._stacked:
            self._stacked[shape] = np.stack([part.first for part in found])
        return found, self._stacked[shape]


def find_unions(prints: Fingerprints, matched: tuple[set[int], set[int]]) -> list[Union]:
    """Return the concatenations among values that are not matched as a whole."""
    found = []
    for side in (0, 1):
        wholes = _wholes(prints, side, matched[side])
        wanted = {shape for same in wholes for number in same for shape in _wanted(prints, side, number)}
        parts = _Parts(prints, 1 - side, wanted)
        for definitions in wholes:
            pieces = next(filter(None, (_split(prints, side, number, parts) for number in definitions)), ())
            found += [union_of(side, (n,), chosen) for n, chosen in assign(prints, side, definitions, pieces)]
    return found


def _wholes(prints: Fingerprints, side: int, matched: set[int]) -> list[list[int]]:
    """Return the unmatched values of a side that have slices: the definitions of each, in order."""
    graph, groups, first_of = prints.sides[side], prints.groups[side], prints.duplicates(side)
    slices = graph.values.slices
    owner = np.repeat(np.arange(len(graph.values)), np.diff(slices.start))
    several = np.fromiter((dims[0] > 1 for dims in slices.dims), bool, len(slices.dims))
    sliced = np.zeros(len(graph.values), dtype=bool)
    sliced[np.asarray(graph.group, np.int64)[owner[several]]] = True
    found: dict[int, list[int]] = defaultdict(list)
    for number in groups.in_order(np.flatnonzero(groups.eligible & ~groups.constant & sliced)).tolist():
        if number not in matched:
            found[int(first_of[number])].append(number)
    return list(found.values())


def _wanted(prints: Fingerprints, side: int, number: int) -> Iterator[_Shape]:
    """Yield the shapes whose values could be the parts of a whole."""
    numel = int(prints.groups[side].numel[number])
    graph = prints.sides[side]
    for member in graph.members[number]:
        for dims, _ in graph.values.slices.of(member):
            for pieces in range(2, dims[0] + 1):
                if not dims[0] % pieces:
                    yield arrangement_key(dims[1:]), dims[0] // pieces, numel // pieces


def _slices(prints: Fingerprints, side: int, number: int) -> _Slices:
    graph = prints.sides[side]
    found: _Slices = []
    shapes = set()
    for member in graph.members[number]:
        again = graph.second.slices.of(member) if prints.second and graph.second else []
        for index, (shape, buckets) in enumerate(graph.values.slices.of(member)):
            if shape not in shapes:
                shapes.add(shape)
                same = index < len(again) and again[index][0] == shape
                found.append((shape, buckets, again[index][1] if same else None))
    return found


def _as_part(prints: Fingerprints, side: int, number: int, wanted: set[_Shape]) -> Iterator[tuple[_Shape, _Part]]:
    """Yield the forms in which a value may be part of a concatenation: its slices in a row, or itself as one slice."""
    numel = int(prints.groups[side].numel[number])
    graph = prints.sides[side]
    for dims, buckets, again in _slices(prints, side, number):
        shape = arrangement_key(dims[1:]), dims[0], numel
        if dims[0] > 1 and shape in wanted:
            yield shape, _Part(number, buckets.ravel(), None if again is None else again.ravel())
    seen: set[str] = set()
    values, second = graph.values, graph.second if prints.second else None
    for member in graph.members[number]:
        others = second.sketches.of(member) if second is not None and second.known[member] else []
        for index, (arrangement, sketch) in enumerate(values.sketches.of(member)):
            if arrangement in seen or (arrangement, 1, numel) not in wanted or not values.known[member]:
                continue
            seen.add(arrangement)
            again = None
            if second is not None and index < len(others) and others[index][0] == arrangement:
                again = _uncentred(arrangement, others[index][1], float(second.mean[member]))
            first = _uncentred(arrangement, sketch, float(values.mean[member]))
            yield (arrangement, 1, numel), _Part(number, first, again)


def _uncentred(arrangement: str, sketch: Rows, mean: float) -> np.ndarray:
    dims = tuple(map(int, arrangement.split("x")))
    whole: np.ndarray = sketch + mean * ones_sketch(dims, assignments(dims)[0])
    return whole


def _split(prints: Fingerprints, side: int, whole: int, among: _Parts) -> tuple[int, ...]:
    """Return the first definitions of the parts of a whole in order, as few as fit; empty when there are none."""
    tolerance = _tolerance(prints, side, whole)
    numel = int(prints.groups[side].numel[whole])
    for shape, first, again in _slices(prints, side, whole):
        length = shape[0]
        for pieces in range(2, length + 1):
            each = length // pieces
            candidates = among.of((arrangement_key(shape[1:]), each, numel // pieces)) if not length % pieces else None
            if candidates is None:
                continue
            parts: list[int] = []
            for start in range(0, length, each):
                piece = first[start : start + each].ravel()
                piece_again = None if again is None else again[start : start + each].ravel()
                part = _nearest(prints, 1 - side, piece, piece_again, *candidates, tolerance)
                if part is None:
                    break
                parts.append(part)
            if len(parts) == pieces:
                return tuple(parts)
    return ()


def _nearest(
    prints: Fingerprints,
    side: int,
    piece: np.ndarray,
    piece_again: np.ndarray | None,
    parts: list[_Part],
    stacked: np.ndarray,
    tolerance: float,
) -> int | None:
    """Return the value nearest to a piece within tolerance: the group that defines it first."""
    distance = np.linalg.norm(stacked - piece, axis=1)
    size = float(np.linalg.norm(piece))
    for index in np.argsort(distance, kind="stable").tolist():
        part = parts[index]
        limit = SLACK * max(tolerance, _tolerance(prints, side, part.group))
        if distance[index] > limit * size + 1e-30:
            break
        if piece_again is not None and part.again is not None and len(part.again) == len(piece_again):
            off = float(np.linalg.norm(part.again - piece_again))
            if off > limit * float(np.linalg.norm(piece_again)) + 1e-30:
                continue
        return int(prints.duplicates(side)[part.group])
    return None


def assign(
    prints: Fingerprints, side: int, definitions: list[int], pieces: tuple[int, ...]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield each definition of a whole with the definitions of its parts.

    A definition that is computed from another of the same value forms a chain with it (see ``pair_definitions``). The
    last definition of a chain of the whole goes with the last definitions of the chains of its parts.

    Several pieces may be equal. Example: the two halves of a guided diffusion pass, before guidance. Then the chains of
    this value are used in order. A value that the other side computes only once may be several pieces.
    """
    if not pieces:
        return
    first_of = prints.duplicates(1 - side)
    alike = {n: prints.in_order(1 - side, np.flatnonzero(first_of == n).tolist()) for n in set(pieces)}
    links = {n: chains(prints.sides[1 - side], same) for n, same in alike.items()}
    wholes = chains(prints.sides[side], definitions)
    often = Counter(pieces)
    for turn, chain in enumerate(wholes):
        used: Counter[int] = Counter()
        chosen = []
        for piece in pieces:
            found = links[piece]
            # The other side ran one pass after the other: all chains of the first piece come before those of the second.
            at = turn + used[piece] * len(wholes) if len(found) == often[piece] * len(wholes) else used[piece]
            chosen.append(found[min(at, len(found) - 1)])
            used[piece] += 1
        for back in range(1, min(len(chain), *map(len, chosen)) + 1):
            yield chain[-back], tuple(parts[-back] for parts in chosen)


def _tolerance(prints: Fingerprints, side: int, group: int) -> float:
    return float(prints.groups[side].tolerance[group])
