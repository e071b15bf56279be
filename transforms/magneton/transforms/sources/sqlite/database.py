"""Reading SQLite files of other tools without trusting them.

The file is opened read-only and immutable (no journal, no lock, no side file), with schema code switched off. Only real tables are
read. Views, virtual tables and generated columns are not, since they could run code that the file contains. A damaged file is refused
with one line.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from magneton.schemas.errors import InputFormatError, InputNotFoundError, TruncatedInputError
from magneton.transforms.sources.rows import Notes, Row, UnusableEvent

MAGIC = b"SQLite format 3\x00"

Cell = int | float | str | bytes | None
Record = dict[str, Cell]
# Makes the row of a table out of a record, its start and its length; None says that it only describes other records.
Build = Callable[[Record, int, int | None], Row | None]

_HEADER_BYTES = 100
_MAX_CELL_BYTES = 64 << 20
_MAX_SQL_BYTES = 1 << 20
_MAX_TABLES = 10_000


class Database:
    """The tables of one open file.

    Attributes:
        path: the file, for messages.
        tables: columns by table name, real tables and stored columns only.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, size: int) -> None:
        self.path = path
        self._connection = connection
        # A row takes at least a byte. More rows than bytes: the pages of a damaged file point at one another.
        self._most_rows = size
        self.tables: dict[str, list[str]] = {}
        for name, sql in self.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'", ()):
            virtual = re.match(r"\s*CREATE\s+VIRTUAL\b", str(sql or ""), re.IGNORECASE)
            if isinstance(name, str) and not virtual and len(self.tables) < _MAX_TABLES:
                # hidden is 1 for columns of virtual tables, 2 and 3 for generated ones
                columns = self.execute("SELECT name FROM pragma_table_xinfo(?) WHERE hidden = 0", (name,))
                self.tables[name] = [str(c) for (c,) in columns]

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[Record]:
        """Yield the rows of a table as dicts of the wanted columns; those the table lacks are None."""
        have = [c for c in columns if c in self.tables.get(table, ())]
        if not have:
            return
        lacking = dict.fromkeys(c for c in columns if c not in have)
        wanted = ", ".join(identifier(c) for c in have)
        for row in self.execute(f"SELECT {wanted} FROM {identifier(table)}", ()):
            yield {**lacking, **dict(zip(have, row, strict=True))}

    def lookup(self, table: str, key: str, value: str) -> Lookup:
        """Return a reader of ``value`` by ``key``, for tables of interned names."""
        return Lookup(self, table, key, value)

    def execute(self, sql: str, values: Sequence[Cell]) -> Iterator[tuple[Cell, ...]]:
        """Yield the rows of a query; what is wrong with the file becomes an ``InputFormatError``."""
        try:
            for number, row in enumerate(self._connection.execute(sql, values)):
                if number > self._most_rows:
                    raise InputFormatError("is a damaged SQLite file: its pages form a loop", path=self.path)
                yield row
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:  # the last: a message that quotes the file
            raise InputFormatError(
                f"is a damaged SQLite file: {error}", path=self.path, remedy="export it again"
            ) from error


class Lookup:
    """One column by an id. The latest are kept, so that memory does not grow with a table of millions of strings."""

    _KEEP = 65_536

    def __init__(self, database: Database, table: str, key: str, value: str) -> None:
        self._database = database
        columns = database.tables.get(table, [])
        self._sql = None
        if key in columns and value in columns:
            self._sql = f"SELECT {identifier(value)} FROM {identifier(table)} WHERE {identifier(key)} = ?"
        self._kept: dict[int, Cell] = {}

    def get(self, key: Cell) -> str | None:
        """Return the text of an id; None where the id is not a number or has no text."""
        found = self._find(key)
        return found if isinstance(found, str) else None

    def number(self, key: Cell) -> int | None:
        """Return the whole number of an id; None where the id is not a number or has none."""
        return integer(self._find(key))

    def _find(self, key: Cell) -> Cell:
        if self._sql is None or not isinstance(key, int):
            return None
        if key not in self._kept:
            if len(self._kept) >= self._KEEP:
                self._kept.clear()
            self._kept[key] = next(iter(self._database.execute(self._sql, (key,))), (None,))[0]
        return self._kept[key]


def identifier(name: str) -> str:
    """Return a table or column name quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


def integer(cell: Cell) -> int | None:
    """Return a cell as a whole number; None for NULL and for anything else (SQLite columns hold any type)."""
    if isinstance(cell, int):
        return cell
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 1 << 53:
        return int(cell)
    return None


def interval(record: Record, notes: Notes, *, open_ended: bool = False) -> tuple[int, int | None]:
    """Return start and length (ns) of a record with the columns ``start`` and ``end``.

    Args:
        record: the record.
        notes: knows what lengths are credible.
        open_ended: it may have no end; its length is None then.

    Raises:
        UnusableEvent: the times are missing, no numbers, or impossible.
    """
    start, end = integer(record["start"]), integer(record["end"])
    if (start is None and record["start"] is not None) or (end is None and record["end"] is not None):
        raise UnusableEvent("ts_not_numeric")
    if start is None or (end is None and not open_ended):
        raise UnusableEvent("ts_missing")
    length = None if end is None else end - start
    notes.check_times(start, length)
    return start, length


def events(
    database: Database,
    table: str,
    columns: Sequence[str],
    notes: Notes,
    build: Build,
    *,
    open_ended: bool = False,
) -> Iterator[Row]:
    """Yield what ``build`` makes of each record of a table, and the quarantine rows of those that cannot be used."""
    for record in database.rows(table, ("start", "end", *columns)):
        try:
            start, length = interval(record, notes, open_ended=open_ended)
        except UnusableEvent as event:
            yield notes.quarantine(event.reason, record)
            continue
        row = build(record, start, length)
        if row is None:
            notes.merge()
        else:
            notes.keep()
            yield row


@contextlib.contextmanager
def open_sqlite(path: Path, named: Path | None = None) -> Iterator[Database]:
    """Open a SQLite file for reading only.

    Args:
        path: where it lies.
        named: the file to name in messages, where ``path`` is a copy of it.

    Raises:
        InputNotFoundError: it cannot be opened.
        TruncatedInputError: it is shorter than its header says.
        InputFormatError: it is not SQLite, or damaged.
    """
    named = named or path
    _check_header(path, named)
    # The path enters a URI: quote its bytes, so that ?, # and % in a file name stay part of the name.
    uri = "file:" + quote(os.fsencode(path.resolve())) + "?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    except sqlite3.Error as error:
        raise InputNotFoundError(f"cannot be opened: {error}", path=named) from error
    with contextlib.closing(connection):
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_CELL_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, _MAX_SQL_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        try:
            for setting in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON"):
                connection.execute(f"PRAGMA {setting}")
        except sqlite3.Error as error:
            raise InputFormatError(f"is a damaged SQLite file: {error}", path=named) from error
        yield Database(named, connection, path.stat().st_size)


def _check_header(path: Path, named: Path) -> None:
    try:
        with path.open("rb") as stream:
            header = stream.read(_HEADER_BYTES)
            size = os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise InputNotFoundError(f"cannot be opened: {error.strerror}", path=named) from error
    if not header.startswith(MAGIC):
        raise InputFormatError("is not a SQLite file", path=named)
    if len(header) < _HEADER_BYTES:
        raise TruncatedInputError("is a SQLite file that ends in its header", path=named, remedy="export it again")
    page = int.from_bytes(header[16:18], "big")
    page = 65536 if page == 1 else page
    pages = int.from_bytes(header[28:32], "big")
    # The page count is only valid where the two change counters agree (SQLite file format, 1.3.7).
    if header[24:28] == header[92:96] and pages and size < page * pages:
        raise TruncatedInputError(
            f"is a SQLite file of {page * pages:,} bytes, cut off after {size:,}", path=named, remedy="export it again"
        )
