"""The dataflow of one side as arrays: operators, values, and groups of values that hold the same elements by schema."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# Values of fewer elements never cut: a handful of numbers is equal by accident.
MIN_NUMEL = 16


@dataclass(slots=True)
class Operator:
    """One call: its row of ``ops`` and the values it reads and writes, by number."""

    op_id: int
    name: str
    reads: list[int]
    writes: list[int]
    view: bool
    move: bool
    copy: bool
    pseudo: bool
    constant: bool
    backward: bool
    module: str | None = None


@dataclass(slots=True)
class Stats:
    """Statistics of the finite part of a value."""

    mean: float
    std: float
    l1: float
    l4: float
    low: float
    high: float
    holes: tuple[int, int, int]

    def norm(self, numel: int) -> float:
        """Return the Euclidean norm of the value."""
        return math.sqrt(numel) * math.hypot(self.std, self.mean)

    def centred_norm(self, numel: int) -> float:
        """Return the norm of the value less its mean."""
        return math.sqrt(numel) * self.std


@dataclass(slots=True)
class Value:
    """A value and its fingerprint. ``sketches`` maps an arrangement to its sketches, ``slices`` a shape to slices."""

    tensor_id: int
    numel: int
    dtype: str
    precision: str
    constant: bool
    role: str | None
    stats: Stats | None
    hash: str | None
    sketches: list[tuple[str, npt.NDArray[np.float32]]]
    slices: list[tuple[tuple[int, ...], npt.NDArray[np.float32], npt.NDArray[np.float64]]]


FLOATING = ("float", "bfloat", "complex", "half", "double")


def is_floating(dtype: str) -> bool:
    """Tell whether a dtype name is of floating (or complex) numbers."""
    return dtype.startswith(FLOATING)


@dataclass
class ValueGraph:
    """One side: operators in order, values, and which operators define and read each value.

    ``group`` maps each value to the first value of its group: values joined by copies and float casts hold the same
    elements. ``second`` are the values of the same program on a second input, by the same numbers, or None.
    """

    operators: list[Operator]
    values: list[Value]
    producers: list[list[int]] = field(default_factory=list)
    consumers: list[list[int]] = field(default_factory=list)
    group: list[int] = field(default_factory=list)
    members: dict[int, list[int]] = field(default_factory=dict)
    second: list[Value] | None = None

    def finish(self, use_copies: bool = True) -> None:
        """Fill in producers, consumers and groups."""
        self.producers = [[] for _ in self.values]
        self.consumers = [[] for _ in self.values]
        joined = nx.utils.UnionFind(range(len(self.values)))
        for number, operator in enumerate(self.operators):
            for value in dict.fromkeys(operator.writes):
                self.producers[value].append(number)
            for value in dict.fromkeys(operator.reads):
                self.consumers[value].append(number)
            if use_copies and operator.copy and operator.reads and operator.writes:
                source, target = operator.reads[-1 if operator.name.endswith("copy_") else 0], operator.writes[0]
                if self.values[source].numel == self.values[target].numel:
                    joined.union(source, target)
        by_root: dict[int, list[int]] = defaultdict(list)
        for value in range(len(self.values)):
            by_root[joined[value]].append(value)
        self.group = [0] * len(self.values)
        self.members = {}
        for found in by_root.values():
            self.members[found[0]] = found
            for value in found:
                self.group[value] = found[0]

    def selectors(self) -> list[bool]:
        """Return for each value whether it stems from whole numbers and constants of the program alone.

        Masks, positions and indices: what they are made of, no weight and no floating input has entered.
        """
        found = [
            not is_floating(value.dtype) or (value.role is None and not self.producers[number])
            for number, value in enumerate(self.values)
        ]
        for operator in self.operators:
            pure = all(found[v] for v in operator.reads)
            for value in operator.writes:
                if self.producers[value] and value not in operator.reads:
                    found[value] = pure
        return found

    def defined(self, group: int) -> int:
        """Return the number of the operator that first defines a group; -1 for inputs and parameters."""
        first = len(self.operators)
        for value in self.members[group]:
            if not self.producers[value]:
                return -1
            first = min(first, *self.producers[value])
        return first


def from_tables(
    ops: pa.Table, tensors: pa.Table, uses: pa.Table, second: pa.Table | None = None, modules: pa.Table | None = None
) -> ValueGraph:
    """Build the graph of one capture from its rows of ``ops``, ``tensors`` and ``uses``.

    Args:
        ops: operators of the capture.
        tensors: values with fingerprints.
        uses: edges.
        second: values of the same program on a second input; used only if it defines the same values.
        modules: rows of ``modules``, for module paths.
    """
    paths = {} if modules is None else {m["module_id"]: m["path"] for m in modules.to_pylist()}
    values = read_values(tensors)
    number = {value.tensor_id: index for index, value in enumerate(values)}
    reads: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    writes: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    columns = ("op_id", "direction", "position", "element", "tensor_id")
    for op_id, direction, position, element, tensor in zip(*(uses.column(c).to_pylist() for c in columns), strict=True):
        if tensor in number:
            edge = (position or 0, element or 0, number[tensor])
            (reads if direction == "input" else writes)[op_id].append(edge)
    wanted = ops.select(["op_id", "name", "flags", "module_id"])
    operators = [
        _operator(row, reads[row["op_id"]], writes[row["op_id"]], paths.get(row["module_id"]))
        for row in sorted(wanted.to_pylist(), key=lambda r: r["op_id"])
    ]
    graph = ValueGraph(operators, values)
    if second is not None:
        again = read_values(second)
        same = len(again) == len(values) and all(
            (a.numel, a.dtype, a.constant) == (b.numel, b.dtype, b.constant) for a, b in zip(again, values, strict=True)
        )
        graph.second = again if same else None
    graph.finish()
    return graph


def _operator(
    row: dict[str, Any],
    reads: Iterable[tuple[int, int, int]],
    writes: Iterable[tuple[int, int, int]],
    module: str | None,
) -> Operator:
    flags = set((row["flags"] or "").split())
    return Operator(
        op_id=row["op_id"],
        name=row["name"],
        reads=[value for _, _, value in sorted(reads)],
        writes=[value for _, _, value in sorted(writes)],
        view="view" in flags,
        move="move" in flags or "view" in flags or "assemble" in flags,
        copy="copy" in flags,
        pseudo="assemble" in flags,
        constant="constant" in flags,
        backward="backward" in flags,
        module=module,
    )


_PLAIN = (
    "tensor_id", "numel", "dtype", "precision", "constant", "role", "hash", "n_nan", "n_posinf", "n_neginf", "mean", "std",
    "l1", "l4_fourth", "min", "max",
)  # fmt: skip


def read_values(tensors: pa.Table) -> list[Value]:
    """Return the values of a table ``tensors`` in order of definition. Sketches stay in the table's own memory."""
    tensors = tensors.sort_by("tensor_id").combine_chunks()
    sketches = _sketches(tensors.column("sketches"))
    slices = _slices(tensors.column("slices"))
    return [
        _value(row, sketches[index], slices.get(index, []))
        for index, row in enumerate(tensors.select(list(_PLAIN)).to_pylist())
    ]


def _sketches(column: pa.ChunkedArray) -> list[list[tuple[str, npt.NDArray[np.float32]]]]:
    found: list[list[tuple[str, npt.NDArray[np.float32]]]] = []
    for chunk in column.chunks:
        entries = chunk.flatten()
        keys = entries.field("key").to_pylist()
        buckets = entries.field("buckets")
        rows = buckets.flatten().to_numpy(zero_copy_only=False).reshape(len(entries), -1) if len(entries) else None
        lengths = pc.fill_null(pc.list_value_length(chunk), 0).to_pylist()
        at = 0
        for length in lengths:
            found.append([(keys[at + k], rows[at + k]) for k in range(length)] if rows is not None else [])
            at += length
    return found


def _slices(
    column: pa.ChunkedArray,
) -> dict[int, list[tuple[tuple[int, ...], npt.NDArray[np.float32], npt.NDArray[np.float64]]]]:
    found = {}
    for index, entries in enumerate(column.to_pylist()):
        if entries:
            found[index] = [
                (tuple(e["dims"]), np.asarray(e["buckets"], dtype=np.float32), np.asarray(e["norms"], dtype=np.float64))
                for e in entries
            ]
    return found


def _value(
    row: dict[str, Any],
    sketches: list[tuple[str, npt.NDArray[np.float32]]],
    slices: list[tuple[tuple[int, ...], npt.NDArray[np.float32], npt.NDArray[np.float64]]],
) -> Value:
    stats = None
    if row["mean"] is not None and row["std"] is not None:
        holes = (row["n_nan"] or 0, row["n_posinf"] or 0, row["n_neginf"] or 0)
        stats = Stats(
            row["mean"],
            row["std"],
            row["l1"] or 0.0,
            row["l4_fourth"] or 0.0,
            row["min"] or 0.0,
            row["max"] or 0.0,
            holes,
        )
    return Value(
        tensor_id=row["tensor_id"],
        numel=row["numel"] or 0,
        dtype=row["dtype"] or "",
        precision=row["precision"] or row["dtype"] or "",
        constant=bool(row["constant"]),
        role=row["role"],
        stats=stats,
        hash=row["hash"],
        sketches=sketches,
        slices=slices,
    )
