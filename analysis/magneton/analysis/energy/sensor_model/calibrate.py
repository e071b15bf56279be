"""Finding the model of a sensor: response and lag from a known load, gain and offset from an external meter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from magneton.analysis.energy.sensor_model.fit import fit_power
from magneton.analysis.energy.sensor_model.sensor import (
    Calibration,
    Response,
    SensorModel,
    Updates,
    boxcar,
    busy_fractions,
    first_order,
)
from magneton.analysis.energy.sensor_model.timeline import Activity, Array

# Calibrations from two recordings of one card, minutes apart, differ by this much (A100, step load and square wave).
REPEATABLE_GAIN = 0.002
REPEATABLE_OFFSET_W = 0.3
# Responses within this of the best log evidence are kept as alternatives.
_KEEP = 6.0


@dataclass(frozen=True)
class Candidate:
    """A response, and how well it explains readings."""

    response: Response
    log_evidence: float
    lag_s: float
    noise_w: float


def usual_responses(period_s: float) -> tuple[Response, ...]:
    """Return the responses worth trying: boxcars from 8 ms to 1.2 s and low-passes from 8 to 40 ms."""
    widths = [
        0.008,
        0.010,
        0.0125,
        0.016,
        0.020,
        0.023,
        0.025,
        0.028,
        0.032,
        0.040,
        0.06,
        0.08,
        0.5,
        0.8,
        0.95,
        1.0,
        1.05,
        1.1,
    ]
    widths += [round(period_s * k, 6) for k in (0.5, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15)]
    taus = [0.008, 0.010, 0.011, 0.012, 0.0125, 0.013, 0.0135, 0.014, 0.015, 0.017, 0.020, 0.025, 0.040]
    return (*(boxcar(w) for w in sorted(set(widths))), *(first_order(t) for t in taus))


def identify_response(
    updates: Updates,
    activity: Activity,
    *,
    responses: Sequence[Response] | None = None,
    lag_s: tuple[float, float] = (0.0, 0.010),
    noise_w: float = 0.5,
    idle_w: tuple[float, float] | None = None,
) -> list[Candidate]:
    """Rank responses by marginal likelihood of readings under a known load; no meter is needed.

    Args:
        updates: readings, at times known from a lattice.
        activity: the load. It must change within the time that readings average over, at different times within an update period.
        responses: what to try (default: ``usual_responses``).
        lag_s: prior of the lag, mean and standard deviation.
        noise_w: least noise of a reading.
        idle_w: power at rest where known, see ``fit_power``.
    """
    tries = usual_responses(updates.period_s or 0.1) if responses is None else responses
    reach = max(r.reach_s for r in tries if r.kind == "boxcar" or r.scale_s < 0.05)
    usable = updates.within(float(updates.t_s[0]) + reach, float(updates.t_s[-1])) if len(updates.t_s) else updates
    found = []
    for response in tries:
        noise = noise_w
        for _ in range(4):
            model = SensorModel(updates.period_s or 0.1, response, *lag_s, noise_w=noise)
            fit = fit_power(usable, activity, model, idle_w=idle_w, drift=False)
            if fit is None:
                break
            grown = noise * np.sqrt(max(fit.chi2, 1.0))
            if grown < 1.05 * noise:
                break
            noise = float(grown)
        if fit is not None:
            found.append(Candidate(response, fit.log_evidence, fit.lag_s, noise))
    return sorted(found, key=lambda c: -c.log_evidence)


def model_from(
    candidates: Sequence[Candidate],
    period_s: float,
    *,
    lag_sd_s: float = 0.0015,
    calibration: Calibration | None = None,
) -> SensorModel:
    """Return a model with the best response. Responses that explain the readings about as well are kept as alternatives."""
    best = candidates[0]
    near = [c for c in candidates[1:] if c.response.kind == best.response.kind]
    kept = [c.response for c in near if c.log_evidence > best.log_evidence - _KEEP][:4]
    return SensorModel(
        period_s=period_s,
        response=best.response,
        lag_s=best.lag_s,
        lag_sd_s=lag_sd_s,
        noise_w=best.noise_w,
        calibration=calibration or Calibration(),
        alternatives=tuple(kept),
    )


def calibrate(
    updates: Updates, meter: Activity, model: SensorModel, *, degc: tuple[Array, Array] | None = None
) -> SensorModel:
    """Return a model with gain and offset from a recording beside a meter.

    Args:
        updates: readings. A reading is left out if it averages over a time that the meter does not cover.
        meter: the true power as an activity of one class: its ``active`` is the integral of the power, J.
        model: response and lag.
        degc: times (s) and temperatures of the device (degrees Celsius); the gain is then allowed to depend on it.
    """
    use = updates.within(meter.start_s + model.response.reach_s + model.lag_s, meter.end_s + min(model.lag_s, 0.0))
    seen = busy_fractions(meter, use.t_s, model.response, model.lag_s)[:, 0]
    columns = [np.ones(len(seen)), seen]
    reference = None
    if degc is not None:
        warm = np.interp(use.t_s, *degc)
        reference = float(warm.mean())
        columns.append(seen * (warm - reference))
    line, cov, rms = _robust_line(np.stack(columns, axis=1), use.value)
    gain = float(line[1])
    gain_sd = float(np.hypot(np.sqrt(cov[1, 1]), REPEATABLE_GAIN * gain))
    offset_sd = float(np.hypot(np.sqrt(cov[0, 0]), REPEATABLE_OFFSET_W))
    found = Calibration(
        gain=gain,
        offset_w=float(line[0]),
        gain_sd=gain_sd,
        offset_sd_w=offset_sd,
        correlation=float(cov[0, 1] / (gain_sd * offset_sd)),
        source="meter",
        gain_per_degree=float(line[2]) if degc is not None else 0.0,
        reference_degc=reference,
    )
    return replace(model, calibration=found, noise_w=max(rms, 0.05))


def _robust_line(x: Array, y: Array) -> tuple[Array, Array, float]:
    """Return coefficients, covariance and residual (W).

    Readings at an edge of the load get a small weight, since their value depends on exact timing.
    """
    weight: Array = np.ones(len(y))
    line: Array = np.zeros(x.shape[1])
    for _ in range(8):
        root = np.sqrt(weight)[:, None]
        line = np.asarray(np.linalg.lstsq(x * root, y * root[:, 0], rcond=None)[0], np.float64)
        rest = y - x @ line
        scale = max(1.4826 * float(np.median(np.abs(rest))), 0.02)
        weight = 1.0 / (1.0 + (rest / (3 * scale)) ** 2)
    inverse: Array = np.asarray(np.linalg.inv((x * weight[:, None]).T @ x), np.float64)
    rest = y - x @ line
    noise = float(np.sum(weight * rest**2) / max(np.sum(weight) - x.shape[1], 1.0))
    # Neighbouring readings have the same errors (temperature, variation of the load). So one in four counts as independent.
    return line, inverse * noise * 4.0, float(np.sqrt(noise))


def calibrate_levels(
    updates: Updates, meter: Activity, model: SensorModel, low_s: tuple[float, float], high_s: tuple[float, float]
) -> SensorModel:
    """Return a model with gain and offset from two steady stretches, one at rest and one under load."""
    points = []
    for start, end in (low_s, high_s):
        use = updates.within(start + model.response.reach_s + model.lag_s, end + min(model.lag_s, 0.0))
        true = busy_fractions(meter, use.t_s, model.response, model.lag_s)[:, 0]
        error = float(np.std(use.value - true)) / np.sqrt(max(len(use.value) / 4, 1.0))
        points.append((float(true.mean()), float(use.value.mean()), error))
    (x0, y0, e0), (x1, y1, e1) = points
    gain = (y1 - y0) / (x1 - x0)
    gain_sd = float(np.hypot(np.hypot(e0, e1) / (x1 - x0), REPEATABLE_GAIN * gain))
    offset_sd = float(np.hypot(np.hypot(e0, x0 * gain_sd), REPEATABLE_OFFSET_W))
    found = Calibration(gain, y0 - gain * x0, gain_sd, offset_sd, -min(x0 * gain_sd / offset_sd, 0.999), "meter")
    return replace(model, calibration=found)
