"""AMD rocprofv3 with ``--output-format rocpd``: the ROCm profiling database.

Schema: ``rocpd_tables.sql`` of rocprofiler-sdk. Every process writes its own set of tables, named ``rocpd_<what>_<uuid>``;
a merged file holds several sets. The plain-named views of the file are not used (a view runs what the file says); the
joins are made here. Times are nanoseconds of CLOCK_BOOTTIME, rocprofiler's default; the file has no Unix time. Columns
differ between versions (``graph_node_id`` came with 3.0.2, ``track_id`` layouts with 4), so each is optional.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from magneton.schemas.kinds import Activity, Clock
from magneton.transforms.sources.rows import Notes, Row, attributes, json_text
from magneton.transforms.sources.sqlite.database import Cell, Database, Record, events, integer

FORMAT = "rocpd"

_TABLE = re.compile(r"rocpd_(?P<what>[a-z_]+?)(?P<set>_?[0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12})?")
_WHATS = frozenset({
    "metadata", "string", "info_process", "info_thread", "info_agent", "info_queue", "info_stream",
    "info_kernel_symbol", "track", "event", "region", "kernel_dispatch", "memory_copy", "memory_allocate", "sample",
})  # fmt: skip
_COMPUTE_API = ("HIP_", "HSA_")


def recognises(database: Database) -> bool:
    """Tell whether a SQLite file is such a database."""
    return any(_parts(name)[0] == "kernel_dispatch" for name in database.tables)


def decode(database: Database, notes: Notes) -> Iterator[Row]:
    """Yield the rows of a database and fill ``notes``.

    Raises:
        InputFormatError: the file is damaged.
    """
    notes.framework = "rocprofv3"
    notes.clock = Clock.BOOTTIME
    sets: dict[str, dict[str, str]] = {}
    for name in database.tables:
        what, uuid = _parts(name)
        if what is not None:
            sets.setdefault(uuid, {})[what] = name
    for tables in sets.values():
        yield from _Process(database, tables, notes).rows()


def _parts(name: str) -> tuple[str | None, str]:
    found = _TABLE.fullmatch(name)
    if found is None or found["what"] not in _WHATS:
        return None, ""
    return found["what"], found["set"] or ""


class _Process:
    """One set of tables."""

    def __init__(self, database: Database, tables: dict[str, str], notes: Notes) -> None:
        self._database = database
        self._tables = tables
        self._notes = notes
        self._strings = database.lookup(tables.get("string", ""), "id", "string")
        self._kernel_names = database.lookup(tables.get("info_kernel_symbol", ""), "id", "display_name")
        self._mangled = database.lookup(tables.get("info_kernel_symbol", ""), "id", "kernel_name")
        self._correlations = database.lookup(tables.get("event", ""), "id", "correlation_id")
        self._categories = database.lookup(tables.get("event", ""), "id", "category_id")
        self._processes = self._read("info_process", "pid")
        self._threads = self._read("info_thread", "tid")
        self._tracks = self._read("track", "tid")
        self._agents: dict[int, Record] = {}
        for record in database.rows(tables.get("info_agent", ""), ("id", "type", "type_index", "name", "product_name")):
            key = integer(record["id"])
            if key is not None:
                self._agents[key] = record

    def rows(self) -> Iterator[Row]:
        """Yield the rows of the set."""
        tag = ("tag", "value")
        for record in self._database.rows(self._tables.get("metadata", ""), tag):
            self._notes.metadata.setdefault(str(record["tag"]), record["value"])
        for agent in self._agents.values():
            if agent["type"] == "GPU":
                name = agent["product_name"] or agent["name"]
                self._notes.devices.append({"id": integer(agent["type_index"]), "name": name, "gfx": agent["name"]})
        yield from self._kernels()
        yield from self._copies()
        yield from self._regions()

    def _read(self, what: str, value: str) -> dict[int, int]:
        found = {}
        for record in self._database.rows(self._tables.get(what, ""), ("id", value)):
            key, number = integer(record["id"]), integer(record[value])
            if key is not None and number is not None:
                found[key] = number
        return found

    def _columns(self, record: Record, start: int, length: int | None) -> dict[str, Any]:
        thread = integer(record["tid"])
        if thread is None:
            thread = self._tracks.get(integer(record["track_id"]) or 0)
        process, thread = self._processes.get(integer(record["pid"]) or 0), self._threads.get(thread or 0)
        return {
            "ts_ns": start,
            "dur_ns": length,
            "pid": None if process is None else str(process),
            "tid": None if thread is None else str(thread),
            "correlation": self._correlations.number(record["event_id"]),
        }

    def _device(self, record: Record, agent: Cell) -> dict[str, Any]:
        found = self._agents.get(integer(agent) or 0)
        return {
            "device": None if found is None or found["type"] != "GPU" else integer(found["type_index"]),
            # A stream of the program where there is one; the hardware queue it was put on otherwise.
            "stream": integer(record["stream_id"]) if record["stream_id"] is not None else integer(record["queue_id"]),
            "graph_node_id": integer(record["graph_node_id"]),
        }

    def _kernels(self) -> Iterator[Row]:
        grid = ("grid_size_x", "grid_size_y", "grid_size_z")
        block = ("workgroup_size_x", "workgroup_size_y", "workgroup_size_z")

        def build(record: Record, start: int, length: int | None) -> Row:
            mangled = self._mangled.get(record["kernel_id"])
            items = [integer(record[c]) for c in grid]
            group = [integer(record[c]) for c in block]
            return "kernels", {
                **self._columns(record, start, length),
                **self._device(record, record["agent_id"]),
                "name": self._kernel_names.get(record["kernel_id"])
                or mangled
                or f"kernel {integer(record['kernel_id'])}",
                "category": Activity.KERNEL,
                "grid": _blocks(items, group),
                "block": _known(group),
                "shared_memory_bytes": integer(record["group_segment_size"]),
                "attributes": attributes(
                    kernel_name=mangled,
                    queue=integer(record["queue_id"]),
                    scratch_bytes=integer(record["private_segment_size"]),
                    region=self._strings.get(record["region_name_id"]),
                    graph_executable=integer(record["graph_exec_id"]),
                ),
            }

        columns = (*_COMMON, "agent_id", "kernel_id", *grid, *block, "group_segment_size")
        table = self._tables.get("kernel_dispatch", "")
        return events(self._database, table, (*columns, "private_segment_size"), self._notes, build)

    def _copies(self) -> Iterator[Row]:
        def build(record: Record, start: int, length: int | None) -> Row:
            source = self._agents.get(integer(record["src_agent_id"]) or 0)
            target = self._agents.get(integer(record["dst_agent_id"]) or 0)
            # The device that did it: the target where that is one, else the source.
            on = record["dst_agent_id"] if target is not None and target["type"] == "GPU" else record["src_agent_id"]
            return "kernels", {
                **self._columns(record, start, length),
                **self._device(record, on),
                "name": self._strings.get(record["name_id"]) or "Memcpy",
                "category": Activity.MEMCPY,
                "bytes": integer(record["size"]),
                "attributes": attributes(
                    source=None if source is None else source["name"],
                    target=None if target is None else target["name"],
                    region=self._strings.get(record["region_name_id"]),
                ),
            }

        columns = (*_COMMON, "name_id", "dst_agent_id", "src_agent_id", "size")
        return events(self._database, self._tables.get("memory_copy", ""), columns, self._notes, build)

    def _regions(self) -> Iterator[Row]:
        def build(record: Record, start: int, length: int | None) -> Row:
            category = self._strings.get(self._categories.number(record["event_id"])) or ""
            name = self._strings.get(record["name_id"]) or f"region {integer(record['name_id'])}"
            row = {**self._columns(record, start, length), "name": name}
            if category.startswith(_COMPUTE_API):
                return "launches", {**row, "category": "cuda_runtime" if category.startswith("HIP") else "cuda_driver"}
            extra = record["extdata"]
            said = extra if isinstance(extra, str) and extra not in ("", "{}") else None
            args = None if said is None else json_text({"extdata": said})
            return "annotations", {**row, "category": category or None, "kind": "slice", "args": args}

        columns = ("pid", "tid", "track_id", "name_id", "event_id", "extdata")
        return events(self._database, self._tables.get("region", ""), columns, self._notes, build)


_COMMON = (
    "pid", "tid", "track_id", "event_id", "stream_id", "queue_id", "region_name_id", "graph_exec_id", "graph_node_id",
)  # fmt: skip


def _known(numbers: list[int | None]) -> list[int] | None:
    known = [n for n in numbers if n is not None]
    return known if known and len(known) == len(numbers) else None


def _blocks(items: list[int | None], group: list[int | None]) -> list[int] | None:
    """Return the grid in blocks, as CUDA counts it: ROCm counts work items."""
    if _known(items) is None or _known(group) is None:
        return None
    pairs = [(i or 0, g or 0) for i, g in zip(items, group, strict=True)]
    return [-(-i // g) for i, g in pairs] if all(g > 0 for _, g in pairs) else None
