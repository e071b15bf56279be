"""Power of a device as a function of time that can be integrated over any part: from samples or from a counter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from magneton.analysis.energy.measure.integrate import Samples, counter_deltas, default_max_gap_ns
from magneton.analysis.energy.measure.result import Window
from magneton.analysis.energy.measure.totals import SensorSeries, most_power_w
from magneton.schemas.kinds import PowerField

Times = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class PowerCurve:
    """Power on the stretches between neighbouring samples: straight from ``first_w`` to ``last_w``, or not known.

    Attributes:
        t_ns: the samples' times, ns; stretch i runs from ``t_ns[i]`` to ``t_ns[i + 1]``.
        first_w: power at the start of each stretch, W.
        last_w: power at its end, W.
        known: the stretch is measured (no gap, reset or possible wrap).
    """

    t_ns: Times
    first_w: Values
    last_w: Values
    known: Flags

    def at(self, t_ns: Times) -> tuple[Values, Values, Flags]:
        """Return power just after and just before each time, and whether a stretch that is known begins there.

        The value before is of the stretch that ends at, or runs through, the time. Where nothing is known it is 0.
        """
        after, known_after = self._side(t_ns, "right")
        before, _ = self._side(t_ns, "left")
        return after, before, known_after

    def _side(self, t_ns: Times, side: str) -> tuple[Values, Flags]:
        if len(self.t_ns) < 2:
            return np.zeros(len(t_ns)), np.zeros(len(t_ns), dtype=bool)
        raw = np.searchsorted(self.t_ns, t_ns, side=side) - 1  # type: ignore[call-overload]
        index = np.clip(raw, 0, len(self.first_w) - 1)
        length = np.diff(self.t_ns)[index]
        part = (t_ns - self.t_ns[index]) / length
        value = self.first_w[index] + (self.last_w[index] - self.first_w[index]) * part
        ok = (raw >= 0) & (raw < len(self.first_w)) & self.known[index]
        return np.where(ok, value, 0.0), ok


def power_curve(series: SensorSeries, *, max_gap_ns: float | None = None, range_j: float | None = None) -> PowerCurve:
    """Return the power of one series, by the rules of ``integrate``: the same energy over every window."""
    samples = series.samples
    if series.field == PowerField.ENERGY_COUNTER:
        return _from_counter(samples, range_j, most_power_w(series.device_kind))
    limit = default_max_gap_ns(samples) if max_gap_ns is None else max_gap_ns
    v = samples.values
    return PowerCurve(samples.t_ns, v[:-1], v[1:], np.diff(samples.t_ns) <= limit)


def _from_counter(samples: Samples, range_j: float | None, most_w: float) -> PowerCurve:
    delta = counter_deltas(samples, range_j=range_j, most_w=most_w).delta_j
    known = ~np.isnan(delta)
    power = np.where(known, delta, 0.0) / (np.diff(samples.t_ns) / 1e9)
    return PowerCurve(samples.t_ns, power, power, known)


@dataclass(frozen=True)
class Grid:
    """A window cut at every instant at which power or activity changes; everything is straight in between.

    Attributes:
        t_ns: instants, ns, from the window's start to its end.
        seconds: length of each piece where power is known, else 0.
        joules: energy of each piece, J; 0 where it is not known.
        known: power is known there.
    """

    t_ns: Times
    seconds: Values
    joules: Values
    known: Flags


def distinct(times: Times) -> Times:
    """Return the times in order, each once (``numpy.unique`` hashes, which takes ten times as long on a million)."""
    ordered = np.sort(times)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered


def cut(curve: PowerCurve, window: Window, edges_ns: Times) -> Grid:
    """Cut a window at samples and at the edges given."""
    inside = [x[(x > window.start_ns) & (x < window.end_ns)] for x in (curve.t_ns, edges_ns)]
    ends = np.array([window.start_ns, window.end_ns], dtype=np.int64)
    t = distinct(np.concatenate([ends, *inside]))
    after, _, known = curve.at(t[:-1])
    _, before, _ = curve.at(t[1:])
    seconds = np.where(known, np.diff(t) / 1e9, 0.0)
    return Grid(t, seconds, (after + before) / 2 * seconds, known)
