"""Energy of a recording by device and kernel. First each sensor is assigned to its device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from magneton.analysis.energy.measure.apportion import EnergyAttribution, apportion
from magneton.analysis.energy.measure.devices import DeviceMap, map_devices
from magneton.analysis.energy.measure.integrate import prepare
from magneton.analysis.energy.measure.power import power_curve
from magneton.analysis.energy.measure.result import EnergyResult, Provenance, Window
from magneton.analysis.energy.measure.totals import PREFERENCE, SensorSeries, preferred, series_energy, series_of
from magneton.analysis.energy.sensor_model.by_model import refine
from magneton.analysis.energy.sensor_model.sensor import SensorModel
from magneton.schemas.kinds import DeviceKind, EnergyLabel, Flag, PowerField


def attribute(
    kernels: pa.Table,
    power: pa.Table,
    window: Window,
    *,
    devices: Mapping[int, str | None] | None = None,
    codes: Sequence[str] = (),
    idle_w: Mapping[int, float] | None = None,
    max_gap_s: float | None = None,
    models: Mapping[int, SensorModel] | None = None,
) -> dict[int, EnergyAttribution]:
    """Divide the energy of each GPU of a recording among its kernels.

    Args:
        kernels: table ``kernels`` of one capture and rank.
        power: table ``power`` on the same time line (see ``docs/power.md``).
        window: ns, on that time line.
        devices: the sensor's name of each device number, where known; else as ``map_devices`` finds it.
        codes: warnings of ``devices``.
        idle_w: power at rest by device number, W.
        max_gap_s: longest interval between power samples that is bridged, s.
        models: model of the sensor by device number; without one energy is ``apportioned`` and has no interval.

    Returns:
        By device number: every device on which a kernel ran. The energy of a device without power readings is None.

    Raises:
        InsufficientPowerDataError: it is unknown which reading belongs to which device.
    """
    numbers = sorted({n for n in pc.unique(kernels["device"]).to_pylist() if n is not None})
    mine = power.filter(pc.equal(power["device_kind"], DeviceKind.GPU)) if power.num_rows else power
    series = series_of(mine)
    simulated = is_simulated(mine)
    mapping = None
    if series:
        mapping = (
            DeviceMap(dict(devices), (), tuple(codes))
            if devices is not None
            else map_devices((s.device_id for s in series), used=numbers)
        )
    found = {}
    for number in numbers:
        there = mapping is not None and number in mapping.ids
        name = mapping.ids[number] if mapping and there else None
        chosen = best_series([s for s in series if there and s.device_id == name], window, max_gap_s=max_gap_s)
        work = kernels.filter(pc.equal(kernels["device"], number))
        if chosen is None:
            found[number] = _nothing(work, window, name)
            continue
        one, total = chosen
        if mapping:
            total = total.with_warnings(mapping.warnings)
        gap = None if max_gap_s is None else max_gap_s * 1e9
        curve = power_curve(one, max_gap_ns=gap)
        shared = apportion(work, curve, total, window, idle_w=(idle_w or {}).get(number), simulated=simulated)
        model = (models or {}).get(number)
        powers = [s for s in series if mapping and s.device_id == name and s.field != PowerField.ENERGY_COUNTER]
        if model is not None and powers and shared.total_j is not None:
            shared = refine(shared, work, min(powers, key=lambda p: PREFERENCE.index(p.field)), model, total)
        found[number] = shared
    return found


def best_series(
    series: list[SensorSeries], window: Window, *, max_gap_s: float | None = None
) -> tuple[SensorSeries, EnergyResult] | None:
    """Return the series of a device to use for a window, and its energy: the choice of ``device_energy``."""
    results = [(s, series_energy(s, window, max_gap_s=max_gap_s)) for s in series]
    return preferred(results) if results else None


def is_simulated(power: pa.Table) -> bool:
    """Whether any reading says that it was simulated."""
    if power.num_rows == 0 or "flags" not in power.column_names:
        return False
    flags = pc.fill_null(power["flags"], "")
    return bool(pc.any(pc.match_substring(flags, Flag.SIMULATED)).as_py())


def _nothing(kernels: pa.Table, window: Window, device_id: str | None) -> EnergyAttribution:
    none = SensorSeries(
        None, None, DeviceKind.GPU, device_id, PowerField.POWER, prepare(np.zeros(0, np.int64), np.zeros(0))
    )
    total = EnergyResult(
        value_j=None,
        window_s=window.length_ns / 1e9,
        covered_s=0.0,
        gaps=((window.start_ns, window.end_ns),) if window.length_ns else (),
        warnings=("no_power_data",),
        provenance=Provenance(device_kind=DeviceKind.GPU, device_id=device_id, label=EnergyLabel.NOT_IDENTIFIABLE),
    )
    return apportion(kernels, power_curve(none), total, window)


def idle_power(power: SensorSeries, window: Window, *, max_gap_s: float | None = None) -> float | None:
    """Return the mean power of a device over a window in which it rested, W; None where less than half is measured."""
    found = series_energy(power, window, max_gap_s=max_gap_s)
    if found.value_j is None or not found.covered_s or (found.coverage or 0.0) < 0.5:
        return None
    return found.value_j / found.covered_s
