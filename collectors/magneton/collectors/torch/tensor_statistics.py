"""Statistics of a tensor's finite elements: sums of float32 blocks, added up in float64."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from magneton.collectors.torch.profile import import_torch
from magneton.collectors.torch.tensor_reading import TensorView, pieces

torch: Any = import_torch()

QUANTILES = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 7 / 8)
QUANTILE_SAMPLE = 4096
_BLOCK = 1 << 18
_DOT = 1 << 16
# Beyond this ratio of mean to deviation, deviations are taken of shifted values: float32 has seven digits.
_SHIFTED = 4.0


@dataclass
class Statistics:
    """Statistics of the finite elements; all NaN where there is none. See the columns of table ``tensors``."""

    n_nan: int = 0
    n_posinf: int = 0
    n_neginf: int = 0
    mean: float = math.nan
    std: float = math.nan
    l1: float = math.nan
    l2_squared: float = math.nan
    l4_fourth: float = math.nan
    sum_cubes: float = math.nan
    min: float = math.nan
    max: float = math.nan
    quantiles: list[float] | None = None

    @property
    def holes(self) -> int:
        """Number of elements that are not finite."""
        return self.n_nan + self.n_posinf + self.n_neginf

    def mark(self, numel: int) -> float | None:
        """Return the scale at which elements that are not finite are marked; None where all are finite."""
        if not self.holes:
            return None
        finite = numel - self.holes
        return (math.sqrt(self.l2_squared / finite) if finite else 0.0) or 1.0

    def shift(self) -> float:
        """Return what to take off each element first, as float32 has it: near the mean where that is most of a value."""
        return float(np.float32(self.mean)) if self.mean**2 > _SHIFTED**2 * self.std**2 else 0.0

    def centre(self) -> float:
        """Return what sketches are centred on: the mean, 0 where no element is finite."""
        return 0.0 if math.isnan(self.mean) else self.mean


def statistics_of(view: TensorView) -> Statistics:
    """Return the statistics of a tensor, which has elements."""
    stats = Statistics()
    lows, highs = [], []
    for _, piece in pieces(view.ordered):
        low, high = torch.aminmax(piece.to(torch.float32))
        lows.append(low)
        highs.append(high)
    low, high = (float(v) for v in torch.stack([torch.stack(lows).amin(), torch.stack(highs).amax()]).tolist())
    holes = not (math.isfinite(low) and math.isfinite(high)) or max(-low, high) >= view.infinite
    if holes:
        low, high = _count_holes(view, stats)
        if stats.holes == view.numel:
            return stats
    largest = max(abs(low), abs(high))
    # Fourth powers must stay within float32.
    scale = 1.0 if 1e-8 <= largest <= 1e8 or largest == 0 else 1.0 / largest
    sums = _power_sums(view, stats if holes else None, scale)
    count = view.numel - stats.holes
    stats.min, stats.max = low, high
    stats.mean = sums[0] / scale / count
    stats.l2_squared = sums[1] / scale**2
    stats.sum_cubes = sums[2] / scale**3
    stats.l4_fourth = sums[3] / scale**4
    stats.l1 = sums[4] / scale
    variance = max(0.0, stats.l2_squared / count - stats.mean**2)
    if low == high:
        stats.mean, variance = low, 0.0
    elif stats.mean**2 > _SHIFTED**2 * variance:
        stats.mean, variance = _shifted_moments(view, stats, count)
    stats.std = math.sqrt(variance)
    stats.quantiles = _quantiles(view)
    return stats


def _count_holes(view: TensorView, stats: Statistics) -> tuple[float, float]:
    """Count what is not finite and return the least and the greatest of the rest."""
    low, high = math.inf, -math.inf
    for _, piece in pieces(view.ordered):
        values = piece.to(torch.float32)
        nan, above, below = values.isnan(), values >= view.infinite, values <= -view.infinite
        hole = nan | above | below
        n_nan, n_above, n_below = torch.stack([nan.sum(), above.sum(), below.sum()]).tolist()
        stats.n_nan += n_nan
        stats.n_posinf += n_above
        stats.n_neginf += n_below
        low = min(low, float(values.masked_fill(hole, math.inf).amin()))
        high = max(high, float(values.masked_fill(hole, -math.inf).amax()))
    return low, high


def _finite(view: TensorView, piece: Any, stats: Statistics | None, scale: float) -> Any:
    values = piece.to(torch.float32).contiguous().view(-1)
    if stats is not None:
        values = torch.where(values.abs() < view.infinite, values, 0.0)
    return values if scale == 1.0 else values * scale


def _power_sums(view: TensorView, stats: Statistics | None, scale: float) -> list[float]:
    """Return the sums of x, x^2, x^3, x^4 and |x| over the finite elements, of ``scale`` times x."""
    parts = []
    for _, piece in pieces(view.ordered):
        values = _finite(view, piece, stats, scale)
        length = min(_BLOCK, values.numel())
        scratch = torch.empty(length, dtype=torch.float32, device=values.device)
        for start in range(0, values.numel(), length):
            x = values[start : start + length]
            square = torch.mul(x, x, out=scratch[: x.numel()])
            # Sums add in a tree; dot products add in a row, which is as accurate for short ones.
            cubes = [torch.dot(s, v) for s, v in zip(square.split(_DOT), x.split(_DOT), strict=True)]
            fourths = [torch.dot(s, s) for s in square.split(_DOT)]
            parts += [x.sum(), square.sum(), torch.stack(cubes).sum(), torch.stack(fourths).sum()]
            parts.append(torch.abs(x, out=square).sum())
    sums = torch.stack(parts).to("cpu").to(torch.float64).view(-1, 5).sum(0)
    return [float(v) for v in sums.tolist()]


def _shifted_moments(view: TensorView, stats: Statistics, count: int) -> tuple[float, float]:
    """Return mean and variance from deviations from a mean that is only known to seven digits."""
    shift = float(np.float32(stats.mean))
    first = second = 0.0
    for _, piece in pieces(view.ordered):
        values = piece.to(torch.float32).contiguous().view(-1)
        off = values - shift
        if stats.holes:
            off = torch.where(values.abs() < view.infinite, off, 0.0)
        first += float(off.sum(dtype=torch.float64))
        second += float(off.square().sum(dtype=torch.float64))
    return shift + first / count, max(0.0, second / count - (first / count) ** 2)


def _quantiles(view: TensorView) -> list[float]:
    taken = []
    for start, piece in pieces(view.ordered):
        if view.numel <= QUANTILE_SAMPLE:
            places = None
        else:
            numbers = np.arange(QUANTILE_SAMPLE, dtype=np.int64) * view.numel // QUANTILE_SAMPLE - start
            places = numbers[(numbers >= 0) & (numbers < piece.numel())]
        values = piece.contiguous().view(-1)
        if places is not None:
            values = values.index_select(0, torch.from_numpy(places).to(values.device))
        taken.append(values.to("cpu").to(torch.float32).numpy())
    sample = np.concatenate(taken)
    sample = np.sort(sample[np.abs(sample) < view.infinite]).astype(np.float64)
    if not sample.size:
        return []
    return [float(v) for v in np.interp(np.array(QUANTILES) * (sample.size - 1), np.arange(sample.size), sample)]


def exact_hash(tensor: Any) -> str:
    """Return a hash of the elements in logical order; all integer types hash alike."""
    kind = torch.uint8 if tensor.dtype == torch.bool else torch.int64
    digest = hashlib.blake2b(b"bool" if tensor.dtype == torch.bool else b"int", digest_size=16)
    for _, piece in pieces(tensor):
        digest.update(piece.to(device="cpu", dtype=kind).contiguous().numpy().tobytes())
    return digest.hexdigest()
