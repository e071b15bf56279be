"""What the readings of an energy counter are worth: updates that repeat, counters that stand still, checks against power."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from magneton.analysis.energy.measure.integrate import Samples, integrate_counter, integrate_power
from magneton.analysis.energy.measure.result import Window

# Values repeat if at least this share of the readings shows the value of the reading before.
_REPEATING = 0.25
# A counter that shows one value for more readings than this in a row has stood still.
_STILL = 3
# Two readings of one device disagree if their energies differ by more than this share, beside what the edges explain.
DISAGREEMENT = 0.2


def fold_updates(samples: Samples) -> Samples:
    """Keep the readings at which a counter was updated, where it is polled faster than it is updated.

    A counter that is updated every 100 ms and polled every 10 ms shows nine intervals without energy and one with all of it.
    So only the first reading of each value is kept: the energy then lies between two updates. What follows the last update
    is not known. A counter that is updated between any two polls stays as it is.

    Args:
        samples: J over time, from ``integrate.prepare``.
    """
    t, v = samples.t_ns, samples.values
    if len(t) < 3 or not (changed := np.diff(v) != 0).any():
        return samples
    again = np.concatenate([[False], ~changed])
    if again.mean() < _REPEATING:
        again &= _run_lengths(again) >= _STILL
        if not again.any():
            return samples
        return replace(samples, t_ns=t[~again], values=v[~again])
    times = t[~again].copy()
    # The first value was there before the first reading, so its interval is at least as long as the others.
    period = int(np.median(np.diff(times[1:]))) if len(times) > 2 else int(t[-1] - times[-1])
    times[0] = min(int(times[0]), int(times[1]) - period)
    return replace(samples, t_ns=times, values=v[~again])


def _run_lengths(flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return for each flag that is set how many are set in a row; 0 for the others."""
    edges = np.diff(np.concatenate([[0], flags.astype(np.int64), [0]]))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    lengths = np.zeros(len(flags), np.int64)
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        lengths[start:end] = end - start
    return lengths


def energies_differ(
    a: Samples, b: Samples, *, counter_a: bool, counter_b: bool, averaging_ns: float = 0.0
) -> tuple[float, float] | None:
    """Return the energies that two series of one device give for the time both cover, if they contradict one another.

    Args:
        a: W, or J of a counter, over time.
        b: the same of the other series.
        counter_a: ``a`` is a counter.
        counter_b: ``b`` is a counter.
        averaging_ns: longest time that one of them averages over, ns.

    Returns:
        The two energies, J, or None where they agree or too little is known of either.
    """
    if min(len(a.t_ns), len(b.t_ns)) < 2:
        return None
    window = Window(max(int(a.t_ns[0]), int(b.t_ns[0])), max(int(a.t_ns[0]), int(b.t_ns[0]), min(int(a.t_ns[-1]), int(b.t_ns[-1]))))  # fmt: skip
    if not window.length_ns:
        return None
    sides = ((a, counter_a), (b, counter_b))
    found = [integrate_counter(s, window) if counter else integrate_power(s, window) for s, counter in sides]
    if any(r.value_j is None or (r.coverage or 0.0) < 0.5 for r in found):
        return None
    energies = [(r.value_j or 0.0) / (r.coverage or 1.0) for r in found]
    slack = sum(_edge_j(s, counter, averaging_ns) for s, counter in sides)
    if abs(energies[0] - energies[1]) <= DISAGREEMENT * max(energies) + slack:
        return None
    return energies[0], energies[1]


def _edge_j(samples: Samples, counter: bool, averaging_ns: float) -> float:
    """Return the energy that may fall on either side of a window's edges, J."""
    if counter:
        steps = np.abs(np.diff(samples.values))
        return 2 * float(np.median(steps[steps > 0])) if (steps > 0).any() else 0.0
    length = max(averaging_ns, samples.cadence_ns or 0.0)
    return float(np.ptp(samples.values)) * length / 1e9
