"""Energy of kernels from a model of the sensor.

Classes that can be told apart get their own energy. The other classes share the rest.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from magneton.analysis.energy.measure.apportion import KERNEL_ENERGY, EnergyAttribution, apportion, weakest
from magneton.analysis.energy.measure.power import PowerCurve
from magneton.analysis.energy.measure.result import EnergyResult, Window
from magneton.analysis.energy.measure.totals import SensorSeries
from magneton.analysis.energy.sensor_model.disaggregate import Disaggregation, disaggregate
from magneton.analysis.energy.sensor_model.sensor import SensorModel, lock
from magneton.analysis.energy.sensor_model.timeline import Timeline
from magneton.schemas.kinds import EnergyLabel, PowerField

Values = npt.NDArray[np.float64]
# The kernel names with the longest running time get a class each, up to this many. All other names form one class.
MAX_CLASSES = 60
# Limit of edges times classes of a timeline; about 600 MB.
_MAX_CELLS = 20_000_000
REST = "all other kernels"


def kernel_timeline(kernels: pa.Table, origin_ns: int) -> tuple[Timeline, npt.NDArray[np.int64]]:
    """Return the activity of one device by kernel name, s since ``origin_ns``, and the class of each kernel."""
    start = (kernels["ts_ns"].to_numpy().astype(np.int64) - origin_ns) / 1e9
    length = pc.fill_null(kernels["dur_ns"], 0).to_numpy().astype(np.float64) / 1e9
    names = kernels["name"].to_pylist()
    totals: dict[str, float] = {}
    for name, value in zip(names, length.tolist(), strict=True):
        totals[name] = totals.get(name, 0.0) + value
    most = max(4, min(MAX_CLASSES, _MAX_CELLS // max(2 * len(names), 1)))
    kept = sorted(totals, key=lambda n: (-totals[n], n))[:most]
    classes = (*kept, REST) if len(totals) > most else tuple(kept)
    index = {name: i for i, name in enumerate(kept)}
    class_of = np.array([index.get(n, len(classes) - 1) for n in names], dtype=np.int64)
    return Timeline(start, length, class_of, classes), class_of


def refine(
    shared: EnergyAttribution,
    kernels: pa.Table,
    series: SensorSeries,
    model: SensorModel,
    total: EnergyResult,
) -> EnergyAttribution:
    """Replace equal shares by energies from a model of the sensor, where classes can be told apart.

    Args:
        shared: the energy of the same kernels, divided equally.
        kernels: rows of ``kernels`` of the device, in that order.
        series: readings of its sensor; a counter gives the total only.
        model: the sensor.
        total: energy over the window from a counter, where there is one; else the model's own total is used.

    Returns:
        The attribution. Kernels of identified classes are ``disaggregated``. The others share the rest equally and stay
        ``apportioned``. If the readings do not suffice, ``shared`` is returned with the reason.
    """
    window = shared.window
    origin = window.start_ns
    timeline, class_of = kernel_timeline(kernels, origin)
    updates = lock((series.samples.t_ns - origin) / 1e9, series.samples.values, period_s=model.period_s)
    seconds = window.length_ns / 1e9
    better = (
        (total.value_j, 0.005 * total.value_j)
        if total.provenance.field == PowerField.ENERGY_COUNTER and total.value_j
        else None
    )
    found = disaggregate(updates, timeline, (0.0, seconds), model, total_j=better)
    if found is None:
        return replace(shared, refusals=("fewer than three readings of the sensor",))
    if found.refusals or not found.identified:
        reasons = found.refusals or ("no class of kernels can be told from the others",)
        return replace(shared, refusals=reasons, groups=tuple(g.classes for g in found.groups if len(g.classes) > 1))
    return _spread(shared, kernels, found, timeline.classes, class_of, window)


def _spread(
    shared: EnergyAttribution,
    kernels: pa.Table,
    found: Disaggregation,
    classes: tuple[str, ...],
    class_of: npt.NDArray[np.int64],
    window: Window,
) -> EnergyAttribution:
    time, length = _running(kernels, window, shared)
    equal = np.nan_to_num(shared.kernels["energy_j"].to_numpy().astype(np.float64))
    count = len(class_of)
    energy, static, low, high = (np.zeros(count) for _ in range(4))
    labels = [str(EnergyLabel.APPORTIONED)] * count
    index = {name: i for i, name in enumerate(classes)}
    for group in found.groups:
        mine = np.isin(class_of, [index[name] for name in group.classes])
        alone = len(group.classes) == 1 and group.label == EnergyLabel.DISAGGREGATED
        static[mine] = group.static_j * _shares(time[mine])
        if alone:
            energy[mine] = static[mine] + group.dynamic_j * _shares(length[mine])
        else:
            energy[mine] = group.energy_j * _shares(equal[mine])
        if alone and group.energy_j > 0:
            low[mine] = energy[mine] * (group.low_j / group.energy_j)
            high[mine] = energy[mine] * (group.high_j / group.energy_j)
            for i in np.flatnonzero(mine).tolist():
                labels[i] = EnergyLabel.DISAGGREGATED
        else:
            high[mine] = max(group.high_j, group.energy_j)
    ran = length > 0
    attributed = np.asarray(shared.kernels["attributed"].to_numpy(), dtype=bool)
    table = pa.table(
        {
            **{name: shared.kernels[name] for name in ("kernel_id", "kernel_class", "attributed")},
            "energy_j": pa.array(energy, mask=~ran),
            "static_j": pa.array(static, mask=~ran),
            "dynamic_j": pa.array(energy - static, mask=~ran),
            "low_j": pa.array(low, mask=~ran),
            "high_j": pa.array(high, mask=~ran),
            "from_j": pa.nulls(count, pa.float64()),
            "to_j": pa.nulls(count, pa.float64()),
            "label": pa.array(labels),
            "n_samples_inside": shared.kernels["n_samples_inside"],
            "flags": shared.kernels["flags"],
        },
        schema=KERNEL_ENERGY,
    )
    return replace(
        shared,
        kernels=table,
        total_j=found.total_j,
        low_j=found.total_low_j,
        high_j=found.total_high_j,
        idle_j=found.total_j - math.fsum(energy[ran].tolist()),
        unattributed_j=math.fsum(energy[ran & ~attributed].tolist()),
        label=weakest([label for label, r in zip(labels, ran.tolist(), strict=True) if r] or [EnergyLabel.APPORTIONED]),
        simulated=shared.simulated or found.simulated,
        idle_w=float(found.fit.mean[0]),
        groups=tuple(g.classes for g in found.groups if len(g.classes) > 1),
        refusals=tuple(sorted({r for g in found.groups for r in g.reasons})),
    )


def _running(kernels: pa.Table, window: Window, shared: EnergyAttribution) -> tuple[Values, Values]:
    """Return for each kernel its equal share of the running time, and its length, within the window, s."""
    ends = np.array([window.start_ns, window.end_ns], dtype=np.int64)
    watt = PowerCurve(ends, np.ones(1), np.ones(1), np.ones(1, dtype=bool))
    time = apportion(kernels, watt, shared.total, window).kernels["energy_j"].to_numpy().astype(np.float64)
    start = kernels["ts_ns"].to_numpy().astype(np.int64)
    end = start + pc.fill_null(kernels["dur_ns"], 0).to_numpy().astype(np.int64)
    length = (np.minimum(end, window.end_ns) - np.maximum(start, window.start_ns)) / 1e9
    return np.nan_to_num(time), np.maximum(length, 0.0)


def _shares(weights: Values) -> Values:
    total = float(weights.sum())
    return weights / total if total > 0 else np.zeros_like(weights)
