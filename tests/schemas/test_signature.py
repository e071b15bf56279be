"""Signatures of slices: what they promise to every recorder and to the matcher."""

from __future__ import annotations

import numpy as np

from magneton.schemas import sketch as sk


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def test_a_slice_has_the_same_numbers_wherever_it_is() -> None:
    x = random(40, 96)
    whole = sk.signature(x)
    assert whole.shape == (40, 8)
    moved = sk.signature(x[[30, 3, 17]])
    assert np.allclose(moved, whole[[30, 3, 17]])


def test_a_long_signature_is_the_beginning_of_a_short_one() -> None:
    assert [sk.n_signs(n) for n in (1, 64, 100, 256, 4096)] == [8, 8, 5, 2, 2]
    x = random(300, 96)
    assert np.allclose(sk.signature(x)[:5], sk.signature(x[:5])[:, :2])


def test_signs_are_the_same_in_every_release() -> None:
    """A change of them makes recordings incomparable."""
    signs = sk.signature_signs((6,))
    assert signs.shape == (6, 8)
    assert signs[:, 0].tolist() == [-1, 1, -1, -1, 1, -1]


def test_axes_of_a_slice_may_be_several() -> None:
    x = random(5, 4, 6)
    one = sk.signature(x)
    assert np.allclose(one, x.reshape(5, 24) @ sk.signature_signs((4, 6)))
    assert np.allclose(one, sk.signature(x[:, :, None, :]))
