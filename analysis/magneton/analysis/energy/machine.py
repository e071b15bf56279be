"""The power of a recording as one rank sees it: on the rank's time line, with the sensor's name of each of its devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from magneton.analysis.energy.measure.devices import CUDA_ORDER, CUDA_VISIBLE, DeviceMap, map_devices
from magneton.analysis.recording import Needs, Recording
from magneton.schemas.errors import InsufficientPowerDataError
from magneton.schemas.kinds import CaptureKind, DeviceKind, SensorKind

_CAPTURE_COLUMNS = ("capture", "kind", "rank", "base_unix_ns")
# What the functions here ask of a recording.
NEEDS: Needs = {"captures": _CAPTURE_COLUMNS, "kernels": ("device", "rank", "capture"), "power": None}
_INDEX_LABELS = ("index", "gpu", "minor_number")


def power_of(recording: Recording, rank: int) -> pa.Table:
    """Return the table ``power`` on the time line of a rank's profile.

    Each rank of a job has its own time base, and a power log is on that of the first.
    """
    power = recording.table("power")
    line = line_of(recording, rank)
    return _moved(recording, power, line) if power.num_rows else power


def steps_of(recording: Recording, rank: int, columns: tuple[str, ...]) -> pa.Table:
    """Return rows of ``steps`` of a rank on the time line of its profile. ``columns`` hold ``capture``, ``rank``, ``ts_ns``."""
    steps = recording.of_rank("steps", rank, columns)
    return _moved(recording, steps, line_of(recording, rank))


def _captures(recording: Recording) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = recording.table("captures", _CAPTURE_COLUMNS).to_pylist()
    return rows


def line_of(recording: Recording, rank: int) -> int | None:
    """Return the Unix time (ns) from which the times of a rank's profile count."""
    mine = [row for row in _captures(recording) if (row["rank"] or 0) == rank and row["base_unix_ns"] is not None]
    profile = [row for row in mine if row["kind"] == CaptureKind.PROFILE]
    return next((row["base_unix_ns"] for row in profile or mine), None)


def _moved(recording: Recording, table: pa.Table, line: int | None) -> pa.Table:
    """Move the times of each capture's rows to another time line."""
    bases = {(row["capture"], row["rank"] or 0): row["base_unix_ns"] for row in _captures(recording)}
    if line is None or all(base in (None, line) for base in bases.values()):
        return table
    keys = zip(table["capture"].to_pylist(), table["rank"].to_pylist(), strict=True)
    shifts = [(line if (base := bases.get((name, rank or 0))) is None else base) - line for name, rank in keys]
    at = table.schema.get_field_index("ts_ns")
    return table.set_column(at, table.schema.field(at), pc.add(table["ts_ns"], pa.array(shifts, pa.int64())))


def devices_of(recording: Recording, rank: int, power: pa.Table, used: list[int]) -> DeviceMap:
    """Find the sensor's name of each GPU that a rank used.

    Asked in this order: what the user stated (``--device-map``), UUIDs that the profiler wrote, what our recorder saw of the
    machine, the indexes in the log.

    Args:
        recording: the recording.
        rank: the rank.
        power: table ``power``.
        used: device numbers in the trace.

    Raises:
        InsufficientPowerDataError: the devices cannot be told apart from what is known.
    """
    mine = power.filter(
        pc.and_(pc.equal(power["device_kind"], DeviceKind.GPU), pc.is_in(power["unit"], pa.array(["W", "J"])))
    )
    logged = pc.unique(mine["device_id"]).to_pylist()
    if not logged:
        return DeviceMap({}, ())
    names = [name for name in logged if name is not None]
    stated = _stated(recording, rank)
    if stated and set(used) <= stated.keys():
        return map_devices(logged, used=used, explicit=stated)
    by_uuid = _by_uuid(recording, names)
    if used and set(used) <= by_uuid.keys():
        return map_devices(logged, used=used, explicit={n: by_uuid[n] for n in used})
    for sensor in recording.manifest.sensors:
        facts = sensor.get("facts")
        if isinstance(facts, dict) and facts.get("physical"):
            physical = [(int(index), str(uuid)) for index, uuid in facts["physical"]]
            env = {CUDA_VISIBLE: facts.get("visible_devices"), CUDA_ORDER: facts.get("device_order")}
            known = {key: str(value) for key, value in env.items() if value is not None}
            return map_devices(logged, used=used, physical=physical, env=known)
    return map_devices(logged, used=used, indexed=_indexed(recording, names))


def _stated(recording: Recording, rank: int) -> dict[int, str]:
    """Return the mapping that the user gave: that of the rank goes before that of all ranks."""
    found: dict[int, str] = {}
    for key in (None, rank):
        for sensor in recording.manifest.sensors:
            if sensor.get("kind") == SensorKind.DEVICE_MAP and sensor.get("rank") == key:
                found |= {int(number): str(name) for number, name in sensor["devices"].items()}
    return found


def _by_uuid(recording: Recording, names: list[str]) -> dict[int, str]:
    """Return the GPUs whose UUID the profiler wrote and the log names; numbers that mean several GPUs are left out."""
    plain = {_plain(name): name for name in names}
    found: dict[int, set[str]] = {}
    for device in recording.manifest.devices:
        if device.index is not None and device.uuid and _plain(device.uuid) in plain:
            found.setdefault(device.index, set()).add(plain[_plain(device.uuid)])
    return {number: next(iter(ids)) for number, ids in found.items() if len(ids) == 1}


def _plain(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-").replace("-", "")


def _indexed(recording: Recording, names: list[str]) -> dict[int, str]:
    """Return the GPUs by the index that the log gives them: in a column, a label, or as their name."""
    found: dict[int, str] = {}
    for device in _log_devices(recording):
        text = next((device[label] for label in _INDEX_LABELS if str(device.get(label) or "").isdigit()), None)
        if text is not None and device.get("device_id") in names:
            found.setdefault(int(text), device["device_id"])
    if len(found) == len(names):
        return found
    numbers = [re.fullmatch(r"(?:.*/)?(?:nvidia|card|gpu-?)?(\d+)", name, re.IGNORECASE) for name in names]
    if names and all(numbers) and len({m.group(1) for m in numbers if m}) == len(names):
        return {int(m.group(1)): name for m, name in zip(numbers, names, strict=True) if m}
    return {}


def _log_devices(recording: Recording) -> list[Mapping[str, Any]]:
    sensors = [s for s in recording.manifest.sensors if s.get("kind") == SensorKind.POWER_LOG]
    return [d for s in sensors for d in s.get("devices", []) if d.get("device_kind") == DeviceKind.GPU]


def used_gpus(recording: Recording, rank: int, power: pa.Table) -> set[str | None] | None:
    """Return the sensor's names of the GPUs that the job used, on all its ranks. None where the trace does not tell.

    Args:
        recording: the recording.
        rank: rank that is compared; of the others, those whose GPUs cannot be told are left out.
        power: table ``power``.
    """
    kernels = recording.table("kernels", ("device", "rank"))
    found: set[str | None] = set()
    for one in recording.ranks():
        mine = kernels.filter(pc.equal(pc.fill_null(kernels["rank"], 0), one))
        numbers = sorted(n for n in pc.unique(mine["device"]).to_pylist() if n is not None)
        if not numbers:
            continue
        try:
            names = devices_of(recording, one, power, numbers).ids
        except InsufficientPowerDataError:
            if one == rank:
                return None
            continue
        found |= {names[number] for number in numbers if number in names}
    return found or None
