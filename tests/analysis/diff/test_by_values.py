"""What values leave open is filled by structure, and what must be said of a comparison by value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.value_programs import Program

from magneton.analysis.align.matcher import Correspondence
from magneton.analysis.align.tree import Node, Work
from magneton.analysis.diff.by_values import _placed, load_values
from magneton.analysis.diff.regions import RawRegion, is_coarse
from magneton.analysis.diff.rollup import rollups
from magneton.analysis.values.fill import fill
from magneton.analysis.values.join import ValueSide
from magneton.analysis.values.match import match_values
from magneton.analysis.values.notes import value_notes
from magneton.schemas.kinds import Evidence

BY_VALUE = frozenset({Evidence.VALUES})
BY_NAME = frozenset({Evidence.NAME})


def tree(*names: str, modules: tuple[str | None, ...] = ()) -> Node:
    """A step of operators that take 10 ns each, in the order given."""
    root = Node("step", "step", None, (0, 0))
    for at, name in enumerate(names):
        leaf = Node("op", name, at, (at, 0), shapes=((8,),), work=Work(time_ns=10.0, n_calls=1))
        leaf.device_ns, leaf.module = 10.0, modules[at] if modules else None
        root.children.append(leaf)
    return root


def names(found: list[Correspondence]) -> list[tuple[str, str, bool]]:
    return sorted(
        ("+".join(x.name for x in c.a), "+".join(x.name for x in c.b), Evidence.VALUES in c.evidence) for c in found
    )


def pair(a: Node, b: Node, i: list[int], j: list[int], evidence: frozenset[str], score: float = 1.0) -> Correspondence:
    return Correspondence([a.children[x] for x in i], [b.children[x] for x in j], score, evidence)


def test_structure_keeps_what_values_do_not_have() -> None:
    a, b = tree("mm", "drop", "gelu"), tree("mm", "drop", "gelu")
    structural = [pair(a, b, [n], [n], BY_NAME) for n in range(3)]
    found = fill((a, b), [pair(a, b, [0], [0], BY_VALUE)], [], structural)
    assert names(found) == [("drop", "drop", False), ("gelu", "gelu", False), ("mm", "mm", True)]


def test_values_overrule_structure() -> None:
    """Structure crosses two products; what it takes from a pair by value stays with that pair."""
    a, b = tree("mm", "mm"), tree("mm", "mm")
    structural = [pair(a, b, [0], [0], BY_NAME), pair(a, b, [1], [1], BY_NAME)]
    found = fill((a, b), [pair(a, b, [0], [1], BY_VALUE), pair(a, b, [1], [0], BY_VALUE)], [], structural)
    assert [(c.a[0].ident, c.b[0].ident) for c in found] == [(0, 1), (1, 0)]


def test_a_coarse_region_is_divided_where_structure_can() -> None:
    a, b = tree("mm", "softmax", "bmm"), tree("mm", "exp", "sum", "bmm")
    coarse = [pair(a, b, [0, 1, 2], [0, 1, 2, 3], BY_VALUE)]
    structural = [pair(a, b, [0], [0], BY_NAME), pair(a, b, [2], [3], BY_NAME)]
    found = fill((a, b), [], coarse, structural)
    assert names(found) == [("bmm", "bmm", False), ("mm", "mm", False), ("softmax", "exp+sum", True)]


def test_structure_does_not_cross_two_coarse_regions() -> None:
    a, b = tree("mm", "gelu", "mm", "gelu"), tree("mm", "gelu", "mm", "gelu")
    coarse = [pair(a, b, [0, 1], [0, 1], BY_VALUE), pair(a, b, [2, 3], [2, 3], BY_VALUE)]
    found = fill((a, b), [], coarse, [pair(a, b, [0], [2], BY_NAME)])
    assert names(found) == [("mm+gelu", "mm+gelu", True)] * 2


@pytest.mark.parametrize("other", ["sum", "mean"])
def test_a_scalar_between_matched_neighbours(other: str) -> None:
    """One number is too little to match by value; its name and place decide, and another name does not."""
    a, b = tree("mm", "sum", "gelu"), tree("mm", other, "gelu")
    by_value = [pair(a, b, [0], [0], BY_VALUE), pair(a, b, [2], [2], BY_VALUE)]
    found = names(fill((a, b), by_value, [], []))
    scalar = [("sum", "sum", False)] if other == "sum" else [("", "mean", False), ("sum", "", False)]
    assert found == sorted([("gelu", "gelu", True), ("mm", "mm", True), *scalar])


def test_nothing_matched_fills_nothing() -> None:
    a, b = tree("sum"), tree("sum")
    assert names(fill((a, b), [], [], [])) == [("", "sum", False), ("sum", "", False)]


@pytest.mark.parametrize(("operators", "by_value", "coarse"), [(3, True, False), (3, False, True), (9, True, True)])
def test_a_small_region_by_value_is_not_coarse(operators: int, by_value: bool, coarse: bool) -> None:
    """In a model of few operators three are most of the time, and still say where it goes."""
    a, b = tree(*["mul"] * operators), tree(*["mul"] * operators)
    every = list(range(operators))
    found = pair(a, b, every, every, BY_VALUE if by_value else BY_NAME)
    assert is_coarse(found, 10.0 * operators, 10.0 * operators) == coarse


def test_a_side_without_modules_follows_the_other() -> None:
    a = tree("mm", "gelu", "norm", modules=("M/Linear_0", "M", "M/Norm_0"))
    b = tree("mm", "gelu", "norm")
    regions = [
        RawRegion("s", [x], [y], x.work, y.work, 1.0, ("values",)) for x, y in zip(a.children, b.children, strict=True)
    ]
    rows = {(row.name_a, row.name_b): (row.time_ns.a, row.time_ns.b) for row in rollups(regions)["module"]}
    assert rows == {("M/Linear", None): (10.0, 10.0), ("M", None): (10.0, 10.0), ("M/Norm", None): (10.0, 10.0)}


# -- the own time of a wrapper


@pytest.mark.parametrize(
    ("within", "moves", "right"),
    [
        (("bmm",), (), "bmm"),
        (("clone", "bmm"), ("clone",), "bmm"),
        (("clone",), ("clone",), "clone"),
        (("bmm", "mul"), (), None),
    ],
)
def test_a_wrapper_belongs_to_the_only_call_within_it(
    within: tuple[str, ...], moves: tuple[str, ...], right: str | None
) -> None:
    """The profile has ``matmul`` around ``bmm``, the capture of values has ``bmm`` alone."""
    calls = ("matmul", *within)
    rows = [
        {"op_id": n, "parent_id": 0 if n else None, "name": name, "input_dims": "[]", "ts_ns": n, "step_id": 0}
        for n, name in enumerate(calls)
    ]
    captured = [{"op_id": 100 + n, "name": name, "input_dims": "[]"} for n, name in enumerate(within)]

    class Profile:
        def table(self, name: str, columns: object = None) -> pa.Table:
            return pa.Table.from_pylist([row | {"rank": 0} for row in rows])

    one = ValueSide(Profile(), 0, program(X).graph(), captured)  # type: ignore[arg-type]
    region_of = {100 + n: n for n in range(len(within))}
    moving = {n for n, name in enumerate(within) if name in moves}
    step = tree(*calls)
    placed = _placed(one, step, 0, region_of, moving)
    assert placed.get(step.children[0]) == (None if right is None else within.index(right))
    assert [placed[leaf] for leaf in step.children[1:]] == list(range(len(within)))


# -- notes

RNG = np.random.default_rng(7)
X, W = (RNG.standard_normal((16, 16)).astype(np.float32) for _ in range(2))


def side(p: Program, flags: dict[int, str]) -> ValueSide:
    graph = p.graph()
    rows = [{"op_id": o.op_id, "name": o.name, "input_dims": None, "flags": None} for o in graph.operators]
    for number, text in flags.items():
        rows[number]["flags"] = text
    return ValueSide(None, 0, graph, rows)  # type: ignore[arg-type]


def program(draw: np.ndarray) -> Program:
    p = Program()
    y = p.op("aten::mm", lambda x, w: x @ w, [p.input(X), p.parameter(W)])
    mask = p.op("aten::bernoulli_", lambda v: draw, [y])
    p.op("aten::mul", lambda v, m: v * m, [y, mask])
    return p


def codes(one: ValueSide, other: ValueSide) -> dict[str, str]:
    return {n.code: n.message for n in value_notes((one, other), match_values(one.graph, other.graph))}


@pytest.mark.parametrize("seeded", [True, False])
def test_random_numbers_are_said_where_they_differ(seeded: bool) -> None:
    draws = [RNG.standard_normal((16, 16)).astype(np.float32) for _ in range(2)]
    sides = [side(program(draws[0 if seeded else n]), {1: "random inplace"}) for n in (0, 1)]
    said = codes(*sides)
    assert ("random_numbers" in said) != seeded
    assert seeded or "the program draws random numbers (aten::bernoulli_)" in said["random_numbers"]


def test_nan_and_compiled_code_are_said_of_their_side() -> None:
    draw = RNG.standard_normal((16, 16)).astype(np.float32)
    holed = draw.copy()
    holed[0] = np.nan
    said = codes(side(program(draw), {}), side(program(holed), {0: "compiled", 2: "compiled"}))
    assert said["nan_values"].startswith("side B: 2 of")
    assert said["nan_values"].endswith("first the result of aten::bernoulli_")
    assert said["compiled_seen_eagerly"].startswith("side B: 2 operators")


def test_a_lost_second_input_is_said() -> None:
    draw = RNG.standard_normal((16, 16)).astype(np.float32)
    sides = [side(program(draw), {}) for _ in range(2)]
    sides[1].graph.second, sides[1].graph.lost_second = None, (5, 9)
    said = codes(*sides)
    assert said["second_input_lost"].startswith(
        "side B: the second input is not used, because the program defined 9 values"
    )
    assert "no_second_input" in said


# -- which captures are compared


class Captured:
    """A recording with captures of values: (name, input) each, of one operator that is named after them.

    On input ``more`` the program defines one value more.
    """

    def __init__(self, *captures: tuple[str, str | None]) -> None:
        from magneton.schemas.tables.run import CAPTURES, OPS, TENSORS, USES

        keys = [{"capture": name, "rank": 0, "input_id": which} for name, which in captures]
        rows: dict[str, list[dict[str, Any]]] = {
            "captures": [k | {"kind": "values", "incomplete": False} for k in keys],
            "ops": [k | {"op_id": n, "name": f"{k['capture']}/{k['input_id']}"} for n, k in enumerate(keys)],
            "tensors": [k | {"tensor_id": n, "numel": 4} for n, k in enumerate(keys)],
            "uses": [],
        }
        rows["tensors"] += [k | {"tensor_id": 100, "numel": 4} for k in keys if k["input_id"] == "more"]
        schemas = {"captures": CAPTURES, "ops": OPS, "tensors": TENSORS, "uses": USES}
        self._tables = {n: pa.Table.from_pylist(r, schema=schemas[n].arrow_schema()) for n, r in rows.items()}

    def table(self, name: str, columns: tuple[str, ...] | None = None) -> pa.Table:
        return self._tables[name] if columns is None else self._tables[name].select(list(columns))


def chosen(a: Captured, b: Captured) -> list[tuple[str, bool, str, bool]]:
    def of(one: ValueSide) -> tuple[str, bool]:
        return one.rows[0]["name"], one.graph.second is not None

    return [(*of(x), *of(y)) for x, y in load_values(a, 0, b, 0)]  # type: ignore[arg-type]


def test_two_phases_are_not_two_inputs() -> None:
    a, b = Captured(("decode", "0"), ("prefill", "0")), Captured(("prefill", "0"))
    assert chosen(a, b) == [("prefill/0", False, "prefill/0", False)]
    both = Captured(("decode", "0"), ("decode", "1"), ("prefill", "0"))
    assert chosen(a, both) == [("decode/0", False, "decode/0", True), ("prefill/0", False, "prefill/0", False)]


def test_two_inputs_of_one_phase_are() -> None:
    a, b = Captured(("values", "0"), ("values", "1")), Captured(("values", None), ("values", None))
    assert chosen(a, b) == [("values/0", True, "values/None", False)]
    assert load_values(a, 0, Captured(), 0) == []  # type: ignore[arg-type]


def test_a_second_input_that_defines_other_values_is_lost() -> None:
    a, b = Captured(("values", "0"), ("values", "more")), Captured(("values", "0"))
    ((one, other),) = load_values(a, 0, b, 0)  # type: ignore[arg-type]
    assert one.graph.second is None
    assert one.graph.lost_second == (1, 2)
    assert other.graph.lost_second is None
