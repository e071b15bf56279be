"""Count sketches of torch tensors, as ``magneton.schemas.sketch`` defines them.

The sketch of a matrix is two sums of rows in groups (``embedding_bag``: one pass over the data, no scatter): first the rows,
each group one bucket of the leading axes' hash, then, transposed, the columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magneton.collectors.torch.profile import import_torch
from magneton.collectors.torch.tensor_reading import PIECE, TensorView, pieces
from magneton.collectors.torch.tensor_statistics import Statistics
from magneton.schemas.sketch import (
    BLOCK,
    BUCKETS,
    assignments,
    axis_hash,
    block_hash,
    column_hash,
    combined_hash,
    concatenated,
    flat_ones_sketch,
    ones_sketch,
)

torch: Any = import_torch()

_MAX_COLUMNS = 1 << 16
_FEW_ROWS = BUCKETS
_ALL = np.arange(BUCKETS)
_PLACE = (_ALL[:, None] - _ALL) % BUCKETS

Array = NDArray[np.float64]


@dataclass(frozen=True)
class _Groups:
    """A range of a hash as groups of indices, one per bucket."""

    indices: Any
    offsets: Any
    signs: Any


@lru_cache(maxsize=2048)
def _groups(kind: str, key: tuple[Any, ...], start: int, stop: int, copies: int, device: str) -> _Groups:
    """Return the groups of a hash.

    Args:
        kind: ``axes`` (key: shape, occurrences), ``blocks`` or ``columns``.
        key: see ``kind``.
        start: first entry.
        stop: entry after the last.
        copies: how often the range is repeated, each repetition in groups of its own.
        device: where the groups are used.
    """
    buckets, signs = (v[start:stop] for v in _hash(kind, key, stop))
    order = np.argsort(buckets, kind="stable")
    offsets = np.searchsorted(buckets[order], np.arange(BUCKETS))
    shift = np.arange(copies)[:, None] * len(order)
    return _Groups(
        torch.from_numpy((order + shift).ravel()).to(device),
        torch.from_numpy((offsets + shift).ravel()).to(device),
        torch.from_numpy(np.tile(signs[order], copies)).to(device),
    )


def _hash(kind: str, key: tuple[Any, ...], stop: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    if kind == "blocks":
        return block_hash(1 << max(stop - 1, 1).bit_length())
    if kind == "columns":
        return column_hash()
    return combined_hash(*key) if len(key[0]) > 1 else axis_hash(key[0][0], key[1][0]) if key[0] else _ONE


_ONE = (np.zeros(1, np.int64), np.ones(1, np.float32))


def _sums(matrix: Any, groups: _Groups) -> Any:
    """Return the signed sums of a matrix's rows, one row per group."""
    return torch.embedding_bag(matrix, groups.indices, groups.offsets, False, 0, False, groups.signs)[0]


class _Sketcher:
    """Adds up the sketch of a matrix whose rows and columns are hashed apart, from blocks of it.

    Args:
        rows: kind and key of the rows' hash.
        columns: kind and key of the columns' hash.
        copies: number of matrices stacked on one another, each with a sketch of its own.
    """

    def __init__(self, rows: tuple[str, Any], columns: tuple[str, Any], copies: int = 1) -> None:
        self._rows, self._columns, self._copies = rows, columns, copies
        self.total = np.zeros((copies, BUCKETS))

    def add(self, block: Any, row: int = 0, column: int = 0) -> None:
        """Add a block, float32 ``[copies * rows, columns]``, whose first row and column have these numbers."""
        device = str(block.device)
        n_rows, n_columns = block.shape[0] // self._copies, block.shape[1]
        few = n_rows <= _FEW_ROWS
        if not few:
            block = _sums(block, _groups(*self._rows, row, row + n_rows, self._copies, device))
        if n_columns > 1:
            turned = block.t().contiguous()
            folded = _sums(turned, _groups(*self._columns, column, column + n_columns, 1, device))
        else:
            buckets, signs = (v[column] for v in _hash(*self._columns, column + 1))
            folded = torch.zeros((BUCKETS, block.shape[0]), dtype=torch.float32, device=block.device)
            folded[int(buckets)] = block[:, 0] * float(signs)
        table = folded.to("cpu").numpy().astype(np.float64).reshape(BUCKETS, self._copies, -1)
        if few:
            buckets, signs = (v[row : row + n_rows] for v in _hash(*self._rows, row + n_rows))
            table = table * signs
            place = (_ALL[:, None] - buckets) % BUCKETS
        else:
            place = _PLACE
        # The bucket of an element is the sum of its row's and its column's.
        self.total += table[place, :, np.arange(place.shape[1])].sum(axis=1).T


def separable_sketch(view: TensorView, stats: Statistics, way: Sequence[int]) -> Array:
    """Return the centred sketch of all axes, numbered by ``way``."""
    axes = [(view.tensor.shape[a], way[a]) for a in view.axes]
    shift, mark = stats.shift(), stats.mark(view.numel)
    split = _split([n for n, _ in axes])
    keys = [tuple(zip(*part, strict=True)) or ((), ()) for part in (axes[:split], axes[split:])]
    sketcher = _Sketcher(("axes", keys[0]), ("axes", keys[1]))
    width = math.prod(keys[1][0])
    limit = PIECE if _must_copy(view.ordered, mark, shift) else view.numel
    for start, piece in pieces(view.ordered, max(limit, 1)):
        _add_rows(sketcher, view.read(piece, mark, shift=shift).view(-1), start, width)
    total: Array = sketcher.total[0]
    return total - (stats.centre() - shift) * ones_sketch(tuple(n for n, _ in axes), tuple(o for _, o in axes))


def _add_rows(sketcher: _Sketcher, values: Any, start: int, width: int) -> None:
    """Add a range of the row-major order of a matrix of ``width`` columns: whole rows, or part of one."""
    row, column = divmod(start, width)
    matrix = values.view(1, -1) if column or values.numel() < width else values.view(-1, width)
    for left in range(0, matrix.shape[1], _MAX_COLUMNS):
        sketcher.add(matrix[:, left : left + _MAX_COLUMNS].contiguous(), row, column + left)


def _split(lengths: Sequence[int]) -> int:
    """Return how many leading axes are rows, so that a row is neither too short nor too long to add up quickly."""
    at, width = len(lengths), 1
    while at and (width == 1 or (width < BUCKETS and width * lengths[at - 1] <= _MAX_COLUMNS)):
        at -= 1
        width *= lengths[at]
    return at


def _must_copy(tensor: Any, mark: float | None, shift: float) -> bool:
    return bool(shift or mark is not None or tensor.dtype != torch.float32 or not tensor.is_contiguous())


def flat_sketch(view: TensorView, stats: Statistics) -> Array:
    """Return the centred sketch in logical order."""
    shift, mark = stats.shift(), stats.mark(view.numel)
    sketcher = _Sketcher(("blocks", ()), ("columns", ()))
    limit = PIECE if _must_copy(view.tensor, mark, shift) else view.numel
    for start, piece in pieces(view.tensor, max(limit, 1)):
        values = view.read(piece, mark, shift=shift).view(-1)
        stop = start + values.numel()
        first, last = -(-start // BLOCK) * BLOCK, stop // BLOCK * BLOCK
        if first > start:
            head = min(first, stop)
            sketcher.add(values[: head - start].view(1, -1), start // BLOCK, start % BLOCK)
        if last > first:
            sketcher.add(values[first - start : last - start].view(-1, BLOCK), first // BLOCK)
        if stop > max(last, first):
            sketcher.add(values[max(last, first) - start :].view(1, -1), last // BLOCK)
    total: Array = sketcher.total[0]
    return total - (stats.centre() - shift) * flat_ones_sketch(view.numel)


def slice_sketches(
    view: TensorView, stats: Statistics, axes: Sequence[int]
) -> list[tuple[tuple[int, ...], NDArray[np.float32], list[float]]]:
    """Return, for each of one or two axes, its slices: shape (that axis first), sketches (not centred) and norms.

    Of two axes neither may be as long as a third one: the numbers of equally long axes would differ between the two.
    """
    tensor, mark = view.tensor, stats.mark(view.numel)
    shape = tuple(tensor.shape)
    rest = [a for a in range(len(shape)) if shape[a] > 1 and a not in axes]
    way = dict(zip(rest, assignments(tuple(shape[a] for a in rest))[0], strict=True))
    inner = [(shape[a], way[a]) for a in view.axes if a in way]
    lengths = [shape[a] for a in axes]
    ones = [a for a in range(len(shape)) if shape[a] == 1]
    ordered = tensor.permute([*axes, *ones, *(a for a in view.axes if a in way)])
    split = _split([n for n, _ in inner])
    keys = [tuple(zip(*part, strict=True)) or ((), ()) for part in (inner[:split], inner[split:])]
    width = math.prod(keys[1][0])
    buckets, squares = [], []
    together = view.numel <= PIECE and width <= _MAX_COLUMNS
    for part in [ordered] if together else (ordered[at][None] for at in np.ndindex(*lengths)):
        copies = math.prod(lengths) if together else 1
        sketcher = _Sketcher(("axes", keys[0]), ("axes", keys[1]), copies)
        square = np.zeros(copies)
        for start, piece in pieces(part, view.numel if together else PIECE):
            values = view.read(piece, mark)
            flat = values.view(copies, -1)
            square += torch.linalg.vector_norm(flat, dim=1).to("cpu").numpy().astype(np.float64) ** 2
            if together:
                sketcher.add(flat.view(-1, width))
            else:
                _add_rows(sketcher, flat.view(-1), start, width)
        buckets.append(sketcher.total)
        squares.append(square)
    table = np.concatenate(buckets).reshape(*lengths, BUCKETS)
    norms = np.sqrt(np.concatenate(squares)).reshape(lengths)
    found = []
    for number, axis in enumerate(axes):
        first = np.moveaxis(table, number, 0)
        rows = first if len(axes) == 1 else _folded(first)
        dims = (shape[axis], *(n for a, n in enumerate(shape) if n > 1 and a != axis))
        of_slice = np.sqrt(np.square(np.moveaxis(norms, number, 0).reshape(shape[axis], -1)).sum(1))
        found.append((dims, rows.astype(np.float32), of_slice.tolist()))
    return found


def _folded(table: Array) -> Array:
    """Return the sketches ``[n, BUCKETS]`` of rows from those of their parts along a second axis ``[n, m, BUCKETS]``."""
    buckets, signs = axis_hash(table.shape[1], 0)
    place = (np.arange(BUCKETS)[None, :] - buckets[:, None]) % BUCKETS
    turned = np.take_along_axis(table, np.broadcast_to(place, table.shape), axis=2)
    rows: Array = (turned * signs[None, :, None]).sum(axis=1)
    return rows


def whole_of_slices(
    buckets: NDArray[np.float32], dims: Sequence[int], way: Sequence[int], stats: Statistics
) -> Array | None:
    """Return the centred sketch of a whole from its slices; None where they do not give it accurately.

    Args:
        buckets: sketches of the slices, not centred.
        dims: shape of the whole.
        way: occurrence numbers of its axes.
        stats: statistics of the whole.
    """
    if stats.shift() or tuple(way[1:]) != assignments(tuple(dims[1:]))[0]:
        return None
    return concatenated(buckets, way[0]) - stats.centre() * ones_sketch(tuple(dims), tuple(way))
