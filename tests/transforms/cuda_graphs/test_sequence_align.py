"""Alignment of two sequences: exact where small, bounded where large."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magneton.transforms.cuda_graphs.sequence_align import align

CODES = st.lists(st.integers(0, 4), max_size=12)


def _best(a: list[int], b: list[int], weight: np.ndarray) -> int:
    """Return the best sum of weights less elements left out, each pair saving two of them."""
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            gain = table[i][j] + int(weight[x, y]) + 2 if weight[x, y] else 0
            table[i + 1][j + 1] = max(table[i][j + 1], table[i + 1][j], gain)
    return table[-1][-1] - len(a) - len(b)


@given(CODES, CODES, st.lists(st.sampled_from([0, 0, 2, 3, 4]), min_size=25, max_size=25))
def test_small_alignments_are_optimal_and_ordered(a: list[int], b: list[int], weights: list[int]) -> None:
    weight = np.array(weights, dtype=np.int8).reshape(5, 5)
    partner = align(np.array(a, dtype=np.int64), np.array(b, dtype=np.int64), weight)
    paired = partner[partner >= 0]
    assert np.all(np.diff(paired) > 0)
    got = [int(weight[a[p], b[j]]) for j, p in enumerate(partner) if p >= 0]
    assert all(got)
    assert sum(got) - (len(a) + len(b) - 2 * len(got)) == _best(a, b, weight)


@pytest.mark.parametrize("seed", range(3))
def test_large_alignments_find_scattered_losses(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 60, 30_000)
    kept = np.flatnonzero(rng.random(len(a)) > 0.1)
    partner = align(a, a[kept], np.eye(60, dtype=np.int8))
    assert (partner >= 0).mean() > 0.999
    assert (partner == kept).mean() > 0.9


def test_memory_does_not_grow_with_the_square_of_the_length() -> None:
    layer = np.arange(17)
    a = np.tile(layer, 6_000)
    b = np.delete(a, [5_000, 50_000, 90_000])
    tracemalloc.start()
    partner = align(a, b, np.eye(17, dtype=np.int8))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.all(partner >= 0)
    assert peak < 100e6
