"""Attention written in many ways: loops over heads and items, tiles, windows, a carried state, a cache, all layers' keys at once.

Labels follow from how the programs are built.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs.building import (
    Case,
    both,
    causal_bias,
    eager_attention,
    merge_heads,
    normal,
    parameter,
    prepared,
    seeded,
    split_heads,
)

WIDTH, HEADS, BATCH, TOKENS = 64, 4, 2, 12
HEAD_WIDTH = WIDTH // HEADS


class Stack(nn.Module):
    """Layers around ``attend``, which the subclasses write; the MLP is fused on one side and in steps on the other."""

    layers = 2

    def __init__(self, style: str, perturbed: bool, seed: int | None = None) -> None:
        super().__init__()
        self.style = style
        with seeded() if seed is None else seeded(seed):
            n = self.layers
            self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * n))
            self.qkv = nn.ModuleList(nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3)) for _ in range(n))
            self.out = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(n))
            self.up = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(n))
            self.down = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(n))
            self.more()
        prepared(self, perturbed)
        self.ready()

    def more(self) -> None:
        """Parameters of a subclass."""

    def ready(self) -> None:
        """What is made from the parameters once."""

    def project(self, i: int, y: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values (batch, tokens, width)."""
        return tuple(mark(f"{i}.{n}", linear(y)) for n, linear in zip("qkv", self.qkv[i], strict=True))

    def attend(self, i: int, y: Tensor) -> Tensor:
        """Attention of layer ``i`` over (batch, tokens, width)."""
        raise NotImplementedError

    def act(self, x: Tensor) -> Tensor:
        """SiLU."""
        return F.silu(x) if self.style != "steps" else x / (1 + torch.exp(-x))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        for i in range(self.layers):
            y = self.attend(i, mark(f"{i}.norm1", self.norms[2 * i](x)))
            x = mark(f"{i}.middle", x + mark(f"{i}.attention", y))
            y = mark(f"{i}.up", self.up[i](mark(f"{i}.norm2", self.norms[2 * i + 1](x))))
            x = mark(f"{i}.layer", x + mark(f"{i}.mlp", self.down[i](mark(f"{i}.hidden", self.act(y)))))
        return x


def stack(kind: type[Stack], style: str, perturbed: bool) -> Case:
    """One of the stacks in one style."""
    return kind(style, perturbed), (normal(BATCH, TOKENS, WIDTH),), {}


class Alibi(Stack):
    """Distances as biases: a loop over heads with an added mask, or all heads by einsum with a bool mask."""

    def attend(self, i: int, y: Tensor) -> Tensor:
        """Attention of layer ``i`` over (batch, tokens, width)."""
        q, k, v = self.project(i, y)
        slopes = [2.0 ** (-2 * (h + 1)) for h in range(HEADS)]
        distance = (torch.arange(TOKENS) - torch.arange(TOKENS)[:, None]).float()
        if self.style == "steps":
            contexts = []
            for h, slope in enumerate(slopes):
                part = slice(h * HEAD_WIDTH, (h + 1) * HEAD_WIDTH)
                scores = q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(HEAD_WIDTH)
                scores = scores + (slope * distance + causal_bias(TOKENS))
                contexts.append(scores.softmax(-1) @ v[..., part])
            context = torch.cat(contexts, dim=-1)
        else:
            q, k, v = (part.view(BATCH, TOKENS, HEADS, HEAD_WIDTH) for part in (q, k, v))
            scores = torch.einsum("bthd,bshd->bhts", q * HEAD_WIDTH**-0.5, k)
            scores = scores + torch.tensor(slopes)[:, None, None] * distance
            later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
            weights = scores.masked_fill(later, torch.finfo(torch.float32).min)
            context = torch.einsum("bhts,bshd->bthd", weights.softmax(-1), v).reshape(BATCH, TOKENS, WIDTH)
        return self.out[i](mark(f"{i}.context", context))


class HeadSum(Stack):
    """Every head with its own slices of all weights, the output a sum over heads; or batched heads."""

    def attend(self, i: int, y: Tensor) -> Tensor:
        """Attention of layer ``i`` over (batch, tokens, width)."""
        if self.style == "steps":
            total = self.out[i].bias.expand_as(y)
            for h in range(HEADS):
                part = slice(h * HEAD_WIDTH, (h + 1) * HEAD_WIDTH)
                q, k, v = (F.linear(y, linear.weight[part], linear.bias[part]) for linear in self.qkv[i])
                context = mark(f"{i}.context", (q @ k.transpose(1, 2) * HEAD_WIDTH**-0.5).softmax(-1) @ v)
                total = total + F.linear(context, self.out[i].weight[:, part])
            return total
        q, k, v = (split_heads(linear(y), HEADS) for linear in self.qkv[i])
        return self.out[i](merge_heads(mark(f"{i}.context", F.scaled_dot_product_attention(q, k, v))))


class Tiled(Stack):
    """Blocks of queries against blocks of keys with a running softmax, as FlashAttention does; or plain."""

    def attend(self, i: int, y: Tensor) -> Tensor:
        """Attention of layer ``i`` over (batch, tokens, width)."""
        q, k, v = (split_heads(part, HEADS) for part in self.project(i, y))
        if self.style != "steps":
            return self.out[i](merge_heads(mark(f"{i}.context", eager_attention(q, k, v, causal_bias(TOKENS)))))
        rows = []
        for a in range(0, TOKENS, 4):
            block = q[:, :, a : a + 4] * HEAD_WIDTH**-0.5
            top = torch.full((BATCH, HEADS, 4, 1), float("-inf"))
            total, mixed = torch.zeros(BATCH, HEADS, 4, 1), torch.zeros(BATCH, HEADS, 4, HEAD_WIDTH)
            for b in range(0, a + 4, 4):
                scores = block @ k[:, :, b : b + 4].transpose(-1, -2)
                if a == b:
                    scores = scores + causal_bias(4)
                new = torch.maximum(top, scores.amax(-1, keepdim=True))
                weights, old = torch.exp(scores - new), torch.exp(top - new)
                total = total * old + weights.sum(-1, keepdim=True)
                mixed = mixed * old + weights @ v[:, :, b : b + 4]
                top = new
            rows.append(mixed / total)
        return self.out[i](merge_heads(mark(f"{i}.context", torch.cat(rows, dim=2))))


class LinearAttention(Stack):
    """Causal attention without softmax: a state carried from token to token, or a masked square of products."""

    def attend(self, i: int, y: Tensor) -> Tensor:
        """Attention of layer ``i`` over (batch, tokens, width)."""
        q, k, v = (linear(y) for linear in self.qkv[i])
        q, k, v = mark(f"{i}.q", F.elu(q) + 1), mark(f"{i}.k", F.elu(k) + 1), mark(f"{i}.v", v)
        q, k, v = (split_heads(part, HEADS) for part in (q, k, v))
        if self.style == "steps":
            rows = []
            state = torch.zeros(BATCH, HEADS, HEAD_WIDTH, HEAD_WIDTH)
            norm = torch.zeros(BATCH, HEADS, HEAD_WIDTH)
            for t in range(TOKENS):
                state = state + k[:, :, t, :, None] * v[:, :, t, None, :]
                norm = norm + k[:, :, t]
                top = torch.einsum("bhd,bhde->bhe", q[:, :, t], state)
                rows.append(top / (q[:, :, t] * norm).sum(-1, keepdim=True))
            context = torch.stack(rows, dim=2)
        else:
            scores = torch.tril(q @ k.transpose(-1, -2))
            context = (scores / scores.sum(-1, keepdim=True)) @ v
        return self.out[i](merge_heads(mark(f"{i}.context", context)))


class Windows(Stack):
    """Attention inside windows, shifted by one token more in every layer: rolled and cut, or over everything under a mask."""

    size = 4

    def attend(self, i: int, y: Tensor) -> Tensor:
        """Attention of layer ``i`` over (batch, tokens, width)."""
        shift = i + 1
        q, k, v = self.project(i, y)
        if self.style == "steps":
            shape = (BATCH * TOKENS // self.size, self.size, HEADS, HEAD_WIDTH)
            q, k, v = (torch.roll(part, -shift, 1).view(shape).transpose(1, 2) for part in (q, k, v))
            wrapped = (torch.arange(TOKENS) + shift >= TOKENS).view(-1, self.size)
            apart = (wrapped[:, :, None] != wrapped[:, None]).float() * -1e9
            bias = apart.repeat(BATCH, 1, 1)[:, None]
            context = merge_heads(eager_attention(q, k, v, bias)).view(BATCH, TOKENS, WIDTH)
            context = torch.roll(context, shift, 1)
        else:
            where = (torch.arange(TOKENS) - shift) % TOKENS // self.size
            wrapped = torch.arange(TOKENS) < shift
            allowed = (where[:, None] == where) & (wrapped[:, None] == wrapped)
            q, k, v = (split_heads(part, HEADS) for part in (q, k, v))
            context = merge_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=allowed))
        return self.out[i](mark(f"{i}.context", context))


class PerItem(Stack):
    """The items of a batch one after the other, each through the whole stack, or all at once."""

    def attend(self, i: int, y: Tensor) -> Tensor:
        """Attention of layer ``i`` over (batch, tokens, width)."""
        q, k, v = (split_heads(part, HEADS) for part in self.project(i, y))
        return self.out[i](merge_heads(mark(f"{i}.context", F.scaled_dot_product_attention(q, k, v))))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        if self.style == "steps":
            return torch.cat([super(PerItem, self).forward(x[j : j + 1]) for j in range(len(x))])
        return super().forward(x)


class CrossDecoder(nn.Module):
    """A decoder over a source: keys and values layer by layer, or those of all layers in one product."""

    layers, source = 3, 40

    def __init__(self, joined: bool, perturbed: bool) -> None:
        super().__init__()
        self.joined = joined
        n = self.layers
        with seeded():
            self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * n))
            self.q = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(n))
            self.k = nn.ModuleList(nn.Linear(self.source, WIDTH) for _ in range(n))
            self.v = nn.ModuleList(nn.Linear(self.source, WIDTH) for _ in range(n))
            self.out = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(n))
            self.up = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(n))
            self.down = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(n))
        prepared(self, perturbed)
        if joined:
            parts = [m for pair in zip(self.k, self.v, strict=True) for m in pair]
            self.weight = parameter(torch.cat([p.weight for p in parts]))
            self.bias = parameter(torch.cat([p.bias for p in parts]))
            del self.k, self.v

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        """Map (batch, tokens, width) and a source (batch, length, source width) to (batch, tokens, width)."""
        if self.joined:
            every = F.linear(source, self.weight, self.bias)
            every = every.view(BATCH, -1, self.layers, 2, HEADS, HEAD_WIDTH).permute(2, 3, 0, 4, 1, 5)
        for i in range(self.layers):
            q = split_heads(self.q[i](mark(f"{i}.norm1", self.norms[2 * i](x))), HEADS)
            if self.joined:
                k, v = every[i].unbind(0)
            else:
                k, v = split_heads(self.k[i](source), HEADS), split_heads(self.v[i](source), HEADS)
            q, k, v = mark(f"{i}.q", q), mark(f"{i}.k", k), mark(f"{i}.v", v)
            context = F.scaled_dot_product_attention(q, k, v) if self.joined else eager_attention(q, k, v)
            x = mark(f"{i}.middle", x + mark(f"{i}.attention", self.out[i](merge_heads(mark(f"{i}.context", context)))))
            y = mark(f"{i}.up", self.up[i](mark(f"{i}.norm2", self.norms[2 * i + 1](x))))
            hidden = F.gelu(y) if self.joined else 0.5 * y * (1 + torch.erf(y / math.sqrt(2)))
            x = mark(f"{i}.layer", x + mark(f"{i}.mlp", self.down[i](mark(f"{i}.hidden", hidden))))
        return x


def cross(joined: bool, perturbed: bool) -> Case:
    """Cross attention with keys and values by layer or joined."""
    inputs = normal(BATCH, TOKENS, WIDTH), normal(BATCH, 9, CrossDecoder.source, seed=31)
    return CrossDecoder(joined, perturbed), inputs, {}


class Decoder(Stack):
    """A token against a cache: of full size under a mask, or grown by concatenation."""

    past, capacity = 9, 16

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, position: Tensor) -> Tensor:  # type: ignore[override]
        """Map (batch, 1, width), a cache (layers, batch, heads, length, head width) and a position to (batch, 1, width)."""
        self.keys, self.values, self.position = keys, values, position
        return super().forward(x)

    def attend(self, i: int, y: Tensor) -> Tensor:
        """Attention of layer ``i`` of one token over its cache."""
        q, k, v = (split_heads(part, HEADS) for part in self.project(i, y))
        if self.style == "steps":
            keys, values = self.keys[i].index_copy(2, self.position, k), self.values[i].index_copy(2, self.position, v)
            seen = torch.arange(self.capacity) <= self.position
            context = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen[None])
        else:
            keys, values = torch.cat((self.keys[i], k), dim=2), torch.cat((self.values[i], v), dim=2)
            context = eager_attention(q, keys, values)
        return self.out[i](merge_heads(mark(f"{i}.context", context)))


def decode(style: str, perturbed: bool) -> Case:
    """A decode step with one of the caches."""
    length = Decoder.capacity if style == "steps" else Decoder.past
    cache = torch.zeros(2, 2, BATCH, HEADS, length, HEAD_WIDTH)
    cache[..., : Decoder.past, :] = normal(2, 2, BATCH, HEADS, Decoder.past, HEAD_WIDTH, seed=51)
    inputs = normal(BATCH, 1, WIDTH), cache[0].clone(), cache[1].clone(), torch.tensor([Decoder.past])
    return Decoder(style, perturbed), inputs, {}


PAIRS = (
    both("alibi/loop_cat-einsum", partial(stack, Alibi, "steps"), partial(stack, Alibi, "plain"))
    | both("heads/loop_sum-batched", partial(stack, HeadSum, "steps"), partial(stack, HeadSum, "plain"))
    | both("flash/tiled-plain", partial(stack, Tiled, "steps"), partial(stack, Tiled, "plain"))
    | both(
        "linear_attention/state-square",
        partial(stack, LinearAttention, "steps"),
        partial(stack, LinearAttention, "plain"),
    )
    | both("windows/rolled-masked", partial(stack, Windows, "steps"), partial(stack, Windows, "plain"))
    | both("items/loop-batched", partial(stack, PerItem, "steps"), partial(stack, PerItem, "plain"))
    | both("cross/per_layer-all_layers", partial(cross, False), partial(cross, True))
    | both("decode/masked_capacity-grown", partial(decode, "steps"), partial(decode, "plain"))
)
