"""AMD rocprofv3 with ``--output-format json``: one document, decoded as a whole.

``rocprofiler-sdk-tool`` is a list with one entry per process. ``buffer_records`` holds dispatches, copies and calls; names
of calls are in ``strings`` by kind and operation, those of kernels in ``kernel_symbols``. Times are nanoseconds of
CLOCK_BOOTTIME. The same recording as rocpd is smaller and is read in bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from magneton.schemas.errors import InputFormatError, LimitExceededError
from magneton.schemas.kinds import Activity, Clock
from magneton.transforms.reading.limits import Limits
from magneton.transforms.sources import Input
from magneton.transforms.sources.local_file import mapped
from magneton.transforms.sources.rows import Notes, Row, UnusableEvent, attributes, hand_over, int64
from magneton.transforms.staging.stage import Stage

FORMAT = "rocprof_json"

_KEY = b'"rocprofiler-sdk-tool"'
_MAX_BYTES = 512 << 20
_GPU = 2
_API = {"hip_api": "cuda_runtime", "hsa_api": "cuda_driver", "rccl_api": None, "marker_api": None}
_READ = frozenset({"kernel_dispatch", "memory_copy", *_API})


class _Handle(msgspec.Struct, gc=False):
    handle: int | None = None


class _Correlation(msgspec.Struct, gc=False):
    internal: int | None = None


class _Size(msgspec.Struct, gc=False):
    x: int | None = None
    y: int | None = None
    z: int | None = None


class _Dispatch(msgspec.Struct, gc=False):
    agent_id: _Handle = msgspec.field(default_factory=_Handle)
    queue_id: _Handle = msgspec.field(default_factory=_Handle)
    kernel_id: int | None = None
    private_segment_size: int | None = None
    group_segment_size: int | None = None
    workgroup_size: _Size = msgspec.field(default_factory=_Size)
    grid_size: _Size = msgspec.field(default_factory=_Size)


class _Record(msgspec.Struct, gc=False):
    kind: int | None = None
    operation: int | None = None
    thread_id: int | None = None
    correlation_id: _Correlation = msgspec.field(default_factory=_Correlation)
    start_timestamp: int | None = None
    end_timestamp: int | None = None
    dispatch_info: _Dispatch | None = None
    stream_id: _Handle = msgspec.field(default_factory=_Handle)
    src_agent_id: _Handle = msgspec.field(default_factory=_Handle)
    dst_agent_id: _Handle = msgspec.field(default_factory=_Handle)
    bytes: int | None = None


class _Kind(msgspec.Struct):
    kind: str = ""
    operations: list[str] = []


class _Text(msgspec.Struct):
    key: int | None = None
    value: str = ""


class _Strings(msgspec.Struct):
    buffer_records: list[_Kind] = []
    marker_api: list[_Text] = []


class _Agent(msgspec.Struct):
    id: _Handle = msgspec.field(default_factory=_Handle)
    type: int | None = None
    name: str | None = None
    product_name: str | None = None
    logical_node_type_id: int | None = None


class _Symbol(msgspec.Struct):
    kernel_id: int | None = None
    kernel_name: str | None = None
    formatted_kernel_name: str | None = None


class _Metadata(msgspec.Struct):
    pid: int | None = None


class _Process(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    agents: list[_Agent] = []
    strings: _Strings = msgspec.field(default_factory=_Strings)
    kernel_symbols: list[_Symbol] = []
    buffer_records: dict[str, msgspec.Raw] = {}


class _Document(msgspec.Struct):
    processes: list[_Process] | _Process = msgspec.field(default_factory=list, name="rocprofiler-sdk-tool")


_decode_records = msgspec.json.Decoder(list[_Record]).decode


def sniff(head: bytes, path: Path) -> bool:
    """Tell whether a file's first bytes are those of such a document."""
    return head.lstrip()[:1] == b"{" and _KEY in head[:4096]


def read(source: Input, stage: Stage, limits: Limits) -> None:
    """Stage the records of a document.

    Raises:
        InputFormatError: it is not what rocprofv3 writes.
        LimitExceededError: it is too large to be decoded as a whole.
    """
    notes = Notes(max_dur_ns=limits.max_event_dur_ns)
    with mapped(source) as text:
        if len(text) > _MAX_BYTES:
            raise LimitExceededError(
                f"is a rocprofv3 document of more than {_MAX_BYTES >> 20} MiB",
                path=source.path,
                remedy="record with `rocprofv3 --output-format rocpd`, which is read piece by piece",
            )
        content = text[:]
    try:
        document = msgspec.json.decode(content, type=_Document)
        hand_over(_rows(document, notes), notes, stage)
    except msgspec.MsgspecError as error:
        raise InputFormatError(f"is not a rocprofv3 document as we know it: {error}", path=source.path) from error


def _rows(document: _Document, notes: Notes) -> Iterator[Row]:
    notes.framework = "rocprofv3"
    notes.clock = Clock.BOOTTIME
    processes = document.processes if isinstance(document.processes, list) else [document.processes]
    for number, process in enumerate(processes):
        pid = number if process.metadata.pid is None else process.metadata.pid
        yield from _Reader(process, str(pid), notes).rows()


class _Reader:
    """The records of one process."""

    def __init__(self, process: _Process, pid: str, notes: Notes) -> None:
        self._process = process
        self._pid = pid
        self._notes = notes
        self._agents = {a.id.handle: a for a in process.agents}
        self._kernels = {s.kernel_id: s for s in process.kernel_symbols}
        self._kinds = process.strings.buffer_records
        self._markers = {t.key: t.value for t in process.strings.marker_api}

    def rows(self) -> Iterator[Row]:
        """Yield the rows of the process."""
        for agent in self._process.agents:
            if agent.type == _GPU:
                name = agent.product_name or agent.name
                self._notes.devices.append({"id": agent.logical_node_type_id, "name": name, "gfx": agent.name})
        records = self._process.buffer_records
        if left := sorted(k for k, v in records.items() if k not in _READ and bytes(v) != b"[]"):
            self._notes.metadata["records_not_read"] = left
        for what in ("kernel_dispatch", "memory_copy", *_API):
            raw = records.get(what)
            for record in _decode_records(raw) if raw is not None and bytes(raw) != b"null" else ():
                yield self._row(what, record)

    def _row(self, what: str, record: _Record) -> Row:
        start, end = record.start_timestamp, record.end_timestamp
        try:
            length = None if start is None or end is None else end - start
            self._notes.check_times(start, length)
        except UnusableEvent as event:
            return self._notes.quarantine(event.reason, msgspec.to_builtins(record))
        self._notes.keep()
        row = {
            "ts_ns": start,
            "dur_ns": length,
            "pid": self._pid,
            "tid": None if record.thread_id is None else str(record.thread_id),
            "correlation": int64(record.correlation_id.internal),
        }
        if what == "kernel_dispatch":
            return "kernels", {**row, **self._kernel(record)}
        if what == "memory_copy":
            return "kernels", {**row, **self._copy(record)}
        name = self._call(record)
        if (category := _API[what]) is not None:
            return "launches", {**row, "name": name, "category": category}
        if what == "marker_api":
            name = self._markers.get(record.correlation_id.internal, name)
        return "annotations", {**row, "name": name, "category": what, "kind": "slice"}

    def _call(self, record: _Record) -> str:
        kind = record.kind if record.kind is not None and 0 <= record.kind < len(self._kinds) else None
        operations = [] if kind is None else self._kinds[kind].operations
        known = record.operation is not None and 0 <= record.operation < len(operations)
        return operations[record.operation or 0] if known else f"call {record.operation}"

    def _kernel(self, record: _Record) -> dict[str, Any]:
        info = record.dispatch_info or _Dispatch()
        symbol = self._kernels.get(info.kernel_id, _Symbol())
        items = [n for n in (info.grid_size.x, info.grid_size.y, info.grid_size.z) if n is not None]
        group = [n for n in (info.workgroup_size.x, info.workgroup_size.y, info.workgroup_size.z) if n]
        known = len(items) == len(group) == 3
        return {
            "name": symbol.formatted_kernel_name or symbol.kernel_name or f"kernel {info.kernel_id}",
            "category": Activity.KERNEL,
            **self._device(info.agent_id, record, info.queue_id),
            # ROCm counts work items, CUDA blocks.
            "grid": [-(-i // g) for i, g in zip(items, group, strict=True)] if known else None,
            "block": group if len(group) == 3 else None,
            "shared_memory_bytes": int64(info.group_segment_size),
            "attributes": attributes(kernel_name=symbol.kernel_name, scratch_bytes=info.private_segment_size),
        }

    def _copy(self, record: _Record) -> dict[str, Any]:
        target = self._agents.get(record.dst_agent_id.handle)
        on = record.dst_agent_id if target is not None and target.type == _GPU else record.src_agent_id
        return {
            "name": self._call(record),
            "category": Activity.MEMCPY,
            **self._device(on, record, _Handle()),
            "bytes": int64(record.bytes),
        }

    def _device(self, agent: _Handle, record: _Record, queue: _Handle) -> dict[str, Any]:
        found = self._agents.get(agent.handle)
        # A stream of the program where there is one; the hardware queue it was put on otherwise.
        stream = record.stream_id.handle if record.stream_id.handle is not None else queue.handle
        return {
            "device": None if found is None or found.type != _GPU else int64(found.logical_node_type_id),
            "stream": int64(stream),
        }
