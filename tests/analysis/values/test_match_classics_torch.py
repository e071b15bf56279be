"""What defeats matchers by statistics, from recording to match: masks, order, normalised values, in-place updates, copies of layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (pip install 'magneton[torch]')")

pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402, N812

from magneton.analysis.values.graph import from_tables  # noqa: E402
from magneton.analysis.values.match import ValueMatch, match_values  # noqa: E402
from magneton.collectors.torch.values_capture import ValuesCapture, mark, record_values  # noqa: E402

Program = Callable[..., Any]


def drawn(seed: int, *shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X, Y = drawn(1, 6, 8, 16), drawn(2, 6, 8, 16)
X2, Y2 = drawn(3, 6, 8, 16), drawn(4, 6, 8, 16)
WEIGHT, BIAS = drawn(5, 16, 16) / 4, drawn(6, 16)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def record(program: Program, second: bool = True, x: Any = X, x2: Any = X2) -> ValuesCapture:
    """Record a program on ``X`` and ``Y``; it may read ``WEIGHT`` and ``BIAS``, which are parameters."""
    inputs, others = (x.clone(), Y.clone()), (x2.clone(), Y2.clone())
    return record_values(program, inputs, parameters=[WEIGHT, BIAS], second_inputs=others if second else None)


def matched(a: ValuesCapture, b: ValuesCapture) -> ValueMatch:
    graphs = [from_tables(c.ops, c.tensors, c.uses, None if c.second is None else c.second.tensors) for c in (a, b)]
    return match_values(*graphs)


def names(a: Program, b: Program, second: bool = True, **inputs: Any) -> set[tuple[str, str]]:
    """Marks of A and B whose tensors were matched with each other."""
    one, two = record(a, second, **inputs), record(b, second, **inputs)
    marks: list[dict[int, set[str]]] = []
    for capture in (one, two):
        known: dict[int, set[str]] = defaultdict(set)
        for name, number in capture.marks:
            known[number].add(name)
        marks.append(known)
    found = matched(one, two)
    return {
        (m, n)
        for pair in (*found.pairs, *found.unions)
        for i in pair.a
        for j in pair.b
        for m in marks[0].get(i, ())
        for n in marks[1].get(j, ())
    }


def linear(x: Any) -> Any:
    return x @ WEIGHT.T + BIAS


# ----------------------------------------------------------------------------------------------------------- masks


@pytest.mark.parametrize("hole", [float("-inf"), float("inf"), float("nan"), torch.finfo(torch.float32).min])
def test_masked_values_match_only_if_the_rest_does(hole: float) -> None:
    mask = torch.ones(8, 8, dtype=torch.bool).triu(1)

    def scores(x: Any, name: str) -> Any:
        return mark(name, (x @ x.transpose(1, 2)).masked_fill(mask, hole))

    both = names(lambda x, y: (scores(x, "x"), scores(y, "y")), lambda x, y: (scores(x, "x"), scores(y, "y")))
    assert both == {("x", "x"), ("y", "y")}
    assert names(lambda x, _: scores(x, "x"), lambda _, y: scores(y, "y")) == set()


def test_minus_infinity_and_the_limit_of_the_type_mask_alike() -> None:
    mask = torch.ones(8, 8, dtype=torch.bool).triu(1)

    def program(hole: float) -> Program:
        return lambda x, _: mark("masked", (x @ x.transpose(1, 2)).masked_fill(mask, hole))

    assert names(program(float("-inf")), program(torch.finfo(torch.float32).min)) == {("masked", "masked")}


def test_values_of_holes_alone_match_nothing() -> None:
    def all_nan(x: Any, name: str) -> Any:
        return mark(name, x * float("nan"))

    found = names(lambda x, _: all_nan(x, "x"), lambda _, y: all_nan(y, "y"))
    # They are the same by every measure there is, and a cut there would join what has nothing to do with each other.
    assert found == set()


# ----------------------------------------------------------------------------------------------------------- order


@pytest.mark.parametrize(
    "other",
    [
        lambda x: x.flip(0),
        lambda x: x.flip(-1),
        lambda x: x.roll(1, 1),
        lambda x: x.flatten().sort().values.view_as(x),
        lambda x: x[:, torch.randperm(8, generator=torch.Generator().manual_seed(0))],
        lambda x: 2 * x.mean() - x,
        lambda x: -x,
        lambda x: x.abs() * x.flip(1).sign(),
    ],
    ids=["flipped", "mirrored", "rolled", "sorted", "shuffled", "reflected", "negated", "signs"],
)
def test_the_same_numbers_in_another_order_are_not_the_same(other: Callable[[Any], Any]) -> None:
    def straight(x: Any, _: Any) -> Any:
        return mark("straight", linear(x)).tanh()

    def changed(x: Any, _: Any) -> Any:
        return mark("changed", other(linear(x))).tanh()

    assert ("straight", "changed") not in names(straight, changed)


@pytest.mark.parametrize(
    "layout",
    [lambda x: x.permute(2, 0, 1).contiguous(), lambda x: x.reshape(48, 16), lambda x: x.transpose(0, 1).contiguous()],
    ids=["permuted", "reshaped", "transposed"],
)
def test_the_same_order_in_another_layout_is_the_same(layout: Callable[[Any], Any]) -> None:
    def straight(x: Any, _: Any) -> Any:
        return mark("straight", linear(x)).tanh()

    def arranged(x: Any, _: Any) -> Any:
        return mark("arranged", layout(linear(x))).tanh()

    assert ("straight", "arranged") in names(straight, arranged)


# ---------------------------------------------------------------------------------------------------- normalised values


def decomposed_norm(x: Any) -> Any:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * BIAS + WEIGHT[0]


def test_a_fused_layer_norm_matches_a_decomposed_one() -> None:
    def fused(x: Any, _: Any) -> Any:
        return linear(mark("norm", F.layer_norm(linear(x), (16,), BIAS, WEIGHT[0])))

    def steps(x: Any, _: Any) -> Any:
        return linear(mark("norm", decomposed_norm(linear(x))))

    assert names(fused, steps) == {("norm", "norm")}
    regions = {(len(r.ops_a), len(r.ops_b)) for r in matched(record(fused), record(steps)).regions}
    assert any(a < b and a > 0 for a, b in regions)


@pytest.mark.parametrize(
    "normalise",
    [lambda x: x.softmax(-1), lambda x: F.layer_norm(x, (16,)), lambda x: F.normalize(x, dim=-1), torch.sigmoid],
    ids=["softmax", "layer_norm", "unit", "sigmoid"],
)
def test_normalised_values_of_different_inputs_do_not_match(normalise: Callable[[Any], Any]) -> None:
    def of_x(x: Any, _: Any) -> Any:
        return mark("x", normalise(linear(x))).square()

    def of_y(_: Any, y: Any) -> Any:
        return mark("y", normalise(linear(y))).square()

    assert names(of_x, of_y) == set()
    assert names(of_x, of_x) == {("x", "x")}


# ----------------------------------------------------------------------------------------------------------- in place


def test_an_update_in_place_keeps_the_earlier_value() -> None:
    def in_place(x: Any, _: Any) -> Any:
        y = mark("before", linear(x))
        early = mark("early", y.tanh())
        y.mul_(2).add_(BIAS)
        mark("after", y)
        return early, mark("late", y.tanh())

    def out_of_place(x: Any, _: Any) -> Any:
        y = mark("before", linear(x))
        z = mark("after", y * 2 + BIAS)
        return mark("late", z.tanh()), mark("early", y.tanh())

    assert names(in_place, out_of_place) == {(n, n) for n in ("before", "early", "after", "late")}


def test_a_part_written_in_place_changes_the_whole() -> None:
    def in_place(x: Any, _: Any) -> Any:
        y = mark("before", linear(x))
        kept = mark("kept", y.exp())
        y[:, :3] = 0.5 * y[:, 3:6]
        return kept, mark("whole", y.tanh())

    def out_of_place(x: Any, _: Any) -> Any:
        y = mark("before", linear(x))
        whole = torch.cat((0.5 * y[:, 3:6], y[:, 3:]), dim=1)
        return mark("kept", y.exp()), mark("whole", whole.tanh())

    assert names(in_place, out_of_place) == {(n, n) for n in ("before", "kept", "whole")}


# ----------------------------------------------------------------------------------------------------- several of a kind


def layer(x: Any, name: str) -> Any:
    return mark(f"{name}.out", x + mark(f"{name}.inner", torch.tanh(linear(x))))


def test_identical_layers_are_not_crossed() -> None:
    def program(x: Any, _: Any) -> Any:
        for n in range(5):
            x = layer(x, str(n))
        return x

    def fused(x: Any, _: Any) -> Any:
        for n in range(5):
            inner = mark(f"{n}.inner", torch.tanh(F.linear(x, WEIGHT, BIAS)))
            x = mark(f"{n}.out", torch.add(inner, x))
        return x

    found = names(program, fused)
    assert found == {(f"{n}.{k}", f"{n}.{k}") for n in range(5) for k in ("inner", "out")}


def test_the_same_value_computed_twice_pairs_in_order() -> None:
    def program(x: Any, _: Any) -> Any:
        first, second = mark("first", linear(x)), mark("second", linear(x))
        return first.tanh().sum(-1), second.exp().mean(1)

    assert names(program, program) == {("first", "first"), ("second", "second")}


def test_a_second_shape_is_recorded() -> None:
    """A layer that is called again on another shape is there twice."""
    net = torch.nn.Linear(16, 16)

    def joined(x: Any, y: Any) -> Any:
        return mark("long", net(x)), mark("short", net(y[:2, :5]))

    def steps(x: Any, y: Any) -> Any:
        return mark("long", x @ net.weight.T + net.bias), mark("short", y[:2, :5] @ net.weight.T + net.bias)

    assert names(joined, steps) == {("long", "long"), ("short", "short")}


# ----------------------------------------------------------------------------------------------------------- backward


def test_the_backward_pass_is_there() -> None:
    def program(fused: bool) -> Program:
        def run(x: Any, y: Any) -> Any:
            weight = WEIGHT.detach().clone().requires_grad_()
            product = F.linear(x, weight, BIAS) if fused else x @ weight.T + BIAS
            hidden = F.silu(product) if fused else product * torch.sigmoid(product)
            loss = F.mse_loss(hidden, y) if fused else (hidden - y).square().mean()
            loss.backward()
            return mark("hidden", hidden), mark("gradient", weight.grad)

        return run

    assert names(program(True), program(False)) == {("hidden", "hidden"), ("gradient", "gradient")}
    flags = record(program(True)).ops.column("flags").to_pylist()
    assert any("backward" in (f or "").split() for f in flags)


# ----------------------------------------------------------------------------------------------------------- accidents


def test_only_the_second_input_tells_an_accident() -> None:
    def rectified(x: Any, _: Any) -> Any:
        return mark("rectified", linear(torch.relu(x))).tanh()

    def absolute(x: Any, _: Any) -> Any:
        return mark("absolute", linear(torch.abs(x))).tanh()

    positive = {"x": X.abs() + 0.1, "x2": X2}
    assert names(rectified, absolute, second=False, **positive) == {("rectified", "absolute")}
    assert names(rectified, absolute, second=True, **positive) == set()


def test_a_handful_of_elements_and_masks_never_cut() -> None:
    def program(x: Any, _: Any) -> Any:
        few = mark("few", x[0, 0, :4] * 2)
        return mark("flags", x > 0).sum(), few.tanh()

    assert names(program, program) == set()
