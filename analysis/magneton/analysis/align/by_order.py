"""Evidence from order: long runs of operators with the same names in the same order are the same work.

The weakest evidence, and often the only one: torch.profiler's defaults record neither shapes nor modules. Operators that stand
by themselves (by shapes, modules or a whole subtree) are fixed points; what lies between them is aligned as a sequence. A
run counts if it carries more information than chance would give: ten operators named ``aten::add`` say little, a run of
twenty different names says much.

Example: A runs ``embedding, layer_norm, addmm, softmax, addmm``, B the same with ``dropout`` after ``softmax``. Four of A's five
operators stand in B in the same order; ``dropout`` is left for the caller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log2

import numpy as np

from magneton.analysis.align.sequence import Pairs, heaviest_common_subsequence, longest_increasing
from magneton.analysis.align.similarity import MIN_SIZES, Similarity
from magneton.analysis.align.tree import Node

# Likeness below which two operators are never taken for one another.
MIN_SCORE = 0.45
GAP_OPEN, GAP_EXTEND = 0.6, 0.01
# A fact (shapes, modules) is used where at least this share of both sides' operators has it.
MIN_KNOWN = 0.3
# Bits beyond what places the run among all others that a run has to carry; fewer where the sides hold fewer.
MARGIN_BITS = 10.0
SHORT, FEW_BITS = 24, 2.0
# A stretch of at most this many operators between two runs that count, counts too.
MAX_BETWEEN = 64
# A run that covers this share of the longer side counts whatever it is made of.
WHOLE_SHARE = 0.6
_RENAMED = 0.5


@dataclass(frozen=True, slots=True)
class Symbol:
    """What is compared of a leaf: its name, pass, shapes, module, the operators around it, and the classes of its kernels."""

    token: str
    backward: bool
    shapes: object
    module: str | None
    chain: tuple[str, ...]
    classes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Known:
    """Which facts both sides have."""

    shapes: bool
    modules: bool


def chains(root: Node) -> dict[Node, tuple[str, ...]]:
    """Return for each leaf the names of the operators around it, outermost first, without those named like itself."""
    found: dict[Node, tuple[str, ...]] = {}
    stack: list[tuple[Node, tuple[str, ...]]] = [(root, ())]
    while stack:
        node, around = stack.pop()
        if node.children:
            below = (*around, node.name) if node.kind == "op" else around
            stack.extend((child, below) for child in node.children)
        else:
            found[node] = tuple(name for name in around if name != node.name)
    return found


def known_facts(a: Sequence[Node], b: Sequence[Node], similarity: Similarity) -> Known:
    """Return which facts are known of enough leaves on both sides."""

    def share(leaves: Sequence[Node], has: Callable[[Node], bool]) -> float:
        return sum(map(has, leaves)) / max(len(leaves), 1)

    def shaped(leaf: Node) -> bool:
        return similarity.profile(leaf).has_shapes

    def placed(leaf: Node) -> bool:
        return leaf.module is not None

    return Known(
        min(share(a, shaped), share(b, shaped)) > MIN_KNOWN, min(share(a, placed), share(b, placed)) > MIN_KNOWN
    )


class ByOrder:
    """Pairs leaves of two trees by order.

    Args:
        a: root of side A.
        b: root of side B.
        similarity: for shapes and kernel classes; holds the scale between the sides.
    """

    def __init__(self, a: Node, b: Node, similarity: Similarity) -> None:
        self.leaves_a, self.leaves_b = a.leaves(), b.leaves()
        self._similarity = similarity
        self._known = known_facts(self.leaves_a, self.leaves_b, similarity)
        around = chains(a) | chains(b)
        self._a = [self._symbol(leaf, around[leaf]) for leaf in self.leaves_a]
        self._b = [self._symbol(leaf, around[leaf]) for leaf in self.leaves_b]
        self._scores: dict[tuple[Symbol, Symbol], float] = {}
        self._one_of: dict[Symbol, Node] = {}
        for symbol, leaf in zip([*self._a, *self._b], [*self.leaves_a, *self.leaves_b], strict=True):
            self._one_of.setdefault(symbol, leaf)

    def _symbol(self, leaf: Node, around: tuple[str, ...]) -> Symbol:
        return Symbol(
            leaf.token,
            leaf.backward,
            leaf.shapes or None if self._known.shapes else None,
            leaf.module if self._known.modules else None,
            around,
            frozenset(self._similarity.profile(leaf).classes),
        )

    def score(self, u: Symbol, v: Symbol) -> float:
        """Return how alike two operators are: 1 for a common name, more for common shapes, module and surroundings."""
        found = self._scores.get((u, v))
        if found is None:
            found = self._scores[u, v] = self._compute(u, v)
        return found

    def _compute(self, u: Symbol, v: Symbol) -> float:
        if u.token == v.token:
            score = 1.0
        elif u.chain and u.chain == v.chain:
            score = 0.4  # one interface that launched two kernels
        elif u.shapes and u.shapes == v.shapes and u.classes == v.classes and _type(u.module) == _type(v.module):
            score = 0.3
        else:
            return 0.0
        if u.backward != v.backward:
            score -= 0.5
        if u.shapes or v.shapes:
            left, right = (self._similarity.profile(self._one_of[s]) for s in (u, v))
            if u.shapes == v.shapes:
                score += 1.0
            elif left.has_shapes and right.has_shapes:
                sizes = self._similarity.sizes_overlap(left, right)
                if sizes < MIN_SIZES:
                    return 0.0  # names agree, the tensors do not: other work
                score += sizes - 0.6
        if u.module and v.module:
            score += 0.8 if u.module == v.module else 0.2 if _type(u.module) == _type(v.module) else -0.3
        score += 0.2 * (u.classes == v.classes) + 0.1 * (u.chain == v.chain)
        return score if score >= MIN_SCORE else 0.0

    def pairs(self, fixed: Pairs, free: Collection[Node]) -> Pairs:
        """Return pairs of positions beyond the fixed ones, in order.

        Args:
            fixed: pairs of positions that stand by themselves.
            free: leaves that may be paired.
        """
        chain = longest_increasing(sorted(fixed))
        found = [
            (window_a[p], window_b[q])
            for window_a, window_b, _ in self.windows(chain, free)
            for p, q in self._sequence(window_a, window_b)
        ]
        return self._significant(chain, found)

    def windows(self, chain: Pairs, free: Collection[Node]) -> Iterator[tuple[list[int], list[int], bool]]:
        """Yield the positions of free leaves between pairs that follow one another, and whether a pair bounds both ends."""
        previous = (-1, -1)
        ends = (len(self._a), len(self._b))
        for i, j in [*chain, ends]:
            window_a = [k for k in range(previous[0] + 1, i) if self.leaves_a[k] in free]
            window_b = [k for k in range(previous[1] + 1, j) if self.leaves_b[k] in free]
            yield window_a, window_b, previous != (-1, -1) and (i, j) != ends
            previous = (i, j)

    def _sequence(self, free_a: Sequence[int], free_b: Sequence[int]) -> Pairs:
        """Align two lists of positions: equal beginnings and ends first, the rest by the heaviest common subsequence."""
        left, right = [self._a[i] for i in free_a], [self._b[j] for j in free_b]
        begin = 0
        while begin < min(len(left), len(right)) and left[begin] == right[begin]:
            begin += 1
        end = 0
        while end < min(len(left), len(right)) - begin and left[-1 - end] == right[-1 - end]:
            end += 1
        inner_a, inner_b = left[begin : len(left) - end], right[begin : len(right) - end]
        pairs = [(k, k) for k in range(begin)]
        if inner_a and inner_b:
            ids_a, symbols_a = _numbered(inner_a)
            ids_b, symbols_b = _numbered(inner_b)
            matrix = np.array([[self.score(u, v) for v in symbols_b] for u in symbols_a], dtype=np.float32)
            pairs += [
                (begin + i, begin + j)
                for i, j in heaviest_common_subsequence(ids_a, ids_b, matrix, gap_open=GAP_OPEN, gap_extend=GAP_EXTEND)
            ]
        return pairs + [(len(left) - k, len(right) - k) for k in range(end, 0, -1)]

    def _significant(self, fixed: Pairs, found: Pairs) -> Pairs:
        """Return those pairs that lie in runs which carry more information than chance would give.

        Fixed pairs carry as much as any run needs: what follows or precedes them closely is vouched for.
        """
        n, m = len(self._a), len(self._b)
        if not found:
            return []
        keys_a, keys_b = [self._key(s) for s in self._a], [self._key(s) for s in self._b]
        count_a, count_b = Counter(keys_a), Counter(keys_b)

        def bits(i: int, j: int) -> float:
            if keys_a[i] != keys_b[j]:
                return _RENAMED
            return -log2(max(count_a[keys_a[i]] / n, count_b[keys_b[j]] / m))

        all_a, all_b = (
            sum(-c * log2(c / total) for c in count.values()) for count, total in ((count_a, n), (count_b, m))
        )
        need = min(log2(n * m + 1) + MARGIN_BITS, 0.5 * min(all_a + 1, all_b + 1))
        if max(n, m) <= SHORT:
            need = min(need, FEW_BITS)
        standing = set(fixed)
        good = set(fixed)
        run: Pairs = []
        total = peak = 0.0
        last: tuple[int, int] | None = None

        def close() -> None:
            if peak >= need or len(run) >= WHOLE_SHARE * max(n, m):
                good.update(run)

        for i, j in sorted({*found, *fixed}):
            if last is not None:
                gap = i - last[0] + j - last[1] - 2
                if gap:
                    total -= 2 + 2 * log2(1 + gap)
                    if total < 0 or gap > MAX_BETWEEN:
                        close()
                        run, total, peak = [], 0.0, 0.0
            run.append((i, j))
            total += need if (i, j) in standing else bits(i, j)
            peak = max(peak, total)
            last = (i, j)
        close()
        return sorted(p for p in found if p in good or self._between(p, good))

    def _between(self, pair: tuple[int, int], good: set[tuple[int, int]]) -> bool:
        """Tell whether a pair lies closely beside pairs that count."""
        reach = MAX_BETWEEN // 2
        return any((pair[0] + d, pair[1] + e) in good for d in range(-reach, reach + 1) for e in (d - 1, d, d + 1))

    def _key(self, symbol: Symbol) -> object:
        return symbol if self._known.shapes else (symbol.token, symbol.backward, symbol.chain)


def _type(module: str | None) -> str | None:
    """Return a module path without the numbers of instances: ``Block_3/Linear_0`` and ``Block_4/Linear_1`` are of one type."""
    if module is None:
        return None
    return "/".join(part.rsplit("_", 1)[0] if part.rsplit("_", 1)[-1].isdigit() else part for part in module.split("/"))


def _numbered(symbols: Iterable[Symbol]) -> tuple[np.ndarray, list[Symbol]]:
    numbers: dict[Symbol, int] = {}
    ids = [numbers.setdefault(symbol, len(numbers)) for symbol in symbols]
    return np.array(ids, dtype=np.int64), list(numbers)
