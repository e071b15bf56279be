"""A small U-Net as in Stable Diffusion: time embedding, residual blocks, attention to a text; and how guidance runs it.

Guidance needs the model with and without the text: as one batch of two halves, or as two passes.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs.building import (
    Case,
    both,
    eager_attention,
    merge_heads,
    normal,
    prepared,
    seeded,
    split_heads,
)

WIDTHS, TIME, TEXT, HEADS, GROUPS, SIZE, BATCH, WORDS = (32, 48), 64, 40, 4, 8, 12, 2, 7
GUIDANCE = 3.0


def group_norm(style: str, norm: nn.GroupNorm, x: Tensor) -> Tensor:
    """Norm over groups of channels; (batch, channels, ...); one operator or single steps."""
    if style == "fused":
        return norm(x)
    grouped = x.reshape(len(x), norm.num_groups, -1)
    centred = grouped - grouped.mean(-1, keepdim=True)
    scaled = (centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + norm.eps)).view_as(x)
    return scaled * norm.weight[:, None, None] + norm.bias[:, None, None]


class ResidualBlock(nn.Module):
    """Norm, SiLU, convolution, the time added, and once more; beside a shortcut."""

    def __init__(self, name: str, style: str, width_in: int, width_out: int) -> None:
        super().__init__()
        self.name, self.style = name, style
        self.norm1, self.norm2 = nn.GroupNorm(GROUPS, width_in), nn.GroupNorm(GROUPS, width_out)
        self.conv1 = nn.Conv2d(width_in, width_out, 3, padding=1)
        self.conv2 = nn.Conv2d(width_out, width_out, 3, padding=1)
        self.time = nn.Linear(TIME, width_out)
        self.shortcut = nn.Conv2d(width_in, width_out, 1) if width_in != width_out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to the same layout; time (batch, width)."""
        name = self.name
        y = mark(f"{name}.norm1", group_norm(self.style, self.norm1, x))
        y = mark(f"{name}.conv1", self.conv1(F.silu(y)))
        y = mark(f"{name}.timed", y + self.time(F.silu(time))[:, :, None, None])
        y = mark(f"{name}.norm2", group_norm(self.style, self.norm2, y))
        y = mark(f"{name}.conv2", self.conv2(y * torch.sigmoid(y) if self.style == "steps" else F.silu(y)))
        return mark(f"{name}.sum", self.shortcut(x) + y)


class TextAttention(nn.Module):
    """A transformer block over the pixels: attention to themselves, to a text, a gated MLP."""

    def __init__(self, name: str, style: str, width: int) -> None:
        super().__init__()
        self.name, self.style = name, style
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own = nn.ModuleDict({k: nn.Linear(width, width, bias=k == "o") for k in "qkvo"})
        self.cross = nn.ModuleDict({k: nn.Linear(TEXT if k in "kv" else width, width, bias=k == "o") for k in "qkvo"})
        self.gate, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

    def attend(self, kind: str, parts: nn.ModuleDict, x: Tensor, source: Tensor) -> Tensor:
        """Attention of ``x`` to ``source``; (batch, tokens, width)."""
        name = f"{self.name}.{kind}"
        projected = {k: parts[k](x if k == "q" else source) for k in "qkv"}
        q, k, v = (split_heads(mark(f"{name}.{part}", y), HEADS) for part, y in projected.items())
        context = eager_attention(q, k, v) if self.style == "steps" else F.scaled_dot_product_attention(q, k, v)
        return mark(f"{name}.out", parts["o"](merge_heads(mark(f"{name}.context", context))))

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to the same layout; text (batch, words, width)."""
        name = self.name
        y = x.flatten(2).transpose(1, 2)
        normed = mark(f"{name}.norm1", self.norms[0](y))
        y = mark(f"{name}.sum1", y + self.attend("own", self.own, normed, normed))
        y = mark(f"{name}.sum2", y + self.attend("cross", self.cross, mark(f"{name}.norm2", self.norms[1](y)), text))
        value, gate = self.gate(mark(f"{name}.norm3", self.norms[2](y))).chunk(2, dim=-1)
        hidden = mark(f"{name}.hidden", value * F.gelu(gate))
        y = mark(f"{name}.sum3", y + mark(f"{name}.mlp", self.down(hidden)))
        return y.transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """One level down, a middle, one level up."""

    def __init__(self, style: str, perturbed: bool) -> None:
        super().__init__()
        self.style = style
        narrow, wide = WIDTHS
        with seeded():
            self.time = nn.Sequential(nn.Linear(TIME, TIME), nn.SiLU(), nn.Linear(TIME, TIME))
            self.first = nn.Conv2d(4, narrow, 3, padding=1)
            self.down1 = ResidualBlock("down1", style, narrow, narrow)
            self.down_attention = TextAttention("down", style, narrow)
            self.shrink = nn.Conv2d(narrow, narrow, 3, stride=2, padding=1)
            self.middle1, self.middle2 = (
                ResidualBlock("middle1", style, narrow, wide),
                ResidualBlock("middle2", style, wide, wide),
            )
            self.middle_attention = TextAttention("middle", style, wide)
            self.grow = nn.Conv2d(wide, wide, 3, padding=1)
            self.up1 = ResidualBlock("up1", style, wide + narrow, narrow)
            self.up_attention = TextAttention("up", style, narrow)
            self.norm, self.last = nn.GroupNorm(GROUPS, narrow), nn.Conv2d(narrow, 4, 3, padding=1)
        prepared(self, perturbed)

    def embed_time(self, time: Tensor) -> Tensor:
        """Map times (batch,) to (batch, width)."""
        frequencies = torch.exp(-math.log(10000.0) * torch.arange(TIME // 2) / (TIME // 2))
        angles = time[:, None] * frequencies
        return mark("time", self.time(torch.cat((angles.sin(), angles.cos()), dim=-1)))

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        """Map latents (batch, 4, height, width) to the noise in them."""
        t = self.embed_time(time)
        x = mark("first", self.first(x))
        skip = self.down_attention(self.down1(x, t), text)
        x = mark("shrunk", self.shrink(skip))
        x = self.middle2(self.middle_attention(self.middle1(x, t), text), t)
        if self.style == "steps":
            grown = x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
        else:
            grown = F.interpolate(x, scale_factor=2.0, mode="nearest")
        x = torch.cat((mark("grown", self.grow(mark("enlarged", grown))), skip), dim=1)
        x = self.up_attention(self.up1(x, t), text)
        return mark("noise", self.last(F.silu(mark("norm", group_norm(self.style, self.norm, x)))))


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Latents, times and a text for each."""
    return normal(BATCH, 4, SIZE, SIZE), torch.tensor([801.0, 301.0]), normal(BATCH, WORDS, TEXT, seed=5)


def unet(style: str, perturbed: bool) -> Case:
    """The network alone."""
    return UNet(style, perturbed), inputs(), {}


class Guided(nn.Module):
    """Noise with the text, pushed away from the noise without it."""

    def __init__(self, model: UNet, batched: bool) -> None:
        super().__init__()
        self.model, self.batched = model, batched

    def forward(self, x: Tensor, time: Tensor, text: Tensor, empty: Tensor) -> Tensor:
        """Map latents and both texts to the guided noise."""
        if self.batched:
            twice = self.model(torch.cat((x, x)), torch.cat((time, time)), torch.cat((empty, text)))
            without, told = twice.chunk(2)
        else:
            without, told = self.model(x, time, empty), self.model(x, time, text)
        return mark("guided", without + GUIDANCE * (told - without))


def guided(style: str, batched: bool, perturbed: bool) -> Case:
    """Guidance as one batch or as two passes."""
    model = Guided(UNet(style, perturbed), batched)
    return model, (*inputs(), normal(BATCH, WORDS, TEXT, seed=6)), {}


PAIRS = (
    both("unet/steps-fused", partial(unet, "steps"), partial(unet, "fused"))
    | both("guidance/batched-split", partial(guided, "fused", True), partial(guided, "fused", False))
    | both("guidance/split_steps-batched_fused", partial(guided, "steps", False), partial(guided, "fused", True))
)
