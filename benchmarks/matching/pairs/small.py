"""Small programs that differ in one thing: a loop over rows, heads or parts of a batch, a by-product, a value computed twice.

Labels follow from how the programs are built.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs.building import (
    Case,
    Pair,
    both,
    eager_attention,
    integers,
    merge_heads,
    normal,
    perturb,
    prepared,
    seeded,
    split_heads,
)

WIDTH, HEADS, TOKENS, ROWS, CLASSES, KEPT = 32, 4, 6, 16, 24, 6


class Small(nn.Module):
    """A norm and a few products, run by a function of this module, the input and the side."""

    def __init__(self, run: Callable[[Small, Tensor, bool], Tensor], second: bool, perturbed: bool) -> None:
        super().__init__()
        self.run, self.second = run, second
        with seeded():
            self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8))
            self.norm = nn.LayerNorm(WIDTH)
        prepared(self, perturbed)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., width) to the same shape."""
        return self.run(self, x, self.second)


def rows(net: Small, x: Tensor, second: bool) -> Tensor:
    """A product and an activation of all rows (rows, width) at once, or of one row after the other."""

    def step(part: Tensor) -> Tensor:
        return mark("hidden", torch.tanh(mark("product", net.linears[0](part))))

    result = torch.cat([step(part) for part in x.split(1)]) if second else step(x)
    return mark("out", net.linears[1](mark("result", result)))


def heads(net: Small, x: Tensor, second: bool) -> Tensor:
    """Attention over (batch, tokens, width): heads at once, or each with its slices of the weights, added up."""
    y = mark("norm", net.norm(x))
    *qkv, out = net.linears[:4]
    if second:
        attention = out.bias.expand_as(y)
        for part in torch.arange(WIDTH).chunk(HEADS):
            piece = slice(int(part[0]), int(part[-1]) + 1)
            q, k, v = (F.linear(y, linear.weight[piece], linear.bias[piece]) for linear in qkv)
            scores = q @ k.transpose(1, 2) * (WIDTH // HEADS) ** -0.5
            attention = attention + F.linear(mark("context", scores.softmax(-1) @ v), out.weight[:, piece])
    else:
        q, k, v = (split_heads(linear(y), HEADS) for linear in qkv)
        attention = out(merge_heads(mark("context", eager_attention(q, k, v))))
    return mark("out", net.linears[4](mark("attention", attention)))


def best(net: Small, x: Tensor, second: bool) -> Tensor:
    """The largest of each row (rows, width) kept by a threshold, or scattered to where they were found."""
    y = mark("logits", net.linears[1](mark("hidden", torch.tanh(net.linears[0](x)))))
    if second:
        largest, where = y.topk(KEPT)
        p = torch.zeros_like(y).scatter(-1, where, largest.softmax(-1))
    else:
        least = y.topk(KEPT).values[..., -1:]
        p = y.masked_fill(y < least, float("-inf")).softmax(-1)
    return mark("out", net.linears[2](mark("probabilities", p)))


def twice(net: Small, x: Tensor, second: bool) -> Tensor:
    """A value (..., width) kept for its second reader, or computed again for it."""

    def value() -> Tensor:
        return F.gelu(net.linears[0](x))

    first = mark("value", value())
    a = mark("first reader", torch.tanh(net.linears[1](first)))
    again = value() if second else first
    b = mark("second reader", net.linears[2](again * a))
    return mark("out", torch.tanh(net.linears[3](b)))


Run = Callable[[Small, Tensor, bool], Tensor]


def small(run: Run, shape: tuple[int, ...], second: bool, perturbed: bool) -> Case:
    """One side of a small program on an input of a shape."""
    return Small(run, second, perturbed), (normal(*shape),), {}


class Step:
    """Forward and backward of a chain of products and activations, over the whole batch or in two parts."""

    def __init__(self, parts: int, perturbed: bool) -> None:
        self.parts = parts
        with seeded():
            chain = [layer for _ in range(2) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
            self.model = nn.Sequential(*chain, nn.Linear(WIDTH, CLASSES))
        if perturbed:
            perturb(self.model)

    def __call__(self, x: Tensor, targets: Tensor) -> list[Tensor]:
        """Return the gradients of parameters for inputs (rows, width) and targets (rows,)."""
        for part, wanted in zip(x.chunk(self.parts), targets.chunk(self.parts), strict=True):
            y = part
            for i, layer in enumerate(self.model):
                y = mark(f"{i}", layer(y))
            (F.cross_entropy(y, wanted) / self.parts).backward()
        return [mark(f"gradient of {name}", p.grad) for name, p in self.model.named_parameters()]


def step(parts: int, perturbed: bool) -> Case:
    """A step in ``parts``."""
    return Step(parts, perturbed), (normal(ROWS, WIDTH), integers(CLASSES, ROWS)), {}


def pair(name: str, run: Run, *shape: int) -> dict[str, Pair]:
    """Both sides of a small program."""
    return both(f"small/{name}", partial(small, run, shape, False), partial(small, run, shape, True))


PAIRS = (
    pair("ten-rows-at_once-loop", rows, 10, WIDTH)
    | pair("heads-at_once-loop-batch_of_one", heads, 1, TOKENS, WIDTH)
    | pair("heads-at_once-loop-batch_of_two", heads, 2, TOKENS, WIDTH)
    | pair("indices-read_by_one_side", best, ROWS, WIDTH)
    | pair("value-kept-computed_again", twice, 2, TOKENS, WIDTH)
    | both("small/step-whole-microbatches", partial(step, 1), partial(step, 2))
)
