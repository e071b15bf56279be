"""Fingerprints of torch tensors: statistics of the finite part, count sketches per arrangement, slices along axis 0.

Everything is computed in float32 from pieces of bounded size, with sums carried on in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magneton.collectors.tensor_reading import Plain, TensorView, why_unreadable
from magneton.collectors.tensor_sketch import flat_sketch, separable_sketch, slice_sketches, whole_of_slices
from magneton.collectors.tensor_statistics import Statistics, exact_hash, statistics_of
from magneton.collectors.torch_profile import import_torch
from magneton.schemas.sketch import BUCKETS, arrangement_key, assignments, flat_key

torch: Any = import_torch()

# A handful of elements is equal by accident: no sketches.
MIN_SKETCHED = 16
MAX_SLICES = 8
MAX_SKETCHES = 24
MAX_SLICE_SHAPES = 4

Geometry = tuple[tuple[int, int], ...]


@dataclass
class Fingerprint:
    """What is known of a value; arrangements are added as views of it appear.

    Attributes:
        statistics: of the finite elements; None until a tensor was read.
        hash: of integers and booleans, in order.
        sketches: key and buckets, ``float32[BUCKETS]``, centred.
        slices: shape, buckets ``float32[n, BUCKETS]`` and norms of the slices along axis 0, not centred.
        why: why there is nothing to know.
    """

    statistics: Statistics | None = None
    hash: str | None = None
    sketches: list[tuple[str, NDArray[np.float32]]] = field(default_factory=list)
    slices: list[tuple[tuple[int, ...], NDArray[np.float32], list[float]]] = field(default_factory=list)
    why: str | None = None
    _seen: set[object] = field(default_factory=set)
    _n_flat: int = 0

    def add(self, tensor: Any, *, constant: bool = False) -> None:
        """Add what a view of the value shows.

        Args:
            tensor: the view. Its content must be that of the value.
            constant: it derives from parameters alone: one flat order is enough, and no slices.
        """
        if self.why is not None or len(self.sketches) >= MAX_SKETCHES:
            return
        self.why = why_unreadable(tensor)
        if self.why is not None or not self._new(tensor.shape, tensor.stride()):
            return
        with Plain():
            tensor = tensor.detach()
            self._add(torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor, constant)

    def _new(self, *sight: object) -> bool:
        """Note that something was seen; tell whether it is the first time."""
        if sight in self._seen:
            return False
        self._seen.add(sight)
        return True

    def _add(self, tensor: Any, constant: bool) -> None:
        view = TensorView(tensor)
        if self.statistics is None:
            self.statistics = statistics_of(view)
            if not tensor.is_floating_point():
                self.hash = exact_hash(tensor)
        if tensor.dtype == torch.bool or tensor.numel() < MIN_SKETCHED:
            return
        stats, shape = self.statistics, tuple(tensor.shape)
        geometry = tuple((n, s) for n, s in zip(shape, tensor.stride(), strict=True) if n > 1)
        level = stats.min == stats.max and not stats.holes
        slices = None
        if not constant and self._wants_slices(tensor, shape):
            slices, norms = slice_sketches(view, stats)
            self.slices.append((shape, slices, norms))
        # A permuted view has the same axes in another order; a reshaped one has the same flat order.
        if self._new("axes", tuple(sorted(geometry))):
            for way in assignments(shape):
                whole = None if slices is None else whole_of_slices(slices, shape, way, stats)
                if whole is None:
                    whole = np.zeros(BUCKETS) if level else separable_sketch(view, stats, way)
                self._append(arrangement_key(shape), whole)
        if not (constant and self._n_flat) and self._new("flat", _merged(geometry)):
            self._n_flat += 1
            self._append(flat_key(tensor.numel()), np.zeros(BUCKETS) if level else flat_sketch(view, stats))

    def _wants_slices(self, tensor: Any, shape: tuple[int, ...]) -> bool:
        if not shape or not 1 <= shape[0] <= MAX_SLICES or len(self.slices) >= MAX_SLICE_SHAPES:
            return False
        return self._new("slices", shape[0], tensor.stride(0) if shape[0] > 1 else 0, arrangement_key(shape[1:]))

    def _append(self, key: str, buckets: NDArray[np.float64]) -> None:
        self.sketches.append((key, buckets.astype(np.float32)))


def _merged(geometry: Geometry) -> Geometry:
    """Return a geometry with axes merged that follow one another in memory: a plain reshape has the same."""
    merged: list[tuple[int, int]] = []
    for length, stride in geometry:
        if merged and merged[-1][1] == stride * length:
            merged[-1] = (merged[-1][0] * length, stride)
        else:
            merged.append((length, stride))
    return tuple(merged)
