"""How alike two nodes of the trees of work are, and on which evidence.

A name alone never makes a match: two operators of one name on different shapes do different work. Where shapes were not
recorded, a name needs further evidence: a subtree of the same structure, the same module path, or matched neighbours.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from magneton.analysis.align.tree import Node
from magneton.schemas.kinds import Evidence

# A pair with a similarity of STRONG or more counts by itself; a pair below it needs matched neighbours.
STRONG = 0.45
WEAK = 0.25
SAME_CALL = 0.8
# Tensors with fewer elements say nothing about the work (scalars, sizes, seeds).
MIN_NUMEL = 2
# Where shapes are known, a pair counts by itself only if at least this share of its tensor sizes agrees.
MIN_SIZES = 0.3


@dataclass(slots=True)
class Profile:
    """What the leaves below a node look like, as multisets."""

    names: Counter[str]
    sizes: Counter[int]
    exact: Counter[tuple[str, object]]
    classes: Counter[str]
    has_shapes: bool


def profile(node: Node) -> Profile:
    """Return the profile of a node."""
    names: Counter[str] = Counter()
    sizes: Counter[int] = Counter()
    exact: Counter[tuple[str, object]] = Counter()
    classes: Counter[str] = Counter()
    has_shapes = False
    for leaf in node.leaves():
        names[leaf.token] += 1
        exact[(leaf.token, leaf.shapes)] += 1
        for shape in leaf.shapes or ():
            numel = 1
            for length in shape:
                numel *= length
            if numel >= MIN_NUMEL:
                sizes[numel] += 1
                has_shapes = True
        if leaf.work:
            classes.update(leaf.work.class_ns.keys())
            if leaf.work.n_transfers:
                classes["transfer"] += 1
    return Profile(names, sizes, exact, classes, has_shapes)


def overlap(left: Counter, right: Counter) -> float:  # type: ignore[type-arg]
    """Return the weighted Jaccard similarity of two multisets, 0 to 1 (0 when both are empty)."""
    shared = left.keys() & right.keys()
    if not shared:
        return 0.0
    common = sum(min(left[key], right[key]) for key in shared)
    union = left.total() + right.total() - common
    return common / union if union else 0.0


def _scaled_overlap(left: Counter[int], right: Counter[int], scale: Fraction) -> float:
    """Like ``overlap`` of tensor sizes, where a right size may also equal a left size times ``scale``."""
    rest_left, rest_right = left.copy(), right.copy()
    common = 0
    for key in list(left):
        for partner in (key, key * scale):
            if partner.denominator != 1:
                continue
            taken = min(rest_left[key], rest_right[int(partner)])
            rest_left[key] -= taken
            rest_right[int(partner)] -= taken
            common += taken
    union = left.total() + right.total() - common
    return common / union if union else 0.0


class Similarity:
    """Similarity of nodes, remembered by structure.

    Args:
        scale: how many times larger the batch (or token count) of side B is; sizes that differ by just that factor
            count as equal.
    """

    def __init__(self, scale: Fraction = Fraction(1)) -> None:
        self._scale = scale
        self._profiles: dict[int, Profile] = {}
        self._scores: dict[tuple[int, int, bool], tuple[float, frozenset[str]]] = {}

    def profile(self, node: Node) -> Profile:
        """Return the profile of a node, computed once per structure."""
        found = self._profiles.get(node.strict)
        if found is None:
            found = self._profiles[node.strict] = profile(node)
        return found

    def sizes_overlap(self, left: Profile, right: Profile) -> float:
        """Return how far the tensor sizes of two profiles agree, 0 to 1."""
        if self._scale == 1:
            return overlap(left.sizes, right.sizes)
        return _scaled_overlap(left.sizes, right.sizes, self._scale)

    def __call__(self, left: Node, right: Node) -> tuple[float, frozenset[str]]:
        """Return similarity (0 to 1) and the evidence it rests on."""
        same_module = left.module is not None and left.module == right.module
        key = (left.strict, right.strict, same_module)
        found = self._scores.get(key)
        if found is None:
            found = self._scores[key] = self._compute(left, right, same_module)
        return found

    def _compute(self, left: Node, right: Node, same_module: bool) -> tuple[float, frozenset[str]]:
        evidence: set[str] = set()
        same_local = (left.kind, left.token) == (right.kind, right.token)
        if same_local:
            evidence.add(Evidence.NAME)
        if same_module:
            evidence.add(Evidence.MODULE)
        same_tree = left.loose == right.loose and left.n_items >= 3
        if same_tree:
            evidence.add(Evidence.TREE)
        a, b = self.profile(left), self.profile(right)
        if overlap(a.classes, b.classes) > 0.5:
            evidence.add(Evidence.KERNEL_CLASS)
        names = overlap(a.names, b.names)
        if a.has_shapes and b.has_shapes:
            sizes = self.sizes_overlap(a, b)
            if sizes >= 0.5:
                evidence.add(Evidence.SHAPES)
            exact = overlap(a.exact, b.exact) if self._scale == 1 else min(names, sizes)
            score = 0.35 * sizes + 0.25 * exact + 0.2 * names + 0.2 * same_local
            if same_local and left.kind == "op" and not left.detail and left.shapes and left.shapes == right.shapes:
                evidence.add("shapes")
                score = max(score, SAME_CALL)  # the same operator on the same tensors, whatever runs inside it
            elif sizes < MIN_SIZES:
                score = min(score, STRONG - 0.01)  # names agree, the tensors do not: other work
            elif same_module and same_local and left.kind == "module":
                score = max(score, STRONG)  # the same place of the module tree working on the same tensors
            return min(score, 1.0), frozenset(evidence)
        score = 0.4 * names + 0.2 * same_local + 0.2 * same_module + 0.2 * (Evidence.KERNEL_CLASS in evidence)
        if same_module and same_local and left.kind == "module":
            score = max(score, STRONG)
        if not (same_tree or same_module or min(left.n_items, right.n_items) >= 3):
            score = min(score, STRONG - 0.01)  # a name without shapes: only next to matched neighbours
        return score, frozenset(evidence)

    def weak(self, left: Node, right: Node) -> tuple[float, frozenset[str]]:
        """Return similarity for two leaves that lie between matched neighbours: names and kernel classes count."""
        score, evidence = self(left, right)
        a, b = self.profile(left), self.profile(right)
        if left.token == right.token:
            score = max(score, 0.35)
        elif a.has_shapes and b.has_shapes and self.sizes_overlap(a, b) >= 0.5 and Evidence.KERNEL_CLASS in evidence:
            score = max(score, 0.3)
        return score, evidence | {Evidence.ORDER}
