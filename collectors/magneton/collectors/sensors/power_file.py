"""From the records of a spool to ``power.parquet``: rows of the table ``power``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from magneton.collectors.sensors.protocol import REASONS, Series
from magneton.collectors.sensors.spool import ABOUT, RECORD, RECORDS
from magneton.schemas.kinds import Clock, Flag
from magneton.schemas.tables.parquet import TableWriter
from magneton.schemas.tables.run import POWER

_DTYPE = np.dtype([("series", "<i4"), ("ts_ns", "<i8"), ("value", "<f8"), ("reason", "<i4")])
_ROWS = 1 << 16


def read(path: Path) -> np.ndarray[Any, Any]:
    """Return the records of a spool as a structured array, a cut one at its end left out."""
    data = path.read_bytes()
    return np.frombuffer(data[: len(data) - len(data) % RECORD.size], _DTYPE)


def make_power(path: Path) -> int:
    """Make a file of power from what ``spool.keep`` has kept, which is removed; return the number of its rows."""
    records, about = Path(f"{path}{RECORDS}"), Path(f"{path}{ABOUT}")
    known = json.loads(about.read_text(encoding="utf-8"))
    series = [(source, Series(**described)) for source, described in known["series"]]
    spooled = read(records)
    n = write_power(path, spooled[spooled["series"] < len(series)], series, **known["keys"])
    records.unlink()
    about.unlink()
    return n


def _flags(reason: pa.Array, stand_in: pa.Array) -> pa.Array:
    """Return both codes where there are both, else the one there is, else None."""
    both = pc.binary_join_element_wise(reason, stand_in, " ")
    return pc.coalesce(both, reason, stand_in)


def write_power(
    path: Path,
    spooled: np.ndarray[Any, Any],
    series: Sequence[tuple[str, Series]],
    *,
    capture: str,
    rank: int,
    repeat: int | None,
) -> int:
    """Write readings as rows of the table ``power``; return how many.

    Times are those of ``CLOCK_MONOTONIC``; ``run_id`` is NULL, since the run's identity is made from this very file.

    Args:
        path: Parquet file.
        spooled: from ``read``.
        series: source and description of each series, by its number.
        capture: name of the capture.
        rank: rank of the process.
        repeat: number of the repetition, or None.
    """
    schema = POWER.arrow_schema()
    texts: Mapping[str, pa.Array] = {
        "name": pa.array([s.name for _, s in series], pa.string()),
        "source": pa.array([source for source, _ in series], pa.string()),
        "device_kind": pa.array([s.device_kind for _, s in series], pa.string()),
        "device_id": pa.array([s.device_id for _, s in series], pa.string()),
        "field": pa.array([s.field for _, s in series], pa.string()),
        "unit": pa.array([s.unit for _, s in series], pa.string()),
        "labels": pa.array(
            [json.dumps(dict(s.labels), sort_keys=True) if s.labels else None for _, s in series], pa.string()
        ),
    }
    reasons = pa.array(REASONS, pa.string())
    stand_in = pa.array([Flag.SIMULATED if s.simulated else None for _, s in series], pa.string())
    with TableWriter(path, POWER) as writer:
        for start in range(0, len(spooled), _ROWS):
            part = spooled[start : start + _ROWS]
            n = len(part)
            numbers = pa.array(part["series"].astype(np.int32))
            columns = {name: values.take(numbers) for name, values in texts.items()}
            why = part["reason"].astype(np.int32)
            columns["flags"] = _flags(reasons.take(pa.array(why, mask=why < 0)), stand_in.take(numbers))
            columns["value"] = pa.array(part["value"].astype(np.float64), mask=np.isnan(part["value"]))
            columns["ts_ns"] = pa.array(part["ts_ns"].astype(np.int64))
            columns["clock"] = pa.repeat(pa.scalar(Clock.MONOTONIC), n)
            columns["capture"] = pa.repeat(pa.scalar(capture), n)
            columns["rank"] = pa.repeat(pa.scalar(rank, pa.int64()), n)
            for name, value in (("run_id", None), ("dur_ns", None), ("repeat", repeat)):
                columns[name] = pa.repeat(pa.scalar(value, schema.field(name).type), n)
            writer.write(pa.table(columns))
    return len(spooled)
