"""JAX and TensorFlow profiles: ``*.xplane.pb``.

Lines count from the start of the session in files of today, whose Unix time is in the plane `Task Environment`
(``profile_start_time``); files of before 2023 count from 1970. Device planes are read first: they name the instructions
by which a host event is recognised as the dispatch of one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from magneton.schemas.errors import InputFormatError, TruncatedInputError
from magneton.schemas.kinds import Clock
from magneton.transforms.reading.limits import Limits
from magneton.transforms.sources import Input
from magneton.transforms.sources.local_file import mapped
from magneton.transforms.sources.rows import Notes, Row, UnusableEvent, hand_over, int64, round_to_ns
from magneton.transforms.sources.xla import planes as xla
from magneton.transforms.sources.xla.hlo import Instruction, read_module
from magneton.transforms.sources.xla.nested import set_containers_apart
from magneton.transforms.sources.xla.protowire import Buffer, WireError
from magneton.transforms.sources.xla.xspace import Event, Line, Plane, Span, Stat, XSpace, looks_like_xspace
from magneton.transforms.staging.stage import Stage

FORMAT = "xplane"

_ENVIRONMENT = "Task Environment"
_METADATA = "/host:metadata"
_PROGRAM = re.compile(r"(?P<module>.+)\((?P<program>\d{1,19})\)")
# 2001 in nanoseconds since 1970: no session lasts that long.
_EPOCH_SIZED_NS = 10**18


def sniff(head: bytes, path: Path) -> bool:
    """Tell whether a file's first bytes are those of an XSpace."""
    return looks_like_xspace(head)


def read(source: Input, stage: Stage, limits: Limits) -> None:
    """Stage the events of a file.

    Raises:
        TruncatedInputError: it stops in the middle.
        InputFormatError: it is not an XSpace.
    """
    notes = Notes(max_dur_ns=limits.max_event_dur_ns)
    try:
        with mapped(source) as data:
            hand_over(decode(data, notes), notes, stage)
            set_containers_apart(stage, xla.DEVICE_OPS)
    except WireError as error:
        if error.cut_off:
            raise TruncatedInputError(
                "is a profile (XSpace) that stops in the middle", path=source.path, remedy="record or copy it again"
            ) from error
        raise InputFormatError(f"is a damaged profile (XSpace): {error}", path=source.path) from error


class Programs:
    """The compiled programs a profile carries, read when first asked for."""

    def __init__(self, space: XSpace, data: Buffer) -> None:
        self._data = data
        self._spans: dict[tuple[str, int | None], Span] = {}
        self._read: dict[tuple[str, int | None], dict[str, Instruction]] = {}
        plane = space.plane(_METADATA)
        for kind in plane.kinds.values() if plane is not None else ():
            found = _PROGRAM.fullmatch(kind.name)
            span = next(iter(kind.blobs.values()), None)
            if found is not None and span is not None:
                self._spans[found["module"], int(found["program"])] = span

    def find(self, args: dict[str, Stat]) -> Instruction | None:
        """Return the instruction an event ran, where the event names it and the profile carries its program."""
        name, module, program = args.get("hlo_op"), args.get("hlo_module"), int64(args.get("program_id"))
        if not isinstance(name, str) or not isinstance(module, str):
            return None
        key = (module, program)
        if key not in self._read:
            span = self._spans.get(key)
            self._read[key] = {} if span is None else read_module(self._data, *span)
        return self._read[key].get(name)


def decode(data: Buffer, notes: Notes) -> Iterator[Row]:
    """Yield the rows of a profile and fill ``notes``.

    Args:
        data: the whole file, decompressed (bytes or a memory map).
        notes: filled on the way.

    Raises:
        WireError: it is not an XSpace; ``cut_off`` tells that it ends in the middle.
    """
    space = XSpace(data)
    _describe(space, notes)
    programs = Programs(space, data)
    # What the devices ran, by name; None where programs disagree on what the name is.
    operations: dict[str, Instruction | None] = {}
    planes = sorted(space.planes, key=lambda plane: not plane.name.startswith("/device:"))
    for plane in planes:
        has_streams = any(xla.is_stream(line.name) for line in space.lines(plane))
        dispatches = _dispatches(space, plane, operations)
        for line in space.lines(plane):
            if line.timestamp_ns >= _EPOCH_SIZED_NS:
                notes.base_unix_ns, notes.clock = 0, Clock.REALTIME
            track = xla.track(plane.name, line.name, _thread(line), has_streams=has_streams)
            for event in space.events(plane, line):
                try:
                    start, length = _times(event, notes)
                except UnusableEvent as unusable:
                    raw = {"name": event.kind.name, "duration_ps": event.duration_ps, "stats": event.stats}
                    yield notes.quarantine(unusable.reason, raw)
                    continue
                notes.keep()
                instruction = programs.find(event.stats)
                if track.role != "host" and isinstance(name := event.stats.get("hlo_op"), str):
                    same = operations.setdefault(name, instruction) is instruction
                    operations[name] = instruction if same else None
                elif instruction is None:
                    instruction = operations.get(event.kind.name)
                shown = event.kind.display_name or event.kind.name
                seen = xla.XlaEvent(shown, start, length, event.stats, event.kind.name)
                for kind, row in xla.rows(track, seen, operations, instruction):
                    if kind == "launches" and isinstance(name := event.stats.get("hlo_op"), str):
                        row["tid"] = dispatches.thread(name, start, length) or row["tid"]
                    yield kind, row


def _thread(line: Line) -> str:
    # what the trace JSON of the same run calls the thread
    return str(line.id & 0xFFFFFFFF)


def _dispatches(space: XSpace, plane: Plane, operations: Collection[str]) -> xla.Dispatches:
    found = xla.Dispatches()
    kinds = {key: kind.name for key, kind in plane.kinds.items() if kind.name in operations}
    for line in space.lines(plane) if kinds and plane.name.startswith("/host:") else ():
        for kind, start, length in space.intervals(line, kinds):
            found.add(kinds[kind], round_to_ns(start), round_to_ns(length), _thread(line))
    return found


def _times(event: Event, notes: Notes) -> tuple[int, int]:
    start = None if event.start_ps is None else round_to_ns(event.start_ps)
    length = round_to_ns(event.duration_ps)
    notes.check_times(start, length)
    return start or 0, length


def _describe(space: XSpace, notes: Notes) -> None:
    notes.framework = "xla"
    notes.clock = Clock.SESSION
    environment = space.plane(_ENVIRONMENT)
    if environment is not None:
        notes.base_unix_ns = int64(environment.stats.get("profile_start_time"))
        notes.metadata["profile_stop_time"] = int64(environment.stats.get("profile_stop_time"))
    metadata = space.plane(_METADATA)
    if metadata is not None:
        versions = {k: v for k, v in metadata.stats.items() if isinstance(v, str) and k.endswith("_version")}
        notes.versions = versions
        if "jax_version" in versions:
            notes.framework = "jax"
    for plane in space.planes:
        if plane.name.startswith("/host:"):
            found = filter(None, (xla.framework(kind.name) for kind in plane.kinds.values()))
            notes.framework = next(found, notes.framework)
        if plane.name.startswith("/device:") and plane.stats:
            notes.devices.append({"name": plane.name, **_known(plane)})
    if space.errors:
        notes.metadata["profiler_errors"] = space.errors[:100]


def _known(plane: Plane) -> dict[str, Stat]:
    return {name: value for name, value in plane.stats.items() if value is not None}
