"""The value oracle: what tensors really hold, compared exactly and in any arrangement. Knows nothing of fingerprints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# Elements beyond this are infinite, as everywhere in the project (masks are written as -inf or as the dtype's limit).
INFINITE = 1e30
# Rounding noise relative to the norm: values that are mostly their mean agree no better than this.
NOISE = 16 * 1.2e-7
COARSE_NOISE = 7.8e-3
# Slices with fewer elements are often equal by accident.
SHORTEST = 4


def distance(a: Array, b: Array, noise: float = NOISE) -> float:
    """Return the relative distance of two arrays of one shape, less the rounding noise.

    The distance is infinite if the arrays are infinite or NaN in different places. It is relative to the norm of the values
    after their mean is taken off. So a large mean hides no difference.
    """
    infinite_a, infinite_b = np.abs(a) >= INFINITE, np.abs(b) >= INFINITE
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    holes = infinite_a | nan_a
    if not (np.array_equal(nan_a, nan_b) and np.array_equal(infinite_a, infinite_b)):
        return np.inf
    if holes.any():
        if not np.array_equal(np.sign(a[infinite_a]), np.sign(b[infinite_b])):
            return np.inf
        a, b = a[~holes], b[~holes]
    if a.size == 0:
        return 0.0
    gap = float(np.linalg.norm(a - b)) - noise * float(np.linalg.norm(a))
    if gap <= 0:
        return 0.0
    spread = max(float(np.linalg.norm(a - a.mean())), float(np.linalg.norm(b - b.mean())))
    return gap / spread if spread else np.inf


@lru_cache(maxsize=4096)
def transpositions(source: tuple[int, ...], target: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the permutations of axes that turn one shape into another (axes of length 1 left out)."""
    if sorted(source) != sorted(target) or len(source) > 6:
        return ()
    return tuple(p for p in permutations(range(len(source))) if tuple(source[i] for i in p) == target)


def squeezed(x: Array) -> Array:
    """Drop axes of length 1."""
    return x.reshape([n for n in x.shape if n > 1])


def arrangements(x: Array, y: Array) -> Iterator[tuple[Array, Array]]:
    """Yield both arrays in every way in which they can lie on each other: in order, and with axes permuted."""
    if x.size != y.size:
        return
    yield x.ravel(), y.ravel()
    x, y = squeezed(x), squeezed(y)
    for order in transpositions(x.shape, y.shape):
        if order != tuple(range(x.ndim)):
            yield x.transpose(order), y


def agree(a: Sequence[Array], b: Sequence[Array], tolerance: float, noise: float = NOISE) -> bool:
    """Tell whether two values are the same in any of the arrangements in which each was seen."""
    for x, y in product(a, b):
        if x.size != y.size:
            return False
        for left, right in arrangements(x, y):
            if distance(left, right, noise) <= tolerance:
                return True
    return False


def same_elements(a: Sequence[Array], b: Sequence[Array], tolerance: float) -> bool:
    """Tell whether two values hold the same numbers in any order."""
    if not a or not b or a[0].size != b[0].size:
        return False
    return distance(np.sort(a[0], axis=None), np.sort(b[0], axis=None)) <= tolerance


def varies(x: Array) -> bool:
    """Tell whether a value has elements that differ."""
    return x.size > 0 and not np.array_equal(x, np.full_like(x, x.flat[0]), equal_nan=True)


def is_slice(
    whole: Sequence[Array], part: Sequence[Array], pieces: int, tolerance: float, noise: float = NOISE
) -> bool:
    """Tell whether a value is one of equal pieces of another along any of its axes, in any arrangement seen."""
    for x in whole:
        x = squeezed(x)  # noqa: PLW2901
        for axis, length in enumerate(x.shape):
            if length % pieces == 0:
                for piece in np.split(x, pieces, axis):
                    if agree([piece], part, tolerance, noise):
                        return True
    return False


def is_concatenation(
    whole: Sequence[Array], parts: Sequence[Sequence[Array]], tolerance: float, noise: float = NOISE
) -> bool:
    """Tell whether a value is others one after another, along any axis and in any arrangement seen."""
    if sum(p[0].size for p in parts) != whole[0].size:
        return False
    for shape in {tuple(squeezed(x).shape) for x in parts[0]}:
        chosen = [_of_trail(part, shape) for part in parts]
        if any(c is None for c in chosen):
            continue
        for order in permutations(range(len(shape))) if len(shape) <= 4 else [tuple(range(len(shape)))]:
            turned = [c.transpose(order) for c in chosen if c is not None]
            for axis in range(len(shape) + 1):
                joined = [np.stack(turned, axis)] if len({t.shape for t in turned}) == 1 else []
                joined += [np.concatenate(turned, axis)] if axis < len(shape) and _join(turned, axis) else []
                if any(agree(whole, [j], tolerance, noise) for j in joined):
                    return True
    return False


def _join(turned: Sequence[Array], axis: int) -> bool:
    return len({t.shape[:axis] + t.shape[axis + 1 :] for t in turned}) == 1


def same_slices(
    a: Sequence[Sequence[Array]],
    b: Sequence[Sequence[Array]],
    tolerance: float,
    share: float,
    noise: float = NOISE,
    *,
    ordered: bool = True,
) -> bool:
    """Tell whether several values of A together hold the same slices as several of B, and name them in order.

    The slices of a value may be anywhere in the values of the other side. The values are in the order of their first slices there. A
    slice is what is left of a value when one axis is fixed, or all axes but one. Example: the rows of a matrix, or its columns.

    Args:
        a: values of A, each in every arrangement in which it was seen.
        b: values of B.
        tolerance: relative distance within which two slices are the same.
        share: part of the slices of either side that must have a partner on the other. The rest may be padding.
        noise: rounding noise relative to the norm.
        ordered: the values are named in order. On another input the order may be another: a router sends other rows to an expert.
    """
    a, b = (b, a) if len(b) == 1 else (a, b)
    for width, kind in dict.fromkeys(_forms(a[0])):
        sides = [[_matrix(part, width, kind) for part in side] for side in (a, b)]
        if any(m is None for side in sides for m in side):
            continue
        x, y = ([m for m in side if m is not None] for side in sides)
        partner = _partners(np.concatenate(x), np.concatenate(y), tolerance, noise)
        longest = max(sum(map(len, x)), len(partner))
        ends = np.cumsum([len(m) for m in y])[:-1]
        firsts = [part[part >= 0].min(initial=len(partner)) for part in np.split(partner, ends)]
        if np.count_nonzero(partner >= 0) >= share * longest and (not ordered or firsts == sorted(firsts)):
            return True
    return False


def _forms(seen: Sequence[Array]) -> Iterator[tuple[int, str]]:
    """Yield the ways to see slices of a value: elements of a slice, and whether it runs along one axis or along all but one."""
    for x in map(squeezed, seen):
        for length in x.shape:
            if length >= SHORTEST:
                yield length, "along"
            if x.size // length >= SHORTEST:
                yield x.size // length, "across"


def _matrix(seen: Sequence[Array], width: int, kind: str) -> Array | None:
    for x in map(squeezed, seen):
        for axis, length in enumerate(x.shape):
            if kind == "along" and length == width:
                return np.moveaxis(x, axis, -1).reshape(-1, width)
            if kind == "across" and x.size // length == width:
                return np.moveaxis(x, axis, 0).reshape(length, width)
    return None


def _partners(x: Array, y: Array, tolerance: float, noise: float) -> NDArray[np.int64]:
    """Return for each row of ``y`` the row of ``x`` that is the same, each at most once; -1 where there is none."""
    x, y = (np.clip(np.nan_to_num(m, nan=9e9), -9e9, 9e9) for m in (x, y))
    usual = np.abs(y) < 1e9
    spread = float(y[usual].std()) * y.shape[1] ** 0.5 if usual.any() else 0.0
    size = float(np.sqrt(np.square(y[usual]).sum() / len(y)))
    free = np.ones(len(x), dtype=bool)
    found = np.full(len(y), -1)
    limit = 2 * (tolerance * spread + noise * size)
    # Rows that are near have a first element that is near; most are ruled out by it.
    order = np.argsort(x[:, 0], kind="stable")
    low = np.searchsorted(x[order, 0], y[:, 0] - limit)
    high = np.searchsorted(x[order, 0], y[:, 0] + limit, side="right")
    for number, row in enumerate(y):
        near = np.sort(order[low[number] : high[number]])
        near = near[free[near]]
        if not len(near):
            continue
        apart = np.linalg.norm(x[near] - row, axis=1)
        if apart.min() <= limit:
            found[number] = near[apart.argmin()]
            free[found[number]] = False
    return found


def _of_trail(seen: Sequence[Array], shape: tuple[int, ...]) -> Array | None:
    """The arrangement of a value that fits a shape in all axes but one."""
    for x in seen:
        x = squeezed(x)  # noqa: PLW2901
        if x.ndim == len(shape) and sum(n != m for n, m in zip(x.shape, shape, strict=True)) <= 1:
            return x
    return None
