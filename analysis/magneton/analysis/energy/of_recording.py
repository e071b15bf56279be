"""Energy of the devices of one recording: per run, step, phase, token and request, with 95 % intervals.

The power of each GPU is estimated from its readings, the times of its kernels, and the table of known sensors
(``sensor_model.windows``). Energies of several devices are not added up here: each has a row of its own.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from magneton.analysis.energy.attribute import is_simulated
from magneton.analysis.energy.machine import devices_of, line_of, power_of, steps_of
from magneton.analysis.energy.measure.totals import SensorSeries, series_of
from magneton.analysis.energy.sensor_model.known import known_sensor
from magneton.analysis.energy.sensor_model.sensor import Calibration
from magneton.analysis.energy.sensor_model.timeline import Array
from magneton.analysis.energy.sensor_model.windows import DeviceEnergy, WindowEnergy, sum_windows
from magneton.analysis.recording import Recording
from magneton.schemas.documents.diff import Note
from magneton.schemas.documents.energy import CalibrationDocument, EnergyDocument, EnergyRow, SensorDoc
from magneton.schemas.errors import InputFormatError, InsufficientPowerDataError
from magneton.schemas.files.json import read_object
from magneton.schemas.kinds import DeviceKind, Flag, PowerField, StepKind

_FIELDS = (PowerField.POWER_INSTANT, PowerField.POWER, PowerField.POWER_AVERAGE)
_STEP_COLUMNS = ("ts_ns", "dur_ns", "kind", "phase", "context_tokens", "generation_tokens", "capture", "rank")
_KERNEL_COLUMNS = ("ts_ns", "dur_ns", "device", "capture", "rank")
_LEAST_REST_S = 0.5


@dataclass(frozen=True)
class _Step:
    start_s: float
    end_s: float
    phase: str | None
    tokens: int | None


@dataclass(frozen=True)
class Scale:
    """Gain and offset of one sensor, and which one it is: its device and field, None where that is not stated."""

    calibration: Calibration
    device_name: str | None
    field: str | None

    def fits(self, device_name: str | None, field: str) -> bool:
        """Return whether it may be the scale of a field of a device."""
        return self.device_name in (None, device_name) and self.field in (None, field)


def energy_of(recording: Recording, tool: str, scale: Scale | None = None) -> EnergyDocument:
    """Return the energy of every GPU whose power was read.

    Args:
        recording: a normalised recording with a power log.
        tool: name and version of the program, for the document.
        scale: gain and offset of a sensor. Others, and all without it, have those of the table of known sensors, with its uncertainty.

    Raises:
        InsufficientPowerDataError: no power of a GPU was read, nothing ran while it was, or a reading cannot be given to a device.
    """
    ranks = recording.ranks()
    power = power_of(recording, ranks[0])
    series = [s for s in series_of(power, _FIELDS) if s.device_kind == DeviceKind.GPU]
    if not series:
        raise InsufficientPowerDataError(
            "holds no power of a GPU",
            path=recording.directory,
            remedy="give the log to `magneton normalize TRACE --power LOG`, or record with a sensor",
        )
    zero_ns = min(int(s.samples.t_ns[0]) for s in series if len(s.samples.t_ns))
    work = _work(recording, ranks, power, zero_ns)
    marked = _steps(recording, ranks[0], series, zero_ns)
    # Without step marks the time from the first kernel to the end of the last is the run.
    steps = marked or _whole(work, series, zero_ns)
    if not steps:
        raise InsufficientPowerDataError(
            "no step and no kernel lies in the time of the power log",
            path=recording.directory,
            remedy="check the clock of the log",
        )
    names = {d.index: d.name for d in recording.manifest.devices if d.kind == DeviceKind.GPU}
    rows: list[EnergyRow] = []
    sensors: list[SensorDoc] = []
    notes = [Note(code, "which GPU of the log is which device of the trace is assumed") for code in work.warnings]
    for device_id in sorted({s.device_id or "" for s in series}):
        numbers = work.numbers.get(device_id, set())
        own = [s for s in series if (s.device_id or "") == device_id]
        name = next((names[n] for n in numbers if n in names), None)
        if name is None and len(names) == 1:
            name = next(iter(names.values()))
        # On a GPU that the trace shows no work on, while it shows some on others, the steps ran nothing.
        ran = steps if numbers or not work.numbers else []
        one = _device(own, work.busy_s.get(device_id), ran, zero_ns, name, scale)
        if one is None:
            notes.append(Note("too_few_readings", f"device {device_id or '-'}: fewer than three readings of its power"))
            continue
        found, chosen = one
        if scale is not None and found.calibration is not scale.calibration:
            text = f"device {device_id or '-'}: the calibration is of another device or field ({name or 'unnamed'}, {chosen.field})"
            notes.append(Note("calibration_not_used", text))
        elif scale is not None and scale.device_name is None and len({s.device_id for s in series}) > 1:
            text = (
                f"device {device_id or '-'}: the calibration does not say of which device it is, and is used for each"
            )
            notes.append(Note("calibration_assumed", text))
        if work.numbers and not numbers:
            notes.append(
                Note("device_not_used", f"device {device_id}: the trace shows no work on it; its energy stands apart")
            )
        rows += _rows(device_id, found, steps, marked=bool(marked))
        sensors.append(_sensor(device_id, name, chosen, found, is_simulated(power)))
    if any(sensor.simulated for sensor in sensors):
        notes.append(Note(Flag.SIMULATED, "the power is simulated, and so is every joule"))
    manifest = recording.manifest
    return EnergyDocument(manifest.run_id, manifest.label, tool, rows, sensors, notes)


@dataclass
class _Work:
    """What ran on each GPU of the log: its numbers in the trace, and when it was busy, s."""

    numbers: dict[str, set[int]]
    busy_s: dict[str, Array]
    warnings: list[str]


def _work(recording: Recording, ranks: list[int], power: pa.Table, zero_ns: int) -> _Work:
    """Return what all ranks ran, on the time line of the first."""
    line = line_of(recording, ranks[0])
    numbers: dict[str, set[int]] = defaultdict(set)
    busy: dict[str, list[Array]] = defaultdict(list)
    warnings: set[str] = set()
    for rank in ranks:
        kernels = recording.of_rank("kernels", rank, _KERNEL_COLUMNS)
        kernels = kernels.filter(pc.and_(pc.is_valid(kernels["ts_ns"]), pc.is_valid(kernels["dur_ns"])))
        used = sorted(n for n in pc.unique(kernels["device"]).to_pylist() if n is not None)
        mapping = devices_of(recording, rank, power, used)
        warnings |= set(mapping.warnings)
        own_line = line_of(recording, rank)
        shift = 0 if line is None or own_line is None else own_line - line
        for number in used:
            own = kernels.filter(pc.equal(kernels["device"], number))
            start = (own["ts_ns"].to_numpy() + shift - zero_ns) / 1e9
            sensor_id = mapping.ids[number] or ""
            numbers[sensor_id].add(number)
            busy[sensor_id].append(np.stack([start, start + own["dur_ns"].to_numpy() / 1e9], axis=1))
    return _Work(dict(numbers), {key: np.concatenate(parts) for key, parts in busy.items()}, sorted(warnings))


def read_calibration(path: Path) -> Scale:
    """Read gain and offset of a sensor.

    Raises:
        InputFormatError: not a calibration.
    """
    document = read_object(path)
    try:
        found = msgspec.convert(document, CalibrationDocument)
    except msgspec.ValidationError as error:
        raise InputFormatError(
            f"is not a calibration: {error}", path=path, remedy="see docs/power.md for its form"
        ) from error
    if not (found.gain > 0 and found.gain_sd >= 0 and found.offset_sd_w >= 0 and abs(found.correlation) <= 1):
        raise InputFormatError("gain must be above 0, deviations not below 0", path=path, remedy="see docs/power.md")
    scale = Calibration(found.gain, found.offset_w, found.gain_sd, found.offset_sd_w, found.correlation, found.source)
    return Scale(scale, found.device_name, found.field)


def _whole(work: _Work, series: list[SensorSeries], zero_ns: int) -> list[_Step]:
    """Return the time in which kernels ran while the power was read, as one step."""
    last_s = (max(int(s.samples.t_ns[-1]) for s in series) - zero_ns) / 1e9
    busy = [one[(one[:, 1] > 0) & (one[:, 0] < last_s)] for one in work.busy_s.values()]
    seen = [one for one in busy if len(one)]
    if not seen:
        return []
    return [_Step(min(float(one[:, 0].min()) for one in seen), max(float(one[:, 1].max()) for one in seen), None, None)]


def _steps(recording: Recording, rank: int, series: list[SensorSeries], zero_ns: int) -> list[_Step]:
    """Return the steps of a rank that ran while the power was read; bare ones where the bare program was measured.

    Of several ranks the steps run at once; those of one stand for all.
    """
    rows = [r for r in steps_of(recording, rank, _STEP_COLUMNS).to_pylist() if r["ts_ns"] is not None and r["dur_ns"]]
    first = min(int(s.samples.t_ns[0]) for s in series)
    last = max(int(s.samples.t_ns[-1]) for s in series)
    seen = [r for r in rows if r["ts_ns"] < last and r["ts_ns"] + r["dur_ns"] > first]
    bare = [r for r in seen if r["kind"] == StepKind.BARE_STEP]
    steps = [
        _Step((r["ts_ns"] - zero_ns) / 1e9, (r["ts_ns"] + r["dur_ns"] - zero_ns) / 1e9, r["phase"], _tokens(r))
        for r in bare or seen
    ]
    return sorted(steps, key=lambda s: s.start_s)


def _tokens(row: dict[str, Any]) -> int | None:
    counts = [row[c] for c in ("context_tokens", "generation_tokens") if row[c] is not None]
    return sum(counts) if counts else None


def _device(
    series: list[SensorSeries],
    busy_s: Array | None,
    steps: list[_Step],
    zero_ns: int,
    name: str | None,
    scale: Scale | None,
) -> tuple[DeviceEnergy, SensorSeries] | None:
    chosen = min(series, key=lambda s: (_FIELDS.index(PowerField(s.field)), -len(s.samples.t_ns)))
    t_s: Array = (chosen.samples.t_ns - zero_ns) / 1e9
    # Kernels of another capture than the power log's say nothing of what ran while the power was read. Then the steps stand for them.
    seen = None if busy_s is None else busy_s[(busy_s[:, 1] > t_s[0]) & (busy_s[:, 0] < t_s[-1])]
    known = seen is not None and len(seen) > 0
    load = (
        seen if seen is not None and known else np.array([(step.start_s, step.end_s) for step in steps]).reshape(-1, 2)
    )
    calibration = scale.calibration if scale is not None and scale.fits(name, chosen.field) else None
    sensor = known_sensor(name, chosen.field)
    try:
        found = DeviceEnergy(t_s, chosen.samples.values, load, sensor, timeline_known=known, calibration=calibration)
    except ValueError:
        return None
    return found, chosen


def _rows(device: str, found: DeviceEnergy, steps: list[_Step], *, marked: bool) -> list[EnergyRow]:
    first, last = steps[0].start_s, max(s.end_s for s in steps)
    rows = [_row(device, "run", None, 1, last - first, found.window(first, last))]
    made = [(step, found.window(step.start_s, step.end_s)) for step in steps]
    if marked:
        rows.append(_mean(device, "step", None, made, len(made)))
    by_phase: dict[str, list[tuple[_Step, WindowEnergy | None]]] = defaultdict(list)
    for step, window in made:
        if step.phase is not None:
            by_phase[step.phase].append((step, window))
    for phase, some in sorted(by_phase.items()):
        rows.append(_mean(device, "phase", phase, some, len(some)))
    for name, some in [(None, made), *sorted(by_phase.items())]:
        tokens = sum(step.tokens or 0 for step, _ in some)
        if tokens and all(step.tokens is not None for step, _ in some):
            rows.append(_mean(device, "token", name, some, tokens))
    start, end = float(found.updates.t_s[0]), float(found.updates.t_s[-1])
    outside = [(a, b) for a, b in ((start, first), (last, end)) if b - a >= _LEAST_REST_S]
    rest = [(_Step(a, b, None, None), found.window(a, b)) for a, b in outside]
    if rest:
        rows.append(_mean(device, "rest", None, rest, sum(b - a for a, b in outside)))
    return rows


def _mean(
    device: str, what: str, name: str | None, made: list[tuple[_Step, WindowEnergy | None]], count: float
) -> EnergyRow:
    windows = [window for _, window in made if window is not None]
    seconds = sum(step.end_s - step.start_s for step, _ in made)
    return _row(device, what, name, count, seconds, sum_windows(windows) if len(windows) == len(made) else None)


def _row(
    device: str, what: str, name: str | None, count: float, seconds: float, made: WindowEnergy | None
) -> EnergyRow:
    if made is None:
        return EnergyRow(device, what, name, count, seconds / count, None, None, None, None, ["no_power_data"])
    values = (made.energy_j / count, made.low_j / count, made.high_j / count)
    return EnergyRow(device, what, name, count, seconds / count, *values, made.label, list(made.warnings))


def _sensor(device: str, name: str | None, chosen: SensorSeries, found: DeviceEnergy, simulated: bool) -> SensorDoc:
    scale, sensor = found.calibration, found.sensor
    best = found.best
    return SensorDoc(
        device=device,
        device_name=name,
        field=chosen.field,
        family=sensor.family,
        confidence=sensor.confidence,
        gain=scale.gain,
        gain_sd=scale.gain_sd,
        offset_w=scale.offset_w,
        offset_sd_w=scale.offset_sd_w,
        scale_from=scale.source,
        response=None if best is None else f"{best.response.kind} {1e3 * best.response.scale_s:.3g} ms",
        chi2=None if best is None else best.chi2,
        simulated=simulated,
        sources=list(sensor.sources),
    )
