"""Concatenations: a value of one side that is several values of the other, one after another along an axis.

Fused projections, a batched pass against split ones, loop steps stacked: sketches are linear, so the sketch of a
concatenation follows from the sketches of its slices and needs no further pass over the data.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from magneton.analysis.values.classes import Fingerprints
from magneton.analysis.values.near import SLACK
from magneton.analysis.values.settings import tolerance_of


@dataclass(frozen=True)
class Union:
    """Group ``whole`` of one side is the concatenation of ``parts`` of the other; ``whole_side`` is 0 for A."""

    whole_side: int
    whole: int
    parts: tuple[int, ...]


# Shape the slices were taken of, their buckets, and the buckets for the second input.
_Slices = list[tuple[tuple[int, ...], np.ndarray, np.ndarray | None]]
_Shape = tuple[object, ...]


@dataclass(slots=True)
class _Part:
    group: int
    first: np.ndarray
    again: np.ndarray | None


def find_unions(prints: Fingerprints, matched: tuple[set[int], set[int]]) -> list[Union]:
    """Return the concatenations among values that are not matched as a whole."""
    slices = tuple(_slices(prints, side) for side in (0, 1))
    return _of_side(prints, 0, slices[0], slices[1], matched[0]) + _of_side(prints, 1, slices[1], slices[0], matched[1])


def _slices(prints: Fingerprints, side: int) -> dict[int, _Slices]:
    graph = prints.sides[side]
    found: dict[int, _Slices] = defaultdict(list)
    for number, group in prints.groups[side].items():
        if group.constant:
            continue
        shapes = set()
        for member in graph.members[number]:
            again = graph.second[member].slices if prints.second and graph.second else []
            for index, (shape, buckets, _) in enumerate(graph.values[member].slices):
                if shape in shapes:
                    continue
                shapes.add(shape)
                same = index < len(again) and again[index][0] == shape
                found[number].append((shape, buckets, again[index][1] if same else None))
    return found


def _trail(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(n for n in shape[1:] if n > 1))


def _of_side(
    prints: Fingerprints, side: int, wholes: dict[int, _Slices], parts: dict[int, _Slices], matched: set[int]
) -> list[Union]:
    by_shape: dict[_Shape, list[_Part]] = defaultdict(list)
    for number, found in parts.items():
        numel = prints.groups[1 - side][number].value.numel
        for shape, first, again in found:
            by_shape[_trail(shape), shape[0], numel].append(
                _Part(number, first.ravel(), None if again is None else again.ravel())
            )
    stacked = {key: np.stack([p.first for p in found]) for key, found in by_shape.items()}
    result = []
    for number, found in wholes.items():
        if number in matched:
            continue
        union = _split(prints, side, number, found, by_shape, stacked)
        if union:
            result.append(Union(side, number, union))
    return result


def _split(
    prints: Fingerprints,
    side: int,
    whole: int,
    found: _Slices,
    by_shape: dict[_Shape, list[_Part]],
    stacked: dict[_Shape, np.ndarray],
) -> tuple[int, ...]:
    """Return the parts of a whole in order, as few as fit; empty when there are none."""
    tolerance = _tolerance(prints, side, whole)
    numel = prints.groups[side][whole].value.numel
    for shape, first, again in found:
        length = shape[0]
        for pieces in range(2, length + 1):
            if length % pieces:
                continue
            each = length // pieces
            key = (_trail(shape), each, numel // pieces)
            if key not in by_shape:
                continue
            parts: list[int] = []
            for start in range(0, length, each):
                piece = first[start : start + each].ravel()
                piece_again = None if again is None else again[start : start + each].ravel()
                part = _nearest(prints, 1 - side, piece, piece_again, by_shape[key], stacked[key], tolerance, parts)
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
    taken: list[int],
) -> int | None:
    """Return the group nearest to a piece within tolerance, one not taken yet if there is one.

    Equal pieces (the two halves of a guided pass, before guidance) are the several definitions of one value, in order; a
    value that the other side computes once may be several pieces.
    """
    again_taken = None
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
        if part.group not in taken:
            group: int = part.group
            return group
        again_taken = part.group if again_taken is None else again_taken
    return again_taken


def _tolerance(prints: Fingerprints, side: int, group: int) -> float:
    return tolerance_of(prints.groups[side][group].precision, prints.settings)
