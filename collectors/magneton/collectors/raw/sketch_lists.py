"""Sketches, slices and signatures as lists of Arrow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa


def _lists(lengths: Sequence[int | None], values: pa.Array) -> pa.Array:
    """Return lists of the given lengths (None: NULL) over values in a row."""
    offsets = np.concatenate([[0], np.cumsum([n or 0 for n in lengths])]).astype(np.int32)
    mask = np.append([n is None for n in lengths], False)
    return pa.ListArray.from_arrays(pa.array(offsets, mask=mask if mask.any() else None), values)


def _floats(rows: Sequence[np.ndarray], type_: pa.DataType) -> pa.Array:
    flat = np.concatenate(rows) if rows else np.zeros(0)
    return pa.array(flat, type_)


def lists_of_sketches(sketches: Sequence[Sequence[tuple[str, np.ndarray]]]) -> pa.Array:
    """Return the column ``sketches``: for each tensor keys and buckets, NULL where there are none."""
    flat = [entry for entries in sketches for entry in entries]
    buckets = _lists([len(b) for _, b in flat], _floats([b for _, b in flat], pa.float32()))
    entries = pa.StructArray.from_arrays([pa.array([k for k, _ in flat], pa.string()), buckets], ["key", "buckets"])
    return _lists([len(e) or None for e in sketches], entries)


def lists_of_slices(slices: Sequence[Sequence[tuple[tuple[int, ...], np.ndarray, list[float]]]]) -> pa.Array:
    """Return the column ``slices``: for each tensor shapes, buckets and norms, NULL where there are none."""
    flat = [entry for entries in slices for entry in entries]
    rows = _lists(
        [b.shape[1] for _, b, _ in flat for _ in range(len(b))],
        _floats([b.ravel() for _, b, _ in flat], pa.float32()),
    )
    dims = pa.array([list(d) for d, _, _ in flat], pa.list_(pa.int64()))
    buckets = _lists([len(b) for _, b, _ in flat], rows)
    norms = pa.array([n for _, _, n in flat], pa.list_(pa.float64()))
    entries = pa.StructArray.from_arrays([dims, buckets, norms], ["dims", "buckets", "norms"])
    return _lists([len(e) or None for e in slices], entries)


def lists_of_signatures(signatures: Sequence[Sequence[tuple[str, np.ndarray]]]) -> pa.Array:
    """Return the column ``signatures``: for each tensor keys, numbers of slices and numbers, NULL where there are none."""
    flat = [entry for entries in signatures for entry in entries]
    numbers = _lists([n.size for _, n in flat], _floats([n.ravel() for _, n in flat], pa.float32()))
    keys, lengths = pa.array([k for k, _ in flat], pa.string()), pa.array([len(n) for _, n in flat], pa.int64())
    entries = pa.StructArray.from_arrays([keys, lengths, numbers], ["key", "n_slices", "numbers"])
    return _lists([len(e) or None for e in signatures], entries)
