"""How a table is described: columns with type, unit and meaning, from which Arrow schemas and docs are made."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pyarrow as pa

STRING = pa.string()
INT = pa.int64()
FLOAT = pa.float64()
BOOL = pa.bool_()
INTS = pa.list_(pa.int64())
FLOATS = pa.list_(pa.float64())
# A sketch: the sorted lengths of the axes longer than 1 (which arrangements compare), and its buckets.
SKETCHES = pa.list_(pa.struct([("key", pa.string()), ("buckets", pa.list_(pa.float32()))]))
# Slices along axis 0: the shape they were taken of, and for each slice its buckets and its norm.
SLICES = pa.list_(
    pa.struct(
        [
            ("dims", pa.list_(pa.int64())),
            ("buckets", pa.list_(pa.list_(pa.float32()))),
            ("norms", pa.list_(pa.float64())),
        ]
    )
)
# Signatures: the lengths of the axes of a slice, how many slices there are, and the numbers of each slice one after another.
SIGNATURES = pa.list_(pa.struct([("key", pa.string()), ("n_slices", pa.int64()), ("numbers", pa.list_(pa.float32()))]))
# Singular values: which axes form the rows of the matricisation, and the largest values.
SINGULAR = pa.list_(pa.struct([("row_axes", pa.list_(pa.int64())), ("values", pa.list_(pa.float64()))]))

UNIT_KEY = b"magneton.unit"
DOC_KEY = b"magneton.doc"


@dataclass(frozen=True)
class Column:
    """One column. ``unit`` is free text such as ``ns`` or ``bytes``, or None. A ``required`` column must be in every file."""

    name: str
    type: pa.DataType
    doc: str
    unit: str | None = None
    required: bool = False

    def field(self) -> pa.Field:
        """Return the Arrow field, carrying unit and meaning in its metadata."""
        meta = {DOC_KEY: self.doc.encode()}
        if self.unit:
            meta[UNIT_KEY] = self.unit.encode()
        return pa.field(self.name, self.type, nullable=True, metadata=meta)


@dataclass(frozen=True)
class Table:
    """One table: its name, what a row is, and its columns in order."""

    name: str
    doc: str
    columns: tuple[Column, ...]

    def arrow_schema(self) -> pa.Schema:
        """Return the Arrow schema (without the version; the writer adds it)."""
        return self._schema

    @functools.cached_property
    def _schema(self) -> pa.Schema:
        return pa.schema([c.field() for c in self.columns])

    def column_names(self) -> list[str]:
        """Return the column names in order."""
        return [c.name for c in self.columns]

    def empty(self) -> pa.Table:
        """Return the table with no rows."""
        return self.arrow_schema().empty_table()


KEYS = (
    Column("run_id", STRING, "identity of the run (`r` + 16 hex digits over its primary files)", required=True),
    Column("capture", STRING, "name of the capture the row comes from (see `captures`)"),
    Column("rank", INT, "rank of the process in a distributed run; 0 where the input names none"),
    Column("repeat", INT, "number of the repetition, from 0; NULL when the capture was made once"),
    Column("input_id", STRING, "which input the capture ran on; NULL when there was one"),
)

TIME = (
    Column("name", STRING, "name as the recording system wrote it", required=True),
    Column("ts_ns", INT, "start, relative to `captures.base_unix_ns`", "ns", required=True),
    Column("dur_ns", INT, "length; NULL when unknown", "ns", required=True),
)


def event_table(name: str, doc: str, *columns: Column) -> Table:
    """Return a table of timed rows: run keys, name, start and length, then ``columns``."""
    return Table(name, doc, KEYS + TIME + columns)


def plain_table(name: str, doc: str, *columns: Column) -> Table:
    """Return a table of untimed rows: run keys, then ``columns``."""
    return Table(name, doc, KEYS + columns)
