"""What goes to stdout: tables for people, JSON and CSV for programs. Rows are written as they come."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.text import Text

from magneton.analysis.report.blocks import Block
from magneton.flows.display import plain, rich_table, text_of
from magneton.schemas.errors import printable
from magneton.schemas.files.publish import publish_file
from magneton.schemas.tables.parquet import discarding


class Rows(Protocol):
    """Rows of a query: a schema, and record batches to iterate over."""

    schema: pa.Schema

    def __iter__(self) -> Any:
        """Yield record batches."""


def _records(batch: pa.RecordBatch) -> Iterable[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _stdout() -> IO[bytes]:
    return sys.stdout.buffer


def write_document(document: Any) -> None:
    """Write one JSON document to stdout, indented."""
    _stdout().write(msgspec.json.format(msgspec.json.encode(plain(document)), indent=2) + b"\n")


def _is_plain(kind: pa.DataType) -> bool:
    """Tell whether values of a type can be written to JSON without conversion (NaN and infinity become null anyway)."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_null(kind)
    )


def write_json(rows: Rows) -> int:
    """Write rows to stdout as a JSON array with one object a line; return their number."""
    out, names, count = _stdout(), rows.schema.names, 0
    encoder = msgspec.json.Encoder()
    out.write(b"[")
    for batch in rows:
        if not batch.num_rows:
            continue
        columns = [
            column.to_pylist() if _is_plain(column.type) else map(plain, column.to_pylist()) for column in batch.columns
        ]
        lines = encoder.encode_lines([dict(zip(names, record, strict=True)) for record in zip(*columns, strict=True)])
        out.write(b",\n" if count else b"\n")
        # A line break inside a value is written as an escape, so the ones in here separate lines.
        out.write(lines.removesuffix(b"\n").replace(b"\n", b",\n"))
        count += batch.num_rows
    out.write(b"\n]\n" if count else b"]\n")
    return count


def _cells(column: pa.Array) -> pa.Array:
    """Return a column as CSV cells (RFC 4180).

    NULL is empty and empty text is quoted. Text is exact: nothing guards spreadsheets, because a guard would change names.
    """
    if pa.types.is_null(column.type):
        return pa.array([""] * len(column), pa.string())
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type) or pa.types.is_floating(column.type):
        return pc.fill_null(column.cast(pa.string()), "")
    if not pa.types.is_string(column.type):
        column = pa.array(map(text_of, column.to_pylist()), pa.string())
    quoted = pc.binary_join_element_wise('"', pc.replace_substring(column, '"', '""'), '"', "")
    needed = pc.match_substring_regex(column, r'[",\r\n]|^$|^\s|\s$')
    return pc.fill_null(pc.if_else(needed, quoted, column), "")


def write_csv(rows: Rows) -> int:
    """Write rows to stdout as CSV with a header line; return their number."""
    out, count = _stdout(), 0
    header = _cells(pa.array(rows.schema.names, pa.string())).to_pylist()
    out.write((",".join(header) + "\r\n").encode())
    for batch in rows:
        if not batch.num_rows:
            continue
        lines = pc.binary_join_element_wise(*map(_cells, batch.columns), ",").to_pylist()
        out.write(("\r\n".join(lines) + "\r\n").encode())
        count += batch.num_rows
    return count


def write_parquet(rows: Rows, path: Path, *, overwrite: bool) -> int:
    """Write rows to a Parquet file, which appears whole or not at all; return their number."""
    count = 0
    with publish_file(path, overwrite=overwrite) as temporary:
        writer = pq.ParquetWriter(temporary, rows.schema, compression="zstd")
        with discarding(writer):
            for batch in rows:
                writer.write_batch(batch)
                count += batch.num_rows
            writer.close()
    return count


class _Stdout(Console):
    """A console that passes a closed pipe on as an error. rich itself would exit with code 1."""

    def on_broken_pipe(self) -> None:
        """Raise the error again."""
        raise BrokenPipeError


def stdout_console() -> Console:
    """Return a console on stdout. If stdout is not a terminal, it is wide enough that nothing is cut."""
    console = _Stdout(highlight=False)
    return console if console.is_terminal else _Stdout(highlight=False, width=1_000_000)


def show_table(
    names: Sequence[str],
    records: Iterable[Sequence[Any]],
    *,
    right: Iterable[str] = (),
    wrap: Iterable[str] = (),
    title: str | None = None,
) -> None:
    """Show records as a text table. Control characters in names are escaped, and markup in names has no effect.

    Args:
        names: column headings; no heading is shown when all are empty.
        records: one sequence of values a row.
        right: headings of the columns to align right.
        wrap: headings of the columns that run over several lines where the terminal is narrow; others are cut.
        title: a line above the table.
    """
    console = stdout_console()
    table = rich_table(names, records, right=right, wrap=wrap)
    if title is not None:
        console.print(Text(printable(title), style="bold"))
    console.print(table)


def show_blocks(blocks: Iterable[Block]) -> None:
    """Show tables for people, each with its title and its remark."""
    for block in blocks:
        if block.names:
            show_table(block.names, block.rows, right=block.right, wrap=block.wrap, title=block.title or None)
        if block.remark:
            show_text(printable(block.remark))


def show_text(text: str) -> None:
    """Show a paragraph below a table, wrapped to the width of the terminal."""
    console = _Stdout(highlight=False)
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
