"""Energy of one operation from running it r times in place: ``E = (E_r - E_1) / (r - 1)``.

The rest of the program is the same in both runs, so it cancels. So does the offset of the sensor. The result is the difference of
two large numbers, so r must be large enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from magneton.analysis.energy.sensor_model.sensor import SensorModel, Updates
from magneton.analysis.energy.t_distribution import t_quantile
from magneton.schemas.kinds import EnergyLabel

# A repeated operation should last this many update periods, plus the time that a reading averages over.
PERIODS_INSIDE = 3


@dataclass(frozen=True)
class RepeatEstimate:
    """Energy of one call of an operation, J, with its 95 % interval; ``identified`` if the half-width is within 10 %."""

    energy_j: float
    low_j: float
    high_j: float
    identified: bool
    label: str = EnergyLabel.REPLAYED


def from_repeats(
    repeated: list[tuple[float, float]], once: list[tuple[float, float]], times: int, *, gain_sd: float = 0.0
) -> RepeatEstimate:
    """Return the energy of one call.

    Args:
        repeated: for each run with the operation repeated, energy per iteration and its standard deviation, J.
        once: the same for runs with the operation run once.
        times: how often it was run in ``repeated``.
        gain_sd: relative standard deviation of the sensor's gain.

    Raises:
        ValueError: fewer than two times, or no runs on a side.
    """
    if times < 2 or not repeated or not once:
        raise ValueError("an operation must be run at least twice, and both ways at least once")
    e_r, v_r, f_r = _mean(repeated)
    e_1, v_1, f_1 = _mean(once)
    value = (e_r - e_1) / (times - 1)
    error = math.sqrt(v_r + v_1) / (times - 1)
    half = math.hypot(t_quantile(0.05, max(f_r + f_1, 2)) * error, 1.96 * gain_sd * abs(value))
    return RepeatEstimate(value, value - half, value + half, value > 0 and half <= 0.1 * value)


def from_replays(windows: list[tuple[float, float]], *, gain_sd: float = 0.0) -> RepeatEstimate:
    """Return the energy of one call of an operation that ran alone.

    Args:
        windows: for each window, energy per call and its standard deviation, J.
        gain_sd: relative standard deviation of the sensor's gain.

    Raises:
        ValueError: no windows.
    """
    if not windows:
        raise ValueError("an operation must be replayed at least once")
    value, variance, freedom = _mean(windows)
    half = math.hypot(t_quantile(0.05, freedom) * math.sqrt(variance), 1.96 * gain_sd * abs(value))
    return RepeatEstimate(value, value - half, value + half, value > 0 and half <= 0.1 * value)


def _mean(runs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Return mean, variance of the mean and degrees of freedom.

    The variance is the larger of two: from the stated deviations, and from the scatter of the runs.
    """
    count = len(runs)
    mean = math.fsum(e for e, _ in runs) / count
    claimed = math.fsum(s * s for _, s in runs) / count**2
    if count < 2:
        return mean, claimed, 30.0
    shown = math.fsum((e - mean) ** 2 for e, _ in runs) / (count - 1) / count
    return mean, max(claimed, shown), float(count - 1)


def times_needed(
    period_s: float, reach_s: float, iteration_s: float, call_s: float, *, wanted_share: float = 0.5
) -> int:
    """Return how often to run an operation in place so that it takes ``wanted_share`` of an iteration or outlasts the sensor.

    Args:
        period_s: update period of the sensor.
        reach_s: how far back a reading looks.
        iteration_s: length of an iteration with the operation run once.
        call_s: length of the operation.
        wanted_share: share of the iteration that the repeated operation should take.
    """
    if call_s <= 0:
        return 2
    rest = max(iteration_s - call_s, 0.0)
    by_share = wanted_share / (1 - wanted_share) * rest / call_s
    by_sensor = (reach_s + PERIODS_INSIDE * period_s) / call_s
    return max(2, math.ceil(min(by_share, by_sensor)))


@dataclass(frozen=True)
class ReplayPower:
    """Power while one operation was replayed alone, W, with its 95 % interval, from ``n`` readings wholly inside."""

    power_w: float
    low_w: float
    high_w: float
    n: int
    label: str = EnergyLabel.REPLAYED


def replay_power(
    updates: Updates, start_s: float, end_s: float, model: SensorModel, *, settle_s: float = 0.005
) -> ReplayPower | None:
    """Return the true power during a replay, from readings that average over the replay only.

    Args:
        updates: readings.
        start_s: start of the replay, on the clock of the readings.
        end_s: its end.
        model: the sensor.
        settle_s: left out at the start (clocks and power ramp up).

    Returns:
        The power; None if no reading lies wholly inside: the replay was too short (``times_needed``).
    """
    # A low-pass never forgets completely. Power older than 4 time constants still weighs 2 %, so 9 are waited for.
    use = updates.within(start_s + settle_s + model.response.reach_s + model.lag_s, end_s + model.lag_s)
    if not len(use.value):
        return None
    calibration = model.calibration
    mean = float(use.value.mean())
    count = len(use.value)
    shown = float(use.value.std(ddof=1)) if count > 2 else 0.0
    error = max(shown, model.noise_w) / math.sqrt(count)
    power = calibration.true_energy(mean, 1.0)
    half = math.hypot(
        1.96 * calibration.energy_sd(power, 1.0), t_quantile(0.05, max(count - 1, 3)) * error / calibration.gain
    )
    return ReplayPower(power, power - half, power + half, count)
