"""Convolutional networks against products, shifted sums and strided writes: ConvNeXt, MobileNet, super-resolution.

Labels follow from how the programs are built.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs.building import Case, both, normal, prepared, seeded
from benchmarks.matching.pairs.controls import control, other_weights

BATCH = 2


class ConvNeXt(nn.Module):
    """Blocks in channels-last with products, or channels-first with 1x1 convolutions and the norm in steps."""

    def __init__(self, last: bool, perturbed: bool) -> None:
        super().__init__()
        self.last = last
        with seeded():
            self.stem = nn.Conv2d(3, 32, 4, 4)
            self.widths = (32, 48)
            self.depth = nn.ModuleList(nn.Conv2d(w, w, 7, padding=3, groups=w) for w in (32, 32, 48, 48))
            self.norms = nn.ModuleList(nn.LayerNorm(w) for w in (32, 32, 48, 48))
            self.ups = nn.ModuleList(nn.Linear(w, 4 * w) for w in (32, 32, 48, 48))
            self.downs = nn.ModuleList(nn.Linear(4 * w, w) for w in (32, 32, 48, 48))
            self.scales = nn.ParameterList(torch.full((w,), 0.5) for w in (32, 32, 48, 48))
            self.between, self.shrink = nn.LayerNorm(32), nn.Conv2d(32, 48, 2, 2)
            self.final, self.head = nn.LayerNorm(48), nn.Linear(48, 40)
        prepared(self, perturbed)

    def normed(self, norm: nn.LayerNorm, x: Tensor) -> Tensor:
        """Over the channels of (batch, channels, height, width)."""
        if self.last:
            return norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        centred = x - x.mean(1, keepdim=True)
        scaled = centred / torch.sqrt(centred.pow(2).mean(1, keepdim=True) + norm.eps)
        return scaled * norm.weight[:, None, None] + norm.bias[:, None, None]

    def affine(self, linear: nn.Linear, x: Tensor) -> Tensor:
        """A product over the channels of (batch, channels, height, width)."""
        if self.last:
            return linear(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return F.conv2d(x, linear.weight[:, :, None, None], linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 3, height, width) to logits."""
        x = mark("stem", self.stem(x))
        for i in range(4):
            if i == 2:
                y = mark("between", self.normed(self.between, x))
                if self.last:
                    x = self.shrink(y)
                else:
                    cut = F.pixel_unshuffle(y, 2)
                    x = F.conv2d(cut, self.shrink.weight.reshape(48, 128, 1, 1), self.shrink.bias)
                x = mark("shrunk", x)
            y = mark(f"{i}.conv", self.depth[i](x))
            y = mark(f"{i}.norm", self.normed(self.norms[i], y))
            y = mark(f"{i}.hidden", F.gelu(mark(f"{i}.up", self.affine(self.ups[i], y))))
            y = mark(f"{i}.down", self.affine(self.downs[i], y))
            x = mark(f"{i}.layer", x + mark(f"{i}.scaled", y * self.scales[i][:, None, None]))
        x = mark("pooled", x.mean((2, 3)))
        return mark("logits", self.head(mark("norm", self.final(x))))


def convnext(last: bool, perturbed: bool) -> Case:
    """ConvNeXt in one of its layouts."""
    return ConvNeXt(last, perturbed), (normal(BATCH, 3, 32, 32),), {}


class Mobile(nn.Module):
    """Inverted residuals: convolutions and norms as modules, or folded, written as shifted sums and products."""

    def __init__(self, modules: bool, perturbed: bool) -> None:
        super().__init__()
        self.modules_style = modules
        n, wide = 2, 72
        with seeded():
            self.stem = nn.Conv2d(3, 24, 3, 2, 1)
            self.expand = nn.ModuleList(nn.Conv2d(24, wide, 1, bias=False) for _ in range(n))
            self.depth = nn.ModuleList(nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False) for _ in range(n))
            self.squeeze = nn.ModuleList(nn.Conv2d(wide, 16, 1) for _ in range(n))
            self.excite = nn.ModuleList(nn.Conv2d(16, wide, 1) for _ in range(n))
            self.project = nn.ModuleList(nn.Conv2d(wide, 24, 1, bias=False) for _ in range(n))
            self.norms = nn.ModuleList(nn.BatchNorm2d(w) for _ in range(n) for w in (wide, wide, 24))
            self.head = nn.Linear(24, 40)
        prepared(self, perturbed)
        if not modules:
            with torch.no_grad():
                for i in range(n):
                    for j, conv in enumerate((self.expand[i], self.depth[i], self.project[i])):
                        norm = self.norms[3 * i + j]
                        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
                        conv.weight.mul_(scale[:, None, None, None])
                        conv.bias = nn.Parameter((norm.bias - norm.running_mean * scale).clone())

    def pointwise(self, conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
        """A 1x1 convolution and its norm; (batch, channels, height, width)."""
        if self.modules_style:
            return norm(conv(x))
        return torch.einsum("oc,bchw->bohw", conv.weight.flatten(1), x) + conv.bias[:, None, None]

    def depthwise(self, conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
        """A 3x3 convolution of every channel by itself and its norm; (batch, channels, height, width)."""
        if self.modules_style:
            return norm(conv(x))
        height, width = x.shape[2:]
        padded = F.pad(x, (1, 1, 1, 1))
        total = conv.bias[:, None, None].expand_as(x)
        for a in range(3):
            for b in range(3):
                total = total + padded[:, :, a : a + height, b : b + width] * conv.weight[:, :1, a, b, None]
        return total

    def active(self, x: Tensor) -> Tensor:
        """Hard swish."""
        return F.hardswish(x) if self.modules_style else x * F.relu6(x + 3) / 6

    def gate(self, i: int, x: Tensor) -> Tensor:
        """Squeeze and excite: (batch, channels, height, width) to (batch, channels, 1, 1)."""
        if self.modules_style:
            y = mark(f"{i}.pooled", F.adaptive_avg_pool2d(x, 1))
            y = mark(f"{i}.squeezed", F.relu(self.squeeze[i](y)))
            return mark(f"{i}.gate", F.hardsigmoid(self.excite[i](y)))
        y = mark(f"{i}.pooled", x.mean((2, 3)))
        y = mark(f"{i}.squeezed", F.relu(F.linear(y, self.squeeze[i].weight.flatten(1), self.squeeze[i].bias)))
        y = F.linear(y, self.excite[i].weight.flatten(1), self.excite[i].bias)
        return mark(f"{i}.gate", (y / 6 + 0.5).clamp(0, 1))[:, :, None, None]

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 3, height, width) to logits."""
        x = mark("stem", self.active(mark("first", self.stem(x))))
        for i in range(2):
            y = mark(f"{i}.expanded", self.pointwise(self.expand[i], self.norms[3 * i], x))
            y = mark(f"{i}.wide", self.active(y))
            y = mark(f"{i}.depthwise", self.depthwise(self.depth[i], self.norms[3 * i + 1], y))
            y = mark(f"{i}.active", self.active(y))
            y = mark(f"{i}.gated", y * self.gate(i, y))
            y = mark(f"{i}.projected", self.pointwise(self.project[i], self.norms[3 * i + 2], y))
            x = mark(f"{i}.layer", x + y)
        return mark("logits", self.head(mark("pooled", x.mean((2, 3)))))


def mobile(modules: bool, perturbed: bool) -> Case:
    """MobileNet as modules or in steps."""
    return Mobile(modules, perturbed), (normal(BATCH, 3, 32, 32),), {}


class SuperResolution(nn.Module):
    """An enlarged image: rectifier and shuffle in one operator each, or a choice and strided writes."""

    def __init__(self, fused: bool, perturbed: bool) -> None:
        super().__init__()
        self.fused = fused
        with seeded():
            self.a, self.b = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 24, 3, padding=1)
            self.up, self.act = nn.Conv2d(24, 48, 3, padding=1), nn.PReLU(24)
            self.last = nn.Conv2d(12, 3, 3, padding=1)
        prepared(self, perturbed)

    def enlarged(self, x: Tensor) -> Tensor:
        """(batch, 4 * channels, height, width) to (batch, channels, 2 * height, 2 * width)."""
        if self.fused:
            return F.pixel_shuffle(x, 2)
        batch, channels, height, width = x.shape
        parts = x.view(batch, channels // 4, 2, 2, height, width)
        out = x.new_zeros(batch, channels // 4, 2 * height, 2 * width)
        for i in range(2):
            for j in range(2):
                out[:, :, i::2, j::2] = parts[:, :, i, j]
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 3, height, width) to (batch, 3, 2 * height, 2 * width)."""
        y = mark("a", self.a(x))
        y = mark("a.act", self.act(y) if self.fused else torch.where(y > 0, y, y * self.act.weight[:, None, None]))
        y = mark("up", self.up(mark("res", y + mark("b", self.b(y)))))
        return mark("out", self.last(mark("shuffled", self.enlarged(y))))


def super_resolution(fused: bool, perturbed: bool) -> Case:
    """The enlarging network in one of its forms."""
    return SuperResolution(fused, perturbed), (normal(BATCH, 3, 10, 10),), {}


PAIRS = (
    both("convnext/last-first", partial(convnext, True), partial(convnext, False))
    | both("mobile/modules-sums", partial(mobile, True), partial(mobile, False))
    | both("superres/shuffle-strided_writes", partial(super_resolution, True), partial(super_resolution, False))
    | control(
        "convnext-mobile",
        partial(other_weights, partial(convnext, True), 83),
        partial(other_weights, partial(mobile, True), 84),
    )
)
