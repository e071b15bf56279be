"""``power.parquet`` of our own recorder: rows of the table ``power``, with times of the clock that each row names.

Its times are absolute on that clock (``monotonic``); the anchors of its capture tie them to the wall clock.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from magneton.schemas.clocks import CLOCKS
from magneton.schemas.codes import QUARANTINE_REASONS
from magneton.schemas.kinds import Flag, OwnFormat
from magneton.schemas.tables.parquet import read_table
from magneton.transforms.power import fields
from magneton.transforms.power.builder import LogBuilder
from magneton.transforms.power.log import PowerLog, PowerOptions
from magneton.transforms.power.readings import Series

NAME = OwnFormat.POWER
_COLUMNS = ["name", "ts_ns", "source", "device_kind", "device_id", "field", "value", "unit", "labels", "clock", "flags"]
_BATCH = 1 << 16


def sniff(head: str) -> bool:
    """Say whether the start of a file is this format."""
    return head.startswith("PAR1")


def read(path: Path, options: PowerOptions) -> PowerLog:
    """Read a recorded file of readings.

    Raises:
        SchemaVersionError: a Parquet file that is not a table ``power`` of a version this release reads.
        InputFormatError: damaged, or without a reading of power or energy.
    """
    builder = LogBuilder(path, OwnFormat.POWER, options)
    table = read_table(path, "power", columns=_COLUMNS)
    position = 0
    for batch in table.to_batches(max_chunksize=_BATCH):
        for row in zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True):
            _row(builder, position, row)
            position += 1
    return builder.finish(lambda positions: {p: _text(table.slice(p, 1).to_pylist()[0].values()) for p in positions})


def _text(row: Any) -> str:
    return ",".join("" if value is None else str(value) for value in row)


def _row(builder: LogBuilder, position: int, row: tuple[Any, ...]) -> None:
    name, ts, source, kind, device, field, value, unit, labels, clock, flags = row
    if clock not in CLOCKS:
        return builder.drop(position, "clock_unknown", _text(row))
    if not field:
        return builder.drop(position, "field_missing", _text(row))
    stated = (flags or "").split()
    simulated = Flag.SIMULATED if Flag.SIMULATED in stated else None
    series = builder.series(
        Series(name or field, source or OwnFormat.POWER, kind, device, field, unit, clock, labels, simulated)
    )
    why = None
    if value is None:
        known = [flag for flag in stated if flag in QUARANTINE_REASONS]
        why = known[0] if known else Flag.NOT_AVAILABLE
    elif value != value:  # NaN
        value, why = None, Flag.NOT_AVAILABLE
    else:
        why = fields.check_value(field, unit, value, kind)
        value = None if why else value
    when: int | str = "ts_missing" if ts is None else ts
    return builder.row(position, when, [(series, value, why)], _text(row) if value is None or ts is None else "")
