"""Alignment whichever side is A: mirror images, operators that moved, and sums that are the largest."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magneton.analysis.align.assignment import MAX_EXACT, heaviest_assignment
from magneton.analysis.align.moved import WINDOW
from magneton.analysis.align.symmetric import match_symmetric
from magneton.analysis.align.tree import Interner, Node, Work, freeze

Drawn = tuple[str, int | None, str | None]
QK, AV = ((8, 64, 32), (8, 32, 64)), ((8, 64, 64), (8, 64, 32))


def op(
    name: str, *shapes: tuple[int, ...], module: str | None = None, calls: tuple[str, ...] = (), kernels: int = 1
) -> Node:
    """An operator with device work."""
    work = Work(time_ns=10.0, n_kernels=kernels, n_calls=1, class_ns={name: 10.0})
    return Node("op", name, None, (0, 0), tuple(shapes) or None, module, work=work, calls=calls)


def steps(*sides: list[Node]) -> list[Node]:
    """A frozen step for each list of nodes, which run in the order of the list."""
    intern = Interner()
    roots = []
    for nodes in sides:
        for at, leaf in enumerate(leaf for node in nodes for leaf in node.leaves()):
            leaf.order = (at, 0)
        for node in nodes:
            node.order = node.leaves()[0].order
        root = Node("step", "step", None, (0, 0), children=list(nodes))
        freeze(root, intern)
        roots.append(root)
    return roots


def placed(a: Node, b: Node) -> set[tuple[tuple[int, ...], tuple[int, ...], float | None]]:
    """What corresponds to what, by positions; every leaf occurs once."""
    at = [{leaf: index for index, leaf in enumerate(root.leaves())} for root in (a, b)]
    found = match_symmetric(a, b)
    assert sorted(at[0][leaf] for c in found for leaf in c.a) == list(range(len(at[0])))
    assert sorted(at[1][leaf] for c in found for leaf in c.b) == list(range(len(at[1])))
    return {(tuple(at[0][n] for n in c.a), tuple(at[1][n] for n in c.b), c.score) for c in found}


def pairs(a: list[Node], b: list[Node]) -> set[tuple[int, int]]:
    """Pairs of single leaves, by position."""
    one, other = steps(a, b)
    found = placed(one, other)
    assert {(y, x, score) for x, y, score in found} == placed(other, one)
    return {(x[0], y[0]) for x, y, _ in found if len(x) == len(y) == 1}


def test_siblings_of_known_shapes_find_each_other_in_any_order() -> None:
    a = [op("aten::bmm", *QK, module="Attention_0"), op("aten::bmm", *AV, module="Attention_0")]
    b = [op("aten::bmm", *AV, module="Attention_0"), op("aten::bmm", *QK, module="Attention_0")]
    assert pairs(a, b) == {(0, 1), (1, 0)}


def test_without_shapes_what_an_operator_calls_tells_it_from_its_siblings() -> None:
    key, value = ("aten::transpose", "aten::expand"), ("aten::expand", "aten::reshape")
    a = [op("bmm", module="M_0", calls=key), op("softmax", module="M_0"), op("bmm", module="M_0", calls=value)]
    b = [op("bmm", module="M_0", calls=value), op("bmm", module="M_0", calls=key), op("softmax", module="M_0")]
    assert pairs(a, b) == {(0, 1), (1, 2), (2, 0)}


def test_equal_siblings_keep_the_order_of_time() -> None:
    side = [op("bmm", *QK, module="M_0") for _ in range(4)]
    other = [op("bmm", *QK, module="M_0") for _ in range(4)] + [op("relu", (8, 64))]
    assert pairs(side, other) >= {(i, i) for i in range(4)}


def test_other_calls_alone_move_nothing() -> None:
    """Another release of a framework calls other views: that is no reason to cross operators."""
    a = [op("bmm", module="M_0", calls=("expand",)), op("bmm", module="M_0", calls=("transpose",))]
    b = [op("bmm", module="M_0", calls=("transpose",)), op("bmm", module="M_0", calls=("as_strided",))]
    assert pairs(a, b) == {(0, 0), (1, 1)}


@pytest.mark.parametrize(("distance", "moved"), [(1, True), (WINDOW - 1, True), (WINDOW, False)])
def test_operators_move_a_short_distance_only(distance: int, moved: bool) -> None:
    fillers = [[op(f"aten::op{n}", (8, n + 2)) for n in range(distance)] for _ in range(2)]
    a = [op("aten::mm", (8, 64), (64, 64)), *fillers[0]]
    b = [*fillers[1], op("aten::mm", (8, 64), (64, 64))]
    assert ((0, distance) in pairs(a, b)) is moved


def test_an_operator_stays_in_its_module_if_the_other_side_has_that_module() -> None:
    a = [op("aten::mm", *QK, module="L_0"), op("relu", (8, 9), module="L_0"), op("gelu", (8, 3), module="L_1")]
    b = [op("relu", (8, 9), module="L_0"), op("gelu", (8, 3), module="L_1"), op("aten::mm", *QK, module="L_1")]
    assert pairs(a, b) == {(1, 0), (2, 1)}
    b[2].module = "L_0"
    assert pairs(a, b) == {(0, 2), (1, 0), (2, 1)}


LEAF = st.tuples(
    st.sampled_from(["mm", "bmm", "add", "relu"]),
    st.sampled_from([None, 8, 16, 64]),
    st.sampled_from([None, "L_0", "L_1"]),
)
TREE = st.lists(st.one_of(LEAF, st.lists(LEAF, min_size=1, max_size=4)), min_size=1, max_size=8)


def built(drawn: list[Drawn | list[Drawn]]) -> list[Node]:
    """Leaves, and modules that hold leaves."""

    def leaf(one: Drawn) -> Node:
        return op(one[0], *([(one[1], 64)] if one[1] else []), module=one[2])

    return [
        leaf(d) if isinstance(d, tuple) else Node("module", "L", None, (0, 0), module=d[0][2], children=[*map(leaf, d)])
        for d in drawn
    ]


@given(TREE, TREE)
def test_swapped_sides_give_the_mirror_image(a: list[Drawn | list[Drawn]], b: list[Drawn | list[Drawn]]) -> None:
    pairs(built(a), built(b))


@given(TREE)
def test_a_step_aligns_with_itself(drawn: list[Drawn | list[Drawn]]) -> None:
    one, other = steps(built(drawn), built(drawn))
    assert placed(one, other) == {((i,), (i,), 1.0) for i in range(len(one.leaves()))}


@given(st.dictionaries(st.tuples(st.integers(0, 4), st.integers(0, 4)), st.floats(0.1, 1.0), max_size=12))
def test_no_other_pairs_weigh_more(weights: dict[tuple[int, int], float]) -> None:
    found = heaviest_assignment(weights)
    assert len({i for i, _ in found}) == len({j for _, j in found}) == len(found)
    best = max(sum(weights.get((i, j), 0.0) for i, j in enumerate(order)) for order in itertools.permutations(range(5)))
    assert sum(weights[pair] for pair in found) == pytest.approx(best)


def test_many_in_question_are_settled_fast_and_in_order() -> None:
    n = 4 * MAX_EXACT
    weights = {(i, j): 1.0 - 1e-4 * (i - j) ** 2 for i in range(n) for j in range(max(0, i - 9), min(n, i + 9))}
    assert heaviest_assignment(weights) == {(i, i) for i in range(n)}
