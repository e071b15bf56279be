"""Energy over a window, from samples of power or readings of a counter. Pure functions on arrays.

The rules:

* Power runs straight between neighbouring samples (trapezoid). A window edge between two samples is interpolated. Nothing is
  extrapolated beyond the first and last sample.
* Samples further apart than ``max_gap`` leave a gap, which is reported and not bridged. Unless the user sets it, ``max_gap`` is
  ``max(1 s, 3 x median interval of the whole series)``. Example: with one reading every 30 s it is 90 s. With fewer than four
  samples it is 1 s.
* The energy of a counter is the sum of its differences, however far apart its readings are. Between two readings it runs
  straight. Across a reset the energy is unknown. A wrap is undone if the range of the counter is known and the resulting power is
  possible; otherwise the energy is unknown. If a second wrap in the same interval would be possible too, the energy of the
  interval is unknown and the difference is its lower bound.
* A counter that shows one value throughout stands still: its energy is unknown. So is that of a jump that no device can make.
* Samples of one instant that disagree count with their mean (power), or are left out (counter).
* Unknown energy is None, never 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from magneton.analysis.energy.measure.result import EnergyResult, Window

MIN_GAP_NS = 1_000_000_000
GAP_CADENCES = 3
MIN_SAMPLES_FOR_CADENCE = 4
# More than one device draws today. A wrap that implies more power cannot have happened.
MAX_POWER_W = 1000.0
# A counter may hold the energy of an update before the one that is seen, s.
_UPDATE_S = 0.2

Times = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Samples:
    """Samples in order of time, one per instant.

    Attributes:
        t_ns: instants, ns, strictly increasing.
        values: W or J.
        conflicts: instants at which samples disagreed.
    """

    t_ns: Times
    values: Values
    conflicts: Times

    @property
    def cadence_ns(self) -> float | None:
        """Median interval, ns; None with fewer than two samples."""
        return float(np.median(np.diff(self.t_ns))) if len(self.t_ns) > 1 else None


def prepare(t_ns: Times, values: Values, *, counter: bool = False) -> Samples:
    """Sort samples, leave out NaN, merge samples of one instant.

    Args:
        t_ns: times, ns, in any order.
        values: readings; NaN where there was none.
        counter: readings are cumulative: instants that disagree are left out instead of averaged.
    """
    known = ~np.isnan(values)
    t, v = np.asarray(t_ns, np.int64)[known], np.asarray(values, np.float64)[known]
    order = np.lexsort((v, t))
    t, v = t[order], v[order]
    if len(t) == 0:
        return Samples(t, v, t)
    distinct = np.concatenate([[True], (t[1:] != t[:-1]) | (v[1:] != v[:-1])])
    t, v = t[distinct], v[distinct]
    first = np.flatnonzero(np.concatenate([[True], t[1:] != t[:-1]]))
    n = np.diff(np.append(first, len(t)))
    instants, conflicts = t[first], t[first[n > 1]]
    if counter:
        return Samples(instants[n == 1], v[first[n == 1]], conflicts)
    return Samples(instants, np.add.reduceat(v, first) / n, conflicts)


def default_max_gap_ns(samples: Samples) -> float:
    """Return the longest interval, ns, that is bridged when the user sets no limit."""
    if len(samples.t_ns) < MIN_SAMPLES_FOR_CADENCE:
        return float(MIN_GAP_NS)
    return max(float(MIN_GAP_NS), GAP_CADENCES * (samples.cadence_ns or 0.0))


@dataclass(frozen=True)
class _Cut:
    """The intervals between samples that a window touches, and the part of each inside it (ns, absolute)."""

    lo: Times
    hi: Times
    start: Times
    end: Times
    at: slice

    @property
    def inside_ns(self) -> Times:
        """Length of each part."""
        return self.end - self.start


def _cut(t: Times, window: Window) -> _Cut:
    first = max(int(np.searchsorted(t, window.start_ns, "right")) - 1, 0)
    last = max(min(int(np.searchsorted(t, window.end_ns, "left")), len(t) - 1), first)
    lo, hi = t[first:last], t[first + 1 : last + 1]
    start, end = np.maximum(lo, window.start_ns), np.minimum(hi, window.end_ns)
    keep = end > start
    # Intervals outside the window can only be the outermost ones, so what is kept is contiguous.
    offset = int(np.argmax(keep)) if keep.any() else 0
    count = int(keep.sum())
    at = slice(first + offset, first + offset + count)
    chosen = slice(offset, offset + count)
    return _Cut(lo[chosen], hi[chosen], start[chosen], end[chosen], at)


def _gaps(cut: _Cut, covered: npt.NDArray[np.bool_], window: Window) -> tuple[tuple[int, int], ...]:
    """Return what of the window is not covered, neighbouring parts merged."""
    parts: list[tuple[int, int]] = []
    at = window.start_ns
    for start, end in zip(cut.start[covered].tolist(), cut.end[covered].tolist(), strict=True):
        if start > at:
            parts.append((at, start))
        at = end
    if at < window.end_ns:
        parts.append((at, window.end_ns))
    return tuple(parts)


def _codes(
    samples: Samples, window: Window, gaps: tuple[tuple[int, int], ...], inside: int, covered_ns: int
) -> set[str]:
    codes: set[str] = set()
    t = samples.t_ns
    if covered_ns == 0 and window.length_ns:
        codes.add("no_power_data")
    elif inside == 0:
        codes.add("interpolated")
    if len(t) and gaps:
        if window.start_ns < int(t[0]) or window.end_ns > int(t[-1]):
            codes.add("power_edge")
        if any(end > int(t[0]) and start < int(t[-1]) for start, end in gaps):
            codes.add("power_gap")
    conflicts = samples.conflicts
    if len(conflicts) and bool(np.any((conflicts >= window.start_ns) & (conflicts <= window.end_ns))):
        codes.add("conflicting_instants")
    return codes


def _inside(t: Times, window: Window) -> int:
    return int(np.searchsorted(t, window.end_ns, "right") - np.searchsorted(t, window.start_ns, "left"))


def _within(t: Times, window: Window) -> bool:
    return len(t) > 0 and int(t[0]) <= window.start_ns and window.end_ns <= int(t[-1])


def integrate_power(samples: Samples, window: Window, *, max_gap_ns: float | None = None) -> EnergyResult:
    """Return the energy of a power series over a window.

    Args:
        samples: W over time, from ``prepare``.
        window: on the same time line.
        max_gap_ns: longest interval that is bridged, ns (default: ``default_max_gap_ns``).
    """
    limit = default_max_gap_ns(samples) if max_gap_ns is None else float(max_gap_ns)
    cut = _cut(samples.t_ns, window)
    joules = np.empty(0)
    if len(cut.lo):
        v0, v1 = samples.values[cut.at], samples.values[cut.at.start + 1 : cut.at.stop + 1]
        slope = (v1 - v0) / (cut.hi - cut.lo)
        middle = v0 + slope * (((cut.start - cut.lo) + (cut.end - cut.lo)) / 2)
        joules = middle * (cut.inside_ns / 1e9)
    covered = (cut.hi - cut.lo) <= limit
    covered_ns = int(cut.inside_ns[covered].sum())
    gaps = _gaps(cut, covered, window)
    inside = _inside(samples.t_ns, window)
    value = math.fsum(joules[covered].tolist()) if covered_ns else None
    if window.length_ns == 0 and _within(samples.t_ns, window):
        value = 0.0
    return EnergyResult(
        value_j=value,
        window_s=window.length_ns / 1e9,
        covered_s=covered_ns / 1e9,
        lower_bound_j=value,
        bridged_j=math.fsum(joules.tolist()) if len(joules) else value,
        gaps=gaps,
        n_samples_inside=inside,
        max_gap_s=limit / 1e9,
        cadence_s=None if samples.cadence_ns is None else samples.cadence_ns / 1e9,
        warnings=tuple(sorted(_codes(samples, window, gaps, inside, covered_ns))),
    )


@dataclass(frozen=True)
class CounterDeltas:
    """The energy between neighbouring readings of a counter.

    Attributes:
        delta_j: J between readings i and i + 1; NaN where it is not known.
        lower_j: lower bound of it, J.
        wrapped: a wrap was undone.
        reset: the counter went back and no wrap explains it.
        unsure: it may have wrapped more often than could be seen.
        still: it shows one value throughout, so it does not count.
    """

    delta_j: Values
    lower_j: Values
    wrapped: npt.NDArray[np.bool_]
    reset: npt.NDArray[np.bool_]
    unsure: npt.NDArray[np.bool_]
    still: bool = False


def counter_deltas(
    samples: Samples, *, range_j: float | None = None, max_power_w: float = MAX_POWER_W, most_w: float = math.inf
) -> CounterDeltas:
    """Return the energy between neighbouring readings of a counter; see the rules above.

    Args:
        samples: J over time, from ``prepare(.., counter=True)``.
        range_j: value at which the counter starts again at 0, where known (RAPL: ``max_energy_range_uj``).
        max_power_w: more than the device can draw.
        most_w: a jump upward that takes more power is no energy but a broken reading.
    """
    before, after = samples.values[:-1], samples.values[1:]
    seconds = np.diff(samples.t_ns) / 1e9
    delta = after - before
    back = delta < 0
    wrapped = np.zeros(len(delta), dtype=bool)
    unsure = np.zeros(len(delta), dtype=bool)
    if range_j is not None:
        around = range_j - before + after
        wrapped = back & (before <= range_j) & (after <= range_j) & (around <= max_power_w * seconds)
        delta = np.where(wrapped, around, delta)
        unsure = (~back | wrapped) & (delta + range_j <= max_power_w * seconds)
    jumped = delta > most_w * (seconds + _UPDATE_S)
    still = len(delta) > 1 and not delta.any()
    reset = (back & ~wrapped) | jumped
    # After a reset, and equally after a wrap at an unknown value, at least what the counter shows has been used.
    lower = np.where(reset, np.where(jumped, 0.0, np.maximum(after, 0.0)), delta)
    unknown = reset | unsure | still
    return CounterDeltas(np.where(unknown, np.nan, delta), lower, wrapped, reset, unsure, still)


def integrate_counter(
    samples: Samples,
    window: Window,
    *,
    range_j: float | None = None,
    max_power_w: float = MAX_POWER_W,
    may_wrap: bool = False,
    most_w: float = math.inf,
) -> EnergyResult:
    """Return the energy of a cumulative counter over a window.

    Args:
        samples: J over time, from ``prepare(.., counter=True)``.
        window: on the same time line.
        range_j: see ``counter_deltas``.
        max_power_w: see ``counter_deltas``.
        may_wrap: the counter is of a kind that wraps (RAPL), so that going back with an unknown range may be a wrap.
        most_w: see ``counter_deltas``.
    """
    deltas = counter_deltas(samples, range_j=range_j, max_power_w=max_power_w, most_w=most_w)
    cut = _cut(samples.t_ns, window)
    delta, lower = deltas.delta_j[cut.at], deltas.lower_j[cut.at]
    share = cut.inside_ns / np.maximum(cut.hi - cut.lo, 1)
    whole = share >= 1
    covered = ~np.isnan(delta)
    covered_ns = int(cut.inside_ns[covered].sum())
    gaps = _gaps(cut, covered, window)
    inside = _inside(samples.t_ns, window)
    known = (delta[covered] * share[covered]).tolist()
    # An unknown interval gives a lower bound only if it lies wholly within the window.
    bounds = lower[~covered & whole].tolist()
    value = math.fsum(known) if covered_ns else None
    if window.length_ns == 0 and _within(samples.t_ns, window):
        value = 0.0
    codes = _codes(samples, window, gaps, inside, covered_ns)
    reset, unsure = deltas.reset[cut.at], deltas.unsure[cut.at]
    if reset.any():
        codes.add("counter_range_unknown" if may_wrap and range_j is None else "counter_reset")
    if unsure.any():
        codes.add("possible_multiple_wraps")
    # A counter has no gaps between its readings. The codes above explain the parts that are not covered.
    codes.discard("power_gap")
    if deltas.still:
        codes.add("counter_stands_still")
    if reset.any() or unsure.any() or deltas.still:
        codes.discard("no_power_data")
    return EnergyResult(
        value_j=value,
        window_s=window.length_ns / 1e9,
        covered_s=covered_ns / 1e9,
        lower_bound_j=math.fsum(known + bounds) if known or bounds else value,
        gaps=gaps,
        n_samples_inside=inside,
        cadence_s=None if samples.cadence_ns is None else samples.cadence_ns / 1e9,
        n_resets=int(reset.sum()),
        n_wraps=int(deltas.wrapped[cut.at].sum()),
        warnings=tuple(sorted(codes)),
    )
