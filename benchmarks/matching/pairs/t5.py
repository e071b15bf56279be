"""T5, an encoder and a decoder with relative positions: Transformers eager and SDPA, and a joined one by hand."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs.building import (
    Case,
    Output,
    both,
    causal_bias,
    integers,
    mark_attentions,
    mark_input,
    merge_heads,
    prepared,
    seeded,
    split_heads,
)

LAYERS, HEADS, WIDTH, HEAD_WIDTH, MLP_WIDTH, VOCABULARY, BATCH, SOURCE, TARGET = 3, 4, 64, 16, 96, 120, 2, 11, 9


def transformers_t5(implementation: str, perturbed: bool) -> T5ForConditionalGeneration:
    """The model as Transformers builds it."""
    config = T5Config(
        num_layers=LAYERS,
        num_decoder_layers=LAYERS,
        num_heads=HEADS,
        d_model=WIDTH,
        d_kv=HEAD_WIDTH,
        d_ff=MLP_WIDTH,
        vocab_size=VOCABULARY,
        feed_forward_proj="gated-gelu",
        attn_implementation=implementation,
        use_cache=False,
    )
    with seeded():
        model = T5ForConditionalGeneration(config)
    prepared(model, perturbed)
    return model


def inputs() -> tuple[Tensor, Tensor]:
    """Ids of the source and of the target."""
    return integers(VOCABULARY, BATCH, SOURCE), integers(VOCABULARY, BATCH, TARGET, seed=99)


def by_transformers(implementation: str, perturbed: bool) -> Case:
    """Transformers' T5."""
    model = transformers_t5(f"marked_{implementation}", perturbed)
    labels = {"model.lm_head": "logits"}
    prefixes = {}
    for side in ("encoder", "decoder"):
        stack = getattr(model, side)
        labels[f"model.{side}.final_layer_norm"] = f"{side}.norm"
        for i, block in enumerate(stack.block):
            name = f"{side}.{i}"
            sublayers = (
                {"self": "SelfAttention", "cross": "EncDecAttention"}
                if side == "decoder"
                else {"self": "SelfAttention"}
            )
            for j, (kind, attribute) in enumerate(sublayers.items()):
                path = f"{side}.block.{i}.layer.{j}"
                labels |= {
                    f"model.{path}.layer_norm": f"{name}.{kind}.norm",
                    f"model.{path}.{attribute}.o": f"{name}.{kind}.out",
                    f"model.{path}": f"{name}.{kind}.sum",
                }
                prefixes[f"{path}.{attribute}"] = f"{name}.{kind}"
            path = f"model.{side}.block.{i}.layer.{len(sublayers)}"
            labels |= {
                f"{path}.layer_norm": f"{name}.mlp.norm",
                f"{path}.DenseReluDense.wi_0": f"{name}.mlp.gate",
                f"{path}.DenseReluDense.act": f"{name}.mlp.activated",
                f"{path}.DenseReluDense.wi_1": f"{name}.mlp.up",
                f"{path}.DenseReluDense.wo": f"{name}.mlp.down",
                path: f"{name}.layer",
            }
            mark_input(block.layer[-1].DenseReluDense.wo, f"{name}.mlp.hidden")
    mark_attentions(model, prefixes)
    return Output(model, "input_ids", "decoder_input_ids", field="logits"), inputs(), labels


class Attention(nn.Module):
    """Attention whose projections of the same input are one product."""

    def __init__(self, theirs: nn.Module, name: str, cross: bool) -> None:
        super().__init__()
        self.name, self.cross = name, cross
        parts = [theirs.k, theirs.v] if cross else [theirs.q, theirs.k, theirs.v]
        self.joined = nn.Parameter(torch.cat([p.weight for p in parts]).detach())
        self.q = theirs.q if cross else None
        self.o = theirs.o

    def forward(self, x: Tensor, source: Tensor, bias: Tensor | None) -> Tensor:
        """Map (batch, tokens, width) to the same shape; queries of ``x``, keys and values of ``source``."""
        name = self.name
        if self.cross:
            q, (k, v) = self.q(x), F.linear(source, self.joined).chunk(2, dim=-1)
        else:
            q, k, v = F.linear(source, self.joined).chunk(3, dim=-1)
        q, k, v = mark(f"{name}.q", q), mark(f"{name}.k", k), mark(f"{name}.v", v)
        q, k, v = split_heads(q, HEADS), split_heads(k, HEADS), split_heads(v, HEADS)
        context = mark(f"{name}.context", F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0))
        return mark(f"{name}.out", self.o(merge_heads(context)))


class Layer(nn.Module):
    """One layer of either side."""

    def __init__(self, theirs: nn.Module, name: str) -> None:
        super().__init__()
        self.name = name
        self.norms = nn.ParameterList(part.layer_norm.weight for part in theirs.layer)
        self.own = Attention(theirs.layer[0].SelfAttention, f"{name}.self", False)
        self.cross = (
            Attention(theirs.layer[1].EncDecAttention, f"{name}.cross", True) if len(theirs.layer) == 3 else None
        )
        mlp = theirs.layer[-1].DenseReluDense
        self.gate_up = nn.Parameter(torch.cat([mlp.wi_0.weight, mlp.wi_1.weight]).detach())
        self.down = mlp.wo

    def normed(self, x: Tensor, which: int, name: str) -> Tensor:
        """One of the layer's root-mean-square norms, as one operator."""
        return mark(f"{name}.norm", F.rms_norm(x, (WIDTH,), self.norms[which], 1e-6))

    def forward(self, x: Tensor, bias: Tensor, source: Tensor | None) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        name = self.name
        y = self.normed(x, 0, f"{name}.self")
        x = mark(f"{name}.self.sum", x + self.own(y, y, bias))
        if self.cross is not None and source is not None:
            x = mark(f"{name}.cross.sum", x + self.cross(self.normed(x, 1, f"{name}.cross"), source, None))
        gate, up = F.linear(self.normed(x, -1, f"{name}.mlp"), self.gate_up).chunk(2, dim=-1)
        activated = mark(f"{name}.mlp.activated", F.gelu(mark(f"{name}.mlp.gate", gate), approximate="tanh"))
        hidden = mark(f"{name}.mlp.hidden", activated * mark(f"{name}.mlp.up", up))
        return mark(f"{name}.layer", x + mark(f"{name}.mlp.down", self.down(hidden)))


class JoinedT5(nn.Module):
    """T5 with joined projections and position biases from a table made once."""

    def __init__(self, perturbed: bool) -> None:
        super().__init__()
        model = transformers_t5("eager", perturbed)
        self.token, self.head = model.shared, model.lm_head
        self.sides = nn.ModuleDict()
        self.norms = nn.ParameterDict()
        self.scale = WIDTH**-0.5 if model.config.tie_word_embeddings else 1.0
        for side, length in (("encoder", SOURCE), ("decoder", TARGET)):
            stack = getattr(model, side)
            self.sides[side] = nn.ModuleList(Layer(block, f"{side}.{i}") for i, block in enumerate(stack.block))
            self.norms[side] = stack.final_layer_norm.weight
            with torch.no_grad():
                bias = stack.block[0].layer[0].SelfAttention.compute_bias(length, length)
                self.register_buffer(f"{side}_bias", bias + causal_bias(length) if side == "decoder" else bias)

    def run(self, side: str, ids: Tensor, source: Tensor | None) -> Tensor:
        """Run one side; returns (batch, tokens, width)."""
        x = self.token(ids)
        for layer in self.sides[side]:
            x = layer(x, getattr(self, f"{side}_bias"), source)
        return mark(f"{side}.norm", F.rms_norm(x, (WIDTH,), self.norms[side], 1e-6))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map ids of source and target to logits (batch, target tokens, vocabulary)."""
        x = self.run("decoder", target, self.run("encoder", source, None))
        return mark("logits", self.head(x * self.scale if self.scale != 1.0 else x))


def joined(perturbed: bool) -> Case:
    """The hand-written version."""
    return JoinedT5(perturbed).eval(), inputs(), {}


eager, sdpa = partial(by_transformers, "eager"), partial(by_transformers, "sdpa")

PAIRS = both("t5/eager-sdpa", eager, sdpa) | both("t5/eager-joined", eager, joined)
