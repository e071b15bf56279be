"""SQL over any number of recordings and diffs. Every table has a column that names the recording or diff of each row.

The tables reach the engine as Arrow datasets of listed files. No path is part of a SQL text or a glob pattern. The engine itself
opens no file. So all its access to the outside is switched off before the user's query is parsed. A query is admitted only if
it is one SELECT and calls no table function outside a short list. Its values are bound.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs

from magneton.analysis.recording import TABLES_DIR, Recording
from magneton.schemas.documents.diff import DIFF_NAME, read_diff
from magneton.schemas.errors import (
    InputFormatError,
    InputNotFoundError,
    InvalidNameError,
    LimitExceededError,
    MagnetonError,
    UsageError,
)
from magneton.schemas.tables.columns import Column, Table
from magneton.schemas.tables.diff import DIFF_TABLES
from magneton.schemas.tables.parquet import inspect_file, read_table
from magneton.schemas.tables.run import RUN_TABLES
from magneton.schemas.views.columns import DIFF_COLUMN, RUN_COLUMN
from magneton.schemas.views.registry import RUNS, VIEWS

LOG = logging.getLogger(__name__)

BATCH_ROWS = 10_000

T = TypeVar("T")

# They compute from their arguments alone. Every other table function reads files, settings or memory.
_TABLE_FUNCTIONS = frozenset({"range", "generate_series", "unnest", "json_each", "json_tree", "repeat", "repeat_row"})
_ONLY_SELECT = "a query is one SELECT, which may begin with WITH or FROM, or be DESCRIBE, SUMMARIZE or SHOW TABLES"


@dataclass(frozen=True)
class OpenRun:
    """A recording that was opened: the unique name it has in the column ``run``, and where it lies."""

    run: str
    recording: Recording


class _Engine:
    """Runs the engine in a thread of its own, so that Ctrl-C can stop a query.

    Python handles a signal only when the main thread returns from C code. Without the second thread that would be when the
    query has ended.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection
        self._pool = ThreadPoolExecutor(1, "magneton-query")

    def run(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns; on Ctrl-C stop the engine first."""
        future = self._pool.submit(work)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                self.connection.interrupt()
                wait([future])
            raise

    def close(self) -> None:
        """Close the connection and end the thread."""
        self._pool.shutdown()
        self.connection.close()


class Result:
    """Rows of a query, computed while they are read.

    Attributes:
        schema: Arrow schema; a column name that occurs twice got a suffix (``name``, ``name_1``).
    """

    def __init__(self, reader: pa.RecordBatchReader, engine: _Engine) -> None:
        self._reader = reader
        self._engine = engine
        self.schema = pa.schema(
            [
                f.with_name(n)
                for f, n in zip(reader.schema, unique_names(reader.schema.names, "{}_{}", first=1), strict=True)
            ]
        )

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches of at most ``BATCH_ROWS`` rows.

        Raises:
            UsageError: the query fails on a value, e.g. a cast or an overflow.
            InputFormatError: a table of a recording cannot be read.
            LimitExceededError: the query needs more memory or disk than it may use.
        """
        while True:
            try:
                # The end comes as a value: a StopIteration cannot be handed from one thread to another.
                batch = self._engine.run(lambda: next(self._reader, None))
            except (duckdb.Error, pa.ArrowException, OSError) as error:
                raise _translated(error) from error
            if batch is None:
                return
            yield pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)

    def read_all(self) -> pa.Table:
        """Return all rows as one Arrow table, in memory."""
        return pa.Table.from_batches(list(self), self.schema)


class Recordings:
    """Recordings and diffs opened for SQL. Use as a context manager; close it to release the engine and its spill files.

    Args:
        directories: recordings (directories with a manifest and tables) and diffs (with ``diff.json``), at least one.
        memory_limit: memory that the engine may use before it writes to disk, e.g. ``2GB`` (default: 80 % of the memory).

    Raises:
        UsageError: no directory given, or a memory limit that is not a size.
        InputNotFoundError: no recording there.
        SchemaVersionError: a table of a version this release does not read, or with columns that do not fit it.
        InputFormatError: a table that is not Parquet, or cut off.
    """

    def __init__(self, directories: Sequence[Path], *, memory_limit: str | None = None) -> None:
        if not directories:
            raise UsageError("no recording given", remedy="name one or more recording directories")
        _refuse_unwritable(directories)
        diffs = [directory for directory in directories if (directory / DIFF_NAME).is_file()]
        for directory in diffs:
            read_diff(directory)
        recordings = [_open(directory) for directory in directories if directory not in diffs]
        labels = [r.manifest.label or r.directory.name or r.manifest.run_id for r in recordings]
        names = unique_names(labels, "{} ({})", first=2)
        self.runs = [OpenRun(name, r) for name, r in zip(names, recordings, strict=True)]
        run_tables = [(opened.run, opened.recording.directory / TABLES_DIR) for opened in self.runs]
        diff_names = unique_names([d.resolve().name for d in diffs], "{} ({})", first=2)
        diff_tables = list(zip(diff_names, diffs, strict=True))
        sources = {name: _source(table, RUN_COLUMN, run_tables) for name, table in RUN_TABLES.items()}
        sources |= {name: _source(table, DIFF_COLUMN, diff_tables) for name, table in DIFF_TABLES.items()}
        for opened in self.runs:
            LOG.info("%s: opened, named %s in queries", opened.recording.directory, opened.run)
        for name, directory in diff_tables:
            LOG.info("%s: diff opened, named %s in queries", directory, name)
        self._spill = tempfile.TemporaryDirectory(prefix="magneton-")
        try:
            self._engine = _Engine(self._connect(sources, memory_limit))
        except BaseException:
            self._spill.cleanup()
            raise

    def _connect(self, sources: Mapping[str, Any], memory_limit: str | None) -> duckdb.DuckDBPyConnection:
        config: dict[str, str | bool | int | float | list[str]] = {
            "temp_directory": self._spill.name,
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
        if memory_limit is not None:
            config["memory_limit"] = memory_limit
        try:
            connection = duckdb.connect(config=config)
        except duckdb.Error as error:
            raise UsageError(_message(error), remedy="give one such as magneton sql --memory-limit 2GB") from error
        for name, source in sources.items():
            connection.register(name, source)
        connection.register(RUNS.name, _runs_table(self.runs))
        for view in VIEWS.values():
            connection.execute(f"CREATE VIEW {view.name} AS {view.sql}")
        # The engine opens no file, so no directory is allowed. The order matters: the last line makes the others final.
        connection.execute("SET python_enable_replacements = false")
        connection.execute("SET allowed_directories = []")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        return connection

    def query(self, sql: str, values: Mapping[str, str] | None = None) -> Result:
        """Run one SELECT.

        Args:
            sql: the query; ``$name`` stands for a value.
            values: values by name. Each is bound as text and takes the type of the column it is compared with.

        Returns:
            The result, computed while it is read. It must be read or dropped before the next query.

        Raises:
            UsageError: not one SELECT, wrong SQL, a function that is not admitted, or values that do not fit the query.
        """
        values = dict(values or {})
        wanted = self._admit(sql)
        missing, unknown = sorted(wanted - set(values)), sorted(set(values) - wanted)
        if missing:
            raise UsageError(f"the query uses ${missing[0]}, which has no value", remedy=f"give {missing[0]}=VALUE")
        if unknown:
            raise UsageError(f"a value is given for ${unknown[0]}, which the query does not use")
        try:
            return Result(self._engine.run(lambda: self._start(sql, values)), self._engine)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise _translated(error) from error

    def _start(self, sql: str, values: Mapping[str, str]) -> pa.RecordBatchReader:
        connection = self._engine.connection
        relation = connection.sql(sql, params=values) if values else connection.sql(sql)
        return relation.to_arrow_reader(BATCH_ROWS)

    def _admit(self, sql: str) -> set[str]:
        """Return the names of the values a query needs, or raise ``UsageError`` when it may not run."""
        try:
            sql.encode()
            statements = self._engine.connection.extract_statements(sql)
        except UnicodeEncodeError as error:
            raise UsageError("the query is not valid UTF-8") from error
        except duckdb.Error as error:
            raise UsageError(_message(error)) from error
        if not statements:
            raise UsageError("the query is empty", remedy=_ONLY_SELECT)
        if len(statements) > 1:
            raise UsageError(f"one statement is admitted, {len(statements)} were given", remedy=_ONLY_SELECT)
        statement = statements[0]
        if statement.type == duckdb.StatementType.MULTI:
            raise UsageError(
                "PIVOT without its values is more than one statement",
                remedy="list them: PIVOT ... ON column IN ('a', 'b') USING ...",
            )
        if statement.type != duckdb.StatementType.SELECT:
            raise UsageError(f"{statement.type.name} is not admitted", remedy=_ONLY_SELECT)
        [(tree,)] = self._engine.connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
        parsed = json.loads(tree)
        if parsed["error"]:
            raise UsageError(str(parsed["error_message"]), remedy=_ONLY_SELECT)
        for function in _table_functions(parsed):
            if function.lower() not in _TABLE_FUNCTIONS:
                raise UsageError(f"the function {function} is not admitted", remedy="a query sees the recordings only")
        return set(statement.named_parameters)

    def close(self) -> None:
        """Close the engine and remove its spill files."""
        self._engine.close()
        self._spill.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def unique_names(names: Sequence[str], pattern: str, *, first: int) -> list[str]:
    """Return ``names`` with repeated ones told apart.

    Args:
        names: names in order; the first of its kind stays as it is.
        pattern: how a name and a number make a new name, e.g. ``{} ({})``.
        first: number of the first new name.
    """
    taken, out = set(names), []
    seen: set[str] = set()
    for name in names:
        unique, number = name, first
        while unique in seen or (unique != name and unique in taken):
            unique, number = pattern.format(name, number), number + 1
        seen.add(unique)
        out.append(unique)
    return out


def _refuse_unwritable(directories: Sequence[Path]) -> None:
    """Refuse names that are not valid text, since Arrow cannot hold them."""
    for directory in directories:
        try:
            str(directory).encode()
        except UnicodeEncodeError as error:
            raise InvalidNameError("the name is not valid UTF-8", path=directory, remedy="rename it") from error


def _open(directory: Path) -> Recording:
    if not directory.exists():
        raise InputNotFoundError("no such recording", path=directory)
    if not directory.is_dir():
        raise InputFormatError(
            "is not a recording, which is a directory",
            path=directory,
            remedy="make one with `magneton normalize TRACE -o RUN`",
        )
    return Recording.open(directory)


def _source(table: Table, leading: Column, places: Sequence[tuple[str, Path]]) -> Any:
    """Return one table of all recordings (or diffs) as an Arrow dataset.

    Args:
        table: which one.
        leading: the column in front of it, that names the recording. A filter on it skips the files of the others.
        places: name and directory of the tables, by recording.
    """
    schema = pa.schema([leading.field(), *table.arrow_schema()])
    paths: list[str] = []
    names: list[ds.Expression] = []
    upgraded: list[pa.Table] = []
    for place, directory in places:
        path = directory / f"{table.name}.parquet"
        if not path.exists():
            continue
        if inspect_file(path, table.name):
            paths.append(str(path.absolute()))
            names.append(ds.field(leading.name) == ds.scalar(place))
        else:
            data = read_table(path, table.name)
            column = pa.repeat(pa.scalar(place), data.num_rows)
            upgraded.append(pa.Table.from_arrays([column, *data.columns], schema=schema))
    parts: list[Any] = []
    if paths:
        parts.append(
            ds.FileSystemDataset.from_paths(
                paths,
                schema=schema,
                format=ds.ParquetFileFormat(),
                filesystem=fs.LocalFileSystem(),
                partitions=names,
            )
        )
    if upgraded or not parts:
        parts.append(ds.dataset(pa.concat_tables([schema.empty_table(), *upgraded])))
    return parts[0] if len(parts) == 1 else ds.dataset(parts)


def _runs_table(runs: Sequence[OpenRun]) -> pa.Table:
    rows = []
    for opened in runs:
        manifest = opened.recording.manifest
        rows.append(
            {
                "run": opened.run,
                "run_id": manifest.run_id,
                "label": manifest.label,
                "directory": str(opened.recording.directory),
                "system": manifest.system.name,
                "model": manifest.workload.model,
                "batch": manifest.workload.batch,
                "input_tokens": manifest.workload.input_tokens,
                "output_tokens": manifest.workload.output_tokens,
                "steps": manifest.workload.steps,
                "created_unix_ns": manifest.created_unix_ns,
                "incomplete": manifest.incomplete,
            }
        )
    return pa.Table.from_pylist(rows, schema=RUNS.arrow_schema())


def _table_functions(node: Any) -> Iterator[str]:
    """Yield the name of every table function in a serialised query, wherever it stands."""
    if isinstance(node, dict):
        if node.get("type") == "TABLE_FUNCTION":
            yield str(node["function"]["function_name"])
        for value in node.values():
            yield from _table_functions(value)
    elif isinstance(node, list):
        for value in node:
            yield from _table_functions(value)


def _message(error: BaseException) -> str:
    """Return the engine's message on one line, without the picture of the query it draws."""
    return " ".join(str(error).split("\n\nLINE ")[0].split())


def _translated(error: BaseException) -> MagnetonError:
    if isinstance(error, duckdb.OutOfMemoryException):
        return LimitExceededError(f"the query needs too much memory: {_message(error)}")
    # The engine keeps nothing of Arrow's exception but its text.
    if isinstance(error, pa.ArrowException | OSError) or "reading the stream registered as" in str(error):
        return InputFormatError(f"a table cannot be read: {_message(error)}")
    if isinstance(error, duckdb.PermissionException):
        return UsageError(_message(error), remedy="a query sees the recordings only")
    return UsageError(_message(error))
