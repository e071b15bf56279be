"""Power logs in a recording: each is a capture of kind ``energy``, on the time line of the first trace."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from magneton.schemas.errors import InputFormatError
from magneton.schemas.kinds import CaptureKind, Clock, SensorKind
from magneton.schemas.manifest import MANIFEST_NAME, Capture, ClockAnchor
from magneton.transforms.power.log import PowerLog, PowerOptions
from magneton.transforms.power.registry import read_power, rebase
from magneton.transforms.staging.writer import RunWriter

LOG = logging.getLogger(__name__)
# Labels of a device that are copied to the manifest; others may name hosts and users.
_FACTS = ("index", "gpu", "minor_number", "name", "gpu_name", "modelName", "pci.bus_id", "gpu_bus_id", "driver_version", "DCGM_FI_DRIVER_VERSION", "mig.mode.current")  # fmt: skip


@dataclass(frozen=True)
class PowerInput:
    """One power log that joins a recording.

    Attributes:
        path: where it lies.
        log: what it holds.
        options: how it was read.
        anchors: relate its clock to the wall clock.
        capture: its capture, if our recorder made it; None for a log of another tool.
    """

    path: Path
    log: PowerLog
    options: PowerOptions
    anchors: tuple[ClockAnchor, ...] = ()
    capture: Capture | None = None

    def sensor(self, file: str) -> dict[str, Any]:
        """Return the entry of the manifest's ``sensors``: what was read, and how to read it again.

        Args:
            file: path of the log in the recording.
        """
        report = self.log.report
        given = {f: getattr(self.options, f) for f in PowerOptions.__dataclass_fields__}
        devices = [
            {"device_kind": d.device_kind, "device_id": d.device_id, "n_valid": d.n_valid, "n_missing": d.n_missing}
            | {k: d.labels[k] for k in _FACTS if k in d.labels}
            for d in report.devices
        ]
        return {
            "kind": SensorKind.POWER_LOG,
            "file": file,
            "format": report.format,
            "options": {k: v for k, v in given.items() if v is not None},
            "time_zone": report.time_zone,
            "date_order": report.date_order,
            "devices": devices,
        }


@dataclass(frozen=True)
class TraceSpan:
    """When a trace ran: its base (Unix ns) and first and last instant relative to it."""

    base_unix_ns: int | None
    first_ns: int | None
    last_ns: int | None


def open_power(
    path: Path, options: PowerOptions, anchors: Sequence[ClockAnchor] = (), capture: Capture | None = None
) -> PowerInput:
    """Read a power log that is to join a recording; see ``registry.read_power`` for what is refused."""
    read = PowerInput(path, read_power(path, options), options, tuple(anchors), capture)
    LOG.info("%s: power log read as %s", path, read.log.report.format)
    return read


def options_of(sensors: Sequence[Mapping[str, Any]], file: str | None) -> PowerOptions:
    """Return the options under which a log was read, from the manifest of its recording.

    Args:
        sensors: ``sensors`` of the manifest.
        file: path of the log in the recording.

    Raises:
        InputFormatError: the manifest holds other options than we know.
    """
    for sensor in sensors:
        if (
            sensor.get("kind") == SensorKind.POWER_LOG
            and sensor.get("file") == file
            and isinstance(sensor.get("options"), dict)
        ):
            try:
                return msgspec.convert(sensor["options"], PowerOptions)
            except msgspec.ValidationError as error:
                raise InputFormatError(f"does not say how {file} is read: {error}", path=MANIFEST_NAME) from error
    return PowerOptions()


def write_power(
    inputs: Sequence[PowerInput], spans: Sequence[TraceSpan], places: Mapping[Path, str], writer: RunWriter
) -> list[Capture]:
    """Write the rows of power logs to ``power``, ``quarantine``, ``warnings`` and ``captures``.

    Args:
        inputs: the logs.
        spans: the traces of the recording, the leading one first.
        places: path of each log in the recording, by where it lies.
        writer: where to.

    Returns:
        The captures for the manifest.

    Raises:
        ClockAlignmentError: a log cannot be brought onto the time line of the traces.
    """
    base = time_line(inputs, spans)
    captures = []
    number = 0
    for item in inputs:
        known = item.capture
        number += known is None
        name = known.name if known else "power" if number == 1 else f"power-{number}"
        keys: dict[str, Any] = {"capture": name, "rank": 0, "repeat": None, "input_id": None}
        if known is not None:
            keys |= {"rank": known.rank, "repeat": known.repeat, "input_id": known.input_id}
        first, last = None, None
        for batch in rebase(item.log, base, item.anchors):
            times = batch["ts_ns"].drop_null().to_numpy()
            if len(times):
                first = int(times.min()) if first is None else min(first, int(times.min()))
                last = int(times.max()) if last is None else max(last, int(times.max()))
            _write(writer, "power", keys, batch)
        file = places[item.path]
        aside = item.log.quarantine
        _write(writer, "quarantine", keys, aside.drop_columns(["file"]).append_column("file", _same(file, len(aside))))
        _write(writer, "warnings", keys, item.log.warnings)
        # Our recorder measures energy and traces in two different runs, so these do not overlap.
        if known is None and not _meets(first, last, base, spans):
            message = f"{item.path.name}: the log and the trace do not overlap in time; look at clock, zone and offset"
            row = pa.table({"code": ["power_outside_trace"], "count": pa.array([1], pa.int64()), "message": [message]})
            _write(writer, "warnings", keys, row)
        _write(writer, "captures", keys, _capture_row(name, file, item, base, first, last))
        captures.append(
            Capture(
                name=name,
                kind=CaptureKind.ENERGY,
                rank=keys["rank"],
                repeat=keys["repeat"],
                input_id=keys["input_id"],
                source_format=item.log.report.format,
                file=file,
                incomplete=item.log.report.truncated or (known is not None and known.incomplete),
                anchors=list(item.anchors),
            )
        )
    return captures


def time_line(inputs: Sequence[PowerInput], spans: Sequence[TraceSpan]) -> int | None:
    """Return the Unix time (ns) that the times of a run are relative to: that of the first trace, else of the first reading."""
    base = next((s.base_unix_ns for s in spans if s.base_unix_ns is not None), None)
    return _first_instant(inputs) if base is None and not spans else base


def _first_instant(inputs: Sequence[PowerInput]) -> int | None:
    """Return the Unix time (ns) of the first reading: the time line of a recording without a trace."""
    firsts = []
    for item in inputs:
        for batch in rebase(item.log, 0, item.anchors):
            times = batch["ts_ns"].drop_null().to_numpy()
            firsts += [int(times.min())] if len(times) else []
    return min(firsts, default=None)


def _meets(first: int | None, last: int | None, base: int | None, spans: Sequence[TraceSpan]) -> bool:
    """Say whether a log overlaps any trace; TRUE where either has no time."""
    known = [s for s in spans if s.base_unix_ns is not None and s.first_ns is not None and s.last_ns is not None]
    if first is None or last is None or base is None or not known:
        return True
    shifted = [((s.base_unix_ns or 0) - base, s.first_ns or 0, s.last_ns or 0) for s in known]
    return any(first <= shift + end and shift + start <= last for shift, start, end in shifted)


def _write(writer: RunWriter, table: str, keys: Mapping[str, Any], rows: pa.Table) -> None:
    writer.write(table, rows.num_rows, keys, {n: rows[n].combine_chunks() for n in rows.column_names})


def _same(text: str, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), rows)


def _capture_row(
    name: str, file: str, item: PowerInput, base: int | None, first: int | None, last: int | None
) -> pa.Table:
    report = item.log.report
    # Labels may contain host names. They are kept with the readings and not copied to the manifest.
    about = msgspec.to_builtins(report) | {
        "file": file,
        "devices": [msgspec.to_builtins(d) | {"labels": None} for d in report.devices],
    }
    numbers = {
        "ts_ns": first,
        "dur_ns": None if first is None or last is None else last - first,
        "base_unix_ns": base,
        "n_raw": report.n_rows,
        "n_kept": report.n_valid + report.n_other,
        "n_merged": 0,
        "n_ignored": report.n_ignored,
        "n_quarantined": sum(report.dropped.values()),
    }
    texts = {
        "name": name,
        "kind": CaptureKind.ENERGY,
        "source_format": report.format,
        "file": file,
        "clock": None if base is None else Clock.REALTIME,
        "metadata": json.dumps({"power": about}, ensure_ascii=False, default=str),
    }
    columns: dict[str, Any] = {k: pa.array([v], pa.string()) for k, v in texts.items()}
    columns |= {k: pa.array([v], pa.int64()) for k, v in numbers.items()}
    columns["incomplete"] = pa.array(np.array([report.truncated]))
    return pa.table(columns)
