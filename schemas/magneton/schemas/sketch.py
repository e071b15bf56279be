"""Count sketches of tensors: the hashes that all recorders use, and a plain reference implementation.

A sketch adds each element, with a sign, to one of ``BUCKETS`` buckets. It is linear, and the norm of the difference of two
sketches estimates the norm of the difference of the tensors. Bucket and sign of an element come from one hash per axis: buckets add
modulo ``BUCKETS``, signs multiply. The hash of an axis depends on the length of the axis, and on its number among the axes of this
length. It does not depend on the place of the axis. So a permuted tensor has the same sketch. Axes of length 1 do not count.

The *flat* sketch follows the elements in logical (row-major) order, whatever the shape: element ``i`` is hashed as entry
``(i // BLOCK, i % BLOCK)`` of a matrix of two axes of their own. A reshaped tensor has the same flat sketch.

A *signature* sees a tensor as a list of slices and reduces each slice to a few numbers: the sums of its elements with random signs.
Example: the signature of a matrix by rows has 2 to 8 numbers for each row. Two tensors that share rows share entries of their
signatures, wherever the rows are. So parts of any length are recognised in a whole.

Hashes are integer arithmetic (the finaliser of splitmix64), so they are the same in every process, on every machine and
with every release of NumPy. A change of the hashes makes recordings incomparable, so it needs a new schema version.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

BUCKETS = 64
BLOCK = 256
# Permutations of equally long axes give one entry each, so that a transposed square compares; this many at most.
MAX_ASSIGNMENTS = 6
FLAT = "flat:"

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_AXIS, _FLAT_BLOCK, _FLAT_COLUMN, _SIGNATURE = 1, 2, 3, 4

# Numbers in each entry of a signature: at least 2. A short signature has more, so that few entries are still distinctive.
MIN_SIGNS = 2
MAX_SIGNS = 8
_SIGNATURE_SIZE = 512


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed


def _hashed(length: int, *key: int) -> NDArray[np.uint64]:
    seed = np.array([0], np.uint64)
    for part in key:
        seed = _mix(seed + np.uint64((part * _GOLDEN + _GOLDEN) & _MASK))
    return _mix(seed + np.arange(1, length + 1, dtype=np.uint64) * np.uint64(_GOLDEN))


def _hash(length: int, *key: int) -> tuple[Ints, Floats]:
    hashed = _hashed(length, *key)
    buckets = (hashed >> np.uint64(58)).astype(np.int64)
    signs = 1 - 2 * ((hashed >> np.uint64(57)) & np.uint64(1)).astype(np.float32)
    buckets.setflags(write=False)
    signs.setflags(write=False)
    return buckets, signs


@lru_cache(maxsize=512)
def axis_hash(length: int, occurrence: int = 0) -> tuple[Ints, Floats]:
    """Return the hash of an axis.

    Args:
        length: length of the axis.
        occurrence: number among the axes of this length, from 0.

    Returns:
        Buckets (``int64[length]``, below ``BUCKETS``) and signs (``float32[length]``, 1 or -1); both read-only.
    """
    return _hash(length, _AXIS, length, occurrence)


@lru_cache(maxsize=64)
def block_hash(n_blocks: int) -> tuple[Ints, Floats]:
    """Return the hash of the first ``n_blocks`` blocks of the flat order; that of fewer blocks is its beginning."""
    return _hash(n_blocks, _FLAT_BLOCK)


@lru_cache(maxsize=1)
def column_hash() -> tuple[Ints, Floats]:
    """Return the hash of the ``BLOCK`` places within a block of the flat order."""
    return _hash(BLOCK, _FLAT_COLUMN)


def arrangement_key(shape: Sequence[int]) -> str:
    """Return the key of an arrangement; two sketches compare if their keys are equal.

    The key lists the lengths above 1 in ascending order, e.g. ``64x128x768``. Without any it is ``1``.
    """
    return "x".join(map(str, sorted(n for n in shape if n > 1))) or "1"


def flat_key(numel: int) -> str:
    """Return the key of flat sketches, e.g. ``flat:98304``."""
    return f"{FLAT}{numel}"


@lru_cache(maxsize=4096)
def assignments(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the ways to number equally long axes: one occurrence number per axis, at most ``MAX_ASSIGNMENTS`` ways.

    The first numbers them by place. Axes of length 1 have occurrence 0.
    """
    places: dict[int, list[int]] = {}
    for axis, length in enumerate(shape):
        if length > 1:
            places.setdefault(length, []).append(axis)
    found = []
    orders = itertools.product(*(itertools.permutations(range(len(axes))) for axes in places.values()))
    for numbers in itertools.islice(orders, MAX_ASSIGNMENTS):
        ways = [0] * len(shape)
        for axes, order in zip(places.values(), numbers, strict=True):
            for axis, occurrence in zip(axes, order, strict=True):
                ways[axis] = occurrence
        found.append(tuple(ways))
    return tuple(found)


def combined_hash(shape: Sequence[int], occurrences: Sequence[int]) -> tuple[Ints, Floats]:
    """Return buckets and signs of all elements of a shape, in row-major order."""
    buckets, signs = np.zeros(1, np.int64), np.ones(1, np.float32)
    for length, occurrence in zip(shape, occurrences, strict=True):
        if length == 1:
            continue
        own_buckets, own_signs = axis_hash(length, occurrence)
        buckets = (buckets[:, None] + own_buckets).ravel() % BUCKETS
        signs = (signs[:, None] * own_signs).ravel()
    return buckets, signs


def _spread(buckets: Ints, weights: NDArray[np.floating]) -> NDArray[np.float64]:
    return np.asarray(np.bincount(buckets, weights=weights, minlength=BUCKETS), np.float64)


def sketch(values: NDArray[np.float64], occurrences: Sequence[int] | None = None) -> NDArray[np.float64]:
    """Return the sketch of an array: the reference of what recorders compute faster.

    Args:
        values: array of any shape, already centred if it is to be.
        occurrences: numbers of equally long axes (default: by place).
    """
    ways = assignments(values.shape)[0] if occurrences is None else occurrences
    buckets, signs = combined_hash(values.shape, ways)
    return _spread(buckets, values.ravel() * signs)


def flat_sketch(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sketch of an array's elements in row-major order, whatever its shape."""
    flat = values.ravel()
    at = np.arange(flat.size)
    blocks, block_signs = block_hash(-(-flat.size // BLOCK))
    columns, column_signs = column_hash()
    buckets = (blocks[at // BLOCK] + columns[at % BLOCK]) % BUCKETS
    signs = block_signs[at // BLOCK] * column_signs[at % BLOCK]
    return _spread(buckets, flat * signs)


@lru_cache(maxsize=1024)
def ones_sketch(shape: tuple[int, ...], occurrences: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the sketch of a tensor of ones; sketches being linear, ``S(x - m) = S(x) - m S(1)``."""
    spectrum = np.ones(BUCKETS // 2 + 1, np.complex128)
    for length, occurrence in zip(shape, occurrences, strict=True):
        if length > 1:
            buckets, signs = axis_hash(length, occurrence)
            spectrum = spectrum * np.fft.rfft(_spread(buckets, signs))
    # The axes combine by circular convolution. All true values are whole numbers.
    result = np.rint(np.fft.irfft(spectrum, BUCKETS))
    result.setflags(write=False)
    return result


@lru_cache(maxsize=1024)
def flat_ones_sketch(numel: int) -> NDArray[np.float64]:
    """Return the flat sketch of ``numel`` ones."""
    whole, rest = divmod(numel, BLOCK)
    blocks, block_signs = block_hash(-(-numel // BLOCK))
    columns, column_signs = column_hash()
    rows = _spread(blocks[:whole], block_signs[:whole])
    result = _convolve(rows, _spread(columns, column_signs))
    if rest:
        tail = _spread(columns[:rest], column_signs[:rest])
        result = result + np.roll(tail * block_signs[whole], blocks[whole])
    result.setflags(write=False)
    return result


def _convolve(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.rint(np.fft.irfft(np.fft.rfft(one) * np.fft.rfft(other), BUCKETS))


def concatenated(slices: NDArray[np.floating], occurrence: int = 0) -> NDArray[np.float64]:
    """Return the sketch of a tensor from the sketches of its slices along an axis.

    Args:
        slices: sketches of the slices in order, ``[n, BUCKETS]``, not centred.
        occurrence: occurrence number of the axis among the equally long axes of the whole. The slices must have been
            hashed with the numbers the other axes have in the whole.
    """
    if len(slices) == 1:
        return np.asarray(slices[0], np.float64)
    buckets, signs = axis_hash(len(slices), occurrence)
    rolled = (np.arange(BUCKETS) - buckets[:, None]) % BUCKETS
    turned = np.take_along_axis(np.asarray(slices, np.float64), rolled, axis=1)
    return np.asarray((signs[:, None] * turned).sum(axis=0), np.float64)


def n_signs(n_slices: int) -> int:
    """Return how many numbers each entry of a signature of so many slices has."""
    return min(MAX_SIGNS, max(MIN_SIGNS, _SIGNATURE_SIZE // max(n_slices, 1)))


@lru_cache(maxsize=256)
def signature_signs(shape: tuple[int, ...]) -> Floats:
    """Return the signs of the elements of a slice, ``float32[elements, MAX_SIGNS]``, in row-major order; read-only.

    An entry with fewer numbers uses the first columns.
    """
    signs = np.ones((1, MAX_SIGNS), np.float32)
    bits = np.arange(40, 40 + MAX_SIGNS, dtype=np.uint64)
    for length, occurrence in zip(shape, assignments(shape)[0], strict=True):
        if length > 1:
            hashed = _hashed(length, _SIGNATURE, length, occurrence)
            own = 1 - 2 * ((hashed[:, None] >> bits) & np.uint64(1)).astype(np.float32)
            signs = (signs[:, None, :] * own).reshape(-1, MAX_SIGNS)
    signs.setflags(write=False)
    return signs


def signature(slices: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the signature of slices, ``[n, n_signs(n)]``: the reference of what recorders compute faster.

    Args:
        slices: the slices, the first axis numbers them. All values are finite; recorders put 0 for NaN and infinities.
    """
    n = len(slices)
    return np.asarray(slices.reshape(n, -1) @ signature_signs(slices.shape[1:])[:, : n_signs(n)], np.float64)
