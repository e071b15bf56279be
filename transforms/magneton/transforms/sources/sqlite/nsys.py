"""NVIDIA Nsight Systems, exported with ``nsys export --type sqlite``.

Schema: the SQLite chapter of the Nsight Systems user guide. Times are nanoseconds since the start of the session, whose
Unix time is in ``TARGET_INFO_SESSION_START_TIME``. A ``globalTid`` holds the process in bits 24 to 47 and the thread in
the low 24. Which tables and columns there are depends on the version and on what was traced; whatever is missing is
unknown, not wrong. In graph mode (the default) only ``CUPTI_ACTIVITY_KIND_GRAPH_TRACE`` knows of a graph's work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from magneton.schemas.kinds import Activity, Clock, Flag
from magneton.transforms.sources.rows import Notes, Row, attributes, int64, json_text
from magneton.transforms.sources.sqlite.database import Cell, Database, Lookup, Record, events, integer

FORMAT = "nsys"

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH_TRACE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"
GRAPH_NODES = "CUDA_GRAPH_NODE_EVENTS"
GRAPHS = "CUDA_GRAPH_EVENTS"
EVENT_TABLES = (KERNEL, MEMCPY, MEMSET, GRAPH_TRACE, SYNC, RUNTIME, NVTX, GRAPH_NODES, GRAPHS)

_DRIVER_CLASS = 1
_NVTX_KINDS = {34: "instant", 59: "slice", 60: "async"}
_NVTX_DOMAIN = 75

# Process and correlation of a launch.
_Launch = tuple[int | None, int | None]

_DEVICE = ("deviceId", "contextId", "streamId", "correlationId", "globalPid", "graphNodeId", "graphId")
_TIMED_HOST = frozenset({"start", "end", "globalTid", "nameId"})
# Kinds of copies and of synchronisations as CUPTI numbers them; names as kineto writes them.
_COPY_KINDS = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP",
    11: "unified HtoD", 12: "unified DtoH", 13: "unified DtoD",
}  # fmt: skip
_SYNC_KINDS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
# CUPTI adds the version that introduced a call: `cudaLaunchKernel_v7000` is kineto's `cudaLaunchKernel`.
_API_VERSION = re.compile(r"_v\d+$")
_TABLE_VERSION = re.compile(r"_V\d{1,4}$")
# torch.autograd.profiler.emit_nvtx names a range after its operator: `aten::mm, seq = 3, op_id = 7, sizes = [[2, 3]]`.
# Under `no_grad` there is no `seq`, and custom operators have names of their own: `vllm::unified_attention, op_id = 2`.
_OPERATOR = re.compile(
    r"(?P<name>[^,]{1,200}?)(?:, seq = (?P<seq>\d{1,18}))?(?:, op_id = (?P<op>\d{1,18}))?"
    r"(?:, sizes = (?P<sizes>\[[\[\], 0-9]*\]))?(?:, input_op_ids = .*)?"
)


def recognises(database: Database) -> bool:
    """Tell whether a SQLite file is such an export."""
    plain = {_plain(t) for t in database.tables}
    return "StringIds" in database.tables and any(
        t in plain for t in (*EVENT_TABLES, "META_DATA_EXPORT", "TARGET_INFO_SESSION_START_TIME")
    )


def _plain(table: str) -> str:
    return _TABLE_VERSION.sub("", table)


def _table(database: Database, name: str) -> str:
    """Return the table of a kind of events; some exports put a version behind its name, of which the last counts."""
    found = [t for t in database.tables if _plain(t) == name]
    return max(found, key=lambda t: int(t.rpartition("V")[2]) if t != name else 0, default=name)


def decode(database: Database, notes: Notes) -> Iterator[Row]:
    """Yield the rows of an export and fill ``notes``.

    Raises:
        InputFormatError: the file is damaged.
    """
    notes.framework = "nsys"
    notes.clock = Clock.SESSION
    for row in database.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)):
        notes.base_unix_ns = integer(row["utcEpochNs"])
    notes.devices = _devices(database)
    notes.metadata = {
        "export": {str(r["name"]): r["value"] for r in database.rows("META_DATA_EXPORT", ("name", "value"))},
        "tables_not_read": sorted(
            t
            for t in database.tables
            if _plain(t) not in EVENT_TABLES and t.startswith(("CUPTI_", "CUDNN_", "CUBLAS_", "OSRT_"))
        ),
    }
    names = database.lookup("StringIds", "id", "value")
    traced: set[_Launch] = set()
    yield from _kernels(database, names, notes, traced)
    yield from _transfers(database, notes, traced)
    yield from _whole_graphs(database, notes, traced)
    yield from _runtime(database, names, notes)
    yield from _nvtx(database, names, notes)
    yield from _host_events(database, names, notes)


def process_and_thread(global_id: Cell) -> tuple[str | None, str | None]:
    """Return process and thread of a ``globalTid`` (or of a ``globalPid``, whose thread is 0)."""
    number = integer(global_id)
    if number is None:
        return None, None
    return str((number >> 24) & 0xFFFFFF), str(number & 0xFFFFFF)


def _devices(database: Database) -> list[dict[str, Any]]:
    gpus = {}
    for gpu in database.rows("TARGET_INFO_GPU", ("id", "name", "uuid", "busLocation", "totalMemory", "smCount")):
        gpus[integer(gpu["id"])] = {k: v for k, v in gpu.items() if v is not None and k != "id"}
    found = []
    for row in database.rows("TARGET_INFO_CUDA_DEVICE", ("gpuId", "cudaId", "pid")):
        properties = gpus.get(integer(row["gpuId"]), {})
        found.append({"id": integer(row["cudaId"]), "pid": integer(row["pid"]), **properties})
    return found or [{"id": number, **properties} for number, properties in gpus.items()]


def _device_columns(record: Record, start: int, length: int | None) -> dict[str, Any]:
    process, _ = process_and_thread(record["globalPid"])
    stream = integer(record["streamId"])
    return {
        "ts_ns": start,
        "dur_ns": length,
        "pid": process,
        "tid": None if stream is None else str(stream),
        "device": integer(record["deviceId"]),
        "stream": stream,
        "correlation": integer(record["correlationId"]),
    }


def _host_columns(record: Record, start: int, length: int | None) -> dict[str, Any]:
    process, thread = process_and_thread(record["globalTid"])
    return {"ts_ns": start, "dur_ns": length, "pid": process, "tid": thread}


def _triple(record: Record, columns: Sequence[str]) -> list[int] | None:
    found = [n for n in (integer(record[c]) for c in columns) if n is not None]
    return found if len(found) == len(columns) else None


def _sum(*parts: int | None) -> int | None:
    known = [p for p in parts if p is not None]
    return int64(sum(known)) if known else None


def _kernels(database: Database, names: Lookup, notes: Notes, traced: set[_Launch]) -> Iterator[Row]:
    grid, block = ("gridX", "gridY", "gridZ"), ("blockX", "blockY", "blockZ")
    spelt = ("demangledName", "shortName", "mangledName")
    sizes = ("registersPerThread", "staticSharedMemory", "dynamicSharedMemory")

    def build(record: Record, start: int, length: int | None) -> Row:
        node = integer(record["graphNodeId"])
        if node is not None:
            traced.add(_launch(record))
        name = next((found for found in map(names.get, (record[s] for s in spelt)) if found), None)
        return "kernels", {
            **_device_columns(record, start, length),
            "name": name or f"kernel {integer(record['demangledName'])}",
            "category": Activity.KERNEL,
            "graph_node_id": node,
            "grid": _triple(record, grid),
            "block": _triple(record, block),
            "registers_per_thread": integer(record["registersPerThread"]),
            "shared_memory_bytes": _sum(integer(record["staticSharedMemory"]), integer(record["dynamicSharedMemory"])),
            "attributes": attributes(
                short_name=names.get(record["shortName"]),
                context=integer(record["contextId"]),
                graph=integer(record["graphId"]),
            ),
        }

    return events(database, _table(database, KERNEL), (*_DEVICE, *grid, *block, *spelt, *sizes), notes, build)


def _transfers(database: Database, notes: Notes, traced: set[_Launch]) -> Iterator[Row]:
    def copy(record: Record, start: int, length: int | None) -> Row:
        kind = integer(record["copyKind"])
        return transfer(record, start, length, Activity.MEMCPY, f"Memcpy {_COPY_KINDS.get(kind or 0, 'unknown')}")

    def fill(record: Record, start: int, length: int | None) -> Row:
        return transfer(record, start, length, Activity.MEMSET, "Memset")

    def transfer(record: Record, start: int, length: int | None, category: str, name: str) -> Row:
        node = integer(record["graphNodeId"])
        if node is not None:
            traced.add(_launch(record))
        return "kernels", {
            **_device_columns(record, start, length),
            "name": name,
            "category": category,
            "graph_node_id": node,
            "bytes": integer(record["bytes"]),
            "attributes": attributes(
                context=integer(record["contextId"]),
                source_kind=integer(record.get("srcKind")),
                target_kind=integer(record.get("dstKind")),
            ),
        }

    yield from events(
        database, _table(database, MEMCPY), (*_DEVICE, "bytes", "copyKind", "srcKind", "dstKind"), notes, copy
    )
    yield from events(database, _table(database, MEMSET), (*_DEVICE, "bytes"), notes, fill)


def _whole_graphs(database: Database, notes: Notes, traced: set[_Launch]) -> Iterator[Row]:
    def build(record: Record, start: int, length: int | None) -> Row | None:
        if _launch(record) in traced:
            return None  # its nodes are in the file one by one: counting both would double the time
        notes.warn("graph_as_one_activity", "graphs were traced as a whole (nsys --cuda-graph-trace=graph)")
        graph, executable = integer(record["graphId"]), integer(record["graphExecId"])
        return "kernels", {
            **_device_columns(record, start, length),
            "name": f"CUDA graph {graph}",
            "category": Activity.KERNEL,
            "attributes": attributes(
                whole_graph=True, context=integer(record["contextId"]), graph=graph, graph_executable=executable
            ),
        }

    return events(database, _table(database, GRAPH_TRACE), (*_DEVICE, "graphExecId"), notes, build)


def _launch(record: Record) -> _Launch:
    return integer(record["globalPid"]), integer(record["correlationId"])


def _runtime(database: Database, names: Lookup, notes: Notes) -> Iterator[Row]:
    def build(record: Record, start: int, length: int | None) -> Row:
        driver = integer(record["eventClass"]) == _DRIVER_CLASS
        return "launches", {
            **_host_columns(record, start, length),
            "name": _API_VERSION.sub("", names.get(record["nameId"]) or f"call {integer(record['nameId'])}"),
            "category": "cuda_driver" if driver else "cuda_runtime",
            "correlation": integer(record["correlationId"]),
        }

    return events(
        database, _table(database, RUNTIME), ("eventClass", "globalTid", "correlationId", "nameId"), notes, build
    )


def _nvtx(database: Database, names: Lookup, notes: Notes) -> Iterator[Row]:
    payload = ("uint64Value", "int64Value", "doubleValue", "uint32Value", "int32Value", "floatValue", "jsonText")
    columns = ("eventType", "text", "textId", "globalTid", "domainId", "category", *payload)
    domains: dict[Cell, str] = {}

    def build(record: Record, start: int, length: int | None) -> Row | None:
        shape = _NVTX_KINDS.get(integer(record["eventType"]) or 0)
        name = record["text"] if isinstance(record["text"], str) else names.get(record["textId"])
        if shape is None:
            # Records that name domains, categories and threads; a domain is named before it is used.
            if integer(record["eventType"]) == _NVTX_DOMAIN and name:
                domains[record["domainId"]] = name
            return None
        row = {**_host_columns(record, start, length), "name": name or ""}
        operator = _OPERATOR.fullmatch(name) if name and shape == "slice" and length is not None else None
        if operator is not None and (operator["seq"] or operator["op"] or operator["name"].startswith("aten::")):
            return "ops", {
                **row,
                "name": operator["name"],
                "sequence_number": int64(operator["seq"]),
                "input_dims": operator["sizes"],
                "attributes": attributes(nvtx=name),
            }
        said = {k: record[k] for k in ("category", *payload) if record[k] is not None}
        if record["domainId"] in domains:
            said["domain"] = domains[record["domainId"]]
        missing_end = length is None and shape != "instant"
        if missing_end:
            notes.warn(f"unterminated_{shape}", f"{name!r} has no end")
        return "annotations", {
            **row,
            "dur_ns": 0 if shape == "instant" else length,
            "category": "nvtx",
            "kind": shape,
            "args": json_text(said) if said else None,
            "flags": Flag.UNTERMINATED_SLICE if missing_end else None,
        }

    return events(database, _table(database, NVTX), columns, notes, build, open_ended=True)


def _host_events(database: Database, names: Lookup, notes: Notes) -> Iterator[Row]:
    def synchronisation(record: Record, start: int, length: int | None) -> Row:
        kind = _SYNC_KINDS.get(integer(record["syncType"]) or 0, "Synchronization")
        return annotation(_device_columns(record, start, length), kind, "cuda_sync")

    def graph(record: Record, start: int, length: int | None) -> Row:
        name = names.get(record["nameId"]) or f"event {integer(record['nameId'])}"
        said = {k: v for k, v in record.items() if k not in _TIMED_HOST and v is not None}
        return annotation(_host_columns(record, start, length), name, "cuda_graph", json_text(said))

    def annotation(columns: dict[str, Any], name: str, category: str, args: str | None = None) -> Row:
        kept = {k: v for k, v in columns.items() if k in ("ts_ns", "dur_ns", "pid", "tid", "correlation")}
        return "annotations", {**kept, "name": name, "category": category, "kind": "slice", "args": args}

    yield from events(database, _table(database, SYNC), (*_DEVICE, "syncType"), notes, synchronisation)
    ids = ("graphNodeId", "originalGraphNodeId", "graphId", "originalGraphId", "graphExecId")
    for table in (GRAPH_NODES, GRAPHS):
        yield from events(database, _table(database, table), ("globalTid", "nameId", *ids), notes, graph)
