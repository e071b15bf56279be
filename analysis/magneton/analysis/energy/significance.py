"""Whether two sides differ: tests over whole runs, made in the order A B B A, and never over iterations of one run.

Iterations of one run have the same clocks, temperature and allocation. A test that takes them for independent finds a
"significant" difference in half of the comparisons of a program with itself. And if all runs of A come before all runs of B, the
difference includes the drift of the machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from magneton.analysis.energy.t_distribution import t_quantile, t_two_sided

MIN_RUNS = 5
LEVEL = 0.05


@dataclass(frozen=True)
class Comparison:
    """Side B against side A.

    Attributes:
        difference: mean of B minus mean of A, relative to A.
        low: lower end of its 95 % interval.
        high: upper end.
        p: probability of a difference this large if there is none. With a threshold: if the difference is no larger than it.
        significant: ``p`` is below 5 %, and there were enough runs.
        n_a: runs of A.
        n_b: runs of B.
        reason: why nothing could be said, else None.
    """

    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    significant: bool
    n_a: int
    n_b: int
    reason: str | None = None


def run_order(pairs: int) -> str:
    """Return the order in which to make ``pairs`` runs of each side, ``ABBAABBA...``: it cancels slow drift."""
    return "".join("AB" if i % 2 == 0 else "BA" for i in range(pairs))


def welch(a: Sequence[float], b: Sequence[float], *, threshold: float = 0.0) -> Comparison:
    """Compare runs of two sides (Welch's t test on one number per run).

    Args:
        a: energy of each run of A, J.
        b: energy of each run of B, J.
        threshold: 0 tests for any difference (two-sided); above 0 tests whether B takes more than ``threshold`` (relative
            to A) more or less than A (H0: the difference is no larger).
    """
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    few = min(len(x), len(y))
    if few < 2:
        return Comparison(None, None, None, None, False, len(x), len(y), "fewer than two runs on a side")
    base = float(x.mean())
    if base == 0:
        return Comparison(None, None, None, None, False, len(x), len(y), "side A took nothing")
    gap = float(y.mean()) - base
    va, vb = float(x.var(ddof=1)) / len(x), float(y.var(ddof=1)) / len(y)
    error = math.sqrt(va + vb)
    if error == 0:
        sure = abs(gap) > threshold * abs(base)
        return Comparison(
            gap / base, gap / base, gap / base, 0.0 if sure else 1.0, sure and few >= MIN_RUNS, len(x), len(y)
        )
    freedom = (va + vb) ** 2 / (va**2 / (len(x) - 1) + vb**2 / (len(y) - 1))
    spread = math.sqrt(vb + (1 + gap / base) ** 2 * va)
    return _tested(gap, base, error, spread, freedom, threshold, len(x), len(y))


def _tested(
    gap: float, base: float, error: float, spread: float, freedom: float, threshold: float, n_a: int, n_b: int
) -> Comparison:
    """Test a difference ``gap`` (J) against ``threshold`` times the level of A, ``base`` (J).

    ``error`` is the standard error of the difference, J. ``spread`` is that of ``B - A * B/A``, J: divided by ``base`` it is
    the standard error of the relative difference, the base's own error included (delta method).
    """
    few = min(n_a, n_b)
    beyond = abs(gap) - threshold * abs(base)
    p = t_two_sided(beyond / error, freedom)
    if threshold > 0:
        p = p / 2 if beyond > 0 else 1 - p / 2
    half = t_quantile(LEVEL, freedom) * spread / abs(base)
    return Comparison(
        difference=gap / base,
        low=gap / base - half,
        high=gap / base + half,
        p=p,
        significant=p < LEVEL and few >= MIN_RUNS,
        n_a=n_a,
        n_b=n_b,
        reason=None if few >= MIN_RUNS else f"{few} runs on a side, and {MIN_RUNS} are needed",
    )


def compare_interleaved(order: str, values: Sequence[float], *, threshold: float = 0.0) -> Comparison:
    """Compare runs made in an interleaved order, with slow drift taken out.

    The drift is a parabola through the order of the runs, estimated together with the difference. ``A B B A`` makes the
    two estimates independent of each other. So the residuals measure the variation of the runs and not the drift.

    Args:
        order: side of each run, in the order in which they were made (``run_order``).
        values: energy of each run, J.
        threshold: see ``welch``.

    Raises:
        ValueError: not one side for each run.
    """
    if len(order) != len(values):
        raise ValueError(f"{len(order)} sides for {len(values)} runs")
    side = np.array([c == "B" for c in order], dtype=np.float64)
    y = np.asarray(values, np.float64)
    n_b = int(side.sum())
    n_a = len(y) - n_b
    few = min(n_a, n_b)
    if few < 3:
        return welch(y[side == 0].tolist(), y[side == 1].tolist(), threshold=threshold)
    at = np.linspace(-1, 1, len(y))
    x = np.stack([1 - side, side, at, at**2 - np.mean(at**2)], axis=1)
    inverse = np.linalg.inv(x.T @ x)
    level = inverse @ x.T @ y
    rest = y - x @ level
    freedom = len(y) - x.shape[1]
    if freedom < 2 or level[0] == 0:
        return welch(y[side == 0].tolist(), y[side == 1].tolist(), threshold=threshold)
    noise = float(rest @ rest) / freedom
    base, gap = float(level[0]), float(level[1] - level[0])
    error = math.sqrt(noise * float(inverse[0, 0] + inverse[1, 1] - 2 * inverse[0, 1]))
    if error <= 1e-12 * abs(base):
        return welch(y[side == 0].tolist(), y[side == 1].tolist(), threshold=threshold)
    ratio = 1 + gap / base
    spread = math.sqrt(noise * float(ratio**2 * inverse[0, 0] + inverse[1, 1] - 2 * ratio * inverse[0, 1]))
    return _tested(gap, base, error, spread, freedom, threshold, n_a, n_b)


def holm(p: Sequence[float | None]) -> list[bool]:
    """Return which of several hypotheses to reject at 5 % for all of them together (Holm); None is never rejected."""
    order = sorted((i for i, v in enumerate(p) if v is not None), key=lambda i: p[i] or 0.0)
    rejected = [False] * len(p)
    for rank, i in enumerate(order):
        if (p[i] or 0.0) > LEVEL / (len(order) - rank):
            break
        rejected[i] = True
    return rejected
