"""A mixture of experts: Transformers' Mixtral loop, its batched product, and every expert on every token."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import MixtralConfig, MixtralForCausalLM

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs.building import (
    Case,
    Output,
    both,
    integers,
    mark_attentions,
    mark_input,
    normal,
    prepared,
    seeded,
)

LAYERS, HEADS, KV_HEADS, WIDTH, MLP_WIDTH, EXPERTS, CHOSEN, VOCABULARY, BATCH, TOKENS = 2, 4, 2, 48, 64, 4, 2, 96, 2, 10


class EveryExpert(nn.Module):
    """The mixture without a choice of tokens: all experts see all tokens, and weights of zero drop what is not chosen."""

    def __init__(self, theirs: nn.Module) -> None:
        super().__init__()
        self.gate = theirs.gate
        self.gate_up, self.down = theirs.experts.gate_up_proj, theirs.experts.down_proj

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        flat = x.reshape(-1, WIDTH)
        _, weights, indices = self.gate(flat)
        dense = torch.zeros(len(flat), EXPERTS, dtype=weights.dtype).scatter(1, indices, weights)
        gate, up = torch.einsum("td,ehd->teh", flat, self.gate_up).chunk(2, dim=-1)
        outputs = torch.einsum("teh,edh->ted", F.silu(gate) * up, self.down)
        return (dense.unsqueeze(1) @ outputs).view_as(x)


def mixtral(experts: str, attention: str, perturbed: bool) -> Case:
    """Mixtral with one implementation of its experts (``eager``, ``batched_mm`` of Transformers, or ``every``)."""
    config = MixtralConfig(
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        hidden_size=WIDTH,
        intermediate_size=MLP_WIDTH,
        num_local_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
        max_position_embeddings=32,
        vocab_size=VOCABULARY,
        attn_implementation=f"marked_{attention}",
        experts_implementation="batched_mm" if experts == "batched_mm" else "eager",
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    with seeded():
        model = MixtralForCausalLM(config)
    prepared(model, perturbed)
    labels = {"model.model.embed_tokens": "tokens", "model.model.norm": "norm", "model.lm_head": "logits"}
    for i, layer in enumerate(model.model.layers):
        path = f"model.model.layers.{i}"
        labels |= {
            f"{path}.input_layernorm": f"{i}.norm1",
            f"{path}.self_attn.o_proj": f"{i}.attention",
            f"{path}.post_attention_layernorm": f"{i}.norm2",
            f"{path}.mlp.gate": f"{i}.router",
            f"{path}.mlp": f"{i}.mixture",
            path: f"{i}.layer",
        }
        mark_input(layer.post_attention_layernorm, f"{i}.middle")
        if experts == "every":
            layer.mlp = EveryExpert(layer.mlp)
    mark_attentions(model, {f"model.layers.{i}.self_attn": f"{i}" for i in range(LAYERS)})
    return Output(model, "input_ids", field="logits"), (integers(VOCABULARY, BATCH, TOKENS),), labels


class Routed(nn.Module):
    """A stack of mixtures with one expert per token, experts run in a loop (``loop``) or by gathering weights (``gathered``)."""

    def __init__(self, style: str, perturbed: bool) -> None:
        super().__init__()
        self.style = style
        with seeded():
            self.routers = nn.ModuleList(nn.Linear(WIDTH, EXPERTS) for _ in range(LAYERS))
            self.ups = nn.ModuleList(
                nn.ModuleList(nn.Linear(WIDTH, MLP_WIDTH) for _ in range(EXPERTS)) for _ in range(LAYERS)
            )
            self.downs = nn.ModuleList(
                nn.ModuleList(nn.Linear(MLP_WIDTH, WIDTH) for _ in range(EXPERTS)) for _ in range(LAYERS)
            )
            self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS))
        prepared(self, perturbed)

    def mixture(self, i: int, x: Tensor, chosen: Tensor) -> Tensor:
        """Run each token (tokens, width) through its expert."""
        if self.style == "loop":
            out = torch.zeros_like(x)
            for e in range(EXPERTS):
                rows = (chosen == e).nonzero().squeeze(1)
                out[rows] = self.downs[i][e](F.relu(self.ups[i][e](x[rows])))
            return out
        up = torch.stack([m.weight for m in self.ups[i]])[chosen]
        up_bias = torch.stack([m.bias for m in self.ups[i]])[chosen]
        down = torch.stack([m.weight for m in self.downs[i]])[chosen]
        down_bias = torch.stack([m.bias for m in self.downs[i]])[chosen]
        hidden = F.relu((up @ x.unsqueeze(-1)).squeeze(-1) + up_bias)
        return (down @ hidden.unsqueeze(-1)).squeeze(-1) + down_bias

    def forward(self, x: Tensor) -> Tensor:
        """Map (tokens, width) to the same shape."""
        for i in range(LAYERS):
            y = mark(f"{i}.norm", self.norms[i](x))
            router = mark(f"{i}.router", self.routers[i](y))
            weight, chosen = F.softmax(router, dim=-1).max(dim=-1)
            y = mark(f"{i}.mixture", self.mixture(i, y, chosen))
            x = mark(f"{i}.layer", x + mark(f"{i}.weighted", weight.unsqueeze(-1) * y))
        return x


def routed(style: str, perturbed: bool) -> Case:
    """The stack with one expert per token."""
    return Routed(style, perturbed), (normal(24, WIDTH),), {}


PAIRS = (
    both("moe/loop-batched", partial(mixtral, "eager", "eager"), partial(mixtral, "batched_mm", "eager"))
    | both("moe/loop-every_expert", partial(mixtral, "eager", "sdpa"), partial(mixtral, "every", "eager"))
    | both("moe/routed_loop-gathered_weights", partial(routed, "loop"), partial(routed, "gathered"))
)
