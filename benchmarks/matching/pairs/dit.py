"""A diffusion transformer: shifts, scales and gates of a condition from one product or from six, with the norms fused or in steps.

Labels follow from how the programs are built.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs import precision
from benchmarks.matching.pairs.building import (
    Case,
    both,
    eager_attention,
    merge_heads,
    normal,
    parameter,
    prepared,
    seeded,
    split_heads,
)
from benchmarks.matching.pairs.controls import control, other_weights

WIDTH, HEADS, BATCH, TOKENS = 64, 4, 2, 12


class DiT(nn.Module):
    """Blocks with shifts, scales and gates of a condition: from one product, or from six; norms fused or in steps."""

    layers = 2
    every = ("shift1", "scale1", "gate1", "shift2", "scale2", "gate2")

    def __init__(self, joined: bool, perturbed: bool, zero: bool = False) -> None:
        super().__init__()
        self.joined, self.zero = joined, zero
        n = self.layers
        with seeded():
            self.patch = nn.Linear(16, WIDTH)
            self.modulation = nn.ModuleList(nn.Linear(WIDTH, 6 * WIDTH) for _ in range(n))
            self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(n))
            self.out = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(n))
            self.up = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(n))
            self.down = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(n))
            self.final, self.last = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 16)
        prepared(self, perturbed)
        if zero:
            with torch.no_grad():
                for m in self.modulation:
                    m.weight.zero_()
                    m.bias.zero_()
        if not joined:
            self.parts = nn.ModuleList()
            for m in self.modulation:
                six = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
                for linear, w, b in zip(six, m.weight.chunk(6), m.bias.chunk(6), strict=True):
                    linear.weight, linear.bias = parameter(w), parameter(b)
                self.parts.append(six)
            del self.modulation

    def say(self, name: str, x: Tensor) -> Tensor:
        """Mark, unless zeros make it equal to something else."""
        apart = name.split(".")[-1] not in (*self.every, "modulated1", "modulated2", "middle", "layer", "patches")
        return mark(name, x) if apart or not self.zero else x

    def modulated(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        """A norm of (batch, tokens, width), scaled and shifted by (batch, width)."""
        if self.joined:
            return F.layer_norm(x, (WIDTH,), eps=1e-6) * (1 + scale[:, None]) + shift[:, None]
        variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
        return torch.addcmul(shift[:, None], (x - mean) * torch.rsqrt(variance + 1e-6), scale[:, None] + 1)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Map patches (batch, tokens, 16) and a condition (batch, width) to (batch, tokens, 16)."""
        x = self.say("patches", self.patch(x))
        c = mark("condition", F.silu(condition))
        for i in range(self.layers):
            six = self.modulation[i](c).chunk(6, -1) if self.joined else [part(c) for part in self.parts[i]]
            s1, c1, g1, s2, c2, g2 = (self.say(f"{i}.{n}", p) for n, p in zip(self.every, six, strict=True))
            y = self.say(f"{i}.modulated1", self.modulated(x, s1, c1))
            qkv = zip("qkv", self.qkv[i](y).chunk(3, -1), strict=True)
            q, k, v = (split_heads(mark(f"{i}.{n}", p), HEADS) for n, p in qkv)
            context = F.scaled_dot_product_attention(q, k, v) if self.joined else eager_attention(q, k, v)
            y = mark(f"{i}.attention", self.out[i](merge_heads(mark(f"{i}.context", context))))
            x = self.say(f"{i}.middle", x + g1[:, None] * y if self.joined else torch.addcmul(x, g1[:, None], y))
            y = mark(f"{i}.up", self.up[i](self.say(f"{i}.modulated2", self.modulated(x, s2, c2))))
            y = mark(f"{i}.mlp", self.down[i](mark(f"{i}.hidden", F.gelu(y, approximate="tanh"))))
            x = self.say(f"{i}.layer", x + g2[:, None] * y if self.joined else torch.addcmul(x, g2[:, None], y))
        shift, scale = mark("final", self.final(c)).chunk(2, -1)
        return mark("noise", self.last(mark("last", self.modulated(x, shift, scale))))


def dit(joined: bool, perturbed: bool, zero: bool = False) -> Case:
    """The diffusion transformer; with ``zero``, modulated by nothing, as before training."""
    return DiT(joined, perturbed, zero), (normal(BATCH, TOKENS, 16), normal(BATCH, WIDTH, seed=41)), {}


PAIRS = (
    both("dit/joined-separate", partial(dit, True), partial(dit, False))
    | precision.pair("dit", partial(dit, True), partial(dit, False))
    | control(
        "dit-other-weights",
        partial(other_weights, partial(dit, True), 81),
        partial(other_weights, partial(dit, False), 82),
    )
    | {
        "accident/adaln_zero/perturbed": (
            partial(dit, True, True, zero=True),
            partial(dit, False, True, zero=True),
        )
    }
)
