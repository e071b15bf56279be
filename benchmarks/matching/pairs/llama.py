"""Llama: Transformers against projections joined, norms and rotation written in other ways, and a decode step with a cache."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs.building import (
    Case,
    Output,
    both,
    causal_bias,
    eager_attention,
    integers,
    mark_attentions,
    mark_input,
    merge_heads,
    normal,
    prepared,
    seeded,
    split_heads,
)

LAYERS, HEADS, KV_HEADS, WIDTH, MLP_WIDTH, VOCABULARY, BATCH, TOKENS = 4, 4, 2, 64, 112, 144, 2, 10
HEAD_WIDTH = WIDTH // HEADS
PAST, CAPACITY = 14, 20


def transformers_llama(implementation: str, perturbed: bool) -> LlamaForCausalLM:
    """The model as Transformers builds it."""
    config = LlamaConfig(
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        hidden_size=WIDTH,
        intermediate_size=MLP_WIDTH,
        max_position_embeddings=32,
        vocab_size=VOCABULARY,
        attn_implementation=implementation,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    with seeded():
        model = LlamaForCausalLM(config)
    prepared(model, perturbed)
    return model


def transformers_labels(model: LlamaForCausalLM) -> dict[str, str]:
    """Label and mark a Transformers model, wrapped as ``model``."""
    labels = {"model.model.embed_tokens": "tokens", "model.model.norm": "norm", "model.lm_head": "logits"}
    for i, block in enumerate(model.model.layers):
        layer = f"model.model.layers.{i}"
        labels |= {
            f"{layer}.input_layernorm": f"{i}.norm1",
            f"{layer}.self_attn.q_proj": f"{i}.q_proj",
            f"{layer}.self_attn.k_proj": f"{i}.k_proj",
            f"{layer}.self_attn.v_proj": f"{i}.v_proj",
            f"{layer}.self_attn.o_proj": f"{i}.attention",
            f"{layer}.post_attention_layernorm": f"{i}.norm2",
            f"{layer}.mlp.gate_proj": f"{i}.gate",
            f"{layer}.mlp.up_proj": f"{i}.up",
            f"{layer}.mlp.act_fn": f"{i}.activated",
            f"{layer}.mlp.down_proj": f"{i}.mlp",
            layer: f"{i}.layer",
        }
        mark_input(block.post_attention_layernorm, f"{i}.middle")
        mark_input(block.mlp.down_proj, f"{i}.hidden")
    mark_attentions(model, {f"model.layers.{i}.self_attn": f"{i}" for i in range(LAYERS)})
    return labels


def by_transformers(implementation: str, perturbed: bool) -> Case:
    """Transformers' Llama over a whole sequence."""
    model = transformers_llama(f"marked_{implementation}", perturbed)
    labels = transformers_labels(model)
    return Output(model, "input_ids", field="logits"), (integers(VOCABULARY, BATCH, TOKENS),), labels


def rms_norm(style: str, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm: one operator (``fused``), with a power (``pow``) or through a vector norm (``norm``)."""
    if style == "fused":
        return F.rms_norm(x, (x.shape[-1],), weight, eps)
    if style == "pow":
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))
    root = torch.linalg.vector_norm(x, dim=-1, keepdim=True) * x.shape[-1] ** -0.5
    return x / (root * root + eps).sqrt() * weight


def rotate(style: str, x: Tensor, angles: Tensor) -> Tensor:
    """Rotate (batch, heads, tokens, width) by (tokens, width / 2) angles: halves, complex numbers or a stacked pair."""
    if style == "complex":
        pairs = torch.view_as_complex(x.unflatten(-1, (2, -1)).transpose(-1, -2).contiguous())
        turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles))
        return turned.transpose(-1, -2).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    if style == "halves":
        cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
        return x * cos + torch.cat((-second, first), dim=-1) * sin
    cos, sin = angles.cos(), angles.sin()
    return torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-2).flatten(-2)


class Block(nn.Module):
    """One layer; ``joined`` computes q, k, v in one product and gate, up in another."""

    def __init__(self, index: int, joined: bool, norm: str, rotary: str, attention: str) -> None:
        super().__init__()
        self.index, self.joined, self.norm, self.rotary, self.attention = index, joined, norm, rotary, attention
        self.norm1, self.norm2 = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))
        kv = KV_HEADS * HEAD_WIDTH
        if joined:
            self.qkv = nn.Linear(WIDTH, WIDTH + 2 * kv, bias=False)
            self.gate_up = nn.Linear(WIDTH, 2 * MLP_WIDTH, bias=False)
        else:
            self.q, self.k, self.v = (nn.Linear(WIDTH, w, bias=False) for w in (WIDTH, kv, kv))
            self.gate, self.up = (nn.Linear(WIDTH, MLP_WIDTH, bias=False) for _ in range(2))
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.down = nn.Linear(MLP_WIDTH, WIDTH, bias=False)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as (batch, heads, tokens, width)."""
        i, kv = self.index, KV_HEADS * HEAD_WIDTH
        q, k, v = self.qkv(x).split([WIDTH, kv, kv], dim=-1) if self.joined else (self.q(x), self.k(x), self.v(x))
        q, k, v = mark(f"{i}.q_proj", q), mark(f"{i}.k_proj", k), mark(f"{i}.v_proj", v)
        return split_heads(q, HEADS), split_heads(k, KV_HEADS), split_heads(v, KV_HEADS)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention of grouped heads; (batch, heads, tokens, width)."""
        if self.attention == "sdpa":
            return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=True)
        k, v = k.repeat_interleave(HEADS // KV_HEADS, dim=1), v.repeat_interleave(HEADS // KV_HEADS, dim=1)
        return eager_attention(q, k, v, causal_bias(q.shape[2]))

    def mix(self, x: Tensor, context: Tensor) -> Tensor:
        """What follows attention."""
        i = self.index
        x = mark(f"{i}.middle", x + mark(f"{i}.attention", self.out(merge_heads(context))))
        y = mark(f"{i}.norm2", rms_norm(self.norm, x, self.norm2, 1e-6))
        gate, up = self.gate_up(y).chunk(2, dim=-1) if self.joined else (self.gate(y), self.up(y))
        activated = mark(f"{i}.activated", F.silu(mark(f"{i}.gate", gate)))
        hidden = mark(f"{i}.hidden", activated * mark(f"{i}.up", up))
        return x + mark(f"{i}.mlp", self.down(hidden))

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        i = self.index
        q, k, v = self.project(mark(f"{i}.norm1", rms_norm(self.norm, x, self.norm1, 1e-6)))
        q, k = mark(f"{i}.q", rotate(self.rotary, q, angles)), mark(f"{i}.k", rotate(self.rotary, k, angles))
        context = mark(f"{i}.context", self.attend(q, k, mark(f"{i}.v", v)))
        return mark(f"{i}.layer", self.mix(x, context))


class Llama(nn.Module):
    """Llama in the chosen variant, with Transformers' weights."""

    def __init__(self, perturbed: bool, joined: bool, norm: str, rotary: str, attention: str) -> None:
        super().__init__()
        self.norm_style = norm
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(i, joined, norm, rotary, attention) for i in range(LAYERS))
        self.norm = nn.Parameter(torch.ones(WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        half = torch.arange(0, HEAD_WIDTH, 2, dtype=torch.float32) / HEAD_WIDTH
        angles = torch.outer(torch.arange(32, dtype=torch.float32), 10000.0**-half)
        self.register_buffer("angles", angles, persistent=False)
        self.take_weights(transformers_llama("eager", perturbed))
        self.eval()

    def take_weights(self, model: LlamaForCausalLM) -> None:
        """Take over the weights of Transformers' model, joining those computed together."""
        with torch.no_grad():
            self.token.weight.copy_(model.model.embed_tokens.weight)
            self.norm.copy_(model.model.norm.weight)
            self.head.weight.copy_(model.lm_head.weight)
            for block, layer in zip(self.blocks, model.model.layers, strict=True):
                attention, mlp = layer.self_attn, layer.mlp
                block.norm1.copy_(layer.input_layernorm.weight)
                block.norm2.copy_(layer.post_attention_layernorm.weight)
                block.out.weight.copy_(attention.o_proj.weight)
                block.down.weight.copy_(mlp.down_proj.weight)
                qkv = [p.weight for p in (attention.q_proj, attention.k_proj, attention.v_proj)]
                gate_up = [mlp.gate_proj.weight, mlp.up_proj.weight]
                if block.joined:
                    block.qkv.weight.copy_(torch.cat(qkv))
                    block.gate_up.weight.copy_(torch.cat(gate_up))
                else:
                    for target, weight in zip((block.q, block.k, block.v), qkv, strict=True):
                        target.weight.copy_(weight)
                    for target, weight in zip((block.gate, block.up), gate_up, strict=True):
                        target.weight.copy_(weight)

    def finish(self, x: Tensor) -> Tensor:
        """Final norm and head."""
        return mark("logits", self.head(mark("norm", rms_norm(self.norm_style, x, self.norm, 1e-6))))

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, tokens) to logits (batch, tokens, vocabulary)."""
        x = mark("tokens", self.token(ids))
        for block in self.blocks:
            x = block(x, self.angles[: ids.shape[1]])
        return self.finish(x)


def by_hand(joined: bool, norm: str, rotary: str, attention: str, perturbed: bool) -> Case:
    """A hand-written Llama over a whole sequence."""
    model = Llama(perturbed, joined, norm, rotary, attention)
    return model, (integers(VOCABULARY, BATCH, TOKENS),), {}


def past(length: int) -> tuple[Tensor, Tensor]:
    """Keys and values of ``PAST`` earlier tokens, (layers, batch, heads, length, width), zero behind the last."""
    keys, values = torch.zeros(2, LAYERS, BATCH, KV_HEADS, length, HEAD_WIDTH)
    keys[..., :PAST, :] = normal(LAYERS, BATCH, KV_HEADS, PAST, HEAD_WIDTH, seed=7)
    values[..., :PAST, :] = normal(LAYERS, BATCH, KV_HEADS, PAST, HEAD_WIDTH, seed=8)
    return keys, values


class DecodeByTransformers(nn.Module):
    """One token against a cache that grows by concatenation."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Map ids (batch, 1) and the past to logits (batch, 1, vocabulary)."""
        cache = DynamicCache()
        for i in range(LAYERS):
            cache.update(keys[i], values[i], i)
        return self.model(input_ids=ids, cache=cache, use_cache=True).logits


def decode_by_transformers(implementation: str, perturbed: bool) -> Case:
    """A decode step of Transformers."""
    model = transformers_llama(f"marked_{implementation}", perturbed)
    labels = transformers_labels(model)
    return DecodeByTransformers(model), (integers(VOCABULARY, BATCH, 1), *past(PAST)), labels


class DecodeInPlace(Llama):
    """One token against a cache of fixed size that is written in place and read up to the token."""

    def forward(self, ids: Tensor, keys: Tensor, values: Tensor) -> Tensor:  # type: ignore[override]
        """Map ids (batch, 1) and the past to logits (batch, 1, vocabulary)."""
        x = mark("tokens", self.token(ids))
        angles = self.angles[PAST : PAST + 1]
        for i, block in enumerate(self.blocks):
            q, k, v = block.project(mark(f"{i}.norm1", rms_norm(block.norm, x, block.norm1, 1e-6)))
            q = mark(f"{i}.q", rotate(block.rotary, q, angles))
            keys[i, :, :, PAST : PAST + 1] = rotate(block.rotary, k, angles)
            values[i, :, :, PAST : PAST + 1] = v
            k, v = mark(f"{i}.k", keys[i, :, :, : PAST + 1]), mark(f"{i}.v", values[i, :, :, : PAST + 1])
            context = mark(f"{i}.context", block.attend(q, k, v))
            x = mark(f"{i}.layer", block.mix(x, context))
        return self.finish(x)


def decode_in_place(perturbed: bool) -> Case:
    """A decode step written by hand."""
    model = DecodeInPlace(perturbed, joined=True, norm="pow", rotary="halves", attention="sdpa")
    return model, (integers(VOCABULARY, BATCH, 1), *past(CAPACITY)), {}


eager, sdpa = partial(by_transformers, "eager"), partial(by_transformers, "sdpa")
separate = partial(by_hand, False, "pow", "halves", "eager")
joined = partial(by_hand, True, "pow", "halves", "sdpa")
complex_rotary = partial(by_hand, True, "fused", "complex", "sdpa")
stacked_rotary = partial(by_hand, False, "norm", "stacked", "eager")

PAIRS = (
    both("llama/eager-sdpa", eager, sdpa)
    | both("llama/eager-joined", eager, joined)
    | both("llama/separate-joined", separate, joined)
    | both("llama/sdpa-fused_norm-complex_rotary", sdpa, complex_rotary)
    | both("llama/norms-rotaries", stacked_rotary, complex_rotary)
    | both("llama/decode-eager-in_place", partial(decode_by_transformers, "eager"), decode_in_place)
    | both("llama/decode-sdpa-in_place", partial(decode_by_transformers, "sdpa"), decode_in_place)
)
