"""The same model in float32 and in bfloat16."""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.matching.pairs import gpt2, llama, resnet
from benchmarks.matching.pairs.building import Case, both


def in_bfloat16(factory: partial[Case], perturbed: bool) -> Case:
    """A case whose module and floating inputs are bfloat16."""
    module, inputs, labels = factory(perturbed)
    assert isinstance(module, torch.nn.Module)
    return module.bfloat16(), tuple(x.bfloat16() if x.is_floating_point() else x for x in inputs), labels


def in_float32(factory: partial[Case], perturbed: bool) -> Case:
    """A case in float32 whose weights and inputs are those of the bfloat16 side, rounded alike."""
    module, inputs, labels = in_bfloat16(factory, perturbed)
    assert isinstance(module, torch.nn.Module)
    return module.float(), tuple(x.float() if x.is_floating_point() else x for x in inputs), labels


def pair(name: str, wide: partial[Case], narrow: partial[Case]) -> dict[str, tuple[partial[Case], partial[Case]]]:
    """``wide`` in float32 against ``narrow`` in bfloat16."""
    return both(f"precision/{name}", partial(in_float32, wide), partial(in_bfloat16, narrow))


fused_gpt2 = partial(gpt2.by_hand)

PAIRS = (
    pair("gpt2", fused_gpt2, fused_gpt2)
    | pair("gpt2-eager-fused", gpt2.eager, fused_gpt2)
    | pair("llama", llama.sdpa, llama.joined)
    | pair("resnet", resnet.plain, resnet.plain)
)
