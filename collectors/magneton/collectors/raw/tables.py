"""Parquet files from what was kept inside a recorded program: rows, values, power readings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from magneton.collectors.raw.rows import SUFFIX
from magneton.collectors.sensors.power_file import make_power
from magneton.collectors.sensors.spool import ABOUT
from magneton.schemas.tables.columns import Table
from magneton.schemas.tables.parquet import conform, write_table
from magneton.schemas.tables.run import RUN_TABLES


def make_tables(root: Path) -> None:
    """Make every Parquet file below a directory that something was kept for, and remove what was kept."""
    for about in sorted(root.rglob(f"*{ABOUT}")):
        make_power(about.with_name(about.name.removesuffix(ABOUT)))
    for kept in sorted(root.rglob(f"*{SUFFIX}")):
        rows = json.loads(kept.read_text(encoding="ascii"))
        columns = rows["columns"]
        arrays = kept.with_name(kept.name + ".npz")
        if arrays.is_file():
            from magneton.collectors.raw.values import restored

            columns |= restored(columns, arrays)
            arrays.unlink()
        table = RUN_TABLES[rows["table"]]
        write_table(kept.with_name(kept.name.removesuffix(SUFFIX)), table, table_of(table, columns, rows["keys"]))
        kept.unlink()


def table_of(table: Table, columns: Mapping[str, Sequence[Any]], keys: Mapping[str, Any]) -> pa.Table:
    """Return rows as a table; columns that were not given are NULL.

    Args:
        table: the table.
        columns: values by column.
        keys: values that all rows have.
    """
    schema = table.arrow_schema()
    rows = len(next(iter(columns.values())))
    arrays = {name: pa.repeat(pa.scalar(value, schema.field(name).type), rows) for name, value in keys.items()}
    for name, values in columns.items():
        arrays[name] = values if isinstance(values, pa.Array) else pa.array(values, schema.field(name).type)
    for name in {c.name for c in table.columns if c.required} - arrays.keys():
        arrays[name] = pa.nulls(rows, schema.field(name).type)
    return conform(table, pa.table(arrays))
