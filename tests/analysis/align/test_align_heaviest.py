"""The heaviest common subsequence: against all alignments of small sequences, and its stated rules."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magneton.analysis.align import sequence
from magneton.analysis.align.sequence import GAP_OPEN, heaviest_common_subsequence


def _align(left: list[int], right: list[int], matrix: np.ndarray) -> list[tuple[int, int]]:
    return heaviest_common_subsequence(np.array(left, dtype=np.int64), np.array(right, dtype=np.int64), matrix)


def _value(pairs: list[tuple[int, int]], left: list[int], right: list[int], matrix: np.ndarray) -> float:
    gaps = 0
    before = (-1, -1)
    for i, j in [*pairs, (len(left), len(right))]:
        gaps += i - before[0] > 1 or j - before[1] > 1
        before = (i, j)
    return float(sum(matrix[left[i], right[j]] for i, j in pairs)) - GAP_OPEN * gaps


def _best_by_trying_all(left: list[int], right: list[int], matrix: np.ndarray) -> float:
    best = _value([], left, right, matrix)
    for size in range(1, min(len(left), len(right)) + 1):
        for chosen_left in combinations(range(len(left)), size):
            for chosen_right in combinations(range(len(right)), size):
                pairs = list(zip(chosen_left, chosen_right, strict=True))
                if all(matrix[left[i], right[j]] > 0 for i, j in pairs):
                    best = max(best, _value(pairs, left, right, matrix))
    return best


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=5),
    st.lists(st.integers(0, 3), max_size=5),
    st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=16, max_size=16),
)
def test_no_alignment_is_better(left: list[int], right: list[int], values: list[float]) -> None:
    matrix = np.array(values, dtype=np.float32).reshape(4, 4)
    pairs = _align(left, right, matrix)
    assert pairs == sorted(pairs)
    assert all(matrix[left[i], right[j]] > 0 for i, j in pairs)
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
    # The nudge that breaks ties is worth at most 0.001 a pair.
    assert _value(pairs, left, right, matrix) >= _best_by_trying_all(left, right, matrix) - 0.001 * 5


def test_a_block_of_one_side_stays_whole() -> None:
    """Operators that look alike on both sides of a missing block do not tear it apart: one gap, not two."""
    left = [0, 1, 2, 3, 1, 2, 4]
    right = [0, 1, 2, 4]
    pairs = _align(left, right, np.eye(5, dtype=np.float32))
    assert len(pairs) == 4
    assert sum(b[0] - a[0] > 1 for a, b in pairwise(pairs)) == 1


def test_equal_sequences_align_on_the_diagonal() -> None:
    symbols = [0, 0, 0, 1, 0, 0, 0]
    assert _align(symbols, symbols, np.eye(2, dtype=np.float32)) == [(i, i) for i in range(7)]


@pytest.mark.parametrize("cells", [4, 200])
def test_long_sequences_are_cut_at_landmarks(monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    """With little memory the sequences are cut at symbols that occur once; the result stays in order and nearly whole."""
    rng = np.random.default_rng(7)
    left = rng.permutation(300).tolist()
    right = [s for s in left if s % 10]
    whole = _align(left, right, np.eye(300, dtype=np.float32))
    monkeypatch.setattr(sequence, "MAX_CELLS", cells)
    cut = _align(left, right, np.eye(300, dtype=np.float32))
    assert cut == whole
    assert len(whole) == len(right)
