"""The columns of a capture of values on their way to tables: numbers of sketches, slices and signatures as arrays beside the JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from magneton.collectors.raw.rows import keep_rows, kept_at
from magneton.schemas.sketch import BUCKETS


def keep_values(directory: Path, tables: Mapping[str, Mapping[str, Sequence[Any]]], keys: Mapping[str, Any]) -> None:
    """Keep the tables of a capture.

    Args:
        directory: where their Parquet files will lie.
        tables: columns by table; ``sketches``, ``slices`` and ``signatures`` of ``tensors`` as in ``torch.fingerprint.Fingerprint``.
        keys: values that all rows have.
    """
    for name, columns in tables.items():
        path = directory / f"{name}.parquet"
        plain = columns
        if name == "tensors":
            plain, arrays = _without_arrays(columns)
            np.savez(f"{kept_at(path)}.npz", **arrays)
        keep_rows(path, name, plain, keys)


def _without_arrays(columns: Mapping[str, Sequence[Any]]) -> tuple[dict[str, Sequence[Any]], dict[str, Any]]:
    sketches, slices, signatures = columns["sketches"], columns["slices"], columns["signatures"]
    rest = dict(columns)
    rest["sketches"] = [[key for key, _ in entries] for entries in sketches]
    rest["slices"] = [[[list(dims), norms] for dims, _, norms in entries] for entries in slices]
    rest["signatures"] = [[[key, list(numbers.shape)] for key, numbers in entries] for entries in signatures]
    empty = np.zeros((0, BUCKETS), np.float32)
    return rest, {
        "sketches": np.concatenate([empty, *(b.reshape(1, -1) for entries in sketches for _, b in entries)]),
        "slices": np.concatenate([empty, *(b for entries in slices for _, b, _ in entries)]),
        "signatures": np.concatenate(
            [np.zeros(0, np.float32), *(numbers.ravel() for entries in signatures for _, numbers in entries)]
        ),
    }


def restored(columns: Mapping[str, Any], arrays: Path) -> dict[str, Any]:
    """Return ``sketches``, ``slices`` and ``signatures`` as columns of the table ``tensors``."""
    from magneton.collectors.raw.sketch_lists import lists_of_signatures, lists_of_sketches, lists_of_slices

    with np.load(arrays, allow_pickle=False) as kept:
        sketches, slices, numbers = iter(kept["sketches"]), kept["slices"], kept["signatures"]
    at, found = 0, []
    for entries in columns["slices"]:
        row = []
        for dims, norms in entries:
            row.append((tuple(dims), slices[at : at + dims[0]], norms))
            at += dims[0]
        found.append(row)
    named = [[(key, next(sketches)) for key in entries] for entries in columns["sketches"]]
    signed: list[list[tuple[str, np.ndarray]]] = []
    at = 0
    for entries in columns["signatures"]:
        signed.append([])
        for key, shape in entries:
            size = math.prod(shape)
            signed[-1].append((key, numbers[at : at + size].reshape(shape)))
            at += size
    return {
        "sketches": lists_of_sketches(named),
        "slices": lists_of_slices(found),
        "signatures": lists_of_signatures(signed),
    }
