"""Structural matching on small trees of work: what may be paired, on which evidence, and what may not."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magneton.analysis.align.comparable import find_scale
from magneton.analysis.align.matcher import Correspondence, Matcher
from magneton.analysis.align.similarity import Similarity, overlap
from magneton.analysis.align.tree import Interner, Node, Work, freeze
from magneton.analysis.device.busy import equal_share
from magneton.analysis.names import short_kernel_name

_COUNTER = iter(range(10**9))


def op(name: str, *shapes: tuple[int, ...], kernels: int = 1, ns: float = 10.0, module: str | None = None) -> Node:
    """An operator with device work."""
    order = next(_COUNTER)
    work = Work(time_ns=ns, share_ns=ns, n_kernels=kernels, n_calls=1, class_ns={name: ns})
    return Node("op", name, order, (order, 0), tuple(shapes) or None, module, work=work)


def call(name: str, *children: Node, kind: str = "op", module: str | None = None) -> Node:
    """An operator or module call around others."""
    shapes = children[0].shapes if kind == "op" else None
    return Node(kind, name, next(_COUNTER), children[0].order, shapes, module, children=list(children))


def match(a: list[Node], b: list[Node], similarity: Similarity | None = None) -> list[Correspondence]:
    """Align two steps."""
    intern = Interner()
    roots = [Node("step", "step", None, (0, 0), children=nodes) for nodes in (a, b)]
    for root in roots:
        freeze(root, intern)
    found = Matcher(similarity or Similarity()).match(*roots)
    leaves_a = [leaf for c in found for leaf in c.a]
    leaves_b = [leaf for c in found for leaf in c.b]
    assert sorted(map(id, leaves_a)) == sorted(map(id, roots[0].leaves())), "every leaf of A exactly once"
    assert sorted(map(id, leaves_b)) == sorted(map(id, roots[1].leaves())), "every leaf of B exactly once"
    return found


def names(found: list[Correspondence]) -> set[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The correspondences as names."""
    return {(tuple(n.name for n in c.a), tuple(n.name for n in c.b)) for c in found}


X, W = (8, 64), (64, 64)


def layer(n: int) -> list[Node]:
    """A layer with shapes that occur in every layer."""
    return [
        op("aten::mm", X, W, module=f"L_{n}"),
        op("aten::relu", X, module=f"L_{n}"),
        op("aten::add", X, X, module=f"L_{n}"),
    ]


def test_equal_steps_pair_call_by_call() -> None:
    found = match([n for i in range(4) for n in layer(i)], [n for i in range(4) for n in layer(i)])
    assert all(len(c.a) == len(c.b) == 1 and c.a[0].module == c.b[0].module for c in found)
    assert {c.score for c in found} == {1.0}


def test_layers_are_not_crossed() -> None:
    """Identical layers of different number: each pairs with its own, the missing one stays alone, whole."""
    found = match([n for i in range(5) for n in layer(i)], [n for i in (0, 1, 3, 4) for n in layer(i)])
    alone = [c.a[0].module for c in found if not c.b]
    assert alone == ["L_2"] * 3


def test_a_name_alone_is_no_match() -> None:
    """The same operators on other tensors are other work, whatever they are called."""
    a = [op("aten::mm", (8, 512), (512, 512)), op("aten::softmax", (8, 512)), op("aten::add", (8, 512), (8, 512))]
    b = [op("aten::mm", (7, 1024), (1024, 96)), op("aten::softmax", (7, 96)), op("aten::add", (7, 96), (7, 96))]
    assert all(not c.a or not c.b for c in match(a, b))


def test_a_single_name_without_shapes_is_no_match() -> None:
    found = match([op("aten::mm"), op("aten::relu")], [op("aten::mm"), op("aten::tanh")])
    assert all(not c.a or not c.b for c in found)


def test_vendor_leaves_meet_at_their_parent() -> None:
    def conv(leaf: str) -> Node:
        inner = op(leaf, (1, 3, 8, 8), (4, 3, 3, 3))
        return call("aten::conv2d", call("aten::_convolution", inner))

    found = match([conv("aten::cudnn_convolution"), *layer(0)], [conv("aten::miopen_convolution"), *layer(0)])
    assert (("aten::cudnn_convolution",), ("aten::miopen_convolution",)) in names(found)


def test_three_against_one_in_the_same_module() -> None:
    """Fusion: three element-wise operators against one kernel of the same module are one region."""
    a = call("Act", op("aten::mul", X), op("aten::tanh", X), op("aten::add", X), kind="module", module="Act_0")
    b = call("Act", op("fused_act", X), kind="module", module="Act_0")
    found = match([*layer(0), a, *layer(1)], [*layer(0), b, *layer(1)])
    assert (("aten::mul", "aten::tanh", "aten::add"), ("fused_act",)) in names(found)


def test_a_whole_step_of_one_operator_against_several() -> None:
    a = [op("sort", X), op("stage1", X, W), op("stage2", X, W)]
    found = match(a, [op("fused_moe", X, W)])
    assert names(found) == {(("sort", "stage1", "stage2"), ("fused_moe",))}


def test_a_wrapper_on_one_side_does_not_matter() -> None:
    inner = [n for i in range(3) for n in layer(i)]
    wrapped = call("Model", *[n for i in range(3) for n in layer(i)], kind="module", module="Model_0")
    found = match([wrapped], inner)
    assert all(len(c.a) == len(c.b) == 1 for c in found)


def test_an_extra_copy_stands_alone() -> None:
    a = [*layer(0), op("aten::copy_", (3, 5), (3, 5)), *layer(1)]
    found = match(a, [*layer(0), *layer(1)])
    assert [c.a[0].name for c in found if not c.b] == ["aten::copy_"]


def test_one_call_with_other_parts_is_one_region() -> None:
    a = call("aten::linear", op("aten::addmm", X, W))
    b = call("aten::linear", op("aten::mm", X, W), op("aten::add_", X))
    found = match([a, *layer(0)], [b, *layer(0)])
    assert (("aten::addmm",), ("aten::mm", "aten::add_")) in names(found)


def test_a_fused_call_gathers_what_it_replaces() -> None:
    """A compiled block stands for operators scattered between ones that both sides have."""
    a: list[Node] = [*layer(0)]
    b: list[Node] = [*layer(0), op("CompiledFunction", (16, 16), (16,), kernels=20)]
    for size in range(10, 20):
        a += [op("aten::mm", (16, 16), (16, size)), op("aten::acc", (size,), (size,))]
        b += [op("aten::acc", (size,), (size,))]
    found = match([*a, *layer(1)], [*b, *layer(1)])
    gathered = next(c for c in found if [n.name for n in c.b] == ["CompiledFunction"])
    assert [n.name for n in gathered.a] == ["aten::mm"] * 10
    assert (("aten::acc",), ("aten::acc",)) in names(found)


def test_parts_that_add_up_join_the_whole() -> None:
    """Three projections of one input against one fused projection are one region."""
    x = (8, 64)

    def projections(*widths: int) -> list[Node]:
        return [*layer(0), *[op("aten::mm", x, (64, n)) for n in widths], *layer(1)]

    found = match(projections(64, 16, 16), projections(96))
    whole = next(c for c in found if len(c.a) == 3)
    assert "parts" in whole.evidence
    assert [n.shapes for n in whole.b] == [((8, 64), (64, 96))]
    assert all(len(c.a) <= 1 for c in match(projections(64, 16, 16), projections(95)))


def test_a_larger_batch_is_recognised_and_scaled() -> None:
    intern = Interner()
    roots = []
    for batch in (8, 16):
        children = [n for i in range(3) for n in (op("aten::mm", (batch, 64), W), op("aten::relu", (batch, 64)))]
        roots.append(Node("step", "step", None, (0, 0), children=children))
        freeze(roots[-1], intern)
    scale = find_scale(*roots)
    assert scale is not None
    assert (scale.factor, scale.a, scale.b) == (Fraction(2), 8, 16)
    assert find_scale(roots[0], roots[0]) is None
    assert scale.describe() == "aten::mm ran on [[8, 64], [64, 64]] on side A and on [[16, 64], [64, 64]] on side B"
    found = Matcher(Similarity(scale.factor)).match(*roots)
    assert all(len(c.a) == len(c.b) == 1 for c in found)


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_overlap_is_symmetric_and_bounded(left: list[int], right: list[int]) -> None:
    from collections import Counter

    a, b = Counter(left), Counter(right)
    assert overlap(a, b) == overlap(b, a)
    assert 0.0 <= overlap(a, b) <= 1.0
    assert overlap(a, a) == (1.0 if left else 0.0)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=12))
def test_equal_share_adds_up_to_the_union(intervals: list[tuple[int, int]]) -> None:
    start = np.array([s for s, _ in intervals], dtype=np.int64)
    end = np.array([s + d for s, d in intervals], dtype=np.int64)
    covered = {t for s, d in intervals for t in range(s, s + d)}
    shares = equal_share(start, end)
    assert shares.sum() == pytest.approx(len(covered), abs=1e-9)
    for share, (_, length) in zip(shares, intervals, strict=True):
        assert -1e-9 <= share <= length + 1e-9


def test_equal_share_halves_an_overlap() -> None:
    shares = equal_share(np.array([0, 50]), np.array([100, 150]))
    assert shares.tolist() == [75.0, 75.0]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::Add<float> >(int, float*)",
            "at::native::vectorized_elementwise_kernel",
        ),
        ("Cijk_Alik_Bljk_MT16x16", "Cijk_Alik_Bljk_MT16x16"),
        ("void at::native::(anonymous namespace)::softmax<float>(float*)", "at::native::softmax"),
        ("", ""),
        (None, ""),
    ],
)
def test_short_kernel_name(name: str | None, short: str) -> None:
    assert short_kernel_name(name) == short
