"""Conditions under which the sides ran: power cap, clocks, temperature, throttling, driver. They change time and energy by themselves."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from magneton.analysis.energy.machine import power_of, steps_of, used_gpus
from magneton.analysis.recording import Recording
from magneton.schemas.documents.diff import ConditionDoc, Note
from magneton.schemas.kinds import DeviceKind, PowerField, SensorKind

# field -> what it is called, its unit, and the difference past which times are not comparable: relative, or absolute.
_FIELDS: dict[str, tuple[str, str, float | None, float | None]] = {
    PowerField.POWER_LIMIT: ("power cap", "W", 0.01, None),
    "clock_sm": ("SM clock", "MHz", 0.05, None),
    "clock_graphics": ("graphics clock", "MHz", 0.05, None),
    "clock_memory": ("memory clock", "MHz", 0.05, None),
    "temperature": ("temperature", "degC", None, 10.0),
    "throttle_reasons": ("throttle reasons", "bits", None, 0.0),
}
_DRIVER_KEYS = ("driver_version", "DCGM_FI_DRIVER_VERSION")
# Reasons of a clock below the highest that are no throttling: idle, and clocks set by the application.
_HARMLESS = 0x1 | 0x2
_STEP_COLUMNS = ("ts_ns", "dur_ns", "rank", "capture", "kind")


def conditions(a: Recording, b: Recording, rank_a: int, rank_b: int) -> list[ConditionDoc]:
    """Return what both sides read of the conditions of the GPUs they used, while their steps ran.

    Values are means over time and GPUs; of throttle reasons, all that occurred.
    """
    sides = [_read(recording, rank) for recording, rank in ((a, rank_a), (b, rank_b))]
    found = []
    for field, (name, unit, relative, absolute) in _FIELDS.items():
        left, right = sides[0].get(field), sides[1].get(field)
        if left is None or right is None:
            continue
        limit = absolute if relative is None else relative * min(abs(left), abs(right))
        past = limit is not None and abs(left - right) > limit
        told = f"{100 * relative:g} %" if relative is not None else f"{absolute:g} {unit}"
        found.append(ConditionDoc(name, unit, f"{left:.4g}", f"{right:.4g}", told, comparable=not past))
    drivers = [_driver(recording) for recording in (a, b)]
    if all(drivers):
        same = drivers[0] == drivers[1]
        found.append(
            ConditionDoc("driver", "", drivers[0] or "", drivers[1] or "", "the same version", comparable=same)
        )
    return found


def _read(recording: Recording, rank: int) -> dict[str, float]:
    power = power_of(recording, rank)
    if not power.num_rows:
        return {}
    keep = pc.and_(pc.equal(power["device_kind"], DeviceKind.GPU), pc.is_in(power["field"], pa.array(list(_FIELDS))))
    rows = power.filter(pc.and_(keep, pc.and_(pc.is_valid(power["value"]), pc.is_valid(power["ts_ns"]))))
    used = used_gpus(recording, rank, power)
    if used is not None and None not in used:
        rows = rows.filter(pc.is_in(rows["device_id"], value_set=pa.array(sorted(map(str, used)), pa.string())))
    steps = steps_of(recording, rank, _STEP_COLUMNS)
    steps = steps.filter(pc.and_(pc.is_valid(steps["ts_ns"]), pc.is_valid(steps["dur_ns"])))
    found: dict[str, float] = {}
    for field in _FIELDS:
        mine = rows.filter(pc.equal(rows["field"], field))
        if steps.num_rows:
            first, last = pc.min(steps["ts_ns"]).as_py(), pc.max(pc.add(steps["ts_ns"], steps["dur_ns"])).as_py()
            during = pc.and_(pc.greater_equal(mine["ts_ns"], first), pc.less_equal(mine["ts_ns"], last))
            mine = mine.filter(during) if pc.any(during, min_count=0).as_py() else mine
        values = [float(v) for v in mine["value"].to_pylist()]
        if field == "throttle_reasons" and values:
            bits = 0
            for value in values:
                bits |= int(value)
            found[field] = float(bits & ~_HARMLESS)
        elif values:
            found[field] = sum(values) / len(values)
    return found


def _driver(recording: Recording) -> str | None:
    """Return the version of the driver, as a log or our recorder saw it."""
    versions: set[str] = set()
    for sensor in recording.manifest.sensors:
        facts: Any = sensor.get("facts")
        if isinstance(facts, dict) and facts.get("driver"):
            versions.add(str(facts["driver"]))
        if sensor.get("kind") == SensorKind.POWER_LOG:
            versions |= {str(d[key]) for d in sensor.get("devices", []) for key in _DRIVER_KEYS if d.get(key)}
    return ", ".join(sorted(versions)) or None


def condition_notes(found: list[ConditionDoc]) -> list[Note]:
    """Return one sentence for each condition that differs past its limit."""
    notes = []
    for one in found:
        if not one.comparable:
            unit = f" {one.unit}" if one.unit else ""
            text = f"{one.name} was {one.a}{unit} on side A and {one.b}{unit} on side B (limit: {one.limit})"
            notes.append(Note("conditions_differ", f"{text}: not comparable"))
    return notes


def obstacle_of(found: list[ConditionDoc]) -> str | None:
    """Return why the sides cannot be compared, where a condition that changes their times differs past its limit."""
    past = [one for one in found if not one.comparable and one.name not in ("temperature", "driver")]
    return f"{', '.join(one.name for one in past)} of the sides differ past the limit" if past else None
