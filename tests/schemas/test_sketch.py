"""The shared sketch hashes: what they promise to every recorder and to the matcher."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magneton.schemas import sketch as sk

SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple)


def random(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@settings(max_examples=60, deadline=None)
@given(shape=SHAPES, data=st.data())
def test_a_permuted_tensor_has_the_same_sketches(shape: tuple[int, ...], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    x = random(shape)
    y = x.transpose(order)
    assert sk.arrangement_key(x.shape) == sk.arrangement_key(y.shape)
    mine = np.array([sk.sketch(x, way) for way in sk.assignments(x.shape)])
    others = np.array([sk.sketch(y, way) for way in sk.assignments(y.shape)])
    assert any(np.allclose(mine[0], other, atol=1e-9) for other in others) or len(sk.assignments(x.shape)) == 6


@settings(max_examples=40, deadline=None)
@given(shape=SHAPES)
def test_unit_axes_do_not_count_and_reshapes_keep_the_flat_sketch(shape: tuple[int, ...]) -> None:
    x = random(shape)
    assert np.allclose(sk.sketch(x), sk.sketch(x[None, ..., None]))
    assert np.allclose(sk.flat_sketch(x), sk.flat_sketch(x.reshape(-1)))


@settings(max_examples=40, deadline=None)
@given(shape=SHAPES)
def test_slices_make_the_whole(shape: tuple[int, ...]) -> None:
    x = random(shape)
    for way in sk.assignments(shape):
        parts = np.array([sk.sketch(row, way[1:]) for row in x])
        assert np.allclose(sk.concatenated(parts, way[0]), sk.sketch(x, way))


@settings(max_examples=40, deadline=None)
@given(shape=SHAPES)
def test_ones(shape: tuple[int, ...]) -> None:
    ones = np.ones(shape)
    for way in sk.assignments(shape):
        assert np.array_equal(sk.ones_sketch(shape, way), sk.sketch(ones, way))


@pytest.mark.parametrize("numel", [1, 255, 256, 257, 1000, 4096, 65536 + 3])
def test_flat_ones(numel: int) -> None:
    assert np.array_equal(sk.flat_ones_sketch(numel), sk.flat_sketch(np.ones(numel)))


def test_the_hash_of_fewer_blocks_is_the_beginning_of_that_of_more() -> None:
    few, many = sk.block_hash(10), sk.block_hash(1000)
    assert np.array_equal(few[0], many[0][:10])
    assert np.array_equal(few[1], many[1][:10])


def test_the_hash_never_changes() -> None:
    # Recordings of different releases and machines compare by it.
    buckets, signs = sk.axis_hash(5, 0)
    assert (buckets.tolist(), signs.tolist()) == GOLDEN_AXIS_5
    assert sk.axis_hash(5, 1)[0].tolist() != buckets.tolist()
    assert sk.column_hash()[0][:4].tolist() == GOLDEN_COLUMNS


GOLDEN_AXIS_5 = ([35, 45, 5, 48, 46], [1.0, 1.0, -1.0, -1.0, 1.0])
GOLDEN_COLUMNS = [19, 40, 35, 57]


@pytest.mark.parametrize("shape", [(64, 96), (8, 32, 24), (6144,)])
def test_distance_is_estimated(shape: tuple[int, ...]) -> None:
    estimates = []
    for seed in range(40):
        x, noise = random(shape, seed), random(shape, seed + 1000)
        distance = np.linalg.norm(sk.sketch(x + 0.01 * noise) - sk.sketch(x)) / np.linalg.norm(x)
        estimates.append(distance / 0.01)
    assert 0.9 < np.mean(estimates) < 1.1
    assert np.std(estimates) < 0.15
    x, y = random(shape, 1), random(shape, 2)
    assert np.linalg.norm(sk.sketch(x) - sk.sketch(y)) > 0.5 * np.linalg.norm(x)


def test_buckets_and_signs_are_spread_evenly() -> None:
    buckets, signs = sk.axis_hash(64 * 500, 0)
    counts = np.bincount(buckets, minlength=sk.BUCKETS)
    assert counts.min() > 400
    assert counts.max() < 600
    assert abs(signs.sum()) < 600


def test_keys() -> None:
    assert sk.arrangement_key((128, 1, 64, 768)) == "64x128x768"
    assert sk.arrangement_key(()) == sk.arrangement_key((1, 1)) == "1"
    assert sk.flat_key(12) == "flat:12"
    assert sk.assignments((4, 4, 1)) == ((0, 1, 0), (1, 0, 0))
    assert len(sk.assignments((3, 3, 3, 3))) == sk.MAX_ASSIGNMENTS
