"""The published algorithm, for comparison: cut both graphs at equivalent tensors on the dominator spine, and recurse.

Written from the description in arXiv 2512.08365 (Algorithm 1) as the design summarises it. A graph's *spine* are the operators
that every path from its inputs to its result passes through, that is, the chain of immediate dominators of the result.
Tensors of both spines that are equivalent, matched in order, cut both graphs into segments; each pair of segments is treated
alike, the tensors at which it was cut no longer being edges. What cannot be cut any further is a matched region.

Two tensors are equivalent if they have as many elements and

* ``singular``: some common matricisation has the same largest singular values, or
* ``moments``: mean and standard deviation are close (as the reference implementation has it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from benchmarks.matching.flow import Flow
from benchmarks.matching.metric import Truth
from benchmarks.matching.raw_values import Array, squeezed
from magneton.analysis.values.match import MatchedRegion, MatchedValue, ValueMatch

LARGEST = 8
MAX_AXES = 4
_SOURCE, _SINK = -1, -2
Spectra = dict[tuple[int, int], list[NDArray[np.float64]]]


@dataclass
class _Tensor:
    """A tensor's values and the invariants the algorithm compares."""

    seen: Sequence[Array]

    @cached_property
    def clean(self) -> Array:
        x = self.seen[0]
        return np.where(np.isfinite(x) & (np.abs(x) < 1e30), x, 0.0)

    @cached_property
    def moments(self) -> tuple[float, float]:
        return float(self.clean.mean()), float(self.clean.std())

    @cached_property
    def spectra(self) -> Spectra:
        """Largest singular values of every matricisation, by its shape (the smaller side first)."""
        x = squeezed(self.clean)
        found: Spectra = {}
        if not 1 <= x.ndim <= MAX_AXES:
            x = x.reshape(-1)
        axes = range(x.ndim)
        splits = [rows for n in range(1, max(2, x.ndim // 2 + 1)) for rows in combinations(axes, n)]
        for rows in splits:
            columns = [a for a in axes if a not in rows]
            matrix = x.transpose(*rows, *columns).reshape(int(np.prod([x.shape[a] for a in rows], dtype=int)), -1)
            values = np.asarray(np.linalg.svd(matrix, compute_uv=False)[:LARGEST], np.float64)
            key = (min(matrix.shape), max(matrix.shape))
            found.setdefault(key, []).append(values)
        return found


class _Equivalence:
    """Whether tensors of A and B are equivalent, remembered."""

    def __init__(self, truth: Truth, kind: str, tolerance: float) -> None:
        self.truth, self.kind, self.tolerance = truth, kind, tolerance
        self._tensors: dict[tuple[int, int], _Tensor | None] = {}
        self._known: dict[tuple[int, int], bool] = {}

    def tensor(self, side: int, number: int) -> _Tensor | None:
        if (side, number) not in self._tensors:
            seen = self.truth.seen(side, 0, [number])
            self._tensors[side, number] = _Tensor(seen) if seen and seen[0].size > 1 else None
        return self._tensors[side, number]

    def __call__(self, a: int, b: int) -> bool:
        if (a, b) not in self._known:
            self._known[a, b] = self._compare(a, b)
        return self._known[a, b]

    def _compare(self, a: int, b: int) -> bool:
        x, y = self.tensor(0, a), self.tensor(1, b)
        if x is None or y is None or x.clean.size != y.clean.size:
            return False
        tolerance = max(
            self.tolerance, *(0.02 * ("bfloat16" in self.truth.flows[s].precision[t]) for s, t in ((0, a), (1, b)))
        )
        if self.kind == "moments":
            scale = max(x.moments[1], abs(x.moments[0]), 1e-12)
            return all(abs(m - n) <= tolerance * scale for m, n in zip(x.moments, y.moments, strict=True))
        for key in x.spectra.keys() & y.spectra.keys():
            for u in x.spectra[key]:
                for v in y.spectra[key]:
                    if np.linalg.norm(u - v) <= tolerance * max(float(np.linalg.norm(u)), 1e-12):
                        return True
        return False


class _Graph:
    """Operators of one side that depend on an input, and the tensors between them."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        computed = {o for o, op in flow.ops.items() if op.writes and not all(t in flow.constant for t in op.writes)}
        self.ops = sorted(computed)
        self.cut: set[int] = set()

    def result(self, ops: set[int]) -> int:
        """The last operator whose result nobody in the set reads."""
        read = {t for o in ops for t in self.flow.ops[o].reads}
        unread = [o for o in ops if not read & set(self.flow.ops[o].writes)]
        return max(unread) if unread else max(ops)

    def spine(self, ops: set[int]) -> list[int]:
        """Operators that every path to the result passes through, in order."""
        graph = nx.DiGraph()
        graph.add_nodes_from(ops)
        writer: dict[int, list[int]] = {}
        for op in ops:
            for tensor in self.flow.ops[op].writes:
                writer.setdefault(tensor, []).append(op)
        for op in ops:
            for tensor in self.flow.ops[op].reads:
                if tensor not in self.cut:
                    graph.add_edges_from((w, op) for w in writer.get(tensor, ()) if w < op)
        sink = self.result(ops)
        graph = graph.subgraph(nx.ancestors(graph, sink) | {sink}).copy()
        graph.add_edges_from([(_SOURCE, o) for o in list(graph) if graph.in_degree(o) == 0])
        dominators = nx.immediate_dominators(graph, _SOURCE)
        found, at = [sink], sink
        while (at := dominators[at]) not in (_SOURCE, None):
            found.append(at)
        return found[::-1]

    def output(self, op: int) -> int | None:
        """The tensor an operator brings forth, if that is one that may cut."""
        writes = [t for t in self.flow.ops[op].writes if t not in self.flow.constant and t not in self.cut]
        return writes[0] if writes else None

    def before(self, ops: set[int], op: int) -> set[int]:
        """Operators of a set that one of them depends on, itself included."""
        writer: dict[int, list[int]] = {}
        for other in ops:
            for tensor in self.flow.ops[other].writes:
                writer.setdefault(tensor, []).append(other)
        found, waiting = {op}, [op]
        while waiting:
            for tensor in self.flow.ops[waiting.pop()].reads:
                new = [w for w in writer.get(tensor, ()) if w not in found and w < max(found)]
                found.update(new)
                waiting += new
        return found


def dominator_match(truth: Truth, kind: str, tolerance: float) -> ValueMatch:
    """Match two graphs by the published algorithm.

    Args:
        truth: the pair, with its values.
        kind: which tensors are equivalent, ``singular`` or ``moments``.
        tolerance: relative tolerance of the comparison.
    """
    a, b = (_Graph(flow) for flow in truth.flows)
    equivalent = _Equivalence(truth, kind, tolerance)
    pairs: list[tuple[int, int]] = []
    regions: list[tuple[set[int], set[int]]] = []
    waiting = [(set(a.ops), set(b.ops))]
    while waiting:
        ours, theirs = waiting.pop()
        found = _matched_spines(a, b, ours, theirs, equivalent) if ours and theirs else []
        if not found:
            regions.append((ours, theirs))
            continue
        for x, y in found:
            tensors = a.output(x), b.output(y)
            if None not in tensors:
                pairs.append((int(tensors[0] or 0), int(tensors[1] or 0)))
        segments = list(_segments(a, b, ours, theirs, found))
        for x, y in found:
            a.cut.update(a.flow.ops[x].writes)
            b.cut.update(b.flow.ops[y].writes)
        waiting += segments
    return ValueMatch(
        regions=tuple(_regions(truth.flows, regions)),
        pairs=tuple(MatchedValue((x,), (y,), 0.0, (kind,)) for x, y in pairs),
        unions=(),
        cuts_a=frozenset(x for x, _ in pairs),
        cuts_b=frozenset(y for _, y in pairs),
        second_input=False,
    )


def _matched_spines(
    a: _Graph, b: _Graph, ours: set[int], theirs: set[int], equivalent: _Equivalence
) -> list[tuple[int, int]]:
    """The longest common subsequence of the spines' tensors."""
    one = [(o, t) for o in a.spine(ours) if (t := a.output(o)) is not None]
    two = [(o, t) for o in b.spine(theirs) if (t := b.output(o)) is not None]
    length = np.zeros((len(one) + 1, len(two) + 1), dtype=int)
    for i in reversed(range(len(one))):
        for j in reversed(range(len(two))):
            same = equivalent(one[i][1], two[j][1])
            length[i, j] = max(length[i + 1, j], length[i, j + 1], length[i + 1, j + 1] + same)
    found = []
    i = j = 0
    while i < len(one) and j < len(two):
        if equivalent(one[i][1], two[j][1]) and length[i, j] == length[i + 1, j + 1] + 1:
            found.append((one[i][0], two[j][0]))
            i, j = i + 1, j + 1
        elif length[i, j] == length[i + 1, j]:
            i += 1
        else:
            j += 1
    return found


def _segments(
    a: _Graph, b: _Graph, ours: set[int], theirs: set[int], found: Iterable[tuple[int, int]]
) -> Iterable[tuple[set[int], set[int]]]:
    left, right = set(ours), set(theirs)
    for x, y in found:
        first, second = a.before(left, x), b.before(right, y)
        left -= first
        right -= second
        yield first, second
    if left or right:
        yield left, right


def _regions(flows: tuple[Flow, Flow], regions: list[tuple[set[int], set[int]]]) -> Iterable[MatchedRegion]:
    covered: tuple[set[int], set[int]] = (set(), set())
    for ours, theirs in regions:
        covered[0].update(ours)
        covered[1].update(theirs)
        yield MatchedRegion(tuple(sorted(ours)), tuple(sorted(theirs)), False)
    for side, flow in enumerate(flows):
        for op in flow.ops.keys() - covered[side]:
            yield MatchedRegion((op,), (), False) if side == 0 else MatchedRegion((), (op,), False)
