"""Decoders of Transformers against norms folded into weights (Gemma) and windows cut out as views (Mistral).

Labels follow from how the programs are built.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import GemmaConfig, GemmaForCausalLM, MistralConfig, MistralForCausalLM

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs.building import (
    Case,
    Output,
    both,
    integers,
    mark_attentions,
    mark_input,
    merge_heads,
    parameter,
    prepared,
    seeded,
    split_heads,
)

WIDTH, HEADS, BATCH, TOKENS, VOCABULARY = 64, 4, 2, 12, 120
HEAD_WIDTH = WIDTH // HEADS


def rotary_angles(width: int, length: int) -> Tensor:
    """Angles (length, width / 2) by which pairs of columns turn."""
    inverse = 10000.0 ** (-torch.arange(0, width, 2).float() / width)
    return torch.arange(length).float()[:, None] * inverse


def turn(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate the first columns of (batch, heads, tokens, width); the rest passes."""
    n = angles.shape[-1]
    a, b, rest = x[..., :n], x[..., n : 2 * n], x[..., 2 * n :]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((a * cos - b * sin, a * sin + b * cos, rest), dim=-1)


def hf_gemma(implementation: str, perturbed: bool) -> GemmaForCausalLM:
    """The model as Transformers builds it: one key and value head, norms that multiply by 1 + weight."""
    config = GemmaConfig(
        num_hidden_layers=3,
        num_attention_heads=HEADS,
        num_key_value_heads=1,
        head_dim=HEAD_WIDTH,
        hidden_size=WIDTH,
        intermediate_size=112,
        max_position_embeddings=32,
        vocab_size=VOCABULARY,
        attn_implementation=implementation,
        use_cache=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    with seeded():
        model = GemmaForCausalLM(config)
    return prepared(model, perturbed)


def causal_labels(model: nn.Module, layers: int) -> dict[str, str]:
    """Label and mark a Transformers model of Llama's form, wrapped as ``model``."""
    labels = {"model.model.embed_tokens": "tokens", "model.model.norm": "norm", "model.lm_head": "logits"}
    for i, block in enumerate(model.model.layers):
        p = f"model.model.layers.{i}"
        labels |= {
            f"{p}.input_layernorm": f"{i}.norm1",
            f"{p}.self_attn.o_proj": f"{i}.attention",
            f"{p}.post_attention_layernorm": f"{i}.norm2",
            f"{p}.mlp.gate_proj": f"{i}.gate",
            f"{p}.mlp.up_proj": f"{i}.up",
            f"{p}.mlp.act_fn": f"{i}.activated",
            f"{p}.mlp.down_proj": f"{i}.mlp",
            p: f"{i}.layer",
        }
        mark_input(block.post_attention_layernorm, f"{i}.middle")
        mark_input(block.mlp.down_proj, f"{i}.hidden")
    mark_attentions(model, {f"model.layers.{i}.self_attn": f"{i}" for i in range(layers)})
    return labels


def gemma_hf(implementation: str, perturbed: bool) -> Case:
    """Transformers' Gemma over a whole sequence."""
    model = hf_gemma(f"marked_{implementation}", perturbed)
    return Output(model, "input_ids", field="logits"), (integers(VOCABULARY, BATCH, TOKENS),), causal_labels(model, 3)


class FoldedGemma(nn.Module):
    """Norm weights as 1 + w made once, the embedding table scaled once, up and gate in one product (up first)."""

    def __init__(self, perturbed: bool) -> None:
        super().__init__()
        model = hf_gemma("eager", perturbed)
        self.table = parameter(model.model.embed_tokens.weight * WIDTH**0.5)
        self.head = parameter(model.lm_head.weight)
        self.norms = nn.ParameterList()
        self.joined, self.qkv = nn.ParameterList(), nn.ParameterList()
        self.out, self.down = nn.ParameterList(), nn.ParameterList()
        for layer in model.model.layers:
            a, m = layer.self_attn, layer.mlp
            self.norms += [
                parameter(1 + layer.input_layernorm.weight),
                parameter(1 + layer.post_attention_layernorm.weight),
            ]
            self.qkv.append(parameter(torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight])))
            self.joined.append(parameter(torch.cat([m.up_proj.weight, m.gate_proj.weight])))
            self.out.append(parameter(a.o_proj.weight))
            self.down.append(parameter(m.down_proj.weight))
        self.norms.append(parameter(1 + model.model.norm.weight))
        self.register_buffer("angles", rotary_angles(HEAD_WIDTH, TOKENS))

    def forward(self, tokens: Tensor) -> Tensor:
        """Map ids (batch, tokens) to logits (batch, tokens, vocabulary)."""
        x = mark("tokens", F.embedding(tokens, self.table))
        for i in range(3):
            y = mark(f"{i}.norm1", F.rms_norm(x, (WIDTH,), self.norms[2 * i], 1e-6))
            q, k, v = F.linear(y, self.qkv[i]).split([WIDTH, HEAD_WIDTH, HEAD_WIDTH], dim=-1)
            q, k, v = split_heads(q, HEADS), split_heads(k, 1), split_heads(v, 1)
            q, k, v = mark(f"{i}.q", turn(q, self.angles)), mark(f"{i}.k", turn(k, self.angles)), mark(f"{i}.v", v)
            context = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            attention = mark(f"{i}.attention", F.linear(merge_heads(mark(f"{i}.context", context)), self.out[i]))
            x = mark(f"{i}.middle", x + attention)
            y = mark(f"{i}.norm2", F.rms_norm(x, (WIDTH,), self.norms[2 * i + 1], 1e-6))
            up, gate = F.linear(y, self.joined[i]).chunk(2, dim=-1)
            activated = mark(f"{i}.activated", F.gelu(mark(f"{i}.gate", gate), approximate="tanh"))
            hidden = mark(f"{i}.hidden", mark(f"{i}.up", up) * activated)
            x = mark(f"{i}.layer", x + mark(f"{i}.mlp", F.linear(hidden, self.down[i])))
        return mark("logits", mark("norm", F.rms_norm(x, (WIDTH,), self.norms[-1], 1e-6)) @ self.head.T)


def gemma_folded(perturbed: bool) -> Case:
    """The Gemma written by hand."""
    return FoldedGemma(perturbed).eval(), (integers(VOCABULARY, BATCH, TOKENS),), {}


def hf_mistral(implementation: str, perturbed: bool) -> MistralForCausalLM:
    """The model as Transformers builds it, with a sliding window of four tokens."""
    config = MistralConfig(
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        hidden_size=WIDTH,
        intermediate_size=96,
        max_position_embeddings=32,
        vocab_size=VOCABULARY,
        sliding_window=4,
        attn_implementation=implementation,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    with seeded():
        model = MistralForCausalLM(config)
    return prepared(model, perturbed)


def mistral_hf(implementation: str, perturbed: bool) -> Case:
    """Transformers' Mistral over a whole sequence."""
    model = hf_mistral(f"marked_{implementation}", perturbed)
    return Output(model, "input_ids", field="logits"), (integers(VOCABULARY, BATCH, TOKENS),), causal_labels(model, 2)


class WindowMistral(nn.Module):
    """Each query meets only the keys of its window, cut out as overlapping views."""

    window = 4

    def __init__(self, perturbed: bool) -> None:
        super().__init__()
        self.model = hf_mistral("eager", perturbed)
        self.register_buffer("angles", rotary_angles(HEAD_WIDTH, TOKENS))
        far = torch.arange(TOKENS)[:, None] + torch.arange(self.window) - (self.window - 1) < 0
        self.register_buffer("outside", far)

    def windows(self, x: Tensor) -> Tensor:
        """(batch, heads, tokens, width) to (batch, heads, tokens, width, window)."""
        return F.pad(x, (0, 0, self.window - 1, 0)).unfold(2, self.window, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map ids (batch, tokens) to logits (batch, tokens, vocabulary)."""
        base = self.model.model
        x = mark("tokens", base.embed_tokens(tokens))
        for i, layer in enumerate(base.layers):
            a, m = layer.self_attn, layer.mlp
            y = mark(f"{i}.norm1", layer.input_layernorm(x))
            q, k, v = split_heads(a.q_proj(y), HEADS), split_heads(a.k_proj(y), 2), split_heads(a.v_proj(y), 2)
            q, k, v = mark(f"{i}.q", turn(q, self.angles)), mark(f"{i}.k", turn(k, self.angles)), mark(f"{i}.v", v)
            k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
            scores = torch.einsum("bhtd,bhtdw->bhtw", q, self.windows(k)) * HEAD_WIDTH**-0.5
            weights = scores.masked_fill(self.outside, float("-inf")).softmax(-1)
            context = mark(f"{i}.context", torch.einsum("bhtw,bhtdw->bhtd", weights, self.windows(v)))
            x = mark(f"{i}.middle", x + mark(f"{i}.attention", a.o_proj(merge_heads(context))))
            y = mark(f"{i}.norm2", layer.post_attention_layernorm(x))
            gate = mark(f"{i}.gate", m.gate_proj(y))
            hidden = mark(f"{i}.activated", gate * torch.sigmoid(gate)) * mark(f"{i}.up", m.up_proj(y))
            x = mark(f"{i}.layer", x + mark(f"{i}.mlp", m.down_proj(mark(f"{i}.hidden", hidden))))
        return mark("logits", self.model.lm_head(mark("norm", base.norm(x))))


def mistral_window(perturbed: bool) -> Case:
    """The Mistral written by hand."""
    return WindowMistral(perturbed).eval(), (integers(VOCABULARY, BATCH, TOKENS),), {}


PAIRS = both("gemma/eager-folded", partial(gemma_hf, "eager"), gemma_folded)
PAIRS |= both("mistral/eager-windows", partial(mistral_hf, "eager"), mistral_window)
