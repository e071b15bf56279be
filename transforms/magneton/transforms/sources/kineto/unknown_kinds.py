"""Device work under categories that we do not know: new kinds of accelerators write names of their own.

What a launch of the file has launched (by correlation) is work of a device, whatever it is called: it becomes ``kernels``.
Other events on the tracks of a device may be work or not. A warning names them, so that nobody takes the run for one
without a device.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from magneton.schemas.kinds import Activity
from magneton.transforms.sources.kineto.events import NO_WORK
from magneton.transforms.sources.kineto.header import ProcessNames
from magneton.transforms.sources.rows import int64
from magneton.transforms.staging.stage import NO_TEXT, NONE, Stage

_DEVICE = re.compile(r"\b(?:GPU|NPU|TPU|XPU|HPU|MTIA|IPU|MLU|GCU|DCU|device|accelerator)\b|Hardware", re.IGNORECASE)
_COLUMNS = "rowid, name, track, ts_ns, dur_ns, category, external_id, correlation, args"


def adopt_unknown_kinds(stage: Stage, names: ProcessNames) -> None:
    """Turn launched events of unknown categories into activities; say what else lies on devices."""
    stage.flush()
    if not stage.n_rows["annotations"]:
        return
    pool = stage.pool
    known = [code for category in NO_WORK if (code := pool.codes.get(category)) is not None]
    slices = pool.codes["slice"]
    annotations = stage.table("annotations")
    unknown = f"kind = {slices} AND NOT list_contains(?, category)"
    if stage.n_rows["launches"]:
        launched = f"correlation <> {NONE} AND correlation IN (SELECT correlation FROM {stage.table('launches')})"
        query = f"SELECT DISTINCT category FROM {annotations} WHERE {unknown} AND {launched} AND category >= 0"
        for (category,) in sorted(stage.connection.execute(query, [known]).fetchall()):
            _adopt(stage, category)
            known.append(category)
    devices = _device_tracks(stage, names)
    if devices:
        query = (
            f"SELECT category, count(*) FROM {annotations} WHERE {unknown} AND list_contains(?, track)"
            " GROUP BY category ORDER BY 2 DESC, 1"
        )
        for category, count in stage.connection.execute(query, [known, devices]).fetchall():
            what = "without a category" if category == NO_TEXT else f"of the category {pool[category]!r}"
            stage.warn(
                "device_work_unread", f"events {what} stand on a device; whether they are work is not known", count
            )


def _device_tracks(stage: Stage, names: ProcessNames) -> list[int]:
    """Return the tracks of processes that are named as devices and hold no activity that we know."""
    busy = {stage.tracks.names[t][0] for t in np.unique(stage.column("kernels", "track")).tolist()}
    devices = {
        pid
        for pid, said in names.processes.items()
        if pid not in busy and any(_DEVICE.search(said.get(key, "")) for key in ("name", "labels"))
    }
    return [number for number, (pid, _) in enumerate(stage.tracks.names) if pid in devices]


def _adopt(stage: Stage, category: int) -> None:
    pool = stage.pool
    table = stage.table("annotations")
    rows = stage.connection.execute(
        f"SELECT {_COLUMNS} FROM {table} WHERE category = ? AND kind = ?", [category, pool.codes["slice"]]
    ).fetchall()
    args: list[dict[str, Any]] = [json.loads(pool[row[8]] or "{}") for row in rows]
    label = pool[category]
    more = [
        {k: v for k, v in arg.items() if k not in ("device", "stream", "correlation", "External id")} for arg in args
    ]
    stage.add(
        "kernels",
        {
            "name": np.array([row[1] for row in rows], np.int32),
            "track": np.array([row[2] for row in rows], np.int32),
            "ts_ns": np.array([row[3] for row in rows], np.int64),
            "dur_ns": np.array([row[4] for row in rows], np.int64),
            "category": [Activity.KERNEL] * len(rows),
            "external_id": np.array([row[6] for row in rows], np.int64),
            "correlation": np.array([row[7] for row in rows], np.int64),
            "device": [int64(arg.get("device")) for arg in args],
            "stream": [int64(arg.get("stream")) for arg in args],
            "attributes": [json.dumps({"category": label, **m}, separators=(",", ":")) for m in more],
        },
    )
    stage.connection.execute(f"DELETE FROM {table} WHERE category = ? AND kind = ?", [category, pool.codes["slice"]])
    stage.n_rows["annotations"] -= len(rows)
    stage.warn(
        "device_kind_assumed",
        f"events of the category {label!r} were launched on a device: they count as kernels",
        len(rows),
    )
