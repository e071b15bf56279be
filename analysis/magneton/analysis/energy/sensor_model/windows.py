"""Energies of windows with 95 % intervals: readings, what ran, and what is known of the sensor, brought together.

``E = (E_s - o L) / g``: the energy in the scale of the sensor, less the offset over the length of the window, divided by the gain. The
uncertainty of gain and offset is common to all windows of a recording, so it does not average out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from magneton.analysis.energy.sensor_model.known import KnownSensor
from magneton.analysis.energy.sensor_model.posterior import Load, Posterior
from magneton.analysis.energy.sensor_model.sensor import Calibration, Updates, lock
from magneton.analysis.energy.sensor_model.timeline import Array
from magneton.schemas.kinds import EnergyLabel

Z95 = 1.959964
# A window is estimated in pieces of at most this length, each from the readings in it and around it, s.
PIECE_S, MARGIN_S = 16.0, 2.0
# Above this chi-square the readings do not follow the model.
MAX_CHI2 = 2.0
# A sensor that sees less of the time is no measurement of what it does not see, unless it is known what ran.
MIN_DUTY = 0.9
_LEAST_READINGS = 3


@dataclass(frozen=True)
class WindowEnergy:
    """Energy of a device over a window.

    Attributes:
        energy_j: estimate, J.
        low_j: lower end of the 95 % interval, J.
        high_j: upper end, J.
        readings_sd_j: standard deviation from readings and model, J; independent from window to window.
        scale_sd_j: standard deviation from gain and offset, J; common to all windows of a recording.
        label: ``measured`` where readings cover the window and fit the model, else ``apportioned``.
        warnings: why it is less than measured.
        chi2: misfit of the readings around the window, the worst of its pieces.
    """

    energy_j: float
    low_j: float
    high_j: float
    readings_sd_j: float
    scale_sd_j: float
    label: str
    warnings: tuple[str, ...]
    chi2: float


class DeviceEnergy:
    """The energy of one device over any window of a recording.

    Args:
        t_s: times of the polls, s, ascending, on the time line of the load.
        watts: what each showed, W; NaN where nothing.
        busy_s: when the device was busy, s, shape (n, 2).
        sensor: what is known of the field.
        timeline_known: the stretches are those of kernels; otherwise of something longer around them, for example steps.
        limit_w: power limit of the device, W; None takes the highest reading.
        calibration: gain and offset of this very sensor, where they are known.

    Raises:
        ValueError: fewer than three readings.
    """

    def __init__(
        self,
        t_s: Array,
        watts: Array,
        busy_s: Array,
        sensor: KnownSensor,
        *,
        timeline_known: bool = True,
        limit_w: float | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        known = ~np.isnan(watts)
        if int(known.sum()) < _LEAST_READINGS:
            raise ValueError(f"{int(known.sum())} readings; at least {_LEAST_READINGS} are needed")
        self.sensor = sensor
        period = None if sensor.update_s is None else sum(sensor.update_s) / 2
        self.updates = _located(t_s[known], watts[known], period)
        self.load = Load(busy_s)
        self.timeline_known = timeline_known
        limit = limit_w if limit_w is not None else float(np.nanmax(watts))
        self.calibration = calibration or Calibration(
            sensor.gain, 0.0, sensor.gain_sd, sensor.offset_sd * limit, 0.0, "table"
        )
        self._pieces: dict[tuple[float, float], Posterior | None] = {}

    @property
    def reach_s(self) -> float:
        """How far back a reading may look, s."""
        return max((r.reach_s for group in self.sensor.responses for r in group if r.kind == "boxcar"), default=0.1)

    @property
    def best(self) -> Posterior | None:
        """What the readings of the longest stretch that was asked for say, None before anything was asked."""
        known = [one for one in self._pieces.values() if one is not None]
        return max(known, key=lambda one: one.n, default=None)

    def window(self, start_s: float, end_s: float) -> WindowEnergy | None:
        """Return the energy of a window; None where no readings lie in it or near it."""
        length = end_s - start_s
        count = max(int(np.ceil(length / PIECE_S)), 1)
        edges = np.linspace(start_s, end_s, count + 1)
        seen, variance, chi2 = 0.0, 0.0, 0.0
        for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            posterior = self.posterior(a, b)
            if posterior is None:
                return None
            joules, squared = posterior.energy(a, b)
            seen, variance, chi2 = seen + joules, variance + squared, max(chi2, posterior.chi2)
        scale = self.calibration
        true = scale.true_energy(seen, length)
        readings_sd = float(np.sqrt(variance)) / scale.gain
        scale_sd = scale.energy_sd(true, length)
        half = Z95 * float(np.hypot(readings_sd, scale_sd))
        warnings = self._warnings(start_s, end_s, chi2)
        label = EnergyLabel.APPORTIONED if warnings else EnergyLabel.MEASURED
        return WindowEnergy(true, max(true - half, 0.0), true + half, readings_sd, scale_sd, label, warnings, chi2)

    def posterior(self, start_s: float, end_s: float) -> Posterior | None:
        """Return the posterior for a window; windows of one stretch of time share it."""
        first, last = float(self.updates.t_s[0]), float(self.updates.t_s[-1])
        whole = last - first <= PIECE_S + 2 * MARGIN_S
        key = (
            (first, last) if whole else (np.floor(start_s / MARGIN_S) * MARGIN_S, np.ceil(end_s / MARGIN_S) * MARGIN_S)
        )
        if whole and (start_s < first - self.reach_s - MARGIN_S or end_s > last + MARGIN_S):
            key = (min(start_s, first), max(end_s, last))
        if key not in self._pieces:
            around = self.updates.within(key[0] - MARGIN_S, key[1] + MARGIN_S + self.reach_s)
            near = around.within(start_s - self.reach_s, end_s + self.reach_s + (self.updates.period_s or 1.0))
            self._pieces[key] = (
                None
                if len(around.t_s) < _LEAST_READINGS or not len(near.t_s)
                else Posterior(around, self.load, self.sensor.responses, key[0], key[1])
            )
        return self._pieces[key]

    def _warnings(self, start_s: float, end_s: float, chi2: float) -> tuple[str, ...]:
        period = self.updates.period_s or float(np.median(np.diff(self.updates.t_s)))
        inside = self.updates.within(start_s, end_s + self.reach_s).t_s
        edges = np.concatenate([[start_s], inside, [end_s + period]])
        found = []
        if chi2 > MAX_CHI2:
            found.append("sensor_misfit")
        if float(np.diff(edges).max()) > 3 * period + self.reach_s:
            found.append("power_gap")
        if end_s - start_s < max(self.reach_s, period):
            found.append("window_shorter_than_sensor")
        if self.sensor.duty < MIN_DUTY and not self.timeline_known:
            found.append("unseen_time")
        if self.sensor.confidence == "assumed" and self.calibration.source == "table":
            found.append("unknown_sensor")
        return tuple(found)


def _located(t: Array, watts: Array, period_s: float | None) -> Updates:
    """Return the readings at the times at which they were made, or polls where that cannot be found."""
    updates = lock(t, watts)
    if updates.locked or period_s is None:
        return updates
    spacing = float(np.median(np.diff(t)))
    # Polls further apart than updates show a reading of the last period, at an unknown time within it.
    return Updates(t - period_s / 2, watts, period_s / np.sqrt(12), max(spacing, period_s), False)


def sum_windows(parts: Sequence[WindowEnergy]) -> WindowEnergy:
    """Return the sum of windows of one device: errors of the readings are independent, those of the scale are common."""
    readings = float(np.sqrt(sum(part.readings_sd_j**2 for part in parts)))
    scale = sum(part.scale_sd_j for part in parts)
    energy = sum(part.energy_j for part in parts)
    half = Z95 * float(np.hypot(readings, scale))
    warnings = tuple(sorted({code for part in parts for code in part.warnings}))
    label = EnergyLabel.APPORTIONED if warnings else EnergyLabel.MEASURED
    return WindowEnergy(
        energy, max(energy - half, 0.0), energy + half, readings, scale, label, warnings, max(p.chi2 for p in parts)
    )
