"""Layer norms in one operator against single steps, in several ways of writing them."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs.building import Case, both, normal, prepared, seeded

LAYERS, WIDTH, ROWS = 5, 56, 30


def layer_norm(style: str, norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """Layer norm over the last axis: ``fused``, ``centred``, ``var_mean`` or through the mean of squares (``moments``)."""
    if style == "fused":
        return norm(x)
    if style == "centred":
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + norm.eps) * norm.weight + norm.bias
    if style == "var_mean":
        variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
        return torch.addcmul(norm.bias, (x - mean) * torch.rsqrt(variance + norm.eps), norm.weight)
    mean = x.mean(-1, keepdim=True)
    variance = x.pow(2).mean(-1, keepdim=True) - mean.pow(2)
    return norm.weight * (x - mean) * (variance + norm.eps).rsqrt() + norm.bias


class Stack(nn.Module):
    """Residual layers of a norm, a product and an activation."""

    def __init__(self, style: str, perturbed: bool) -> None:
        super().__init__()
        self.style = style
        with seeded():
            self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS))
            self.products = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        prepared(self, perturbed)

    def forward(self, x: Tensor) -> Tensor:
        """Map (rows, width) to the same shape."""
        for i, (norm, product) in enumerate(zip(self.norms, self.products, strict=True)):
            y = mark(f"{i}.norm", layer_norm(self.style, norm, x))
            y = mark(f"{i}.hidden", torch.tanh(mark(f"{i}.product", product(y))))
            x = mark(f"{i}.layer", x + y)
        return x


class PostNorm(Stack):
    """The same with the norm behind the sum, so that every norm is read twice."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (rows, width) to the same shape."""
        for i, (norm, product) in enumerate(zip(self.norms, self.products, strict=True)):
            y = mark(f"{i}.hidden", F.silu(mark(f"{i}.product", product(x))))
            x = mark(f"{i}.layer", layer_norm(self.style, norm, mark(f"{i}.sum", x + y)))
        return x


def stack(kind: type[Stack], style: str, perturbed: bool) -> Case:
    """One of the stacks in one style."""
    return kind(style, perturbed), (normal(ROWS, WIDTH),), {}


PAIRS = (
    both("norms/fused-centred", partial(stack, Stack, "fused"), partial(stack, Stack, "centred"))
    | both("norms/fused-var_mean", partial(stack, Stack, "fused"), partial(stack, Stack, "var_mean"))
    | both("norms/centred-moments", partial(stack, Stack, "centred"), partial(stack, Stack, "moments"))
    | both("norms/post-fused-centred", partial(stack, PostNorm, "fused"), partial(stack, PostNorm, "centred"))
)
