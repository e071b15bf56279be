"""Matching by value on small programs whose right answer is known."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.support.value_programs import Program

from magneton.analysis.values.graph import from_tables
from magneton.analysis.values.match import MatchSettings, ValueMatch, match_values
from magneton.schemas.tables.run import OPS, TENSORS, USES

RNG = np.random.default_rng(5)
X = RNG.standard_normal((6, 40)).astype(np.float32)
W = [RNG.standard_normal((40, 40)).astype(np.float32) / 6 for _ in range(12)]


def mm(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return x @ w


def gelu_parts(p: Program, x: int) -> int:
    """The tanh GELU in its parts."""
    cube = p.op("aten::pow", lambda v: v**3, [x])
    scaled = p.op("aten::mul", lambda v: 0.044715 * v, [cube])
    inner = p.op("aten::add", lambda v, c: v + c, [x, scaled])
    root = p.op("aten::mul", lambda v: np.float32(np.sqrt(2 / np.pi)) * v, [inner])
    tanh = p.op("aten::tanh", np.tanh, [root])
    one = p.op("aten::add", lambda v: 1 + v, [tanh])
    half = p.op("aten::mul", lambda v: 0.5 * v, [x])
    return p.op("aten::mul", lambda a, b: a * b, [half, one])


def gelu(v: np.ndarray) -> np.ndarray:
    return 0.5 * v * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (v + 0.044715 * v**3)))


def names(p: Program, q: Program, match: ValueMatch) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    return [
        (tuple(p.operators[o].name for o in r.ops_a), tuple(q.operators[o].name for o in r.ops_b))
        for r in match.regions
    ]


def test_layers_pair_and_a_chain_meets_one_operator() -> None:
    p, q = Program(), Program()
    x, y = p.input(X), q.input(X)
    for w in W[:4]:
        x = gelu_parts(p, p.op("aten::mm", mm, [x, p.parameter(w)]))
        y = q.op("aten::gelu", gelu, [q.op("aten::mm", mm, [y, q.parameter(w)])])
    found = names(p, q, match_values(p.graph(), q.graph()))
    assert found.count((("aten::mm",), ("aten::mm",))) == 4
    chain = ("aten::pow", "aten::mul", "aten::add", "aten::mul", "aten::tanh", "aten::add", "aten::mul", "aten::mul")
    assert found.count((chain, ("aten::gelu",))) == 4
    assert len(found) == 8


def test_a_redundant_copy_is_movement_that_one_side_lacks() -> None:
    p, q = Program(), Program()
    x = p.op("aten::mm", mm, [p.input(X), p.parameter(W[0])])
    x = p.op("aten::clone", np.copy, [x], "move copy")
    p.op("aten::relu", lambda v: np.maximum(v, 0), [x])
    y = q.op("aten::mm", mm, [q.input(X), q.parameter(W[0])])
    q.op("aten::relu", lambda v: np.maximum(v, 0), [y])
    match = match_values(p.graph(), q.graph())
    assert names(p, q, match) == [
        (("aten::mm",), ("aten::mm",)),
        (("aten::clone",), ()),
        (("aten::relu",), ("aten::relu",)),
    ]
    assert [r.movement for r in match.regions] == [False, True, False]


def test_views_bring_layouts_together() -> None:
    """One side keeps heads last, the other moves them; the arrangement that a view adds is what both share."""
    p, q = Program(), Program()
    a = p.op("aten::mm", mm, [p.input(X), p.parameter(W[0])])
    p.view(a, lambda v: v.reshape(6, 4, 10).transpose(1, 0, 2))
    p.op("aten::exp", np.exp, [a])
    b = q.op(
        "aten::einsum",
        lambda v, w: (v @ w).reshape(6, 4, 10).transpose(1, 0, 2).copy(),
        [q.input(X), q.parameter(W[0])],
    )
    q.op("aten::exp", np.exp, [b])
    found = names(p, q, match_values(p.graph(), q.graph()))
    assert (("aten::mm",), ("aten::einsum",)) in found
    without = names(p, q, match_values(p.graph(), q.graph(), MatchSettings(views=False)))
    assert (("aten::mm",), ("aten::einsum",)) not in without


def test_other_weights_match_nothing() -> None:
    p, q = Program(), Program()
    x, y = p.input(X), q.input(X)
    for n in range(3):
        x = p.op("aten::relu", lambda v: np.maximum(v, 0), [p.op("aten::mm", mm, [x, p.parameter(W[n])])])
        y = q.op("aten::relu", lambda v: np.maximum(v, 0), [q.op("aten::mm", mm, [y, q.parameter(W[n + 6])])])
    match = match_values(p.graph(), q.graph())
    assert [pair for pair in match.pairs if p.values[pair.a[0]].role != "input"] == []
    assert all(not r.ops_a or not r.ops_b for r in match.regions)


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v[::-1].copy(),
        lambda v: v[np.random.default_rng(1).permutation(len(v))],
        lambda v: np.sort(v.ravel()).reshape(v.shape),
        lambda v: 2 * v.mean() - v,
        lambda v: -v,
        lambda v: v * np.float32(1.01),
        lambda v: v + np.float32(0.02),
    ],
    ids=["flipped", "shuffled", "sorted", "mirrored", "negated", "scaled", "shifted"],
)
def test_what_merely_resembles_a_value_is_not_it(change) -> None:  # type: ignore[no-untyped-def]
    p, q = Program(), Program()
    a = p.op("aten::mm", mm, [p.input(X), p.parameter(W[0])])
    b = q.op("aten::mm", lambda v, w: change(v @ w), [q.input(X + 3), q.parameter(W[0])])
    other = q.op("aten::mm2", lambda v: change(X @ W[0]), [b])
    match = match_values(p.graph(), q.graph())
    assert not [pair for pair in match.pairs if a in pair.a and (b in pair.b or other in pair.b)]


@pytest.mark.parametrize("hole", [np.nan, -np.inf], ids=["nan", "inf"])
def test_holes_match_only_the_same_holes(hole: float) -> None:
    def holed(v: np.ndarray, rows: int) -> np.ndarray:
        result = v.copy()
        result[:rows] = hole
        return result

    p, q = Program(), Program()
    a = p.op("aten::where", lambda v: holed(v, 2), [p.input(X)])
    b = q.op("aten::where", lambda v: holed(v, 2) * np.float32(3), [q.input(X)])
    c = q.op("aten::where", lambda v: holed(v, 3), [q.input(X)])
    d = q.op("aten::where", lambda v: holed(v, 2), [q.input(X)])
    match = match_values(p.graph(), q.graph())
    partners = {i for pair in match.pairs if a in pair.a for i in pair.b}
    assert d in partners
    assert not partners & {b, c}


def test_a_batched_pass_is_the_union_of_two() -> None:
    first, second = X, X * np.float32(0.5) + 1
    p, q = Program(), Program()
    both = p.input(np.stack([first, second]), np.stack([second * 2, first + 2]))
    p.op(
        "aten::relu", lambda v: np.maximum(v, 0), [p.op("aten::matmul", lambda v, w: v @ w, [both, p.parameter(W[0])])]
    )
    one, two = q.input(first[None], second[None] * 2), q.input(second[None], first[None] + 2)
    for part in (one, two):
        q.op(
            "aten::relu",
            lambda v: np.maximum(v, 0),
            [q.op("aten::matmul", lambda v, w: v @ w, [part, q.parameter(W[0])])],
        )
    match = match_values(p.graph(), q.graph())
    assert (("aten::matmul",), ("aten::matmul", "aten::matmul")) in names(p, q, match)
    assert (("aten::relu",), ("aten::relu", "aten::relu")) in names(p, q, match)
    alone = match_values(p.graph(), q.graph(), MatchSettings(unions=False))
    assert (("aten::matmul",), ("aten::matmul", "aten::matmul")) not in names(p, q, alone)


def test_steps_of_a_loop_are_the_union_along_a_new_axis() -> None:
    steps = np.stack([X, X[::-1] * 2 + 1, X**2])
    p, q = Program(), Program()
    whole = p.op("aten::matmul", mm, [p.input(steps), p.parameter(W[0])])
    p.op("aten::tanh", np.tanh, [whole])
    every, w = q.input(steps), q.parameter(W[0])
    for n in range(3):
        part = q.op("aten::select", lambda v, n=n: v[n], [every], "view move")
        q.op("aten::tanh", np.tanh, [q.op("aten::mm", mm, [part, w])])
    match = match_values(p.graph(), q.graph())
    found = names(p, q, match)
    assert (("aten::matmul",), ("aten::select", "aten::mm") * 3) in found
    assert (("aten::tanh",), ("aten::tanh",) * 3) in found
    [union] = [u for u in match.unions if whole in u.a]
    assert [q.operators[o].name for v in union.b for o in range(len(q.operators)) if v in q.operators[o].writes] == [
        "aten::mm"
    ] * 3


def test_the_parts_of_a_whole_are_the_ends_of_chains_that_change_nothing() -> None:
    """Scale by one and add zero, in two passes: the batched value is both ends, not the two first links."""
    first, second = X[None], X[None] ** 2
    p, q = Program(), Program()
    p.op("aten::cube", lambda v: v**3, [p.input(np.concatenate([first, second]), np.concatenate([second, first]))])
    ends = []
    for part in (q.input(first, second), q.input(second, first)):
        link = q.op("aten::pow", lambda v: v**3, [part])
        link = q.op("aten::mul", lambda v: v * np.float32(1), [link])
        ends.append(q.op("aten::add", lambda v: v + np.float32(0), [link]))
    match = match_values(p.graph(), q.graph())
    assert [u.b for u in match.unions if p.operators[0].writes[0] in u.a] == [tuple(ends)]
    assert [len(b) for a, b in names(p, q, match) if a == ("aten::cube",)] == [6]


@pytest.mark.parametrize("context", [True, False])
def test_what_reads_a_value_tells_its_definitions_apart(context: bool) -> None:
    """Two heads begin with the same value, computed twice; the sides run the heads in another order."""
    programs, starts = [], []
    for order in ((np.tanh, np.cos), (np.cos, np.tanh)):
        p = Program()
        x, w = p.input(X), p.parameter(W[0])
        at = {}
        for head in order:
            at[head] = p.op("aten::mm", mm, [x, w])
            p.op(f"aten::{head.__name__}", head, [at[head]])
        programs.append(p)
        starts.append(at)
    match = match_values(*(p.graph() for p in programs), MatchSettings(context=context))
    pairs = {(pair.a, pair.b) for pair in match.pairs}
    straight = {((starts[0][head],), (starts[1][head],)) for head in (np.tanh, np.cos)}
    assert (straight <= pairs) is context


def test_masks_that_differ_do_not_glue_the_layers_that_read_them() -> None:
    """One side adds a mask of numbers, the other selects by booleans; both make theirs from the same whole numbers."""
    keep = (np.arange(240).reshape(X.shape) % 7).astype(np.int64)
    p, q = Program(), Program()
    x, numbers = p.input(X), p.input(keep, keep[::-1].copy())
    y, others = q.input(X), q.input(keep, keep[::-1].copy())
    mask = p.op("aten::lt", lambda v: (v < 3).astype(np.float32), [numbers])
    mask = p.op("aten::mul", lambda v: v * np.float32(-1e3), [mask])
    chosen = q.op("aten::ge", lambda v: v >= 3, [others])
    for w in W[:3]:
        x = p.op("aten::add", np.add, [p.op("aten::mm", mm, [x, p.parameter(w)]), mask])
        x = p.op("aten::sigmoid", lambda v: 1 / (1 + np.exp(-np.maximum(v, -80))), [x])
        y = q.op("aten::mm", mm, [y, q.parameter(w)])
        y = q.op("aten::masked", lambda v, m: np.where(m, 1 / (1 + np.exp(-v)), 0).astype(np.float32), [y, chosen])
    found = names(p, q, match_values(p.graph(), q.graph()))
    assert found.count((("aten::mm",), ("aten::mm",))) == 3
    assert found.count((("aten::add", "aten::sigmoid"), ("aten::masked",))) == 3
    assert (("aten::lt", "aten::mul"), ("aten::ge",)) in found


@pytest.mark.parametrize("used", [True, False])
def test_a_value_at_the_edge_of_the_tolerance_needs_something_after_it_to_agree(used: bool) -> None:
    p, q = Program(), Program()
    a = p.op("aten::mm", mm, [p.input(X), p.parameter(W[0])])
    b = q.op("aten::mm", lambda v, w: (v @ w) * np.float32(1.008), [q.input(X), q.parameter(W[0])])
    p.op("aten::tanh", np.tanh, [a])
    q.op("aten::tanh", np.tanh if used else np.cos, [b])
    match = match_values(p.graph(), q.graph(), MatchSettings(tolerance=1e-2))
    assert bool([pair for pair in match.pairs if a in pair.a]) is used


def test_what_is_computed_again_is_the_later() -> None:
    """One side computes a value a second time for a second reader, as checkpointing does."""
    p, q = Program(), Program()
    x, w = p.input(X), p.parameter(W[0])
    first = p.op("aten::mm", mm, [x, w])
    p.op("aten::tanh", np.tanh, [first])
    again = p.op("aten::mm", mm, [x, w])
    p.op("aten::tanh", np.tanh, [again])
    p.op("aten::exp", np.exp, [again])
    once = q.op("aten::mm", mm, [q.input(X), q.parameter(W[0])])
    q.op("aten::tanh", np.tanh, [once])
    q.op("aten::exp", np.exp, [once])
    match = match_values(p.graph(), q.graph())
    assert [pair.a for pair in match.pairs if once in pair.b] == [(first,)]
    found = names(p, q, match)
    assert (("aten::mm",), ("aten::mm",)) in found
    assert (("aten::mm",), ()) in found


def test_a_slice_of_a_padded_value_is_not_where_it_was_computed() -> None:
    p, q = Program(), Program()
    scale = W[1][:, 0]
    a = p.op("aten::silu", lambda v: v / (1 + np.exp(-v)), [p.input(X)])
    p.op("aten::mul", lambda v, s: v * s, [a, p.parameter(scale)])
    y = q.input(X)
    b = q.op("aten::mul", np.multiply, [y, q.op("aten::sigmoid", lambda v: 1 / (1 + np.exp(-v)), [y])])
    padded = q.op("aten::constant_pad_nd", lambda v: np.pad(v, ((1, 1), (0, 0))), [b])
    centre = q.op("aten::slice", lambda v: v[1:-1], [padded], "view move")
    q.op("aten::mul", lambda v, s: v * s, [centre, q.parameter(scale)])
    match = match_values(p.graph(), q.graph())
    assert [pair.b for pair in match.pairs if a in pair.a] == [(b,)]


@pytest.mark.parametrize("read", [True, False])
def test_outputs_that_one_side_does_not_read_match_beside_those_that_do(read: bool) -> None:
    """The largest values and their places: one side reads the values only."""
    programs = []
    for uses_places in (False, True):
        p = Program()
        largest = p.op("aten::topk", lambda v: np.sort(v, axis=1)[:, :20], [p.input(X)])
        places = p._define(*(np.argsort(x, axis=1)[:, :20].astype(np.float32) for x in p.arrays[0]), constant=False)
        p.operators[-1].writes.append(places)
        reads = [largest, places] if uses_places or read else [largest]
        p.op("aten::weigh", lambda v, *_: np.exp(v), reads)
        programs.append(p)
    p, q = programs
    assert names(p, q, match_values(p.graph(), q.graph())) == [
        (("aten::topk",), ("aten::topk",)),
        (("aten::weigh",), ("aten::weigh",)),
    ]


def test_identical_layers_are_not_crossed() -> None:
    """A value computed several times on one side and once on the other: context says which is which."""
    p, q = Program(), Program()
    x, y = p.input(X), q.input(X)
    for _ in range(3):
        p.op("aten::mm", mm, [x, p.parameter(W[0])])
    used = p.op("aten::mm", mm, [x, p.parameter(W[0])])
    p.op("aten::tanh", np.tanh, [used])
    once = q.op("aten::mm", mm, [y, q.parameter(W[0])])
    q.op("aten::tanh", np.tanh, [once])
    match = match_values(p.graph(), q.graph())
    [pair] = [m for m in match.pairs if once in m.b]
    assert used in pair.a


def test_only_the_nearest_matches() -> None:
    """Values within tolerance of one another match one to one, in the nearest way."""
    p, q = Program(), Program()
    base = X @ W[0]
    noise = [RNG.standard_normal(X.shape).astype(np.float32) * 2e-5 for _ in range(4)]
    x, y = p.input(X), q.input(X)
    left = [p.op(f"left{n}", lambda v, n=n: base + noise[n], [x]) for n in range(4)]
    right = [q.op(f"right{n}", lambda v, n=n: base + noise[n], [y]) for n in range(4)]
    match = match_values(p.graph(), q.graph())
    assert {(pair.a[0], pair.b[0]) for pair in match.pairs if pair.a[0] in left} == set(zip(left, right, strict=True))


def test_a_second_input_unmasks_an_accident() -> None:
    """Two different functions that agree on the first input, not on the second."""
    p, q = Program(), Program()
    positive = np.abs(X) + 0.1
    a = p.op("aten::abs", np.abs, [p.input(positive, X)])
    b = q.op("aten::identity", lambda v: v + np.float32(0), [q.input(positive, X)])
    p.op("aten::exp", np.exp, [a])
    q.op("aten::exp", np.exp, [b])
    with_second = match_values(p.graph(), q.graph())
    assert with_second.second_input
    assert not [m for m in with_second.pairs if a in m.a and b in m.b]
    without = match_values(p.graph(), q.graph(), MatchSettings(second_input=False))
    assert [m for m in without.pairs if a in m.a and b in m.b]


def test_low_precision_matches_high() -> None:
    p, q = Program(), Program("bfloat16")
    x, y = p.input(X), q.input(X)
    for w in W[:5]:
        x = p.op("aten::tanh", np.tanh, [p.op("aten::mm", mm, [x, p.parameter(w)])])
        y = q.op("aten::tanh", np.tanh, [q.op("aten::mm", mm, [y, q.parameter(w)])])
    found = names(p, q, match_values(p.graph(), q.graph()))
    assert found == [((f"aten::{n}",), (f"aten::{n}",)) for _ in range(5) for n in ("mm", "tanh")]


def test_constants_do_not_glue() -> None:
    """Two independent chains that share a scaled weight stay two regions."""
    p, q = Program(), Program()
    for program in (p, q):
        w = program.op("aten::mul", lambda v: v * np.float32(2), [program.parameter(W[0])])
        for start in (X, X * np.float32(2) + 1):
            program.op("aten::mm", mm, [program.input(start), w])
    regions = names(p, q, match_values(p.graph(), q.graph()))
    assert regions.count((("aten::mm",), ("aten::mm",))) == 2


@pytest.mark.parametrize("read", [False, True])
def test_by_products_that_nobody_reads_match_nothing(read: bool) -> None:
    programs = []
    for compute in (lambda v: v**3, lambda v: np.exp(-v)):
        p = Program()
        p.op("aten::norm", compute, [p.input(X)])
        beside = p._define(5 * X, 5 * X, constant=False)
        p.operators[-1].writes.append(beside)
        p.op("aten::relu", lambda v: np.maximum(v, 0), [p.operators[-1].writes[0]])
        if read:
            p.op("aten::tanh", np.tanh, [beside])
        programs.append(p)
    p, q = programs
    paired = [found for found in names(p, q, match_values(p.graph(), q.graph())) if all(found)]
    assert bool(paired) is read


def test_every_operator_lies_in_one_region() -> None:
    p, q = Program(), Program()
    x, y = p.input(X), q.input(X)
    for w in W[:6]:
        x = gelu_parts(p, p.op("aten::mm", mm, [x, p.parameter(w)]))
        y = q.op("aten::gelu", gelu, [q.op("aten::mm", mm, [y, q.parameter(w)])])
    match = match_values(p.graph(), q.graph())
    assert sorted(o for r in match.regions for o in r.ops_a) == list(range(len(p.operators)))
    assert sorted(o for r in match.regions for o in r.ops_b) == list(range(len(q.operators)))
    swapped = match_values(q.graph(), p.graph())
    assert {(r.ops_a, r.ops_b) for r in match.regions} == {(r.ops_b, r.ops_a) for r in swapped.regions}


def test_empty_tables_and_values_without_statistics_match_nothing() -> None:
    none = [t.arrow_schema().empty_table() for t in (OPS, TENSORS, USES)]
    rows = [{"run_id": "r", "op_id": 3, "name": "aten::mm"}], [{"run_id": "r", "tensor_id": 5, "numel": 100}]
    edges = [
        {"run_id": "r", "op_id": 3, "direction": "output", "position": 0, "tensor_id": 5},
        {"run_id": "r", "op_id": 3, "direction": "input", "position": 0, "tensor_id": 99},
    ]
    one = [
        pa.Table.from_pylist(r, schema=t.arrow_schema()) for r, t in ((rows[0], OPS), (rows[1], TENSORS), (edges, USES))
    ]
    for a, b in ((none, none), (none, one), (one, none), (one, one)):
        match = match_values(from_tables(*a), from_tables(*b))
        assert match.pairs == ()
        assert sum(len(r.ops_a) + len(r.ops_b) for r in match.regions) == len(a[0]) + len(b[0])


def test_noise_is_no_mask() -> None:
    """Random numbers read nothing, as constants do; what is made of them is computed like everything else."""
    programs = []
    for scale in (np.float32(3), np.float32(5)):
        p = Program()
        noise = p.op("aten::randn", lambda: X, [])
        p.operators[-1].constant, p.values[noise].constant, p.again[noise].constant = False, False, False
        scaled = p.op("aten::mul", lambda v, s=scale: v * s, [noise])
        p.op("aten::mm", lambda v, w, s=scale: (v / s) @ w, [scaled, p.parameter(W[0])])
        programs.append(p)
    found = names(*programs, match_values(*(p.graph() for p in programs)))
    assert found == [(("aten::randn",), ("aten::randn",)), (("aten::mul", "aten::mm"), ("aten::mul", "aten::mm"))]
