"""The pairs of the match benchmark are what their labels say: both sides agree at every boundary they share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (pip install 'magneton[torch]')")
pytest.importorskip("transformers", reason="transformers is not installed (pip install 'magneton[examples]')")

pytestmark = pytest.mark.torch

from benchmarks.matching.pairs import PAIRS  # noqa: E402
from benchmarks.matching.programs import call, labelled, second_inputs  # noqa: E402
from benchmarks.matching.raw_values import same_slices  # noqa: E402

CONTROLS = [name for name in PAIRS if name.startswith("control/")]
OTHERS = [name for name in PAIRS if name not in CONTROLS]
SAME = {False: 1e-5, True: 2e-2}
SMALLEST = 16


def run(factory: Any, second: bool) -> tuple[Any, dict[str, list[Any]]]:
    """Return the outputs and, for every label, the values it was given."""
    program, inputs, labels = factory()
    if second:
        inputs = second_inputs(inputs)
    heard: dict[str, list[Any]] = defaultdict(list)
    with labelled(program, labels, lambda name, tensor: heard[name].append(tensor.detach().clone())):
        output = call(program, inputs)
    return output, heard


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors on busy machines: threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def distance(a: Any, b: Any) -> float:
    """Relative distance of two lists of tensors; in any order where their shapes differ."""
    in_order = [t.shape for t in a] == [t.shape for t in b]
    a, b = (torch.cat([t.detach().double().flatten() for t in side]) for side in (a, b))
    if not in_order:
        a, b = a.sort().values, b.sort().values
    return float((a - b).norm() / (a - a.mean()).norm()) if a.shape == b.shape else float("inf")


def same_tokens(a: list[Any], b: list[Any]) -> bool:
    """Tell whether most tokens (rows along the last axis) of two lists of tensors are the same; the others are padding."""
    return same_slices([[t.double().numpy()] for t in a], [[t.double().numpy()] for t in b], 2e-5, 0.75)


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("name", OTHERS)
def test_both_sides_agree_at_every_shared_boundary(name: str, second: bool) -> None:
    (out_a, a), (out_b, b) = (run(factory, second) for factory in PAIRS[name])
    shared = a.keys() & b.keys()
    assert len(shared) >= 4
    limit = SAME[name.startswith("precision/")]
    if name.startswith("padding/"):
        apart = {label for label in shared if not same_tokens(a[label], b[label])}
        assert apart == set()
        return
    apart = {label: d for label in shared if not (d := distance(a[label], b[label])) <= limit}
    assert apart == {}
    assert min(t.numel() for label in shared for t in a[label] + b[label]) >= SMALLEST
    if not name.startswith("accident/"):
        outs = [torch.utils._pytree.tree_leaves(out) for out in (out_a, out_b)]
        for x, y in zip(*outs, strict=True):
            assert x.numel() == 1 or distance([x], [y]) <= limit


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_shares_no_label(name: str) -> None:
    (_, a), (_, b) = (run(factory, second=True) for factory in PAIRS[name])
    assert a.keys() & b.keys() == set()


def test_an_accident_shows_only_on_the_second_input() -> None:
    for name in ("accident/rectified-absolute/default", "control/table-patched"):
        apart = {}
        for second in (False, True):
            outs = [torch.utils._pytree.tree_leaves(run(factory, second)[0])[0] for factory in PAIRS[name]]
            apart[second] = distance([outs[0]], [outs[1]])
        assert apart[False] <= 1e-6
        assert apart[True] > 0.1


def test_a_program_may_be_marked_for_good() -> None:
    from benchmarks.matching.marks import listening, mark

    x = torch.ones(3)
    assert mark("x", x) is x
    heard: list[tuple[str, Any]] = []
    with listening(lambda *pair: heard.append(pair)):
        mark("x", x)
        with listening(None):
            mark("y", x)
    assert [name for name, _ in heard] == ["x"]


def test_labels_need_no_hooks_and_leave_no_trace() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    heard: list[str] = []
    with labelled(model, {"0": "product", "": "all"}, lambda name, _: heard.append(name)):
        call(model, (torch.ones(2, 4),))
    assert heard == ["product", "all"]
    assert "forward" not in model.__dict__
    assert "forward" not in model[0].__dict__
    with pytest.raises(KeyError, match="no module 'nowhere'"), labelled(model, {"nowhere": "x"}, lambda *_: None):
        pass


def test_the_modules_of_a_step_are_found() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))

    def step(x: Any) -> Any:
        return model(x).sum().backward()

    heard: list[str] = []
    with labelled(step, {"0": "product"}, lambda name, _: heard.append(name)):
        call(step, (torch.ones(2, 4),))
    assert heard == ["product"]


def test_the_second_input_is_another_whatever_the_layout() -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    y = second_inputs((x,))[0]
    assert float((x - y).norm() / x.norm()) > 0.3
    assert bool(((y < 0) != (x < 0)).any())
    assert torch.equal(second_inputs((x.T,))[0], y.T)
    assert torch.equal(torch.cat(second_inputs(x.chunk(2))), y)
    ids = torch.arange(20)
    moved = second_inputs((ids,))[0]
    assert int(moved.min()) >= 0
    assert int(moved.max()) == 19
    assert not torch.equal(moved, ids)
