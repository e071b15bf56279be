"""Energy of the bare program, divided among the kernels of its profile.

The bare program is the program without a profiler. A recording measures its energy in one run, and takes the time line of its
kernels from a profile of another run. So one step of the profile gets the energy of one bare step, and each kernel gets the
mean power of the bare program for as long as the kernel ran. The result is ``apportioned``: which kernel draws more is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from magneton.analysis.energy.attribute import attribute, best_series, is_simulated
from magneton.analysis.energy.measure.apportion import EnergyAttribution
from magneton.analysis.energy.measure.power import power_curve
from magneton.analysis.energy.measure.result import EnergyResult, Window, need_coverage
from magneton.analysis.energy.measure.totals import SensorSeries, series_of
from magneton.schemas.errors import InsufficientPowerDataError
from magneton.schemas.kinds import DeviceKind, Flag, PowerField, StepKind

# Number of readings that represent a constant power over the time line of the profile.
_READINGS = 101


@dataclass(frozen=True)
class BareSteps:
    """Steps of the bare program and of the profile: when they ran, and how many there were."""

    window: Window
    n: int
    n_profiled: int
    profiled: Window

    @property
    def ratio(self) -> float:
        """How much longer a step took under the profiler."""
        return (self.profiled.length_ns / self.n_profiled) / (self.window.length_ns / self.n)


def bare_steps(steps: pa.Table, power: pa.Table, profiled: Window, captures: list[str | None]) -> BareSteps | None:
    """Return the bare steps, if power was recorded while they ran and not while the profile ran; else None.

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
    bare = known.filter(pc.equal(known["kind"], StepKind.BARE_STEP))
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
    devices: Mapping[int, str | None] | None = None,
    codes: Sequence[str] = (),
) -> dict[int, EnergyAttribution]:
    """Divide the energy of the bare steps among the kernels of the profile, by device.

    Raises:
        InsufficientPowerDataError: the power of the bare steps is not known well enough.
    """
    mine = power.filter(pc.equal(power["device_kind"], DeviceKind.GPU))
    series = series_of(mine)
    measured = {}
    used = {s.device_id for s in series} if devices is None else set(devices.values())
    for device in {s.device_id for s in series} & used:
        chosen = best_series([s for s in series if s.device_id == device], steps.window)
        if chosen is not None:
            need_coverage(chosen[1], min_coverage, f"the bare steps of {what}")
            measured[device] = _Bare(chosen[1], *_extremes(chosen[0], steps.window))
    if not measured:
        raise InsufficientPowerDataError(f"no power of a GPU covers the bare steps of {what}")
    simulated = is_simulated(mine)
    rows = [_constant(power.schema, device, one.mean_w, steps.profiled, simulated) for device, one in measured.items()]
    found = attribute(kernels, pa.concat_tables(rows), steps.profiled, idle_w=idle_w, devices=devices, codes=codes)
    return {number: _as_measured(one, measured[one.device_id], steps) for number, one in found.items()}


@dataclass(frozen=True)
class _Bare:
    """Energy of a device over the bare steps, and its least and greatest power meanwhile, W."""

    energy: EnergyResult
    least_w: float
    most_w: float

    @property
    def mean_w(self) -> float:
        return (self.energy.value_j or 0.0) / (self.energy.covered_s or 1.0)


def _extremes(series: SensorSeries, window: Window) -> tuple[float, float]:
    curve = power_curve(series)
    inside = curve.known & (curve.t_ns[1:] > window.start_ns) & (curve.t_ns[:-1] < window.end_ns)
    watts = np.concatenate([curve.first_w[inside], curve.last_w[inside]])
    return float(watts.min(initial=np.inf)), float(watts.max(initial=0.0))


def _constant(schema: pa.Schema, device: str | None, watts: float, window: Window, simulated: bool) -> pa.Table:
    columns = {
        "ts_ns": pa.array(np.linspace(window.start_ns, window.end_ns, _READINGS).astype(np.int64)),
        "value": pa.array(np.full(_READINGS, watts)),
        "device_kind": pa.array([DeviceKind.GPU] * _READINGS),
        "device_id": pa.array([device] * _READINGS, pa.string()),
        "field": pa.array([PowerField.POWER_INSTANT] * _READINGS),
        "flags": pa.array([Flag.SIMULATED if simulated else None] * _READINGS, pa.string()),
    }
    filled = [columns.get(f.name, pa.nulls(_READINGS, f.type)) for f in schema]
    return pa.table([c.cast(f.type) for c, f in zip(filled, schema, strict=True)], schema=schema)


def _as_measured(one: EnergyAttribution, bare: _Bare, steps: BareSteps) -> EnergyAttribution:
    """Replace the total by the energy of as many bare steps as the profile has steps.

    If the kernels together exceed this total, all of them shrink in proportion. The bounds of a kernel are its energies at
    the least and at the greatest power that was read.
    """
    share = steps.n_profiled / steps.n
    total = (bare.energy.value_j or 0.0) * share
    busy = (one.attributed_j or 0.0) + (one.unattributed_j or 0.0)
    factor = min(1.0, total / busy) if busy > 0 else 1.0
    kernels = one.kernels
    energy = kernels["energy_j"]
    columns = {"energy_j": pc.multiply(energy, factor)}
    columns |= {name: pc.multiply(kernels[name], factor) for name in ("static_j", "dynamic_j")}
    if bare.mean_w > 0:
        columns["low_j"] = pc.multiply(columns["energy_j"], min(bare.least_w / bare.mean_w, 1.0))
        columns["high_j"] = pc.multiply(energy, max(bare.most_w / bare.mean_w, 1.0))
    # Bounds from a power hold for all kernels at once, so upper bounds add up.
    columns |= {name: pa.nulls(kernels.num_rows, pa.float64()) for name in ("from_j", "to_j")}
    for name, column in columns.items():
        kernels = kernels.set_column(kernels.schema.get_field_index(name), name, column)
    shrunk = replace(one, kernels=kernels)
    lost = (one.unattributed_j or 0.0) * factor
    covered, length = (bare.energy.covered_s or 0.0) * share, steps.window.length_ns / 1e9 * share
    return replace(
        shrunk,
        total_j=total,
        unattributed_j=lost,
        idle_j=total - (shrunk.attributed_j or 0.0) - lost,
        total=replace(bare.energy, value_j=total, covered_s=covered, window_s=length).with_warnings(
            [Flag.ENERGY_OF_ANOTHER_CAPTURE]
        ),
        warnings=tuple(sorted({*one.warnings, Flag.ENERGY_OF_ANOTHER_CAPTURE})),
    )
