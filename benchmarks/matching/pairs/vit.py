"""ViT: Transformers eager and SDPA, and by hand with patches cut out by reshaping instead of a convolution."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs.building import (
    Case,
    Output,
    both,
    mark_attentions,
    mark_input,
    merge_heads,
    normal,
    prepared,
    seeded,
)

LAYERS, HEADS, WIDTH, IMAGE, PATCH, BATCH, CLASSES = 4, 4, 64, 24, 8, 2, 40


def transformers_vit(implementation: str, perturbed: bool) -> ViTForImageClassification:
    """The model as Transformers builds it."""
    config = ViTConfig(
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        image_size=IMAGE,
        patch_size=PATCH,
        attn_implementation=implementation,
        num_labels=CLASSES,
    )
    with seeded():
        model = ViTForImageClassification(config)
    prepared(model, perturbed)
    return model


def images() -> tuple[Tensor]:
    """A batch of images (batch, 3, height, width)."""
    return (normal(BATCH, 3, IMAGE, IMAGE),)


def by_transformers(implementation: str, perturbed: bool) -> Case:
    """Transformers' ViT."""
    model = transformers_vit(f"marked_{implementation}", perturbed)
    labels = {
        "model.vit.embeddings.patch_embeddings": "patches",
        "model.vit.embeddings.dropout": "embedding",
        "model.vit.layernorm": "norm",
        "model.classifier": "logits",
    }
    for i, layer in enumerate(model.vit.layers):
        path = f"model.vit.layers.{i}"
        labels |= {
            f"{path}.layernorm_before": f"{i}.norm1",
            f"{path}.attention.o_proj": f"{i}.attention",
            f"{path}.layernorm_after": f"{i}.norm2",
            f"{path}.mlp.fc1": f"{i}.up",
            f"{path}.mlp.activation_fn": f"{i}.hidden",
            f"{path}.mlp.fc2": f"{i}.mlp",
            path: f"{i}.layer",
        }
        mark_input(layer.layernorm_after, f"{i}.middle")
    mark_attentions(model, {f"vit.layers.{i}.attention": f"{i}" for i in range(LAYERS)})
    return Output(model, "pixel_values", field="logits"), images(), labels


class Layer(nn.Module):
    """One layer with a joined projection."""

    def __init__(self, index: int, theirs: nn.Module) -> None:
        super().__init__()
        self.index = index
        parts = [theirs.attention.q_proj, theirs.attention.k_proj, theirs.attention.v_proj]
        self.weight = nn.Parameter(torch.cat([p.weight for p in parts]).detach())
        self.bias = nn.Parameter(torch.cat([p.bias for p in parts]).detach())
        self.norm1, self.norm2, self.out = theirs.layernorm_before, theirs.layernorm_after, theirs.attention.o_proj
        self.up, self.down = theirs.mlp.fc1, theirs.mlp.fc2

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        i, (batch, length, _) = self.index, x.shape
        y = mark(f"{i}.norm1", self.norm1(x))
        qkv = F.linear(y, self.weight, self.bias).view(batch, length, 3, HEADS, -1).transpose(1, 3)
        q, k, v = (mark(f"{i}.{name}", part) for name, part in zip("qkv", qkv.unbind(2), strict=True))
        context = mark(f"{i}.context", F.scaled_dot_product_attention(q, k, v))
        x = mark(f"{i}.middle", mark(f"{i}.attention", self.out(merge_heads(context))) + x)
        hidden = mark(f"{i}.hidden", F.gelu(mark(f"{i}.up", self.up(mark(f"{i}.norm2", self.norm2(x))))))
        return mark(f"{i}.layer", mark(f"{i}.mlp", self.down(hidden)) + x)


class PatchedViT(nn.Module):
    """ViT that cuts patches by reshaping and projects them with one product."""

    def __init__(self, perturbed: bool) -> None:
        super().__init__()
        model = transformers_vit("eager", perturbed)
        theirs = model.vit.embeddings
        projection = theirs.patch_embeddings.projection
        self.patch = nn.Parameter(projection.weight.detach().flatten(1))
        self.patch_bias = projection.bias
        self.first, self.position = theirs.cls_token, theirs.position_embeddings
        self.layers = nn.ModuleList(Layer(i, layer) for i, layer in enumerate(model.vit.layers))
        self.norm, self.classifier = model.vit.layernorm, model.classifier

    def forward(self, pixels: Tensor) -> Tensor:
        """Map (batch, 3, height, width) to logits (batch, classes)."""
        grid = IMAGE // PATCH
        cut = (
            pixels.view(-1, 3, grid, PATCH, grid, PATCH)
            .permute(0, 2, 4, 1, 3, 5)
            .reshape(-1, grid * grid, 3 * PATCH**2)
        )
        patches = mark("patches", F.linear(cut, self.patch, self.patch_bias))
        x = mark("embedding", torch.cat((self.first.expand(len(pixels), -1, -1), patches), dim=1) + self.position)
        for layer in self.layers:
            x = layer(x)
        return mark("logits", self.classifier(mark("norm", self.norm(x))[:, 0]))


def patched(perturbed: bool) -> Case:
    """The hand-written version."""
    return PatchedViT(perturbed).eval(), images(), {}


eager, sdpa = partial(by_transformers, "eager"), partial(by_transformers, "sdpa")

PAIRS = both("vit/eager-sdpa", eager, sdpa) | both("vit/eager-patched", eager, patched)
