"""Pairs of similar sketches of one arrangement, in near-linear time.

A sketch has 64 buckets. The distance of two sketches estimates the distance of the tensors to about 12 %. Three random
projections reduce each sketch to three numbers. The sketches are sorted by the first number; only sketches that are near in all
three numbers are compared in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# `_CHUNK`: candidates in memory at once. `_CROWDED`: a sketch with more candidates is compared only with those that are
# defined at similar places of their program.
_CHUNK = 2_000_000
_CROWDED = 256
_CONFIRM = 1 << 16
_N_PROJECTIONS = 3


@dataclass
class Column:
    """Sketches of one arrangement on one side.

    Attributes:
        owner: group each sketch belongs to, shape ``(n,)``.
        sketch: shape ``(n, 64)``, of centred values.
        offset: mean times the root of the number of elements: the part of the value along the constant, ``(n,)``.
        spread: norm of the centred value, ``(n,)``.
        tolerance: relative tolerance, ``(n,)``.
        floor: noise floor of the distance, ``(n,)``.
        label: equal for values that may match at all (holes, constancy, kind of number), ``(n,)``.
        place: relative position of the definition, 0 to 1, ``(n,)``.
    """

    owner: Ints
    sketch: npt.NDArray[np.float32]
    offset: Floats
    spread: Floats
    tolerance: Floats
    floor: Floats
    label: Ints
    place: Floats


@dataclass
class Near:
    """Confirmed pairs: positions in both columns and distance relative to the tolerance (1 is the limit)."""

    left: Ints
    right: Ints
    ratio: Floats


def _limit(left: Column, i: Ints, right: Column, j: Ints) -> Floats:
    tolerance = np.maximum(left.tolerance[i], right.tolerance[j])
    spread = np.maximum(left.spread[i], right.spread[j])
    return tolerance * spread + np.maximum(left.floor[i], right.floor[j]) + 1e-30


# The sketch estimates a distance: a true distance at the limit must not be lost to the estimate.
SLACK = 1.3


def pair_ratio(left: Column, i: Ints, right: Column, j: Ints) -> Floats:
    """Return the distance of given pairs relative to their tolerance, whatever their labels."""
    return _distance(left, i, right, j) / _limit(left, i, right, j)


def near_pairs(left: Column, right: Column, *, same: bool = False, most: int = 32) -> Near:
    """Return the pairs of two columns whose values agree within tolerance.

    Args:
        left: first column.
        right: second column.
        same: both columns are the same one: each pair once, never a sketch with one of its own group.
        most: number of candidates of a left sketch that has too many. Those at the most similar relative position are taken.
            Without this limit, values of low precision that lie close together would take quadratic time.
    """
    empty = Near(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    if not len(left.owner) or not len(right.owner):
        return empty
    directions = _directions(left.sketch.shape[1])
    shift = np.array([0.5, -0.3, 0.2])
    proj_left = left.sketch @ directions + left.offset[:, None] * shift
    proj_right = right.sketch @ directions + right.offset[:, None] * shift
    # A projection of the difference exceeds the distance by little: directions are of length 1, offsets count below 1.
    largest = float(right.tolerance.max())
    window = SLACK * (np.maximum(left.tolerance, largest) * left.spread * 1.5 + 2.0 * left.floor) + 1e-30
    order = np.argsort(proj_right[:, 0], kind="stable")
    along = proj_right[order, 0]
    low = np.searchsorted(along, proj_left[:, 0] - window)
    high = np.searchsorted(along, proj_left[:, 0] + window, side="right")
    crowded = high - low > _CROWDED
    high[crowded] = low[crowded]
    found: list[tuple[Ints, Ints, Floats]] = []
    along_left, along_right = np.ascontiguousarray(proj_left.T), np.ascontiguousarray(proj_right.T)
    for candidates in chain(_candidates(low, high, order), _in_place(crowded, left, right, most)):
        every_i, every_j = candidates
        # Each test runs on the candidates that the test before has left, since there may be millions.
        for number in range(1, _N_PROJECTIONS):
            near = np.abs(along_left[number][every_i] - along_right[number][every_j]) <= window[every_i]
            every_i, every_j = every_i[near], every_j[near]
        keep = left.label[every_i] == right.label[every_j]
        if same:
            keep &= left.owner[every_i] < right.owner[every_j]
        some_i, some_j = every_i[keep], every_j[keep]
        limit = _limit(left, some_i, right, some_j)
        keep = np.abs(left.offset[some_i] - right.offset[some_j]) <= SLACK * limit
        keep &= np.abs(left.spread[some_i] - right.spread[some_j]) <= SLACK * limit
        i, j = some_i[keep], some_j[keep]
        ratio = pair_ratio(left, i, right, j)
        keep = ratio <= SLACK
        found.append((i[keep], j[keep], ratio[keep]))
    if not found:
        return empty
    return Near(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


@lru_cache(maxsize=8)
def _directions(width: int) -> Floats:
    """Return the directions that sketches are projected on, ``[width, projections]``, of length 1."""
    drawn = np.random.default_rng(3).standard_normal((width, _N_PROJECTIONS))
    directions: Floats = drawn / np.linalg.norm(drawn, axis=0)
    return directions


def nearest(pairs: Near, most: int) -> Near:
    """Return the pairs that are among the ``most`` nearest of their left or of their right sketch."""
    keep = np.zeros(len(pairs.ratio), dtype=bool)
    for side in (pairs.left, pairs.right):
        order = np.lexsort((pairs.ratio, side))
        along = side[order]
        first = np.concatenate([[0], np.flatnonzero(np.diff(along)) + 1]) if len(along) else np.zeros(0, np.int64)
        rank = np.arange(len(along)) - np.repeat(first, np.diff(np.concatenate([first, [len(along)]])))
        keep[order[rank < most]] = True
    return Near(pairs.left[keep], pairs.right[keep], pairs.ratio[keep])


def _candidates(low: Ints, high: Ints, order: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield index pairs of overlapping windows, a bounded number at a time."""
    count = high - low
    total = np.cumsum(count)
    start = 0
    while start < len(count):
        before = total[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(total, before + _CHUNK)))
        lengths = count[start:end]
        i = np.repeat(np.arange(start, end), lengths)
        inside = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        yield i, order[inside + np.repeat(low[start:end], lengths)]
        start = end


def _in_place(crowded: npt.NDArray[np.bool_], left: Column, right: Column, most: int) -> Iterator[tuple[Ints, Ints]]:
    """Yield the candidates of left sketches that have too many: the ``most`` right ones defined at the most similar places."""
    rows = np.flatnonzero(crowded)
    order = np.argsort(right.place, kind="stable")
    width = min(most, len(order))
    at = np.searchsorted(right.place[order], left.place[rows]) - width // 2
    first = np.clip(at, 0, len(order) - width)
    step = max(1, _CHUNK // width)
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        i = np.repeat(rows[part], width)
        yield i, order[(first[part, None] + np.arange(width)[None, :]).ravel()]


def _distance(left: Column, i: Ints, right: Column, j: Ints) -> Floats:
    """Return the estimated distance of values: estimated by sketch for the centred parts, exact for the means."""
    distance = np.empty(len(i))
    for start in range(0, len(i), _CONFIRM):
        part = slice(start, start + _CONFIRM)
        distance[part] = np.linalg.norm(left.sketch[i[part]] - right.sketch[j[part]], axis=1)
    return np.hypot(distance, left.offset[i] - right.offset[j])
