"""What the real recordings show: totals through timeline and sensor model, and the power of replays, beside the meter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.energy.meter import Metered, read
from magneton.analysis.energy.measure.integrate import integrate_power, prepare
from magneton.analysis.energy.measure.result import Window
from magneton.analysis.energy.repeats.difference import replay_power
from magneton.analysis.energy.sensor_model.calibrate import calibrate, calibrate_levels, identify_response, model_from
from magneton.analysis.energy.sensor_model.estimate import estimate_total
from magneton.analysis.energy.sensor_model.sensor import SensorModel, Updates, boxcar, lock
from magneton.analysis.energy.sensor_model.timeline import Array, Timeline

# The sensor's widths known from the tables of the recordings' authors; the A100's is identified instead.
WINDOWS_S = {"rtx3090": 0.100, "rtx4090": 0.105}


class MeterActivity:
    """A meter's power as the activity of one class."""

    classes: tuple[str, ...] = ("power",)

    def __init__(self, metered: Metered) -> None:
        t, w = metered.meter_t, metered.meter_w
        self._t = t
        self._joules = np.concatenate([[0.0], np.cumsum(np.diff(t) * (w[1:] + w[:-1]) / 2)])
        self.start_s, self.end_s = float(t[0]), float(t[-1])

    def active(self, t: Array) -> Array:
        """Return the energy up to each time, J."""
        found: Array = np.interp(t, self._t, self._joules)[None, :]
        return found

    def share(self, t: Array) -> Array:
        """Return the time up to each time, s."""
        return np.clip(t, self.start_s, self.end_s)[None, :] - self.start_s


def load_timeline(metered: Metered) -> Timeline:
    """Return the load as a timeline of one class."""
    start, end = metered.on[:, 0], metered.on[:, 1]
    return Timeline(start, end - start, np.zeros(len(start), dtype=np.int64), ("load",))


@dataclass(frozen=True)
class WindowErrors:
    """Errors over many windows of one length, in percent of the truth."""

    what: str
    window_s: float
    n: int
    median: float
    p90: float
    bias: float
    coverage: float | None
    goal_p90: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; NULL where there is none."""
        if self.goal_p90 is None:
            return None
        return self.p90 <= self.goal_p90 and (self.coverage is None or self.coverage >= 90.0)


def summary(
    what: str, window_s: float, pairs: list[tuple[float, float]], inside: list[bool] | None, goal: float | None = None
) -> WindowErrors:
    """Summarise pairs of estimate and truth."""
    errors = np.array([100 * (a / b - 1) for a, b in pairs])
    return WindowErrors(
        what=what,
        window_s=window_s,
        n=len(pairs),
        median=float(np.median(np.abs(errors))),
        p90=float(np.percentile(np.abs(errors), 90)),
        bias=float(errors.mean()),
        coverage=None if inside is None else 100 * float(np.mean(inside)),
        goal_p90=goal,
    )


def field_of(metered: Metered) -> str:
    """Return the field that is not averaged over a second, where there is one."""
    return "power.draw.instant" if "power.draw.instant" in metered.fields else "power.draw"


def a100_model(square: Metered, step: Metered) -> tuple[SensorModel, Updates]:
    """Return the A100's model and the readings of the square wave.

    Response and lag come from the square wave and its marks, without the meter; gain and offset from the other recording,
    beside the meter. Nothing of the meter beside the square wave is used.
    """
    updates = lock(square.poll_t, square.fields[field_of(square)])
    candidates = identify_response(updates, load_timeline(square))
    model = model_from(candidates, updates.period_s or 0.1)
    step_updates = lock(step.poll_t, step.fields[field_of(step)])
    calibrated = calibrate(step_updates, MeterActivity(step), model, degc=(step.poll_t, step.degc))
    loaded = (square.poll_t > 0) & (square.poll_t < square.on[-1, 1])
    return SensorModel(
        model.period_s,
        model.response,
        model.lag_s,
        model.lag_sd_s,
        model.noise_w,
        calibrated.calibration.at(float(square.degc[loaded].mean())),
        "A100",
        False,
        model.alternatives,
    ), updates


def totals(folder: Path, *, windows: int = 200, seed: int = 20260101) -> list[WindowErrors]:
    """Return the errors of total energy on the A100's 104 ms on/off load."""
    square, step = read(folder / "a100_square104ms"), read(folder / "a100_step")
    model, updates = a100_model(square, step)
    activity = load_timeline(square)
    last = float(square.on[-1, 1])
    rng = np.random.default_rng(seed)
    naive = prepare((square.poll_t * 1e9).astype(np.int64), square.fields[field_of(square)])
    found = []
    for length, goal in ((1.0, None), (2.0, 1.0), (4.0, 0.5)):
        starts = rng.uniform(0.0, last - length, windows)
        true = [square.energy(s, s + length) for s in starts]
        plain = []
        for s, truth in zip(starts, true, strict=True):
            window = Window(int(s * 1e9), int((s + length) * 1e9))
            value = integrate_power(naive, window).value_j or 0.0
            plain.append((model.calibration.true_energy(value, length), truth))
        found.append(summary("A100 samples joined by lines, gain corrected", length, plain, None))
        for what, chosen, wanted in (
            ("A100 timeline + sensor, readings of the window only", _within, None),
            ("A100 timeline + sensor, all readings", _all, goal),
        ):
            found.append(_windows(what, length, wanted, chosen, updates, activity, model, starts, true))
    return found


Chooser = Callable[[Updates, float, float], Updates]


def _within(updates: Updates, start: float, end: float) -> Updates:
    return updates.within(start, end)


def _all(updates: Updates, start: float, end: float) -> Updates:
    return updates


def _windows(
    what: str,
    length: float,
    goal: float | None,
    chosen: Chooser,
    updates: Updates,
    activity: Timeline,
    model: SensorModel,
    starts: Array,
    true: list[float],
) -> WindowErrors:
    pairs, inside = [], []
    for s, truth in zip(starts.tolist(), true, strict=True):
        made = estimate_total(chosen(updates, s, s + length), activity, (s, s + length), model)
        if made is None:
            continue
        pairs.append((made.energy_j, truth))
        inside.append(made.low_j <= truth <= made.high_j)
    return summary(what, length, pairs, inside, goal)


RAMP_S = 0.050
REPLAYS = (("a100_step", 0.150, 0.5), ("rtx3090_step", 0.500, 1.0), ("rtx4090_step", 1.0, 1.5))


def replays(folder: Path) -> list[WindowErrors]:
    """Return the errors of the power of a replay: the first stretch of a cold start, and every later one.

    The gain of the sensor comes from the time before the load and from the last 2 s of the load. The replay ends before those 2 s.
    """
    found = []
    for name, shortest, goal in REPLAYS:
        metered = read(folder / name)
        meter = MeterActivity(metered)
        updates = lock(metered.poll_t, metered.fields[field_of(metered)])
        width = WINDOWS_S.get(name.split("_")[0])
        on, off = float(metered.on[0, 0]), float(metered.on[0, 1])
        response = boxcar(width if width is not None else 0.030)
        model = SensorModel(updates.period_s or 0.1, response, 0.003, 0.0015, 0.5, name=name)
        model = calibrate_levels(updates, meter, model, (meter.start_s, on - 0.02), (off - 2.0, off - 0.05))
        for length in (0.150, 0.300, 0.500, 1.0):
            if length < 2 * response.reach_s:
                continue
            starts = [on, *np.arange(on + 0.05, off - 2.0 - length, 0.037).tolist()]
            pairs, inside = [], []
            for s in starts:
                made = replay_power(updates, s, s + length, model)
                if made is None:
                    continue
                # The power of the operation, not of the ramp to it: the first 50 ms of a cold start are no part of it.
                begin = s + (RAMP_S if s == on else 0.0)
                truth = metered.energy(begin, s + length) / (s + length - begin)
                pairs.append((made.power_w, truth))
                inside.append(made.low_w <= truth <= made.high_w)
            wanted = goal if length == shortest else None
            if pairs:
                first = summary(f"{name}, cold start (clocks still rising)", length, pairs[:1], None)
                found += [first, summary(f"{name}, replay in steady load", length, pairs[1:], inside[1:], wanted)]
    return found
