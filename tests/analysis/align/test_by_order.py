"""Alignment by order: names in the same order are evidence where neither shapes nor modules were recorded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.align.test_align_matcher import match, op

from magneton.analysis.align.matcher import Correspondence
from magneton.analysis.align.tree import Node
from magneton.analysis.names import stable_name

BLOCK = [
    "layer_norm",
    "addmm",
    "view_copy",
    "bmm",
    "softmax",
    "bmm",
    "addmm",
    "add",
    "layer_norm",
    "addmm",
    "gelu",
    "addmm",
    "add",
]


def program(n_layers: int, block: list[str] = BLOCK) -> list[str]:
    return ["embedding", *block * n_layers, "layer_norm", "mm"]


def nodes(names: list[str], ns: float = 10.0) -> list[Node]:
    return [op(name, ns=ns) for name in names]


def partners(a: list[Node], b: list[Node], found: list[Correspondence]) -> dict[int, int]:
    """Positions in A of operators that are paired one to one, and the positions of their partners in B."""
    at_a, at_b = ({id(node): index for index, node in enumerate(side)} for side in (a, b))
    return {at_a[id(c.a[0])]: at_b[id(c.b[0])] for c in found if len(c.a) == len(c.b) == 1}


@pytest.mark.parametrize("n_layers", [4, 24, 120])
@pytest.mark.parametrize("seed", range(3))
def test_one_dropped_operator_costs_one_operator(n_layers: int, seed: int) -> None:
    """The truth is known: operator k of A is operator k or k - 1 of B. Between equal neighbours either may be the dropped one."""
    names = program(n_layers)
    dropped = np.random.default_rng(seed).integers(len(names))
    a, b = nodes(names), nodes(names[:dropped] + names[dropped + 1 :])
    found = partners(a, b, match(a, b))
    assert len(found) == len(names) - 1
    wrong = [i for i, j in found.items() if j != i - (i > dropped) and abs(i - dropped) > 1]
    assert wrong == []


@pytest.mark.parametrize("seed", range(5))
def test_a_twentieth_dropped_leaves_the_rest_aligned(seed: int) -> None:
    names = program(24)
    gone = set(np.random.default_rng(seed).choice(len(names), len(names) // 20, replace=False).tolist())
    kept = [i for i in range(len(names)) if i not in gone]
    a, b = nodes(names), nodes([names[i] for i in kept])
    found = partners(a, b, match(a, b))
    right = sum(found.get(i) == j for j, i in enumerate(kept))
    assert right >= 0.97 * len(kept)
    assert all(a[i].name == b[j].name for i, j in found.items())


def test_several_operators_against_one() -> None:
    """Attention in five operators on side A, in one on side B: a group for each layer, everything else one to one."""
    a = nodes(program(6))
    fused = ["layer_norm", "addmm", "flash_attention", "addmm", "add", "layer_norm", "addmm", "gelu", "addmm", "add"]
    b = nodes(program(6, fused), ns=15.0)
    found = match(a, b)
    groups = [c for c in found if len(c.a) > 1 or len(c.b) > 1]
    assert [([n.name for n in c.a], [n.name for n in c.b]) for c in groups] == [
        (["view_copy", "bmm", "softmax", "bmm"], ["flash_attention"])
    ] * 6
    assert all(c.a and c.b for c in found)


def test_programs_that_share_a_few_names_are_not_aligned() -> None:
    """Two unlike models both use convolution, addition and normalisation: that is no evidence."""
    rng = np.random.default_rng(7)
    left = [rng.choice(["conv2d", "batch_norm", "relu", "add", "max_pool", "mean"]) for _ in range(200)]
    right = [rng.choice(["addmm", "bmm", "softmax", "layer_norm", "gelu", "add", "mul", "cat"]) for _ in range(200)]
    found = match(nodes(left), nodes(right))
    paired = sum(len(c.a) for c in found if c.a and c.b)
    assert paired < 0.1 * len(left)


def test_a_group_that_takes_hundreds_of_times_as_long_is_none() -> None:
    a, b = nodes(["x", "y", "z", "mm", "all_reduce", "u", "v", "w"]), nodes(["x", "y", "z", "norm", "u", "v", "w"])
    for node in a[3:5]:
        assert node.work is not None
        node.work.time_ns = 12_000.0
    found = match(a, b)
    assert all(not c.b for c in found if any(n.name in ("mm", "all_reduce") for n in c.a))


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=60), st.data())
@settings(max_examples=60, deadline=None)
def test_pairs_have_one_name_and_never_cross(letters: list[str], data: st.DataObject) -> None:
    kept = [letter for letter in letters if data.draw(st.booleans())] or letters[:1]
    a, b = nodes(letters), nodes(kept)
    found = partners(a, b, [c for c in match(a, b) if "name" in c.evidence])
    assert all(a[i].name == b[j].name for i, j in found.items())
    ordered = [found[i] for i in sorted(found)]
    assert ordered == sorted(ordered)


@pytest.mark.parametrize(
    ("name", "stable"),
    [
        ("triton_poi_fused_add_0_c" + "a2" * 25 + "b", "triton_poi_fused_add_0_#"),
        ("## Call CompiledFxGraph f3kq2 ##", "## Call CompiledFxGraph f3kq2 ##"),
        ("graph_deadbeef01", "graph_#"),
        ("<function f at 0x7f00deadbeef>", "<function f at 0x...>"),
        ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("aten::addmm", "aten::addmm"),
        ("cutlass_80_wmma_tensorop_f16_s161616gemm_f16_16x16_128x2_tn_align8", "cutlass_80_wmma_tensorop_f16_s161616gemm_f16_16x16_128x2_tn_align8"),
        (
            "## Call CompiledFxGraph fal4xpiah2v6blbfmwwonu52dvevbsmlh743q5tkclrt4gcqpzea ##",
            "## Call CompiledFxGraph # ##",
        ),
        ("__myl_MulSum_0x6a1cb5a9b3de42bd9d1ba1fce1cdd8f0", "__myl_MulSum_0x..."),
    ],
)  # fmt: skip
def test_what_differs_in_every_run_is_no_part_of_a_name(name: str, stable: str) -> None:
    assert stable_name(name) == stable
