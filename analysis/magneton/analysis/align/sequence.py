"""Order-preserving alignment of two sequences: the heaviest common subsequence under a matrix of similarities."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Pairs = list[tuple[int, int]]

# Cells of the dynamic programme held at once (float32): beyond that the sequences are first cut at unique anchors.
MAX_CELLS = 4_000_000

# Cost of starting a run of unmatched symbols; a full match of single operators counts 1. Because of this cost, a block that
# only one side has stays one run. Without it, single operators of the block would match similar ones elsewhere.
GAP_OPEN = 0.5


def heaviest_common_subsequence(
    left: npt.NDArray[np.int64], right: npt.NDArray[np.int64], similarity: npt.NDArray[np.float32]
) -> Pairs:
    """Align two sequences of symbols so that the summed similarity, less the cost of gaps, is largest.

    Matches never cross. Of two equally similar pairs, the one at the more similar relative position is taken.

    Args:
        left: symbols of the first sequence, shape ``(n,)``, each an index into the rows of ``similarity``.
        right: symbols of the second sequence, shape ``(m,)``, each an index into its columns.
        similarity: shape ``(rows, columns)``; 0 forbids the pair.

    Returns:
        Matched index pairs in order.
    """
    pairs: Pairs = []
    stack = [(0, len(left), 0, len(right))]
    while stack:
        a0, a1, b0, b1 = stack.pop()
        if a0 >= a1 or b0 >= b1:
            continue
        if (a1 - a0) * (b1 - b0) <= MAX_CELLS:
            found = _dynamic_programme(left[a0:a1], right[b0:b1], similarity)
            pairs.extend((a0 + i, b0 + j) for i, j in found)
            continue
        anchors = _unique_anchors(left[a0:a1], right[b0:b1], similarity)
        if not anchors:
            anchors = [((a1 - a0) // 2, (b1 - b0) // 2)]  # no landmark: halve both, so that memory stays bounded
            i, j = anchors[0]
            stack += [(a0, a0 + i, b0, b0 + j), (a0 + i, a1, b0 + j, b1)]
            continue
        previous = (a0 - 1, b0 - 1)
        for i, j in [(a0 + i, b0 + j) for i, j in anchors]:
            stack.append((previous[0] + 1, i, previous[1] + 1, j))
            pairs.append((i, j))
            previous = (i, j)
        stack.append((previous[0] + 1, a1, previous[1] + 1, b1))
    return sorted(pairs)


def _dynamic_programme(
    left: npt.NDArray[np.int64], right: npt.NDArray[np.int64], similarity: npt.NDArray[np.float32]
) -> Pairs:
    """Align by Gotoh's recurrence: every run of unmatched symbols costs ``GAP_OPEN`` once, however long it is.

    State 0 ends in a pair, state 1 in an unmatched left symbol, state 2 in an unmatched right one.
    """
    n, m = len(left), len(right)
    weights = similarity[np.ix_(left, right)].astype(np.float32)
    # A nudge far below any real difference in similarity, so that ties fall to equal relative positions.
    rows = (np.arange(n, dtype=np.float32) + 0.5) / n
    columns = (np.arange(m, dtype=np.float32) + 0.5) / m
    nudge = 1e-3 * (1.0 - np.abs(rows[:, None] - columns[None, :]))
    weights = np.where(weights > 0, weights + nudge, -np.inf).astype(np.float32)
    paired = np.full((n + 1, m + 1), -np.inf, dtype=np.float32)
    skip_left = np.full((n + 1, m + 1), -np.inf, dtype=np.float32)
    skip_right = np.full((n + 1, m + 1), -np.inf, dtype=np.float32)
    paired[0, 0] = 0.0
    skip_right[0, 1:] = -GAP_OPEN
    for i in range(1, n + 1):
        before = np.maximum(np.maximum(paired[i - 1], skip_left[i - 1]), skip_right[i - 1])
        paired[i, 1:] = before[:-1] + weights[i - 1]
        skip_left[i] = np.maximum(np.maximum(paired[i - 1] - GAP_OPEN, skip_left[i - 1]), skip_right[i - 1])
        entering = np.maximum(paired[i] - GAP_OPEN, skip_left[i])
        skip_right[i, 1:] = np.maximum.accumulate(entering)[:-1]
    return _trace_back(paired, skip_left, skip_right)


def _trace_back(
    paired: npt.NDArray[np.float32], skip_left: npt.NDArray[np.float32], skip_right: npt.NDArray[np.float32]
) -> Pairs:
    i, j = paired.shape[0] - 1, paired.shape[1] - 1
    states = (paired, skip_left, skip_right)
    state = int(np.argmax([s[i, j] for s in states]))
    pairs: Pairs = []
    while i > 0 or j > 0:
        if state == 0:
            pairs.append((i - 1, j - 1))
            i, j = i - 1, j - 1
            state = int(np.argmax([s[i, j] for s in states]))
        elif state == 1:
            value = skip_left[i, j]
            i -= 1
            state = 1 if value == skip_left[i, j] else 2 if value == skip_right[i, j] else 0
        else:
            value = skip_right[i, j]
            j -= 1
            state = 2 if value == skip_right[i, j] else 1 if value == skip_left[i, j] else 0
    return pairs[::-1]


def _unique_anchors(
    left: npt.NDArray[np.int64], right: npt.NDArray[np.int64], similarity: npt.NDArray[np.float32]
) -> Pairs:
    """Return the longest increasing chain of pairs whose symbol occurs once on each side and matches fully."""
    best_column = similarity.argmax(axis=1)
    full = similarity[np.arange(len(similarity)), best_column] >= 1.0
    values_l, first_l, count_l = np.unique(left, return_index=True, return_counts=True)
    values_r, first_r, count_r = np.unique(right, return_index=True, return_counts=True)
    where_right = dict(zip(values_r[count_r == 1].tolist(), first_r[count_r == 1].tolist(), strict=True))
    candidates = sorted(
        (int(i), where_right[int(best_column[v])])
        for v, i in zip(values_l[count_l == 1].tolist(), first_l[count_l == 1].tolist(), strict=True)
        if full[v] and int(best_column[v]) in where_right
    )
    return _longest_increasing(candidates)


def _longest_increasing(pairs: Pairs) -> Pairs:
    from bisect import bisect_left

    tails: list[int] = []
    ends: list[int] = []
    back: list[int] = []
    for index, (_, j) in enumerate(pairs):
        place = bisect_left(tails, j)
        back.append(ends[place - 1] if place else -1)
        if place == len(tails):
            tails.append(j)
            ends.append(index)
        else:
            tails[place] = j
            ends[place] = index
    chain: Pairs = []
    at = ends[-1] if ends else -1
    while at >= 0:
        chain.append(pairs[at])
        at = back[at]
    return chain[::-1]
