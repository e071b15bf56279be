"""Sequences without attention: recurrent layers, dilated and long convolutions, each in one operator or in steps.

Labels follow from how the programs are built.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.matching.marks import mark
from benchmarks.matching.pairs.attention import LinearAttention
from benchmarks.matching.pairs.building import Case, both, normal, perturb, prepared, seeded
from benchmarks.matching.pairs.controls import Unmarked, control

WIDTH, BATCH, TOKENS = 64, 2, 12


class BiGRU(nn.Module):
    """Two layers read in both directions: one operator each, or cells in loops."""

    def __init__(self, fused: bool, perturbed: bool) -> None:
        super().__init__()
        self.fused = fused
        with seeded():
            self.first = nn.Linear(WIDTH, 32)
            self.cells = nn.ModuleList([nn.GRU(32, 32, bidirectional=True), nn.GRU(64, 32, bidirectional=True)])
            self.norm, self.last = nn.LayerNorm(64), nn.Linear(64, 40)
        prepared(self, perturbed)

    @staticmethod
    def loop(cell: nn.GRU, x: Tensor) -> Tensor:
        """A recurrent layer in both directions in single steps; (steps, batch, width) to (steps, batch, 2 * width)."""
        sides = []
        for suffix in ("", "_reverse"):
            wi, wh, bi, bh = (
                getattr(cell, f"{n}_l0{suffix}") for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            h, out = torch.zeros(x.shape[1], 32), {}
            steps = range(len(x)) if not suffix else reversed(range(len(x)))
            for t in steps:
                ri, zi, ni = F.linear(x[t], wi, bi).chunk(3, -1)
                rh, zh, nh = F.linear(h, wh, bh).chunk(3, -1)
                r, z = torch.sigmoid(ri + rh), torch.sigmoid(zi + zh)
                h = (1 - z) * torch.tanh(ni + r * nh) + z * h
                out[t] = h
            sides.append(torch.stack([out[t] for t in range(len(x))]))
        return torch.cat(sides, dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (steps, batch, width) to logits."""
        x = mark("first", self.first(x))
        for i, cell in enumerate(self.cells):
            x = mark(f"{i}.sequence", cell(x)[0] if self.fused else self.loop(cell, x))
            x = mark(f"{i}.hidden", torch.tanh(x))
        return mark("logits", self.last(mark("norm", self.norm(x))))


def bigru(fused: bool, perturbed: bool) -> Case:
    """Recurrent layers in both directions."""
    return BiGRU(fused, perturbed), (normal(6, 3, WIDTH),), {}


class Wave(nn.Module):
    """Gated dilated convolutions with skips: one operator each, or sums over taps of shifted products."""

    def __init__(self, taps: bool, perturbed: bool) -> None:
        super().__init__()
        self.taps = taps
        with seeded():
            self.first = nn.Conv1d(8, 32, 1)
            self.gates = nn.ModuleList(nn.Conv1d(32, 64, 2, dilation=2**i) for i in range(3))
            self.skip = nn.ModuleList(nn.Conv1d(32, 32, 1) for _ in range(3))
            self.res = nn.ModuleList(nn.Conv1d(32, 32, 1) for _ in range(3))
            self.last = nn.Conv1d(32, 24, 1)
        prepared(self, perturbed)

    def dilated(self, i: int, x: Tensor) -> Tensor:
        """A causal convolution of two taps; (batch, channels, time)."""
        conv, far = self.gates[i], 2**i
        if not self.taps:
            return conv(F.pad(x, (far, 0)))
        past = torch.cat((torch.zeros(len(x), 32, far), x[:, :, :-far]), -1)
        return conv.weight[:, :, 0] @ past + conv.weight[:, :, 1] @ x + conv.bias[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 8, time) to (batch, 24, time)."""
        x, total = mark("first", self.first(x)), None
        for i in range(3):
            a, b = mark(f"{i}.gates", self.dilated(i, x)).chunk(2, 1)
            y = mark(f"{i}.hidden", torch.tanh(a) * torch.sigmoid(b))
            skip = mark(f"{i}.skip", self.skip[i](y))
            total = skip if total is None else mark(f"{i}.total", total + skip)
            x = mark(f"{i}.layer", x + mark(f"{i}.res", self.res[i](y)))
        return mark("logits", self.last(F.relu(total)))


def wave(taps: bool, perturbed: bool) -> Case:
    """Dilated convolutions in one of their forms."""
    return Wave(taps, perturbed), (normal(BATCH, 8, 24),), {}


class LongConvolution(nn.Module):
    """Convolutions as long as the sequence: through Fourier transforms, or directly."""

    def __init__(self, fourier: bool, perturbed: bool) -> None:
        super().__init__()
        self.fourier = fourier
        with seeded():
            self.kernels = nn.ParameterList(torch.randn(32, 16) / 4 for _ in range(2))
            self.linears = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
        prepared(self, perturbed)

    def convolve(self, kernel: Tensor, x: Tensor) -> Tensor:
        """A causal convolution of every channel of (batch, channels, 16) with (channels, 16)."""
        if self.fourier:
            return torch.fft.irfft(torch.fft.rfft(x, n=32) * torch.fft.rfft(kernel, n=32), n=32)[..., :16]
        return F.conv1d(F.pad(x, (15, 0)), kernel.flip(-1)[:, None], groups=32)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16, channels) to the same shape."""
        for i, (kernel, linear) in enumerate(zip(self.kernels, self.linears, strict=True)):
            y = mark(f"{i}.conv", self.convolve(kernel, mark(f"{i}.in", linear(x)).transpose(1, 2)))
            x = mark(f"{i}.layer", x + mark(f"{i}.act", F.silu(y)).transpose(1, 2))
        return x


def long_convolution(fourier: bool, perturbed: bool) -> Case:
    """Long convolutions in one of their forms."""
    return LongConvolution(fourier, perturbed), (normal(BATCH, 16, 32),), {}


class GRUStack(nn.Module):
    """A recurrent model beside which linear attention has nothing in common but the input's shape."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.cells = nn.ModuleList(nn.GRU(WIDTH, WIDTH, batch_first=True) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        for norm, cell, up in zip(self.norms, self.cells, self.up, strict=True):
            x = x + F.silu(up(cell(norm(x))[0]))
        return x


def unrelated(kind: str) -> Case:
    """One of two models of different kinds, with weights of its own, on the input both read."""
    if kind == "gru":
        with seeded(71):
            model = perturb(GRUStack(), seed=72).eval()
    else:
        model = LinearAttention("plain", False, seed=73)
        perturb(model, seed=74)
    return Unmarked(model), (normal(BATCH, TOKENS, WIDTH),), {}


PAIRS = (
    both("bigru/one_operator-loop", partial(bigru, True), partial(bigru, False))
    | both("wavenet/dilated-taps", partial(wave, False), partial(wave, True))
    | both("longconv/fft-direct", partial(long_convolution, True), partial(long_convolution, False))
    | control("gru-linear_attention", partial(unrelated, "gru"), partial(unrelated, "linear"))
)
