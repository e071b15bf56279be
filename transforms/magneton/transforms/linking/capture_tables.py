"""The shared steps for one staged capture, in order: fold flows, find steps, nest the host, link the device, write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from magneton.transforms.linking.device import DevicePass
from magneton.transforms.linking.flow_events import fold_repeats, write_flows
from magneton.transforms.linking.host import HostPass, NextIds, Placed
from magneton.transforms.linking.steps import Steps
from magneton.transforms.staging.arrays import IdMap
from magneton.transforms.staging.stage import KINDS, NONE, Stage
from magneton.transforms.staging.windows import windows
from magneton.transforms.staging.writer import RunWriter, Texts, known, sizes, threads

EVENTS = ("ops", "launches", "kernels", "frames", "annotations", "counters")


def write_capture(stage: Stage, writer: RunWriter, keys: Mapping[str, Any], next_ids: NextIds, kind: str) -> None:
    """Write all rows of one capture.

    Args:
        stage: its events.
        writer: where to.
        keys: capture, rank, repeat and input of all its rows.
        next_ids: ids that are still free in the run.
        kind: kind of capture.
    """
    stage.flush()
    first, last = stage.span(EVENTS)
    if not any(stage.n_rows[k] for k in EVENTS):
        stage.warn("no_events", "the input holds no events")
    fold_repeats(stage)
    steps = Steps(stage, next_ids.steps)
    next_ids.take("steps", len(steps.steps))
    _write_steps(steps, writer, keys)
    host = HostPass(stage, writer, keys, next_ids, steps)
    host.run()
    for done in ("frames", "annotations", "ops", "launches"):
        stage.drop(done)
    host.flows.bind_kernels(stage, next_ids.kernels)
    DevicePass(stage, writer, keys, next_ids, host.ops, host.launches, host.flows.launches(), steps).run()
    next_ids.take("flows", write_flows(host.flows, stage, writer, keys, next_ids.flows))
    _write_uses(stage, writer, keys, host.ops)
    _write_counters(stage, writer, keys)
    _write_quarantine(stage, writer, keys)
    if stage.n_quarantined:
        reasons = ", ".join(f"{n} {r}" for r, n in sorted(stage.quarantined.items()))
        stage.warn("events_quarantined", f"events were set aside: {reasons}", stage.n_quarantined)
    _write_warnings(stage, writer, keys)
    _write_capture_row(stage, writer, keys, kind, first, last)
    for done in KINDS:
        stage.drop(done)


def _write_steps(steps: Steps, writer: RunWriter, keys: Mapping[str, Any]) -> None:
    rows = steps.steps
    marks = [s.mark for s in rows]
    writer.write(
        "steps",
        len(rows),
        keys,
        {
            "name": pa.array([s.name for s in rows], pa.string()),
            "ts_ns": np.array([s.ts_ns for s in rows], np.int64),
            "dur_ns": known(np.array([s.dur_ns for s in rows], np.int64)),
            "step_id": np.array([s.step_id for s in rows], np.int64),
            "kind": pa.array([m.kind for m in marks], pa.string()),
            "phase": pa.array([m.phase for m in marks], pa.string()),
            "dialect": pa.array([m.dialect for m in marks], pa.string()),
        }
        | {
            column: pa.array([getattr(m, column) for m in marks], pa.int64())
            for column in ("index", "context_requests", "context_tokens", "generation_requests", "generation_tokens")
        },
    )


def _write_uses(stage: Stage, writer: RunWriter, keys: Mapping[str, Any], ops: Placed) -> None:
    """Write the tensors of operators, which name their operator by its record function id."""
    op_of = IdMap()
    numbers = ops["record_function"]
    op_of.set(numbers, ops.first + np.arange(len(numbers), dtype=np.int64))
    texts = stage.pool.arrow()
    numeric = ("position", "element", "tensor_id", "storage_id", "storage_offset", "numel", "itemsize")
    for rows in stage.batches("uses", order="record_function_id, direction, position, element"):
        writer.write(
            "uses",
            len(rows["position"]),
            keys,
            {"op_id": op_of.get(rows["record_function_id"])}
            | {c: rows[c] for c in numeric}
            | {c: Texts(rows[c], texts) for c in ("direction", "device", "dtype")}
            | {c: sizes(rows[c], stage.pool) for c in ("dims", "strides")},
        )


def _write_counters(stage: Stage, writer: RunWriter, keys: Mapping[str, Any]) -> None:
    texts = stage.pool.arrow()
    for window in windows(stage, ("counters",)):
        rows = window.rows["counters"]
        writer.write(
            "counters",
            len(rows["ts_ns"]),
            keys,
            threads(stage, rows["track"])
            | {
                "name": Texts(rows["name"], texts),
                "ts_ns": rows["ts_ns"],
                "dur_ns": rows["dur_ns"],
                "series": Texts(rows["series"], texts),
                "value": rows["value"],
                "unit": Texts(rows["unit"], texts),
                "device": rows["device"],
            },
        )


def _write_quarantine(stage: Stage, writer: RunWriter, keys: Mapping[str, Any]) -> None:
    stage.flush()
    texts = stage.pool.arrow()
    for rows in stage.batches("quarantine", order="position"):
        count = len(rows["position"])
        writer.write(
            "quarantine",
            count,
            keys,
            {
                "reason": Texts(rows["reason"], texts),
                "file": pa.repeat(stage.file, count),
                "position": rows["position"],
                "raw": pa.array(rows["raw"].tolist(), pa.string()),
            },
        )


def _write_warnings(stage: Stage, writer: RunWriter, keys: Mapping[str, Any]) -> None:
    found = sorted(stage.warnings.items())
    writer.write(
        "warnings",
        len(found),
        keys,
        {
            "code": pa.array([code for code, _ in found], pa.string()),
            "count": np.array([count for _, (count, _) in found], np.int64),
            "message": pa.array([message for _, (_, message) in found], pa.string()),
        },
    )


def _write_capture_row(
    stage: Stage, writer: RunWriter, keys: Mapping[str, Any], kind: str, first: int | None, last: int | None
) -> None:
    info = stage.info
    start = NONE if first is None else first
    length = NONE if first is None or last is None else last - first
    texts = {
        "name": keys["capture"],
        "kind": kind,
        "source_format": info.source_format,
        "framework": info.framework,
        "file": stage.file,
        "clock": info.clock,
        "devices": _json(info.devices),
        "metadata": _json(info.metadata),
    }
    numbers = {
        "ts_ns": start,
        "dur_ns": length,
        "base_unix_ns": info.base_unix_ns,
        "world_size": info.world_size,
        "n_raw": stage.n_raw,
        "n_kept": stage.n_kept,
        "n_merged": stage.n_merged,
        "n_ignored": stage.n_ignored,
        "n_quarantined": stage.n_quarantined,
    }
    columns: dict[str, Any] = {k: pa.array([v], pa.string()) for k, v in texts.items()}
    columns |= {k: np.array([NONE if v is None else v], np.int64) for k, v in numbers.items()}
    columns["incomplete"] = np.array([int(info.incomplete)], np.int8)
    writer.write("captures", 1, keys, columns)


def _json(value: Any) -> str | None:
    return json.dumps(value, ensure_ascii=False, default=str) if value else None
