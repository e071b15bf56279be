"""The staging area between the sources (one per input format) and the later steps, which nest, link and write.

A source turns one input file into *staged events*: rows with the columns of the run tables (`schemas/tables/run.py`)
minus everything the shared steps derive (ids, parents, depths, modules, steps, links). It hands them over in columns
(`Stage.add`) or row by row (`Stage.add_row`), in any order, and fills in `Stage.info` what it learnt of the capture.

Kinds and their columns are listed in ``KINDS``. What is missing is unknown (NULL). The rules a source keeps:

* ``name`` is text; ``pid`` and ``tid`` are what the format calls the process and the thread (track); numbers and their
  text are the same process. ``ts_ns`` is required, ``dur_ns`` is NULL where unknown and never negative.
* ``frames``: ``python_parent_id`` refers to ``python_id`` within the same ``pid``. Without ids parents come from
  containment. Names follow kineto (``file.py(12): function``, ``nn.Module: Linear_3``).
* ``ops``: ``sequence_number`` and ``fwd_thread_id`` as in kineto (``fwd_thread_id`` not 0 marks a backward operator).
  ``external_id`` must name one operator within its process.
* ``launches``/``kernels``: joined by ``correlation`` within one process; a kernel whose launch has no operator falls
  back on ``external_id``. NULL means none; a source leaves out ids that the format uses for "none" (kineto: below 1).
  Ids that do not fit 63 bits go through ``Stage.wide_id``. ``expects_device_activity`` and ``kernel_class`` are derived
  from names where NULL.
* ``annotations``: ``kind`` is ``slice``, ``instant`` or ``async`` (see the run table). Steps are recognised by name, or
  by ``step``, the number of the step where the format itself says that this is one.
* ``uses``: tensors of operators, which are named by ``record_function_id`` (its operator is staged too).
* ``flows``: one row per end of an arrow: ``phase`` ``s``, ``t`` or ``f``; ends with the same ``category`` and ``flow``
  (a number; other ids go through ``Stage.wide_id``) are joined in time order.
* ``edges``: begins and ends that are still apart (``ph: B E b n e S T p F``). They are paired when the file is
  complete and become ops, frames, launches, kernels or annotations by their category.

Numbers of events: every element of the input's event list is counted once with ``Stage.count`` (or through
``Stage.quarantine``), so that ``n_raw = n_kept + n_merged + n_ignored + n_quarantined``. Flow and edge rows are counted
by the shared steps, which alone know whether they were kept or merged.

Inside, text is interned (``Pool``): a column of text is a column of numbers, NULL is ``NONE`` (integers), NaN (floats)
or -1 (text codes, booleans); a slice that never ended has the length ``OPEN``. Rows wait in DuckDB, which spills to disk, so memory does not grow with the file.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from magneton.transforms.staging.tracks import Tracks

NONE = -(2**63)
NO_TEXT = -1
# Length of a slice that never ended. The length is unknown, and the slice encloses everything that follows.
OPEN = -1
FLUSH_ROWS = 32_768
BATCH_ROWS = 32_768
MAX_RAW = 2_000
# Kinds whose rows are not events one by one: the shared steps count them, or one event made several.
_COUNTED_ELSEWHERE = frozenset({"flows", "edges", "counters"})

_EVENT = {"name": "text", "track": "track", "ts_ns": "int", "dur_ns": "int"}

KINDS: dict[str, dict[str, str]] = {
    "ops": _EVENT
    | {
        "external_id": "int",
        "record_function_id": "int",
        "sequence_number": "int",
        "fwd_thread_id": "int",
        "input_dims": "text",
        "input_types": "text",
        "input_strides": "text",
        "concrete_inputs": "text",
        "collective": "text",
        "attributes": "text",
        "flags": "text",
    },
    "launches": _EVENT
    | {
        "category": "text",
        "correlation": "int",
        "external_id": "int",
        "kernel_name": "text",
        "expects_device_activity": "bool",
    },
    "kernels": _EVENT
    | {
        "category": "text",
        "kernel_class": "text",
        "device": "int",
        "stream": "int",
        "correlation": "int",
        "external_id": "int",
        "graph_node_id": "int",
        "bytes": "int",
        "grid": "ints",
        "block": "ints",
        "registers_per_thread": "int",
        "shared_memory_bytes": "int",
        "occupancy_percent": "float",
        "collective": "text",
        "attributes": "text",
    },
    "frames": _EVENT | {"python_id": "int", "python_parent_id": "int"},
    "annotations": _EVENT
    | {
        "category": "text",
        "kind": "text",
        "external_id": "int",
        "correlation": "int",
        "args": "text",
        "flags": "text",
        "step": "int",
    },
    "counters": _EVENT | {"series": "text", "value": "float", "unit": "text", "device": "int"},
    "flows": _EVENT | {"category": "text", "phase": "text", "flow": "int"},
    "edges": _EVENT | {"category": "text", "phase": "text", "flow": "int", "args": "text", "position": "int"},
    "uses": {
        "record_function_id": "int",
        "direction": "text",
        "position": "int",
        "element": "int",
        "tensor_id": "int",
        "storage_id": "int",
        "storage_offset": "int",
        "numel": "int",
        "itemsize": "int",
        "device": "text",
        "dtype": "text",
        "dims": "ints",
        "strides": "ints",
    },
    "quarantine": {"reason": "text", "position": "int", "raw": "string"},
}
_NUMPY = {"int": np.int64, "text": np.int32, "track": np.int32, "ints": np.int32, "float": np.float64, "bool": np.int8}
_SQL = {
    "int": "BIGINT",
    "text": "INTEGER",
    "track": "INTEGER",
    "ints": "INTEGER",
    "float": "DOUBLE",
    "bool": "TINYINT",
    "string": "VARCHAR",
}
_MISSING = {"int": NONE, "text": NO_TEXT, "track": 0, "ints": NO_TEXT, "float": np.nan, "bool": -1, "string": None}

Values = Sequence[Any] | NDArray[Any]


class _Codes(dict[Any, int]):
    def __missing__(self, key: Any) -> int:
        code = self[key] = len(self) - 1
        return code


class Pool:
    """Text kept once. ``codes[text]`` is its number (None is -1); numbers follow first appearance, not content."""

    def __init__(self) -> None:
        self.codes = _Codes({None: NO_TEXT})
        self._list: list[str] = []

    def encode(self, values: Iterable[str | None]) -> NDArray[np.int32]:
        """Return the numbers of texts, adding new ones."""
        return np.fromiter(map(self.codes.__getitem__, values), np.int32)

    def texts(self) -> list[str]:
        """Return all texts; the position is the number."""
        if len(self._list) != len(self.codes) - 1:
            self._list = list(self.codes)[1:]
        return self._list

    def __getitem__(self, code: int) -> str | None:
        return None if code < 0 else self.texts()[code]

    def __len__(self) -> int:
        return len(self.codes) - 1

    def arrow(self) -> pa.Array:
        """Return all texts as an Arrow array, for dictionaries."""
        return pa.array(self.texts(), pa.string())

    def ranks(self, codes: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return for each number the rank of its text among those given: an order that depends on content only."""
        unique, inverse = np.unique(codes, return_inverse=True)
        order = sorted(range(len(unique)), key=lambda i: self[int(unique[i])] or "")
        rank = np.empty(len(unique), np.int64)
        rank[order] = np.arange(len(unique))
        return rank[inverse]


@dataclass
class SourceInfo:
    """What a source learnt of a capture beyond its events.

    Attributes:
        source_format: name of the format, e.g. ``kineto``.
        framework: system that ran, as far as the input says.
        base_unix_ns: Unix time of ``ts_ns = 0``; None when the input has no absolute time.
        clock: ``realtime``, ``monotonic``, ``boottime``, ``session`` or None.
        rank: rank of the process; None where the input names none.
        world_size: number of ranks of the job.
        devices: device properties as written by the system.
        versions: versions of the system and of its libraries.
        metadata: other top-level fields (no host names, user names or paths).
        incomplete: the input was cut off.
        serial_streams: an activity of a stream is known to be over when the next one begins.
    """

    source_format: str
    framework: str | None = None
    base_unix_ns: int | None = None
    clock: str | None = None
    rank: int | None = None
    world_size: int | None = None
    devices: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    incomplete: bool = False
    serial_streams: bool = True


class Stage:
    """Staged events of one input file, and what is known of the capture they belong to.

    Args:
        connection: DuckDB connection shared by the files of a run (bounded memory, spills to its temporary directory).
        index: number of the file in the run; keeps the tables of several files apart.
        pool: texts, shared by the files of a run.
        source_format: name of the format.
        file: name of the input file, for messages.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, index: int, pool: Pool, source_format: str, file: str
    ) -> None:
        self.info = SourceInfo(source_format)
        self.file = file
        self.pool = pool
        self.tracks = Tracks()
        self.n_kept = 0
        self.n_merged = 0
        self.n_ignored = 0
        self.n_quarantined = 0
        self.quarantined: dict[str, int] = {}
        self.warnings: dict[str, tuple[int, str]] = {}
        self.connection = connection
        self._index = index
        self._pending: dict[str, list[dict[str, NDArray[Any]]]] = {}
        self._pending_rows: dict[str, int] = {}
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._created: set[str] = set()
        self._wide: dict[int | str, int] = {}
        self._last: dict[str, int | None] = {}  # latest time of each kind; None: it did not come in order
        self.n_rows: dict[str, int] = dict.fromkeys(KINDS, 0)

    # --- what sources call -------------------------------------------------------------------------------------

    def add(self, kind: str, columns: Mapping[str, Values]) -> int:
        """Stage rows given in columns; return how many.

        Args:
            kind: one of ``KINDS``.
            columns: lists (None is NULL) or NumPy arrays in the inner form (int32 codes for text, ``NONE`` ...).
                Either ``track`` (numbers from ``tracks``) or ``pid`` and ``tid``.
        """
        types = KINDS[kind]
        columns = dict(columns)
        if "track" in types and "track" not in columns:
            pids, tids = columns.pop("pid"), columns.pop("tid")
            columns["track"] = self.tracks.encode(pids, tids)
        unknown = set(columns) - set(types)
        if unknown:
            raise KeyError(f"{kind}: unknown columns {sorted(unknown)}")
        rows = len(next(iter(columns.values()))) if columns else 0
        if rows:
            piece = {name: self._array(types[name], values) for name, values in columns.items()}
            self._pending.setdefault(kind, []).append(piece)
            self._pending_rows[kind] = self._pending_rows.get(kind, 0) + rows
            self.n_rows[kind] += rows
            if self._pending_rows[kind] >= FLUSH_ROWS:
                self._flush(kind)
        return rows

    def add_row(self, kind: str, /, **columns: Any) -> None:
        """Stage one row (``pid`` and ``tid`` for the track). Convenient where speed does not matter."""
        rows = self._rows.setdefault(kind, [])
        rows.append(columns)
        if len(rows) >= 1000:
            self._flush_rows(kind)

    def count(self, *, kept: int = 0, merged: int = 0, ignored: int = 0) -> None:
        """Count elements of the input's event list."""
        self.n_kept += kept
        self.n_merged += merged
        self.n_ignored += ignored

    def quarantine(self, reason: str, position: int | None, raw: str) -> None:
        """Set an event aside (it is counted here)."""
        self.n_quarantined += 1
        self.quarantined[reason] = self.quarantined.get(reason, 0) + 1
        self.add_row("quarantine", reason=reason, position=position, raw=raw[:MAX_RAW])

    def warn(self, code: str, message: str, count: int = 1) -> None:
        """Note something about the capture; repeated codes add up and keep the first message."""
        seen, first = self.warnings.get(code, (0, message))
        self.warnings[code] = (seen + count, first)

    def wide_id(self, value: int | str) -> int:
        """Return a stand-in for an id that does not fit: joins like the original, is written as NULL."""
        return self._wide.setdefault(value, NONE + 1 + len(self._wide))

    # --- what the shared steps call -----------------------------------------------------------------------------

    @property
    def n_raw(self) -> int:
        """Elements of the input's event list seen so far."""
        return self.n_kept + self.n_merged + self.n_ignored + self.n_quarantined

    def is_wide(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which ids are stand-ins."""
        return (ids > NONE) & (ids <= NONE + len(self._wide))

    def flush(self) -> None:
        """Move everything that waits into DuckDB."""
        for kind in list(self._rows):
            self._flush_rows(kind)
        for kind in list(self._pending):
            self._flush(kind)

    def batches(
        self, kind: str, *, order: str | None = "ts_ns", columns: Sequence[str] | None = None
    ) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the rows of a kind as columns in the inner form, ordered by one integer column."""
        names = list(KINDS[kind] if columns is None else columns)
        if kind not in self._created:
            return
        # Systems write most kinds in the order of time. Sorting them again would copy every row.
        order = None if order == "ts_ns" and self._last.get(kind) is not None else order
        query = f"SELECT {', '.join(names)} FROM {self.table(kind)}" + (f" ORDER BY {order}" if order else "")
        reader: Any = self.connection.cursor().sql(query).to_arrow_reader(BATCH_ROWS)
        for whole in reader:
            for start in range(0, whole.num_rows, BATCH_ROWS):
                batch = whole.slice(start, BATCH_ROWS)
                yield {n: _column(batch.column(i), KINDS[kind][n]) for i, n in enumerate(names)}

    def column(self, kind: str, name: str) -> NDArray[Any]:
        """Return one whole column, in no particular order."""
        pieces = [b[name] for b in self.batches(kind, order=None, columns=[name])]
        return np.concatenate(pieces) if pieces else np.empty(0, _NUMPY[KINDS[kind][name]])

    def span(self, kinds: Iterable[str]) -> tuple[int | None, int | None]:
        """Return the earliest start and the latest known end of the events of some kinds."""
        self.flush()
        first: int | None = None
        last: int | None = None
        for kind in kinds:
            if kind not in self._created:
                continue
            query = (
                f"SELECT min(ts_ns), max(CASE WHEN dur_ns < 0 THEN ts_ns ELSE ts_ns + dur_ns END)"
                f" FROM {self.table(kind)}"
            )
            low, high = self.connection.execute(query).fetchall()[0]
            if low is not None:
                first = low if first is None else min(first, low)
                last = high if last is None else max(last, high)
        return first, last

    def assign(self, kind: str, column: str, values: NDArray[np.int64], *, where: Mapping[str, NDArray[Any]]) -> None:
        """Set an integer column of staged rows: ``values[i]`` where every column of ``where`` equals its ``[i]``."""
        self.flush()
        if kind not in self._created:
            return
        test = " AND ".join(f"{self.table(kind)}.{name} = given.{name}" for name in where)
        self.connection.register("given", pa.table({"new_value": values, **where}))
        self.connection.execute(f"UPDATE {self.table(kind)} SET {column} = given.new_value FROM given WHERE {test}")
        self.connection.unregister("given")

    def replace(self, kind: str, rows: NDArray[np.int64], columns: Mapping[str, NDArray[Any]]) -> None:
        """Set columns of staged rows that are named by their ``rowid``."""
        self.connection.register("given", pa.table({"given_row": rows, **columns}))
        changes = ", ".join(f"{name} = given.{name}" for name in columns)
        table = self.table(kind)
        self.connection.execute(f"UPDATE {table} SET {changes} FROM given WHERE {table}.rowid = given.given_row")
        self.connection.unregister("given")

    def drop_repeated_flows(self, categories: Sequence[int]) -> int:
        """Drop flow ends of some categories whose id is the correlation of a row on their own track; return how many."""
        self.flush()
        flows = self.table("flows")
        kinds = [k for k in ("launches", "kernels", "annotations") if k in self._created]
        if not categories or not kinds:
            return 0
        known = " UNION ".join(f"SELECT correlation, track FROM {self.table(k)}" for k in kinds)
        query = f"DELETE FROM {flows} WHERE list_contains(?, category) AND (flow, track) IN ({known})"
        dropped = int(self.connection.execute(query, [list(categories)]).fetchall()[0][0])
        self.n_rows["flows"] -= dropped
        return dropped

    def drop(self, kind: str) -> None:
        """Forget the rows of a kind."""
        if kind in self._created:
            self.connection.execute(f"DROP TABLE {self.table(kind)}")
            self._created.discard(kind)

    def part(self, index: int, track: NDArray[np.int32]) -> Stage:
        """Move the rows of some tracks to a stage of their own and return it.

        Args:
            index: number of the new stage in the run.
            track: the tracks. Rows without a track, and what was set aside, stay here.
        """
        self.flush()
        new = Stage(self.connection, index, self.pool, self.info.source_format, self.file)
        new.info = dataclasses.replace(self.info)
        new.tracks, new._wide = self.tracks, self._wide
        self.connection.register("given", pa.table({"track": track}))
        for kind in sorted(self._created):
            if "track" not in KINDS[kind]:
                continue
            ours, theirs = self.table(kind), new.table(kind)
            chosen = "track IN (SELECT track FROM given)"
            self.connection.execute(f"CREATE TABLE {theirs} AS SELECT * FROM {ours} WHERE {chosen}")
            moved = int(self.connection.execute(f"DELETE FROM {ours} WHERE {chosen}").fetchall()[0][0])
            new._created.add(kind)
            new.n_rows[kind] += moved
            self.n_rows[kind] -= moved
            if kind not in _COUNTED_ELSEWHERE:
                new.n_kept += moved
                self.n_kept -= moved
        self.connection.unregister("given")
        return new

    # --- inside ---------------------------------------------------------------------------------------------------

    def table(self, kind: str) -> str:
        """Return the name of the table that the rows of a kind wait in."""
        return f"{kind}_{self._index}"

    def _array(self, type_: str, values: Values) -> NDArray[Any]:
        if isinstance(values, np.ndarray):
            return values
        if type_ == "text":
            return self.pool.encode(values)
        if type_ == "ints":
            return self.pool.encode(None if v is None else json.dumps(list(v), separators=(",", ":")) for v in values)
        if type_ == "int":
            return np.array([NONE if v is None else v for v in values], np.int64)
        if type_ == "float":
            return np.array([np.nan if v is None else v for v in values], np.float64)
        if type_ == "bool":
            return np.array([-1 if v is None else v for v in values], np.int8)
        return np.array(values, object)

    def _flush_rows(self, kind: str) -> None:
        rows = self._rows.pop(kind, [])
        if rows:
            names = dict.fromkeys(name for row in rows for name in row)
            self.add(kind, {name: [row.get(name) for row in rows] for name in names})

    def _flush(self, kind: str) -> None:
        pieces = self._pending.pop(kind, [])
        self._pending_rows[kind] = 0
        if not pieces:
            return
        types = KINDS[kind]
        data = {}
        for name, type_ in types.items():
            parts = [p[name] if name in p else _filler(type_, len(next(iter(p.values())))) for p in pieces]
            whole = np.concatenate(parts) if len(parts) > 1 else parts[0]
            data[name] = pa.array(whole, pa.string()) if type_ == "string" else pa.array(whole)
        if kind not in self._created:
            columns = ", ".join(f"{name} {_SQL[type_]}" for name, type_ in types.items())
            self.connection.execute(f"CREATE TABLE {self.table(kind)} ({columns})")
            self._created.add(kind)
        if "ts_ns" in types:
            self._last[kind] = _follow(self._last.get(kind, -(2**63)), data["ts_ns"].to_numpy())
        self.connection.register("staged_piece", pa.table(data))
        self.connection.execute(f"INSERT INTO {self.table(kind)} SELECT * FROM staged_piece")
        self.connection.unregister("staged_piece")


def _follow(last: int | None, ts: NDArray[np.int64]) -> int | None:
    """Return the last time where times go on in order after ``last``; None where they do not."""
    if last is None or ts[0] < last or (ts[1:] < ts[:-1]).any():
        return None
    return int(ts[-1])


def _filler(type_: str, rows: int) -> NDArray[Any]:
    if type_ == "string":
        return np.full(rows, None, object)
    return np.full(rows, _MISSING[type_], _NUMPY[type_])


def _column(array: pa.Array, type_: str) -> NDArray[Any]:
    if type_ == "string":
        return np.array(array.to_pylist(), object)
    values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values
