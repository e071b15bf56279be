"""JAX trace JSON: ``perfetto_trace.json.gz`` and the ``*.trace.json.gz`` that XProf derives from an ``xplane.pb``.

Slices and metadata only, no ``cat``, the list ends with an empty object; microseconds since the start of the session,
whose Unix time is only in the ``xplane.pb`` of the same run. Processes are planes, threads are lines; tracks that end in
`- from #2` repeat the streams' time by module or operation and are kept as annotations. The writer leaves out events
that it holds internal (allocations), and writes 0.000001 for a length of 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from magneton.schemas.kinds import Clock
from magneton.transforms.reading.limits import Limits
from magneton.transforms.sources import Input
from magneton.transforms.sources.chrome_event import ChromeEvent, other_rows, parse, read_list, usable
from magneton.transforms.sources.rows import Notes, Row, UnusableEvent
from magneton.transforms.sources.xla import planes as xla
from magneton.transforms.sources.xla.nested import set_containers_apart
from magneton.transforms.staging.stage import Stage

Events = Callable[[], Iterable[bytes]]


FORMAT = "jax_trace"


def sniff(head: bytes, path: Path) -> bool:
    """Tell whether a file's first bytes are those of a trace whose processes are XLA planes."""
    planes = (b'"/host:CPU"', b'"/device:GPU:', b'"/device:TPU:', b'"/device:CUSTOM:')
    return b'"traceEvents"' in head and any(p in head for p in planes) and b'"schemaVersion"' not in head


def read(source: Input, stage: Stage, limits: Limits) -> None:
    """Stage the events of a file (see ``chrome_event.read_list`` for what it raises)."""
    read_list(decode, source, stage, limits)
    set_containers_apart(stage, xla.DEVICE_OPS)


def decode(events: Events, notes: Notes) -> Iterator[Row]:
    """Yield the rows of a trace and fill ``notes``.

    Args:
        events: starts a pass over the elements of the event list, as their JSON text. There are two: names of processes
            and threads may follow the events they belong to.
        notes: filled on the way.
    """
    notes.framework = "xla"
    notes.clock = Clock.SESSION
    tracks = _Tracks()
    operations: set[str] = set()
    for raw in events():
        if b'"M"' in raw or b'"hlo_op"' in raw:
            _survey(raw, tracks, operations, notes)
    dispatches = xla.Dispatches()
    calls: list[dict[str, Any]] = []
    for event in usable(events(), notes):
        if not isinstance(event, ChromeEvent):
            yield event
        elif event.phase != "X":
            yield from other_rows(event)
        else:
            operation = event.args.get("hlo_op")
            for kind, row in _slice(event, tracks.of(event), operations, notes):
                if kind == "launches" and isinstance(operation, str):
                    calls.append({**row, "operation": operation})
                    continue
                if kind == "ops" and event.name in operations:
                    dispatches.add(event.name, row["ts_ns"], row["dur_ns"], row["tid"])
                yield kind, row
    for row in calls:
        thread = dispatches.thread(row.pop("operation"), row["ts_ns"], row["dur_ns"])
        yield "launches", {**row, "tid": thread or row["tid"]}


def _survey(raw: bytes, tracks: _Tracks, operations: set[str], notes: Notes) -> None:
    try:
        event = parse(raw, notes)
    except UnusableEvent:
        return  # counted by the second pass
    if event is None:
        return
    if event.phase == "M":
        tracks.name(event)
    elif isinstance(name := event.args.get("hlo_op"), str):
        operations.add(name)


def _slice(event: ChromeEvent, track: xla.Track, operations: set[str], notes: Notes) -> Iterator[Row]:
    notes.framework = xla.framework(event.name) or notes.framework
    if event.dur_ns is None:
        notes.warn("dur_missing", f"{event.name!r} has no length")
    full_name = event.args.get("long_name")
    if not isinstance(full_name, str):
        full_name = event.name
    seen = xla.XlaEvent(event.name, event.ts_ns, event.dur_ns or 0, event.args, full_name)
    yield from xla.rows(track, seen, operations)


class _Tracks:
    """Names of processes and threads, and the tracks made of them."""

    def __init__(self) -> None:
        self._processes: dict[str | None, str] = {}
        self._threads: dict[tuple[str | None, str | None], str] = {}
        self._streams: set[str | None] = set()
        self._found: dict[tuple[str | None, str | None], xla.Track] = {}

    def name(self, event: ChromeEvent) -> None:
        """Take note of a metadata event."""
        name = event.args.get("name")
        if not isinstance(name, str):
            return
        if event.name == "process_name":
            self._processes[event.pid] = name
        elif event.name == "thread_name":
            self._threads[event.pid, event.tid] = name
            if xla.is_stream(name):
                self._streams.add(event.pid)

    def of(self, event: ChromeEvent) -> xla.Track:
        """Return the track of an event."""
        key = (event.pid, event.tid)
        if key not in self._found:
            self._found[key] = xla.track(
                self._processes.get(event.pid, event.pid or ""),
                self._threads.get(key, ""),
                event.tid or "",
                has_streams=event.pid in self._streams,
            )
        return self._found[key]
