"""Two spellings of one kernel agree; two kernels of one template do not."""

from __future__ import annotations

import pytest

from magneton.transforms.naming.kernel_names import (
    BARE,
    CUT,
    EXACT,
    MEMCPY,
    MEMSET,
    UNNAMED,
    activity_token,
    agreement,
    bare,
    family,
    launch_token,
)

FILL_INT = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int> >(int, std::array<char*, 1ul>)"
)
FILL_LONG = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<long> >(int, std::array<char*, 1ul>)"
)
LONG = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_LDSB1_AFC1"


@pytest.mark.parametrize(
    ("launch", "kernel", "expected"),
    [
        (FILL_INT, FILL_INT, EXACT),
        (FILL_INT, FILL_INT.removeprefix("void "), EXACT),
        ("gemm.kd", "gemm", EXACT),
        ("gemm [clone .kd]", "gemm", EXACT),
        (FILL_INT, FILL_LONG, 0),
        (FILL_INT, "at::native::vectorized_elementwise_kernel", BARE),
        ("at::native::other_kernel", FILL_INT, 0),
        ("_ZN7ck_tile6kentryILi1ENS_3FmhaEEEvT0_", "void ck_tile::kentry<1, ck_tile::Fmha>(ck_tile::Fmha)", BARE),
        ("_ZN7ck_tile6kentryILi1EEEvv", "_ZN7ck_tile6kentryILi2EEEvv", 0),
        ("_ZN12_GLOBAL__N_15storeEv", "void (anonymous namespace)::store<2>(int)", BARE),
        ("_Z3addPf", "add(float*)", BARE),
        ("_Z999addPf", "add(float*)", 0),
        (LONG[:64], LONG, CUT),
        (LONG, LONG[:64], CUT),
        (LONG[:20], LONG, 0),
        (MEMCPY, MEMCPY, EXACT),
        (MEMCPY, MEMSET, 0),
        (UNNAMED, "gemm", 0),
    ],
)
def test_agreement_of_two_names(launch: str, kernel: str, expected: int) -> None:
    assert agreement([launch], [kernel]).tolist() == [[expected]]


def test_a_name_that_stands_on_both_sides_agrees_with_itself_only() -> None:
    short, longer = (
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu",
    )
    assert agreement([short, longer], [short]).tolist() == [[EXACT], [0]]
    assert agreement([short], [longer, short]).tolist() == [[0, EXACT]]


def test_tokens_of_calls_and_activities() -> None:
    assert launch_token("hipLaunchKernel", "gemm") == activity_token("kernel", "gemm") == "gemm"
    assert launch_token("cudaMemcpyAsync", None) == activity_token("gpu_memcpy", "Memcpy DtoD") == MEMCPY
    assert launch_token("hipMemsetAsync", None) == activity_token("kernel", "__amd_rocclr_fillBufferAligned") == MEMSET
    assert launch_token("cudaLaunchKernel", None) == UNNAMED


def test_bare_and_family() -> None:
    assert bare(FILL_INT) == "at::native::vectorized_elementwise_kernel"
    assert bare("void f<&g<1>, (A)2>(int)") == "f"
    assert family("kernel_unified_attention_2d") == family("kernel_unified_attention_3d")
