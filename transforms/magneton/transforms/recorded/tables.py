"""Tables that our own recorder writes as raw files: settings, and times of bare steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from magneton.schemas.clocks import clock_map
from magneton.schemas.errors import InputFormatError
from magneton.schemas.kinds import Clock, OwnFormat
from magneton.schemas.manifest import Capture, ClockAnchor
from magneton.schemas.raw_paths import capture_folder
from magneton.schemas.tables.parquet import inspect_file, read_table
from magneton.transforms.linking.host import NextIds
from magneton.transforms.staging.writer import RunWriter

KNOBS, STEPS = "knobs", "steps"
TABLES = (KNOBS, STEPS)


@dataclass(frozen=True)
class RecordedTable:
    """One such file.

    Attributes:
        path: where it lies.
        table: ``knobs`` or ``steps``.
        capture: the capture it belongs to.
        known: another file (a trace, a power log) is that capture already.
    """

    path: Path
    table: str
    capture: Capture
    known: bool = True

    def folder(self) -> str:
        """Return the folder of a recording it is kept in."""
        inspect_file(self.path, self.table)
        return capture_folder(self.capture.name, self.capture.rank)


def first_instant(items: Sequence[RecordedTable]) -> int | None:
    """Return the Unix time (ns) of the first step; None where there is none."""
    firsts = []
    for item in items:
        if item.table == STEPS:
            times = read_table(item.path, STEPS, columns=["ts_ns"]).column("ts_ns").drop_null().to_numpy()
            firsts += [int(_unix(times, item.capture.anchors).min())] if len(times) else []
    return min(firsts, default=None)


def _unix(times: np.ndarray, anchors: Sequence[ClockAnchor]) -> np.ndarray:
    # The clock of the steps; the anchors of their capture tie it to the wall clock.
    return clock_map(anchors, Clock.MONOTONIC).convert_array(times.astype(np.int64))


def write_recorded(
    items: Sequence[RecordedTable],
    base: int | None,
    places: Mapping[Path, str],
    writer: RunWriter,
    next_ids: NextIds,
) -> list[Capture]:
    """Write the rows of such files. Return the captures that consist of such a file only.

    Args:
        items: the files.
        base: Unix time (ns) that times of the run are relative to.
        places: path of each file in the recording, by where it lies.
        writer: where to.
        next_ids: ids that are still free in the run.

    Raises:
        ClockAlignmentError: the clock of steps cannot be tied to the wall clock.
    """
    captures = []
    for item in items:
        about = item.capture
        keys = {"capture": about.name, "rank": about.rank, "repeat": about.repeat, "input_id": about.input_id}
        data = read_table(item.path, item.table)
        columns: dict[str, Any] = {
            n: data[n].combine_chunks() for n in data.column_names if n != "run_id" and n not in keys
        }
        if item.table == STEPS:
            if data["ts_ns"].null_count:
                raise InputFormatError("has steps without a start", path=item.path, remedy="record it again")
            columns["step_id"] = pa.array(next_ids.take("steps", data.num_rows))
            columns["ts_ns"] = pa.array(_unix(data["ts_ns"].to_numpy(), about.anchors) - (base or 0))
        writer.write(item.table, data.num_rows, keys, columns)
        if item.table == STEPS and not item.known:
            about = msgspec.structs.replace(about, file=places[item.path])
            captures.append(about)
            writer.write("captures", 1, keys, _capture_row(about, columns, data.num_rows, base))
    return captures


def _capture_row(about: Capture, steps: dict[str, Any], count: int, base: int | None) -> dict[str, Any]:
    first = last = None
    if count:
        begins, lengths = steps["ts_ns"].to_numpy(), steps["dur_ns"].fill_null(0).to_numpy()
        first, last = int(begins.min()), int((begins + lengths).max())
    numbers = {
        "ts_ns": first,
        "dur_ns": None if first is None or last is None else last - first,
        "base_unix_ns": base,
        "n_raw": count,
        "n_kept": count,
        "n_merged": 0,
        "n_ignored": 0,
        "n_quarantined": 0,
    }
    texts = {
        "name": about.name,
        "kind": about.kind,
        "source_format": OwnFormat.STEPS,
        "file": about.file,
        "clock": None if base is None else Clock.REALTIME,
    }
    row: dict[str, Any] = {name: pa.array([value], pa.int64()) for name, value in numbers.items()}
    row |= {name: pa.array([value], pa.string()) for name, value in texts.items()}
    row["incomplete"] = pa.array([about.incomplete])
    return row
