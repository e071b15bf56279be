"""Triton's Proton with ``proton.start(..., data="trace")``: a Chrome trace of scopes and kernels.

Times are microseconds from the start of the session. An event names no process; the thread of a kernel is its stream, as
``stream 7`` or ``7``. ``args.call_stack`` is the path of an event below ``ROOT``. Newer files have a slice for each scope
on the host, older ones only name it in the stacks of kernels. Scopes are the operators here, and each kernel belongs to
the scope whose path encloses it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from magneton.schemas.kinds import Activity, Clock
from magneton.transforms.reading.limits import Limits
from magneton.transforms.sources import Input
from magneton.transforms.sources.chrome_event import ChromeEvent, other_rows, parse, read_list, usable
from magneton.transforms.sources.rows import Notes, Row, UnusableEvent, attributes, int64, json_text
from magneton.transforms.staging.stage import Stage

FORMAT = "proton"

_STACK = re.compile(rb'"call_stack"\s*:\s*\[\s*"ROOT"')
_NUMBER = re.compile(r"\d{1,18}")
_SCOPE, _KERNEL = "scope", "kernel"
# Ids of operators that are made for paths without a slice; those of slices are their positions.
_MADE = 1 << 40
_INFERRED = "scopes_inferred"

Path_ = tuple[str, ...]


def sniff(head: bytes, path: Path) -> bool:
    """Tell whether a file's first bytes are those of a trace whose events have call stacks of Proton."""
    return b'"traceEvents"' in head and _STACK.search(head) is not None


def read(source: Input, stage: Stage, limits: Limits) -> None:
    """Stage the events of a file (see ``chrome_event.read_list`` for what it raises)."""
    read_list(decode, source, stage, limits)


def decode(events: Callable[[], Iterable[bytes]], notes: Notes) -> Iterator[Row]:
    """Yield the rows of a trace and fill ``notes``.

    Args:
        events: starts a pass over the elements of the event list, as their JSON text. There are two: a kernel may stand
            before its scope.
        notes: filled on the way.
    """
    notes.framework = "triton"
    notes.clock = Clock.SESSION
    scopes = _Scopes()
    for position, raw in enumerate(events()):
        if b'"scope"' in raw:
            scopes.note(raw, position, notes)
    for event in usable(events(), notes):
        if not isinstance(event, ChromeEvent):
            yield event
            continue
        if event.phase != "X":
            yield from other_rows(event)
            continue
        row = {"name": event.name, "ts_ns": event.ts_ns, "dur_ns": event.dur_ns, "pid": event.pid, "tid": event.tid}
        more = {k: v for k, v in event.args.items() if k != "thread_id"}
        if event.category == _KERNEL:
            path = _path(event)
            around = path[:-1] if path and path[-1] == event.name else path
            found, made = scopes.around(around, event)
            if made is not None:
                notes.warn(_INFERRED, "scopes are known by the call stacks of kernels only: their host time is unknown")
                yield "ops", made
            yield (
                "kernels",
                {
                    **row,
                    "category": Activity.KERNEL,
                    "stream": _number(event.tid),
                    "device": int64(event.args.get("device_id", event.args.get("device"))),
                    "external_id": found,
                    "attributes": attributes(**more),
                },
            )
        elif event.category == _SCOPE:
            yield "ops", {**row, "external_id": event.position + 1, "attributes": attributes(**more)}
        else:
            args = json_text(event.args) if event.args else None
            yield "annotations", {**row, "category": event.category, "kind": "slice", "args": args}


class _Scopes:
    """Where each path of scopes was entered."""

    def __init__(self) -> None:
        self._entered: dict[Path_, list[tuple[int, int]]] = {}
        self._sorted = False
        self._last: dict[str | None, tuple[Path_, int]] = {}
        self._made = 0

    def note(self, raw: bytes, position: int, notes: Notes) -> None:
        """Take note of a slice, if it is one."""
        try:
            event = parse(raw, notes)
        except UnusableEvent:
            return  # counted by the second pass
        if event is not None and event.phase == "X" and event.category == _SCOPE:
            self._entered.setdefault(_path(event), []).append((event.ts_ns, position + 1))

    def around(self, path: Path_, kernel: ChromeEvent) -> tuple[int | None, dict[str, Any] | None]:
        """Return the id of the scope that a kernel belongs to, and the operator to make where there is no slice for it."""
        if not self._sorted:
            for places in self._entered.values():
                places.sort()
            self._sorted = True
        entered = self._entered.get(path)
        if entered:
            return entered[max(0, bisect_right(entered, kernel.ts_ns, key=lambda e: e[0]) - 1)][1], None
        if not path:
            return None, None
        last = self._last.get(kernel.tid)
        if last is not None and last[0] == path:
            return last[1], None
        self._made += 1
        identity = _MADE + self._made
        self._last[kernel.tid] = (path, identity)
        return identity, {
            "name": path[-1],
            "ts_ns": kernel.ts_ns,
            "dur_ns": None,
            "pid": kernel.pid,
            "tid": "scopes",
            "external_id": identity,
            "attributes": attributes(call_stack=["ROOT", *path]),
            "flags": _INFERRED,
        }


def _path(event: ChromeEvent) -> Path_:
    stack = event.args.get("call_stack")
    if not isinstance(stack, list):
        return ()
    names = tuple(str(part) for part in stack)
    return names[1:] if names[:1] == ("ROOT",) else names


def _number(thread: str | None) -> int | None:
    found = _NUMBER.findall(thread or "")
    return int(found[-1]) if len(found) == 1 else None
