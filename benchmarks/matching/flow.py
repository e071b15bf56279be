"""The dataflow of one side as the metric sees it, and the partition that the labels alone induce.

Built from the tables by its own code, so that the metric does not stand on what it measures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import networkx as nx
import pyarrow as pa


@dataclass(frozen=True)
class Op:
    """One call: values read and written (tensor ids), and what its schema says of it."""

    op_id: int
    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    flags: frozenset[str]

    @property
    def free(self) -> bool:
        """It computes nothing: a view, a pure movement, or a pseudo operator."""
        return bool(self.flags & {"view", "move", "assemble"})


@dataclass
class Flow:
    """One side.

    Attributes:
        ops: by op id, in order.
        constant: tensor ids that derive from parameters and literals alone.
        parametric: tensor ids that depend on a parameter.
        precision: coarsest floating type upstream, by tensor id.
        numel: number of elements, by tensor id.
        role: ``input``, ``parameter``, ``output`` or None, by tensor id.
        dtype: type of the elements, by tensor id.
        group: tensor ids that hold the same elements by schema (copies, float casts), by their first.
    """

    ops: dict[int, Op]
    constant: set[int]
    precision: dict[int, str]
    numel: dict[int, int]
    role: dict[int, str | None]
    dtype: dict[int, str]
    producers: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    consumers: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    group: dict[int, int] = field(default_factory=dict)
    members: dict[int, list[int]] = field(default_factory=dict)
    parametric: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        copies: nx.utils.UnionFind[int] = nx.utils.UnionFind(self.numel)
        for op in self.ops.values():
            for tensor in dict.fromkeys(op.reads):
                self.consumers[tensor].append(op.op_id)
            for tensor in dict.fromkeys(op.writes):
                self.producers[tensor].append(op.op_id)
            if "copy" in op.flags and op.reads and op.writes:
                source = op.reads[-1] if op.name.endswith("copy_") else op.reads[0]
                if self.numel[source] == self.numel[op.writes[0]]:
                    copies.union(source, op.writes[0])
        for tensors in copies.to_sets():
            first = min(tensors)
            self.members[first] = sorted(tensors)
            self.group |= dict.fromkeys(tensors, first)
        self.parametric = {t for t, role in self.role.items() if role == "parameter"}
        for op in self.ops.values():
            if self.parametric & set(op.reads):
                self.parametric |= set(op.writes)

    def definers(self, group: int) -> list[int]:
        """Operators that bring a group's elements forth, not those that only move them about within it."""
        found = []
        for tensor in self.members[group]:
            for op in self.producers[tensor]:
                within = self.ops[op].free and any(self.group[t] == group for t in self.ops[op].reads)
                if not within:
                    found.append(op)
        return found

    def selections(self, group: int) -> set[int]:
        """Groups that only select or rearrange elements of a group, itself included."""
        found = {group}
        waiting = [group]
        while waiting:
            at = waiting.pop()
            for tensor in self.members[at]:
                for op in self.consumers.get(tensor, ()):
                    if self.ops[op].free and {self.group[t] for t in self.ops[op].reads} == {at}:
                        new = {self.group[t] for t in self.ops[op].writes} - found
                        found |= new
                        waiting += new
        return found

    def assembled(self, groups: Iterable[int]) -> set[int]:
        """Groups that are put together from nothing but some groups, without computing."""
        found = set(groups)
        for op in self.ops.values():
            if op.free and op.reads and {self.group[t] for t in op.reads} <= found:
                found |= {self.group[t] for t in op.writes}
        return found

    def readers(self, group: int) -> list[int]:
        """Operators that compute something else from a group."""
        found = []
        for tensor in self.members[group]:
            for op in self.consumers[tensor]:
                if all(self.group[t] != group for t in self.ops[op].writes):
                    found.append(op)
        return found


def flow_of(ops: pa.Table, tensors: pa.Table, uses: pa.Table) -> Flow:
    """Build the dataflow of one capture from its tables."""
    edges: dict[tuple[int, str], list[tuple[int, int, int]]] = defaultdict(list)
    for use in uses.select(["op_id", "direction", "position", "element", "tensor_id"]).to_pylist():
        edge = (use["position"] or 0, use["element"] or 0, use["tensor_id"])
        edges[use["op_id"], use["direction"]].append(edge)

    def side(op_id: int, direction: str) -> tuple[int, ...]:
        return tuple(tensor for _, _, tensor in sorted(edges[op_id, direction]))

    rows = sorted(ops.select(["op_id", "name", "flags"]).to_pylist(), key=lambda r: r["op_id"])
    values = tensors.select(["tensor_id", "constant", "precision", "dtype", "numel", "role"]).to_pylist()
    return Flow(
        ops={
            r["op_id"]: Op(
                r["op_id"],
                r["name"],
                side(r["op_id"], "input"),
                side(r["op_id"], "output"),
                frozenset((r["flags"] or "").split()),
            )
            for r in rows
        },
        constant={v["tensor_id"] for v in values if v["constant"]},
        precision={v["tensor_id"]: v["precision"] or v["dtype"] or "" for v in values},
        numel={v["tensor_id"]: v["numel"] or 0 for v in values},
        role={v["tensor_id"]: v["role"] for v in values},
        dtype={v["tensor_id"]: v["dtype"] or "" for v in values},
    )


Segments = tuple[dict[int, int], dict[int, int]]


def segments(flows: tuple[Flow, Flow], boundaries: Iterable[tuple[Iterable[int], Iterable[int]]]) -> Segments:
    """Return, for each side, which segment each operator lies in, when the boundaries are all that is known.

    Operators joined by a value that is no boundary belong together, and so do those that bring a boundary forth on both
    sides. Values derived from constants alone join nothing.

    Args:
        flows: both sides.
        boundaries: for each, the tensor ids of A and of B that are that boundary.
    """
    boundaries = [(tuple(a), tuple(b)) for a, b in boundaries]
    cut = tuple({f.group[t] for boundary in boundaries for t in boundary[s]} for s, f in enumerate(flows))
    joined: nx.utils.UnionFind[tuple[int, int]] = nx.utils.UnionFind((s, o) for s, f in enumerate(flows) for o in f.ops)
    for side, flow in enumerate(flows):
        for tensor, group in flow.group.items():
            if tensor in flow.constant or group in cut[side] or not flow.producers.get(tensor):
                continue
            joined.union(*((side, o) for o in (*flow.producers[tensor], *flow.consumers.get(tensor, ()))))
    for boundary in boundaries:
        brought = [
            (side, op)
            for side, flow in enumerate(flows)
            for group in {flow.group[t] for t in boundary[side]}
            for op in flow.definers(group)
        ]
        if brought:
            joined.union(*brought)
    numbers: dict[tuple[int, int], int] = {}
    found: Segments = ({}, {})
    for side, flow in enumerate(flows):
        for op in flow.ops:
            found[side][op] = numbers.setdefault(joined[side, op], len(numbers))
    return found


def pair_boundaries(
    a: Mapping[str, list[int]], b: Mapping[str, list[int]], numel: tuple[Mapping[int, int], Mapping[int, int]]
) -> dict[str, tuple[list[int], list[int]]]:
    """Return the boundaries both sides have: the k-th use of a name with the k-th, or all with all.

    All go with all if the sides use the name unequally often, or if the tensors of a use differ in size. Then the boundary is the
    concatenation of them. Examples: a batched pass against two; a prompt in chunks of 37 and 27 against chunks of 32.

    Args:
        a: ids of the tensors of A by name.
        b: the same of B.
        numel: elements of the tensors of A and of B.
    """
    found = {}
    for name in sorted(a.keys() & b.keys()):
        ours, theirs = a[name], b[name]
        alike = [numel[0][x] for x in ours] == [numel[1][y] for y in theirs]
        if not alike or len(ours) == 1:
            found[name] = (ours, theirs)
        else:
            found |= {f"{name}#{k}": ([x], [y]) for k, (x, y) in enumerate(zip(ours, theirs, strict=True))}
    return found
