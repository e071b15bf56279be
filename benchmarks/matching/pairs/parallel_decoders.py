"""Decoders whose attention and MLP stand side by side: products taken apart (GPT-NeoX) and joined across both (Phi).

Labels follow from how the programs are built.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PhiConfig, PhiForCausalLM

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs.building import (
    Case,
    Output,
    both,
    integers,
    mark_attentions,
    merge_heads,
    parameter,
    prepared,
    seeded,
    split_heads,
)
from benchmarks.matching.pairs.decoders import rotary_angles, turn

WIDTH, HEADS, BATCH, TOKENS, VOCABULARY, LAYERS = 64, 4, 2, 12, 120, 3
HEAD_WIDTH = WIDTH // HEADS


def hf_neox(implementation: str, perturbed: bool) -> GPTNeoXForCausalLM:
    """The model as Transformers builds it; half of each head is rotated."""
    config = GPTNeoXConfig(
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        max_position_embeddings=32,
        vocab_size=VOCABULARY,
        attn_implementation=implementation,
        use_cache=False,
        use_parallel_residual=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        bos_token_id=None,
        eos_token_id=None,
    )
    with seeded():
        model = GPTNeoXForCausalLM(config)
    return prepared(model, perturbed)


def neox_hf(implementation: str, perturbed: bool) -> Case:
    """Transformers' GPT-NeoX over a whole sequence."""
    model = hf_neox(f"marked_{implementation}", perturbed)
    labels = {
        "model.gpt_neox.embed_in": "tokens",
        "model.gpt_neox.final_layer_norm": "norm",
        "model.embed_out" if hasattr(model, "embed_out") else "model.lm_head": "logits",
    }
    for i in range(LAYERS):
        p = f"model.gpt_neox.layers.{i}"
        labels |= {
            f"{p}.input_layernorm": f"{i}.norm1",
            f"{p}.post_attention_layernorm": f"{i}.norm2",
            f"{p}.attention.dense": f"{i}.attention",
            f"{p}.mlp.dense_h_to_4h": f"{i}.up",
            f"{p}.mlp.act": f"{i}.hidden",
            f"{p}.mlp.dense_4h_to_h": f"{i}.mlp",
            p: f"{i}.layer",
        }
    mark_attentions(model, {f"gpt_neox.layers.{i}.attention": f"{i}" for i in range(LAYERS)})
    return Output(model, "input_ids", field="logits"), (integers(VOCABULARY, BATCH, TOKENS),), labels


class SeparateNeox(nn.Module):
    """Queries, keys and values apart, with weights taken out of the head-interleaved joined one."""

    def __init__(self, perturbed: bool) -> None:
        super().__init__()
        model = hf_neox("eager", perturbed)
        self.base = model.gpt_neox
        self.head = getattr(model, "embed_out", None) or model.lm_head
        self.parts = nn.ModuleList()
        for layer in self.base.layers:
            joined = layer.attention.query_key_value
            weight = joined.weight.detach().view(HEADS, 3, HEAD_WIDTH, WIDTH)
            bias = joined.bias.detach().view(HEADS, 3, HEAD_WIDTH)
            linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
            for j, linear in enumerate(linears):
                linear.weight = parameter(weight[:, j].reshape(WIDTH, WIDTH))
                linear.bias = parameter(bias[:, j].reshape(WIDTH))
            self.parts.append(linears)
        self.register_buffer("angles", rotary_angles(HEAD_WIDTH // 2, TOKENS))

    def forward(self, tokens: Tensor) -> Tensor:
        """Map ids (batch, tokens) to logits (batch, tokens, vocabulary)."""
        x = mark("tokens", self.base.embed_in(tokens))
        for i, (layer, parts) in enumerate(zip(self.base.layers, self.parts, strict=True)):
            y = mark(f"{i}.norm1", layer.input_layernorm(x))
            q, k, v = (split_heads(part(y), HEADS) for part in parts)
            q, k, v = mark(f"{i}.q", turn(q, self.angles)), mark(f"{i}.k", turn(k, self.angles)), mark(f"{i}.v", v)
            context = mark(f"{i}.context", F.scaled_dot_product_attention(q, k, v, is_causal=True))
            attention = mark(f"{i}.attention", layer.attention.dense(merge_heads(context)))
            y = mark(f"{i}.norm2", layer.post_attention_layernorm(x))
            up = mark(f"{i}.up", layer.mlp.dense_h_to_4h(y))
            hidden = mark(f"{i}.hidden", 0.5 * up * (1 + torch.erf(up * 0.7071067811865476)))
            x = mark(f"{i}.layer", x + (attention + mark(f"{i}.mlp", layer.mlp.dense_4h_to_h(hidden))))
        return mark("logits", self.head(mark("norm", self.base.final_layer_norm(x))))


def neox_separate(perturbed: bool) -> Case:
    """The GPT-NeoX written by hand."""
    return SeparateNeox(perturbed).eval(), (integers(VOCABULARY, BATCH, TOKENS),), {}


def hf_phi(implementation: str, perturbed: bool) -> PhiForCausalLM:
    """The model as Transformers builds it; half of each head is rotated."""
    config = PhiConfig(
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=32,
        vocab_size=VOCABULARY,
        attn_implementation=implementation,
        use_cache=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        bos_token_id=None,
        eos_token_id=None,
    )
    with seeded():
        model = PhiForCausalLM(config)
    return prepared(model, perturbed)


def phi_hf(implementation: str, perturbed: bool) -> Case:
    """Transformers' Phi over a whole sequence."""
    model = hf_phi(f"marked_{implementation}", perturbed)
    labels = {
        "model.model.embed_tokens": "tokens",
        "model.model.final_layernorm": "norm",
        "model.lm_head": "logits",
    }
    for i in range(LAYERS):
        p = f"model.model.layers.{i}"
        labels |= {
            f"{p}.input_layernorm": f"{i}.norm",
            f"{p}.self_attn.q_proj": f"{i}.q_proj",
            f"{p}.self_attn.k_proj": f"{i}.k_proj",
            f"{p}.mlp.fc1": f"{i}.up",
            f"{p}.mlp.activation_fn": f"{i}.hidden",
            p: f"{i}.layer",
        }
    mark_attentions(model, {f"model.layers.{i}.self_attn": f"{i}" for i in range(LAYERS)})
    return Output(model, "input_ids", field="logits"), (integers(VOCABULARY, BATCH, TOKENS),), labels


class JoinedPhi(nn.Module):
    """One product in, one product out per layer: attention's and the MLP's output are never apart."""

    def __init__(self, perturbed: bool) -> None:
        super().__init__()
        model = hf_phi("eager", perturbed)
        self.token, self.norm, self.head = model.model.embed_tokens, model.model.final_layernorm, model.lm_head
        self.norms = nn.ModuleList(layer.input_layernorm for layer in model.model.layers)
        self.into, self.out = nn.ModuleList(), nn.ModuleList()
        for layer in model.model.layers:
            a, m = layer.self_attn, layer.mlp
            parts = [a.q_proj, a.k_proj, a.v_proj, m.fc1]
            into, out = nn.Linear(WIDTH, 5 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)
            into.weight = parameter(torch.cat([p.weight for p in parts]))
            into.bias = parameter(torch.cat([p.bias for p in parts]))
            out.weight = parameter(torch.cat([a.dense.weight, m.fc2.weight], dim=1))
            out.bias = parameter(a.dense.bias + m.fc2.bias)
            self.into.append(into)
            self.out.append(out)
        self.register_buffer("angles", rotary_angles(HEAD_WIDTH // 2, TOKENS))

    def forward(self, tokens: Tensor) -> Tensor:
        """Map ids (batch, tokens) to logits (batch, tokens, vocabulary)."""
        x = mark("tokens", self.token(tokens))
        for i, (norm, into, out) in enumerate(zip(self.norms, self.into, self.out, strict=True)):
            q, k, v, up = into(mark(f"{i}.norm", norm(x))).split([WIDTH, WIDTH, WIDTH, 2 * WIDTH], dim=-1)
            q, k, up = mark(f"{i}.q_proj", q), mark(f"{i}.k_proj", k), mark(f"{i}.up", up)
            q, k, v = split_heads(q, HEADS), split_heads(k, HEADS), mark(f"{i}.v", split_heads(v, HEADS))
            q, k = mark(f"{i}.q", turn(q, self.angles)), mark(f"{i}.k", turn(k, self.angles))
            context = mark(f"{i}.context", F.scaled_dot_product_attention(q, k, v, is_causal=True))
            hidden = mark(f"{i}.hidden", F.gelu(up, approximate="tanh"))
            x = mark(f"{i}.layer", x + out(torch.cat((merge_heads(context), hidden), dim=-1)))
        return mark("logits", self.head(mark("norm", self.norm(x))))


def phi_joined(perturbed: bool) -> Case:
    """The Phi written by hand."""
    return JoinedPhi(perturbed).eval(), (integers(VOCABULARY, BATCH, TOKENS),), {}


PAIRS = (
    both("neox/eager-separate", partial(neox_hf, "eager"), neox_separate)
    | both("phi/sdpa-joined", partial(phi_hf, "sdpa"), phi_joined)
    | both("phi/eager-joined", partial(phi_hf, "eager"), phi_joined)
)
