"""Simulated devices and sensors: true power on real or generated timelines, and what a sensor of a given kind would show.

Nothing here knows how the analysis works. The powers come from ``powers``. The response of a sensor is integrated in fine steps. Updates,
polls, lag, gain, offset, noise and rounding are applied in the order in which a sensor applies them. The results say ``simulated``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.energy.powers import BOARDS, Board, dynamic_powers
from magneton.analysis.energy.sensor_model.sensor import Calibration, Response, SensorModel, boxcar, first_order
from magneton.analysis.energy.sensor_model.timeline import Timeline
from magneton.schemas.tables.run import POWER

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Template:
    """The kernels of one iteration: starts and lengths (s from its start), class of each, names of the classes."""

    start_s: Array
    length_s: Array
    class_of: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    span_s: float

    @classmethod
    def from_kernels(cls, kernels: pa.Table, *, most: int = 40) -> Template:
        """Return one iteration that holds all kernels of a table, by name; names beyond the ``most`` longest are one class."""
        start = kernels["ts_ns"].to_numpy().astype(np.float64) / 1e9
        length = kernels["dur_ns"].to_numpy(zero_copy_only=False).astype(np.float64) / 1e9
        length = np.nan_to_num(length)
        names = [
            f"{c or 'other'}:{n[:60]}"
            for c, n in zip(kernels["kernel_class"].to_pylist(), kernels["name"].to_pylist(), strict=True)
        ]
        totals: dict[str, float] = {}
        for name, value in zip(names, length.tolist(), strict=True):
            totals[name] = totals.get(name, 0.0) + value
        kept = sorted(totals, key=lambda n: -totals[n])[:most]
        classes = (*kept, "other") if len(totals) > most else tuple(kept)
        index = {n: i for i, n in enumerate(classes)}
        class_of = np.array([index.get(n, len(classes) - 1) for n in names], dtype=np.int64)
        first = float(start.min())
        return cls(start - first, length, class_of, classes, float((start + length).max()) - first)


def generated(
    rng: np.random.Generator, *, span_s: float, kinds: tuple[str, ...], calls: int, idle_share: float = 0.05
) -> Template:
    """Return an iteration of ``calls`` kernels of several kinds one after the other, of uneven lengths."""
    class_of = np.concatenate([np.arange(len(kinds)), rng.integers(0, len(kinds), calls - len(kinds))])
    rng.shuffle(class_of)
    length = rng.lognormal(0.0, 0.8, calls)
    gap = rng.exponential(1.0, calls)
    length *= span_s * (1 - idle_share) / length.sum()
    gap *= span_s * idle_share / gap.sum()
    start = np.concatenate([[0.0], np.cumsum(length + gap)[:-1]])
    return Template(start, length, class_of.astype(np.int64), kinds, span_s)


class Repeated:
    """An iteration over and over, each stretched a little, with gaps: an ``Activity``, and the true energy with it.

    Args:
        template: the iteration.
        length_s: time to fill.
        rng: source of all draws.
        board: the device.
        stretch_sd: standard deviation of an iteration's length, relative.
        gap_share: mean gap between iterations, of the iteration.
        call_sd: standard deviation of a class's power from iteration to iteration, relative.
        drift: relative growth of power while the device warms up.
        powers_w: power above rest by class (default: drawn from the table).
        start_s: idle time before the first iteration.
    """

    def __init__(
        self,
        template: Template,
        length_s: float,
        rng: np.random.Generator,
        *,
        board: Board = BOARDS["A100"],
        stretch_sd: float = 0.01,
        gap_share: float = 0.03,
        call_sd: float = 0.02,
        drift: float = 0.005,
        powers_w: Array | None = None,
        start_s: float = 0.0,
    ) -> None:
        self._template = template
        self._one = Timeline(template.start_s, template.length_s, template.class_of, template.classes)
        self.classes = template.classes
        self.board = board
        count = int(np.ceil(length_s / template.span_s)) + 1
        self._stretch = np.maximum(1 + stretch_sd * rng.standard_normal(count), 0.5)
        gaps = template.span_s * gap_share * rng.exponential(1.0, count) + 2e-5
        lengths = self._stretch * template.span_s
        self.iterations_s = start_s + np.concatenate([[0.0], np.cumsum(lengths + gaps)[:-1]])
        self._lengths = lengths
        self.start_s = start_s
        self.end_s = float(self.iterations_s[-1] + lengths[-1])
        self.dynamic_w = dynamic_powers(list(template.classes), board, rng) if powers_w is None else powers_w
        warm = 1 + drift * (1 - np.exp(-self.iterations_s / 20.0))
        self._power = (1 + call_sd * rng.standard_normal((count, len(self.classes)))) * warm[:, None] * self.dynamic_w
        ends = np.array([template.span_s])
        self._whole_active, self._whole_share = self._one.active(ends)[:, 0], self._one.share(ends)[:, 0]
        self._before = np.concatenate([[0.0], np.cumsum(self._stretch)])
        worth = self._power * self._stretch[:, None] * self._whole_active
        self._joules_before = np.vstack([np.zeros(len(self.classes)), np.cumsum(worth, axis=0)])

    def scale(self, factor: float) -> None:
        """Let everything above rest draw ``factor`` times as much."""
        self.dynamic_w = self.dynamic_w * factor
        self._power = self._power * factor
        self._joules_before = self._joules_before * factor

    def kernels(self) -> tuple[Array, Array, list[str]]:
        """Return start (s), length (s) and class name of every kernel."""
        stretch = self._stretch[:, None]
        start = self.iterations_s[:, None] + self._template.start_s * stretch
        names = [self.classes[c] for c in self._template.class_of.tolist()] * len(self.iterations_s)
        return start.ravel(), (self._template.length_s * stretch).ravel(), names

    def _place(self, t: Array) -> tuple[npt.NDArray[np.intp], Array]:
        at = np.clip(np.searchsorted(self.iterations_s, t, "right") - 1, 0, len(self.iterations_s) - 1)
        inside = np.clip((t - self.iterations_s[at]) / self._stretch[at], 0.0, self._lengths[at] / self._stretch[at])
        return at, inside

    def active(self, t: Array) -> Array:
        """See ``Activity``."""
        at, inside = self._place(np.asarray(t, np.float64))
        found: Array = self._whole_active[:, None] * self._before[at] + self._one.active(inside) * self._stretch[at]
        return found

    def share(self, t: Array) -> Array:
        """See ``Activity``."""
        at, inside = self._place(np.asarray(t, np.float64))
        found: Array = self._whole_share[:, None] * self._before[at] + self._one.share(inside) * self._stretch[at]
        return found

    def dynamic_j(self, t: Array) -> Array:
        """Return the true energy above rest of each class up to each time, shape (classes, times)."""
        at, inside = self._place(np.asarray(t, np.float64))
        part = self._one.active(inside) * self._stretch[at]
        found: Array = self._joules_before[at].T + part * self._power[at].T
        return found

    def joules(self, t: Array) -> Array:
        """Return the true energy up to each time."""
        found: Array = self.board.idle_w * np.asarray(t, np.float64) + self.dynamic_j(t).sum(axis=0)
        return found

    def truth(self, start_s: float, end_s: float) -> tuple[Array, float, float]:
        """Return the true energy of each class, idle and in all over a window, J; rest is shared like the running time."""
        edges = np.array([start_s, end_s])
        share = np.diff(self.share(edges), axis=1)[:, 0]
        by_class = np.diff(self.dynamic_j(edges), axis=1)[:, 0] + self.board.idle_w * share
        total = float(np.diff(self.joules(edges))[0])
        return by_class, self.board.idle_w * (end_s - start_s - float(share.sum())), total


@dataclass(frozen=True)
class Sensor:
    """A kind of sensor; rows of ENERGY's table, plus the ways logs of it are made.

    Attributes:
        name: what it is.
        board: row of ``powers.BOARDS``.
        period_s: update period.
        response: its response.
        poll_s: interval between polls.
        noise_w: standard deviation of a reading.
        counter: it counts joules (in mJ) instead of showing power.
        source: where the figures come from.
    """

    name: str
    board: str
    period_s: float
    response: Response
    poll_s: float
    noise_w: float
    source: str
    counter: bool = False


_TABLE = "Yang et al., table of sensors"
SENSORS: dict[str, Sensor] = {
    s.name: s
    for s in (
        Sensor("V100", "V100", 0.0198, boxcar(0.010), 0.004, 1.0, _TABLE),
        Sensor("A100 instant", "A100", 0.1012, first_order(0.0130), 0.014, 1.0, "measured: a100_square104ms"),
        Sensor("H100 instant", "H100", 0.100, boxcar(0.025), 0.014, 1.0, _TABLE),
        Sensor("H100 average", "H100", 0.100, boxcar(1.0), 0.014, 0.5, _TABLE),
        Sensor("RTX3090 instant", "RTX3090", 0.09997, boxcar(0.100), 0.007, 0.5, "measured: rtx3090_step"),
        Sensor("RTX4090", "RTX4090", 0.09997, boxcar(0.105), 0.007, 0.7, "measured: rtx4090_step"),
        Sensor("H100 counter", "H100", 0.100, boxcar(0.100), 0.020, 0.0, "NVML: mJ, steps of 10-100 ms", counter=True),
        Sensor("H100 average, 1 s log", "H100", 0.100, boxcar(1.0), 1.0, 0.5, _TABLE + "; DCGM at 1 s"),
        Sensor("H100 average, 30 s scrape", "H100", 0.100, boxcar(1.0), 30.0, 0.5, _TABLE + "; Prometheus at 30 s"),
    )
}


@dataclass(frozen=True)
class Log:
    """What a poller of the sensor writes; times on the host's clock.

    Attributes:
        t_s: polls, s.
        value: W, or J of a counter.
        lag_s: true lag.
        gain: true gain.
        offset_w: true offset.
    """

    t_s: Array
    value: Array
    lag_s: float
    gain: float
    offset_w: float

    def table(self, device_id: str = "GPU-simulated", *, counter: bool = False) -> pa.Table:
        """Return the log as rows of table ``power``, flagged ``simulated``."""
        n = len(self.t_s)
        rows = {name: pa.nulls(n, POWER.arrow_schema().field(name).type) for name in POWER.column_names()}
        text = {
            "run_id": "simulated",
            "name": "simulated",
            "source": "simulated",
            "device_kind": "gpu",
            "device_id": device_id,
            "field": "energy_counter" if counter else "power_instant",
            "unit": "J" if counter else "W",
            "clock": "realtime",
            "flags": "simulated",
        }
        rows |= {name: pa.array([value] * n, pa.string()) for name, value in text.items()}
        rows["ts_ns"] = pa.array(np.round(self.t_s * 1e9).astype(np.int64))
        rows["value"] = pa.array(self.value)
        return pa.table(rows, schema=POWER.arrow_schema())


def read_sensor(
    device: Repeated,
    sensor: Sensor,
    rng: np.random.Generator,
    start_s: float,
    end_s: float,
    *,
    gain_sd: float = 0.003,
    offset_sd_w: float = 0.3,
    stamp_sd_s: float = 0.0,
    response: Response | None = None,
    logarithmic: bool = False,
) -> Log:
    """Return what polls of a sensor show.

    Args:
        device: the device under it.
        sensor: its kind.
        rng: source of all draws.
        start_s: first poll.
        end_s: last poll.
        gain_sd: how far this unit's gain is from what its calibration says (relative).
        offset_sd_w: the same of the offset.
        stamp_sd_s: error of each time stamp, independent.
        response: another response than the kind's.
        logarithmic: the sensor charges a capacitor: it follows slowly and never straight.
    """
    shape = response or sensor.response
    lag = float(rng.uniform(0.0, 0.010))
    gain, offset = 1 + gain_sd * float(rng.standard_normal()), offset_sd_w * float(rng.standard_normal())
    updates = np.arange(start_s - 2 * sensor.period_s + rng.uniform(0, sensor.period_s), end_s, sensor.period_s)
    if sensor.counter:
        joules = gain * device.joules(updates - lag) + offset * updates
        shown = np.floor((joules - joules[0]) * 1e3) / 1e3
    else:
        edges = np.asarray(shape.edges_s)
        total = device.joules((updates[:, None] - lag - edges).ravel()).reshape(len(updates), -1)
        power = ((total[:, :-1] - total[:, 1:]) / np.diff(edges)) @ np.asarray(shape.weights)
        if logarithmic:
            power = _capacitor(power, sensor.period_s)
        shown = np.round(offset + gain * power + sensor.noise_w * rng.standard_normal(len(power)), 2)
    jitter = min(0.1 * sensor.poll_s, 0.002)
    polls = np.arange(start_s, end_s, sensor.poll_s)
    polls = np.sort(polls + jitter * rng.standard_normal(len(polls)))
    at = np.searchsorted(updates, polls, "right") - 1
    seen = at >= 0
    stamped = polls[seen] + stamp_sd_s * rng.standard_normal(int(seen.sum()))
    order = np.argsort(stamped, kind="stable")
    return Log(stamped[order], shown[at[seen]][order], lag, gain, offset)


def _capacitor(power: Array, period_s: float) -> Array:
    """Follow the power as the Kepler boards do: quickly when far off, ever more slowly when near."""
    shown = np.empty_like(power)
    level = float(power[0])
    for i, target in enumerate(power.tolist()):
        gap = target - level
        level += float(np.sign(gap)) * min(abs(gap), 40.0 * np.log1p(abs(gap) / 40.0) * min(period_s / 0.1, 1.0))
        shown[i] = level
    return shown


def model_of(sensor: Sensor, *, gain_sd: float = 0.003, offset_sd_w: float = 0.3) -> SensorModel:
    """Return what a user would know of a sensor of this kind after a step calibration: not the unit's own errors."""
    return SensorModel(
        period_s=sensor.period_s,
        response=sensor.response,
        lag_s=0.005,
        lag_sd_s=0.003,
        noise_w=max(sensor.noise_w, 0.1),
        calibration=Calibration(1.0, 0.0, gain_sd, offset_sd_w, 0.0, "meter"),
        name=sensor.name,
        simulated=True,
    )
