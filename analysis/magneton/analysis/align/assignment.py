"""The pairs of two sets that weigh most together: the assignment problem, for the few operators that are in question.

Each connected part is solved by itself, by the method of Kuhn and Munkres in its form of shortest augmenting paths
(Jonker and Volgenant, Computing 38, 1987). Parts are small, so that no library is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

Pair = tuple[int, int]

# A larger part takes the heaviest pairs one after the other: the exact solution takes time with the third power.
MAX_EXACT = 64


def heaviest_assignment(weights: Mapping[Pair, float]) -> set[Pair]:
    """Return pairs, none sharing an end with another, whose weights sum to the most.

    Args:
        weights: weight of each pair that is allowed, above 0; a pair holds an element of the one set and one of the other.
    """
    chosen: set[Pair] = set()
    for part in _connected(weights):
        lefts, rights = sorted({i for i, _ in part}), sorted({j for _, j in part})
        if max(len(lefts), len(rights)) > MAX_EXACT:
            chosen |= _heaviest_first(part)
            continue
        swapped = len(lefts) > len(rights)
        rows, columns = (rights, lefts) if swapped else (lefts, rights)
        matrix = [[part.get((c, r) if swapped else (r, c), 0.0) for c in columns] for r in rows]
        for row, column in enumerate(_assign(matrix)):
            pair = (columns[column], rows[row]) if swapped else (rows[row], columns[column])
            if pair in part:
                chosen.add(pair)
    return chosen


def _connected(weights: Mapping[Pair, float]) -> list[dict[Pair, float]]:
    """Return the pairs by part: pairs that share an end are of one part."""
    of_left: dict[int, list[Pair]] = defaultdict(list)
    of_right: dict[int, list[Pair]] = defaultdict(list)
    for pair in sorted(weights):
        of_left[pair[0]].append(pair)
        of_right[pair[1]].append(pair)
    parts = []
    seen: set[Pair] = set()
    for start in sorted(weights):
        if start in seen:
            continue
        part: dict[Pair, float] = {}
        stack = [start]
        seen.add(start)
        while stack:
            pair = stack.pop()
            part[pair] = weights[pair]
            for other in (*of_left[pair[0]], *of_right[pair[1]]):
                if other not in seen:
                    seen.add(other)
                    stack.append(other)
        parts.append(part)
    return parts


def _heaviest_first(part: Mapping[Pair, float]) -> set[Pair]:
    chosen: set[Pair] = set()
    taken: tuple[set[int], set[int]] = (set(), set())
    for i, j in sorted(part, key=lambda pair: (-part[pair], sum(pair), abs(pair[0] - pair[1]), pair)):
        if i not in taken[0] and j not in taken[1]:
            chosen.add((i, j))
            taken[0].add(i)
            taken[1].add(j)
    return chosen


def _assign(weights: list[list[float]]) -> list[int]:
    """Return the column of each row so that the weights sum to the most; there are at least as many columns as rows."""
    n, m = len(weights), len(weights[0])
    row_price, column_price = [0.0] * (n + 1), [0.0] * (m + 1)
    # Rows and columns count from 1: 0 is the row that looks for a column, and no column.
    row_of, before = [0] * (m + 1), [0] * (m + 1)
    for row in range(1, n + 1):
        row_of[0], column = row, 0
        least = [float("inf")] * (m + 1)
        done = [False] * (m + 1)
        while row_of[column]:
            done[column] = True
            at, step, following = row_of[column], float("inf"), 0
            for c in range(1, m + 1):
                if done[c]:
                    continue
                cost = -weights[at - 1][c - 1] - row_price[at] - column_price[c]
                if cost < least[c]:
                    least[c], before[c] = cost, column
                if least[c] < step:
                    step, following = least[c], c
            for c in range(m + 1):
                if done[c]:
                    row_price[row_of[c]] += step
                    column_price[c] -= step
                else:
                    least[c] -= step
            column = following
        while column:
            row_of[column] = row_of[before[column]]
            column = before[column]
    columns = [0] * n
    for c in range(1, m + 1):
        if row_of[c]:
            columns[row_of[c] - 1] = c - 1
    return columns
