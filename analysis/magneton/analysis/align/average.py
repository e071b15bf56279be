"""From the steps of one side to one tree: the median step, its leaves carrying the mean work of all steps."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from magneton.analysis.align.matcher import Matcher
from magneton.analysis.align.similarity import Similarity
from magneton.analysis.align.tree import Interner, Node, Work, freeze
from magneton.analysis.align.work import Step


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
    overhead_ns: float


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
    total = {leaf: Work() for leaf in leaves}
    members: dict[Node, list[int]] = {leaf: [] for leaf in leaves}
    inner: dict[Node, list[Node | None]] = {}
    extra: dict[tuple[int, str | None], Node] = {}
    # Structures have the same numbers in all steps, so that what is computed of them once holds for the next step.
    similarity = Similarity()
    for step in steps:
        for leaf, source in _assigned(template, step.tree, similarity):
            target = leaf
            if target is None:
                target = extra.setdefault((source.strict, source.module), _copy(source))
                total.setdefault(target, Work())
                members.setdefault(target, [])
            total[target].add(source.work or Work())
            inner.setdefault(target, []).append(source.inner)
            if source.ident is not None:
                members[target].append(source.ident)
    mean = {leaf: work.divided(len(steps) * unit) for leaf, work in total.items()}
    graphs = {leaf: _average_graph(found, len(steps), unit) for leaf, found in inner.items()}
    tree = _rebuilt(template, mean, members, graphs)
    for node in extra.values():
        node.work, node.members = mean[node], members[node]
        tree.children.append(node)
    freeze(tree, intern)
    return Average(
        tree,
        middle.row["step_id"] if middle.row else None,
        len(steps),
        [sum(leaf.work.time_ns for leaf in s.tree.leaves() if leaf.work) / unit for s in steps],
        [s.host_ns / unit for s in steps if s.host_ns is not None],
        sum(s.overhead_ns for s in steps) / (len(steps) * unit),
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
    )


def _average_graph(found: list[Node | None], n_steps: int, unit: float) -> Node | None:
    """Average the graphs that one call replays, if it replays the same one in every step."""
    graphs = [graph for graph in found if graph is not None]
    if len(graphs) != n_steps or len({graph.strict for graph in graphs}) != 1:
        return None
    leaves = [graph.leaves() for graph in graphs]
    mean: dict[Node, Work] = {}
    for same in zip(*leaves, strict=True):
        total = Work(n_calls=len(same))
        for leaf in same:
            total.add(leaf.work or Work())
        mean[same[0]] = total.divided(n_steps * unit)
    members = {leaf: [leaf.ident] if leaf.ident is not None else [] for leaf in leaves[0]}
    return _rebuilt(graphs[0], mean, members, {})


def _rebuilt(
    node: Node, mean: dict[Node, Work], members: dict[Node, list[int]], graphs: dict[Node, Node | None]
) -> Node:
    """Return a copy of the template that carries the means; the steps' own trees stay as they are."""
    root = _copy(node)
    stack = [(node, root)]
    while stack:
        old, new = stack.pop()
        if not old.children:
            new.work, new.members, new.inner = mean[old], members[old], graphs.get(old)
            continue
        for child in old.children:
            copied = _copy(child)
            new.children.append(copied)
            stack.append((child, copied))
    return root
