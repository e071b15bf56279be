"""Joules of the program by itself, shared out by the time line of another run of it.

A recording measures energy while nothing but sensors runs beside the program, and takes its time line from a profile of the
same work at another time. The energy of a bare step is then that of a step of the profile, and each kernel gets the mean
power of the bare program for as long as it ran (``apportioned``: nothing is known of which kernel draws more).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from magneton.analysis.energy.apportion import EnergyAttribution
from magneton.analysis.energy.attribute import GPU, attribute, best_series
from magneton.analysis.energy.result import EnergyResult, Window, need_coverage
from magneton.analysis.energy.totals import INSTANT, SensorSeries, series_of

BARE_STEP = "bare_step"
OTHER_CAPTURE = "energy_of_another_capture"
# Readings that stand for a constant power over the time line of the profile.
_READINGS = 101


@dataclass(frozen=True)
class BareSteps:
    """Steps of the bare program: when they ran, how many, and how long those of the profile took beside them."""

    window: Window
    n: int
    n_profiled: int
    profiled: Window

    @property
    def ratio(self) -> float:
        """How much longer a step took under the profiler."""
        return (self.profiled.length_ns / self.n_profiled) / (self.window.length_ns / self.n)


def bare_steps(steps: pa.Table, power: pa.Table, profiled: Window, captures: list[str | None]) -> BareSteps | None:
    """Return the bare steps whose power was recorded where none was on the time line of the profile; else None.

    Args:
        steps: table ``steps`` of the rank.
        power: table ``power``.
        profiled: time of the profile, ns.
        captures: captures the kernels are of.
    """
    timed = power.filter(pc.is_valid(power["ts_ns"]))
    if timed.num_rows == 0:
        return None
    first, last = pc.min(timed["ts_ns"]).as_py(), pc.max(timed["ts_ns"]).as_py()
    if first < profiled.end_ns and last > profiled.start_ns:
        return None
    known = steps.filter(pc.and_(pc.is_valid(steps["ts_ns"]), pc.is_valid(steps["dur_ns"])))
    bare = known.filter(pc.equal(known["kind"], BARE_STEP))
    other = known.filter(pc.is_in(known["capture"], value_set=pa.array(captures, pa.string())))
    if bare.num_rows == 0 or other.num_rows == 0:
        return None
    ends = pc.add(bare["ts_ns"], bare["dur_ns"])
    return BareSteps(
        Window(pc.min(bare["ts_ns"]).as_py(), pc.max(ends).as_py()), bare.num_rows, other.num_rows, profiled
    )


def share_bare(
    kernels: pa.Table,
    power: pa.Table,
    steps: BareSteps,
    min_coverage: float,
    what: str,
    idle_w: Mapping[int, float] | None = None,
) -> dict[int, EnergyAttribution]:
    """Share the energy of the bare steps out among the kernels of the profile, by device.

    Raises:
        InsufficientPowerDataError: the power of the bare steps is not known well enough.
    """
    series = series_of(power.filter(pc.equal(power["device_kind"], GPU)))
    devices = {s.device_id for s in series}
    measured: dict[str | None, EnergyResult] = {}
    for device in devices:
        chosen = best_series([s for s in series if s.device_id == device], steps.window)
        if chosen is not None:
            measured[device] = chosen[1]
            need_coverage(chosen[1], min_coverage, f"the bare steps of {what}")
    flat = [_constant(s, measured[s.device_id], steps.profiled) for s in _one_each(series) if s.device_id in measured]
    simulated = [pc.any(pc.match_substring(pc.fill_null(power["flags"], ""), "simulated")).as_py()]
    table = pa.concat_tables([_rows(power.schema, one, any(simulated)) for one in flat])
    found = attribute(kernels, table, steps.profiled, idle_w=idle_w)
    return {number: _as_measured(one, measured[one.device_id], steps) for number, one in found.items()}


def _one_each(series: list[SensorSeries]) -> list[SensorSeries]:
    return list({s.device_id: s for s in reversed(series)}.values())


def _constant(series: SensorSeries, measured: EnergyResult, window: Window) -> tuple[SensorSeries, float, Window]:
    watts = (measured.value_j or 0.0) / (measured.covered_s or 1.0)
    return series, watts, window


def _rows(schema: pa.Schema, one: tuple[SensorSeries, float, Window], simulated: bool) -> pa.Table:
    series, watts, window = one
    times = np.linspace(window.start_ns, window.end_ns, _READINGS).astype(np.int64)
    columns = {
        "ts_ns": pa.array(times),
        "value": pa.array(np.full(_READINGS, watts)),
        "source": pa.array([series.source] * _READINGS),
        "name": pa.array([series.name] * _READINGS),
        "device_kind": pa.array([series.device_kind] * _READINGS),
        "device_id": pa.array([series.device_id] * _READINGS),
        "field": pa.array([INSTANT] * _READINGS),
        "flags": pa.array(["simulated" if simulated else None] * _READINGS, pa.string()),
    }
    filled = [columns.get(f.name, pa.nulls(_READINGS, f.type)) for f in schema]
    return pa.table([c.cast(f.type) for c, f in zip(filled, schema, strict=True)], schema=schema)


def _as_measured(one: EnergyAttribution, measured: EnergyResult, steps: BareSteps) -> EnergyAttribution:
    """Replace the total by that of as many bare steps; kernels that would exceed it shrink in proportion."""
    total = (measured.value_j or 0.0) / steps.n * steps.n_profiled
    covered = (measured.covered_s or 0.0) / steps.n * steps.n_profiled
    busy = (one.attributed_j or 0.0) + (one.unattributed_j or 0.0)
    factor = min(1.0, total / busy) if busy > 0 else 1.0
    kernels = one.kernels
    for name in ("energy_j", "static_j", "dynamic_j", "low_j", "high_j"):
        if kernels.schema.field(name).type == pa.float64() and kernels[name].null_count < kernels.num_rows:
            scaled = pc.multiply(kernels[name], factor)
            kernels = kernels.set_column(kernels.schema.get_field_index(name), name, scaled)
    shrunk = replace(one, kernels=kernels)
    lost = (one.unattributed_j or 0.0) * factor
    return replace(
        shrunk,
        total_j=total,
        unattributed_j=lost,
        idle_j=total - (shrunk.attributed_j or 0.0) - lost,
        total=replace(measured, value_j=total, covered_s=covered, window_s=covered).with_warnings([OTHER_CAPTURE]),
        warnings=tuple(sorted({*one.warnings, OTHER_CAPTURE})),
    )
