"""Which bytes of a storage a tensor covers, in a form that all views of the same elements share.

Axes are sorted by their order in memory. Axes of length 1 are left out, and axes that are contiguous to one another are merged. So
transposed and reshaped views of the same elements have the same geometry. Broadcast axes are listed separately, since an expanded
tensor has more elements than memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Sets of more runs than this are compared by their ends only: taken to overlap and not to cover.
_MAX_RUNS = 1 << 18

Runs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Geometry:
    """Bytes covered: ``start``, then axes as (stride, length) in bytes from the largest stride to the smallest.

    The last axis is a run of bytes (stride 1). ``start`` is -1 for tensors without addressable memory: they overlap all.
    """

    start: int
    axes: tuple[tuple[int, int], ...]

    @property
    def stop(self) -> int:
        """Byte after the last one."""
        return self.start + sum(stride * (length - 1) for stride, length in self.axes) + 1


WHOLE = Geometry(-1, ())
# What tells values of one storage apart: bytes, broadcast lengths, dtype, lazy conjugation and negation.
Key = tuple[Geometry, tuple[int, ...], Any, bool, bool]


def key_of(tensor: Any) -> Key:
    """Return which value of its storage a strided tensor shows."""
    size = tensor.itemsize
    axes: list[tuple[int, int]] = []
    broadcast: list[int] = []
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if length != 1:
            if stride:
                axes.append((stride * size, length))
            else:
                broadcast.append(length)
    axes.sort(reverse=True)
    axes.append((1, size))
    merged: list[tuple[int, int]] = []
    for stride, length in axes:
        if merged and merged[-1][0] == stride * length:
            merged[-1] = (stride, merged[-1][1] * length)
        else:
            merged.append((stride, length))
    geometry = Geometry(tensor.storage_offset() * size, tuple(merged))
    return geometry, tuple(sorted(broadcast)), tensor.dtype, tensor.is_conj(), tensor.is_neg()


@lru_cache(maxsize=64)
def runs_of(geometry: Geometry) -> tuple[Runs, Runs] | None:
    """Return begins and ends of the runs of bytes, sorted and merged; None where there are too many."""
    *outer, (_, length) = geometry.axes
    count = 1
    for _, n in outer:
        count *= n
    if count > _MAX_RUNS:
        return None
    begins = np.array([geometry.start], np.int64)
    for stride, n in outer:
        begins = (begins[:, None] + stride * np.arange(n, dtype=np.int64)).ravel()
    return _joined(np.sort(begins), length)


def _joined(begins: Runs, length: int | Runs) -> tuple[Runs, Runs]:
    ends = np.maximum.accumulate(begins + length)
    new = np.ones(len(begins), bool)
    new[1:] = begins[1:] > ends[:-1]
    at = np.flatnonzero(new)
    return begins[at], ends[np.append(at[1:] - 1, len(begins) - 1)]


def overlap(one: Geometry, other: Geometry) -> bool:
    """Tell whether two geometries share a byte."""
    if one.start < 0 or other.start < 0 or one == other:
        return True
    if one.stop <= other.start or other.stop <= one.start:
        return False
    mine, others = runs_of(one), runs_of(other)
    if mine is None or others is None:
        return True
    # The last run of the other that begins before a run of mine ends must end before mine begins.
    last = np.searchsorted(others[0], mine[1], side="left") - 1
    return bool(np.any((last >= 0) & (others[1][last] > mine[0])))


def covered(inner: Geometry, outers: list[Geometry]) -> bool:
    """Tell whether geometries together hold every byte of another."""
    if inner in outers or any(outer.start < 0 for outer in outers):
        return True
    if inner.start < 0:
        return False
    wanted = runs_of(inner)
    found = [runs for runs in map(runs_of, outers) if runs is not None]
    if wanted is None or not found:
        return False
    begins = np.concatenate([runs[0] for runs in found])
    ends = np.concatenate([runs[1] for runs in found])
    order = np.argsort(begins, kind="stable")
    begins, ends = _joined(begins[order], (ends - begins)[order])
    at = np.searchsorted(begins, wanted[0], side="right") - 1
    return bool(np.all((at >= 0) & (ends[at] >= wanted[1])))
