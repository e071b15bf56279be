"""Alignment of two long sequences in bounded memory: which element of one corresponds to which of the other, in order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Weights = NDArray[np.int8]

# Side of the square that is aligned exactly at a time: 4 M cells, 16 MB.
_WINDOW = 2000


def align(a: Ints, b: Ints, weight: Weights) -> Ints:
    """Align two sequences of codes: as large a sum of the pairs' weights, less the elements left out, as possible.

    Equal ends are taken as they are. What remains is solved exactly up to 2,000 by 2,000 elements, and beyond that in
    overlapping windows of this size, so that memory does not grow with the input and time grows linearly with it
    (a displacement of more than a window is then not bridged).

    Args:
        a: codes, rows of ``weight``; shape ``(n,)``.
        b: codes, columns of ``weight``; shape ``(m,)``.
        weight: value of pairing two codes, 0 where they may not be paired; shape ``(codes of a, codes of b)``.

    Returns:
        For each element of ``b`` the index of its partner in ``a``, or -1; increasing where not -1. Shape ``(m,)``.
    """
    partner = np.full(len(b), -1, dtype=np.int64)
    if not len(a) or not len(b):
        return partner
    best_a, best_b = weight.max(axis=1), weight.max(axis=0)
    head = _equal_run(a, b, weight, best_a, best_b)
    partner[:head] = np.arange(head)
    a_end, b_end = len(a), len(b)
    tail = _equal_run(a[head:][::-1], b[head:][::-1], weight, best_a, best_b)
    partner[b_end - tail : b_end] = np.arange(a_end - tail, a_end)
    a_end, b_end = a_end - tail, b_end - tail
    i = j = head
    while i < a_end and j < b_end:
        run = _equal_run(a[i:a_end], b[j:b_end], weight, best_a, best_b)
        partner[j : j + run] = np.arange(i, i + run)
        i, j = i + run, j + run
        window_a, window_b = a[i : min(i + _WINDOW, a_end)], b[j : min(j + _WINDOW, b_end)]
        last = i + len(window_a) == a_end and j + len(window_b) == b_end
        found_a, found_b = _align_exactly(window_a, window_b, weight, whole=last)
        sure = len(found_a) if last else _sure(found_a, found_b, (len(window_a) + len(window_b)) // 2)
        partner[j + found_b[:sure]] = i + found_a[:sure]
        if last:
            break
        if sure:
            i, j = i + int(found_a[sure - 1]) + 1, j + int(found_b[sure - 1]) + 1
        elif len(found_a):
            i, j = i + int(found_a[0]), j + int(found_b[0])
        else:
            i, j = i + (len(window_a) + 1) // 2, j + (len(window_b) + 1) // 2
    return partner


def _sure(found_a: Ints, found_b: Ints, middle: int) -> int:
    """Return how many leading pairs of a window to keep: those beyond its middle may change with what follows."""
    return int(np.searchsorted(found_a + found_b, middle))


def _equal_run(a: Ints, b: Ints, weight: Weights, best_a: Weights, best_b: Weights) -> int:
    """Return the number of leading pairs that are certainly part of the best alignment."""
    n = min(len(a), len(b))
    a, b = a[:n], b[:n]
    got = weight[a, b]
    differs = np.flatnonzero((got == 0) | (got < best_a[a]) | (got < best_b[b]))
    return int(differs[0]) if len(differs) else n


def _align_exactly(a: Ints, b: Ints, weight: Weights, *, whole: bool) -> tuple[Ints, Ints]:
    """Align by dynamic programming; return the paired indices of both sides, increasing.

    Every unmatched element costs something. So an alignment of two windows (``whole`` is false) may end before the end of the
    longer window.
    """
    n, m = len(a), len(b)
    by_column = weight[:, b].astype(np.int32)
    columns = np.arange(m + 1, dtype=np.int32)
    score = np.empty((n + 1, m + 1), dtype=np.int32)
    score[0] = -columns
    for i in range(n):
        row = score[i + 1]
        row[0] = -(i + 1)
        gain = by_column[a[i]]
        row[1:] = np.maximum(score[i, 1:] - 1, np.where(gain > 0, score[i, :-1] + gain, row[0] - m))
        row += columns
        np.maximum.accumulate(row, out=row)
        row -= columns
    i, j = n, m
    if not whole:
        bottom, right = int(score[n].argmax()), int(score[:, m].argmax())
        i, j = (n, bottom) if score[n, bottom] >= score[right, m] else (right, m)
    pairs: list[tuple[int, int]] = []
    while i and j:
        here = score[i, j]
        gained = int(by_column[a[i - 1], j - 1])
        if gained and here == score[i - 1, j - 1] + gained:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif here == score[i - 1, j] - 1:
            i -= 1
        else:
            j -= 1
    pairs.reverse()
    array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]
