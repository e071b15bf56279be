"""A training step: forward, loss, backward, update; written with single operators against fused ones."""

from __future__ import annotations

from collections.abc import Callable
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
    integers,
    merge_heads,
    normal,
    perturb,
    seeded,
    split_heads,
)

LAYERS, HEADS, WIDTH, VOCABULARY, BATCH, TOKENS, CLASSES = 2, 4, 48, 80, 3, 8, 24


class Block(nn.Module):
    """A transformer layer without biases in front of softmax, whose gradients would be noise around zero."""

    def __init__(self, index: int, fused: bool) -> None:
        super().__init__()
        self.index, self.fused = index, fused
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def attend(self, y: Tensor) -> Tensor:
        """Causal attention; (batch, tokens, width)."""
        i = self.index
        if self.fused:
            q, k, v = (split_heads(part, HEADS) for part in self.qkv(y).chunk(3, dim=-1))
        else:
            q, k, v = (split_heads(F.linear(y, weight), HEADS) for weight in self.qkv.weight.chunk(3))
        q, k, v = mark(f"{i}.q", q), mark(f"{i}.k", k), mark(f"{i}.v", v)
        if self.fused:
            return merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return merge_heads(eager_attention(q, k, v, causal_bias(y.shape[1])))

    def activate(self, y: Tensor) -> Tensor:
        """GELU in the tanh form."""
        if self.fused:
            return F.gelu(y, approximate="tanh")
        return 0.5 * y * (1.0 + torch.tanh(0.7978845608028654 * (y + 0.044715 * y * y * y)))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        i = self.index
        y = mark(f"{i}.context", self.attend(mark(f"{i}.norm1", self.norm1(x))))
        x = mark(f"{i}.middle", x + mark(f"{i}.attention", self.out(y)))
        hidden = mark(f"{i}.hidden", self.activate(mark(f"{i}.up", self.up(mark(f"{i}.norm2", self.norm2(x))))))
        return mark(f"{i}.layer", x + mark(f"{i}.mlp", self.down(hidden)))


class Language(nn.Module):
    """A small language model."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block(i, fused) for i in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, tokens) to logits."""
        x = mark("embedding", self.token(ids) + self.position.weight)
        for block in self.blocks:
            x = block(x)
        return mark("logits", self.head(mark("norm", self.norm(x))))


class Classifier(nn.Module):
    """A plain network with an activation per layer."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Map (rows, width) to logits."""
        for i, layer in enumerate(self.layers):
            y = mark(f"{i}.product", layer(x) if self.fused else x @ layer.weight.T + layer.bias)
            x = mark(f"{i}.hidden", F.silu(y) if self.fused else y * torch.sigmoid(y))
        return mark("logits", self.head(x))


class Step:
    """One training step over ``model``: callable on inputs and targets."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, fused: bool) -> None:
        self.model, self.optimizer, self.fused = model, optimizer, fused

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy."""
        logits, targets = logits.flatten(0, -2), targets.flatten()
        if self.fused:
            return F.cross_entropy(logits, targets)
        logarithms = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
        return -logarithms.gather(1, targets[:, None]).mean()

    def __call__(self, x: Tensor, targets: Tensor) -> Tensor:
        """Run the step and return the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.model(x), targets)
        loss.backward()
        for name, parameter in self.model.named_parameters():
            mark(f"gradient of {name}", parameter.grad)
        self.optimizer.step()
        for name, parameter in self.model.named_parameters():
            mark(f"new {name}", parameter)
        return loss


Optimizers = Callable[[nn.Module, bool], torch.optim.Optimizer]


def sgd(model: nn.Module, fused: bool) -> torch.optim.Optimizer:
    """Momentum, one parameter after the other or all in lists."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, foreach=fused)


def adam(model: nn.Module, fused: bool) -> torch.optim.Optimizer:
    """AdamW; its ``eps`` is far above the noise of the gradients, whose sign would otherwise be amplified."""
    return torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4, foreach=fused)


def training(kind: type[Language] | type[Classifier], optimizer: Optimizers, fused: bool, perturbed: bool) -> Case:
    """A training step of one model with one optimizer."""
    with seeded():
        model = kind(fused)
    if perturbed:
        perturb(model)
    if kind is Language:
        inputs = integers(VOCABULARY, BATCH, TOKENS), integers(VOCABULARY, BATCH, TOKENS, seed=21)
    else:
        inputs = normal(20, WIDTH), integers(CLASSES, 20)
    return Step(model.train(), optimizer(model, fused), fused), inputs, {}


PAIRS = (
    {
        "training/classifier-sgd": (
            partial(training, Classifier, sgd, False, False),
            partial(training, Classifier, sgd, True, False),
        )
    }
    | both("training/language-sgd", partial(training, Language, sgd, False), partial(training, Language, sgd, True))
    | both("training/language-adamw", partial(training, Language, adam, False), partial(training, Language, adam, True))
)
