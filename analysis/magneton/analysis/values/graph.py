"""The dataflow of one side as arrays: operators, values, and groups of values.

The values of one group hold the same elements. Operator schemas say so: a copy or a float cast connects them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from magneton.analysis.values.columns import Ints, Values, is_floating, read_values
from magneton.analysis.values.components import components

# Values with fewer elements are never matched: so few numbers are often equal by accident.
MIN_NUMEL = 16


@dataclass(slots=True)
class Operator:
    """One call: its row of ``ops`` and the values it reads and writes, by number."""

    op_id: int
    name: str
    reads: list[int]
    writes: list[int]
    move: bool
    copy: bool
    constant: bool


@dataclass
class ValueGraph:
    """One side: operators in order, values, and which operators define and read each value.

    ``group`` maps each value to the first value of its group: values joined by copies and float casts hold the same
    elements. ``second`` are the values of the same program on a second input, by the same numbers, or None. ``lost_second`` are the
    numbers of values on the first and on the second input, where the second input defined others and is not used.
    """

    operators: list[Operator]
    values: Values
    producers: list[list[int]] = field(default_factory=list)
    consumers: list[list[int]] = field(default_factory=list)
    group: list[int] = field(default_factory=list)
    members: dict[int, list[int]] = field(default_factory=dict)
    second: Values | None = None
    lost_second: tuple[int, int] | None = None

    def finish(self, use_copies: bool = True) -> None:
        """Fill in producers, consumers and groups."""
        n = len(self.values)
        self.producers = [[] for _ in range(n)]
        self.consumers = [[] for _ in range(n)]
        sources: list[int] = []
        targets: list[int] = []
        for number, operator in enumerate(self.operators):
            for value in dict.fromkeys(operator.writes):
                self.producers[value].append(number)
            for value in dict.fromkeys(operator.reads):
                self.consumers[value].append(number)
            if use_copies and operator.copy and operator.reads and operator.writes:
                source, target = operator.reads[-1 if operator.name.endswith("copy_") else 0], operator.writes[0]
                if self.values.numel[source] == self.values.numel[target]:
                    sources.append(source)
                    targets.append(target)
        self.group = components(n, np.array(sources, dtype=np.int64), np.array(targets, dtype=np.int64)).tolist()
        self.members = {}
        for value, group in enumerate(self.group):
            self.members.setdefault(group, []).append(value)

    def ids(self, group: int) -> tuple[int, ...]:
        """Return the tensor ids of a group."""
        return tuple(self.values.tensor_id[self.members[group]].tolist())

    def selectors(self) -> list[bool]:
        """Return for each value whether it is computed from whole numbers and constants of the program alone.

        Examples: masks, positions, indices. No weight and no floating-point input has entered such a value.
        """
        found = [
            not is_floating(dtype) or (role is None and not producers)
            for dtype, role, producers in zip(self.values.dtype, self.values.role, self.producers, strict=True)
        ]
        for operator in self.operators:
            # Random numbers read nothing and are no constants.
            pure = all(found[v] for v in operator.reads) and bool(operator.reads or operator.constant)
            for value in operator.writes:
                if self.producers[value] and value not in operator.reads:
                    found[value] = pure
        return found


def from_tables(ops: pa.Table, tensors: pa.Table, uses: pa.Table, second: pa.Table | None = None) -> ValueGraph:
    """Build the graph of one capture from its rows of ``ops``, ``tensors`` and ``uses``.

    Args:
        ops: operators of the capture.
        tensors: values with fingerprints.
        uses: edges.
        second: values of the same program on a second input; used only if it defines the same values.
    """
    values = read_values(tensors)
    order = np.argsort(ops.column("op_id").to_numpy(), kind="stable")
    op_ids = ops.column("op_id").to_numpy()[order]
    reads, writes = _edges(uses, op_ids, values.tensor_id)
    columns = [ops.column(c).take(pa.array(order)).to_pylist() for c in ("name", "flags")]
    operators = [
        Operator(op_id, name, read, written, *_flags(flags))
        for op_id, read, written, name, flags in zip(op_ids.tolist(), reads, writes, *columns, strict=True)
    ]
    graph = ValueGraph(operators, values)
    if second is not None:
        again = read_values(second)
        if values.alike(again):
            graph.second = again
        else:
            graph.lost_second = len(values), len(again)
    graph.finish()
    return graph


def _edges(uses: pa.Table, op_ids: Ints, tensor_ids: Ints) -> tuple[list[list[int]], list[list[int]]]:
    """Return for each operator the values (numbers) it reads and writes, in order of position."""
    op, tensor = uses.column("op_id").to_numpy(), uses.column("tensor_id").to_numpy()
    place = [pc.fill_null(uses.column(c), 0).to_numpy() for c in ("element", "position")]
    at, value = np.searchsorted(op_ids, op), np.searchsorted(tensor_ids, tensor)
    known = (at < len(op_ids)) & (value < len(tensor_ids))
    known &= (op_ids[np.minimum(at, len(op_ids) - 1)] == op) if len(op_ids) else False
    known &= (tensor_ids[np.minimum(value, len(tensor_ids) - 1)] == tensor) if len(tensor_ids) else False
    is_read = pc.fill_null(pc.equal(uses.column("direction"), "input"), False).to_numpy()
    found = []
    for wanted in (known & is_read, known & ~is_read):
        rows = np.flatnonzero(wanted)
        rows = rows[np.lexsort((value[rows], place[0][rows], place[1][rows], at[rows]))]
        starts = np.searchsorted(at[rows], np.arange(len(op_ids) + 1)).tolist()
        numbers = value[rows].tolist()
        found.append([numbers[a:b] for a, b in pairwise(starts)])
    return found[0], found[1]


@lru_cache(maxsize=1024)
def _flags(text: str | None) -> tuple[bool, bool, bool]:
    """Return move, copy and constant of the flags of an operator."""
    flags = set((text or "").split())
    return bool(flags & {"move", "view", "assemble"}), "copy" in flags, "constant" in flags
