"""Rows on their way to a table: written as JSON inside the recorded program, which may lack pyarrow.

``raw_tables.make_tables`` makes the Parquet files where the recording is published.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SUFFIX = ".rows.json"


def keep_rows(path: Path, table: str, columns: Mapping[str, Sequence[Any]], keys: Mapping[str, Any]) -> None:
    """Keep the rows of a table.

    Args:
        path: Parquet file to be made.
        table: name of the table.
        columns: values by column, all equally many.
        keys: values that all rows have.
    """
    kept = {"table": table, "keys": dict(keys), "columns": {name: list(values) for name, values in columns.items()}}
    kept_at(path).write_text(json.dumps(kept, ensure_ascii=True), encoding="ascii")


def kept_at(path: Path) -> Path:
    """Return where the rows of a file are kept until it is made."""
    return path.with_name(path.name + SUFFIX)
