"""Reading XSpace, the profile that JAX and TensorFlow write as ``*.xplane.pb``, without either of them.

An XSpace holds planes (a device or a host), a plane holds lines (a stream or a thread), a line holds events whose names
and statistics are interned in the plane. Schema: ``tsl/profiler/protobuf/xplane.proto``. Planes are indexed first, since
their names and tables come after their events in the file; events are then decoded one at a time, so that memory grows
with the number of distinct names, not with the number of events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from magneton.transforms.sources.xla.protowire import (
    FIXED64,
    LENGTH,
    VARINT,
    Buffer,
    WireError,
    double,
    fields,
    read_varint,
    signed,
    text,
)

Stat = int | float | str | None
Span = tuple[int, int]

_TEXT = frozenset(b"\t\n\r") | frozenset(range(0x20, 0x7F))
_TEXT_BYTES = 64
_KEEP = 100_000
_PLANE_FIELDS = frozenset({1, 2, 3, 4, 5, 6})


@dataclass(slots=True)
class EventKind:
    """What events of one kind share: names, statistics, and where statistics kept as raw bytes lie."""

    name: str = ""
    display_name: str = ""
    stats: dict[str, Stat] = field(default_factory=dict)
    blobs: dict[str, Span] = field(default_factory=dict)


@dataclass(slots=True)
class Plane:
    """A device or a host: its name, its tables of names, and where its lines lie in the file.

    ``seen`` keeps statistics by their bytes: events repeat most of theirs.
    """

    name: str = ""
    stats: dict[str, Stat] = field(default_factory=dict)
    kinds: dict[int, EventKind] = field(default_factory=dict)
    stat_names: dict[int, str] = field(default_factory=dict)
    lines: list[Span] = field(default_factory=list)
    seen: dict[bytes, tuple[str, Stat]] = field(default_factory=dict)


@dataclass(slots=True)
class Line:
    """A stream of a device or a thread of a host. ``timestamp_ns`` is the time its events' offsets count from."""

    id: int = 0
    name: str = ""
    timestamp_ns: int = 0
    span: Span = (0, 0)


@dataclass(slots=True)
class Event:
    """One event. Times are picoseconds; ``start_ps`` is None for an aggregate that has a count instead of a time."""

    kind: EventKind
    start_ps: int | None
    duration_ps: int
    stats: dict[str, Stat]


def looks_like_xspace(head: bytes) -> bool:
    """Tell whether a file's first bytes can begin an XSpace: a plane, and in it only fields that planes have."""
    if all(byte in _TEXT for byte in head[:_TEXT_BYTES]):
        return False  # a blank line and a letter are a tag and a length too
    try:
        tag, position = read_varint(head, 0, len(head))
        if tag != (1 << 3 | LENGTH):
            return False
        size, position = read_varint(head, position, len(head))
        stop = min(len(head), position + size)
        seen = 0
        while position < stop:
            tag, position = read_varint(head, position, stop)
            number, wire = tag >> 3, tag & 7
            if number not in _PLANE_FIELDS or wire != (VARINT if number == 1 else LENGTH):
                return False
            size, position = read_varint(head, position, stop)
            if number == 2:
                return head[position : min(stop, position + size)].isascii()
            if number != 1:
                position += size
            seen += 1
    except WireError as error:
        return error.cut_off
    return seen > 0


class XSpace:
    """An indexed XSpace.

    Args:
        data: the whole file, decompressed (bytes or a memory map).

    Raises:
        WireError: it is not a message; ``cut_off`` tells that it ends in the middle.
    """

    def __init__(self, data: Buffer) -> None:
        self._data = data
        self.planes: list[Plane] = []
        self.hostnames: list[str] = []
        self.errors: list[str] = []
        for number, wire, a, b in fields(data, 0, len(data)):
            if wire != LENGTH:
                continue
            if number == 1:
                self.planes.append(_inside(self._plane, a, b))
            elif number in (2, 3):
                self.errors.append(text(data, a, b))
            elif number == 4:
                self.hostnames.append(text(data, a, b))

    def plane(self, name: str) -> Plane | None:
        """Return the first plane of that name."""
        return next((p for p in self.planes if p.name == name), None)

    def lines(self, plane: Plane) -> Iterator[Line]:
        """Yield the lines of a plane, in the order of the file."""
        for start, stop in plane.lines:
            line = Line(span=(start, stop))
            display = ""
            for number, wire, a, b in fields(self._data, start, stop):
                if number == 4:
                    continue
                if wire == VARINT and number == 1:
                    line.id = signed(a)
                elif wire == VARINT and number == 3:
                    line.timestamp_ns = signed(a)
                elif wire == LENGTH and number == 2:
                    line.name = text(self._data, a, b)
                elif wire == LENGTH and number == 11:
                    display = text(self._data, a, b)
            line.name = display or line.name
            yield line

    def events(self, plane: Plane, line: Line) -> Iterator[Event]:
        """Yield the events of a line, in the order of the file."""
        base = line.timestamp_ns * 1000
        data = self._data
        for number, wire, a, b in fields(data, *line.span):
            if number == 4 and wire == LENGTH:
                yield self._event(plane, base, data[a:b])

    def intervals(self, line: Line, kinds: Collection[int]) -> Iterator[tuple[int, int, int]]:
        """Yield kind, start and length (ps) of those events of a line that are of some kinds, without statistics."""
        base = line.timestamp_ns * 1000
        for number, wire, a, b in fields(self._data, *line.span):
            if number == 4 and wire == LENGTH:
                found = {n: signed(value) for n, w, value, _ in fields(self._data, a, b) if w == VARINT}
                if found.get(1, 0) in kinds:
                    yield found.get(1, 0), base + found.get(2, 0), found.get(3, 0)

    def _event(self, plane: Plane, base: int, raw: bytes) -> Event:
        kind = duration = 0
        offset: int | None = 0
        stats: dict[str, Stat] = {}
        for number, wire, a, b in fields(raw, 0, len(raw)):
            if wire == VARINT:
                if number == 1:
                    kind = signed(a)
                elif number == 2:
                    offset = signed(a)
                elif number == 3:
                    duration = signed(a)
                elif number == 5:
                    offset = None
            elif wire == LENGTH and number == 4:
                written = raw[a:b]
                stat = plane.seen.get(written)
                if stat is None:
                    stat = _stat(written, 0, len(written), plane.stat_names)[:2]
                    if len(plane.seen) < _KEEP:
                        plane.seen[written] = stat
                stats[stat[0]] = stat[1]
        found = plane.kinds.get(kind)
        if found is None:
            found = plane.kinds[kind] = EventKind(name=f"event {kind}")
        if found.stats:
            stats = {**found.stats, **stats}
        return Event(found, None if offset is None else base + offset, duration, stats)

    def _plane(self, start: int, stop: int) -> Plane:
        data = self._data
        plane = Plane()
        kinds: list[Span] = []
        own: list[Span] = []
        for number, wire, a, b in fields(data, start, stop):
            if wire != LENGTH:
                continue
            if number == 2:
                plane.name = text(data, a, b)
            elif number == 3:
                plane.lines.append((a, b))
            elif number == 4:
                kinds.append((a, b))
            elif number == 5:
                key, value = self._entry(a, b)
                for inner, kind, c, d in fields(data, *value):
                    if inner == 2 and kind == LENGTH:
                        plane.stat_names[key] = text(data, c, d)
            elif number == 6:
                own.append((a, b))
        for a, b in kinds:
            key, value = self._entry(a, b)
            plane.kinds[key] = self._kind(plane, *value)
        for a, b in own:
            name, value_, _ = _stat(data, a, b, plane.stat_names)
            plane.stats[name] = value_
        return plane

    def _entry(self, start: int, stop: int) -> tuple[int, Span]:
        """Return key and value of one map entry."""
        key, value = 0, (start, start)
        for number, wire, a, b in fields(self._data, start, stop):
            if number == 1 and wire == VARINT:
                key = signed(a)
            elif number == 2 and wire == LENGTH:
                value = (a, b)
        return key, value

    def _kind(self, plane: Plane, start: int, stop: int) -> EventKind:
        kind = EventKind()
        for number, wire, a, b in fields(self._data, start, stop):
            if wire != LENGTH:
                continue
            if number == 2:
                kind.name = text(self._data, a, b)
            elif number == 4:
                kind.display_name = text(self._data, a, b)
            elif number == 5:
                name, value, blob = _stat(self._data, a, b, plane.stat_names)
                if blob is None:
                    kind.stats[name] = value
                else:
                    kind.blobs[name] = blob
        return kind


def _inside(read: Callable[[int, int], Plane], start: int, stop: int) -> Plane:
    """Call ``read``; a part that runs past its own plane is damage, not a file cut off."""
    try:
        return read(start, stop)
    except WireError as error:
        raise WireError(str(error)) from error


def _stat(data: Buffer, start: int, stop: int, names: dict[int, str]) -> tuple[str, Stat, Span | None]:
    """Return name and value of a statistic; one kept as raw bytes has no value and a place instead."""
    key = 0
    value: Stat = None
    blob: Span | None = None
    for number, wire, a, b in fields(data, start, stop):
        if wire == VARINT:
            if number == 1:
                key = signed(a)
            elif number == 3:
                value = a
            elif number == 4:
                value = signed(a)
            elif number == 7:
                value = names.get(signed(a), "")
        elif wire == LENGTH and number == 5:
            value = text(data, a, b)
        elif wire == LENGTH and number == 6:
            blob = (a, b)
        elif wire == FIXED64 and number == 2:
            value = double(data, a)
    return names.get(key, f"stat {key}"), value, blob
