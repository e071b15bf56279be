"""What no method can beat: how wide the intervals must be if everything is known but the powers of the classes.

The bound is the inverse of the Fisher information (Cramer-Rao). It uses what only the simulation knows: the exact lag, times,
noise and deviation from call to call, and how readings vary together. (Readings of one iteration see the same calls, so their
errors are alike.) About the powers it knows beforehand what the analysis knows. No estimate that knows no more about the powers can be
closer on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.energy.cases import Setting
from benchmarks.energy.simulate import SENSORS, Repeated, Sensor
from magneton.analysis.energy.sensor_model.disaggregate import MAX_HALF_WIDTH
from magneton.analysis.energy.sensor_model.fit import CALL_SPREAD, CLASS_SPREAD
from magneton.analysis.energy.sensor_model.sensor import busy_fractions
from magneton.analysis.energy.sensor_model.timeline import Array, between

# Gain of the simulated unit against its calibration.
_GAIN_SD = 0.003
_DRAWS = 400


@dataclass(frozen=True)
class Bound:
    """The best that can be known of one case, in percent.

    Attributes:
        case: what was simulated.
        within: widest half-width that counts as known.
        single: share of the running energy in classes whose 95 % half-width can be within that.
        p90: error of those that 90 % would stay within; NULL where there are none.
        share_within_3: largest share of the energy in single classes of which 90 % would stay within 3 %.
    """

    case: str
    within: float
    single: float
    p90: float | None
    share_within_3: float


def bound(setting: Setting, seeds: Sequence[int], within: float = MAX_HALF_WIDTH) -> Bound:
    """Return the bound of a case, the mean over seeds."""
    sensor = SENSORS[setting.sensor]
    singles, p90s, shares = [], [], []
    for seed in seeds:
        rng = np.random.default_rng([seed, 41])
        device = setting.device(rng)
        window = setting.window
        truth = device.truth(*window)[0]
        ran = truth > 0
        sd = _deviations(device, sensor, window)[ran] / truth[ran]
        share = truth[ran] / truth.sum()
        known = 1.96 * sd <= within
        singles.append(float(share[known].sum()))
        p90s += [_p90(sd[known], rng)] if known.any() else []
        order = np.argsort(sd)
        kept = [n for n in range(1, len(order) + 1) if _p90(sd[order[:n]], rng) <= 0.03]
        shares.append(float(share[order[: max(kept, default=0)]].sum()))
    p90 = 100 * float(np.mean(p90s)) if p90s else None
    return Bound(setting.name, 100 * within, 100 * float(np.mean(singles)), p90, 100 * float(np.mean(shares)))


def _p90(sd: Array, rng: np.random.Generator) -> float:
    return float(np.percentile(np.abs(sd * rng.standard_normal((_DRAWS, len(sd)))), 90))


def _deviations(device: Repeated, sensor: Sensor, window: tuple[float, float]) -> Array:
    """Return the least standard deviation of each class's energy, J."""
    updates = np.arange(window[0], window[1], sensor.period_s)
    fractions = busy_fractions(device, updates, sensor.response, 0.0)
    count = len(device.classes)
    x = np.hstack([np.ones((len(updates), 1)), fractions])
    level = device.board.idle_w + float((fractions @ device.dynamic_w).mean())
    prior = np.append(0.4 * level, np.full(count, CLASS_SPREAD * 0.6 * level / float(fractions.sum(axis=1).mean())))
    information = x.T @ np.linalg.solve(_covariance(device, sensor, updates), x) + np.diag(1 / prior**2)
    edges = np.array(window)
    weights = np.zeros((count, count + 1))
    weights[:, 0] = between(device.share(edges))
    weights[np.arange(count), 1 + np.arange(count)] = between(device.active(edges))
    energies = np.diag(weights @ np.linalg.inv(information) @ weights.T)
    truth = device.truth(*window)[0]
    found: Array = np.sqrt(energies + (_GAIN_SD * truth) ** 2)
    return found


def _covariance(device: Repeated, sensor: Sensor, updates: Array) -> Array:
    """Return the covariance of the readings around their mean: noise, and what iterations have of their own."""
    edges = np.asarray(sensor.response.edges_s)
    weights = np.asarray(sensor.response.weights)
    starts = np.append(device.iterations_s, device.end_s)
    first = np.searchsorted(starts, updates - edges[-1], "right") - 1
    last = np.searchsorted(starts, updates, "right") - 1
    rows: dict[int, list[tuple[int, Array]]] = {}
    for k, at in enumerate(updates.tolist()):
        for i in range(max(int(first[k]), 0), min(int(last[k]), len(starts) - 2) + 1):
            part = np.clip(at - edges, starts[i], starts[i + 1])
            active = device.active(part)
            seen = ((active[:, :-1] - active[:, 1:]) / np.diff(edges)) @ weights
            rows.setdefault(i, []).append((k, CALL_SPREAD * seen * device.dynamic_w))
    found = np.eye(len(updates)) * sensor.noise_w**2
    for entries in rows.values():
        index = np.array([k for k, _ in entries])
        own = np.array([v for _, v in entries])
        found[np.ix_(index, index)] += own @ own.T
    return found
