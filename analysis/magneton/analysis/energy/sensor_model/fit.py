"""Least squares of sensor readings on what ran: the posterior of power at rest and of power per class.

The model is ``y_k = P0 + sum_c D_c f_kc + drift(u_k) + e_k``: reading k is the power at rest P0, plus the power D_c of each class
times its busy fraction f_kc, plus a slow drift, plus an error.

* P0 and D have wide Gaussian priors and are not negative. A class that was not seen keeps its prior, with its wide interval.
* The lag is not fixed. The fit averages over possible lags, weighted by marginal likelihood times prior. So the uncertainty of the
  lag is part of every interval.
* If the residuals are larger than the noise of the sensor explains (chi-square), the errors are scaled up. They are never scaled
  down.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from magneton.analysis.energy.sensor_model.sensor import Response, SensorModel, Updates, busy_fractions
from magneton.analysis.energy.sensor_model.timeline import Activity, Array

# Prior of the power of a class: the mean power above rest, with this relative standard deviation.
CLASS_SPREAD = 0.6
# The power of one class differs from call to call by about this share (clocks, data), as measured on the shared recordings.
CALL_SPREAD = 0.02
# Drift is a line with a corner every DRIFT_KNOT_S. DRIFT_SHARE is the standard deviation of a corner, relative to the mean power.
DRIFT_KNOT_S = 2.0
DRIFT_SHARE = 0.01
_MAX_KNOTS = 30
# Lags to average over: their distance, and the least and greatest number of them.
_LAG_STEP_S = 0.0005
_LAG_STEPS = (13, 61)
_LAG_REACH = 3.0
_LAG_CLOSE = 17


@dataclass(frozen=True)
class Fit:
    """Posterior of the powers, in the sensor's scale, W.

    Attributes:
        classes: names, in the order of the parameters after the first.
        mean: P0, D_c ..., drift corners ...; shape (p,).
        cov: covariance, shape (p, p), the lag included.
        knots_s: times of the drift corners.
        chi2: residuals squared over what the noise explains, per degree of freedom, before inflation.
        free: degrees of freedom of it.
        lag_s: mean lag.
        lag_sd_s: standard deviation of the lag.
        lag_modes: number of separate lags that explain the readings about equally well.
        spread: standard deviation of each class's busy fraction over the updates.
        shrinkage: share of the prior variance of each parameter that the readings took away.
        log_evidence: log marginal likelihood.
        n: updates used.
        correlation: correlation of the residuals of neighbouring readings. The covariance includes it.
    """

    classes: tuple[str, ...]
    mean: Array
    cov: Array
    knots_s: Array
    chi2: float
    free: float
    lag_s: float
    lag_sd_s: float
    lag_modes: int
    spread: Array
    shrinkage: Array
    log_evidence: float
    n: int
    correlation: float = 0.0


@dataclass(frozen=True)
class _Posterior:
    mean: Array
    cov: Array
    log_evidence: float


def hats(t: Array, knots: Array) -> Array:
    """Return the hat functions of the knots at each time, shape (times, knots); constant beyond the outermost."""
    columns = [np.interp(t, knots, row) for row in np.eye(len(knots))]
    return np.stack(columns, axis=1) if columns else np.zeros((len(t), 0))


def hat_integrals(knots: Array, start_s: float, end_s: float) -> Array:
    """Return the integral of each hat function over a window, s."""
    if len(knots) == 0:
        return np.zeros(0)
    inner = knots[(knots > start_s) & (knots < end_s)]
    grid = np.concatenate([[start_s], inner, [end_s]])
    values = hats(grid, knots)
    found: Array = (np.diff(grid)[:, None] * (values[1:] + values[:-1]) / 2).sum(axis=0)
    return found


def fit_power(
    updates: Updates,
    activity: Activity,
    model: SensorModel,
    *,
    idle_w: tuple[float, float] | None = None,
    drift: bool = True,
) -> Fit | None:
    """Fit power at rest and per class to readings.

    Args:
        updates: readings to use.
        activity: what ran, on the same clock.
        model: the sensor; its gain and offset are not used here.
        idle_w: power at rest and its standard deviation, W, where known (sensor's scale).
        drift: allow the power to drift slowly.

    Returns:
        The posterior; None with fewer than three readings.
    """
    if len(updates.value) < 3:
        return None
    lags = _lags(model)
    coarse = _fit(updates, activity, model, lags, idle_w, drift)
    step = float(lags[1] - lags[0]) if len(lags) > 1 else 0.0
    if coarse.lag_sd_s >= step:
        return coarse
    # The lag is known better than the step of the grid, so a finer grid is used.
    near = coarse.lag_s + step * np.linspace(-1, 1, _LAG_CLOSE)
    return replace(_fit(updates, activity, model, near, idle_w, drift), lag_modes=coarse.lag_modes)


def _fit(
    updates: Updates,
    activity: Activity,
    model: SensorModel,
    grid: Array,
    idle_w: tuple[float, float] | None,
    drift: bool,
) -> Fit:
    """Fit with each lag of a grid and each response, and average."""
    y, t = updates.value, updates.t_s
    log_prior = np.zeros(len(grid)) if len(grid) < 2 else -0.5 * ((grid - model.lag_s) / model.lag_sd_s) ** 2
    responses = (model.response, *model.alternatives)
    tries = [(response, float(lag)) for response in responses for lag in grid]
    lags = np.array([lag for _, lag in tries])
    log_prior = np.tile(log_prior, len(responses))
    sets = [busy_fractions(activity, t, response, lag) for response, lag in tries]
    knots = _knots(t) if drift else np.zeros(0)
    bumps = hats(t, knots)
    mean, sd = _prior(y, sets[len(grid) // 2], len(knots), idle_w)
    timing = updates.timing_sd_s
    steep: dict[int, Array] = {}
    ones = np.ones((len(y), 1))
    designs = [np.hstack([ones, f, bumps]) for f in sets]
    base = model.noise_w**2
    var = np.full(len(y), base + (CALL_SPREAD * float(np.mean(y))) ** 2)
    best = len(grid) // 2
    chi2, free = 1.0, 1.0
    posts: list[_Posterior] = []
    for _ in range(3):
        posts = [_solve(x, y, var, mean, sd) for x in designs]
        best = int(np.argmax([p.log_evidence + q for p, q in zip(posts, log_prior, strict=True)]))
        k = sets[best].shape[1]
        powers = posts[best].mean[1 : 1 + k]
        if best not in steep:
            steep[best] = _steepness(activity, t, *tries[best])
        expected = base + (timing * (steep[best] @ powers)) ** 2
        expected = expected + ((CALL_SPREAD * sets[best] * powers) ** 2).sum(axis=1)
        residual = y - designs[best] @ posts[best].mean
        taken = float(np.sum(1 - np.diag(posts[best].cov) / sd**2))
        free = max(len(y) - taken, 1.0)
        chi2 = float(np.sum(residual**2 / expected) / free)
        var = expected * max(1.0, chi2)
    # Readings that averaged over the same call have the same deviation of this call.
    correlation = _correlation((y - designs[best] @ posts[best].mean) / np.sqrt(var))
    white = [_whitened(x, y, var, correlation) for x in designs]
    flat = np.ones(len(y))
    posts = [_solve(x, z, flat, mean, sd) for x, z in white]
    posts = [
        _nonnegative(p, x, z, flat, mean, sd, sets[0].shape[1] + 1) for p, (x, z) in zip(posts, white, strict=True)
    ]
    weight = np.array([p.log_evidence for p in posts]) + log_prior
    weight = np.exp(weight - weight.max())
    modes = _modes(weight.reshape(len(responses), len(grid)).sum(axis=0))
    weight /= weight.sum()
    center = sum((w * p.mean for w, p in zip(weight, posts, strict=True)), np.zeros_like(mean))
    cov = np.zeros((len(mean), len(mean)))
    for w, p in zip(weight, posts, strict=True):
        off = p.mean - center
        cov += w * (p.cov + np.outer(off, off))
    lag = float(weight @ lags)
    inside = np.diag(sum((w * p.cov for w, p in zip(weight, posts, strict=True)), np.zeros_like(cov)))
    return Fit(
        classes=activity.classes,
        mean=center,
        cov=cov,
        knots_s=knots,
        chi2=chi2,
        free=free,
        lag_s=lag,
        lag_sd_s=float(np.sqrt(weight @ (lags - lag) ** 2)),
        lag_modes=modes,
        spread=sets[best].std(axis=0),
        shrinkage=1 - inside / sd**2,
        log_evidence=posts[best].log_evidence - _log_volume(var, correlation),
        n=len(y),
        correlation=correlation,
    )


def _correlation(residual: Array) -> float:
    """Return the correlation of neighbouring residuals, limited to 0 to 0.9."""
    if len(residual) < 8:
        return 0.0
    centered = residual - residual.mean()
    power = float(centered @ centered)
    return float(np.clip(centered[1:] @ centered[:-1] / power, 0.0, 0.9)) if power > 0 else 0.0


def _whitened(x: Array, y: Array, var: Array, correlation: float) -> tuple[Array, Array]:
    """Return design and readings, transformed so that their errors are independent with deviation 1.

    The errors are modelled as an autoregressive process of first order with the given correlation of neighbours.
    """
    both = np.column_stack([x, y]) / np.sqrt(var)[:, None]
    rest = np.sqrt(1 - correlation**2)
    made = both.copy()
    made[1:] = (both[1:] - correlation * both[:-1]) / rest
    return made[:, :-1], made[:, -1]


def _log_volume(var: Array, correlation: float) -> float:
    """Return the log determinant of the whitening. With it, fits with different correlations can be compared."""
    return 0.5 * float(np.log(var).sum() + (len(var) - 1) * np.log1p(-(correlation**2)))


def _lags(model: SensorModel) -> Array:
    """Return the lags to average over."""
    if model.lag_sd_s <= 0:
        return np.array([model.lag_s])
    count = int(np.clip(2 * _LAG_REACH * model.lag_sd_s / _LAG_STEP_S, *_LAG_STEPS)) | 1
    return model.lag_s + _LAG_REACH * model.lag_sd_s * np.linspace(-1, 1, count)


def _knots(t: Array) -> Array:
    length = float(t[-1] - t[0])
    count = int(min(length // DRIFT_KNOT_S, _MAX_KNOTS))
    return np.linspace(t[0], t[-1], count + 1) if count >= 2 else np.zeros(0)


def _prior(y: Array, fractions: Array, knots: int, idle_w: tuple[float, float] | None) -> tuple[Array, Array]:
    level = float(np.mean(y))
    idle, idle_sd = idle_w if idle_w is not None else (0.4 * level, 0.4 * level)
    running = float(fractions.sum(axis=1).mean())
    typical = max((level - idle) / max(running, 0.02), 0.1 * level)
    count = fractions.shape[1]
    mean = np.concatenate([[idle], np.full(count, typical), np.zeros(knots)])
    sd = np.concatenate([[idle_sd], np.full(count, CLASS_SPREAD * typical), np.full(knots, DRIFT_SHARE * level)])
    return mean, sd


def _steepness(activity: Activity, t: Array, response: Response, lag_s: float) -> Array:
    """Return how fast each busy fraction changes with the time of the update, 1/s (a central difference over 1 ms)."""
    step = 5e-4
    later = busy_fractions(activity, t + step, response, lag_s)
    earlier = busy_fractions(activity, t - step, response, lag_s)
    found: Array = (later - earlier) / (2 * step)
    return found


def _solve(x: Array, y: Array, var: Array, mean: Array, sd: Array) -> _Posterior:
    z = x * sd
    weighted = z / var[:, None]
    rest = y - x @ mean
    precision = weighted.T @ z + np.eye(len(mean))
    right = weighted.T @ rest
    factor = np.linalg.cholesky(precision)
    b = np.linalg.solve(precision, right)
    log_evidence = -0.5 * (
        2 * np.log(np.diag(factor)).sum() + np.log(2 * np.pi * var).sum() + (rest**2 / var).sum() - right @ b
    )
    cov = np.linalg.inv(precision) * np.outer(sd, sd)
    return _Posterior(mean + sd * b, cov, float(log_evidence))


def _nonnegative(post: _Posterior, x: Array, y: Array, var: Array, mean: Array, sd: Array, count: int) -> _Posterior:
    """Return the posterior with the first ``count`` parameters not below 0. Negative ones are set to 0, one after the other."""
    fixed: set[int] = set()
    current = post.mean
    for _ in range(count):
        low = [i for i in range(count) if i not in fixed and current[i] < 0]
        if not low:
            break
        fixed.add(min(low, key=lambda i: float(current[i] / sd[i])))
        free = [i for i in range(len(mean)) if i not in fixed]
        part = _solve(x[:, free], y, var, mean[free], sd[free])
        current = np.zeros_like(mean)
        current[free] = part.mean
    return post if not fixed else _Posterior(current, post.cov, post.log_evidence)


def _modes(weight: Array) -> int:
    """Count the peaks of the weights.

    A peak reaches a tenth of the largest weight. Between two peaks the weights fall to a third of the lower peak.
    """
    peaks: list[int] = []
    weight = weight / weight.max()
    for i in range(len(weight)):
        left, right = weight[max(i - 1, 0)], weight[min(i + 1, len(weight) - 1)]
        if weight[i] >= 0.1 and weight[i] >= left and weight[i] >= right:
            if peaks and weight[peaks[-1] : i + 1].min() > min(weight[i], weight[peaks[-1]]) / 3:
                if weight[i] > weight[peaks[-1]]:
                    peaks[-1] = i
                continue
            peaks.append(i)
    return len(peaks)
