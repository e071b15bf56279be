"""Fingerprints of torch tensors: statistics of the finite part, count sketches per arrangement, slices, signatures.

Everything is computed in float32 from pieces of bounded size, with sums carried on in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magneton.collectors.torch.profile import import_torch
from magneton.collectors.torch.tensor_reading import Plain, TensorView, why_unreadable
from magneton.collectors.torch.tensor_signature import Signature, SignatureBudget, signatures_of
from magneton.collectors.torch.tensor_sketch import flat_sketch, separable_sketch, slice_sketches, whole_of_slices
from magneton.collectors.torch.tensor_statistics import Statistics, exact_hash, statistics_of
from magneton.schemas.sketch import BUCKETS, arrangement_key, assignments, flat_key

torch: Any = import_torch()

# Tensors with few elements are often equal by accident, so they get no sketches.
MIN_SKETCHED = 16
# The first axis longer than 1 may be this long to be sliced, one other axis this long.
MAX_SLICES = 16
MAX_INNER_SLICES = 8
MAX_SKETCHES = 24
MAX_SLICE_SHAPES = 6
# Arrangements of a value that get a signature.
MAX_SIGNED_SHAPES = 4

Geometry = tuple[tuple[int, int], ...]


@dataclass
class Fingerprint:
    """What is known of a value; arrangements are added as views of it appear.

    Attributes:
        statistics: of the finite elements; None until a tensor was read.
        hash: of integers and booleans, in order.
        sketches: key and buckets, ``float32[BUCKETS]``, centred.
        slices: shape, buckets ``float32[n, BUCKETS]`` and norms of the slices along a short axis,
            which is first in the shape; axes of length 1 are left out; not centred.
        signatures: by rows and by columns, not centred.
        why: why there is no fingerprint.
    """

    statistics: Statistics | None = None
    hash: str | None = None
    sketches: list[tuple[str, NDArray[np.float32]]] = field(default_factory=list)
    slices: list[tuple[tuple[int, ...], NDArray[np.float32], list[float]]] = field(default_factory=list)
    signatures: list[Signature] = field(default_factory=list)
    why: str | None = None
    _seen: set[object] = field(default_factory=set)
    _n_flat: int = 0
    _n_signed: int = 0

    def add(self, tensor: Any, *, constant: bool = False, budget: SignatureBudget | None = None) -> None:
        """Add what a view of the value shows.

        Args:
            tensor: the view. Its content must be that of the value.
            constant: it derives from parameters alone: one flat order is enough, and no slices or signatures.
            budget: what decides which signatures are kept; None: there are none.
        """
        if self.why is not None or len(self.sketches) >= MAX_SKETCHES:
            return
        self.why = why_unreadable(tensor)
        if self.why is not None or not self._new(tensor.shape, tensor.stride()):
            return
        with Plain():
            tensor = tensor.detach()
            plain = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
            self._add(plain, constant)
            if budget is not None and not constant:
                budget.add(self.signatures, self._signed(plain))

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
        axes = [] if constant else self._sliced(tensor, shape)
        found = slice_sketches(view, stats, axes) if axes else []
        self.slices += found
        # A permuted view has the same axes in another order; a reshaped one has the same flat order.
        if self._new("axes", tuple(sorted(geometry))):
            for way in assignments(shape):
                whole = None
                if axes:  # the slices give the whole for nothing
                    others = [o for a, o in enumerate(way) if shape[a] > 1 and a != axes[0]]
                    whole = whole_of_slices(found[0][1], found[0][0], [way[axes[0]], *others], stats)
                if whole is None:
                    whole = np.zeros(BUCKETS) if level else separable_sketch(view, stats, way)
                self._append(arrangement_key(shape), whole)
        if not (constant and self._n_flat) and self._new("flat", _merged(geometry)):
            self._n_flat += 1
            self._append(flat_key(tensor.numel()), np.zeros(BUCKETS) if level else flat_sketch(view, stats))

    def _sliced(self, tensor: Any, shape: tuple[int, ...]) -> list[int]:
        """Return the axes to slice that were not sliced before: the first one and another, if they are short."""
        axes = [a for a, n in enumerate(shape) if n > 1]
        chosen = [a for a in axes[:1] if shape[a] <= MAX_SLICES]
        inner = [a for a in axes[1:] if shape[a] <= MAX_INNER_SLICES]
        if inner:
            both = {*chosen, inner[0]}
            others = {shape[a] for a in axes if a not in both}
            if len(axes) > len(both) and not others & {shape[a] for a in both}:
                chosen.append(inner[0])
        chosen = chosen[: max(0, MAX_SLICE_SHAPES - len(self.slices))]
        return [
            a
            for a in chosen
            if self._new(
                "slices", shape[a], tensor.stride(a), arrangement_key([n for i, n in enumerate(shape) if i != a])
            )
        ]

    def _signed(self, tensor: Any) -> list[Signature]:
        """Return the signatures of an arrangement that was not seen before."""
        stats, shape = self.statistics, tuple(tensor.shape)
        if stats is None or not tensor.is_floating_point() or tensor.numel() < MIN_SKETCHED or stats.min == stats.max:
            return []
        if self._n_signed >= MAX_SIGNED_SHAPES or any(
            n > 1 and not s for n, s in zip(shape, tensor.stride(), strict=True)
        ):
            return []
        view = TensorView(tensor)
        if not self._new("signature", tuple(view.ordered.shape)):
            return []
        # Columns of further arrangements are hardly ever parts of anything.
        found = signatures_of(view, holes=bool(stats.holes), columns=not self._n_signed)
        self._n_signed += 1
        known = {(key, len(numbers)) for key, numbers in self.signatures}
        return [(key, numbers) for key, numbers in found if (key, len(numbers)) not in known]

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
