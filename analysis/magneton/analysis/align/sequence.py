"""Order-preserving alignment of two sequences: the heaviest common subsequence under a matrix of similarities.

The recurrence is Gotoh's (J. Mol. Biol. 162, 1982): a run of unmatched symbols costs once for being opened and a little for
each symbol. One byte a cell is kept for the way back. Sequences too long for that are cut where both hold the same unique
symbols in the same order; programs that repeat themselves hold none, and are aligned in a band around the diagonal.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

Pairs = list[tuple[int, int]]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Cells of the dynamic programme, one byte each.
MAX_CELLS = 6_000_000

# Cost of starting a run of unmatched symbols; a full match of single operators counts 1. Because of this cost, a block that
# only one side has stays one run. Without it, single operators of the block would match similar ones elsewhere.
GAP_OPEN = 0.5

# Unique symbols cut long sequences only if so many of them agree in order, and they are so large a part of the shorter one. In a
# periodic program a symbol that happens to be unique on both sides is an accident and a trap.
ANCHORS_AGREE = 0.9
ANCHORS_SHARE = 0.3
# Half the width of the band, beyond the difference in length.
BAND = 160

# Differences of likeness far above rounding and far below any real one: ties fall to equal relative positions.
_NUDGE = 1e-3
_PAIRED, _LEFT, _RIGHT = 0, 1, 2


def heaviest_common_subsequence(
    left: Ints, right: Ints, similarity: npt.NDArray[np.float32], *, gap_open: float = GAP_OPEN, gap_extend: float = 0.0
) -> Pairs:
    """Align two sequences of symbols so that the summed similarity, less the cost of gaps, is largest.

    Matches never cross. Of two equally similar pairs, the one at the more similar relative position is taken.

    Args:
        left: symbols of the first sequence, shape ``(n,)``, each an index into the rows of ``similarity``.
        right: symbols of the second sequence, shape ``(m,)``, each an index into its columns.
        similarity: shape ``(rows, columns)``; 0 forbids the pair.
        gap_open: cost of a run of unmatched symbols.
        gap_extend: cost of each unmatched symbol.

    Returns:
        Matched index pairs in order.
    """
    pairs: Pairs = []
    stack = [(0, len(left), 0, len(right))]
    while stack:
        a0, a1, b0, b1 = stack.pop()
        n, m = a1 - a0, b1 - b0
        if n <= 0 or m <= 0:
            continue
        if n * m > MAX_CELLS:
            anchors = _trusted_anchors(left[a0:a1], right[b0:b1], similarity)
            if anchors:
                previous = (a0 - 1, b0 - 1)
                for i, j in [(a0 + i, b0 + j) for i, j in anchors]:
                    stack.append((previous[0] + 1, i, previous[1] + 1, j))
                    pairs.append((i, j))
                    previous = (i, j)
                stack.append((previous[0] + 1, a1, previous[1] + 1, b1))
                continue
        width = m + 1 if n * m <= MAX_CELLS else min(2 * (abs(n - m) + BAND) + 1, m + 1)
        found = _gotoh(left[a0:a1], right[b0:b1], similarity, gap_open, gap_extend, width)
        pairs.extend((a0 + i, b0 + j) for i, j in found)
    return sorted(pairs)


def _gotoh(
    left: Ints, right: Ints, similarity: npt.NDArray[np.float32], gap_open: float, gap_extend: float, width: int
) -> Pairs:
    """Align within a band of ``width`` columns that follows the diagonal; ``width`` of m + 1 is no band.

    State ``_PAIRED`` ends in a pair, ``_LEFT`` in an unmatched left symbol, ``_RIGHT`` in an unmatched right one. A byte of
    ``back`` holds the state before each of them: bits 0-1, 2-3 and 4-5.
    """
    n, m = len(left), len(right)
    first = np.clip(np.round(np.arange(n + 1) * m / n).astype(np.int64) - width // 2, 0, m + 1 - width)
    columns = np.arange(width, dtype=np.float64)
    place = (np.arange(m, dtype=np.float64) + 0.5) / m
    paired, skip_left = np.full(width, -np.inf), np.full(width, -np.inf)
    paired[0] = 0.0
    skip_right = np.where(columns > 0, -gap_open - gap_extend * columns, -np.inf)
    back = np.zeros((n + 1, width), dtype=np.uint8)
    back[0, 2:] = _RIGHT << 4
    for i in range(1, n + 1):
        low, shift = int(first[i]), int(first[i] - first[i - 1])
        above = [_moved(state, shift, width) for state in (paired, skip_left, skip_right)]
        diagonal = [_moved(state, shift - 1, width) for state in (paired, skip_left, skip_right)]
        weight = np.full(width, -np.inf)
        inside = slice(max(low - 1, 0), min(low - 1 + width, m))
        row = similarity[left[i - 1]][right[inside]].astype(np.float64)
        nudged = row + _NUDGE * (1.0 - np.abs((i - 0.5) / n - place[inside]))
        start = 1 if low == 0 else 0
        weight[start : start + len(row)] = np.where(row > 0, nudged, -np.inf)
        before = np.argmax(diagonal, axis=0)
        paired = np.max(diagonal, axis=0) + weight
        # What is unmatched on both sides between two pairs is one run: it costs once for being opened.
        opened = [above[_PAIRED] - gap_open, above[_LEFT], above[_RIGHT]]
        from_above = np.argmax(opened, axis=0)
        skip_left = np.max(opened, axis=0) - gap_extend
        entering = np.maximum(paired - gap_open, skip_left)
        running = np.maximum.accumulate(entering + gap_extend * columns)
        skip_right = np.full(width, -np.inf)
        skip_right[1:] = running[:-1] - gap_extend * columns[1:]
        just_opened = skip_right[1:] <= entering[:-1] - gap_extend + 1e-9
        from_left = np.where(just_opened, np.where(paired[:-1] - gap_open >= skip_left[:-1], _PAIRED, _LEFT), _RIGHT)
        back[i] = before | (from_above << 2)
        back[i, 1:] |= (from_left << 4).astype(np.uint8)
    i, j = n, m
    last = m - int(first[n])
    state = int(np.argmax([paired[last], skip_left[last], skip_right[last]]))
    pairs: Pairs = []
    while i > 0 and j > 0:
        code = int(back[i, j - int(first[i])])
        if state == _PAIRED:
            pairs.append((i - 1, j - 1))
            i, j, state = i - 1, j - 1, code & 3
        elif state == _LEFT:
            i, state = i - 1, (code >> 2) & 3
        else:
            j, state = j - 1, (code >> 4) & 3
    return pairs[::-1]


def _moved(state: Floats, shift: int, width: int) -> Floats:
    """Return a row of the band as the next row sees it, ``shift`` columns further right (-1: one further left)."""
    moved = np.full(width, -np.inf)
    if shift >= 0:
        moved[: max(width - shift, 0)] = state[shift:]
    else:
        moved[-shift:] = state[:shift]
    return moved


def _trusted_anchors(left: Ints, right: Ints, similarity: npt.NDArray[np.float32]) -> Pairs:
    """Return pairs of unique symbols that match fully, if most of them agree in order and they are many; else nothing."""
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
    chain = longest_increasing(candidates)
    many = len(chain) >= ANCHORS_SHARE * min(len(left), len(right))
    return chain if many and len(chain) >= ANCHORS_AGREE * len(candidates) else []


def longest_increasing(pairs: Pairs) -> Pairs:
    """Return a longest part of ``pairs`` (sorted by their first numbers) whose second numbers increase."""
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
