"""Layers found as repetition of kernel names."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magneton.transforms.cuda_graphs.layers import Repeats, find_repeats

SLIDING = [
    "norm",
    "gemm_qkv",
    "rope",
    "store",
    "attention_2d",
    "gemm_o",
    "norm_add",
    "router",
    "topk",
    "moe_1",
    "moe_2",
]
FULL = [
    "norm",
    "gemm_qkv",
    "rope",
    "store",
    "attention_3d",
    "reduce",
    "gemm_o",
    "norm_add",
    "router",
    "topk",
    "moe_1",
    "moe_2",
]


def _shape(found: Repeats) -> list[int]:
    return [int((found.block == k).sum()) for k in range(found.n_blocks)]


def test_alternating_layers_between_a_beginning_and_an_end() -> None:
    layers = [SLIDING, FULL] * 6
    names = ["embedding", "cast", *(name for layer in layers for name in layer), "final_norm", "head", "argmax"]
    found = find_repeats(names)
    assert (found.n_blocks, found.n_variants) == (12, 2)
    assert _shape(found) == [len(layer) for layer in layers]
    assert found.block[:2].tolist() == [-1, -1]
    assert found.block[-3:].tolist() == [-1, -1, -1]
    for name in set(SLIDING) | set(FULL):
        if name not in ("attention_2d", "attention_3d"):
            assert len({int(p) for p, n in zip(found.position, names, strict=True) if n == name}) == 1
    # Two spellings of one family stand at one place of the layer.
    assert len({int(p) for p, n in zip(found.position, names, strict=True) if n.startswith("attention")}) == 1


def test_halves_of_a_layer_are_not_taken_for_layers() -> None:
    layer = ["norm", "gemm", "rope", "attention", "gemm", "add", "norm", "gemm", "gelu", "gemm", "add"]
    found = find_repeats(["embedding", *(layer * 8), "norm", "head"])
    assert _shape(found) == [11] * 8
    assert found.template == tuple(layer)


def test_sampler_between_two_passes_is_in_no_layer() -> None:
    one_pass = ["embedding", *(SLIDING * 10), "final_norm", "head", "softmax", "sample"]
    found = find_repeats(one_pass * 2)
    assert _shape(found) == [len(SLIDING)] * 20
    assert [name for name, b in zip(one_pass * 2, found.block, strict=True) if b < 0] == (
        ["embedding", "final_norm", "head", "softmax", "sample"] * 2
    )


@pytest.mark.parametrize(
    "names", [[], ["gemm"], ["gemm"] * 50, ["a", "b"] * 30, [f"kernel_{chr(97 + i)}" for i in range(26)]]
)
def test_nothing_is_made_up(names: list[str]) -> None:
    found = find_repeats(names)
    assert (found.n_blocks, found.coverage()) == (0, 0.0)
    assert found.block.tolist() == found.position.tolist() == [-1] * len(names)


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from("abcdefgh"), min_size=4, max_size=12, unique=True),
    st.integers(3, 30),
    st.lists(st.sampled_from("uvw"), max_size=5),
    st.lists(st.sampled_from("xyz"), max_size=5),
)
def test_plain_repetition_is_found_whole(layer: list[str], n: int, before: list[str], after: list[str]) -> None:
    found = find_repeats([*before, *(layer * n), *after])
    assert found.n_blocks == n
    assert found.template == tuple(layer)
    assert found.block.tolist() == ([-1] * len(before) + [k for k in range(n) for _ in layer] + [-1] * len(after))


def test_a_hundred_thousand_kernels() -> None:
    names = ["start", *((SLIDING + FULL) * 4_500), "end"]
    found = find_repeats(names)
    assert found.n_blocks == 9_000
    assert found.coverage() == pytest.approx((len(names) - 2) / len(names))


@pytest.mark.parametrize(
    ("path", "n_blocks", "share"),
    [
        ("vllm/decode_full/replay.json.gz", 24, 0.97),
        ("vllm/prefilldecode_piecewise/replay.json.gz", 24, 0.99),
        ("sglang/qwen3_8b_prefilldecode.json.gz", 36, 0.99),
        ("torch/b200_eager.json.gz", 36, 0.97),
        # 19 double-stream and 38 single-stream blocks; the rest of the time is text encoders and decoder.
        ("xdit/flux1_capture.json.gz", 57, 0.5),
    ],
)
def test_layers_of_real_models(shared: Path, path: str, n_blocks: int, share: float) -> None:
    with gzip.open(shared / "traces" / path, "rb") as stream:
        events = [e for e in json.load(stream)["traceEvents"] if e.get("cat") == "kernel"]
    events.sort(key=lambda e: e["ts"])
    found = find_repeats([e["name"] for e in events])
    assert found.n_blocks == n_blocks
    assert found.coverage(np.array([e["dur"] for e in events])) >= share
