"""Repeat operators of a program in place: names from a recording, windows from the collectors, energies from the analysis."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from magneton.analysis.energy.measure.basis import GROSS
from magneton.analysis.energy.measure.totals import AVERAGE, PLAIN, PREFERENCE, averaging_s
from magneton.analysis.energy.repeats.alone import energies_alone, time_alone
from magneton.analysis.energy.repeats.difference import RepeatEstimate
from magneton.analysis.energy.repeats.in_place import DeviceRepeat, RepeatedWindow, energies_of, time_of
from magneton.analysis.energy.repeats.regions import find_regions, times_for
from magneton.analysis.recording import Recording
from magneton.collectors.attach.repeat_launch import check_sensors, repeat_command
from magneton.collectors.attach.request import SYSTEMS, Answer, Region, RegionRepeats, RepeatOrder
from magneton.collectors.replay.windows import NotRepeatableError
from magneton.collectors.sensors.discover import SENSORS, open_sensors
from magneton.collectors.sensors.survey import survey
from magneton.flows.prepared import with_tables
from magneton.schemas.checks import need_number, need_whole
from magneton.schemas.errors import (
    InputNotFoundError,
    InsufficientRepeatsError,
    MagnetonError,
    NotComparableError,
    OutputExistsError,
    UsageError,
)
from magneton.schemas.files import publish_file
from magneton.schemas.manifest import encode_json
from magneton.schemas.parquet import read_table

__all__ = ["RepeatSettings", "repeat_program"]

# Long enough for a sensor of 20 updates a second to be seen; without any, times settle sooner.
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
        times: r; None: from the recording's times and the sensor's update period, for each region.
        window_s: least length of a window, s; None: from the sensor.
        rounds: pairs of windows.
        copies: sets of arguments that take turns; None: so many that none is still in a cache.
        alone: replay a region by itself, on the inputs it had in a step, instead of repeating it in place.
        warmup_steps: steps before the first that is repeated.
        sensors: sensors to read; None: all there are.
        output_to_stderr: send what the command writes to stdout to stderr.
        report: told what is done.
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
) -> tuple[int, dict[str, Any] | None]:
    """Run a command once with regions of it repeated, and return what one of their calls takes.

    Args:
        run: recording that names the regions; one without tables is normalised on the way.
        names: operators or paths of modules; with ``onnx:``, ``jax:`` or ``tensorflow:`` before it, an operation of that
            system or its place in the program, which is not looked up in the recording.
        command: the program and its arguments, as the user typed them.
        settings: how.
        out: JSON file to write.
        overwrite: replace an earlier one.

    Returns:
        The command's exit code, and the document; NULL where the command failed before anything was repeated.

    Raises:
        UsageError: a name that the recording does not have, or settings that make no sense.
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
        plan = RepeatOrder(
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
        if done.answer is None:
            return done.code, None
        power = None if done.power is None else read_table(done.power, "power")
        document = _document(done.answer, power, plan, [why for _, why in chosen])
    if done.code:
        document["notes"].append(f"The command ended with exit code {done.code}.")
    if out is not None:
        with publish_file(out, overwrite=overwrite) as target:
            target.write_bytes(encode_json(document))
    return done.code, document


def _of_another_system(names: Sequence[str], *, alone: bool) -> list[Region]:
    """Return the regions that names with a system before them stand for (``onnx:MatMul``); none where they are of PyTorch.

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
    """Refuse an output before anything runs; ``publish_file`` would only afterwards."""
    if out.exists() and not (overwrite and out.is_file()):
        raise OutputExistsError("already exists", path=out, remedy="choose another output or pass --force")
    if not out.parent.is_dir():
        raise InputNotFoundError("no such directory", path=out.parent)


def sensor_of(names: Sequence[str] | None) -> tuple[float | None, float]:
    """Return the update period of the slowest device's best reading, and how far back it looks, s; NULL and 0 without."""
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
        if best["field"] in (PLAIN, AVERAGE):
            reach_s = max(reach_s, averaging_s(best["name"]))
    return (max(periods) if periods else None), reach_s


def window_for(period_s: float | None, reach_s: float) -> float:
    """Return the least length of a window, s, for a sensor's update period and reach, s."""
    if period_s is None:
        return _WINDOW_WITHOUT_SENSOR_S
    return max(_LEAST_WINDOW_S, _PERIODS_IN_WINDOW * period_s, _REACHES_IN_WINDOW * reach_s)


def _document(answer: Answer, power: pa.Table | None, plan: RepeatOrder, why: Sequence[str]) -> dict[str, Any]:
    # Of regions that run alone there is no reason for r.
    reasons = dict(zip((region.name for region in plan.regions), why, strict=False))
    # As they were asked for; what runs alone had its turn when it was seen.
    asked = {region.name: i for i, region in enumerate(plan.regions)}
    done = sorted(answer.repeats, key=lambda repeats: asked.get(repeats.region.name, 0))
    regions = [_region(one, power, reasons.get(one.region.name), alone=plan.alone) for one in done]
    return {
        "format": "magneton-repeats",
        "method": "alone" if plan.alone else "in_place",
        "steps": answer.steps,
        "step_kind": answer.step_kind,
        "window_s": plan.window_s,
        "rounds": plan.rounds,
        "simulated": any(e["simulated"] for r in regions for e in r["energies"]),
        "regions": regions,
        "sensors": answer.sensors,
        "versions": answer.versions,
        "notes": list(answer.notes),
    }


def _region(repeats: RegionRepeats, power: pa.Table | None, why: str | None, *, alone: bool) -> dict[str, Any]:
    windows = [RepeatedWindow(w.start_ns, w.end_ns, w.steps, w.times) for w in repeats.windows]
    calls = sum(repeats.repeated.values())
    found: dict[str, Any] = {
        "name": repeats.region.name,
        "system": repeats.region.system,
        "kind": "module" if repeats.region.module else "operator",
        "times": 1 if alone else repeats.region.times,
        "times_because": "it runs alone" if alone else why,
        "calls_per_step": calls,
        "repeated": repeats.repeated,
        "not_repeated": repeats.refused,
        "cold": repeats.cold,
        "windows": [msgspec.to_builtins(w) for w in repeats.windows],
        "time": None,
        "energies": [],
        "refusal": None,
    }
    try:
        if repeats.reason is not None:
            # That a call cannot be repeated, and that there was no time to, are different things.
            raise (InsufficientRepeatsError if not repeats.tried else NotRepeatableError)(repeats.reason)
        if alone:
            time, energies = time_alone(windows), energies_alone(windows, power)
        else:
            time, energies = time_of(windows), energies_of(windows, power)
    except MagnetonError as refusal:
        found["refusal"] = refusal_document(refusal)
        return found
    found["energies"] = [energy_document(one, calls) for one in energies]
    unlike = next((e.refusal for e in energies if isinstance(e.refusal, NotComparableError)), None)
    if unlike is not None:
        # A device at another clock takes another time as well.
        found["refusal"] = refusal_document(unlike)
        return found
    found["time"] = estimate_document(time, calls, "s")
    return found


def refusal_document(error: MagnetonError) -> dict[str, Any]:
    return {"code": error.code, "reason": str(error)}


def estimate_document(estimate: RepeatEstimate, calls: int, unit: str) -> dict[str, Any]:
    """Return an estimate for all calls of a step and for one call, with its 95 % interval."""
    step = {"value": estimate.energy_j, "low": estimate.low_j, "high": estimate.high_j}
    return {f"{k}_{unit}": v for k, v in step.items()} | {
        f"{k}_{unit}_per_call": v / calls for k, v in step.items()
    } | {"identified": estimate.identified}  # fmt: skip


def energy_document(one: DeviceRepeat, calls: int) -> dict[str, Any]:
    """Return the energy on a device; every value is NULL where it is refused."""
    names = [f"{k}_j{end}" for end in ("", "_per_call") for k in ("value", "low", "high")]
    values: dict[str, Any] = dict.fromkeys(names) | {"identified": None}
    if one.estimate is not None:
        values = estimate_document(one.estimate, calls, "j")
    return {
        "device_kind": one.device_kind,
        "device_id": one.device_id,
        "field": one.field,
        "basis": GROSS,
        "label": None if one.estimate is None else one.estimate.label,
        "simulated": one.simulated,
        "compared": list(one.compared),
        "conditions": dict(one.conditions),
        "refusal": None if one.refusal is None else refusal_document(one.refusal),
    } | values
