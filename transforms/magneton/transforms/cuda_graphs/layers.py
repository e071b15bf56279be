"""Repeated structure of a kernel sequence: the layers of a model, found from kernel names alone.

The kernels of a replayed graph have no operator tree. But most models are a stack of similar layers, so the sequence of kernel
names repeats. It has a beginning (embedding) and an end (output head), and layers may alternate between kinds (sliding and full
attention). The smallest unit that repeats is called a *block*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from magneton.transforms.cuda_graphs.sequence_align import align
from magneton.transforms.naming.kernel_names import family

Ints = NDArray[np.int64]

_MIN_BLOCKS = 3
_MIN_LENGTH = 3
# Neighbouring blocks must share this much of their kernels (as a multiset), and of their kinds of kernels (as a set).
# The second tells alternating kinds of layer (0.9 and more) from the halves of one layer (below 0.7).
_MIN_SHARED = 0.6
_MIN_SHARED_KINDS = 0.75
# Smaller differences of similarity come from the kernels before the first and after the last block.
_AS_GOOD = 0.05
# Kinds of block beyond this many do not add positions of their own.
_MAX_VARIANTS = 64


@dataclass(frozen=True)
class Repeats:
    """Where each kernel lies in the repetition.

    Attributes:
        block: number of the block, from 0; -1 for what lies before, between or after. Shape ``(n,)``.
        position: place within the block, the same for kernels that correspond; -1 where ``block`` is. Shape ``(n,)``.
        n_blocks: number of blocks, 0 where nothing repeats.
        n_variants: number of different blocks, by their exact names.
        template: name at each position (of the most frequent kind of block that has one there).
    """

    block: Ints
    position: Ints
    n_blocks: int
    n_variants: int
    template: tuple[str, ...]

    def coverage(self, weight: NDArray[np.int64] | NDArray[np.float64] | None = None) -> float:
        """Return the share of kernels (or of their ``weight``, e.g. time) that lies in a block; 0 for no kernels."""
        weight = np.ones(len(self.block)) if weight is None else weight
        total = float(weight.sum())
        return float(weight[self.block >= 0].sum()) / total if total else 0.0


def find_repeats(names: Sequence[str]) -> Repeats:
    """Find the blocks of a sequence of kernel names.

    A name (or family of names) that occurs once in every block delimits the blocks. Each name that cuts the sequence into at
    least 3 similar pieces is a candidate; the one with the most pieces is taken. Then all cuts are moved forward to the
    earliest place at which the pieces are still equal, so that the first layer is complete. Kernels that only one block has are
    in no block. Example: a sampler between two passes.

    Args:
        names: kernel names in order of execution.

    Returns:
        The repetition; ``n_blocks`` is 0 and all of it -1 where there is none.
    """
    exact = _codes(names)
    kinds = _codes([family(name) for name in names])
    starts = _best_cut(exact, kinds)
    if starts is None:
        nothing = np.full(len(names), -1, dtype=np.int64)
        return Repeats(nothing, nothing, 0, 0, ())
    starts = _move_earlier(starts, exact)
    bounds = [(int(s), int(e)) for s, e in zip(starts, [*starts[1:], len(names)], strict=True)]
    bounds[-1] = (bounds[-1][0], _end_of_last(bounds, exact))
    return _positions(names, exact, kinds, bounds)


def _codes(names: Sequence[str]) -> Ints:
    """Number names by first occurrence."""
    seen: dict[str, int] = {}
    return np.array([seen.setdefault(name, len(seen)) for name in names], dtype=np.int64)


def _best_cut(exact: Ints, kinds: Ints) -> Ints | None:
    """Return where the blocks start when cut at the best delimiter, or None.

    Delimiters with equally many occurrences cut the same blocks at different places: the earliest of the good ones.
    """
    cuts: list[tuple[float, Ints]] = []
    for at in sorted((*_delimiters(exact), *_delimiters(kinds)), key=lambda at: -len(at)):
        if cuts and len(at) < len(cuts[0][1]):
            break
        shared = _likeness(kinds, at)
        if shared is not None:
            cuts.append((shared, at))
    if not cuts:
        return None
    good = max(shared for shared, _ in cuts) - _AS_GOOD
    return min((at for shared, at in cuts if shared >= good), key=lambda at: int(at[0]))


def _delimiters(codes: Ints) -> list[Ints]:
    """Return the places of the names worth trying, most frequent first: up to 3, earliest first, for each frequency."""
    if not len(codes):
        return []
    order = np.argsort(codes, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    limit = len(codes) // _MIN_LENGTH
    chosen: list[Ints] = []
    taken: Counter[int] = Counter()
    for at in sorted(groups, key=lambda g: (-len(g), g[0])):
        if _MIN_BLOCKS <= len(at) <= limit and taken[len(at)] < 3:
            taken[len(at)] += 1
            chosen.append(at)
    return chosen


def _likeness(kinds: Ints, starts: Ints) -> float | None:
    """Return how similar neighbouring blocks are (0 to 1), or None if they are too different to be a repetition."""
    n_blocks, n_kinds = len(starts), int(kinds.max()) + 1
    lengths = np.diff(starts)
    if np.median(lengths) < _MIN_LENGTH or n_blocks * n_kinds > 50_000_000:
        return None
    # The last block has no end yet: it is taken as long as the longest of the others.
    end = min(len(kinds), int(starts[-1] + lengths.max()))
    block = np.zeros(end - starts[0], dtype=np.int64)
    block[starts[1:] - starts[0]] = 1
    block = np.cumsum(block)
    flat = block * n_kinds + kinds[starts[0] : end]
    bags = np.bincount(flat, minlength=n_blocks * n_kinds).reshape(n_blocks, n_kinds)[: n_blocks - 1]
    left, right = bags[:-1], bags[1:]
    shared = np.minimum(left, right).sum() / max(int(np.maximum(left.sum(axis=1), right.sum(axis=1)).sum()), 1)
    shared_kinds = ((left > 0) & (right > 0)).sum() / max(int(((left > 0) | (right > 0)).sum()), 1)
    return float(shared) if shared >= _MIN_SHARED and shared_kinds >= _MIN_SHARED_KINDS else None


def _move_earlier(starts: Ints, codes: Ints) -> Ints:
    """Move all starts back while the kernels before them are the same in all blocks."""
    room = min(int(starts[0]), int(np.diff(starts).min()) - 1)
    back = 0
    while back < room and len(np.unique(codes[starts - back - 1])) == 1:
        back += 1
    return starts - back


def _end_of_last(bounds: list[tuple[int, int]], codes: Ints) -> int:
    """Return where the last block ends: with the last kernel it shares with one of the two before, at usual length."""
    start, end = bounds[-1]
    longest = max(e - s for s, e in bounds[:-1])
    rest = codes[start : min(end, start + longest)]
    same = np.eye(int(codes.max()) + 1, dtype=np.int8)
    matches = [np.flatnonzero(align(codes[s:e], rest, same) >= 0) for s, e in bounds[-3:-1]]
    best = max(matches, key=len)
    return start + int(best[-1]) + 1


def _positions(names: Sequence[str], exact: Ints, kinds: Ints, bounds: list[tuple[int, int]]) -> Repeats:
    """Give every kernel of every block its position in a template that all kinds of block are laid against."""
    inside = np.concatenate([np.arange(s, e) for s, e in bounds])
    used, codes = np.unique(exact[inside], return_inverse=True)
    kind = np.empty(len(used), dtype=np.int64)
    kind[codes] = kinds[inside]
    weight = 4 * np.eye(len(used), dtype=np.int8)
    weight[(kind[:, None] == kind[None, :]) & (weight == 0)] = 2

    pieces = np.split(codes, np.cumsum([e - s for s, e in bounds])[:-1])
    variants = Counter(tuple(piece.tolist()) for piece in pieces)
    template, placed = _merge([v for v, _ in variants.most_common()], weight)

    rank = {slot: i for i, (slot, _) in enumerate(template)}
    support: Counter[int] = Counter()
    for variant, count in variants.items():
        support.update({slot: count for slot in placed[variant] if slot >= 0})
    block = np.full(len(names), -1, dtype=np.int64)
    position = block.copy()
    kept: set[tuple[int, ...]] = set()
    for number, ((start, _), piece) in enumerate(zip(bounds, pieces, strict=True)):
        slots = placed[tuple(piece.tolist())]
        length = len(slots)
        while length and (slots[length - 1] < 0 or _is_rare(support[slots[length - 1]], len(bounds))):
            length -= 1
        block[start : start + length] = number
        position[start : start + length] = [rank.get(slot, -1) for slot in slots[:length]]
        kept.add(tuple(piece[:length].tolist()))
    first = {int(code): names[int(i)] for i, code in zip(inside[::-1], codes[::-1], strict=True)}
    return Repeats(block, position, len(bounds), len(kept), tuple(first[code] for _, code in template))


def _is_rare(support: int, n_blocks: int) -> bool:
    """Tell whether too few blocks end like this for the ending to belong to the repetition."""
    return support < 2 or 4 * support < n_blocks


def _merge(
    variants: list[tuple[int, ...]], weight: NDArray[np.int8]
) -> tuple[list[tuple[int, int]], dict[tuple[int, ...], list[int]]]:
    """Lay each variant against a growing template.

    Returns:
        The template as (slot, code) in order, and for each variant the slot of each of its elements (-1: none).
    """
    template: list[tuple[int, int]] = []
    placed: dict[tuple[int, ...], list[int]] = {}
    n_slots = 0
    for number, variant in enumerate(variants):
        codes = np.array([code for _, code in template], dtype=np.int64)
        partners = align(codes, np.array(variant, dtype=np.int64), weight).tolist()
        grown: list[tuple[int, int]] = []
        slots: list[int] = []
        done = 0
        for code, partner in zip(variant, partners, strict=True):
            if partner >= 0:
                grown += template[done : partner + 1]
                done = partner + 1
                slots.append(template[partner][0])
            elif number < _MAX_VARIANTS:
                grown.append((n_slots, code))
                slots.append(n_slots)
                n_slots += 1
            else:
                slots.append(-1)
        template = grown + template[done:]
        placed[variant] = slots
    return template, placed
