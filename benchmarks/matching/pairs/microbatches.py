"""A training step over the whole batch or over parts of it, with activations kept or computed again.

Labels follow from how the programs are built.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs.building import Case, both, integers, normal, perturb, seeded


class Learner(nn.Module):
    """Residual layers of norm, product, activation, product."""

    def __init__(self, perturbed: bool, checkpointed: bool) -> None:
        super().__init__()
        self.checkpointed, self.heard = checkpointed, True
        with seeded():
            self.norms = nn.ModuleList(nn.LayerNorm(48) for _ in range(3))
            self.ups = nn.ModuleList(nn.Linear(48, 96) for _ in range(3))
            self.downs = nn.ModuleList(nn.Linear(96, 48) for _ in range(3))
            self.head = nn.Linear(48, 24)
        if perturbed:
            perturb(self)

    def say(self, name: str, x: Tensor) -> Tensor:
        """Mark in the forward pass only, not where it is done again."""
        return mark(name, x) if self.heard else x

    def block(self, i: int, x: Tensor) -> Tensor:
        """A residual layer on (rows, width)."""
        y = self.say(f"{i}.up", self.ups[i](self.say(f"{i}.norm", self.norms[i](x))))
        return x + self.say(f"{i}.down", self.downs[i](self.say(f"{i}.hidden", F.gelu(y))))

    def forward(self, x: Tensor) -> Tensor:
        """Map (rows, width) to logits."""
        for i in range(3):
            if self.checkpointed:
                x = checkpoint(self.block, i, x, use_reentrant=False, preserve_rng_state=False)
            else:
                x = self.block(i, x)
            mark(f"{i}.layer", x)
        return mark("logits", self.head(x))


class TrainStep:
    """A step over the whole batch or over parts whose gradients add up."""

    def __init__(self, model: Learner, parts: int) -> None:
        self.model, self.parts = model, parts
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def __call__(self, x: Tensor, targets: Tensor) -> Tensor:
        """Run the step and return the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros(())
        for part, wanted in zip(x.chunk(self.parts), targets.chunk(self.parts), strict=True):
            self.model.heard = True
            loss = F.cross_entropy(self.model(part), wanted) / self.parts
            self.model.heard = False
            loss.backward()
            total = total + loss.detach()
        for name, p in self.model.named_parameters():
            mark(f"gradient of {name}", p.grad)
        self.optimizer.step()
        for name, p in self.model.named_parameters():
            mark(f"new {name}", p)
        return total


def training(parts: int, checkpointed: bool, perturbed: bool) -> Case:
    """A training step in ``parts``, checkpointed or not."""
    model = Learner(perturbed, checkpointed).train()
    return TrainStep(model, parts), (normal(16, 48), integers(24, 16)), {}


PAIRS = both("training/whole-microbatches", partial(training, 1, False), partial(training, 2, False))
PAIRS |= both("training/checkpointed-plain", partial(training, 1, True), partial(training, 1, False))
