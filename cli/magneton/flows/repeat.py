"""Repeat operators of a program in place: names from a recording, windows from the collectors, energies from the analysis."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from magneton.analysis.energy.measure.totals import PREFERENCE, averaging_s
from magneton.analysis.energy.repeats.alone import energies_alone, time_alone
from magneton.analysis.energy.repeats.difference import RepeatEstimate
from magneton.analysis.energy.repeats.in_place import DeviceRepeat, RepeatedWindow, energies_of, time_of
from magneton.analysis.energy.repeats.regions import find_regions, times_for
from magneton.analysis.recording import Recording
from magneton.collectors.attach.repeat_launch import check_sensors, repeat_command
from magneton.collectors.attach.request import SYSTEMS, CaptureReply, Region, RegionRepeats, RepeatRequest
from magneton.collectors.replay.windows import NotRepeatableError
from magneton.collectors.sensors.discover import SENSORS, open_sensors
from magneton.collectors.sensors.survey import survey
from magneton.flows.prepared import with_tables
from magneton.schemas.checks import need_number, need_whole
from magneton.schemas.documents.repeat import (
    EnergyEstimate,
    RefusalDoc,
    RepeatDocument,
    RepeatedRegion,
    TimeEstimate,
    WindowDoc,
)
from magneton.schemas.errors import (
    InputNotFoundError,
    InsufficientRepeatsError,
    MagnetonError,
    NotComparableError,
    OutputExistsError,
    UsageError,
)
from magneton.schemas.files.publish import publish_file
from magneton.schemas.kinds import PowerField
from magneton.schemas.manifest import encode_json
from magneton.schemas.tables.parquet import read_table

__all__ = ["RepeatSettings", "repeat_program"]

# Least length of a window: 20 updates of a sensor with 20 updates per second. Without a sensor, times need less.
_LEAST_WINDOW_S, _WINDOW_WITHOUT_SENSOR_S = 1.0, 0.5
_PERIODS_IN_WINDOW, _REACHES_IN_WINDOW = 20, 5
# Of a sensor that showed no change while it was watched.
_ASSUMED_PERIOD_S = 0.1
_WATCH_S = 1.0
_SYSTEM_NAME = re.compile(rf"(?P<system>{'|'.join(SYSTEMS)}):(?P<name>[^:].*)")


@dataclass(frozen=True)
class RepeatSettings:
    """How operators are repeated. A value that makes no sense raises ``UsageError``.

    Attributes:
        times: r, how often a call runs in windows that repeat; None: chosen for each region from the times in the recording and
            the update period of the sensor.
        window_s: least length of a window, s; None: from the sensor.
        rounds: pairs of windows.
        copies: number of sets of arguments, used in turn; None: so many that the cache cannot hold them all.
        alone: replay a region by itself, on the inputs it had in a step, instead of repeating it in place.
        warmup_steps: steps before the first that is repeated.
        sensors: sensors to read; None: all there are.
        output_to_stderr: send what the command writes to stdout to stderr.
        report: called with a text about the current work.
    """

    times: int | None = None
    window_s: float | None = None
    rounds: int = 3
    copies: int | None = None
    alone: bool = False
    warmup_steps: int = 2
    sensors: Sequence[str] | None = None
    output_to_stderr: bool = False
    report: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        need_whole("rounds", self.rounds, least=2)
        need_whole("warmup_steps", self.warmup_steps, least=1)
        for name, value, least in (("times", self.times, 2), ("copies", self.copies, 1)):
            if value is not None:
                need_whole(name, value, least=least)
        if self.window_s is not None:
            need_number("window_s", self.window_s, least=0.001)


def repeat_program(
    run: Path,
    names: Sequence[str],
    command: Sequence[str],
    settings: RepeatSettings,
    *,
    out: Path | None = None,
    overwrite: bool = False,
) -> tuple[int, RepeatDocument | None]:
    """Run a command once with regions of it repeated, and return time and energy of one of their calls.

    Args:
        run: recording that names the regions; one without tables is normalised on the way.
        names: operators or paths of modules. A name that begins with ``onnx:``, ``jax:`` or ``tensorflow:`` is an operation of
            that system, or its place in the program; it is not looked up in the recording.
        command: the program and its arguments, as the user typed them.
        settings: how.
        out: JSON file to write.
        overwrite: replace an earlier one.

    Returns:
        The command's exit code, and the document; None if the command failed before anything was repeated.

    Raises:
        UsageError: a name that the recording does not have, or settings that contradict one another.
        MagnetonError: the recording cannot be read, the output is taken, or the command left nothing.
    """
    if not command:
        raise UsageError("there is no command to run", remedy="give one after --")
    if settings.alone and settings.times is not None:
        raise UsageError("a region that runs alone is not repeated in place", remedy="leave out --times or --alone")
    check_sensors(settings.sensors)
    if out is not None:
        _check_output(out, overwrite=overwrite)
    elsewhere = _of_another_system(names, alone=settings.alone)
    with tempfile.TemporaryDirectory(prefix="magneton-") as folder:
        scratch = Path(folder)
        recording = Recording.open(with_tables(run, settings.report))
        known = [] if elsewhere else find_regions(recording, names)
        period_s, reach_s = sensor_of(settings.sensors)
        chosen = [times_for(region, period_s, reach_s) for region in known]
        if settings.times is not None:
            chosen = [(settings.times, "given")] * len(known)
        plan = RepeatRequest(
            elsewhere or [Region(r.name, r.module, times) for r, (times, _) in zip(known, chosen, strict=True)],
            settings.window_s or window_for(period_s, reach_s),
            settings.rounds,
            settings.copies,
            settings.alone,
        )
        for region in plan.regions:
            how = f"alone, {plan.rounds}" if plan.alone else f"r = {region.times}, {2 * plan.rounds}"
            settings.report(f"{region.name}: {how} windows of {plan.window_s:g} s each")
        done = repeat_command(
            command,
            plan,
            scratch,
            warmup_steps=settings.warmup_steps,
            sensors=settings.sensors,
            output_to_stderr=settings.output_to_stderr,
        )
        if done.reply is None:
            return done.code, None
        power = None if done.power is None else read_table(done.power, "power")
        document = _document(done.reply, power, plan, [why for _, why in chosen])
    if done.code:
        document.notes.append(f"The command ended with exit code {done.code}.")
    if out is not None:
        with publish_file(out, overwrite=overwrite) as target:
            target.write_bytes(encode_json(document))
    return done.code, document


def _of_another_system(names: Sequence[str], *, alone: bool) -> list[Region]:
    """Return the regions of names that begin with a system (``onnx:MatMul``); an empty list for names of PyTorch.

    Raises:
        UsageError: names of several systems, or what can only run alone is to be repeated in place.
    """
    found = [match for name in names if (match := _SYSTEM_NAME.fullmatch(name))]
    systems = {match["system"] for match in found}
    if systems and (len(systems) > 1 or len(found) < len(names)):
        raise UsageError("regions of several systems are named", remedy="name those of one system only")
    if systems and not alone:
        raise UsageError(f"operations of {systems.pop()} are not repeated in place", remedy="add --alone")
    names_found = dict.fromkeys((match["name"], match["system"]) for match in found)
    return [Region(name, False, 1, system) for name, system in names_found]


def _check_output(out: Path, *, overwrite: bool) -> None:
    """Refuse an output before anything runs. ``publish_file`` would refuse it only at the end."""
    if out.exists() and not (overwrite and out.is_file()):
        raise OutputExistsError("already exists", path=out, remedy="choose another output or pass --force")
    if not out.parent.is_dir():
        raise InputNotFoundError("no such directory", path=out.parent)


def sensor_of(names: Sequence[str] | None) -> tuple[float | None, float]:
    """Return the update period of the slowest sensor, and the longest time that a reading averages over, s.

    Of each device the best field counts. Without a sensor the result is None and 0.
    """
    opened = open_sensors(SENSORS if names is None else names)
    # Nothing to watch takes no time.
    found = survey(opened=opened, seconds=_WATCH_S if opened.sensors else 0.0)
    devices: dict[tuple[str, str, str | None], list[dict[str, Any]]] = {}
    for sensor in found["sensors"]:
        for series in sensor["series"]:
            if series["energetic"]:
                devices.setdefault((sensor["source"], series["device_kind"], series["device_id"]), []).append(series)
    periods, reach_s = [], 0.0
    for readings in devices.values():
        best = min(readings, key=lambda s: PREFERENCE.index(s["field"]))
        update = best["update_ms"]
        periods.append(_ASSUMED_PERIOD_S if update is None else update / 1e3)
        if best["field"] in (PowerField.POWER, PowerField.POWER_AVERAGE):
            reach_s = max(reach_s, averaging_s(best["name"]))
    return (max(periods) if periods else None), reach_s


def window_for(period_s: float | None, reach_s: float) -> float:
    """Return the least length of a window, s, for a sensor's update period and reach, s."""
    if period_s is None:
        return _WINDOW_WITHOUT_SENSOR_S
    return max(_LEAST_WINDOW_S, _PERIODS_IN_WINDOW * period_s, _REACHES_IN_WINDOW * reach_s)


def _document(reply: CaptureReply, power: pa.Table | None, plan: RepeatRequest, why: Sequence[str]) -> RepeatDocument:
    # Regions that run alone have no r.
    reasons = dict(zip((region.name for region in plan.regions), why, strict=False))
    # In the order of the request. With --alone, regions ran in the order in which they occurred.
    asked = {region.name: i for i, region in enumerate(plan.regions)}
    done = sorted(reply.repeats, key=lambda repeats: asked.get(repeats.region.name, 0))
    regions = [_region(one, power, reasons.get(one.region.name), alone=plan.alone) for one in done]
    return RepeatDocument(
        method="alone" if plan.alone else "in_place",
        steps=reply.steps,
        step_kind=reply.step_kind,
        window_s=plan.window_s,
        rounds=plan.rounds,
        simulated=any(e.simulated for r in regions for e in r.energies),
        regions=regions,
        sensors=reply.sensors,
        versions=reply.versions,
        notes=list(reply.notes),
    )


def _region(repeats: RegionRepeats, power: pa.Table | None, why: str | None, *, alone: bool) -> RepeatedRegion:
    windows = [RepeatedWindow(w.start_ns, w.end_ns, w.steps, w.times) for w in repeats.windows]
    calls = sum(repeats.repeated.values())
    found = RepeatedRegion(
        name=repeats.region.name,
        system=repeats.region.system,
        kind="module" if repeats.region.module else "operator",
        times=1 if alone else repeats.region.times,
        times_because="it runs alone" if alone else why,
        calls_per_step=calls,
        repeated=repeats.repeated,
        not_repeated=repeats.refused,
        cold=repeats.cold,
        windows=window_documents(windows),
    )
    try:
        if repeats.reason is not None:
            # Two different errors: the call cannot be repeated, or there was no time to repeat it.
            raise (InsufficientRepeatsError if not repeats.tried else NotRepeatableError)(repeats.reason)
        if alone:
            time, energies = time_alone(windows), energies_alone(windows, power)
        else:
            time, energies = time_of(windows), energies_of(windows, power)
    except MagnetonError as refusal:
        found.refusal = refusal_document(refusal)
        return found
    found.energies = [energy_document(one, calls) for one in energies]
    unlike = next((e.refusal for e in energies if isinstance(e.refusal, NotComparableError)), None)
    if unlike is not None:
        # If the clock of a device differed, the time is not comparable either.
        found.refusal = refusal_document(unlike)
        return found
    found.time = time_document(time, calls)
    return found


def window_documents(windows: Sequence[RepeatedWindow]) -> list[WindowDoc]:
    return [WindowDoc(w.start_ns, w.end_ns, w.iterations, w.times) for w in windows]


def refusal_document(error: MagnetonError) -> RefusalDoc:
    return RefusalDoc(error.code, str(error))


def time_document(estimate: RepeatEstimate, calls: int) -> TimeEstimate:
    """Return a time for all calls of a step and for one call, s, with its 95 % interval."""
    # An estimate keeps its numbers in the fields for energies, whatever it is of.
    value, low, high = estimate.energy_j, estimate.low_j, estimate.high_j
    return TimeEstimate(value, low, high, value / calls, low / calls, high / calls, estimate.identified)


def energy_document(one: DeviceRepeat, calls: int) -> EnergyEstimate:
    """Return the energy on a device, J; every value is None if the energy is refused."""
    found = EnergyEstimate(
        device_kind=one.device_kind,
        device_id=one.device_id,
        field=one.field,
        label=None if one.estimate is None else one.estimate.label,
        simulated=one.simulated,
        compared=list(one.compared),
        conditions=dict(one.conditions),
        refusal=None if one.refusal is None else refusal_document(one.refusal),
    )
    if (known := one.estimate) is not None:
        found.value_j, found.low_j, found.high_j = known.energy_j, known.low_j, known.high_j
        found.value_j_per_call, found.low_j_per_call = known.energy_j / calls, known.low_j / calls
        found.high_j_per_call, found.identified = known.high_j / calls, known.identified
    return found
