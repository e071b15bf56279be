"""Finding the operators and layers of the kernels of a replayed graph.

A replay (``cudaGraphLaunch``, ``hipGraphLaunch``) runs hundreds of kernels under one correlation id, without a call tree. A trace
of the graph capture has the call tree, but no kernels ran. Both list the same work in the same order, so they are aligned by name.
Without a graph capture, layers are found from the repetition of kernel names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from magneton.transforms.cuda_graphs.layers import Repeats, find_repeats
from magneton.transforms.cuda_graphs.sequence_align import align
from magneton.transforms.naming.kernel_names import MEMCPY, MEMSET, UNNAMED, agreement
from magneton.transforms.naming.launch_names import capture_step

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

# A captured graph explains a replay only if it names at least this share of its kernels.
_MIN_MATCHED = 0.5
# Costs of choosing a graph: it is not the next one in order of capture; it is larger than needed; it is too small.
_JUMP = 0.05
_LARGER = 0.01
_TOO_SMALL = 0.03
# Replays whose order is decided together.
_CHUNK = 1024
# A repetition names layers only if it holds this share of the sequence.
_MIN_REPEATED = 0.25


@dataclass(frozen=True)
class Placement:
    """Where the kernels of some replays come from.

    Attributes:
        segment: captured graph that each replay is a replay of, or -1. Shape ``(replays,)``.
        partner: for each replay and each of its kernels the element of that captured graph, or -1.
    """

    segment: Ints
    partner: list[Ints]

    def coverage(self, weight: Sequence[NDArray[np.int64]] | None = None) -> float:
        """Return the placed share of all kernels (or of their ``weight``, e.g. time); 0 for no kernels."""
        weight = [np.ones(len(p), dtype=np.int64) for p in self.partner] if weight is None else weight
        total = sum(int(w.sum()) for w in weight)
        placed = sum(int(w[p >= 0].sum()) for w, p in zip(weight, self.partner, strict=True))
        return placed / total if total else 0.0


def captured_graphs(api: Sequence[str], thread: Sequence[str], wanted: Bools) -> list[Ints]:
    """Split the launch calls of a capture trace into the graphs that were captured.

    Args:
        api: name of each call, in order of time; shape ``(n,)``.
        thread: its thread; calls of other threads than the capturing one are not captured.
        wanted: the call puts work on a device and none of it was seen running; shape ``(n,)``.

    Returns:
        For each graph the indices of its calls, in order of capture; without empty ones. Where the trace shows no
        begin of a capture, all wanted calls form one graph.
    """
    graphs: list[list[int]] = []
    capturing: dict[str, list[int]] = {}
    begun = False
    for i, (name, where) in enumerate(zip(api, thread, strict=True)):
        change = capture_step(name)
        if change > 0:
            begun = True
            capturing[where] = []
            graphs.append(capturing[where])
        elif change < 0:
            capturing.pop(where, None)
        elif where in capturing and wanted[i]:
            capturing[where].append(i)
    if not begun:
        graphs = [np.flatnonzero(wanted).tolist()]
    return [np.array(graph, dtype=np.int64) for graph in graphs if graph]


def place_by_capture(
    graphs: Sequence[Sequence[str]],
    replays: Sequence[Sequence[str]],
    *,
    group: Sequence[int] | None = None,
    size: Sequence[int | None] | None = None,
    needed: Sequence[int | None] | None = None,
) -> Placement:
    """Find for each replay the captured graph it replays, and for each of its kernels the call that was captured.

    Names decide which graphs are possible. Among alike graphs (one per layer) those are chosen that follow one another
    in order of capture, step by step; among graphs for several batch sizes the smallest that holds the step's tokens.

    Args:
        graphs: ``kernel_names.launch_token`` of the calls of each captured graph, in order of capture.
        replays: ``kernel_names.activity_token`` of the activities of each replay, in order; replays in order of launch.
        group: number of the step each replay belongs to; equal numbers are adjacent. Default: one step.
        size: tokens each captured graph was made for, where known.
        needed: tokens of the step each replay belongs to, where known.

    Returns:
        The placement. A kernel is assigned only to a call that names it. CUDA calls name no kernels; there a kernel is
        assigned to the call at the same position of a graph with the same sequence of kernels, copies and fills.
    """
    nothing = Placement(np.full(len(replays), -1, dtype=np.int64), [np.full(len(r), -1, np.int64) for r in replays])
    if not graphs or not replays:
        return nothing
    distinct_graphs, graph_of = _distinct(graphs)
    distinct_replays, replay_of = _distinct(replays)
    matches = _Matches(distinct_graphs, distinct_replays)
    score = matches.scores()
    sizes = _optional(size, len(graphs))
    wanted = _optional(needed, len(replays))
    segment = nothing.segment
    for chunk in _chunks(group, len(replays)):
        emission = score[replay_of[chunk]][:, graph_of]
        emission -= _size_cost(sizes, wanted[chunk])
        segment[chunk] = _in_order(emission)
    partner = nothing.partner
    for r, s in enumerate(segment.tolist()):
        if s >= 0:
            partner[r] = matches.partner(int(graph_of[s]), int(replay_of[r]))
    return Placement(segment, partner)


def label_blocks(names: Sequence[str], replay: Ints, step: Ints) -> tuple[Ints, Ints]:
    """Number the layers that show as repetition in graph replays.

    A replay that repeats in itself (a whole forward pass) is numbered alone, so that every pass counts from 0. Replays
    that do not (one graph per layer) are numbered together with the kernels launched between them, step by step.

    Args:
        names: kernel names of one device in order of execution; shape ``(n,)``.
        replay: number of the graph launch each belongs to, -1 for kernels launched one by one; shape ``(n,)``.
        step: number of the step each belongs to, -1 for none; shape ``(n,)``.

    Returns:
        ``block`` and ``position`` as in ``Repeats``, -1 where nothing repeats; shape ``(n,)`` each.
    """
    block = np.full(len(names), -1, dtype=np.int64)
    position = block.copy()
    known: dict[tuple[str, ...], Repeats] = {}

    def label(members: Ints) -> bool:
        key = tuple(names[i] for i in members.tolist())
        found = known.get(key)
        if found is None:
            found = known[key] = find_repeats(key)
        if found.coverage() < _MIN_REPEATED:
            return False
        block[members], position[members] = found.block, found.position
        return True

    pieces = [members for key, members in _groups(replay) if key >= 0 and not label(members)]
    if pieces:
        rest = np.isin(replay, np.unique(replay[np.concatenate(pieces)]))
        open_steps = np.unique(step[rest])
        together = np.flatnonzero((rest | (replay < 0)) & np.isin(step, open_steps))
        for _, members in _groups(step[together]):
            label(together[members])
    return block, position


def _groups(keys: Ints) -> list[tuple[int, Ints]]:
    """Return each key with the indices that carry it, in order."""
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order])) + 1
    return [(int(keys[part[0]]), part) for part in np.split(order, cuts) if len(part)]


def _distinct(sequences: Sequence[Sequence[str]]) -> tuple[list[tuple[str, ...]], Ints]:
    seen: dict[tuple[str, ...], int] = {}
    number = np.array([seen.setdefault(tuple(s), len(seen)) for s in sequences], dtype=np.int64)
    return list(seen), number


def _optional(values: Sequence[int | None] | None, n: int) -> Floats:
    return np.array([np.nan if v is None else v for v in values or [None] * n], dtype=np.float64)


def _chunks(group: Sequence[int] | None, n: int) -> list[slice]:
    """Cut the replays at the steps, and very long steps into pieces."""
    edges = [0]
    for i in range(1, n):
        if (group is not None and group[i] != group[i - 1]) or i - edges[-1] >= _CHUNK:
            edges.append(i)
    return [slice(a, b) for a, b in zip(edges, [*edges[1:], n], strict=True)]


def _size_cost(size: Floats, needed: Floats) -> Floats:
    """Return the cost of each captured graph for each replay, if its batch size is wrong; 0 where unknown."""
    cost = np.zeros((len(needed), len(size)))
    for row, tokens in zip(cost, needed, strict=True):
        fits = size >= tokens
        if fits.any():
            row[size > size[fits].min()] = _LARGER
        row[size < tokens] = _TOO_SMALL
    return cost


def _in_order(emission: Floats) -> Ints:
    """Choose a graph for each replay so that graphs fit and follow one another (Viterbi); -1 where none fits.

    Args:
        emission: how well each graph fits each replay, below 0 where it does not; shape ``(replays, graphs)``.
    """
    n, m = emission.shape
    fit = np.hstack([np.where(emission > 0, emission, -np.inf), np.zeros((n, 1))])
    total = fit[0].copy()
    advanced = np.zeros((n, m + 1), dtype=bool)
    jump_from = np.zeros(n, dtype=np.int64)
    for i in range(1, n):
        jump_from[i] = int(total.argmax())
        jumped = total[jump_from[i]] - _JUMP
        following = np.full(m + 1, -np.inf)
        following[1:m] = total[: m - 1]
        advanced[i] = following >= jumped
        total = np.where(advanced[i], following, jumped) + fit[i]
    chosen = np.empty(n, dtype=np.int64)
    state = int(total.argmax())
    for i in range(n - 1, -1, -1):
        chosen[i] = state if state < m else -1
        state = state - 1 if advanced[i, state] else int(jump_from[i])
    return chosen


class _Matches:
    """Alignments of distinct captured graphs with distinct replays, made where they can be good, and kept."""

    def __init__(self, graphs: list[tuple[str, ...]], replays: list[tuple[str, ...]]) -> None:
        launch_names = list(dict.fromkeys(name for graph in graphs for name in graph))
        kernel_names = list(dict.fromkeys(name for replay in replays for name in replay))
        self._weight = agreement(launch_names, kernel_names)
        launch_code = {name: i for i, name in enumerate(launch_names)}
        kernel_code = {name: i for i, name in enumerate(kernel_names)}
        self._graphs = [np.array([launch_code[name] for name in graph], dtype=np.int64) for graph in graphs]
        self._replays = [np.array([kernel_code[name] for name in replay], dtype=np.int64) for replay in replays]
        self._unnamed = [2 * Counter(graph)[UNNAMED] > len(graph) for graph in graphs]
        self._launch_kind = _kinds(launch_names)
        self._kernel_kind = _kinds(kernel_names)
        self._found: dict[tuple[int, int], Ints] = {}

    def partner(self, g: int, r: int) -> Ints:
        """Return the element of graph ``g`` for each kernel of replay ``r``, or -1."""
        if (g, r) not in self._found:
            graph, replay = self._graphs[g], self._replays[r]
            if self._unnamed[g]:
                self._found[g, r] = self._by_count(graph, replay)
            else:
                self._found[g, r] = align(graph, replay, self._weight)
        return self._found[g, r]

    def _by_count(self, graph: Ints, replay: Ints) -> Ints:
        """Pair element by element if the two are the same sequence of kernels, copies and fills."""
        same = len(graph) == len(replay) and np.array_equal(self._launch_kind[graph], self._kernel_kind[replay])
        return np.arange(len(replay)) if same else np.full(len(replay), -1, dtype=np.int64)

    def scores(self) -> Floats:
        """Return how well each graph fits each replay: pairs over the longer length, 0 where too few are named.

        The number of common names, in any order, is an upper bound of the score. Graphs whose bound is too low are not aligned.
        """
        n_launch, n_kernel = self._weight.shape
        counts = np.stack([np.bincount(graph, minlength=n_launch) for graph in self._graphs])
        available = counts @ (self._weight > 0).astype(np.int64)
        lengths = np.array([len(graph) for graph in self._graphs])
        score = np.zeros((len(self._replays), len(self._graphs)))
        for r, replay in enumerate(self._replays):
            common = np.minimum(available, np.bincount(replay, minlength=n_kernel)).sum(axis=1)
            bound = np.where(self._unnamed, lengths == len(replay), common / np.maximum(lengths, len(replay)))
            best = 0.0
            for g in np.argsort(-bound, kind="stable").tolist():
                if bound[g] <= max(best - 2 * _JUMP, 0.0):
                    break
                pairs = int((self.partner(g, r) >= 0).sum())
                if pairs >= _MIN_MATCHED * len(replay):
                    score[r, g] = pairs / max(len(replay), int(lengths[g]))
                    best = max(best, float(score[r, g]))
        return score


def _kinds(names: list[str]) -> Ints:
    return np.array([(name == MEMCPY) + 2 * (name == MEMSET) for name in names], dtype=np.int64)
