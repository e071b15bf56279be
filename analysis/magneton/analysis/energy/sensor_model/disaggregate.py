"""Energy of each class of kernels, from readings that average over many classes.

The method is least squares: each reading is a weighted sum of the powers of the classes. A class is *identified* if

* the 95 % interval of its energy is within 6 % to either side;
* its busy fraction varied between readings;
* the readings fit the model of the sensor (chi-square), and no other averaging window explains them better;
* the lag is known and not ambiguous;
* the updates fell on enough different places of an iteration.

A class that fails is merged with the class that helps most, until the group passes. The energy of a group is never divided
among its classes. What still fails is ``not_identifiable``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from magneton.analysis.energy.sensor_model.fit import CALL_SPREAD, Fit, fit_power, hat_integrals
from magneton.analysis.energy.sensor_model.sensor import (
    Response,
    SensorModel,
    Updates,
    boxcar,
    busy_fractions,
    first_order,
)
from magneton.analysis.energy.sensor_model.timeline import Activity, Array, between
from magneton.analysis.energy.t_distribution import chi2_above, t_quantile
from magneton.schemas.kinds import EnergyLabel

# On simulated sensors, with a limit of 10 % one energy in ten is wrong by more than 5 %; with 6 %, by more than 3 %.
MAX_HALF_WIDTH = 0.06
# Least difference between the 95th and the 5th percentile of the busy fraction of a class over the readings.
MIN_SPREAD = 0.05
# If the residuals are less probable than this under the model, the model is wrong.
MIN_CHI2_P = 1e-4
# Calls that vary more than usual raise chi-square too. Up to this value that only widens the intervals.
MAX_CHI2 = 3.0
# The given averaging window is rejected if another has a log evidence that is higher by this.
BETTER_WINDOW = 6.0
# Longest part of an iteration, as a share, in which no reading ends.
MAX_PHASE_GAP = 0.25
MAX_OUTSIDE_LATTICE = 0.15
MAX_TIMING_SHARE = 0.25
# Largest standard deviation of the lag, as a share of the time that a reading averages over.
MAX_LAG_SHARE = 0.03


@dataclass(frozen=True)
class GroupEnergy:
    """Energy of a class, or of several classes of which only the sum is known, J.

    Attributes:
        classes: names.
        energy_j: its energy: its share of the power at rest, and the power above rest.
        static_j: the share of the power at rest.
        dynamic_j: the rest.
        low_j: lower end of the 95 % interval of ``energy_j``.
        high_j: upper end.
        label: ``disaggregated`` or ``not_identifiable``.
        reasons: why it is not identified.
    """

    classes: tuple[str, ...]
    energy_j: float
    static_j: float
    dynamic_j: float
    low_j: float
    high_j: float
    label: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Disaggregation:
    """Energy of a window by class. ``sum(groups) + idle_j = total_j``.

    Attributes:
        groups: every class, alone or merged, largest first.
        idle_j: energy while nothing ran, J.
        total_j: energy of the window, J.
        total_low_j: lower end of its 95 % interval.
        total_high_j: upper end.
        refusals: reasons that hold for all classes.
        fit: the powers behind it.
        by_class: estimate for each class, identified or not, in the order of the activity's classes. Show it as
            ``not_identifiable``, if at all.
        by_class_static: the static part of it.
        simulated: the sensor was simulated.
    """

    groups: tuple[GroupEnergy, ...]
    idle_j: float
    total_j: float
    total_low_j: float
    total_high_j: float
    refusals: tuple[str, ...]
    fit: Fit
    by_class: Array
    by_class_static: Array
    simulated: bool = False

    @property
    def identified(self) -> tuple[GroupEnergy, ...]:
        """The groups whose energy is known."""
        return tuple(g for g in self.groups if g.label == EnergyLabel.DISAGGREGATED)


@dataclass(frozen=True)
class _Energies:
    """Energy of each class and of idle time, true scale, with covariance."""

    mean: Array
    static: Array
    cov: Array
    offset: Array


def disaggregate(
    updates: Updates,
    activity: Activity,
    window_s: tuple[float, float],
    model: SensorModel,
    *,
    idle_w: tuple[float, float] | None = None,
    total_j: tuple[float, float] | None = None,
    iterations_s: Array | None = None,
    within: float = MAX_HALF_WIDTH,
) -> Disaggregation | None:
    """Return the energy of a window by class of kernels.

    Args:
        updates: readings, on the clock of the activity.
        activity: what ran.
        window_s: start and end, s.
        model: the sensor.
        idle_w: power at rest and its standard deviation, W, in the sensor's scale, where known.
        total_j: energy of the window and its standard deviation, J, from a better source (a counter), where there is one.
        iterations_s: starts of the iterations, where known, to see whether the updates follow their beat.
        within: widest 95 % half-width of an identified class or group, relative. Wider gives finer groups, known less well.

    Returns:
        The energies; None with fewer than three usable readings.
    """
    use = _usable(updates, activity, model)
    fit = fit_power(use, activity, model, idle_w=idle_w)
    if fit is None:
        return None
    energies = _energies(fit, activity, window_s, model, iterations_s)
    if total_j is not None:
        energies = _project(energies, *total_j)
    refusals = _refusals(use, fit, activity, model, iterations_s, idle_w)
    quantile = t_quantile(0.05, max(fit.free, 2.0))
    fractions = busy_fractions(activity, use.t_s, model.response, fit.lag_s)
    groups = _merge(energies, fractions, activity.classes, model, refusals, quantile, within)
    count = len(activity.classes)
    total = float(energies.mean.sum())
    total_sd = float(np.sqrt(max(energies.cov.sum(), 0.0)))
    half = _half(total, total_sd, float(energies.offset.sum()), model, quantile)
    return Disaggregation(
        groups=tuple(sorted(groups, key=lambda g: -g.energy_j)),
        idle_j=float(energies.mean[count]),
        total_j=total,
        total_low_j=total - half,
        total_high_j=total + half,
        refusals=refusals,
        fit=fit,
        by_class=energies.mean[:count],
        by_class_static=energies.static[:count],
        simulated=model.simulated,
    )


def _usable(updates: Updates, activity: Activity, model: SensorModel) -> Updates:
    reach = model.response.reach_s if model.response.kind == "boxcar" else 5 * model.response.scale_s
    return updates.within(activity.start_s + reach + max(model.lag_s, 0.0), activity.end_s + min(model.lag_s, 0.0))


def _energies(
    fit: Fit, activity: Activity, window_s: tuple[float, float], model: SensorModel, iterations_s: Array | None
) -> _Energies:
    edges = np.array(window_s)
    seconds = float(edges[1] - edges[0])
    share, active = between(activity.share(edges)), between(activity.active(edges))
    time = np.append(share, seconds - float(share.sum()))
    count = len(share)
    bumps = hat_integrals(fit.knots_s, *window_s)
    rest = np.zeros((count + 1, len(fit.mean)))
    rest[:, 0] = time
    # Drift of the device is shared like its power at rest.
    rest[:, 1 + count :] = np.outer(time / seconds, bumps)
    weights = rest.copy()
    weights[np.arange(count), 1 + np.arange(count)] = active
    calibration = model.calibration
    offset = calibration.offset_w * time
    mean = (weights @ fit.mean - offset) / calibration.gain
    static = (rest @ fit.mean - offset) / calibration.gain
    cov = weights @ fit.cov @ weights.T / calibration.gain**2
    # Power between readings varies from call to call. It counts as one independent value per update in the window.
    stretches = max(seconds / model.period_s, 1.0)
    wander = (np.sqrt(max(fit.chi2, 1.0)) * model.noise_w * seconds) ** 2 / stretches / calibration.gain**2
    running = np.append(active * fit.mean[1 : 1 + count], 0.0)
    part = running / running.sum() if running.sum() > 0 else np.full(count + 1, 1 / (count + 1))
    # The calls in the window are a sample: their mean power differs a little from that of the calls that were read.
    calls = (
        stretches / 10 if iterations_s is None else float(np.sum((iterations_s > edges[0]) & (iterations_s < edges[1])))
    )
    sample = (CALL_SPREAD * running / calibration.gain) ** 2 / max(calls, 1.0)
    cov = cov + np.diag(wander * part + sample)
    return _Energies(mean, static, cov, time)


def _project(energies: _Energies, total_j: float, total_sd: float) -> _Energies:
    """Adjust the energies so that they add up to a total that is known better. The most uncertain energy moves most."""
    ones = np.ones(len(energies.mean))
    toward = energies.cov @ ones
    spread = float(ones @ toward)
    if spread <= 0:
        return energies
    share = toward / spread
    mean = energies.mean + share * (total_j - float(energies.mean.sum()))
    cov = energies.cov - np.outer(share, toward) + np.outer(share, share) * total_sd**2
    # Rounding, to the last digit.
    mean[int(np.argmax(np.abs(mean)))] += total_j - float(mean.sum())
    return replace(energies, mean=mean, cov=cov)


def _half(energy_j: float, sd_j: float, seconds: float, model: SensorModel, quantile: float) -> float:
    """Return the half-width of the 95 % interval, the calibration included."""
    by_calibration = model.calibration.energy_sd(abs(energy_j), seconds)
    return float(np.hypot(quantile * sd_j, 1.96 * by_calibration))


def _refusals(
    updates: Updates,
    fit: Fit,
    activity: Activity,
    model: SensorModel,
    iterations_s: Array | None,
    idle_w: tuple[float, float] | None,
) -> tuple[str, ...]:
    reasons = []
    p = chi2_above(fit.chi2 * fit.free, fit.free)
    if p < MIN_CHI2_P and fit.chi2 > MAX_CHI2:
        reasons.append(f"the readings do not fit the sensor's model (chi-square {fit.chi2:.1f} per degree of freedom)")
    other = _better_window(updates, fit, activity, model, idle_w)
    if other is not None:
        reasons.append(f"another window explains the readings better: {other.kind} of {other.scale_s * 1e3:.0f} ms")
    if fit.lag_modes > 1:
        reasons.append(f"the lag is ambiguous: {fit.lag_modes} values explain the readings")
    if fit.lag_sd_s > MAX_LAG_SHARE * model.response.scale_s:
        reasons.append(f"the readings do not determine the lag: its standard deviation is {fit.lag_sd_s * 1e3:.1f} ms")
    if updates.locked and updates.outside > MAX_OUTSIDE_LATTICE:
        reasons.append(
            f"{updates.outside:.0%} of the updates do not fit one update period, so their time stamps are not reliable"
        )
    if not updates.locked and updates.timing_sd_s > MAX_TIMING_SHARE * model.response.scale_s:
        reasons.append(
            "the times of the readings are not known well enough, compared with the time that a reading averages over"
        )
    if iterations_s is not None:
        gap = _phase_gap(updates.t_s - fit.lag_s, iterations_s, model.response)
        if gap > MAX_PHASE_GAP:
            reasons.append(
                f"the updates of the sensor keep step with the iterations: no reading ends in {gap:.0%} of an iteration"
            )
    return tuple(reasons)


def _better_window(
    updates: Updates, fit: Fit, activity: Activity, model: SensorModel, idle_w: tuple[float, float] | None
) -> Response | None:
    """Return a response of another kind or size that explains the readings clearly better than the model's."""
    scale = model.response.scale_s
    # The noise is that of the residuals of the model. With the smaller noise of the sensor, any misfit would favour the other window.
    noise = model.noise_w * float(np.sqrt(max(fit.chi2, 1.0)))
    tries = [boxcar(scale * k) for k in (0.4, 2.5)] + [first_order(scale * 0.55), first_order(scale * 2.5)]
    if model.response.kind == "first_order":
        tries = [first_order(scale * k) for k in (0.4, 2.5)] + [boxcar(scale * 1.8), boxcar(scale * 6)]
    lone = replace(model, noise_w=noise, alternatives=())
    base = fit_power(updates, activity, lone, idle_w=idle_w)
    best: tuple[float, Response] | None = None
    for response in tries:
        found = fit_power(updates, activity, replace(lone, response=response), idle_w=idle_w)
        if found is not None and (best is None or found.log_evidence > best[0]):
            best = (found.log_evidence, response)
    if base is None or best is None or best[0] < base.log_evidence + BETTER_WINDOW:
        return None
    return best[1]


def _phase_gap(at_s: Array, iterations_s: Array, response: Response) -> float:
    """Return the longest part of an iteration, as a share, in which no reading ends.

    0 if each reading averages over a whole iteration or more.
    """
    if len(iterations_s) < 3 or len(at_s) == 0:
        return 0.0
    index = np.searchsorted(iterations_s, at_s, "right") - 1
    inside = (index >= 0) & (index < len(iterations_s) - 1)
    if not inside.any():
        return 0.0
    length = np.diff(iterations_s)[index[inside]]
    if response.scale_s >= float(np.median(length)):
        return 0.0
    phase = np.sort((at_s[inside] - iterations_s[index[inside]]) / length)
    gaps = np.diff(np.append(phase, phase[0] + 1.0))
    return float(gaps.max()) - response.scale_s / float(np.median(length))


def _spread(fraction: Array) -> float:
    """Return the difference between the 95th and the 5th percentile of a busy fraction over the readings."""
    low, high = np.percentile(fraction, (5.0, 95.0))
    return float(high - low)


def _merge(
    energies: _Energies,
    fractions: Array,
    classes: tuple[str, ...],
    model: SensorModel,
    refusals: tuple[str, ...],
    quantile: float,
    within: float,
) -> list[GroupEnergy]:
    """Merge classes until each group passes.

    The smallest failing class is merged first, with the partner that gives the narrowest interval.
    """
    count = len(classes)
    members = [[i] for i in range(count)]
    mean, cov = energies.mean[:count].copy(), energies.cov[:count, :count].copy()
    time, busy = energies.offset[:count].copy(), fractions.T.copy()

    def width(value: float, variance: float, seconds: float) -> float:
        return _half(value, float(np.sqrt(max(variance, 0.0))), seconds, model, quantile) / max(value, 1e-12)

    while len(members) > 1 and not refusals:
        widths = [width(m, cov[i, i], t) for i, (m, t) in enumerate(zip(mean, time, strict=True))]
        bad = [i for i in range(len(members)) if widths[i] > within or _spread(busy[i]) < MIN_SPREAD]
        if not bad:
            break
        # The smallest class first: it joins a group before large classes would have to.
        i = min(bad, key=lambda k: float(mean[k]))
        merged = mean + mean[i]
        variance = np.diag(cov) + cov[i, i] + 2 * cov[i]
        after = np.array([width(m, v, t) for m, v, t in zip(merged, variance, time + time[i], strict=True)])
        after[i] = np.inf
        # The partner is another failing class, as long as there is one. So an identified class stays alone. The last failing
        # class joins the smallest group that stays identified with it.
        others = [k for k in bad if k != i]
        if others:
            j = min(others, key=lambda k: float(after[k]))
        else:
            kept = [k for k in range(len(members)) if k != i and after[k] <= within]
            j = min(kept, key=lambda k: float(mean[k])) if kept else int(np.argmin(after))
        members[j] += members[i]
        mean[j] += mean[i]
        time[j] += time[i]
        busy[j] += busy[i]
        cov[j] += cov[i]
        cov[:, j] += cov[:, i]
        keep = [k for k in range(len(members)) if k != i]
        members = [members[k] for k in keep]
        mean, time, busy, cov = mean[keep], time[keep], busy[keep], cov[np.ix_(keep, keep)]
    result = []
    for i, group in enumerate(members):
        value = float(mean[i])
        half = _half(value, float(np.sqrt(max(cov[i, i], 0.0))), float(time[i]), model, quantile)
        share = half / max(value, 1e-12)
        reasons = list(refusals)
        if share > within:
            reasons.append(f"its interval is {share:.0%} to either side; the limit is {within:.0%}")
        if _spread(busy[i]) < MIN_SPREAD and len(members) > 1:
            reasons.append(f"its busy fraction hardly varies between readings (spread {_spread(busy[i]):.3f})")
        static = float(energies.static[group].sum())
        result.append(
            GroupEnergy(
                classes=tuple(classes[k] for k in group),
                energy_j=value,
                static_j=static,
                dynamic_j=value - static,
                low_j=value - half,
                high_j=value + half,
                label=EnergyLabel.NOT_IDENTIFIABLE if reasons else EnergyLabel.DISAGGREGATED,
                reasons=tuple(reasons),
            )
        )
    return result
