"""Energy of a window from what ran and a model of the sensor, with a 95 % interval that includes the calibration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from magneton.analysis.energy.sensor_model.fit import Fit, fit_power, hat_integrals
from magneton.analysis.energy.sensor_model.sensor import SensorModel, Updates
from magneton.analysis.energy.sensor_model.timeline import Activity, Array, between
from magneton.analysis.energy.t_distribution import t_quantile

Z95 = 1.959964


@dataclass(frozen=True)
class TotalEstimate:
    """Energy of a window.

    Attributes:
        energy_j: estimate, J.
        low_j: lower end of the 95 % interval.
        high_j: upper end.
        fit_sd_j: standard deviation from the readings, J.
        calibration_sd_j: standard deviation from gain and offset, J.
        fit: the powers behind it.
    """

    energy_j: float
    low_j: float
    high_j: float
    fit_sd_j: float
    calibration_sd_j: float
    fit: Fit


def gross_weights(fit: Fit, activity: Activity, start_s: float, end_s: float) -> Array:
    """Return the vector whose product with the parameters is the energy of a window (sensor's scale)."""
    edges = np.array([start_s, end_s])
    return np.concatenate(
        [[end_s - start_s], between(activity.active(edges)), hat_integrals(fit.knots_s, start_s, end_s)]
    )


def estimate_total(
    updates: Updates,
    activity: Activity,
    window_s: tuple[float, float],
    model: SensorModel,
    *,
    idle_w: tuple[float, float] | None = None,
    call_spread_w: float | None = None,
) -> TotalEstimate | None:
    """Return the energy of a window.

    Args:
        updates: readings to use; those around the window help as well.
        activity: what ran, on the same clock, as far back as the readings look.
        window_s: start and end, s.
        model: the sensor.
        idle_w: power at rest and its standard deviation, where known (sensor's scale).
        call_spread_w: standard deviation of power variations that no class describes, W (default: from the residuals).

    Returns:
        The estimate; None with fewer than three readings.
    """
    start_s, end_s = window_s
    fit = fit_power(updates, activity, model, idle_w=idle_w)
    if fit is None:
        return None
    weights = gross_weights(fit, activity, start_s, end_s)
    seen = float(weights @ fit.mean)
    seconds = end_s - start_s
    fit_var = float(weights @ fit.cov @ weights)
    # Readings cover only part of the time. Variations in between average out with the number of update periods.
    unseen = call_spread_w if call_spread_w is not None else np.sqrt(max(fit.chi2, 1.0)) * model.noise_w
    inside = int(np.sum((updates.t_s >= start_s) & (updates.t_s <= end_s)))
    stretches = max(min(seconds / model.period_s, inside), 1.0)
    fit_var += (unseen * seconds) ** 2 / stretches
    calibration = model.calibration
    true = calibration.true_energy(seen, seconds)
    fit_sd = float(np.sqrt(fit_var)) / calibration.gain
    calibration_sd = calibration.energy_sd(true, seconds)
    half = float(np.hypot(t_quantile(0.05, max(fit.free, 2.0)) * fit_sd, Z95 * calibration_sd))
    return TotalEstimate(true, true - half, true + half, fit_sd, calibration_sd, fit)
