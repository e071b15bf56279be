"""Energy of the two sides of a diff: joules per kernel where a power log lies on the time line of the profile.

A power log alone allows only a division by time (``apportioned``). Such energies are shown with their bounds, and no finding
rests on them. Attributed, idle and unattributed energy add up to the energy of the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from magneton.analysis.align.tree import KernelJoules
from magneton.analysis.diff.joules.bare_energy import bare_steps, share_bare
from magneton.analysis.energy import machine
from magneton.analysis.energy.attribute import attribute
from magneton.analysis.energy.machine import devices_of, power_of, steps_of
from magneton.analysis.energy.measure.apportion import EnergyAttribution, weakest
from magneton.analysis.energy.measure.basis import dynamic
from magneton.analysis.energy.measure.result import Window, need_coverage
from magneton.analysis.energy.measure.totals import SensorSeries, series_of
from magneton.analysis.recording import Needs, Recording
from magneton.schemas.documents.diff import EnergyDoc, Note
from magneton.schemas.kinds import DeviceKind, Flag

_KERNEL_COLUMNS = (
    "kernel_id", "kernel_class", "ts_ns", "dur_ns", "device", "launch_id", "op_id", "capture", "rank",
)  # fmt: skip
_STEP_COLUMNS = ("ts_ns", "dur_ns", "rank", "capture", "kind")
# What ``side_energy`` asks of a recording.
NEEDS: Needs = {
    "kernels": _KERNEL_COLUMNS,
    "steps": _STEP_COLUMNS,
    "power": None,
    "captures": machine.NEEDS["captures"],
}


@dataclass
class SideEnergy:
    """Energy of one side over its whole capture.

    Attributes:
        by_kernel: energy of each kernel with its bounds; kernels of unknown power are not in it.
        document: totals of the devices, for the document.
        fields: which readings were used.
        slower: time of a step under the profiler divided by that of a bare step, if the energy is that of the bare program.
    """

    by_kernel: dict[int, KernelJoules]
    document: EnergyDoc
    fields: frozenset[str]
    slower: float | None = None
    said: tuple[tuple[str, str], ...] = ()


def side_energy(recording: Recording, rank: int, min_coverage: float, idle_w: float | None = None) -> SideEnergy | None:
    """Divide the energy of the devices of a recording among its kernels. None if no power of a GPU was recorded.

    Args:
        recording: the recording.
        rank: rank that is compared.
        min_coverage: least share of the window that the power samples must cover, 0 to 1.
        idle_w: power of each device at rest, W. It is subtracted, and the energies are ``dynamic``. Without it they are ``gross``.

    Raises:
        InsufficientPowerDataError: they cover less, or a reading cannot be given to a device.
    """
    power = power_of(recording, rank)
    kernels = recording.of_rank("kernels", rank, _KERNEL_COLUMNS)
    # Processors and memory have ledgers; kernels run on GPUs only.
    if not power.num_rows or not kernels.num_rows or not pc.any(pc.equal(power["device_kind"], DeviceKind.GPU)).as_py():
        return None
    window = _window(recording, rank, kernels)
    numbers = [n for n in pc.unique(kernels["device"]).to_pylist() if n is not None]
    rest = None if idle_w is None else dict.fromkeys(numbers, idle_w)
    bare = bare_steps(_steps(recording, rank), power, window, pc.unique(kernels["capture"]).to_pylist())
    mapping = devices_of(recording, rank, power, sorted(numbers))
    sensors, codes = mapping.ids, mapping.warnings
    if bare is not None:
        found = share_bare(kernels, power, bare, min_coverage, recording.manifest.label, rest, sensors, codes)
    else:
        found = attribute(kernels, power, window, idle_w=rest, devices=sensors, codes=codes)
        for one in found.values():
            need_coverage(one.total, min_coverage, f"the kernels of {recording.manifest.label}")
    if idle_w is not None:
        found = {number: _above_rest(one, idle_w) for number, one in found.items()}
    by_kernel: dict[int, KernelJoules] = {}
    names = ("kernel_id", "energy_j", "low_j", "high_j", "from_j", "to_j")
    before_j = 0.0
    for one in found.values():
        for kernel, energy, low, high, start, end in zip(
            *(one.kernels[name].to_pylist() for name in names), strict=True
        ):
            if energy is not None:
                # Running totals of the devices follow one another, so that stretches of two devices never overlap.
                within = None if start is None else (before_j + start, before_j + end)
                bounds = (energy if low is None else low, energy if high is None else high)
                by_kernel[kernel] = KernelJoules(energy, *bounds, within)
        before_j += max((end for end in one.kernels["to_j"].to_pylist() if end is not None), default=0.0)
    fields = frozenset(f for one in found.values() if (f := one.total.provenance.field) is not None)
    said: dict[tuple[str, str | None], str] = {}
    for series in series_of(power):
        for code in series.warnings if series.against and series.device_id in sensors.values() else ():
            said.setdefault((code, series.device_id), _against(series))
    told = tuple((code, text) for (code, _), text in said.items())
    return SideEnergy(by_kernel, _document(found, window, fields), fields, bare.ratio if bare else None, told)


def _against(one: SensorSeries) -> str:
    """Return what a series that another contradicts says, and what the other says."""
    mine, other, title = one.against or (0.0, 0.0, "")
    what = f"{one.device_kind} {one.device_id}: {one.field}{f' of {one.capture}' if one.capture else ''}"
    if other != other:  # NaN: a counter that stands still
        return f"{what} stands still and is not used, since {title} shows power"
    rule = "is not used" if one.aside else "and the other disagree; the log with more readings is used"
    return f"{what} gives {mine:.4g} J where {title} gives {other:.4g} J: it {rule}"


def _window(recording: Recording, rank: int, kernels: pa.Table) -> Window:
    """Return the time from the first step or device activity to the end of the last."""
    steps = _steps(recording, rank)
    # Steps of other captures (the bare program, run by itself) lie at another time.
    steps = steps.filter(pc.is_in(steps.column("capture"), value_set=pc.unique(kernels.column("capture"))))
    starts, ends = [], []
    for table in (steps, kernels):
        timed = table.filter(pc.is_valid(table.column("ts_ns")))
        if timed.num_rows:
            starts.append(pc.min(timed.column("ts_ns")).as_py())
            ends.append(pc.max(pc.add(timed.column("ts_ns"), pc.fill_null(timed.column("dur_ns"), 0))).as_py())
    return Window(min(starts), max(ends))


def _steps(recording: Recording, rank: int) -> pa.Table:
    return steps_of(recording, rank, _STEP_COLUMNS)


def _document(found: dict[int, EnergyAttribution], window: Window, fields: frozenset[str]) -> EnergyDoc:
    def total(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return math.fsum(known) if len(known) == len(values) else None

    devices = list(found.values())
    covered = [one.total.covered_s for one in devices]
    return EnergyDoc(
        label=weakest([one.label for one in devices]),
        basis=devices[0].total.basis,
        simulated=any(one.simulated for one in devices),
        fields=sorted(fields),
        window_s=max((one.total.window_s or 0.0 for one in devices), default=window.length_ns / 1e9),
        covered_s=min(c for c in covered if c is not None) if None not in covered else None,
        total_j=total([one.total_j for one in devices]),
        attributed_j=total([one.attributed_j for one in devices]),
        idle_j=total([one.idle_j for one in devices]),
        unattributed_j=total([one.unattributed_j for one in devices]),
        warnings=sorted({code for one in devices for code in (*one.warnings, *one.total.warnings)}),
    )


def _above_rest(one: EnergyAttribution, idle_w: float) -> EnergyAttribution:
    """Subtract the energy at rest from the total and from each part, in proportion to time."""
    kernels = one.kernels
    for name in ("energy_j", "low_j", "high_j"):
        above = pc.subtract(kernels[name], kernels["static_j"])
        kernels = kernels.set_column(kernels.schema.get_field_index(name), name, above)
    if one.total_j is None or one.idle_j is None or one.unattributed_j is None:
        return replace(one, kernels=kernels, total=dynamic(one.total, idle_w))
    static = {key: _static(one, attributed=key) for key in (True, False)}
    rest = idle_w * (one.total.covered_s or 0.0)
    return replace(
        one,
        kernels=kernels,
        total_j=one.total_j - rest,
        idle_j=one.idle_j - (rest - static[True] - static[False]),
        unattributed_j=one.unattributed_j - static[False],
        total=dynamic(one.total, idle_w),
    )


def _static(one: EnergyAttribution, *, attributed: bool) -> float:
    rows = one.kernels.filter(pc.equal(one.kernels["attributed"], attributed))
    return math.fsum(joules for joules in rows["static_j"].to_pylist() if joules is not None)


def energy_notes(a: SideEnergy | None, b: SideEnergy | None) -> list[Note]:
    """Return the notes that a reader needs before comparing the energies of both sides."""
    notes = []
    if (a is None) != (b is None):
        notes.append(Note("energy_on_one_side", "only one side has a power log, so energies cannot be compared"))
    if a is not None and b is not None and a.fields != b.fields:
        text = f"side A was measured by {', '.join(sorted(a.fields))}, side B by {', '.join(sorted(b.fields))}"
        notes.append(Note("sensor_field_mismatch", f"{text}: energies of different sensor fields cannot be compared"))
    for letter, side in (("A", a), ("B", b)):
        if side is not None and side.slower is not None:
            text = "its energy was measured on bare steps and divided among the kernels of its profile"
            notes.append(
                Note(
                    Flag.ENERGY_OF_ANOTHER_CAPTURE,
                    f"side {letter}: {text}, whose steps took {side.slower:.3g} times as long",
                )
            )
        notes += [Note(code, f"side {letter}: {text}") for code, text in (side.said if side is not None else ())]
        if side is not None and Flag.DEVICE_SHARED in side.document.warnings:
            text = (
                "the power is that of a whole board, shared with other users of it: its joules are not the job's alone"
            )
            notes.append(Note(Flag.DEVICE_SHARED, f"side {letter}: {text}"))
        if side is not None and side.document.simulated:
            notes.append(Note(Flag.SIMULATED, f"side {letter}: its power is simulated, and so is every joule"))
    return notes
