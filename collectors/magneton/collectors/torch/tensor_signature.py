"""Signatures of torch tensors, as ``magneton.schemas.sketch`` defines them: by rows and by columns, in the order of memory.

A row is a slice along the fastest axis, a column one across all others. Example: queries of shape ``(tokens, heads, width)`` have
``tokens * heads`` rows of ``width`` elements, and ``width`` columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magneton.collectors.torch.profile import import_torch
from magneton.collectors.torch.tensor_reading import PIECE, TensorView, pieces
from magneton.schemas.sketch import arrangement_key, n_signs, signature_signs

torch: Any = import_torch()

# A signature has at most so many slices, and a slice at least and at most so many elements.
MAX_SLICES = 4096
MIN_ELEMENTS = 8
MAX_ELEMENTS = 1 << 16
# What all signatures of a capture may take up, in bytes of float32.
MAX_BYTES = 6_000_000
_MAX_FLOATS = MAX_BYTES // 4

# Key of a slice, and the numbers of each slice, `float32[slices, numbers]`.
Signature = tuple[str, NDArray[np.float32]]


class SignatureBudget:
    """Keeps the signatures of a capture below a size. If there are too many, the longest of the whole capture go first.

    So values of one kind keep their signatures or lose them together, whether they are defined early or late.

    Args:
        limit: number of floats.
    """

    def __init__(self, limit: int = _MAX_FLOATS) -> None:
        self._limit = limit
        self._longest: int | None = None
        self._used = 0
        self._kept: list[list[Signature]] = []

    def add(self, signatures: list[Signature], found: Sequence[Signature]) -> None:
        """Add signatures to those of a value, as long as they may be kept."""
        if not signatures:
            self._kept.append(signatures)
        for key, numbers in found:
            if self._longest is None or numbers.size <= self._longest:
                signatures.append((key, numbers))
                self._used += numbers.size
        if self._used > 2 * self._limit:
            self.trim()

    def trim(self) -> None:
        """Drop the longest signatures until the others are within the limit."""
        if self._used <= self._limit:
            return
        sizes = np.sort([numbers.size for signatures in self._kept for _, numbers in signatures])
        # Signatures of one length are kept or dropped together.
        fit = sizes[np.cumsum(sizes) > self._limit]
        self._longest = int(fit[0]) - 1
        for signatures in self._kept:
            signatures[:] = [found for found in signatures if found[1].size <= self._longest]
        self._kept = [signatures for signatures in self._kept if signatures]
        self._used = sum(numbers.size for signatures in self._kept for _, numbers in signatures)


def signatures_of(view: TensorView, *, holes: bool, columns: bool) -> list[Signature]:
    """Return the signatures of a tensor by rows and, where wanted, by columns.

    Args:
        view: the tensor.
        holes: some elements are NaN or infinite; they count as 0.
        columns: sum over the rows too.
    """
    shape = tuple(view.ordered.shape)
    if not shape:
        return []
    width, n_rows = shape[-1], math.prod(shape[:-1])
    by_rows = n_rows <= MAX_SLICES and MIN_ELEMENTS <= width <= MAX_ELEMENTS
    by_columns = columns and 1 < width <= MAX_SLICES and MIN_ELEMENTS <= n_rows <= MAX_ELEMENTS
    if not by_rows and not by_columns:
        return []
    device = str(view.ordered.device)
    rows = torch.zeros((n_rows, n_signs(n_rows)), dtype=torch.float32, device=device) if by_rows else None
    totals = np.zeros((width, n_signs(width))) if by_columns else None
    for start, piece in pieces(view.ordered, max(PIECE, width)):
        values = view.read(piece).view(-1, width)
        if holes:
            values = values.masked_fill(~(values.abs() < view.infinite), 0.0)
        first = start // width
        part = slice(first, first + len(values))
        # Products of matrices may run in lower precision, by settings of the program. Sums never do.
        if rows is not None:
            for number, sign in enumerate(_signs((width,), device)[: rows.shape[1]]):
                rows[part, number] = (values * sign).sum(1)
        if totals is not None:
            for number, sign in enumerate(_signs(shape[:-1], device)[: totals.shape[1]]):
                totals[:, number] += (values * sign[part, None]).sum(0).to("cpu").numpy()
    found: list[Signature] = []
    if rows is not None:
        found.append((arrangement_key((width,)), rows.to("cpu").numpy()))
    if totals is not None:
        found.append((arrangement_key(shape[:-1]), totals.astype(np.float32)))
    return found


@lru_cache(maxsize=128)
def _signs(shape: tuple[int, ...], device: str) -> Any:
    """Return the signs of the elements of a slice, ``[numbers, elements]``."""
    return torch.from_numpy(np.ascontiguousarray(signature_signs(shape).T)).to(device)
