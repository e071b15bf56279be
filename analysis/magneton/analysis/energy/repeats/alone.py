"""Time and energy of a region, from windows in which it ran alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from magneton.analysis.energy.measure.totals import SensorSeries, averaging_s
from magneton.analysis.energy.repeats.difference import RepeatEstimate, from_replays
from magneton.analysis.energy.repeats.in_place import (
    LEAST_WINDOWS,
    DeviceRepeat,
    RepeatedWindow,
    each_device,
    update_period_s,
    window_energy,
)
from magneton.analysis.energy.sensor_model.sensor import Calibration
from magneton.schemas.errors import InsufficientPowerDataError, InsufficientRepeatsError
from magneton.schemas.kinds import PowerField

# Readings of the beginning of a window saw what was before it; they may take this share of it at most.
_MOST_LEFT_OUT = 0.5


def _enough(windows: Sequence[RepeatedWindow]) -> None:
    if len(windows) < LEAST_WINDOWS:
        raise InsufficientRepeatsError(
            f"{len(windows)} windows were completed, and {LEAST_WINDOWS} are needed",
            remedy="replay more often (--rounds)",
        )


def time_alone(windows: Sequence[RepeatedWindow]) -> RepeatEstimate:
    """Return the time of one pass through a region that ran alone, s, in the fields for energies.

    Raises:
        InsufficientRepeatsError: fewer than two windows.
    """
    _enough(windows)
    return from_replays([((w.end_ns - w.start_ns) / 1e9 / w.iterations, 0.0) for w in windows])


def energies_alone(windows: Sequence[RepeatedWindow], power: pa.Table | None) -> list[DeviceRepeat]:
    """Return the energy of one pass through a region that ran alone, on each device that was read.

    The mean power of a window is taken from readings that no longer average over the time before the window.

    Args:
        windows: of one region; ``iterations`` are the passes.
        power: table ``power``, on the clock of the windows; None without a sensor.

    Returns:
        One entry per device, each with its own refusal. Without a reading of power or energy there is one entry, which says so.

    Raises:
        InsufficientRepeatsError: fewer than two windows.
    """
    _enough(windows)

    def judge(_power: pa.Table, series: SensorSeries, range_j: float | None) -> tuple[RepeatEstimate, tuple[str, ...]]:
        inside = [_settled(series, w, range_j) for w in windows]
        return from_replays(inside, gain_sd=Calibration().gain_sd), ()

    return each_device(windows, power, judge)


def _settled(series: SensorSeries, window: RepeatedWindow, range_j: float | None) -> tuple[float, float]:
    """Return the energy of a pass and its standard deviation, J, from the settled part of a window.

    Raises:
        InsufficientPowerDataError: most of it is not settled, or it is not covered.
    """
    reach_s = averaging_s(series.name) if series.field in (PowerField.POWER, PowerField.POWER_AVERAGE) else 0.0
    left_out_s = reach_s + update_period_s(series.samples)
    length_ns = window.end_ns - window.start_ns
    if left_out_s * 1e9 > _MOST_LEFT_OUT * length_ns:
        raise InsufficientPowerDataError(
            f"readings of {series.field} settle after {left_out_s:.2g} s, and a window is {length_ns / 1e9:.2g} s long",
            remedy="give longer windows (--seconds)",
        )
    settled = replace(window, start_ns=window.start_ns + round(left_out_s * 1e9))
    energy, sd = window_energy(series, settled, range_j)
    share = length_ns / (settled.end_ns - settled.start_ns)
    # A settled reading is the same on both sides of an edge; a counter stands still between its updates.
    return energy * share, sd * share if series.field == PowerField.ENERGY_COUNTER else 0.0
