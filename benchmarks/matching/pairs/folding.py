"""Weights that are put together at every call, or once: low-rank additions, weight norm.

Labels follow from how the programs are built.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs.attention import HEADS, WIDTH, Stack, stack
from benchmarks.matching.pairs.building import Case, both, merge_heads, normal, parameter, prepared, seeded, split_heads


class Lora(Stack):
    """Low-rank additions to queries and values: beside the product, or merged into its weight."""

    rank, zero = 4, False

    def more(self) -> None:
        """The low-rank factors, two for queries and two for values of each layer."""
        self.a = nn.ParameterList(torch.randn(self.rank, WIDTH) / 8 for _ in range(2 * self.layers))
        self.b = nn.ParameterList(torch.randn(WIDTH, self.rank) / 8 for _ in range(2 * self.layers))

    def ready(self) -> None:
        """Zero the additions where asked for; merge them into the weights."""
        if self.zero:
            with torch.no_grad():
                for b in self.b:
                    b.zero_()
        if self.style == "merged":
            with torch.no_grad():
                for i in range(self.layers):
                    for j, part in enumerate((0, 2)):
                        self.qkv[i][part].weight += 2.0 * self.b[2 * i + j] @ self.a[2 * i + j]
            del self.a, self.b

    def project(self, i: int, y: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values (batch, tokens, width)."""
        q, k, v = (linear(y) for linear in self.qkv[i])
        if self.style == "beside":
            q = q + 2.0 * F.linear(F.linear(y, self.a[2 * i]), self.b[2 * i])
            v = v + 2.0 * F.linear(F.linear(y, self.a[2 * i + 1]), self.b[2 * i + 1])
        if not self.zero:
            mark(f"{i}.q", q)
            mark(f"{i}.v", v)
        return q, mark(f"{i}.k", k), v

    def attend(self, i: int, y: Tensor) -> Tensor:
        """Attention of layer ``i`` over (batch, tokens, width)."""
        q, k, v = (split_heads(part, HEADS) for part in self.project(i, y))
        return self.out[i](merge_heads(mark(f"{i}.context", F.scaled_dot_product_attention(q, k, v))))


class LoraZero(Lora):
    """The addition as it is before training: zero. What is added to it equals the sum by accident and has no label."""

    zero = True


class WeightNorm(nn.Module):
    """Layers whose weights have a direction and a length: put together at every call, or once."""

    def __init__(self, folded: bool, perturbed: bool) -> None:
        super().__init__()
        self.folded = folded
        with seeded():
            self.directions = nn.ParameterList(torch.randn(48, 48) for _ in range(3))
            self.lengths = nn.ParameterList(torch.rand(48, 1) + 0.5 for _ in range(3))
            self.biases = nn.ParameterList(torch.zeros(48) for _ in range(3))
        prepared(self, perturbed)
        if folded:
            parts = zip(self.directions, self.lengths, strict=True)
            self.weights = nn.ParameterList(parameter(g * v / v.norm(dim=1, keepdim=True)) for v, g in parts)
            del self.directions, self.lengths

    def forward(self, x: Tensor) -> Tensor:
        """Map (rows, width) to the same shape."""
        for i, bias in enumerate(self.biases):
            weight = self.weights[i] if self.folded else torch._weight_norm(self.directions[i], self.lengths[i], 0)
            product = mark(f"{i}.product", F.linear(x, weight, bias))
            x = mark(f"{i}.layer", x + mark(f"{i}.hidden", F.elu(product)))
        return x


def weight_norm(folded: bool, perturbed: bool) -> Case:
    """Weight norm at run time or folded."""
    return WeightNorm(folded, perturbed), (normal(20, 48),), {}


PAIRS = (
    both("lora/beside-merged", partial(stack, Lora, "beside"), partial(stack, Lora, "merged"))
    | both("weight_norm/runtime-folded", partial(weight_norm, False), partial(weight_norm, True))
    | {
        "accident/lora_zero/perturbed": (
            partial(stack, LoraZero, "beside", True),
            partial(stack, LoraZero, "merged", True),
        )
    }
)
