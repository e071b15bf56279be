"""Structural alignment of two trees of work: top down, in order, largest agreement first.

Children of matched nodes are aligned as sequences. The nodes that remain between two matched neighbours are a gap. Their
children take their place, and the gap is aligned again, level by level. So a wrapper that only one side has does not matter.
What remains at the leaves becomes one region of several operators against several. The result does not depend on which side is
called A.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from magneton.analysis.align.absorb import gather
from magneton.analysis.align.by_order import ByOrder
from magneton.analysis.align.parts import parts_of
from magneton.analysis.align.sequence import heaviest_common_subsequence, longest_increasing
from magneton.analysis.align.similarity import STRONG, WEAK, Similarity
from magneton.analysis.align.tree import Node
from magneton.schemas.kinds import Evidence

# Share of all leaves that must match by themselves before matched neighbours count as evidence for the rest.
MIN_STRONG_SHARE = 0.3
# The kernels of two replayed graphs are compared one by one if at least this share of their time finds a partner.
MIN_PAIRED_INSIDE = 0.5
# A group of several operators against several holds at most this many, and one side takes at most so many times the other's
# time; more where at least half of the tensor sizes agree, since a fused operator can be much faster than what it replaces.
MAX_GROUP = 64
MAX_TIMES, MAX_TIMES_SHAPED = 8.0, 100.0
# Likeness of two nodes of the same structure in different places of the module tree: of several such the one in the same place wins.
OTHER_PLACE = 0.98
# Two calls of the same operator made of different numbers of kernels-launching parts stay together up to this many parts.
MAX_CALL = 12


@dataclass(slots=True)
class Correspondence:
    """Leaves of side A and of side B that do the same work; one list is empty where the other side has none.

    ``calls`` is the number of operators called on each side, where it is known. It may differ from the number of leaves:
    ``aten::addmm`` that copies its bias and then multiplies is one operator with two leaves.
    """

    a: list[Node]
    b: list[Node]
    score: float | None
    evidence: frozenset[str] = frozenset()
    calls: tuple[int, int] | None = None


# Where a stretch without partners lies: nowhere in particular, between two matched neighbours, inside a matched pair.
_LOOSE, _BETWEEN, _INSIDE = 0, 1, 2
_Queue = list[tuple[list[Node], list[Node], int]]


@dataclass(slots=True)
class _Gap:
    a: list[Node]
    b: list[Node]
    place: int


@dataclass
class Matcher:
    """Aligns two frozen trees; use ``match``.

    Attributes:
        similarity: how alike two nodes are.
        look_inside: compare two calls that each replay a graph kernel by kernel.
    """

    similarity: Similarity = field(default_factory=Similarity)
    look_inside: bool = True
    _found: list[Correspondence] = field(default_factory=list)
    _gaps: list[_Gap] = field(default_factory=list)
    _groups: list[tuple[list[Node], list[Node]]] = field(default_factory=list)

    def match(self, a: Node, b: Node) -> list[Correspondence]:
        """Return the correspondences of two trees whose roots are the same step. Every leaf is in exactly one."""
        self._found, self._gaps, self._groups = [], [], []
        if a.strict == b.strict:
            self._equal(a, b)
        else:
            work: _Queue = [(a.children, b.children, _LOOSE)]
            while work:
                self._align(*work.pop(), work)
            self._settle(a, b)
        return [part for found in self._found for part in self._inside(found)] if self.look_inside else self._found

    def _inside(self, found: Correspondence) -> list[Correspondence]:
        """Align the kernels of two calls that replay a graph each, where most of them find a partner."""
        if len(found.a) != 1 or len(found.b) != 1 or found.a[0].inner is None or found.b[0].inner is None:
            return [found]
        inside = Matcher(self.similarity).match(found.a[0].inner, found.b[0].inner)
        for side in ("a", "b"):
            every = sum(leaf.device_ns for part in inside for leaf in getattr(part, side))
            paired = sum(leaf.device_ns for part in inside if part.a and part.b for leaf in getattr(part, side))
            if paired < MIN_PAIRED_INSIDE * every:
                return [found]
        return inside

    def _equal(self, a: Node, b: Node) -> None:
        evidence = frozenset({Evidence.NAME, Evidence.ORDER} | ({Evidence.TREE} if a.n_items >= 3 else set()))
        for left, right in zip(a.leaves(), b.leaves(), strict=True):
            shaped = evidence | {Evidence.SHAPES} if left.shapes else evidence
            self._found.append(Correspondence([left], [right], 1.0, shaped))

    def _align(self, left: list[Node], right: list[Node], place: int, work: _Queue) -> None:
        """Align two lists of siblings; queue what is to be aligned below them."""
        pairs = self._pairs(left, right)
        previous = (-1, -1)
        for i, j in [*pairs, (len(left), len(right))]:
            gap_a, gap_b = left[previous[0] + 1 : i], right[previous[1] + 1 : j]
            between = previous != (-1, -1) and i < len(left)
            self._open(gap_a, gap_b, max(place, _BETWEEN if between else _LOOSE), work)
            if i < len(left):
                self._pair(left[i], right[j], work)
            previous = (i, j)

    def _pairs(self, left: list[Node], right: list[Node]) -> list[tuple[int, int]]:
        if not left or not right:
            return []
        ids_a, nodes_a = _symbols(left)
        ids_b, nodes_b = _symbols(right)
        matrix = np.zeros((len(nodes_a), len(nodes_b)), dtype=np.float32)
        for i, j in self._candidates(nodes_a, nodes_b):
            u, v = nodes_a[i], nodes_b[j]
            score = 1.0 if u.strict == v.strict else self.similarity(u, v)[0]
            if score == 1.0 and not self._informative(u) and (u.module is None or u.module != v.module):
                score = STRONG - 0.01
            if score == 1.0 and u.module != v.module:
                score = OTHER_PLACE
            if score >= STRONG:
                matrix[i, j] = score * (1.0 + 0.5 * np.log2(min(u.n_items, v.n_items)))
        pairs = heaviest_common_subsequence(ids_a, ids_b, matrix)
        return pairs or self._run_of_names(left, right)

    def _candidates(self, nodes_a: list[Node], nodes_b: list[Node]) -> Iterator[tuple[int, int]]:
        """Yield the pairs that can be similar at all: without a name in common no score reaches ``STRONG``."""
        with_name: dict[str, list[int]] = defaultdict(list)
        for j, v in enumerate(nodes_b):
            for name in {v.token, *self.similarity.profile(v).names}:
                with_name[name].append(j)
        for i, u in enumerate(nodes_a):
            for j in sorted(
                {j for name in {u.token, *self.similarity.profile(u).names} for j in with_name.get(name, ())}
            ):
                yield i, j

    def _informative(self, node: Node) -> bool:
        """Tell whether a node holds more than a name: known shapes, or three leaves or more."""
        return node.n_items >= 3 or self.similarity.profile(node).has_shapes

    def _run_of_names(self, left: list[Node], right: list[Node]) -> list[tuple[int, int]]:
        """Pair two whole lists of at least three nodes whose names are the same in the same order (no shapes known)."""
        if (
            len(left) != len(right)
            or len(left) < 3
            or any(u.loose != v.loose for u, v in zip(left, right, strict=True))
        ):
            return []
        known = [self.similarity.profile(n).has_shapes for n in (*left, *right)]
        return [] if any(known) else [(i, i) for i in range(len(left))]

    def _pair(self, u: Node, v: Node, work: _Queue) -> None:
        if u.strict == v.strict:
            self._equal(u, v)
        elif (not u.children and not v.children) or self._one_call(u, v):
            score, evidence = self.similarity(u, v)
            self._found.append(Correspondence(u.leaves(), v.leaves(), score, evidence | {Evidence.ORDER}))
        else:
            work.append((u.children or [u], v.children or [v], _INSIDE))

    @staticmethod
    def _one_call(u: Node, v: Node) -> bool:
        """Tell whether two calls of one small operator consist of different parts; then the whole call is the region."""
        small = max(u.n_items, v.n_items) <= MAX_CALL
        return u.kind == v.kind == "op" and u.token == v.token and u.n_items != v.n_items and small

    def _open(self, a: list[Node], b: list[Node], place: int, work: _Queue) -> None:
        """Open the largest nodes of a gap and align again, or keep the gap when nothing can be opened."""
        if not a and not b:
            return
        largest = max((n.n_items for n in (*a, *b) if n.children), default=0)
        if not a or not b or not largest:
            self._gaps.append(_Gap(_leaves(a), _leaves(b), place))
            return
        # Nodes of similar size are opened together, so that a gap is aligned a few times and not once per node.
        work.append((_opened(a, largest), _opened(b, largest), place))

    def _settle(self, a: Node, b: Node) -> None:
        """Decide the gaps. Once enough leaves match by themselves, matched neighbours count as evidence."""
        self._by_order(a, b)
        strong = sum(len(c.a) + len(c.b) for c in self._found)
        vouched = strong >= MIN_STRONG_SHARE * (a.n_items + b.n_items)
        if vouched:
            self._gather(a.leaves(), b.leaves())
        for gap in self._gaps:
            whole = len(gap.a) == a.n_items and len(gap.b) == b.n_items and min(len(gap.a), len(gap.b)) == 1
            if gap.a and gap.b and (gap.place == _INSIDE or (vouched and gap.place == _BETWEEN) or whole):
                self._weakly(gap.a, gap.b)
            else:
                self._one_sided(gap.a, gap.b)
        self._decide_groups()
        self._join_parts(a.leaves(), b.leaves())

    def _by_order(self, a: Node, b: Node) -> None:
        """Pair what is left by the order of names, and divide what is still left by what stands around it."""
        loose = [gap for gap in self._gaps if gap.place != _INSIDE]
        free = {leaf for gap in loose for leaf in (*gap.a, *gap.b)}
        if not any(gap.a for gap in loose) or not any(gap.b for gap in loose):
            return
        order = ByOrder(a, b, self.similarity)
        at_a = {leaf: index for index, leaf in enumerate(order.leaves_a)}
        at_b = {leaf: index for index, leaf in enumerate(order.leaves_b)}
        fixed = [(at_a[c.a[0]], at_b[c.b[0]]) for c in self._found if c.a and c.b]
        pairs = order.pairs(fixed, free)
        for i, j in pairs:
            u, v = order.leaves_a[i], order.leaves_b[j]
            score, evidence = self.similarity.weak(u, v)
            self._found.append(Correspondence([u], [v], score, evidence))
            free -= {u, v}
        self._gaps = [gap for gap in self._gaps if gap.place == _INSIDE]
        for left, right, bounded in order.windows(longest_increasing(sorted([*fixed, *pairs])), free):
            if left or right:
                nodes = [order.leaves_a[i] for i in left], [order.leaves_b[j] for j in right]
                self._gaps.append(_Gap(*nodes, _BETWEEN if bounded else _LOOSE))

    def _gather(self, a: list[Node], b: list[Node]) -> None:
        """Let fused operators gather the operators they replace, and take these out of the gaps."""
        free = {leaf for gap in self._gaps for leaf in (*gap.a, *gap.b)}
        at_a = {leaf: index for index, leaf in enumerate(a)}
        at_b = {leaf: index for index, leaf in enumerate(b)}
        a_to_b = {c.a[0]: at_b[c.b[0]] for c in self._found}
        b_to_a = {c.b[0]: at_a[c.a[0]] for c in self._found}
        for fused in gather(b, a, b_to_a, free, self.similarity):
            self._found.append(
                Correspondence(
                    fused.parts, [fused.leaf], 0.2 + 0.3 * fused.agreement, frozenset({Evidence.ORDER, Evidence.SHAPES})
                )
            )
        for fused in gather(a, b, a_to_b, free, self.similarity):
            self._found.append(
                Correspondence(
                    [fused.leaf], fused.parts, 0.2 + 0.3 * fused.agreement, frozenset({Evidence.ORDER, Evidence.SHAPES})
                )
            )
        for gap in self._gaps:
            gap.a = [leaf for leaf in gap.a if leaf in free]
            gap.b = [leaf for leaf in gap.b if leaf in free]

    def _join_parts(self, a: list[Node], b: list[Node]) -> None:
        """Let unmatched calls join a pair if their tensors add up to the tensor of the other side."""
        position = {leaf: index for leaves in (a, b) for index, leaf in enumerate(leaves)}
        alone_a = {c.a[0]: c for c in self._found if not c.b}
        alone_b = {c.b[0]: c for c in self._found if not c.a}
        dropped: set[int] = set()
        for found in self._found:
            if len(found.a) != 1 or len(found.b) != 1 or found.a[0].shapes == found.b[0].shapes:
                continue
            if found.a[0].token != found.b[0].token:
                continue
            for parts, whole, alone in ((found.a, found.b[0], alone_a), (found.b, found.a[0], alone_b)):
                left_over = [(position[leaf], leaf) for leaf in alone]
                joined = parts_of(whole, parts[0], left_over, position[parts[0]])
                if joined:
                    dropped.update(id(alone.pop(leaf)) for leaf in joined)
                    parts[:] = sorted([*parts, *joined], key=position.__getitem__)
                    found.evidence |= {Evidence.PARTS, Evidence.SHAPES}
                    break
        self._found = [c for c in self._found if id(c) not in dropped]

    def _weakly(self, a: list[Node], b: list[Node]) -> None:
        ids_a, nodes_a = _symbols(a)
        ids_b, nodes_b = _symbols(b)
        matrix = np.zeros((len(nodes_a), len(nodes_b)), dtype=np.float32)
        for i, u in enumerate(nodes_a):
            for j, v in enumerate(nodes_b):
                # Unequal numbers of operators hint at fusion: then only a name may single out a pair.
                if len(a) == len(b) or u.token == v.token:
                    score = self.similarity.weak(u, v)[0]
                    matrix[i, j] = score if score >= WEAK else 0.0
        previous = (-1, -1)
        for i, j in [*heaviest_common_subsequence(ids_a, ids_b, matrix), (len(a), len(b))]:
            self._joined(a[previous[0] + 1 : i], b[previous[1] + 1 : j])
            if i < len(a):
                score, evidence = self.similarity.weak(a[i], b[j])
                self._found.append(Correspondence([a[i]], [b[j]], score, evidence))
            previous = (i, j)

    def _joined(self, a: list[Node], b: list[Node]) -> None:
        """Take note of what lies between matched neighbours on both sides: it may be one region."""
        if a and b:
            self._groups.append((a, b))
        else:
            self._one_sided(a, b)

    def _decide_groups(self) -> None:
        """Make regions of groups that can be the same work.

        Groups of the same operators are judged together, by their times in sum: one that was held up once is like the others.
        """
        alike: dict[object, list[tuple[list[Node], list[Node]]]] = defaultdict(list)
        for a, b in self._groups:
            alike[tuple(tuple(sorted(leaf.token for leaf in side)) for side in (a, b))].append((a, b))
        for groups in alike.values():
            times = [sum(leaf.device_ns for group in groups for leaf in group[side]) for side in (0, 1)]
            for a, b in groups:
                left, right = _merged(self.similarity, a), _merged(self.similarity, b)
                known = left[1] and right[1]
                agreement = len(left[0] & right[0]) / min(len(left[0]), len(right[0])) if known else None
                if not _plausible(len(a) + len(b), times, agreement):
                    self._one_sided(a, b)
                elif agreement is None:
                    self._found.append(Correspondence(a, b, 0.2, frozenset({Evidence.ORDER})))
                else:
                    self._found.append(
                        Correspondence(a, b, 0.2 + 0.2 * agreement, frozenset({Evidence.ORDER, Evidence.SHAPES}))
                    )

    def _one_sided(self, a: list[Node], b: list[Node]) -> None:
        self._found.extend(Correspondence([node], [], None) for node in a)
        self._found.extend(Correspondence([], [node], None) for node in b)


def _symbols(nodes: list[Node]) -> tuple[npt.NDArray[np.int64], list[Node]]:
    """Return each node's symbol (nodes of one structure and module share it) and one node per symbol."""
    numbers: dict[tuple[int, str | None], int] = {}
    distinct: list[Node] = []
    ids = np.empty(len(nodes), dtype=np.int64)
    for index, node in enumerate(nodes):
        key = (node.strict, node.module)
        if key not in numbers:
            numbers[key] = len(distinct)
            distinct.append(node)
        ids[index] = numbers[key]
    return ids, distinct


def _plausible(size: int, times: list[float], agreement: float | None) -> bool:
    """Tell whether two groups between matched neighbours can be the same work.

    Args:
        size: operators of both sides together.
        times: device time of either side in ns, over all groups of the same operators.
        agreement: share of tensor sizes in common; None where they are not known.
    """
    if agreement == 0 or size > MAX_GROUP:
        return False
    if not min(times):
        return max(times) == 0 or agreement is not None
    return max(times) <= (MAX_TIMES_SHAPED if agreement is not None and agreement >= 0.5 else MAX_TIMES) * min(times)


def _leaves(nodes: list[Node]) -> list[Node]:
    return [leaf for node in nodes for leaf in node.leaves()]


def _opened(nodes: list[Node], largest: int) -> list[Node]:
    return [
        part for node in nodes for part in (node.children if node.children and 2 * node.n_items > largest else [node])
    ]


def _merged(similarity: Similarity, nodes: list[Node]) -> tuple[set[int], bool]:
    """Return all tensor sizes of some leaves, and whether any are known."""
    sizes: set[int] = set()
    for node in nodes:
        sizes.update(similarity.profile(node).sizes)
    return sizes, bool(sizes)
