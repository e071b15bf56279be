"""Pairs where less agrees than it seems: other weights, unrelated models of the same shapes, equalities by accident.

A pair whose sides share no label is a *negative control*: nothing that depends on a parameter may match.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.matching.marks import listening, mark
from benchmarks.matching.pairs import gpt2, resnet, training
from benchmarks.matching.pairs.building import (
    Case,
    Pair,
    both,
    eager_attention,
    integers,
    normal,
    perturb,
    prepared,
    seeded,
)

WIDTH, BATCH, TOKENS, LAYERS, DEEP, VOCABULARY = 48, 2, 10, 3, 16, 64


class Unmarked(nn.Module):
    """A program without labels."""

    def __init__(self, program: Any) -> None:
        super().__init__()
        self.program = program

    def forward(self, *inputs: Any) -> Any:
        """Run the program, marks unheard."""
        with listening(None):
            return self.program(*inputs)


def other_weights(case: partial[Case], seed: int) -> Case:
    """A case whose every parameter and statistic is drawn anew, and which has no labels."""
    program, inputs, _ = case(True)
    model = program if isinstance(program, nn.Module) else program.model  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in {id(t): t for t in (*model.parameters(), *model.buffers())}.values():
            if tensor.is_floating_point() and tensor.numel() > 1:
                noise = torch.rand(tensor.shape, generator=generator)
                low, high = tensor.min(), tensor.max()
                tensor.copy_(low + (high - low) * noise)
    if isinstance(program, nn.Module):
        return Unmarked(program), inputs, {}

    def step(*tensors: Tensor) -> Any:
        with listening(None):
            return program(*tensors)

    return step, inputs, {}


class Mixer(nn.Module):
    """Products over tokens and over channels in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * LAYERS))
        self.tokens = nn.ModuleList(nn.Linear(TOKENS, TOKENS) for _ in range(LAYERS))
        self.channels = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        for i in range(LAYERS):
            x = x + self.tokens[i](self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + self.channels[i](self.norms[2 * i + 1](x))
        return x


class Transformer(nn.Module):
    """Attention and a product in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * LAYERS))
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.channels = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        for i in range(LAYERS):
            q, k, v = self.qkv[i](self.norms[2 * i](x)).unsqueeze(1).chunk(3, dim=-1)
            x = x + eager_attention(q, k, v).squeeze(1)
            x = x + self.channels[i](self.norms[2 * i + 1](x))
        return x


def unrelated(kind: type[nn.Module], seed: int) -> Case:
    """A model with weights of its own on the input everyone reads."""
    with seeded(seed):
        model = kind()
    return perturb(model, seed=seed).eval(), (normal(BATCH, TOKENS, WIDTH),), {}


class Positive(nn.Module):
    """``relu`` or ``abs`` of an input that is positive the first time, beside a branch that really is the same."""

    def __init__(self, absolute: bool, perturbed: bool) -> None:
        super().__init__()
        self.absolute = absolute
        with seeded():
            self.layers = nn.ModuleDict({k: nn.Linear(WIDTH, WIDTH) for k in ("lit", "lit2", "raw", "raw2")})
            self.norms = nn.ModuleDict({k: nn.LayerNorm(WIDTH) for k in ("lit", "raw")})
        if perturbed:
            perturb(self)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map (rows, width) to two results; only the second is a boundary of both sides."""
        lit = torch.abs(x) if self.absolute else torch.relu(x)
        name = "absolute" if self.absolute else "rectified"
        lit = mark(f"{name}.product", self.layers["lit"](lit))
        lit = mark(f"{name}.norm", self.norms["lit"](torch.tanh(lit)))
        raw = mark("product", self.layers["raw"](x))
        raw = mark("norm", self.norms["raw"](mark("hidden", torch.tanh(raw))))
        return mark(f"{name}.last", self.layers["lit2"](lit)), mark("last", self.layers["raw2"](raw))


def positive(absolute: bool, perturbed: bool) -> Case:
    """A pair of sides that differ only where the input is negative."""
    return Positive(absolute, perturbed).eval(), (normal(30, WIDTH).abs() + 0.05,), {}


class Looked(nn.Module):
    """A table of vectors and a network on them; ``patched`` changes the rows that the first input does not read."""

    def __init__(self, patched: bool) -> None:
        super().__init__()
        with seeded():
            self.token = nn.Embedding(VOCABULARY, WIDTH)
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        perturb(self)
        if patched:
            unread = torch.ones(VOCABULARY, dtype=torch.bool)
            unread[read_ids().flatten()] = False
            with torch.no_grad():
                self.token.weight[unread] = normal(int(unread.sum()), WIDTH, seed=3)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, tokens) to (batch, tokens, width)."""
        x = self.token(ids)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def read_ids() -> Tensor:
    """The ids of the first input: a quarter of the vocabulary, its first and last among them."""
    ids = 4 * integers(VOCABULARY // 4, BATCH, TOKENS)
    ids[0, 0], ids[0, 1] = 0, VOCABULARY - 4
    return ids


def looked(patched: bool) -> Case:
    """A control that only a second input tells apart."""
    return Looked(patched).eval(), (read_ids(),), {}


class Shuffled(nn.Module):
    """A network whose hidden units are in another order on the one side: the same numbers, but not the same values."""

    def __init__(self, shuffled: bool, perturbed: bool) -> None:
        super().__init__()
        self.name = "shuffled" if shuffled else "straight"
        with seeded():
            self.ups = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(DEEP))
            self.downs = nn.ModuleList(nn.Linear(3 * WIDTH, WIDTH) for _ in range(DEEP))
            self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(DEEP))
            order = torch.randperm(3 * WIDTH)
        if perturbed:
            perturb(self)
        if shuffled:
            with torch.no_grad():
                for up, down in zip(self.ups, self.downs, strict=True):
                    up.weight.copy_(up.weight[order])
                    up.bias.copy_(up.bias[order])
                    down.weight.copy_(down.weight[:, order])

    def forward(self, x: Tensor) -> Tensor:
        """Map (rows, width) to the same shape."""
        for i, (up, down, norm) in enumerate(zip(self.ups, self.downs, self.norms, strict=True)):
            hidden = mark(f"{i}.{self.name}", F.silu(up(mark(f"{i}.norm", norm(x)))))
            x = mark(f"{i}.layer", x + mark(f"{i}.down", down(hidden)))
        return x


def shuffled(other: bool, perturbed: bool) -> Case:
    """A network and the same with its hidden units in another order."""
    return Shuffled(other, perturbed).eval(), (normal(30, WIDTH),), {}


class Ordered(nn.Module):
    """A branch on the input as it is or sorted along its first axis (equal on the first input), beside a true one."""

    width = 64

    def __init__(self, sorting: bool, perturbed: bool) -> None:
        super().__init__()
        self.sorting = sorting
        with seeded():
            self.layers = nn.ModuleDict({n: nn.Linear(self.width, self.width) for n in ("a", "a2", "b", "b2")})
            self.norms = nn.ModuleDict({n: nn.LayerNorm(self.width) for n in "ab"})
        prepared(self, perturbed)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map (rows, width) to two results; only the second is a boundary of both sides."""
        own = "sorted" if self.sorting else "plain"
        y = x.sort(dim=0).values if self.sorting else x
        y = mark(f"{own}.hidden", torch.tanh(mark(f"{own}.product", self.layers["a"](y))))
        y = mark(f"{own}.last", self.layers["a2"](mark(f"{own}.norm", self.norms["a"](y))))
        z = mark("hidden", torch.tanh(mark("product", self.layers["b"](x))))
        return y, mark("last", self.layers["b2"](mark("norm", self.norms["b"](z))))


def ordered(sorting: bool, perturbed: bool) -> Case:
    """A pair of sides that differ only where the input is out of order."""
    return Ordered(sorting, perturbed), (normal(30, Ordered.width).sort(dim=0).values,), {}


def control(name: str, a: partial[Case], b: partial[Case]) -> dict[str, Pair]:
    """A pair in one version."""
    return {f"control/{name}": (a, b)}


classifier = partial(training.training, training.Classifier, training.sgd, True)

PAIRS = (
    control("gpt2-other-weights", partial(other_weights, gpt2.eager, 11), partial(other_weights, gpt2.by_hand, 12))
    | control(
        "gpt2-same-program-other-weights",
        partial(other_weights, gpt2.by_hand, 11),
        partial(other_weights, gpt2.by_hand, 12),
    )
    | control(
        "resnet-other-weights",
        partial(other_weights, resnet.plain, 11),
        partial(other_weights, partial(resnet.resnet, "folded", False), 12),
    )
    | control("training-other-weights", partial(other_weights, classifier, 11), partial(other_weights, classifier, 12))
    | control("transformer-mixer", partial(unrelated, Transformer, 11), partial(unrelated, Mixer, 12))
    | control("table-patched", partial(looked, False), partial(looked, True))
    | both("accident/rectified-absolute", partial(positive, False), partial(positive, True))
    | both("accident/sorted-plain", partial(ordered, True), partial(ordered, False))
    | both("accident/straight-shuffled", partial(shuffled, False), partial(shuffled, True))
)
