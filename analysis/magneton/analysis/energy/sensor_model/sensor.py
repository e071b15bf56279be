"""What a power sensor shows: the instants at which it updates, and how a reading follows from the true power.

A sensor refreshes its value at ``u_k = phase + k * period`` and shows, until the next refresh,

    y_k = offset + gain * integral h(s) P(u_k - lag - s) ds + noise

with a response ``h`` that is a boxcar (the mean over the last w seconds) or of first order (a low-pass with time constant tau).

Polls between two refreshes show the same value. A refresh happened between the last poll with the old value and the first poll with
the new one. Each change of value gives such an interval. The refreshes form a lattice: equally spaced instants. The lattice must
have a point in each of the intervals.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from magneton.analysis.energy.sensor_model.timeline import Activity, Array

# A first-order response is approximated by this many boxcars of equal weight; the last ends at an age of 9 tau.
_PIECES = 24
_TAIL = 9.0
# Least number of polls per update; with fewer the lattice cannot be found.
_MIN_POLLS_PER_UPDATE = 2.0
_MIN_CHANGES = 6
_FIRST_CHANGES = 128


@dataclass(frozen=True)
class Response:
    """How a reading weighs the past: a weight for each range of ages.

    Attributes:
        kind: ``boxcar`` or ``first_order``.
        scale_s: width w, or time constant tau, s.
        edges_s: ages at which the weight changes, s, ascending, one more than weights.
        weights: weight of each stretch; they sum to 1.
    """

    kind: str
    scale_s: float
    edges_s: tuple[float, ...]
    weights: tuple[float, ...]

    @property
    def reach_s(self) -> float:
        """How far back a reading looks, s."""
        return self.edges_s[-1]


def boxcar(width_s: float) -> Response:
    """Return the mean over the last ``width_s`` seconds."""
    return Response("boxcar", width_s, (0.0, width_s), (1.0,))


def first_order(tau_s: float) -> Response:
    """Return a low-pass of first order, ``h(s) = exp(-s / tau) / tau``."""
    survive = np.linspace(1.0, np.exp(-_TAIL), _PIECES + 1)
    edges = -np.log(survive) * tau_s
    return Response("first_order", tau_s, tuple(edges.tolist()), tuple(np.full(_PIECES, 1.0 / _PIECES).tolist()))


def busy_fractions(activity: Activity, updates_s: Array, response: Response, lag_s: float) -> Array:
    """Return ``integral h(s) n_c(u - lag - s) ds`` for each update and class, shape (updates, classes)."""
    edges = np.asarray(response.edges_s)
    at = (updates_s[:, None] - lag_s - edges[None, :]).ravel()
    total = activity.active(at).reshape(len(activity.classes), len(updates_s), len(edges))
    mean = (total[:, :, :-1] - total[:, :, 1:]) / np.diff(edges)
    fractions: Array = (mean @ np.asarray(response.weights)).T
    return fractions


@dataclass(frozen=True)
class Updates:
    """The readings of a sensor, each once.

    Attributes:
        t_s: when each was made, s.
        value: reading, W.
        timing_sd_s: standard deviation of ``t_s``.
        period_s: time between updates; None where it is not known.
        locked: one lattice fits the readings.
        outside: share of the changes that do not fit it.
    """

    t_s: Array
    value: Array
    timing_sd_s: float
    period_s: float | None
    locked: bool
    outside: float = 0.0

    def within(self, start_s: float, end_s: float) -> Updates:
        """Return the updates of a stretch of time."""
        keep = (self.t_s >= start_s) & (self.t_s <= end_s)
        return Updates(self.t_s[keep], self.value[keep], self.timing_sd_s, self.period_s, self.locked, self.outside)


def lock(poll_s: Array, value: Array, *, period_s: float | None = None) -> Updates:
    """Find the updates behind the polls of a sensor.

    Args:
        poll_s: times of the polls, s, ascending.
        value: what each showed, W; NaN where nothing.
        period_s: time between updates, where it is known.

    Returns:
        One reading per point of the lattice. No lattice can be found if polls are too far apart or too few values change. Then each
        poll is returned, with its time moved back by half a period (or unchanged, if no period is known).
    """
    known = ~np.isnan(value)
    t, v = poll_s[known], value[known]
    changed = np.flatnonzero(np.diff(v) != 0)
    low, high = t[changed], t[changed + 1]
    spacing = float(np.median(np.diff(t))) if len(t) > 1 else 0.0
    guess = period_s or (_first_guess(low, high) if len(changed) >= _MIN_CHANGES else None)
    if guess is None or len(changed) < _MIN_CHANGES or guess < _MIN_POLLS_PER_UPDATE * spacing:
        return _unlocked(t, v, period_s)
    found, phase, sd, outside = _fit_lattice(low, high, guess, 0.002 if period_s else 0.04)
    first, last = int(np.ceil((t[0] - phase) / found)), int(np.floor((t[-1] - phase) / found))
    lattice = phase + found * np.arange(first, last + 1)
    # The poll nearest to the middle between two updates shows the value of the earlier update, in spite of jitter.
    middle = lattice + found / 2
    nearest = np.clip(np.searchsorted(t, middle), 1, len(t) - 1)
    nearest = np.where(middle - t[nearest - 1] < t[nearest] - middle, nearest - 1, nearest)
    seen = np.abs(t[nearest] - middle) < found / 2
    times: Array = np.asarray(lattice[seen], np.float64)
    return Updates(times, v[nearest[seen]], sd, found, True, outside)


def _unlocked(t: Array, v: Array, period_s: float | None) -> Updates:
    if period_s is None:
        return Updates(t, v, 0.0, None, False)
    return Updates(t - period_s / 2, v, period_s / np.sqrt(12), period_s, False)


def _first_guess(low: Array, high: Array) -> float:
    """Return a rough period: the typical time between neighbouring changes, without changes that skip an update."""
    steps = np.diff((low + high) / 2)
    typical = float(np.median(steps))
    near = steps[(steps > 0.6 * typical) & (steps < 1.4 * typical)]
    return float(np.mean(near))


def _fit_lattice(low: Array, high: Array, guess: float, spread: float) -> tuple[float, float, float, float]:
    """Return period, phase, standard deviation of an update's time and share of the intervals missed.

    The best lattice has a point in the largest number of intervals. Of several equally good ones the middle is taken. The period is
    found from the first changes, then refined with four times as many, until all are used. So a long log takes little longer
    than a short one.
    """
    center = float(low[0] + high[0]) / 2
    lo, hi = low - center, high - center
    step = min(5e-4, guess / 40)
    count = min(len(lo), _FIRST_CHANGES)
    period, phase, sd, hits = _search(lo[:count], hi[:count], guess, spread, step)
    while count < len(lo):
        reached = max(float(hi[count - 1]), guess)
        count = min(4 * count, len(lo))
        period, phase, sd, hits = _search(lo[:count], hi[:count], period, 4 * step / reached, step)
    reached = max(float(hi[-1]), guess)
    period, phase, sd, hits = _search(lo, hi, period, 4 * step / reached, step / 4)
    return period, phase + center, max(sd, 1e-5), 1 - hits / len(lo)


def _search(lo: Array, hi: Array, guess: float, spread: float, step: float) -> tuple[float, float, float, int]:
    """Return the best lattice with a period within ``spread`` (relative) of ``guess``: period, phase, deviation, hits."""
    length = max(float(hi[-1]), guess)
    fine = max(guess * step / length, guess * 1e-7)
    best = 0
    candidates: list[tuple[float, float]] = []
    for period in np.arange(guess * (1 - spread), guess * (1 + spread) + fine, fine).tolist():
        hits, phases = _cover(lo, hi, period, step)
        top = int(hits.max())
        if top > best:
            best, candidates = top, []
        if top == best:
            candidates += [(period, p) for p in phases[hits == top].tolist()]
    period, phase, sd = _middle(candidates, length) if candidates else (guess, 0.0, step)
    return period, phase, sd, best


def _cover(lo: Array, hi: Array, period: float, step: float) -> tuple[npt.NDArray[np.int64], Array]:
    """Return how many of the intervals hold a point of the lattice, for each phase of a grid."""
    cells = max(int(period / step), 8)
    first = np.floor((lo % period) / period * cells).astype(np.int64) + 1
    width = np.minimum(np.floor((hi - lo) / period * cells).astype(np.int64), cells)
    change = np.zeros(2 * cells + 2, dtype=np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, np.minimum(first + np.maximum(width, 1), 2 * cells + 1), -1)
    line = np.cumsum(change)
    return line[:cells] + line[cells : 2 * cells], np.arange(cells) / cells * period


def _middle(candidates: list[tuple[float, float]], length: float) -> tuple[float, float, float]:
    """Return the middle of the best lattices: period, phase, and standard deviation of an update in the middle of the recording."""
    pairs = np.array(candidates)
    period = float(np.median(pairs[:, 0]))
    # Compared in the middle of the recording, where an error of the period matters least.
    turns = round(length / 2 / period)
    at = pairs[:, 1] + turns * pairs[:, 0]
    angle = np.exp(2j * np.pi * at / period)
    mean = float(np.angle(angle.mean()) / (2 * np.pi) * period)
    off = (at - mean + period / 2) % period - period / 2
    phase = (mean - turns * period) % period
    return period, float(phase), float(np.sqrt(np.mean(off**2)))


@dataclass(frozen=True)
class Calibration:
    """Gain and offset of a sensor against the true power, with their standard deviations.

    Attributes:
        gain: reading per true watt.
        offset_w: reading at no power, W.
        gain_sd: standard deviation of the gain.
        offset_sd_w: standard deviation of the offset, W.
        correlation: between the two.
        source: ``meter`` (calibrated with a meter) or ``none`` (gain 1 and offset 0 are assumed, within the tolerance of sensors).
        gain_per_degree: change of the gain per degree Celsius, where it was found.
        reference_degc: temperature at which ``gain`` holds; None where it was not looked at.
    """

    gain: float = 1.0
    offset_w: float = 0.0
    gain_sd: float = 0.05
    offset_sd_w: float = 2.0
    correlation: float = 0.0
    source: str = "none"
    gain_per_degree: float = 0.0
    reference_degc: float | None = None

    def at(self, degc: float) -> Calibration:
        """Return the calibration at another temperature of the device."""
        if self.reference_degc is None:
            return self
        gain = self.gain + self.gain_per_degree * (degc - self.reference_degc)
        return replace(self, gain=gain, reference_degc=degc)

    def true_energy(self, sensor_j: float, seconds: float) -> float:
        """Return the true energy for an energy in the scale of the sensor."""
        return (sensor_j - self.offset_w * seconds) / self.gain

    def energy_sd(self, true_j: float, seconds: float) -> float:
        """Return the standard deviation of an energy from the calibration, J."""
        by_gain, by_offset = true_j * self.gain_sd, seconds * self.offset_sd_w
        square = by_gain**2 + by_offset**2 + 2 * self.correlation * by_gain * by_offset
        return float(np.sqrt(max(square, 0.0)) / self.gain)


@dataclass(frozen=True)
class SensorModel:
    """Everything known about a sensor.

    Attributes:
        period_s: time between updates, s.
        response: how a reading follows the power.
        lag_s: age of the newest power that a reading includes, s.
        lag_sd_s: standard deviation of it.
        noise_w: standard deviation of a reading, W.
        calibration: gain and offset.
        name: what it is a model of.
        simulated: it describes a simulated sensor.
        alternatives: other responses that it may have, about as likely; estimates average over them.
    """

    period_s: float
    response: Response
    lag_s: float = 0.0
    lag_sd_s: float = 0.001
    noise_w: float = 1.0
    calibration: Calibration = field(default_factory=Calibration)
    name: str = ""
    simulated: bool = False
    alternatives: tuple[Response, ...] = ()
