"""Gathers and scatters against dense operators: a graph network, a recommender, the sampling end of a language model.

Labels follow from how the programs are built.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs.building import Case, both, integers, normal, prepared, seeded

WIDTH, VOCABULARY = 64, 120


class GraphNetwork(nn.Module):
    """Means over neighbours in a graph: messages gathered and scattered, or a product with the adjacency."""

    nodes = 14

    def __init__(self, dense: bool, perturbed: bool) -> None:
        super().__init__()
        self.dense = dense
        with seeded():
            self.messages = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
            self.own = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
            self.head = nn.Linear(32, 24)
        prepared(self, perturbed)
        edges = torch.rand(self.nodes, self.nodes, generator=torch.Generator().manual_seed(5)) < 0.3
        adjacency = edges.float().fill_diagonal_(1)
        target, source = adjacency.nonzero(as_tuple=True)
        degree = adjacency.sum(1, keepdim=True)
        self.register_buffer("adjacency", adjacency / degree)
        self.register_buffer("target", target)
        self.register_buffer("source", source)
        self.register_buffer("degree", degree)

    def mean(self, x: Tensor) -> Tensor:
        """Means over neighbours; (nodes, width)."""
        if self.dense:
            return self.adjacency @ x
        return torch.zeros_like(x).index_add(0, self.target, x[self.source]) / self.degree

    def forward(self, x: Tensor) -> Tensor:
        """Map (nodes, width) to logits."""
        for i, (message, own) in enumerate(zip(self.messages, self.own, strict=True)):
            y = mark(f"{i}.mean", self.mean(mark(f"{i}.message", message(x))))
            x = mark(f"{i}.layer", F.relu(mark(f"{i}.sum", y + mark(f"{i}.own", own(x)))))
        return mark("logits", self.head(x))


def graph(dense: bool, perturbed: bool) -> Case:
    """The graph network in one of its forms."""
    return GraphNetwork(dense, perturbed), (normal(GraphNetwork.nodes, 32),), {}


class Recommender(nn.Module):
    """Bags of embeddings and products of all pairs of them: in one operator each, or a look-up, a sum and pair by pair."""

    tables_count = 4

    def __init__(self, fused: bool, perturbed: bool) -> None:
        super().__init__()
        self.fused = fused
        with seeded():
            self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
            self.tables = nn.ModuleList(nn.Embedding(50, 16) for _ in range(self.tables_count))
            self.top = nn.Sequential(nn.Linear(26, 32), nn.ReLU(), nn.Linear(32, 4))
        prepared(self, perturbed)

    def bag(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        """Sums of the rows of a table; (batch, ids) to (batch, width)."""
        return F.embedding_bag(ids, table.weight, mode="sum") if self.fused else table(ids).sum(1)

    def dots(self, parts: list[Tensor]) -> Tensor:
        """Products of every two of n tensors (batch, width); (batch, n * (n - 1) / 2)."""
        n = len(parts)
        if self.fused:
            stacked = torch.stack(parts, 1)
            rows, columns = torch.tril_indices(n, n, -1)
            return torch.bmm(stacked, stacked.transpose(1, 2))[:, rows, columns]
        return torch.stack([(parts[i] * parts[j]).sum(-1) for i in range(n) for j in range(i)], -1)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        """Map features (batch, 13) and ids (tables, batch, ids) to (batch, 4)."""
        dense = mark("bottom", self.bottom(x))
        bags = [mark(f"bag{i}", self.bag(table, ids[i])) for i, table in enumerate(self.tables)]
        return mark("out", self.top(torch.cat((dense, mark("dots", self.dots([dense, *bags]))), -1)))


def recommender(fused: bool, perturbed: bool) -> Case:
    """The recommender in one of its forms."""
    return Recommender(fused, perturbed), (normal(20, 13), integers(50, 4, 20, 3)), {}


class Sampler(nn.Module):
    """The end of a language model: the k best kept by a threshold, or by gathering and scattering; a smoothed loss."""

    k, smoothing = 12, 0.1

    def __init__(self, threshold: bool, perturbed: bool) -> None:
        super().__init__()
        self.threshold = threshold
        with seeded():
            self.first, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, VOCABULARY)
        prepared(self, perturbed)

    def forward(self, x: Tensor, noise: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map (rows, width), noise (rows, vocabulary) and targets (rows,) to cumulative and noisy probabilities and losses."""
        x = mark("hidden", torch.tanh(mark("first", self.first(x))))
        logits = mark("logits", self.head(mark("norm", self.norm(x))))
        scaled = mark("scaled", logits / 0.7)
        if self.threshold:
            least = scaled.topk(self.k).values[:, -1:]
            p = scaled.masked_fill(scaled < least, float("-inf")).softmax(-1)
            loss = F.cross_entropy(logits, targets, label_smoothing=self.smoothing, reduction="none")
        else:
            best, where = scaled.topk(self.k)
            p = torch.zeros_like(scaled).scatter(1, where, best.softmax(-1))
            logs = logits - logits.logsumexp(-1, keepdim=True)
            loss = -(1 - self.smoothing) * logs.gather(1, targets[:, None])[:, 0] - self.smoothing * logs.mean(-1)
        p = mark("probabilities", p)
        chosen = mark("noisy", p / noise)
        return mark("cumulative", p.cumsum(-1)), chosen, mark("loss", loss)


def sampler(threshold: bool, perturbed: bool) -> Case:
    """The end of a language model in one of its forms."""
    inputs = normal(20, WIDTH), normal(20, VOCABULARY, seed=61).abs() + 0.1, integers(VOCABULARY, 20)
    return Sampler(threshold, perturbed), inputs, {}


PAIRS = (
    both("gnn/scatter-dense", partial(graph, False), partial(graph, True))
    | both("dlrm/bags-steps", partial(recommender, True), partial(recommender, False))
    | both("sampler/threshold-scatter", partial(sampler, True), partial(sampler, False))
)
