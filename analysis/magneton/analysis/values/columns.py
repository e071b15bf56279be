"""The values of one side as columns: what is known of each, and its sketches and slices as rows of two matrices."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from magneton.schemas.sketch import BUCKETS

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.float32]

FLOATING = ("float", "bfloat", "complex", "half", "double")


def is_floating(dtype: str) -> bool:
    """Tell whether a dtype name is of floating (or complex) numbers."""
    return dtype.startswith(FLOATING)


@dataclass
class Sketches:
    """Sketches of all values: those of value ``v`` are rows ``start[v]`` to ``start[v + 1]``.

    Attributes:
        start: ``int64[values + 1]``.
        key: arrangement of each row, a number into ``names``.
        names: arrangements.
        rows: ``float32[n, BUCKETS]``, centred; in the table's own memory.
    """

    start: Ints
    key: Ints
    names: list[str]
    rows: Rows

    def of(self, value: int) -> list[tuple[str, Rows]]:
        """Return arrangement and sketch of each entry of a value."""
        return [(self.names[self.key[i]], self.rows[i]) for i in range(self.start[value], self.start[value + 1])]


@dataclass
class Slices:
    """Slices along the first axis: the entries of value ``v`` are ``start[v]`` to ``start[v + 1]``.

    Attributes:
        start: ``int64[values + 1]``.
        dims: shape that was sliced, of each entry.
        first: first row of each entry and, last, the number of rows.
        rows: sketch of each slice, ``float32[n, BUCKETS]``, not centred.
    """

    start: Ints
    dims: list[tuple[int, ...]]
    first: Ints
    rows: Rows

    def of(self, value: int) -> list[tuple[tuple[int, ...], Rows]]:
        """Return shape and slices of each entry of a value."""
        return [
            (self.dims[i], self.rows[self.first[i] : self.first[i + 1]])
            for i in range(self.start[value], self.start[value + 1])
        ]


@dataclass
class Signatures:
    """Signatures of all values: the entries of value ``v`` are ``start[v]`` to ``start[v + 1]``.

    Attributes:
        start: ``int64[values + 1]``.
        key: axes of a slice, of each entry, a number into ``names``.
        names: axes of a slice.
        n_slices: slices, of each entry.
        first: first number of each entry and, last, how many there are.
        numbers: the numbers of all slices, float32.
    """

    start: Ints
    key: Ints
    names: list[str]
    n_slices: Ints
    first: Ints
    numbers: Rows

    def of(self, value: int) -> list[tuple[str, Rows]]:
        """Return the axes of a slice and the numbers ``[slices, numbers]`` of each entry of a value."""
        return [
            (
                self.names[self.key[i]],
                self.numbers[self.first[i] : self.first[i + 1]].reshape(int(self.n_slices[i]), -1),
            )
            for i in range(self.start[value], self.start[value + 1])
        ]


@dataclass
class Values:
    """Values in order of definition, one per entry of each column.

    Attributes:
        tensor_id: id in the table.
        numel: number of elements.
        dtype: name of the type.
        precision: coarsest type upstream.
        constant: derives from parameters alone.
        role: ``input``, ``parameter``, ``output`` or None.
        hash: of whole numbers, else None.
        known: statistics of the finite part are there.
        mean: mean of the finite part; 0 where not known.
        std: standard deviation of the finite part.
        holes: numbers of NaN, +inf and -inf, ``int64[n, 3]``.
        sketches: their sketches.
        slices: their slices.
        signatures: their signatures; recordings of earlier releases have none.
    """

    tensor_id: Ints
    numel: Ints
    dtype: list[str]
    precision: list[str]
    constant: Bools
    role: list[str | None]
    hash: list[str | None]
    known: Bools
    mean: Floats
    std: Floats
    holes: Ints
    sketches: Sketches
    slices: Slices
    signatures: Signatures

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self.tensor_id)

    def alike(self, other: Values) -> bool:
        """Tell whether another input has defined the same values."""
        return (
            len(self) == len(other)
            and bool((self.numel == other.numel).all())
            and bool((self.constant == other.constant).all())
            and self.dtype == other.dtype
        )


def read_values(tensors: pa.Table) -> Values:
    """Return the values of a table ``tensors`` in order of definition."""
    ids = tensors.column("tensor_id").to_numpy()
    if (np.diff(ids) <= 0).any():
        tensors = tensors.sort_by("tensor_id")
        ids = tensors.column("tensor_id").to_numpy()
    dtype = pc.fill_null(tensors.column("dtype"), "")
    mean, std = tensors.column("mean"), tensors.column("std")
    return Values(
        tensor_id=ids.astype(np.int64),
        numel=_numbers(tensors.column("numel"), np.int64),
        dtype=_words(dtype),
        precision=_words(pc.coalesce(tensors.column("precision"), dtype)),
        constant=_numbers(tensors.column("constant"), np.bool_),
        role=_words(tensors.column("role")),
        hash=tensors.column("hash").to_pylist(),
        known=pc.and_(mean.is_valid(), std.is_valid()).to_numpy(),
        mean=_numbers(mean, np.float64),
        std=_numbers(std, np.float64),
        holes=np.stack([_numbers(tensors.column(c), np.int64) for c in ("n_nan", "n_posinf", "n_neginf")], axis=1),
        sketches=_sketches(tensors.column("sketches")),
        slices=_slices(tensors.column("slices")),
        signatures=_signatures(tensors.column("signatures")),
    )


def _numbers(column: pa.ChunkedArray, kind: type) -> npt.NDArray[Any]:
    zero = False if pa.types.is_boolean(column.type) else 0
    return np.asarray(pc.fill_null(column, pa.scalar(zero, column.type)).to_numpy(), dtype=kind)


def _words(column: pa.ChunkedArray) -> list[Any]:
    """Return texts as a list, one object per different text."""
    array = _whole(column).dictionary_encode()
    words = [*array.dictionary.to_pylist(), None]
    return [words[i] for i in pc.fill_null(array.indices, len(words) - 1).to_pylist()]


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _starts(lists: pa.Array) -> Ints:
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _matrix(lists: pa.Array) -> Rows:
    return np.asarray(lists.flatten().to_numpy(zero_copy_only=False), np.float32).reshape(-1, BUCKETS)


def _sketches(column: pa.ChunkedArray) -> Sketches:
    lists = _whole(column)
    entries = lists.flatten()
    keys = entries.field("key").dictionary_encode()
    return Sketches(
        _starts(lists),
        keys.indices.to_numpy(zero_copy_only=False).astype(np.int64),
        keys.dictionary.to_pylist(),
        _matrix(entries.field("buckets")),
    )


def _slices(column: pa.ChunkedArray) -> Slices:
    lists = _whole(column)
    entries = lists.flatten()
    buckets = entries.field("buckets")
    dims = entries.field("dims")
    at, flat = _starts(dims).tolist(), dims.flatten().to_pylist()
    return Slices(
        _starts(lists),
        [tuple(flat[a:b]) for a, b in pairwise(at)],
        _starts(buckets),
        _matrix(buckets.flatten()),
    )


def _signatures(column: pa.ChunkedArray) -> Signatures:
    lists = _whole(column)
    entries = lists.flatten()
    keys, numbers = entries.field("key").dictionary_encode(), entries.field("numbers")
    return Signatures(
        _starts(lists),
        keys.indices.to_numpy(zero_copy_only=False).astype(np.int64),
        keys.dictionary.to_pylist(),
        entries.field("n_slices").to_numpy(zero_copy_only=False),
        _starts(numbers),
        np.asarray(numbers.flatten().to_numpy(zero_copy_only=False), np.float32),
    )
