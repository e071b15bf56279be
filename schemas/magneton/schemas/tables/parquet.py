"""Reading and writing the tables: version in the file, units in the fields, columns checked on the way in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from magneton.schemas.errors import InputFormatError, InputNotFoundError, SchemaVersionError, TruncatedInputError
from magneton.schemas.files.output_errors import naming
from magneton.schemas.tables.columns import Column, Table
from magneton.schemas.tables.diff import DIFF_TABLES
from magneton.schemas.tables.run import RUN_TABLES
from magneton.schemas.versions.registry import (
    SCHEMA_VERSION,
    TABLE_KEY,
    TABLE_STEPS,
    TOOL_KEY,
    VERSION_KEY,
    TableSteps,
    parse_version,
    table_steps,
)
from magneton.schemas.versions.tool import tool_name

TABLES: dict[str, Table] = RUN_TABLES | DIFF_TABLES


def file_schema(table: Table) -> pa.Schema:
    """Return the schema as written to Parquet: fields with units; version, table name and program in the metadata."""
    return table.arrow_schema().with_metadata(
        {VERSION_KEY: str(SCHEMA_VERSION).encode(), TABLE_KEY: table.name.encode(), TOOL_KEY: tool_name().encode()}
    )


def made_by(path: Path) -> str | None:
    """Return the program that wrote one of our files, for example ``magneton 0.1.0``; None where the file does not say so.

    Raises:
        InputNotFoundError: no such file.
        InputFormatError: not Parquet, or cut off.
    """
    with open_parquet(path) as source:
        stated = (source.schema_arrow.metadata or {}).get(TOOL_KEY)
    return None if stated is None else stated.decode("utf-8", "replace")


def conform(table: Table, data: pa.Table) -> pa.Table:
    """Return ``data`` with exactly the columns of ``table``, in order; columns it lacks become NULL.

    Raises:
        KeyError: a required column is missing or an unknown one is present (a bug in the caller).
    """
    unknown = set(data.column_names) - set(table.column_names())
    missing = [c.name for c in table.columns if c.required and c.name not in data.column_names]
    if unknown or missing:
        raise KeyError(f"{table.name}: unknown columns {sorted(unknown)}, missing columns {missing}")
    schema = file_schema(table)
    columns = [
        data.column(f.name).cast(f.type) if f.name in data.column_names else pa.nulls(data.num_rows, f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _leaves(name: str, type_: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the columns that a field has in a Parquet file, by their paths."""
    if pa.types.is_list(type_):
        yield from _leaves(f"{name}.list.element", type_.value_type)
    elif pa.types.is_struct(type_):
        for index in range(type_.num_fields):
            yield from _leaves(f"{name}.{type_.field(index).name}", type_.field(index).type)
    else:
        yield name, type_


class TableWriter:
    """Writes one table to one Parquet file in row groups, so that memory does not grow with the table.

    Use as a context manager. The file is only valid once closed; publish it inside ``files.publish_directory``.
    """

    def __init__(self, path: Path, table: Table) -> None:
        self._table, self._path = table, path
        schema = file_schema(table)
        leaves = [leaf for field in schema for leaf in _leaves(field.name, field.type)]
        # Sketches are random digits: apart from one another, sign and exponent bytes compress, mantissas do not.
        sketched = [name for name, kind in leaves if pa.types.is_float32(kind)]
        # Times and ids rarely repeat, so that a dictionary of them is thrown away once it is full. What lies between
        # neighbours is small.
        counted = [field.name for field in schema if pa.types.is_int64(field.type)]
        with naming(path):
            self._writer = pq.ParquetWriter(
                path,
                schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=[name for name, _ in leaves if name not in sketched and name not in counted],
                use_byte_stream_split=sketched,
                column_encoding=dict.fromkeys(counted, "DELTA_BINARY_PACKED"),
            )
        self.num_rows = 0

    def write(self, data: pa.Table) -> None:
        """Append rows; columns are completed and ordered to the table's schema."""
        if data.num_rows:
            with naming(self._path):
                self._writer.write_table(conform(self._table, data))
            self.num_rows += data.num_rows

    def close(self) -> None:
        """Finish the file."""
        with naming(self._path), discarding(self._writer):
            self._writer.close()

    def discard(self) -> None:
        """Close the file without finishing it; it is no table."""
        discard(self._writer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.discard()


def discard(writer: pq.ParquetWriter) -> None:
    """Close a file that is not to be finished. Arrow would otherwise try once more when it forgets the writer, and complain."""
    with contextlib.suppress(pa.ArrowException, OSError):
        writer.close()
    writer.is_open = False


@contextlib.contextmanager
def discarding(writer: pq.ParquetWriter) -> Iterator[None]:
    """Discard a writer on an exception in the body."""
    try:
        yield
    except BaseException:
        discard(writer)
        raise


def write_table(path: Path, table: Table, data: pa.Table) -> None:
    """Write a whole table at once."""
    with TableWriter(path, table) as writer:
        writer.write(data)


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file. Errors of Arrow become typed errors of Magneton.

    Raises:
        InputNotFoundError: no such file.
        InputFormatError: not a Parquet file.
        TruncatedInputError: the file begins like Parquet and has no valid end.
    """
    if not path.is_file():
        raise InputNotFoundError("no such file", path=path)
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        with path.open("rb") as stream:
            magic = stream.read(4)
        if magic == b"PAR1":
            raise TruncatedInputError("is a Parquet file without a valid end", path=path) from error
        what = "is empty" if not magic else "is not a Parquet file"
        raise InputFormatError(what, path=path) from error


def read_table(
    path: Path,
    name: str,
    *,
    columns: list[str] | None = None,
    steps: TableSteps = TABLE_STEPS,
    newest: int | None = None,
) -> pa.Table:
    """Read one of our tables, of this version or an older one.

    Missing columns that may be NULL are filled with NULL; unknown columns are left out.

    Args:
        path: Parquet file.
        name: table it must hold.
        columns: columns wanted (default: all of the schema).
        steps: upgrade steps by the version they lead to and by table.
        newest: newest readable version (default: this release's).

    Raises:
        SchemaVersionError: no or wrong version, a required column missing, or a column of another type.
        InputFormatError: not Parquet, or cut off.
    """
    table = TABLES[name]
    newest = SCHEMA_VERSION if newest is None else newest
    with open_parquet(path) as source:
        version = _stated_version(source.schema_arrow, table, path, newest)
        updates = table_steps(name, version, newest, steps)
        try:
            if source.metadata.num_rows:
                # An upgrade may need columns that are not asked for.
                data = source.read(columns=None if updates else columns)
            else:
                # Most tables of a recording are empty. Reading nothing takes Arrow as long as reading something.
                data = source.schema_arrow.empty_table()
        except (pa.ArrowInvalid, OSError) as error:
            raise InputFormatError(f"cannot be read: {error}", path=path) from error
    for update in updates:
        data = update(data, path)
    return _checked(table, data, path, columns)


def inspect_file(path: Path, name: str, *, newest: int | None = None) -> bool:
    """Check one of our files by its footer alone, without reading rows.

    Args:
        path: Parquet file.
        name: table it must hold.
        newest: newest readable version (default: this release's).

    Returns:
        Whether the file can be read as it is. FALSE: it is of an older version in which the table differs; its columns
        are not checked here, and ``read_table`` checks them after the upgrade.

    Raises:
        SchemaVersionError: no or wrong version, a required column missing, or a column of another type.
        InputFormatError: not Parquet, or cut off.
        InputNotFoundError: no such file.
    """
    newest = SCHEMA_VERSION if newest is None else newest
    with open_parquet(path) as source:
        schema = source.schema_arrow
    version = _stated_version(schema, TABLES[name], path, newest)
    if table_steps(name, version, newest, TABLE_STEPS):
        return False
    for column in TABLES[name].columns:
        _fits(TABLES[name], column, schema, path)
    return True


def _stated_version(schema: pa.Schema, table: Table, path: Path, newest: int) -> int:
    metadata = schema.metadata or {}
    version = parse_version(metadata.get(VERSION_KEY), path, newest=newest)
    stated = metadata.get(TABLE_KEY)
    if stated is not None and stated != table.name.encode():
        raise SchemaVersionError(
            f"holds the table {stated.decode('utf-8', 'replace')[:40]!r}, where {table.name} belongs",
            path=path,
            remedy="normalise the raw trace again",
        )
    return version


def _fits(table: Table, column: Column, schema: pa.Schema, path: Path) -> bool:
    """Return whether a file has a column; raise when it must have it, or has it with a type that cannot be widened."""
    if column.name not in schema.names:
        if column.required:
            raise SchemaVersionError(
                f"lacks the column {column.name} of table {table.name}",
                path=path,
                remedy="normalise the raw trace again",
            )
        return False
    if schema.names.count(column.name) > 1:
        raise SchemaVersionError(f"has the column {column.name} of table {table.name} more than once", path=path)
    found = schema.field(column.name).type
    kind = found.value_type if pa.types.is_dictionary(found) else found
    if (
        kind.equals(column.type)
        or pa.types.is_null(kind)
        or (pa.types.is_integer(kind) and pa.types.is_integer(column.type))
        or (pa.types.is_large_string(kind) and pa.types.is_string(column.type))
    ):
        return True
    raise SchemaVersionError(
        f"has {kind} in the column {column.name} of table {table.name}, where {column.type} belongs",
        path=path,
        remedy="normalise the raw trace again",
    )


def _checked(table: Table, data: pa.Table, path: Path, columns: list[str] | None) -> pa.Table:
    wanted = table.columns if columns is None else [c for c in table.columns if c.name in columns]
    arrays: list[Any] = []
    for column in wanted:
        if _fits(table, column, data.schema, path) and data.num_rows:
            try:
                arrays.append(data.column(column.name).cast(column.type))
            except pa.ArrowInvalid as error:
                raise InputFormatError(f"has values in {column.name} that do not fit: {error}", path=path) from error
        else:
            arrays.append(pa.nulls(data.num_rows, column.type))
    return pa.Table.from_arrays(arrays, schema=pa.schema([c.field() for c in wanted]))
