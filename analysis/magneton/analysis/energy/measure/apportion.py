"""Dividing the energy of a device among its kernels: at each instant the power is divided equally among the running kernels.

Example: two kernels overlap for 1 ms while the device draws 300 W. Each gets 0.15 J. The rule needs no model of the sensor, and no
energy is lost. It does not know which kernel draws more, so its energies are ``apportioned``: they are shown, and no finding
rests on them. Energy while nothing ran is ``idle``. Energy of kernels that nothing in the recording launched is ``unattributed``:
it belongs to no operator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from magneton.analysis.energy.measure.power import Grid, PowerCurve, cut
from magneton.analysis.energy.measure.result import LABELS, EnergyResult, Window
from magneton.schemas.kinds import EnergyLabel, Flag

Times = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

KERNEL_ENERGY = pa.schema(
    [
        ("kernel_id", pa.int64()),
        ("kernel_class", pa.string()),
        ("attributed", pa.bool_()),
        ("energy_j", pa.float64()),
        ("static_j", pa.float64()),
        ("dynamic_j", pa.float64()),
        ("low_j", pa.float64()),
        ("high_j", pa.float64()),
        ("from_j", pa.float64()),
        ("to_j", pa.float64()),
        ("label", pa.string()),
        ("n_samples_inside", pa.int64()),
        ("flags", pa.string()),
    ]
)
NO_CLASS = "other"


@dataclass(frozen=True)
class EnergyAttribution:
    """Energy of one device over a window, divided among its kernels.

    Attributes:
        device_kind: kind of the device.
        device_id: its name with the sensor.
        window: the window.
        kernels: one row per kernel of the device (``KERNEL_ENERGY``). ``energy_j`` is the energy inside the window, J; NULL where
            no power is known and for kernels outside the window. ``low_j`` and ``high_j`` are its bounds. ``from_j`` and
            ``to_j`` say which stretches between samples the kernel touches, as running totals of the device's energy: up to
            the start of the first stretch, and up to the end of the last. Kernels that touch one stretch share its energy,
            so their upper bounds do not add up. ``from_j`` and ``to_j`` are NULL where upper bounds do add up.
        total_j: energy of the device where it is known; None when nothing is.
        low_j: lower end of the total's 95 % interval; None without a model of the sensor.
        high_j: its upper end.
        idle_j: energy while nothing ran.
        unattributed_j: energy of kernels that nothing launched.
        total: how the total was measured: coverage, gaps, field, warnings.
        label: weakest label of the kernels' numbers, one of ``LABELS``.
        simulated: the power was simulated.
        idle_w: power at rest that static shares use; None where it is not known.
        warnings: codes, sorted.
        refusals: why classes could not be told apart, one sentence each.
        groups: classes merged because only their sum is known, where a model was used.
    """

    device_kind: str | None
    device_id: str | None
    window: Window
    kernels: pa.Table
    total_j: float | None
    low_j: float | None
    high_j: float | None
    idle_j: float | None
    unattributed_j: float | None
    total: EnergyResult
    label: str = EnergyLabel.APPORTIONED
    simulated: bool = False
    idle_w: float | None = None
    warnings: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()

    @property
    def attributed_j(self) -> float | None:
        """Energy of the kernels that something launched, J."""
        if self.total_j is None:
            return None
        return _sum(self.kernels.filter(self.kernels["attributed"])["energy_j"])

    def by_class(self) -> dict[str, float]:
        """Return energy by class of kernels, J; waiting in a collective is a class of its own (``collective``)."""
        known = self.kernels.filter(pc.is_valid(self.kernels["energy_j"]))
        found: dict[str, list[float]] = {}
        for name, value in zip(known["kernel_class"].to_pylist(), known["energy_j"].to_pylist(), strict=True):
            found.setdefault(name, []).append(value)
        return {name: math.fsum(values) for name, values in sorted(found.items())}


def weakest(labels: list[str]) -> str:
    """Return the label that a sum of numbers with these labels carries."""
    return max(labels, key=LABELS.index)


def _sum(column: pa.ChunkedArray) -> float:
    return math.fsum(v for v in column.to_pylist() if v is not None)


@dataclass(frozen=True)
class _Work:
    """Kernels of one device, cut to the window."""

    start: Times
    end: Times
    ran: Flags
    empty: Flags


def _work(kernels: pa.Table, window: Window) -> _Work:
    start = kernels["ts_ns"].to_numpy().astype(np.int64)
    known = np.asarray(pc.is_valid(kernels["dur_ns"]).to_numpy(), dtype=bool)
    length = np.where(known, pc.fill_null(kernels["dur_ns"], 0).to_numpy(), 0).astype(np.int64)
    # A kernel that took no time took no energy; one of unknown length took an unknown one.
    empty = known & (length == 0) & (start >= window.start_ns) & (start <= window.end_ns)
    start, end = np.maximum(start, window.start_ns), np.minimum(start + length, window.end_ns)
    return _Work(start, end, end > start, empty)


def apportion(
    kernels: pa.Table,
    curve: PowerCurve,
    total: EnergyResult,
    window: Window,
    *,
    idle_w: float | None = None,
    simulated: bool = False,
) -> EnergyAttribution:
    """Divide the energy of one device equally among the kernels that run at each instant.

    Args:
        kernels: rows of ``kernels`` of this device (``kernel_id, ts_ns, dur_ns, kernel_class, launch_id, op_id``), on the
            time line of the power.
        curve: power of the device.
        total: its energy over the window; coverage and warnings are taken from it.
        window: ns.
        idle_w: power at rest, W, for static and dynamic shares.
        simulated: the power was simulated.
    """
    work = _work(kernels, window)
    grid = cut(curve, window, np.concatenate([work.start[work.ran], work.end[work.ran]]))
    running = _running(work, grid)
    share_j = np.divide(grid.joules, running, out=np.zeros_like(grid.joules), where=running > 0)
    share_s = np.divide(grid.seconds, running, out=np.zeros_like(grid.seconds), where=running > 0)
    first = np.searchsorted(grid.t_ns, np.clip(work.start, window.start_ns, window.end_ns))
    last = np.searchsorted(grid.t_ns, np.clip(work.end, window.start_ns, window.end_ns))
    last = np.maximum(last, first)
    energy, share, covered = (_over(x, first, last) for x in (share_j, share_s, grid.seconds))
    known = (work.ran & (covered > 0)) | work.empty
    low, outer = _bounds(curve, grid, share_j, work)
    static = None if idle_w is None else idle_w * share
    inside = np.searchsorted(curve.t_ns, work.end, "right") - np.searchsorted(curve.t_ns, work.start, "left")
    attributed = _attributed(kernels)
    flags = np.where(work.ran & ~known, "no_power_data", np.where(known & (inside == 0), "interpolated", "")).tolist()
    table = pa.table(
        {
            "kernel_id": kernels["kernel_id"],
            "kernel_class": pc.fill_null(kernels["kernel_class"], NO_CLASS),
            "attributed": pa.array(attributed),
            "energy_j": _nullable(energy, known),
            "static_j": _nullable(static, known),
            "dynamic_j": _nullable(None if static is None else energy - static, known),
            "low_j": _nullable(np.minimum(low, energy), known),
            "high_j": _nullable(np.maximum(outer[1] - outer[0], energy), known),
            "from_j": _nullable(outer[0], known),
            "to_j": _nullable(np.maximum(outer[1], outer[0] + energy), known),
            "label": pa.array([EnergyLabel.APPORTIONED] * len(energy), pa.string()),
            "n_samples_inside": pa.array(np.where(work.ran, inside, 0).astype(np.int64)),
            "flags": pa.array([f or None for f in flags], pa.string()),
        },
        schema=KERNEL_ENERGY,
    )
    any_known = bool(grid.known.any())
    idle = math.fsum(grid.joules[running == 0].tolist()) if any_known else None
    lost = math.fsum(energy[known & ~attributed].tolist()) if any_known else None
    found = EnergyAttribution(
        device_kind=total.provenance.device_kind,
        device_id=total.provenance.device_id,
        window=window,
        kernels=table,
        total_j=math.fsum(grid.joules.tolist()) if any_known else None,
        low_j=None,
        high_j=None,
        idle_j=idle,
        unattributed_j=lost,
        total=total,
        simulated=simulated,
        idle_w=idle_w,
        warnings=total.warnings,
    )
    busy_s = float(grid.seconds[running > 0].sum())
    busy_j = math.fsum(grid.joules[running > 0].tolist())
    if idle_w is not None and busy_s > 0 and busy_j < idle_w * busy_s:
        found = replace(found, warnings=tuple(sorted({*found.warnings, Flag.BELOW_IDLE_BASELINE})))
    return found


def _running(work: _Work, grid: Grid) -> Values:
    """Return how many kernels run in each piece of the grid."""
    change = np.zeros(len(grid.t_ns))
    np.add.at(change, np.searchsorted(grid.t_ns, work.start[work.ran]), 1.0)
    np.add.at(change, np.searchsorted(grid.t_ns, work.end[work.ran]), -1.0)
    counts: Values = np.cumsum(change)[:-1]
    return counts


def _over(pieces: Values, first: npt.NDArray[np.intp], last: npt.NDArray[np.intp]) -> Values:
    """Return the sum of the pieces ``first .. last - 1``, for each pair.

    Short runs are summed directly: the difference of two large running totals would lose their last digits.
    """
    total = np.concatenate([[0.0], np.cumsum(pieces)])
    result = total[last] - total[first]
    few = last - first <= 8
    direct = np.zeros(len(first))
    for step in range(8):
        use = few & (first + step < last)
        direct[use] += pieces[first[use] + step]
    found: Values = np.where(few, direct, result)
    return found


def _bounds(curve: PowerCurve, grid: Grid, share_j: Values, work: _Work) -> tuple[Values, Values]:
    """Return the least energy of each kernel, J, and the stretches between samples that it touches.

    It is unknown when within a stretch the energy was used. So a kernel used at least its share of the stretches that lie
    wholly within it, and at most all the energy of the stretches it touches. The stretches are given as running totals of
    the device's energy, up to the start of the first and up to the end of the last; shape (2, kernels).
    """
    count = len(curve.t_ns)
    if count < 2:
        return np.zeros(len(work.start)), np.zeros((2, len(work.start)))
    shared = np.concatenate([[0.0], np.cumsum(share_j)])
    first = np.searchsorted(curve.t_ns, work.start, "left")
    last = np.searchsorted(curve.t_ns, work.end, "right") - 1
    whole = last > first
    inner_start, inner_end = curve.t_ns[np.minimum(first, count - 1)], curve.t_ns[np.clip(last, 0, count - 1)]
    low = shared[np.clip(np.searchsorted(grid.t_ns, inner_end), 0, len(shared) - 1)]
    low = low - shared[np.clip(np.searchsorted(grid.t_ns, inner_start), 0, len(shared) - 1)]
    stretches = (curve.first_w + curve.last_w) / 2 * np.where(curve.known, np.diff(curve.t_ns) / 1e9, 0.0)
    energy = np.concatenate([[0.0], np.cumsum(stretches)])
    outer_first = np.clip(np.searchsorted(curve.t_ns, work.start, "right") - 1, 0, count - 1)
    outer_last = np.clip(np.searchsorted(curve.t_ns, work.end, "left"), 0, count - 1)
    return np.where(whole, np.maximum(low, 0.0), 0.0), np.stack([energy[outer_first], energy[outer_last]])


def _attributed(kernels: pa.Table) -> Flags:
    linked = pc.is_valid(kernels["launch_id"])
    if "op_id" in kernels.column_names:
        linked = pc.or_(linked, pc.is_valid(kernels["op_id"]))
    return np.asarray(linked.to_numpy(), dtype=bool)


def _nullable(values: Values | None, known: Flags) -> pa.Array:
    if values is None:
        return pa.nulls(len(known), pa.float64())
    return pa.array(values, mask=~known)
