"""Writing the tables of a run: columns of the internal form to Parquet, on a separate thread."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from magneton.schemas.tables.columns import INTS
from magneton.schemas.tables.parquet import TableWriter
from magneton.schemas.tables.run import RUN_TABLES
from magneton.transforms.staging.stage import NONE, Pool, Stage

LOG = logging.getLogger(__name__)

_AHEAD = 2


class Texts:
    """A column of text given as codes into a list of texts."""

    def __init__(self, codes: NDArray[Any], texts: pa.Array) -> None:
        self.codes = codes
        self.texts = texts

    def arrow(self) -> pa.Array:
        """Return it as a dictionary array; codes below 0 are NULL."""
        codes = self.codes.astype(np.int32, copy=False)
        return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), self.texts)


Column: TypeAlias = Any  # NDArray of the inner form, pyarrow.Array or Texts


class RunWriter:
    """Writes all tables of a run below ``directory``, each in row groups as they come.

    Use as a context manager: on a normal exit every table exists, empty ones too.
    """

    def __init__(self, directory: Path, run_id: str) -> None:
        directory.mkdir(parents=True)
        self._run_id = run_id
        self._writers: dict[str, TableWriter] = {}
        try:
            for name, table in RUN_TABLES.items():
                self._writers[name] = TableWriter(directory / f"{name}.parquet", table)
        except BaseException:
            self._discard()
            raise
        self._queue: queue.Queue[tuple[str, pa.Table] | None] = queue.Queue(_AHEAD)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="magneton-parquet", daemon=True)
        self._thread.start()

    def write(self, table: str, rows: int, keys: Mapping[str, Any], columns: Mapping[str, Column]) -> None:
        """Append rows.

        Args:
            table: name of the table.
            rows: how many.
            keys: capture, rank, repeat, input_id: one value for all rows.
            columns: NumPy columns of the inner form (``NONE``, NaN and -1 of booleans are NULL), Arrow arrays or texts.
        """
        if not rows:
            return
        if self._error is not None:
            raise self._error
        schema = RUN_TABLES[table].arrow_schema()
        arrays = {"run_id": pa.repeat(self._run_id, rows)}
        for name, value in keys.items():
            # Not pa.scalar: each call looks for dateutil again where that is not installed, fourteen times the cost.
            arrays[name] = pa.repeat(pa.array([value], schema.field(name).type)[0], rows)
        for name, column in columns.items():
            arrays[name] = _arrow(column, schema.field(name).type)
        self._queue.put((table, pa.table(arrays)))

    def write_table(self, table: str, data: pa.Table) -> None:
        """Append rows that already carry their keys."""
        if self._error is not None:
            raise self._error
        self._queue.put((table, data))

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            if self._error is not None:
                continue
            try:
                self._writers[item[0]].write(item[1])
                del item
                # Arrow's allocator keeps what was freed until it is asked.
                pa.default_memory_pool().release_unused()
            except BaseException as error:  # raised by the caller's next call or on exit
                self._error = error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.put(None)
        self._thread.join()
        if self._error is not None or error is not None:
            self._discard()
            if self._error is not None and error is None:
                raise self._error
            return
        try:
            for name, writer in self._writers.items():
                writer.close()
                if writer.num_rows:
                    LOG.info("table %s: %d rows written", name, writer.num_rows)
        except BaseException:
            self._discard()
            raise

    def _discard(self) -> None:
        for writer in self._writers.values():
            writer.discard()


def _arrow(column: Column, type_: pa.DataType) -> pa.Array:
    if isinstance(column, Texts):
        return column.arrow()
    if isinstance(column, np.ndarray):
        if pa.types.is_boolean(type_):
            return pa.array(column > 0, mask=column < 0)
        if pa.types.is_floating(type_):
            return pa.array(column, mask=np.isnan(column))
        if column.dtype == np.int64:
            missing = column == NONE
            return pa.array(column, mask=missing) if missing.any() else pa.array(column)
    return pa.array(column)


def sizes(codes: NDArray[Any], pool: Pool) -> pa.Array:
    """Return lists of integers from the codes of their JSON texts."""
    unique, inverse = np.unique(codes, return_inverse=True)
    lists = []
    for code in unique.tolist():
        text = pool[code]
        lists.append(None if text is None else [int(v) for v in text[1:-1].split(",") if v])
    return pa.array(lists, INTS).take(pa.array(inverse))


def threads(stage: Stage, track: NDArray[Any]) -> dict[str, Column]:
    """Return the ``pid`` and ``tid`` columns of events on given tracks."""
    names = stage.tracks.names
    return {
        "pid": Texts(track, pa.array([p for p, _ in names], pa.string())),
        "tid": Texts(track, pa.array([t for _, t in names], pa.string())),
    }


def known(dur: NDArray[Any]) -> NDArray[Any]:
    """Return lengths with every unknown one, that of open slices too, as ``NONE``."""
    return np.where(dur < 0, NONE, dur)


def ids(column: NDArray[Any], stage: Stage) -> NDArray[Any]:
    """Return native ids without the stand-ins for those that do not fit."""
    wide = stage.is_wide(column)
    return np.where(wide, NONE, column) if wide.any() else column
