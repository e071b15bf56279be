"""Time and energy of a region, from windows in which it was repeated in place."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from magneton.analysis.energy.measure.integrate import Samples
from magneton.analysis.energy.measure.result import EnergyResult, Window, need_coverage
from magneton.analysis.energy.measure.totals import (
    Device,
    SensorSeries,
    counter_ranges,
    preferred,
    series_energy,
    series_of,
)
from magneton.analysis.energy.repeats.difference import RepeatEstimate, from_repeats
from magneton.analysis.energy.sensor_model.sensor import Calibration
from magneton.schemas.errors import (
    InsufficientPowerDataError,
    InsufficientRepeatsError,
    MagnetonError,
    NotComparableError,
)
from magneton.schemas.kinds import Flag, PowerField

NO_SENSOR = "no sensor, so the energy is unknown"
# One window alone does not show how much windows differ.
LEAST_WINDOWS = 2
# Largest allowed difference between windows that repeat and windows that do not: of clocks (relative), temperatures (degrees)
# and power caps (W).
CLOCK_TOLERANCE, TEMPERATURE_TOLERANCE, CAP_TOLERANCE_W = 0.02, 5.0, 0.5
# Assumed update period of a series that never changes.
_UNKNOWN_PERIOD_S = 0.1


@dataclass(frozen=True)
class RepeatedWindow:
    """A window: start and end (ns, on the clock of the readings), its iterations, and how often the region ran in each."""

    start_ns: int
    end_ns: int
    iterations: int
    times: int


@dataclass(frozen=True)
class DeviceRepeat:
    """Energy of a region on one device.

    Attributes:
        device_kind: kind of the device; None where there is no sensor.
        device_id: its id.
        field: the reading that was used.
        estimate: energy of all calls of the region in one iteration, J; None where it is refused.
        refusal: why.
        simulated: the readings come from a stand-in.
        compared: those of clocks, temperature and power cap that were read. They agree.
        conditions: means of clocks (MHz), temperature (degrees Celsius) and cap (W) in the windows, as far as they were read.
    """

    device_kind: str | None
    device_id: str | None
    field: str | None
    estimate: RepeatEstimate | None
    refusal: MagnetonError | None = None
    simulated: bool = False
    compared: tuple[str, ...] = ()
    conditions: tuple[tuple[str, float], ...] = ()


def _sides(windows: Sequence[RepeatedWindow]) -> tuple[int, list[RepeatedWindow], list[RepeatedWindow]]:
    """Return r, and the windows with r and with 1.

    Raises:
        InsufficientRepeatsError: fewer than two of either.
    """
    often = [w for w in windows if w.times > 1]
    once = [w for w in windows if w.times == 1]
    if min(len(often), len(once)) < LEAST_WINDOWS:
        raise InsufficientRepeatsError(
            f"{len(often)} windows repeat and {len(once)} do not, and {LEAST_WINDOWS} of each are needed",
            remedy="let the program run for more steps, or give shorter windows (--seconds)",
        )
    return often[0].times, often, once


def time_of(windows: Sequence[RepeatedWindow]) -> RepeatEstimate:
    """Return the time of all calls of the region in one iteration, s, in the fields for energies.

    Raises:
        InsufficientRepeatsError: fewer than two windows either way.
    """
    times, often, once = _sides(windows)

    def lengths(side: list[RepeatedWindow]) -> list[tuple[float, float]]:
        return [((w.end_ns - w.start_ns) / 1e9 / w.iterations, 0.0) for w in side]

    return from_repeats(lengths(often), lengths(once), times)


def energies_of(windows: Sequence[RepeatedWindow], power: pa.Table | None) -> list[DeviceRepeat]:
    """Return the energy of the region on each device that was read, each with its own refusal.

    Args:
        windows: of one region.
        power: table ``power``, on the clock of the windows; None without a sensor.

    Returns:
        One entry per device. Without a reading of power or energy there is one entry, which says so.

    Raises:
        InsufficientRepeatsError: fewer than two windows either way.
    """
    times, often, once = _sides(windows)

    def judge(power: pa.Table, series: SensorSeries, range_j: float | None) -> tuple[RepeatEstimate, tuple[str, ...]]:
        compared = compare_conditions(power, series.device, often, once)
        many, single = ([window_energy(series, w, range_j) for w in side] for side in (often, once))
        return from_repeats(many, single, times, gain_sd=Calibration().gain_sd), compared

    return each_device(windows, power, judge)


Judge = Callable[[pa.Table, SensorSeries, float | None], tuple[RepeatEstimate, tuple[str, ...]]]


def each_device(windows: Sequence[RepeatedWindow], power: pa.Table | None, judge: Judge) -> list[DeviceRepeat]:
    """Apply ``judge`` to the best series of each device near the windows. Return its estimate or its refusal.

    Args:
        windows: of one region.
        power: table ``power``, on the clock of the windows; None without a sensor.
        judge: takes the readings near the windows, the series to use and the range of its counter. It returns an estimate and
            the conditions that were compared.
    """
    if power is None:
        return [_no_sensor()]
    span = Window(min(w.start_ns for w in windows), max(w.end_ns for w in windows))
    near = pc.and_(
        pc.greater(power["ts_ns"], span.start_ns - 5_000_000_000), pc.less(power["ts_ns"], span.end_ns + 5_000_000_000)
    )
    power = power.filter(near)
    candidates: dict[Device, list[tuple[SensorSeries, EnergyResult]]] = {}
    ranges = counter_ranges(power)
    for series in series_of(power):
        found = series_energy(series, span, range_j=ranges.get(series.device))
        candidates.setdefault(series.device, []).append((series, found))
    result = []
    for device, found_ones in candidates.items():
        series, _ = preferred(found_ones)
        estimate: RepeatEstimate | None = None
        refusal: MagnetonError | None = None
        compared: tuple[str, ...] = ()
        try:
            estimate, compared = judge(power, series, ranges.get(device))
        except (NotComparableError, InsufficientPowerDataError) as error:
            refusal = error
        simulated = _is_simulated(power, device)
        known = tuple((name, value) for name, _, (value,) in _conditions(power, device, [windows]))
        result.append(DeviceRepeat(*device, series.field, estimate, refusal, simulated, compared, known))
    return result or [_no_sensor()]


def _no_sensor() -> DeviceRepeat:
    return DeviceRepeat(None, None, None, None, InsufficientPowerDataError(NO_SENSOR))


def _is_simulated(power: pa.Table, device: Device) -> bool:
    return any(Flag.SIMULATED in (flags or "").split() for flags in pc.unique(_of(power, device)["flags"]).to_pylist())


def _of(power: pa.Table, device: Device) -> pa.Table:
    """Return the rows of a device."""
    mine = None
    for name, value in zip(("device_kind", "device_id"), device, strict=True):
        same = pc.is_null(power[name]) if value is None else pc.fill_null(pc.equal(power[name], value), False)
        mine = same if mine is None else pc.and_(mine, same)
    return power.filter(mine)


def update_period_s(samples: Samples) -> float:
    """Return how often a series changes, s (the median); polls are more frequent than updates."""
    at = samples.t_ns[1:][np.diff(samples.values) != 0]
    if len(at) < 3:
        return _UNKNOWN_PERIOD_S
    return float(np.median(np.diff(at))) / 1e9


def window_energy(series: SensorSeries, window: RepeatedWindow, range_j: float | None) -> tuple[float, float]:
    """Return the energy of one iteration in a window, and its standard deviation from the update period, J.

    Raises:
        InsufficientPowerDataError: the window is not covered, or too short for the reading.
    """
    length_s = (window.end_ns - window.start_ns) / 1e9
    found = series_energy(series, Window(window.start_ns, window.end_ns), range_j=range_j)
    least = found.min_window_for_trust_s
    if least is not None and length_s < least:
        raise InsufficientPowerDataError(
            f"{series.field} averages over {least:g} s, and a window is {length_s:.2g} s long",
            remedy="give longer windows (--seconds)",
        )
    energy = need_coverage(found, what="a window")
    # Each of the two edges of the window lies anywhere within an update period T. Its deviation is T / sqrt(12).
    edge_j = energy / length_s * update_period_s(series.samples) / math.sqrt(6)
    return energy / window.iterations, edge_j / window.iterations


def compare_conditions(
    power: pa.Table, device: Device, often: Sequence[RepeatedWindow], once: Sequence[RepeatedWindow]
) -> tuple[str, ...]:
    """Return which of clocks, temperature and power cap were read in both kinds of windows; they agree.

    Args:
        power: table ``power``.
        device: whose.
        often: windows that repeat.
        once: windows that do not.

    Raises:
        NotComparableError: one differs by more than it may.
    """
    compared = []
    for _, field, (a, b) in _conditions(power, device, [often, once]):
        if _differ(field, a, b):
            raise NotComparableError(
                f"{field} was {a:.6g} in the windows that repeat and {b:.6g} in those that do not",
                remedy="let the device warm up, or lock its clocks",
            )
        compared.append(field)
    return tuple(dict.fromkeys(compared))


def _conditions(
    power: pa.Table, device: Device, sides: Sequence[Sequence[RepeatedWindow]]
) -> list[tuple[str, str, list[float]]]:
    """Return the mean of each clock, temperature and cap of a device in windows of each kind, where all have readings.

    Each stands under its field, or under field and name where a device has several of one field.
    """
    rows = _of(power, device)
    found = []
    known = {(n, f) for n, f in zip(rows["name"].to_pylist(), rows["field"].to_pylist(), strict=True) if _tells(f)}
    several = Counter(field for _, field in known)
    for name, field in sorted(known, key=lambda key: (key[1], key[0] or "")):
        mine = rows.filter(pc.and_(pc.equal(rows["name"], name), pc.equal(rows["field"], field)))
        mine = mine.filter(pc.and_(pc.is_valid(mine["value"]), pc.is_valid(mine["ts_ns"])))
        t = mine["ts_ns"].to_numpy()
        values = mine["value"].to_numpy().astype(float)
        means = [mean for side in sides if (mean := _mean_inside(t, values, side)) is not None]
        if len(means) == len(sides):
            found.append((field if several[field] == 1 else f"{field} {name}", field, means))
    return found


def _tells(field: str | None) -> bool:
    return field is not None and (field.startswith(("clock", "temperature")) or field == PowerField.POWER_LIMIT)


def _mean_inside(t: np.ndarray, values: np.ndarray, windows: Sequence[RepeatedWindow]) -> float | None:
    means = [float(v.mean()) for w in windows if len(v := values[(t >= w.start_ns) & (t <= w.end_ns)])]
    return statistics.fmean(means) if means else None


def _differ(field: str, a: float, b: float) -> bool:
    if field.startswith("clock"):
        return abs(a - b) > CLOCK_TOLERANCE * max(abs(a), abs(b))
    return abs(a - b) > (CAP_TOLERANCE_W if field == PowerField.POWER_LIMIT else TEMPERATURE_TOLERANCE)
