"""GPT-2: Transformers with eager attention, with scaled_dot_product_attention, and written by hand with fused operators."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs.building import (
    Case,
    Output,
    both,
    copy_parameters,
    integers,
    mark_attentions,
    mark_input,
    merge_heads,
    prepared,
    seeded,
)

LAYERS, HEADS, WIDTH, VOCABULARY, BATCH, TOKENS = 4, 4, 64, 160, 2, 12

RENAMED = {
    "transformer.wte.": "token.",
    "transformer.wpe.": "position.",
    "transformer.h.": "blocks.",
    "transformer.ln_f.": "norm.",
    "lm_head.": "head.",
    "ln_1.": "norm1.",
    "ln_2.": "norm2.",
    "attn.c_attn.": "qkv.",
    "attn.c_proj.": "out.",
    "mlp.c_fc.": "up.",
    "mlp.c_proj.": "down.",
}


def transformers_gpt2(implementation: str, perturbed: bool, seed: int | None = None) -> GPT2LMHeadModel:
    """The model as Transformers builds it; ``seed`` gives it other weights than everyone else's."""
    config = GPT2Config(
        n_layer=LAYERS,
        n_head=HEADS,
        n_embd=WIDTH,
        n_positions=TOKENS,
        vocab_size=VOCABULARY,
        activation_function="gelu_new",
        attn_implementation=implementation,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    with seeded() if seed is None else seeded(seed):
        model = GPT2LMHeadModel(config)
    prepared(model, perturbed)
    return model


def tokens() -> Tensor:
    """The ids everyone reads."""
    return integers(VOCABULARY, BATCH, TOKENS)


def by_transformers(implementation: str, perturbed: bool, seed: int | None = None) -> Case:
    """Transformers' GPT-2."""
    model = transformers_gpt2(f"marked_{implementation}", perturbed, seed)
    labels = {
        "model.transformer.wte": "tokens",
        "model.transformer.drop": "embedding",
        "model.transformer.ln_f": "norm",
        "model.lm_head": "logits",
    }
    for i, block in enumerate(model.transformer.h):
        layer = f"model.transformer.h.{i}"
        labels |= {
            f"{layer}.ln_1": f"{i}.norm1",
            f"{layer}.attn.c_proj": f"{i}.attention",
            f"{layer}.ln_2": f"{i}.norm2",
            f"{layer}.mlp.c_fc": f"{i}.up",
            f"{layer}.mlp.act": f"{i}.hidden",
            f"{layer}.mlp.c_proj": f"{i}.mlp",
            layer: f"{i}.layer",
        }
        mark_input(block.ln_2, f"{i}.middle")
    mark_attentions(model, {f"transformer.h.{i}.attn": f"{i}" for i in range(LAYERS)})
    return Output(model, "input_ids", field="logits"), (tokens(),), labels


class Projection(nn.Module):
    """An affine map as one ``addmm`` with the weight as (in, out)."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width_in, width_out))
        self.bias = nn.Parameter(torch.empty(width_out))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


class FusedBlock(nn.Module):
    """One layer: one projection to queries, keys and values, one attention operator, one GELU operator."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = Projection(WIDTH, 3 * WIDTH), Projection(WIDTH, WIDTH)
        self.up, self.down = Projection(WIDTH, 4 * WIDTH), Projection(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        i, (batch, length, _) = self.index, x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        q, k, v = mark(f"{i}.q", q), mark(f"{i}.k", k), mark(f"{i}.v", v)
        context = mark(f"{i}.context", F.scaled_dot_product_attention(q, k, v, is_causal=True))
        x = mark(f"{i}.middle", x + self.out(merge_heads(context)))
        return x + self.down(mark(f"{i}.hidden", F.gelu(self.up(self.norm2(x)), approximate="tanh")))


class FusedGPT2(nn.Module):
    """GPT-2 with its head tied to the token embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(FusedBlock(i) for i in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, tokens) to logits (batch, tokens, vocabulary)."""
        x = mark("embedding", self.token(ids) + self.position.weight[: ids.shape[1]])
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def by_hand(perturbed: bool, dtype: torch.dtype = torch.float32) -> Case:
    """The fused GPT-2 with Transformers' weights."""
    model = FusedGPT2()
    copy_parameters(model, transformers_gpt2("eager", perturbed), RENAMED)
    labels = {"token": "tokens", "norm": "norm", "head": "logits"}
    for i in range(LAYERS):
        labels |= {
            f"blocks.{i}.norm1": f"{i}.norm1",
            f"blocks.{i}.out": f"{i}.attention",
            f"blocks.{i}.norm2": f"{i}.norm2",
            f"blocks.{i}.up": f"{i}.up",
            f"blocks.{i}.down": f"{i}.mlp",
            f"blocks.{i}": f"{i}.layer",
        }
    return model.eval().to(dtype), (tokens(),), labels


eager = partial(by_transformers, "eager")
sdpa = partial(by_transformers, "sdpa")

PAIRS = (
    both("gpt2/eager-sdpa", eager, sdpa)
    | both("gpt2/eager-fused", eager, by_hand)
    | both("gpt2/sdpa-fused", sdpa, by_hand)
)
