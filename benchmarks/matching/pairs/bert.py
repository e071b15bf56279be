"""BERT with padded sequences: Transformers, joined projections by hand, and PyTorch's one-operator encoder layer."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs.building import (
    Case,
    Output,
    both,
    integers,
    mark_attentions,
    mark_input,
    merge_heads,
    prepared,
    seeded,
    split_heads,
)

LAYERS, HEADS, WIDTH, VOCABULARY, BATCH, TOKENS = 4, 4, 64, 136, 3, 10
EPS = 1e-12


def transformers_bert(implementation: str, perturbed: bool) -> BertForMaskedLM:
    """The model as Transformers builds it."""
    config = BertConfig(
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=TOKENS,
        vocab_size=VOCABULARY,
        attn_implementation=implementation,
        pad_token_id=None,
    )
    with seeded():
        model = BertForMaskedLM(config)
    prepared(model, perturbed)
    return model


def inputs() -> tuple[Tensor, Tensor]:
    """Ids, and which of them are tokens (1) rather than padding (0)."""
    mask = torch.ones(BATCH, TOKENS, dtype=torch.int64)
    mask[1, 7:] = 0
    mask[2, 4:] = 0
    return integers(VOCABULARY, BATCH, TOKENS), mask


def by_transformers(implementation: str, perturbed: bool) -> Case:
    """Transformers' BERT."""
    model = transformers_bert(f"marked_{implementation}", perturbed)
    encoder = "model.bert.encoder"
    labels = {
        "model.bert.embeddings.word_embeddings": "tokens",
        "model.bert.embeddings.LayerNorm": "embedding",
        "model.cls.predictions.transform": "transformed",
        "model.cls.predictions.decoder": "logits",
    }
    for i, layer in enumerate(model.bert.encoder.layer):
        path = f"{encoder}.layer.{i}"
        labels |= {
            f"{path}.attention.output.dense": f"{i}.attention",
            f"{path}.attention.output.LayerNorm": f"{i}.middle",
            f"{path}.intermediate.dense": f"{i}.up",
            f"{path}.intermediate": f"{i}.hidden",
            f"{path}.output.dense": f"{i}.mlp",
            f"{path}.output.LayerNorm": f"{i}.layer",
        }
        mark_input(layer.attention.output.LayerNorm, f"{i}.sum1")
        mark_input(layer.output.LayerNorm, f"{i}.sum2")
    mark_input(model.bert.embeddings.LayerNorm, "embedding_sum")
    mark_attentions(model, {f"bert.encoder.layer.{i}.attention.self": f"{i}" for i in range(LAYERS)})
    return Output(model, "input_ids", "attention_mask", field="logits"), inputs(), labels


class Embedding(nn.Module):
    """Word, position and type embeddings behind one norm; one addition of a table made once."""

    def __init__(self, model: BertForMaskedLM) -> None:
        super().__init__()
        theirs = model.bert.embeddings
        self.word = theirs.word_embeddings
        self.norm = theirs.LayerNorm
        self.table = nn.Parameter(
            theirs.position_embeddings.weight.detach() + theirs.token_type_embeddings.weight[0].detach()
        )

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, tokens) to (batch, tokens, width)."""
        words = mark("tokens", self.word(ids))
        return mark("embedding", self.norm(mark("embedding_sum", words + self.table[: ids.shape[1]])))


class Head(nn.Module):
    """The language-model head."""

    def __init__(self, model: BertForMaskedLM) -> None:
        super().__init__()
        theirs = model.cls.predictions
        self.dense, self.norm, self.decoder = theirs.transform.dense, theirs.transform.LayerNorm, theirs.decoder

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to logits."""
        return mark("logits", self.decoder(mark("transformed", self.norm(F.gelu(self.dense(x))))))


class JoinedLayer(nn.Module):
    """One layer with q, k, v in one product and attention in one operator."""

    def __init__(self, index: int, theirs: nn.Module) -> None:
        super().__init__()
        self.index = index
        parts = [theirs.attention.self.query, theirs.attention.self.key, theirs.attention.self.value]
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.qkv.weight = nn.Parameter(torch.cat([p.weight for p in parts]).detach())
        self.qkv.bias = nn.Parameter(torch.cat([p.bias for p in parts]).detach())
        self.out, self.norm1 = theirs.attention.output.dense, theirs.attention.output.LayerNorm
        self.up, self.down, self.norm2 = theirs.intermediate.dense, theirs.output.dense, theirs.output.LayerNorm

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape; mask (batch, 1, 1, tokens) is added to the scores."""
        i = self.index
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = mark(f"{i}.q", q), mark(f"{i}.k", k), mark(f"{i}.v", v)
        q, k, v = split_heads(q, HEADS), split_heads(k, HEADS), split_heads(v, HEADS)
        context = mark(f"{i}.context", F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        attention = mark(f"{i}.attention", self.out(merge_heads(context)))
        x = mark(f"{i}.middle", self.norm1(mark(f"{i}.sum1", x + attention)))
        hidden = mark(f"{i}.hidden", F.gelu(mark(f"{i}.up", self.up(x))))
        return mark(f"{i}.layer", self.norm2(mark(f"{i}.sum2", x + mark(f"{i}.mlp", self.down(hidden)))))


class JoinedBert(nn.Module):
    """BERT with joined projections."""

    def __init__(self, perturbed: bool) -> None:
        super().__init__()
        model = transformers_bert("eager", perturbed)
        self.embedding, self.head = Embedding(model), Head(model)
        self.layers = nn.ModuleList(JoinedLayer(i, layer) for i, layer in enumerate(model.bert.encoder.layer))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Map ids and mask (batch, tokens) to logits."""
        x = self.embedding(ids)
        added = torch.zeros(mask.shape).masked_fill(mask == 0, float("-inf"))[:, None, None, :]
        for layer in self.layers:
            x = layer(x, added)
        return self.head(x)


class OneOperatorBert(nn.Module):
    """BERT on ``nn.TransformerEncoderLayer``, which runs as one operator in inference."""

    def __init__(self, perturbed: bool) -> None:
        super().__init__()
        model = transformers_bert("eager", perturbed)
        self.embedding, self.head = Embedding(model), Head(model)
        self.layers = nn.ModuleList()
        for theirs in model.bert.encoder.layer:
            joined = JoinedLayer(0, theirs)
            layer = nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", layer_norm_eps=EPS, batch_first=True
            )
            layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias = joined.qkv.weight, joined.qkv.bias
            layer.self_attn.out_proj.weight, layer.self_attn.out_proj.bias = joined.out.weight, joined.out.bias
            layer.linear1, layer.linear2 = joined.up, joined.down
            layer.norm1, layer.norm2 = joined.norm1, joined.norm2
            self.layers.append(layer)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Map ids and mask (batch, tokens) to logits."""
        x = self.embedding(ids)
        for i, layer in enumerate(self.layers):
            x = mark(f"{i}.layer", layer(x, src_key_padding_mask=mask == 0))
        return self.head(x)


def joined(perturbed: bool) -> Case:
    """The version with joined projections."""
    return JoinedBert(perturbed).eval(), inputs(), {}


def one_operator(perturbed: bool) -> Case:
    """The version with one operator per layer."""
    return OneOperatorBert(perturbed).eval(), inputs(), {}


eager, sdpa = partial(by_transformers, "eager"), partial(by_transformers, "sdpa")

PAIRS = (
    both("bert/eager-sdpa", eager, sdpa)
    | both("bert/eager-joined", eager, joined)
    | both("bert/sdpa-one_operator", sdpa, one_operator)
)
