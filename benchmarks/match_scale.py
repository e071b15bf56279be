"""How matching scales: synthetic value tables of up to 100,000 operators a side, without any framework.

Usage, from the root of the project::

    python -m benchmarks.match_scale [--json] [--plot FILE.svg]

Both sides are decode steps of a Llama, one with separate projections, attention and norms in single operators, the other
with fused ones. Sketches are drawn at random, those of a value both sides compute differing by rounding. Sizes grow with the
steps; ``Llama-3-8B`` is 32 layers and 128 steps. With ``close``, values are of bfloat16 and those of the same place in
different layers and steps lie within 0.4 % of each other, so that everything is a candidate for everything.

Every case runs in a process of its own: ``peak`` is the most memory that process had, tables and interpreter included.
``right`` is the share of the values both sides compute that was matched with its like, ``wrong`` the matches with others.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.matching.curve import plot
from magneton.analysis.values.graph import from_tables
from magneton.analysis.values.match import ValueMatch, match_values
from magneton.schemas.sketch import BUCKETS
from magneton.schemas.tables.run import OPS, TENSORS, USES

HIDDEN, KEYS, MLP = 4096, 1024, 14336
CLOSE, ROUNDING = 4e-3, {"float32": 3e-7, "bfloat16": 2e-3}
REPEATS = 3


@dataclass(frozen=True)
class Case:
    """One measurement: how many layers and steps, and whether values lie close together."""

    name: str
    layers: int
    steps: int
    close: bool = False


CASES = (
    Case("1,000", 6, 6),
    Case("3,000", 8, 13),
    Case("10,000", 16, 21),
    Case("30,000", 24, 43),
    Case("100,000", 32, 108),
    Case("Llama-3-8B, 128 steps", 32, 128),
    Case("1,000 close", 6, 6, True),
    Case("3,000 close", 8, 13, True),
    Case("10,000 close", 16, 21, True),
    Case("30,000 close", 24, 43, True),
    Case("100,000 close", 32, 108, True),
)


@dataclass
class Values:
    """Values as they are defined: which logical value, which place in a layer, how many elements, how arranged."""

    logical: list[int] = field(default_factory=list)
    role: list[int] = field(default_factory=list)
    numel: list[int] = field(default_factory=list)
    keys: list[tuple[str, ...]] = field(default_factory=list)
    constant: list[bool] = field(default_factory=list)


@dataclass
class Names:
    """Numbers of values and of places in a layer, the same on both sides."""

    values: dict[tuple[object, ...], int] = field(default_factory=dict)
    roles: dict[str, int] = field(default_factory=dict)


class Side:
    """A program being written down: operators, values, edges. Values of its own are numbered from ``private``."""

    def __init__(self, names: Names, private: int) -> None:
        self.values = Values()
        self.names: list[str] = []
        self.flags: list[str] = []
        self.edges: list[tuple[int, bool, int, int]] = []
        self._known = names
        self._private = count(private)

    def value(self, key: tuple[object, ...] | None, role: str, numel: int, *keys: str, constant: bool = False) -> int:
        """Define a value; ``key`` says which value it is on both sides, None that only this side has it."""
        logical = (
            next(self._private) if key is None else self._known.values.setdefault((*key, role), len(self._known.values))
        )
        found = self.values
        found.logical.append(logical)
        found.role.append(self._known.roles.setdefault(role, len(self._known.roles)))
        found.numel.append(numel)
        found.keys.append((*keys, f"flat:{numel}") if keys else (str(numel), f"flat:{numel}"))
        found.constant.append(constant)
        return len(found.logical) - 1

    def call(self, name: str, reads: Sequence[int], writes: Sequence[int], flags: str = "") -> None:
        """Write down one operator."""
        op = len(self.names)
        self.names.append(f"aten::{name}")
        self.flags.append(flags)
        self.edges += [(op, False, position, value) for position, value in enumerate(reads)]
        self.edges += [(op, True, position, value) for position, value in enumerate(writes)]

    def step(
        self, name: str, reads: Sequence[int], key: tuple[object, ...] | None, role: str, numel: int, *keys: str
    ) -> int:
        """Write down an operator with one result, and return that."""
        made = self.value(key, role, numel, *keys)
        self.call(name, reads, [made])
        return made


def program(side: Side, layers: int, steps: int, fused: bool) -> None:
    """Write down decode steps of a Llama; ``fused`` joins projections and runs norms and attention as one operator."""
    weights = {
        (i, name): side.value(("weight", i), name, HIDDEN * width, constant=True)
        for i in range(layers)
        for name, width in (
            ("q", HIDDEN),
            ("k", KEYS),
            ("v", KEYS),
            ("o", HIDDEN),
            ("gate", MLP),
            ("up", MLP),
            ("down", MLP),
        )
    }
    cache: dict[tuple[int, str], int] = {}
    for step in range(steps):
        token = side.value(("token", step), "token", 16)
        x = side.step("embedding", [token], (step,), "embedding", HIDDEN)
        for i in range(layers):
            x = _layer(side, weights, cache, x, i, step, fused)
        side.step("mm", [_norm(side, x, (step, "last"), fused)], (step,), "logits", 128256)


def _norm(side: Side, x: int, key: tuple[object, ...], fused: bool) -> int:
    if fused:
        return side.step("rms_norm", [x], key, "norm", HIDDEN)
    square = side.step("pow", [x], None, "square", HIDDEN)
    mean = side.step("mean", [square], None, "mean", 16)
    root = side.step("rsqrt", [mean], None, "root", 16)
    scaled = side.step("mul", [x, root], None, "scaled", HIDDEN)
    return side.step("mul", [scaled], key, "norm", HIDDEN)


def _rotated(side: Side, x: int, key: tuple[object, ...], name: str, numel: int) -> int:
    cos = side.step("mul", [x], key, f"{name} cos", numel)
    half = side.step("cat", [x], key, f"{name} half", numel)
    sin = side.step("mul", [half], key, f"{name} sin", numel)
    return side.step("add", [cos, sin], key, f"{name} rotated", numel, f"{numel // 128}x128")


def _layer(
    side: Side,
    weights: dict[tuple[int, str], int],
    cache: dict[tuple[int, str], int],
    x: int,
    layer: int,
    step: int,
    fused: bool,
) -> int:
    key = (step, layer)
    y = _norm(side, x, (*key, 1), fused)
    widths = {"q": HIDDEN, "k": KEYS, "v": KEYS}
    if fused:
        joined = side.step("mm", [y], None, "qkv", HIDDEN + 2 * KEYS)
        parts = [side.value(key, name, n, str(n), f"{n // 128}x128") for name, n in widths.items()]
        side.call("split", [joined], parts, "view move")
    else:
        parts = [
            side.step("mm", [y, weights[layer, name]], key, name, n, str(n), f"{n // 128}x128")
            for name, n in widths.items()
        ]
    q, k, v = parts
    q, k = _rotated(side, q, key, "q", HIDDEN), _rotated(side, k, key, "k", KEYS)
    for name, new in (("k", k), ("v", v)):
        before = [cache[layer, name]] if step else []
        numel = KEYS * (step + 1)
        cache[layer, name] = side.step("cat", [*before, new], key, f"{name} cache", numel, f"8x{step + 1}x128")
    keys, values = cache[layer, "k"], cache[layer, "v"]
    if fused:
        context = side.step("attention", [q, keys, values], key, "context", HIDDEN, "32x128")
    else:
        scores = side.step("bmm", [q, keys], None, "scores", 32 * (step + 1))
        scaled = side.step("mul", [scores], None, "scaled scores", 32 * (step + 1))
        weighted = side.step("softmax", [scaled], None, "weights", 32 * (step + 1))
        context = side.step("bmm", [weighted, values], key, "context", HIDDEN, "32x128")
    x = side.step("add", [x, side.step("mm", [context], key, "attention", HIDDEN)], key, "middle", HIDDEN)
    y = _norm(side, x, (*key, 2), fused)
    if fused:
        joined = side.step("mm", [y], None, "gate up", 2 * MLP)
        gate, up = (side.value(key, name, MLP) for name in ("gate", "up"))
        side.call("chunk", [joined], [gate, up], "view move")
    else:
        gate, up = (side.step("mm", [y, weights[layer, name]], key, name, MLP) for name in ("gate", "up"))
    hidden = side.step("mul", [side.step("silu", [gate], key, "activated", MLP), up], key, "hidden", MLP)
    return side.step("add", [x, side.step("mm", [hidden], key, "mlp", HIDDEN)], key, "layer", HIDDEN)


# -------------------------------------------------------------------------------------------------------- tables


def sketches_of(side: Side, case: Case, which: int, seed: int) -> NDArray[np.float32]:
    """Draw the sketches of all values for an input: alike where the logical value is, up to rounding.

    Returns:
        ``float32[values, BUCKETS]``
    """
    values = side.values
    logical, roles = np.array(values.logical), np.array(values.role)
    order, inverse = np.unique(logical, return_inverse=True)
    rng = np.random.default_rng([which, 1])
    # One draw per logical value, the same on both sides whatever else a side has.
    base = np.empty((len(order), BUCKETS), np.float32)
    shared = order < _PRIVATE
    base[shared] = rng.standard_normal((int(order[shared].max()) + 1, BUCKETS), np.float32)[order[shared]]
    base[~shared] = np.random.default_rng([which, 2, seed]).standard_normal((int((~shared).sum()), BUCKETS), np.float32)
    drawn = base[inverse]
    if case.close:
        centres = np.random.default_rng([which, 3]).standard_normal((_MAX_ROLES, BUCKETS), np.float32)
        drawn = centres[roles] + CLOSE * drawn
    noise = np.random.default_rng([which, 4, seed]).standard_normal(drawn.shape, np.float32)
    scale = np.sqrt(np.array(values.numel, np.float32) / BUCKETS)[:, None]
    return np.asarray((drawn + ROUNDING[_precision(case)] * noise) * scale, np.float32)


_PRIVATE, _MAX_ROLES = 1 << 40, 64


def _precision(case: Case) -> str:
    return "bfloat16" if case.close else "float32"


def tensors_of(side: Side, case: Case, which: int, seed: int) -> pa.Table:
    """The table ``tensors`` of a side for an input."""
    values, n = side.values, len(side.values.logical)
    drawn = sketches_of(side, case, which, seed)
    numel = np.array(values.numel)
    std = np.linalg.norm(drawn, axis=1) / np.sqrt(numel)
    lengths = np.array([len(keys) for keys in values.keys])
    owner = np.repeat(np.arange(n), lengths)
    rolled = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    turn = np.arange(len(owner)) - rolled[owner]
    # Every arrangement has a sketch of its own; a roll is as good as another hash here.
    buckets = drawn[owner[:, None], (np.arange(BUCKETS)[None] + 7 * turn[:, None]) % BUCKETS]
    sketches = _lists(
        pa.StructArray.from_arrays(
            [pa.array([key for keys in values.keys for key in keys]), _rows(buckets)], ["key", "buckets"]
        ),
        lengths,
        TENSORS.arrow_schema().field("sketches").type,
    )
    sliced = ~np.array(values.constant)
    slices = _lists(
        pa.StructArray.from_arrays(
            [
                pa.array([[1, k] for k in numel[sliced].tolist()], pa.list_(pa.int64())),
                _lists(_rows(drawn[sliced]), np.ones(int(sliced.sum()), int), pa.list_(pa.list_(pa.float32()))),
                pa.array([[x] for x in np.linalg.norm(drawn[sliced], axis=1).tolist()], pa.list_(pa.float64())),
            ],
            ["dims", "buckets", "norms"],
        ),
        sliced.astype(int),
        TENSORS.arrow_schema().field("slices").type,
    )
    columns = {
        "run_id": pa.array(["scale"] * n),
        "tensor_id": pa.array(np.arange(n)),
        "dtype": pa.array([_precision(case)] * n),
        "precision": pa.array([_precision(case)] * n),
        "numel": pa.array(numel),
        "constant": pa.array(values.constant),
        "n_nan": pa.array(np.zeros(n, int)),
        "n_posinf": pa.array(np.zeros(n, int)),
        "n_neginf": pa.array(np.zeros(n, int)),
        "mean": pa.array(1e-3 * std),
        "std": pa.array(std),
        "l1": pa.array(0.8 * numel * std),
        "l2_squared": pa.array(numel * std**2),
        "l4_fourth": pa.array(3 * numel * std**4),
        "min": pa.array(-4 * std),
        "max": pa.array(4 * std),
        "sketches": sketches,
        "slices": slices,
    }
    return _filled(columns, TENSORS.arrow_schema(), n)


def _rows(matrix: NDArray[np.float32]) -> pa.Array:
    offsets = np.arange(0, matrix.size + 1, matrix.shape[1], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(matrix.ravel()))


def _lists(values: pa.Array, lengths: NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values).cast(kind)


def _filled(columns: dict[str, pa.Array], schema: pa.Schema, n: int) -> pa.Table:
    return pa.table([columns.get(f.name, pa.nulls(n, f.type)) for f in schema], schema=schema)


def ops_of(side: Side) -> pa.Table:
    """The table ``ops`` of a side."""
    n = len(side.names)
    columns = {
        "run_id": pa.array(["scale"] * n),
        "op_id": pa.array(np.arange(n)),
        "name": pa.array(side.names),
        "flags": pa.array(side.flags),
    }
    return _filled(columns, OPS.arrow_schema(), n)


def uses_of(side: Side) -> pa.Table:
    """The table ``uses`` of a side."""
    op, output, position, value = zip(*side.edges, strict=True)
    columns = {
        "run_id": pa.array(["scale"] * len(op)),
        "op_id": pa.array(op),
        "direction": pa.array(["output" if o else "input" for o in output]),
        "position": pa.array(position),
        "tensor_id": pa.array(value),
    }
    return _filled(columns, USES.arrow_schema(), len(op))


# ------------------------------------------------------------------------------------------------------ measuring


def judged(match: ValueMatch, a: Side, b: Side) -> tuple[float, int]:
    """Return the share of common values matched with their like, and the number of matches with others."""
    mine, theirs = np.array(a.values.logical), np.array(b.values.logical)
    varying = {x for side in (a, b) for x, c in zip(side.values.logical, side.values.constant, strict=True) if not c}
    common = set(mine.tolist()) & set(theirs.tolist()) & varying
    right, wrong = set(), 0
    for pair in match.pairs:
        ours = {int(mine[t]) for t in pair.a}
        if ours & {int(theirs[t]) for t in pair.b}:
            right |= ours
        else:
            wrong += 1
    return len(right & common) / len(common), wrong


def measure(case: Case) -> dict[str, Any]:
    """Generate both sides, match them, and return the figures."""
    names = Names()
    sides = [Side(names, _PRIVATE * (k + 1)) for k in (0, 1)]
    for side, fused in zip(sides, (False, True), strict=True):
        program(side, case.layers, case.steps, fused)
    tables = [
        (ops_of(side), tensors_of(side, case, 0, seed), uses_of(side), tensors_of(side, case, 1, seed))
        for seed, side in enumerate(sides)
    ]
    before = _peak()
    best_build = best_match = float("inf")
    small = len(sides[0].names) < 20_000
    for _ in range(REPEATS if small else 1):
        start = time.perf_counter()
        a, b = (from_tables(*t) for t in tables)
        built = time.perf_counter()
        match = match_values(a, b)
        done = time.perf_counter()
        best_build, best_match = min(best_build, built - start), min(best_match, done - built)
    right, wrong = judged(match, *sides)
    return {
        "case": case.name,
        "ops_a": len(sides[0].names),
        "ops_b": len(sides[1].names),
        "values": len(sides[0].values.logical) + len(sides[1].values.logical),
        "regions": len(match.regions),
        "right": right,
        "wrong": wrong,
        "read_seconds": best_build,
        "match_seconds": best_match,
        "tables_bytes": before,
        "peak_bytes": _peak(),
    }


def _peak() -> int:
    """Most memory this process has had, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def exponent(rows: Sequence[dict[str, Any]]) -> float:
    """Slope of time over size on logarithmic scales: 1 is linear, 2 quadratic."""
    size = [np.log(r["ops_a"] + r["ops_b"]) for r in rows]
    return float(np.polyfit(size, [np.log(r["match_seconds"]) for r in rows], 1)[0])


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print the curve as a table."""
    table = Table(
        "case", "ops", "values", "regions", "right", "wrong", "reading s", "matching s", "us/op", "peak GB", box=None
    )
    for row in rows:
        ops = row["ops_a"] + row["ops_b"]
        table.add_row(
            row["case"],
            f"{row['ops_a']}/{row['ops_b']}",
            str(row["values"]),
            str(row["regions"]),
            f"{row['right']:.1%}",
            str(row["wrong"]),
            f"{row['read_seconds']:.3f}",
            f"{row['match_seconds']:.3f}",
            f"{1e6 * row['match_seconds'] / ops:.1f}",
            f"{row['peak_bytes'] / 1e9:.2f}",
        )
    console = Console(width=140)
    console.print(table)
    for close in (False, True):
        chosen = [r for r in rows if ("close" in r["case"]) == close]
        if len(chosen) > 2:
            console.print(
                f"time grows with size to the power of {exponent(chosen):.2f}{' (close values)' if close else ''}"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every case in a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--plot", type=Path, help="write the curve to this SVG file")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.case is not None:
        sys.stdout.write(json.dumps(measure(CASES[options.case])))
        return 0
    rows = []
    for number, case in enumerate(CASES):
        if options.only in case.name:
            command = [sys.executable, "-m", "benchmarks.match_scale", "--case", str(number)]
            done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=True)
            rows.append(json.loads(done.stdout))
    if options.plot is not None:
        options.plot.write_text(plot(rows))
    if options.json:
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    else:
        print_rows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
