"""Small programs on numpy arrays as value graphs: what a recorder would leave, without a framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from magneton.analysis.values.columns import Signatures, Sketches, Slices, Values
from magneton.analysis.values.graph import Operator, ValueGraph
from magneton.schemas.sketch import arrangement_key, assignments, flat_key, flat_sketch, signature, sketch

Array = np.ndarray


@dataclass
class Value:
    """A row of the columns that the matcher reads."""

    numel: int
    dtype: str
    precision: str
    constant: bool
    role: str | None
    mean: float
    std: float
    holes: tuple[int, int, int]
    sketches: list[tuple[str, Array]]
    slices: list[tuple[tuple[int, ...], Array]]
    signatures: list[tuple[str, Array]]


def columns(values: Sequence[Value]) -> Values:
    """Rows as columns."""
    n = len(values)
    sketches = [entry for v in values for entry in v.sketches]
    slices = [entry for v in values for entry in v.slices]
    names = sorted({key for key, _ in sketches})
    signatures = [entry for v in values for entry in v.signatures]
    axes = sorted({key for key, _ in signatures})
    return Values(
        tensor_id=np.arange(n),
        numel=np.array([v.numel for v in values]),
        dtype=[v.dtype for v in values],
        precision=[v.precision for v in values],
        constant=np.array([v.constant for v in values]),
        role=[v.role for v in values],
        hash=[None] * n,
        known=np.ones(n, dtype=bool),
        mean=np.array([v.mean for v in values]),
        std=np.array([v.std for v in values]),
        holes=np.array([v.holes for v in values]),
        sketches=Sketches(
            np.cumsum([0, *(len(v.sketches) for v in values)]),
            np.array([names.index(key) for key, _ in sketches]),
            names,
            np.stack([rows for _, rows in sketches]),
        ),
        slices=Slices(
            np.cumsum([0, *(len(v.slices) for v in values)]),
            [dims for dims, _ in slices],
            np.cumsum([0, *(len(rows) for _, rows in slices)]),
            np.concatenate([rows for _, rows in slices] or [np.zeros((0, 64), np.float32)]),
        ),
        signatures=Signatures(
            np.cumsum([0, *(len(v.signatures) for v in values)]),
            np.array([axes.index(key) for key, _ in signatures], np.int64),
            axes,
            np.array([len(numbers) for _, numbers in signatures], np.int64),
            np.cumsum([0, *(numbers.size for _, numbers in signatures)]),
            np.concatenate([numbers.ravel() for _, numbers in signatures] or [np.zeros(0, np.float32)]),
        ),
    )


def fingerprint(array: Array, *, constant: bool, precision: str, role: str | None) -> Value:
    """A value with statistics, sketches of its shape and of its flat order, and slices."""
    x = array.astype(np.float64)
    finite = np.isfinite(x)
    holes = (int(np.isnan(x).sum()), int((x == np.inf).sum()), int((x == -np.inf).sum()))
    rms = float(np.sqrt(np.mean(x[finite] ** 2))) if finite.any() else 1.0
    x = np.where(np.isnan(x), 0.7 * rms, np.where(np.isposinf(x), rms, np.where(np.isneginf(x), -rms, x)))
    mean = float(x.mean())
    sketches = [(flat_key(x.size), flat_sketch(x - mean).astype(np.float32))]
    slices = []
    _arrange(x, mean, sketches, slices)
    signatures = [] if constant or array.dtype.kind != "f" else _signed(array)
    return Value(
        x.size, str(array.dtype), precision, constant, role, mean, float(x.std()), holes, sketches, slices, signatures
    )


def _signed(array: Array) -> list[tuple[str, Array]]:
    """By rows and by columns."""
    x = np.where(np.isfinite(array), array, 0.0).astype(np.float64)
    x = x.reshape([n for n in x.shape if n > 1] or [1])
    rows, columns_ = x.reshape(-1, x.shape[-1]), np.moveaxis(x, -1, 0)
    found = [(arrangement_key(x.shape[-1:]), signature(rows))]
    found += [(arrangement_key(x.shape[:-1]), signature(columns_))] if x.ndim > 1 else []
    return [(key, numbers.astype(np.float32)) for key, numbers in found]


def _arrange(x: Array, mean: float, sketches: list, slices: list) -> None:  # type: ignore[type-arg]
    squeezed = x.reshape([n for n in x.shape if n > 1] or [1])
    for ways in assignments(squeezed.shape):
        sketches.append((arrangement_key(squeezed.shape), sketch(squeezed - mean, ways).astype(np.float32)))
    if x.ndim > 1 and 1 <= x.shape[0] <= 8:
        parts = np.stack([sketch(part) for part in x]).astype(np.float32)
        slices.append((x.shape, parts))


class Program:
    """Runs operators on arrays and keeps the dataflow. ``second`` runs the same operators on another input."""

    def __init__(self, precision: str = "float32", second: bool = True) -> None:
        self.operators: list[Operator] = []
        self.values: list[Value] = []
        self.again: list[Value] = []
        self.arrays: list[tuple[Array, Array]] = []
        self.precision = precision
        self.use_second = second

    def _define(self, first: Array, again: Array, constant: bool, role: str | None = None) -> int:
        number = len(self.values)
        if self.precision == "bfloat16":
            first, again = _rounded(first), _rounded(again)
        self.values.append(fingerprint(first, constant=constant, precision=self.precision, role=role))
        self.again.append(fingerprint(again, constant=constant, precision=self.precision, role=role))
        self.arrays.append((first, again))
        return number

    def input(self, first: Array, again: Array | None = None) -> int:
        """An input of the program."""
        return self._define(first, first[::-1].copy() * 1.1 if again is None else again, False, "input")

    def parameter(self, array: Array) -> int:
        """A constant of the program."""
        return self._define(array, array, True, "parameter")

    def op(self, name: str, compute: Callable[..., Array], reads: Sequence[int], flags: str = "") -> int:
        """An operator that computes a new value."""
        first, again = (compute(*(self.arrays[r][k] for r in reads)) for k in (0, 1))
        constant = all(self.values[r].constant for r in reads)
        target = self._define(first, again, constant)
        words = flags.split()
        self.operators.append(
            Operator(
                op_id=len(self.operators),
                name=name,
                reads=list(reads),
                writes=[target],
                move="move" in words or "view" in words,
                copy="copy" in words,
                constant=constant,
            )
        )
        return target

    def view(self, value: int, arrange: Callable[[Array], Array]) -> None:
        """Another arrangement of the same elements, as a view adds it to its value."""
        for values, k in ((self.values, 0), (self.again, 1)):
            x = arrange(self.arrays[value][k].astype(np.float64))
            _arrange(x, values[value].mean, values[value].sketches, values[value].slices)

    def graph(self) -> ValueGraph:
        """The finished graph."""
        graph = ValueGraph(
            self.operators, columns(self.values), second=columns(self.again) if self.use_second else None
        )
        graph.finish()
        return graph


def _rounded(x: Array) -> Array:
    """Round to 8 bits of mantissa, as bfloat16 does."""
    raw = x.astype(np.float32).view(np.uint32)
    return ((raw + 0x8000) & 0xFFFF0000).view(np.float32)
