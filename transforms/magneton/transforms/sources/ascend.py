"""Huawei Ascend: ``trace_view.json`` of torch_npu's profiler.

A bare list. Processes are layers: the program (operators of category ``cpu_op``), ``CANN`` (runtime calls), ``Ascend
Hardware`` (tasks on streams, without a category), ``Communication`` (collectives), and views that repeat time
(``Overlap Analysis``). Times are microseconds of Unix time, as text.

A task is tied to its operator by an arrow ``torch_to_npu`` that starts in the operator, else by ``connection_id`` to the call
of CANN that launched it, which lies in a ``Dequeue`` whose ``correlation_id`` names the ``Enqueue`` in the operator.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from magneton.schemas.kinds import Activity, Clock
from magneton.transforms.reading.limits import Limits
from magneton.transforms.sources import Input
from magneton.transforms.sources.chrome_event import ChromeEvent, other_rows, parse, read_list, usable
from magneton.transforms.sources.rows import Notes, Row, UnusableEvent, attributes, int64, json_text
from magneton.transforms.staging.stage import Stage

FORMAT = "ascend"

_MARKS = (b'"Ascend Hardware"', b"AscendCL@", b'"async_npu"', b'"torch_to_npu"')
_HARDWARE, _CANN = "Ascend Hardware", "CANN"
_COMMUNICATION = ("Communication", "HCCL")
_TO_DEVICE = ("async_npu", "HostToDevice")
_LAUNCH = re.compile(r"AscendCL@aclrt(?:Launch|Memcpy|Memset)\w*|.*[Ll]aunch\w*")
# Tasks that wait, mark or reserve: they occupy a stream, but no unit works.
_WAITING = re.compile(r"EVENT|NOTIFY|WAIT|RECORD|PLACE_HOLDER", re.IGNORECASE)
_COLLECTIVE = re.compile(r"hcom_|Hccl|allreduce|allgather|reducescatter|alltoall|broadcast", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,9}")
# A time stamp of this many ns is a Unix time.
_EPOCH_SIZED_NS = 10**17

Place = tuple[str | None, str | None]


def sniff(head: bytes, path: Path) -> bool:
    """Tell whether a file's first bytes are those of a Chrome trace with layers of Ascend."""
    return head.lstrip()[:1] in (b"[", b"{") and b'"ph"' in head and any(mark in head for mark in _MARKS)


def read(source: Input, stage: Stage, limits: Limits) -> None:
    """Stage the events of a file (see ``chrome_event.read_list`` for what it raises)."""
    read_list(decode, source, stage, limits)
    # Tasks of different units (cube, vector, copy engine) may overlap on what the file calls one stream.
    stage.info.serial_streams = False


def decode(events: Callable[[], Iterable[bytes]], notes: Notes) -> Iterator[Row]:
    """Yield the rows of a trace and fill ``notes``.

    Args:
        events: starts a pass over the elements of the event list, as their JSON text. There are two: names and arrows may
            follow the events they belong to.
        notes: filled on the way.
    """
    notes.framework = "torch"
    survey = _Survey()
    for position, raw in enumerate(events()):
        survey.note(raw, position, notes)
    survey.finish()
    if survey.earliest is not None and survey.earliest > _EPOCH_SIZED_NS:
        notes.base_unix_ns, notes.clock = 0, Clock.REALTIME
    notes.devices = [{"id": number, "name": "Ascend NPU"} for number in sorted(set(survey.devices.values()))]
    for event in usable(events(), notes):
        if not isinstance(event, ChromeEvent):
            yield event
        elif event.phase in "sft" and event.category in _TO_DEVICE:
            notes.merge()
        elif event.phase != "X":
            yield from other_rows(event)
        else:
            yield _slice(event, survey)


def _slice(event: ChromeEvent, survey: _Survey) -> Row:
    args = event.args
    layer = survey.layer(event.pid)
    row = {"name": event.name, "ts_ns": event.ts_ns, "dur_ns": event.dur_ns, "pid": event.pid, "tid": event.tid}
    connection = int64(args.get("connection_id"))
    if event.category == "cpu_op":
        return "ops", {
            **row,
            "external_id": event.position + 1,
            "sequence_number": _from(args.get("Sequence number"), 0),
            "fwd_thread_id": int64(args.get("Fwd thread id")),
            "input_dims": _list(args.get("Input Dims")),
            "input_types": _list(args.get("Input type")),
            "attributes": attributes(**{k: v for k, v in args.items() if k not in _OP_COLUMNS and v != ""}),
        }
    if event.category == "python_function":
        return "frames", {
            **row,
            "python_id": int64(args.get("Python id")),
            "python_parent_id": int64(args.get("Python parent id")),
        }
    task = layer == _HARDWARE or (layer in _COMMUNICATION and survey.is_collective(event))
    if task and not _WAITING.search(str(args.get("Task Type") or "")):
        collective = layer in _COMMUNICATION or _COLLECTIVE.match(event.name) is not None
        more = {k: v for k, v in args.items() if k not in _TASK_COLUMNS}
        return "kernels", {
            **row,
            "category": _category(event),
            "kernel_class": "collective" if collective else None,
            "device": survey.devices.get(event.pid, 0),
            "stream": int64(args.get("Stream Id")) if "Stream Id" in args else int64(event.tid),
            "correlation": connection,
            "external_id": survey.operator(event, connection),
            "attributes": attributes(**more),
        }
    if layer == _CANN and connection is not None and _LAUNCH.fullmatch(event.name):
        # The thread is one of the program's: its enqueued work is launched from there.
        pid = survey.program if survey.program is not None else event.pid
        return "launches", {**row, "pid": pid, "category": "cuda_runtime", "correlation": connection}
    said = json_text(args) if args else None
    return "annotations", {**row, "category": event.category or layer, "kind": "slice", "args": said}


# Columns of their own, or numbers that only count tasks.
_TASK_COLUMNS = frozenset({"connection_id", "Stream Id", "Task Id", "Batch Id"})
_OP_COLUMNS = frozenset({"Sequence number", "Fwd thread id", "Input Dims", "Input type"})


@dataclass
class _Survey:
    """What a first pass over the file tells.

    Attributes:
        processes: names of processes.
        devices: number of the device of each process of tasks.
        program: process of the operators.
        earliest: the earliest time stamp (ns).
    """

    processes: dict[str | None, str] = field(default_factory=dict)
    labels: dict[str | None, str] = field(default_factory=dict)
    devices: dict[str | None, int] = field(default_factory=dict)
    program: str | None = None
    earliest: int | None = None
    _threads: dict[Place, str] = field(default_factory=dict)
    _operators: dict[Place, list[tuple[int, int, int]]] = field(default_factory=dict)
    _starts: dict[str | None, tuple[Place, int]] = field(default_factory=dict)
    _ends: dict[tuple[Place, int], str | None] = field(default_factory=dict)
    _calls: dict[int, tuple[Place, int]] = field(default_factory=dict)
    _dequeued: dict[str | None, list[tuple[int, int, int]]] = field(default_factory=dict)
    _enqueued: dict[int, tuple[Place, int]] = field(default_factory=dict)
    _grouped: bool = False

    def note(self, raw: bytes, position: int, notes: Notes) -> None:
        """Take note of one element."""
        try:
            event = parse(raw, notes)
        except UnusableEvent:
            return  # counted by the second pass
        if event is None:
            return
        place = (event.pid, event.tid)
        if event.phase == "M":
            name = event.args.get("name", event.args.get("labels"))
            if event.name == "process_name":
                self.processes[event.pid] = str(name)
            elif event.name == "process_labels":
                self.labels[event.pid] = str(name)
            elif event.name == "thread_name":
                self._threads[place] = str(name)
            return
        if self.earliest is None or event.ts_ns < self.earliest:
            self.earliest = event.ts_ns
        end = event.ts_ns + (event.dur_ns or 0)
        number = int64(event.args.get("correlation_id"))
        connection = int64(event.args.get("connection_id"))
        if event.category == "async_npu" and event.phase == "s":
            self._starts[event.id] = (place, event.ts_ns)
        elif event.category == "async_npu" and event.phase == "f":
            self._ends[place, event.ts_ns] = event.id
        elif event.phase != "X":
            return
        elif event.category == "cpu_op":
            self.program = event.pid
            self._operators.setdefault(place, []).append((event.ts_ns, -end, position + 1))
        elif event.category == "enqueue" and number is not None:
            self._enqueued[number] = (place, event.ts_ns)
        elif event.category == "dequeue" and number is not None:
            self._dequeued.setdefault(event.tid, []).append((event.ts_ns, end, number))
        elif event.category is None and event.name.startswith("AscendCL@") and connection is not None:
            self._calls[connection] = (place, event.ts_ns)

    def finish(self) -> None:
        """Sort what is looked up by time, and number the devices."""
        for listed in (*self._operators.values(), *self._dequeued.values()):
            listed.sort()
        hardware = [pid for pid, name in self.processes.items() if name == _HARDWARE]
        stated = {pid: self._stated(pid) for pid in hardware}
        for number, pid in enumerate(sorted(hardware, key=lambda p: (len(p or ""), p or ""))):
            known = stated[pid]
            self.devices[pid] = number if known is None else known
        first = min(self.devices.values(), default=0)
        for pid, name in self.processes.items():
            if name in _COMMUNICATION:
                known = self._stated(pid)
                self.devices[pid] = first if known is None else known
        self._grouped = any("Communication" in name for name in self._threads.values())

    def _stated(self, pid: str | None) -> int | None:
        found = _NUMBER.search(self.labels.get(pid, ""))
        return int(found[0]) if found else None

    def layer(self, pid: str | None) -> str | None:
        """Return the name of a process."""
        return self.processes.get(pid)

    def is_collective(self, event: ChromeEvent) -> bool:
        """Tell whether an event is a collective as a whole. Other lines of the process show the parts of it."""
        if self._grouped:
            return "Communication" in self._threads.get((event.pid, event.tid), "")
        return _COLLECTIVE.match(event.name) is not None

    def operator(self, task: ChromeEvent, connection: int | None) -> int | None:
        """Return the id of the operator that a task belongs to."""
        arrow = self._starts.get(self._ends.get(((task.pid, task.tid), task.ts_ns)))
        if arrow is not None:
            return self._innermost(*arrow)
        call = self._calls.get(connection) if connection is not None else None
        if call is None:
            return None
        (_, thread), ts = call
        dequeued = self._dequeued.get(thread, [])
        at = bisect_right(dequeued, ts, key=lambda d: d[0]) - 1
        if at >= 0 and dequeued[at][1] >= ts and dequeued[at][2] in self._enqueued:
            return self._innermost(*self._enqueued[dequeued[at][2]])
        return self._innermost((self.program, thread), ts)

    def _innermost(self, place: Place, ts: int) -> int | None:
        listed = self._operators.get(place, [])
        at = bisect_right(listed, ts, key=lambda o: o[0]) - 1
        while at >= 0:
            _, end, identity = listed[at]
            if -end >= ts:
                return identity
            at -= 1
        return None


def _category(event: ChromeEvent) -> str:
    kind = f"{event.args.get('Task Type') or ''} {event.name}".lower()
    if "memset" in kind:
        return Activity.MEMSET
    return Activity.MEMCPY if "memcpy" in kind or "sdma" in kind else Activity.KERNEL


def _from(value: Any, lowest: int) -> int | None:
    number = int64(value)
    return None if number is None or number < lowest else number


def _list(value: Any) -> str | None:
    """Return shapes or types, which are written as text."""
    if isinstance(value, str):
        return "".join(value.split()) or None
    return json_text(value) if isinstance(value, list) else None
