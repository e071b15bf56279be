"""The power of a device over time, from the readings of a sensor and from what ran: one linear-Gaussian estimate.

The power is a sum of terms with Gaussian priors:

* three levels: at rest, in gaps of the load, and busy;
* a ramp of 8 ms after each edge, and slower settling after the load begins and after it ends;
* a slow and a fast residual, for what no level describes.

A reading is the response of the sensor times the power, plus noise. Which response of the allowed range it is, and its lag, is not known:
the estimate averages over them. Energies are integrals of the power, and so is their uncertainty. Where readings look at a quarter of the
time only (A100, H100), the unseen rest has the uncertainty of the fast residual.

The estimate is in the scale of the sensor; gain and offset come last (``windows``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from magneton.analysis.energy.sensor_model.sensor import Response, Updates
from magneton.analysis.energy.sensor_model.timeline import Array

# The power is constant on cells of this length, s.
CELL_S = 0.002
# Standard deviation of a reading beyond the model: a fixed part, W, and a share of the reading. Noise that is fitted lets wrong responses win.
NOISE_W, NOISE_SHARE = 0.5, 0.002
# Standard deviations of the residuals, as a share of the busy level, and the times over which they are correlated, s.
SLOW_SHARE, SLOW_S, SLOW_KNOT_S = 0.02, 4.0, 1.0
FAST_SHARE, FAST_S, FAST_KNOT_S = 0.04, 0.02, 0.05
_REST_OF_SLOW, _REST_OF_FAST = 0.5, 0.3
RAMP_S, _RAMP_SHARE = 0.008, 0.5
# Settling after the load begins (clocks, temperature) and after it ends.
_SETTLE_S, _CALM_S, _SETTLE_SHARE = (0.3, 2.0), (0.1, 0.6, 3.0), 0.3
# A gap of the load that is longer is rest.
REST_GAP_S = 0.5
# Lags tried, s, with their prior: clocks of host and sensor agree to a few milliseconds.
LAGS_S = np.arange(-0.014, 0.0141, 0.002)
LAG_SD_S = 0.008
# With so many edges of the load, readings may choose among the responses of one range.
_ALTERNATIONS = 12
# A response that leaves this many times the residuals of the best one (chi-square) is not the right one.
_MISFIT = 4.0
_NEGLIGIBLE = 1e-3
# An average over more than this many updates is taken for one of samples.
_LONG_AVERAGE = 3.0

Edges = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Solution:
    mean: Array
    shrink: Array
    chi2: float
    evidence: float


@dataclass(frozen=True)
class _Try:
    """One response and lag: number of the range of responses, logarithm of the prior within it, and what comes of it."""

    range: int
    response: Response
    lag_s: float
    log_prior: float
    solution: _Solution


class Load:
    """When a device was busy.

    Args:
        busy_s: start and end of every stretch, s, shape (n, 2), ascending, without overlaps.
    """

    def __init__(self, busy_s: Edges) -> None:
        self.busy_s = _merged(busy_s, 0.0)
        self.spans_s = _merged(busy_s, REST_GAP_S)

    def busy(self, t: Array) -> Array:
        """Return the busy time up to each time, s."""
        return _covered(self.busy_s, t)

    def loaded(self, t: Array) -> Array:
        """Return the time in the load, short gaps included, up to each time, s."""
        return _covered(self.spans_s, t)

    def edges(self, within: tuple[float, float]) -> tuple[Array, Array]:
        """Return the starts and the ends of stretches that a ramp can be seen at, in a stretch of time."""
        seen = _merged(self.busy_s, 2 * CELL_S)
        inside = [side[(side >= within[0]) & (side <= within[1])] for side in (seen[:, 0], seen[:, 1])]
        return inside[0], inside[1]


def _merged(stretches: Edges, gap_s: float) -> Edges:
    """Return stretches joined where they overlap, or lie no further apart than a gap."""
    if not len(stretches):
        return np.zeros((0, 2))
    ordered = stretches[np.argsort(stretches[:, 0], kind="stable")]
    reached = np.maximum.accumulate(ordered[:, 1])
    new = np.concatenate([[True], ordered[1:, 0] > reached[:-1] + gap_s])
    last = np.concatenate([np.flatnonzero(new)[1:] - 1, [len(ordered) - 1]])
    return np.stack([ordered[new, 0], reached[last]], axis=1)


def _covered(stretches: Edges, t: Array) -> Array:
    if not len(stretches):
        return np.zeros(len(t))
    length = np.concatenate([[0.0], np.cumsum(stretches[:, 1] - stretches[:, 0])])
    found: Array = np.interp(t, stretches.ravel(), np.repeat(length, 2)[1:-1])
    return found


class Posterior:
    """The power of a stretch of time, as the readings leave it.

    Args:
        updates: readings of the sensor, each once; at least three.
        load: when the device was busy.
        responses: ranges of responses, each a sequence of equally likely ones.
        start_s: begin of the time that is described; readings may look back before it.
        end_s: its end.

    Attributes:
        chi2: residuals squared over what the model explains, per reading, of the best response.
        response: the best response.
        lag_s: mean lag, s.
        n: readings used.
    """

    def __init__(
        self,
        updates: Updates,
        load: Load,
        responses: Sequence[Sequence[Response]],
        start_s: float,
        end_s: float,
    ) -> None:
        reach = max(r.reach_s for group in responses for r in group) + float(LAGS_S[-1])
        self._grid = np.arange(min(start_s, float(updates.t_s[0]) - reach), end_s + 2 * CELL_S, CELL_S)
        self._describe(updates, load)
        middles = [group[len(group) // 2] for group in responses]
        lag_prior = -0.5 * (LAGS_S / LAG_SD_S) ** 2
        alternating = (
            min(len(side) for side in load.edges((float(updates.t_s[0]), float(updates.t_s[-1])))) >= _ALTERNATIONS
        )
        tried: list[_Try] = []
        for number, (group, middle) in enumerate(zip(responses, middles, strict=True)):
            # Lags that the middle of the range rules out are not tried with the rest of it.
            first = [
                (lag, prior, self._solve(updates, middle, lag)) for lag, prior in zip(LAGS_S, lag_prior, strict=True)
            ]
            score = np.array([prior + one.evidence for _, prior, one in first])
            kept = [item for item, s in zip(first, score, strict=True) if s > score.max() + np.log(_NEGLIGIBLE)]
            for response in group:
                for lag, prior, one in kept:
                    solved = one if response is middle else self._solve(updates, response, lag)
                    tried.append(_Try(number, response, lag, prior - float(np.log(len(group))), solved))
        self._weigh(tried, alternating)
        self.n = len(updates.t_s)

    def _weigh(self, tried: list[_Try], alternating: bool) -> None:
        """Average over what was tried.

        Any load tells ranges of responses apart (a tenth of a second from a second). Within a range only an alternating load does: a step
        tells lag and width apart badly, and prefers wrong widths. There evidence chooses the lag of each response, not the response.
        """
        score = np.array([one.log_prior + one.solution.evidence for one in tried])
        if not alternating:
            flat = score.copy()
            for number in {one.range for one in tried}:
                ids = [at for at, one in enumerate(tried) if one.range == number]
                responses = {id(tried[at].response) for at in ids}
                for response in responses:
                    own = [at for at in ids if id(tried[at].response) == response]
                    flat[own] -= np.logaddexp.reduce(score[own]) + np.log(len(responses))
                flat[ids] += np.logaddexp.reduce(score[ids])
            score = flat
        chi2 = np.array([one.solution.chi2 for one in tried])
        score[chi2 > _MISFIT * max(float(chi2.min()), 0.5)] = -np.inf
        weight = np.exp(score - score.max())
        weight /= weight.sum()
        kept = [(float(w), one) for w, one in zip(weight, tried, strict=True) if w > _NEGLIGIBLE]
        weights = np.array([w for w, _ in kept])
        weights /= weights.sum()
        means = np.array([one.solution.mean for _, one in kept])
        self._posterior_mean = weights @ means
        off = (means - self._posterior_mean) * np.sqrt(weights)[:, None]
        self._posterior_cov = off.T @ off
        for w, (_, one) in zip(weights.tolist(), kept, strict=True):
            shrink = one.solution.shrink
            self._posterior_cov += w * max(one.solution.chi2, 1.0) * (self._cov - shrink.T @ shrink)
        best = kept[int(np.argmax(weights))][1]
        self.response, self.chi2 = best.response, best.solution.chi2
        self.lag_s = float(weights @ np.array([one.lag_s for _, one in kept]))

    def _describe(self, updates: Updates, load: Load) -> None:
        """Make the terms of the power: their integrals on the grid, means and covariance."""
        grid = self._grid
        middle = (grid[1:] + grid[:-1]) / 2
        busy = np.diff(load.busy(grid)) / CELL_S
        loaded = np.clip(np.diff(load.loaded(grid)) / CELL_S, busy, 1.0)
        rest = 1 - loaded
        low, high = np.percentile(updates.value, [3, 95])
        step = max(float(high - low), 0.05 * float(high), 1.0)
        level = max(float(high), 1.0)
        terms = [rest, loaded - busy, busy]
        means = [float(low), float(low) + 0.3 * step, float(high)]
        sds = [0.5 * step + 5, 0.6 * step + 5, 0.6 * step + 5]
        rises, falls = load.edges((float(grid[0]), float(grid[-1])))
        terms += [_after(middle, rises, RAMP_S) * busy, _after(middle, falls, RAMP_S) * (1 - busy)]
        sds += [_RAMP_SHARE * step] * 2
        for start, end in load.spans_s:
            if grid[0] <= start <= grid[-1]:
                terms += [_after(middle, np.array([start]), tau) * loaded for tau in _SETTLE_S]
                sds += [_SETTLE_SHARE * step] * len(_SETTLE_S)
            if grid[0] - _CALM_S[-1] <= end <= grid[-1]:
                terms += [_after(middle, np.array([end]), tau) * rest for tau in _CALM_S]
                sds += [_SETTLE_SHARE * step] * len(_CALM_S)
        means += [0.0] * (len(sds) - len(means))
        blocks, covariances = [np.array(terms)], [np.diag(np.array(sds) ** 2)]
        for knot_s, tau, share, of_rest in (
            (SLOW_KNOT_S, SLOW_S, SLOW_SHARE, _REST_OF_SLOW),
            (FAST_KNOT_S, FAST_S, FAST_SHARE, _REST_OF_FAST),
        ):
            knots = np.arange(grid[0], grid[-1] + knot_s, knot_s)
            blocks.append(_hats(middle, knots, knot_s) * (level * share * (loaded + of_rest * rest)))
            covariances.append(np.exp(-np.abs(knots[:, None] - knots[None, :]) / tau))
        sizes = [len(block) for block in blocks]
        self._mean = np.concatenate([means, np.zeros(sum(sizes[1:]))])
        self._cov = np.zeros((sum(sizes), sum(sizes)))
        self._integral = np.zeros((sum(sizes), len(grid)))
        at = 0
        for block, covariance in zip(blocks, covariances, strict=True):
            span = slice(at, at + len(block))
            self._cov[span, span] = covariance
            self._integral[span, 1:] = np.cumsum(block * CELL_S, axis=1)
            at += len(block)
        self._expected = self._mean @ self._integral

    def _at(self, t: Array) -> Array:
        """Return the integral of each term up to each time, shape (terms, times)."""
        place = np.clip((t - self._grid[0]) / CELL_S, 0, len(self._grid) - 1.001)
        index = place.astype(np.int64)
        part = place - index
        found: Array = self._integral[:, index] * (1 - part) + self._integral[:, index + 1] * part
        return found

    def _design(self, t: Array, response: Response, lag_s: float) -> Array:
        """Return what each term adds to each reading, shape (readings, terms)."""
        edges = np.asarray(response.edges_s)
        at = self._at((t[:, None] - lag_s - edges[None, :]).ravel()).reshape(-1, len(t), len(edges))
        mean = (at[:, :, :-1] - at[:, :, 1:]) / np.diff(edges)
        found: Array = (mean @ np.asarray(response.weights)).T
        return found

    def _readings(self, t: Array, response: Response, lag_s: float) -> Array:
        """Return what the readings would be if the power were its prior mean, shape (readings,)."""
        edges = np.asarray(response.edges_s)
        at = np.interp((t[:, None] - lag_s - edges[None, :]).ravel(), self._grid, self._expected)
        at = at.reshape(len(t), len(edges))
        found: Array = ((at[:, :-1] - at[:, 1:]) / np.diff(edges)) @ np.asarray(response.weights)
        return found

    def _solve(self, updates: Updates, response: Response, lag_s: float) -> _Solution:
        t, y = updates.t_s, updates.value
        design = self._design(t, response, lag_s)
        step = CELL_S / 2
        steep = (self._readings(t + step, response, lag_s) - self._readings(t - step, response, lag_s)) / (2 * step)
        timing = updates.timing_sd_s
        if updates.period_s is not None and response.reach_s > _LONG_AVERAGE * updates.period_s:
            # A long average is one of samples: its edges lie anywhere between two of them.
            timing = float(np.hypot(timing, updates.period_s / np.sqrt(12)))
        noise = NOISE_W**2 + (timing * steep) ** 2 + (NOISE_SHARE * y) ** 2
        spread = design @ self._cov
        factor = np.linalg.cholesky(spread @ design.T + np.diag(noise))
        whitened = np.linalg.solve(factor, np.column_stack([y - design @ self._mean, spread]))
        rest, shrink = whitened[:, 0], whitened[:, 1:]
        evidence = -0.5 * float(rest @ rest) - float(np.log(np.diag(factor)).sum())
        return _Solution(self._mean + shrink.T @ rest, shrink, float(rest @ rest) / len(y), evidence)

    def energy(self, start_s: float, end_s: float) -> tuple[float, float]:
        """Return the energy of a window in the scale of the sensor, J, and its variance, J^2.

        Residuals that are larger than the model explains make the variance larger by their chi-square.
        """
        at = self._at(np.array([start_s, end_s]))
        window = at[:, 1] - at[:, 0]
        variance = float(window @ self._posterior_cov @ window)
        return float(window @ self._posterior_mean), max(variance, 0.0)


def _after(t: Array, edges: Array, tau: float) -> Array:
    """Return a decay that starts at 1 at every edge."""
    if not len(edges):
        return np.zeros(len(t))
    index = np.searchsorted(edges, t, side="right") - 1
    since = t - edges[np.maximum(index, 0)]
    found: Array = np.where(index >= 0, np.exp(-np.maximum(since, 0.0) / tau), 0.0)
    return found


def _hats(t: Array, knots: Array, knot_s: float) -> Array:
    """Return the hat function of each knot, shape (knots, times)."""
    place = (t - knots[0]) / knot_s
    index = np.clip(place.astype(np.int64), 0, len(knots) - 2)
    part = place - index
    found = np.zeros((len(knots), len(t)))
    columns = np.arange(len(t))
    found[index, columns] = 1 - part
    found[index + 1, columns] = part
    return found
