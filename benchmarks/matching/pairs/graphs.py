"""Graphs that are no chain: two towers, an auxiliary head, tied weights, steps of a loop, a recurrent cell in one operator."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs.building import (
    Case,
    both,
    eager_attention,
    integers,
    merge_heads,
    normal,
    prepared,
    seeded,
    split_heads,
)

WIDTH, HEADS, BATCH, TOKENS, VOCABULARY, CLASSES, STEPS = 48, 4, 2, 9, 88, 24, 6


class Block(nn.Module):
    """A transformer layer: joined or separate projections, attention in one operator or in steps."""

    def __init__(self, name: str, joined: bool) -> None:
        super().__init__()
        self.name, self.joined = name, joined
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, name: str | None = None) -> Tensor:
        """Map (batch, tokens, width) to the same shape, marking under ``name``."""
        name = name or self.name
        y = mark(f"{name}.norm1", self.norm1(x))
        if self.joined:
            q, k, v = self.qkv(y).chunk(3, dim=-1)
        else:
            weights, biases = self.qkv.weight.chunk(3), self.qkv.bias.chunk(3)
            q, k, v = (F.linear(y, w, b) for w, b in zip(weights, biases, strict=True))
        q, k, v = mark(f"{name}.q", q), mark(f"{name}.k", k), mark(f"{name}.v", v)
        q, k, v = split_heads(q, HEADS), split_heads(k, HEADS), split_heads(v, HEADS)
        context = F.scaled_dot_product_attention(q, k, v) if self.joined else eager_attention(q, k, v)
        attention = mark(f"{name}.attention", self.out(merge_heads(mark(f"{name}.context", context))))
        x = mark(f"{name}.middle", x + attention)
        hidden = mark(f"{name}.hidden", F.gelu(mark(f"{name}.up", self.up(mark(f"{name}.norm2", self.norm2(x))))))
        return mark(f"{name}.layer", x + mark(f"{name}.mlp", self.down(hidden)))


class TwoTowers(nn.Module):
    """Two stacks of the same architecture, compared at the end.

    ``first`` is which tower runs first; with ``same_input`` both read the same tokens, with ``same_weights`` both are one.
    """

    def __init__(self, joined: bool, first: str, same_input: bool, same_weights: bool, perturbed: bool) -> None:
        super().__init__()
        self.first, self.same_input, self.same_weights = first, same_input, same_weights
        with seeded():
            self.token = nn.Embedding(VOCABULARY, WIDTH)
            self.towers = nn.ModuleDict(
                {side: nn.ModuleList(Block(f"{side}.{i}", joined) for i in range(2)) for side in ("left", "right")}
            )
            self.scale = nn.Parameter(torch.tensor(2.5))
        prepared(self, perturbed)

    def tower(self, side: str, ids: Tensor) -> Tensor:
        """Run one tower; unit vectors (batch, width)."""
        x = self.token(ids)
        for i, block in enumerate(self.towers["left" if self.same_weights else side]):
            x = block(x, f"{side}.{i}")
        return mark(f"{side}.unit", F.normalize(mark(f"{side}.pooled", x.mean(1)), dim=-1))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Map two batches of ids to their similarities."""
        ids = {"left": left, "right": left if self.same_input else right}
        order = ("left", "right") if self.first == "left" else ("right", "left")
        done = {side: self.tower(side, ids[side]) for side in order}
        return self.scale * done["left"] @ done["right"].T


def two_towers(joined: bool, first: str, perturbed: bool, same_input: bool = False, same_weights: bool = False) -> Case:
    """Two towers."""
    batch = 5
    ids = integers(VOCABULARY, batch, TOKENS), integers(VOCABULARY, batch, TOKENS, seed=77)
    return TwoTowers(joined, first, same_input, same_weights, perturbed), ids, {}


class Auxiliary(nn.Module):
    """A stack with a second head on its middle, computed on the way (``early``) or after everything else."""

    def __init__(self, joined: bool, early: bool, perturbed: bool) -> None:
        super().__init__()
        self.early = early
        with seeded():
            self.blocks = nn.ModuleList(Block(f"{i}", joined) for i in range(4))
            self.auxiliary = nn.Sequential(
                nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)
            )
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
        prepared(self, perturbed)

    def second(self, x: Tensor) -> Tensor:
        """The second head."""
        for i, layer in enumerate(self.auxiliary):
            x = mark(f"auxiliary.{i}", layer(x))
        return x

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map (batch, tokens, width) to both heads' logits."""
        auxiliary, middle = None, x
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i == 1:
                middle = x
                auxiliary = self.second(x) if self.early else None
        logits = mark("logits", self.head(mark("norm", self.norm(x))))
        return logits, self.second(middle) if auxiliary is None else auxiliary


def auxiliary(joined: bool, early: bool, perturbed: bool) -> Case:
    """A stack with two heads."""
    return Auxiliary(joined, early, perturbed), (normal(BATCH, TOKENS, WIDTH),), {}


class Tied(nn.Module):
    """One layer applied again and again, and a head that is the embedding."""

    def __init__(self, joined: bool, perturbed: bool) -> None:
        super().__init__()
        with seeded():
            self.token = nn.Embedding(VOCABULARY, WIDTH)
            self.block = Block("block", joined)
        prepared(self, perturbed)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, tokens) to logits."""
        x = mark("tokens", self.token(ids))
        for i in range(4):
            x = self.block(x, f"{i}")
        return mark("logits", x @ self.token.weight.T)


def tied(joined: bool, perturbed: bool) -> Case:
    """One layer, four times."""
    return Tied(joined, perturbed), (integers(VOCABULARY, BATCH, TOKENS),), {}


class Steps(nn.Module):
    """A network over a sequence (steps, batch, width): all steps at once, or one after the other."""

    def __init__(self, loop: bool, perturbed: bool) -> None:
        super().__init__()
        self.loop = loop
        with seeded():
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
            self.norm = nn.LayerNorm(WIDTH)
        prepared(self, perturbed)

    def step(self, x: Tensor) -> Tensor:
        """Run any number of steps."""
        for i, layer in enumerate(self.layers):
            x = mark(f"{i}.hidden", torch.tanh(mark(f"{i}.product", layer(x))))
        return mark("norm", self.norm(x))

    def forward(self, x: Tensor) -> Tensor:
        """Map (steps, batch, width) to the same shape."""
        y = torch.stack([self.step(part) for part in x]) if self.loop else self.step(x)
        return mark("scores", torch.softmax(y, dim=-1))


def steps(loop: bool, perturbed: bool) -> Case:
    """Steps at once or in a loop."""
    return Steps(loop, perturbed), (normal(STEPS, 4, WIDTH),), {}


class Recurrent(nn.Module):
    """Two recurrent layers between products: in one operator each, or in single steps."""

    def __init__(self, fused: bool, perturbed: bool) -> None:
        super().__init__()
        self.fused = fused
        with seeded():
            self.first = nn.Linear(WIDTH, WIDTH)
            self.cells = nn.ModuleList(nn.LSTM(WIDTH, WIDTH) for _ in range(2))
            self.norm, self.last = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
        prepared(self, perturbed)

    def unrolled(self, cell: nn.LSTM, x: Tensor) -> Tensor:
        """An LSTM in single steps; (steps, batch, width)."""
        h = c = torch.zeros(x.shape[1], WIDTH)
        outputs = []
        for part in x:
            gates = F.linear(part, cell.weight_ih_l0, cell.bias_ih_l0) + F.linear(h, cell.weight_hh_l0, cell.bias_hh_l0)
            i, f, g, o = gates.chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        return torch.stack(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map (steps, batch, width) to logits."""
        x = mark("first", self.first(x))
        for i, cell in enumerate(self.cells):
            x = mark(f"{i}.sequence", cell(x)[0] if self.fused else self.unrolled(cell, x))
            x = mark(f"{i}.hidden", torch.relu(x))
        return mark("logits", self.last(mark("norm", self.norm(x))))


def recurrent(fused: bool, perturbed: bool) -> Case:
    """Recurrent layers."""
    return Recurrent(fused, perturbed), (normal(STEPS, 4, WIDTH),), {}


PAIRS = (
    both("towers/two-inputs", partial(two_towers, False, "left"), partial(two_towers, True, "left"))
    | both("towers/other-order", partial(two_towers, False, "left"), partial(two_towers, True, "right"))
    | both(
        "towers/one-input",
        partial(two_towers, False, "left", same_input=True),
        partial(two_towers, True, "left", same_input=True),
    )
    | both(
        "towers/one-weight",
        partial(two_towers, False, "left", same_weights=True),
        partial(two_towers, True, "right", same_weights=True),
    )
    | both("auxiliary/early-late", partial(auxiliary, False, True), partial(auxiliary, True, False))
    | both("tied/separate-joined", partial(tied, False), partial(tied, True))
    | both("steps/at_once-loop", partial(steps, False), partial(steps, True))
    | both("recurrent/loop-one_operator", partial(recurrent, False), partial(recurrent, True))
)
