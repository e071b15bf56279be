"""From the steps of one side to one tree: the median step, its leaves carrying the mean work of all steps."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from magneton.analysis.align.matcher import Matcher
from magneton.analysis.align.similarity import Similarity
from magneton.analysis.align.tree import Interner, Node, Work, freeze
from magneton.analysis.align.work import Step
from magneton.analysis.host.timeline import HostTime


@dataclass
class Average:
    """The averaged step of one side and the work time of every step it was made from, in ns.

    ``step_id`` is the step whose calls the leaves' idents are.
    """

    tree: Node
    step_id: int | None
    n_steps: int
    step_time_ns: list[float]
    step_host_ns: list[float]
    host: list[HostTime]


def average_steps(steps: list[Step], intern: Interner, unit: float = 1.0) -> Average:
    """Average frozen steps into one tree.

    The step with the median device time gives the tree; the others are aligned to it, which is trivial where they have
    the same structure. Operators that only other steps have are added to the tree with their mean.

    Args:
        steps: steps of one side, at least one, each with device work.
        intern: numbering of structures shared with the other side.
        unit: samples or tokens of one step: the means are divided by it.
    """
    by_time = sorted(range(len(steps)), key=lambda i: (steps[i].tree.device_ns, i))
    middle = steps[by_time[(len(steps) - 1) // 2]]
    template = middle.tree
    leaves = template.leaves()
    sums = _Sums(len(steps), unit)
    for leaf in leaves:
        sums.begin(leaf)
    members: dict[Node, list[int]] = {leaf: [] for leaf in leaves}
    inner: dict[Node, list[Node | None]] = {}
    extra: dict[tuple[int, str | None], Node] = {}
    # Structures have the same numbers in all steps, so that what is computed of them once holds for the next step.
    similarity = Similarity()
    for number, step in enumerate(steps):
        for assigned, source in _assigned(template, step.tree, similarity):
            target = assigned
            if target is None:
                target = extra.setdefault((source.strict, source.module), _copy(source))
                sums.begin(target)
                members.setdefault(target, [])
            sums.add(target, number, source.work or Work())
            inner.setdefault(target, []).append(source.inner)
            if source.ident is not None:
                members[target].append(source.ident)
    graphs = {leaf: _average_graph(found, len(steps), unit) for leaf, found in inner.items()}
    tree = _rebuilt(template, sums, members, graphs)
    for node in extra.values():
        sums.finish(node, node)
        node.members = members[node]
        tree.children.append(node)
    freeze(tree, intern)
    return Average(
        tree,
        middle.row["step_id"] if middle.row else None,
        len(steps),
        [sum(leaf.work.time_ns for leaf in s.tree.leaves() if leaf.work) / unit for s in steps],
        [s.host_ns / unit for s in steps if s.host_ns is not None],
        [s.host.divided(unit) for s in steps if s.host is not None],
    )


def _assigned(template: Node, tree: Node, similarity: Similarity) -> list[tuple[Node | None, Node]]:
    """Return each leaf of a step with the template's leaf it belongs to, or None."""
    if tree is template or tree.strict == template.strict:
        return list(zip(template.leaves(), tree.leaves(), strict=True))
    result: list[tuple[Node | None, Node]] = []
    for found in Matcher(similarity, look_inside=False).match(template, tree):
        # A row's time is the time of its own operators: within a group only operators of one name belong together.
        own: dict[str, list[Node]] = defaultdict(list)
        for leaf in found.a:
            own[leaf.token].append(leaf)
        for source in found.b:
            alike = own[source.token]
            result.append((alike.pop(0) if len(alike) > 1 else alike[0] if alike else None, source))
    return result


def _copy(source: Node) -> Node:
    return Node(
        source.kind,
        source.name,
        source.ident,
        source.order,
        source.shapes,
        source.module,
        backward=source.backward,
        calls=source.calls,
        detail=source.detail,
        kernels=source.kernels,
    )


def _average_graph(found: list[Node | None], n_steps: int, unit: float) -> Node | None:
    """Average the graphs that one call replays, if it replays the same one in every step."""
    graphs = [graph for graph in found if graph is not None]
    if len(graphs) != n_steps or len({graph.strict for graph in graphs}) != 1:
        return None
    leaves = [graph.leaves() for graph in graphs]
    sums = _Sums(n_steps, unit)
    for same in zip(*leaves, strict=True):
        sums.begin(same[0], Work(n_calls=len(same)))
        for number, leaf in enumerate(same):
            sums.add(same[0], number, leaf.work or Work())
    members = {leaf: [leaf.ident] if leaf.ident is not None else [] for leaf in leaves[0]}
    return _rebuilt(graphs[0], sums, members, {})


class _Sums:
    """The work of every leaf: summed over the steps, and its time in each of them."""

    def __init__(self, n_steps: int, unit: float) -> None:
        self.n_steps, self.unit = n_steps, unit
        self._total: dict[Node, Work] = {}
        self._times: dict[Node, list[list[float]]] = {}
        self._classes: dict[Node, dict[str, list[float]]] = {}

    def begin(self, leaf: Node, work: Work | None = None) -> None:
        """Begin the sum of a leaf, unless it has begun."""
        if leaf not in self._total:
            self._total[leaf] = work or Work()
            self._times[leaf] = [[0.0] * self.n_steps, [0.0] * self.n_steps]

    def add(self, leaf: Node, step: int, work: Work) -> None:
        """Add the work that a leaf did in a step."""
        self._total[leaf].add(work)
        kernels, transfers = self._times[leaf]
        kernels[step] += work.time_ns
        transfers[step] += work.transfer_ns
        for name, value in work.class_ns.items():
            classes = self._classes.setdefault(leaf, {})
            classes.setdefault(name, [0.0] * self.n_steps)[step] += value

    def finish(self, leaf: Node, into: Node) -> None:
        """Give a node the mean work and the times of a leaf."""
        into.work = self._total[leaf].divided(self.n_steps * self.unit)
        into.per_step = np.array(self._times[leaf]) / self.unit
        into.class_steps = {n: np.array(v) / self.unit for n, v in self._classes.get(leaf, {}).items()}


def _rebuilt(node: Node, sums: _Sums, members: dict[Node, list[int]], graphs: dict[Node, Node | None]) -> Node:
    """Return a copy of the template that carries the means; the steps' own trees stay as they are."""
    root = _copy(node)
    stack = [(node, root)]
    while stack:
        old, new = stack.pop()
        if not old.children:
            sums.finish(old, new)
            new.members, new.inner = members[old], graphs.get(old)
            continue
        for child in old.children:
            copied = _copy(child)
            new.children.append(copied)
            stack.append((child, copied))
    return root
