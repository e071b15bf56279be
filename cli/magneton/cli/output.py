"""What goes to stdout: tables for people, JSON and CSV for programs. Rows are written as they come."""

from __future__ import annotations

import base64
import datetime
import decimal
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from magneton.schemas.errors import printable
from magneton.schemas.files import publish_file


class Rows(Protocol):
    """Rows of a query: a schema, and record batches to iterate over."""

    schema: pa.Schema

    def __iter__(self) -> Any:
        """Yield record batches."""


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: whole decimals as integers, bytes in base64, NaN and infinity as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, decimal.Decimal):
        # Raw, because JSON numbers have no size and Python's encoder stops at 64 bits.
        return msgspec.Raw(format(value, "f").encode())
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple) and not isinstance(value, pa.MonthDayNano):
        return [_plain(v) for v in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    return str(value)


def _records(batch: pa.RecordBatch) -> Iterable[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _stdout() -> IO[bytes]:
    return sys.stdout.buffer


def write_document(document: Any) -> None:
    """Write one JSON document to stdout, indented."""
    _stdout().write(msgspec.json.format(msgspec.json.encode(_plain(document)), indent=2) + b"\n")


def write_json(rows: Rows) -> int:
    """Write rows to stdout as a JSON array with one object a line; return their number."""
    out, names, count = _stdout(), rows.schema.names, 0
    out.write(b"[")
    for batch in rows:
        for record in _records(batch):
            out.write(b",\n" if count else b"\n")
            out.write(msgspec.json.encode(dict(zip(names, map(_plain, record), strict=True))))
            count += 1
    out.write(b"\n]\n" if count else b"]\n")
    return count


def _cell(value: Any) -> str:
    """Return a CSV cell (RFC 4180). NULL is empty, empty text is quoted. Text is exact: nothing guards spreadsheets."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple | dict) and not isinstance(value, pa.MonthDayNano):
        value = msgspec.json.encode(_plain(value)).decode()
    elif isinstance(value, decimal.Decimal):
        return format(value, "f")
    elif not isinstance(value, str):
        plain = _plain(value)
        value = plain if isinstance(plain, str) else str(plain)
    text = str(value)
    if text == "" or any(c in text for c in ',"\r\n') or text != text.strip():
        return '"' + text.replace('"', '""') + '"'
    return text


def write_csv(rows: Rows) -> int:
    """Write rows to stdout as CSV with a header line; return their number."""
    out, count = _stdout(), 0
    out.write((",".join(map(_cell, rows.schema.names)) + "\r\n").encode())
    for batch in rows:
        lines = [",".join(map(_cell, record)) + "\r\n" for record in _records(batch)]
        out.write("".join(lines).encode())
        count += len(lines)
    return count


def write_parquet(rows: Rows, path: Path, *, overwrite: bool) -> int:
    """Write rows to a Parquet file, which appears whole or not at all; return their number."""
    count = 0
    with (
        publish_file(path, overwrite=overwrite) as temporary,
        pq.ParquetWriter(temporary, rows.schema, compression="zstd") as writer,
    ):
        for batch in rows:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _shown(value: Any) -> Text:
    if value is None:
        return Text("NULL", style="dim")
    if isinstance(value, bool):
        return Text("true" if value else "false")
    if isinstance(value, float):
        return Text(f"{value:.6g}")
    return Text(printable(_cell(value) if isinstance(value, list | tuple | dict | bytes) else value))


def stdout_console() -> Console:
    """Return a console on stdout; when that is no terminal, wide enough that nothing is cut."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=1_000_000)


def show_table(
    names: Sequence[str],
    records: Iterable[Sequence[Any]],
    *,
    right: Iterable[str] = (),
    wrap: Iterable[str] = (),
    title: str | None = None,
) -> None:
    """Show records as a table for people. Names are data: control characters are escaped, markup is not read.

    Args:
        names: column headings; no heading is shown when all are empty.
        records: one sequence of values a row.
        right: headings of the columns to align right.
        wrap: headings of the columns that run over several lines where the terminal is narrow; others are cut.
        title: a line above the table.
    """
    console = stdout_console()
    table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold", show_header=any(names))
    numbers, texts = set(right), set(wrap)
    for name in names:
        justify: Any = "right" if name in numbers else "left"
        table.add_column(Text(printable(name)), justify=justify, overflow="ellipsis", no_wrap=name not in texts)
    for record in records:
        table.add_row(*map(_shown, record))
    if title is not None:
        console.print(Text(printable(title), style="bold"))
    console.print(table)


def show_text(text: str) -> None:
    """Show a paragraph of ours below a table, wrapped to the terminal."""
    console = Console(highlight=False)
    console.print()
    console.print(Text(text), soft_wrap=not console.is_terminal)


def show_rows(rows: Rows, *, limit: int) -> tuple[int, int]:
    """Show the first rows of a result as a table.

    Returns:
        How many rows were shown, and how many there are.
    """
    kept: list[tuple[Any, ...]] = []
    count = 0
    for batch in rows:
        count += batch.num_rows
        if not limit or len(kept) < limit:
            kept.extend(_records(batch.slice(0, limit - len(kept)) if limit else batch))
    numbers = [f.name for f in rows.schema if pa.types.is_integer(f.type) or _is_real(f.type)]
    show_table(rows.schema.names, kept, right=numbers)
    return len(kept), count


def _is_real(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_decimal(kind))
