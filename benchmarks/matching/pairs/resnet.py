"""A residual network: memory layouts, norms folded into convolutions, norms in single operators, convolutions as products."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs.building import Case, both, normal, prepared, seeded

WIDTHS, IMAGE, BATCH, CLASSES = (16, 24, 32), 16, 2, 40


class ConvNorm(nn.Module):
    """A convolution and its norm over the batch's statistics of training time, in one of four styles.

    ``plain`` runs both, ``folded`` has the norm in the convolution's weights, ``steps`` writes the norm in single
    operators, ``product`` writes the convolution as a matrix product over unfolded patches.
    """

    def __init__(self, width_in: int, width_out: int, size: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width_in, width_out, size, stride, size // 2, bias=False)
        self.norm = nn.BatchNorm2d(width_out)
        self.style = "plain"
        self.name = ""

    def fold(self) -> None:
        """Put the norm into the convolution."""
        norm = self.norm
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        old = self.conv
        self.conv = nn.Conv2d(old.in_channels, old.out_channels, old.kernel_size, old.stride, old.padding)
        with torch.no_grad():
            self.conv.weight.copy_(old.weight * scale[:, None, None, None])
            self.conv.bias.copy_(norm.bias - norm.running_mean * scale)
        self.style = "folded"

    def convolve(self, x: Tensor) -> Tensor:
        """The convolution; (batch, channels, height, width)."""
        if self.style != "product":
            return self.conv(x)
        conv = self.conv
        columns = F.unfold(x, conv.kernel_size, padding=conv.padding, stride=conv.stride)
        height = (x.shape[2] + 2 * conv.padding[0] - conv.kernel_size[0]) // conv.stride[0] + 1
        return (conv.weight.flatten(1) @ columns).unflatten(2, (height, -1))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to the same layout."""
        if self.style == "folded":
            return mark(f"{self.name}.norm", self.conv(x))
        x = mark(f"{self.name}.conv", self.convolve(x))
        if self.style == "steps":
            mean, variance, weight, bias = (
                v[:, None, None]
                for v in (self.norm.running_mean, self.norm.running_var, self.norm.weight, self.norm.bias)
            )
            return mark(f"{self.name}.norm", (x - mean) / (variance + self.norm.eps).sqrt() * weight + bias)
        return mark(f"{self.name}.norm", self.norm(x))


class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width_in: int, width_out: int, name: str) -> None:
        super().__init__()
        stride = 1 if width_in == width_out else 2
        self.name = name
        self.first, self.second = ConvNorm(width_in, width_out, 3, stride), ConvNorm(width_out, width_out, 3)
        self.shortcut = ConvNorm(width_in, width_out, 1, stride) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to the same layout."""
        y = self.second(mark(f"{self.name}.hidden", F.relu(self.first(x))))
        x = x if self.shortcut is None else self.shortcut(x)
        return mark(f"{self.name}.layer", F.relu(mark(f"{self.name}.sum", x + y)))


class ResNet(nn.Module):
    """Stem, residual blocks, pooled classifier."""

    def __init__(self, style: str, perturbed: bool) -> None:
        super().__init__()
        with seeded():
            self.stem = ConvNorm(3, WIDTHS[0], 3)
            widths = [WIDTHS[0], *(w for w in WIDTHS for _ in range(2))]
            self.blocks = nn.Sequential(*(ResidualBlock(a, b, f"{i}") for i, (a, b) in enumerate(pairwise(widths))))
            self.classifier = nn.Linear(WIDTHS[-1], CLASSES)
        prepared(self, perturbed)
        for path, module in list(self.named_modules()):
            if isinstance(module, ConvNorm):
                module.style, module.name = style, path
                if style == "folded":
                    module.fold()

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, 3, height, width) to logits (batch, classes)."""
        x = mark("stem", F.relu(self.stem(images)))
        x = self.blocks(x)
        return mark("logits", self.classifier(mark("pooled", F.adaptive_avg_pool2d(x, 1).flatten(1))))


def resnet(style: str, channels_last: bool, perturbed: bool) -> Case:
    """The network in one style and one memory layout."""
    model = ResNet(style, perturbed).eval()
    images = normal(BATCH, 3, IMAGE, IMAGE)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    return model, (images,), {}


plain = partial(resnet, "plain", False)

PAIRS = (
    both("resnet/nchw-channels_last", plain, partial(resnet, "plain", True))
    | both("resnet/plain-folded", plain, partial(resnet, "folded", False))
    | both("resnet/channels_last-folded", partial(resnet, "plain", True), partial(resnet, "folded", False))
    | both("resnet/plain-steps", plain, partial(resnet, "steps", False))
    | both("resnet/plain-product", plain, partial(resnet, "product", False))
)
