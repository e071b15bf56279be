"""One event of a Chrome trace, decoded exactly, for the sources that go through their events one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from magneton.transforms.reading.json_array import (
    NOT_FINITE,
    Clean,
    EventArray,
    NotJsonError,
    NumberText,
    tolerant_loads,
)
from magneton.transforms.reading.limits import Limits
from magneton.transforms.reading.timestamps import text_to_ns
from magneton.transforms.sources import Input
from magneton.transforms.sources.rows import Notes, Row, UnusableEvent, hand_over, int64, json_text
from magneton.transforms.staging.pairing import Paired, pair
from magneton.transforms.staging.stage import Stage

PHASES = frozenset("BEXiIRCbneSTpFsftPNODMVvcr()")
_FLOWS = frozenset("stf")
_EDGES = frozenset("BEbneSTpF")
_COUNTED_LATER = _FLOWS | _EDGES


@dataclass(slots=True)
class ChromeEvent:
    """An event; times in nanoseconds. ``ts_ns`` is 0 for metadata, ``dur_ns`` None where the event has no length."""

    phase: str
    name: str
    category: str | None
    pid: str | None
    tid: str | None
    ts_ns: int
    dur_ns: int | None
    id: str | None
    args: dict[str, Any]
    position: int = 0


class _Fields(msgspec.Struct):
    ph: Any = None
    name: Any = None
    cat: Any = None
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    id: Any = None
    args: Any = None


_DECODER = msgspec.json.Decoder(_Fields)
_RAWS = msgspec.json.Decoder(list[msgspec.Raw])


class Elements:
    """The elements of a file's event list, as their JSON text. Each call starts a pass over the file.

    Attributes:
        metadata: the other members of the top-level object; those behind the list once a pass is over.
        left_out: names of members that were too large to keep, once a pass is over.
        unterminated: a bare list without its closing bracket, once a pass is over.
        truncated: the file stops in the middle (only where the limits allow it), once a pass is over.
    """

    def __init__(self, source: Input, limits: Limits, key: str = "traceEvents") -> None:
        self.metadata: dict[str, Any] = {}
        self.left_out: list[str] = []
        self.unterminated = False
        self.truncated = False
        self._source = source
        self._limits = limits
        self._key = key

    def __call__(self) -> Iterator[bytes]:
        """Start a pass."""
        array = EventArray(
            self._source.blocks(),
            _RAWS.decode,
            path=self._source.path,
            key=self._key,
            allow_truncated=self._limits.allow_truncated,
        )
        self.metadata, self.left_out = array.metadata, array.left_out  # filled as the members are met
        for piece in array:
            for raw in piece.items if isinstance(piece, Clean) else piece.elements:
                yield bytes(raw)
        self.unterminated = array.unterminated
        self.truncated = array.truncated or bool(getattr(self._source, "truncated", False))


def read_list(
    decode: Callable[[Elements, Notes], Iterable[Row]],
    source: Input,
    stage: Stage,
    limits: Limits,
    key: str = "traceEvents",
) -> Elements:
    """Stage what ``decode`` makes of a file's event list, and note how the list ended.

    Raises:
        InputFormatError: it is not JSON, or has no event list.
        TruncatedInputError: it stops in the middle.
        LimitExceededError: it, or one event, is larger than the limits allow.
    """
    notes = Notes(max_dur_ns=limits.max_event_dur_ns)
    elements = Elements(source, limits, key)
    try:
        hand_over(decode(elements, notes), notes, stage)
    except NotJsonError as error:
        raise error.refusal(source.blocks(), source.path) from error
    for paired in pair(stage):
        _stage_paired(paired, stage)
    if elements.left_out:
        stage.warn("metadata_left_out", f"too large to keep: {elements.left_out[0][:80]!r}", len(elements.left_out))
    if elements.unterminated:
        stage.warn("array_not_terminated", "the event list has no closing bracket")
        stage.warn("maybe_incomplete", "the file may have been cut off: its event list has no closing bracket")
    if elements.truncated:
        stage.info.incomplete = True
        stage.warn("truncated", f"the file stops in the middle; {stage.n_raw} events were read")
    return elements


def _stage_paired(paired: Paired, stage: Stage) -> None:
    """Stage a slice or span that was written as two events; it is already counted."""
    begin = paired.begin
    stage.add(
        "annotations",
        {
            "name": [begin.name or ""],
            "track": np.array([begin.track], np.int32),
            "ts_ns": [begin.ts_ns],
            "dur_ns": [paired.dur_ns],
            "category": [begin.category],
            "kind": [paired.kind],
            "args": [begin.args],
            "flags": [paired.flags],
        },
    )


def parse(raw: bytes, notes: Notes) -> ChromeEvent | None:
    """Decode one element of an event list; an empty object is None.

    Time stamps are scaled from their text, never through a float. ``notes`` knows what lengths are credible.

    Raises:
        UnusableEvent: it is not an object, has no phase, an unknown one, or times no event can have.
    """
    fields = _fields(raw, notes)
    if fields is None:
        return None
    phase = fields.ph
    if not isinstance(phase, str) or not phase:
        raise UnusableEvent("phase_missing")
    if phase not in PHASES:
        raise UnusableEvent("phase_unknown")
    if phase == "M":
        start, length = 0, None
    else:
        start, length = _time(fields.ts), _length(fields.dur)
        notes.check_times(start, length)
    return ChromeEvent(
        phase=phase,
        name=_text(fields.name) or "",
        category=_text(fields.cat),
        pid=_text(fields.pid),
        tid=_text(fields.tid),
        ts_ns=start,
        dur_ns=length,
        id=_text(fields.id),
        args=fields.args if isinstance(fields.args, dict) else {},
    )


def usable(raws: Iterable[bytes], notes: Notes) -> Iterator[ChromeEvent | Row]:
    """Yield the events of a list, but for empty objects and metadata; unusable ones as their rows of ``quarantine``.

    All are counted, except flows and edges. The later steps count these, since only they know whether they are kept or merged.
    """
    for position, raw in enumerate(raws):
        try:
            event = parse(raw, notes)
        except UnusableEvent as unusable:
            yield notes.quarantine(unusable.reason, raw.decode("utf-8", "replace"), position)
            continue
        if event is None:
            notes.ignore()
        elif event.phase == "M":
            notes.merge()
        else:
            if event.phase not in _COUNTED_LATER:
                notes.keep()
            event.position = position
            yield event


def other_rows(event: ChromeEvent) -> Iterator[Row]:
    """Yield the rows of an event that is no complete slice (``ph: X``): as every source of Chrome traces treats it."""
    row: dict[str, Any] = {"name": event.name, "ts_ns": event.ts_ns, "pid": event.pid, "tid": event.tid}
    if event.phase == "C":
        for series, value in event.args.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                yield "counters", {**row, "series": series, "value": float(value)}
        return
    row |= {"category": event.category}
    if event.phase in _FLOWS:
        yield "flows", {**row, "phase": event.phase, "flow": event.id}
        return
    args = json_text(event.args) if event.args else None
    if event.phase in _EDGES:
        yield "edges", {**row, "phase": event.phase, "flow": event.id, "args": args, "position": event.position}
    else:
        yield "annotations", {**row, "dur_ns": 0, "kind": "instant", "args": args}


def _fields(raw: bytes, notes: Notes) -> _Fields | None:
    stripped = raw.strip()
    if not stripped.startswith(b"{"):
        raise UnusableEvent("not_an_object")
    if not stripped[1:-1].strip():
        return None
    try:
        return _DECODER.decode(stripped)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _lenient(stripped, notes)


def _lenient(raw: bytes, notes: Notes) -> _Fields:
    """Decode what strict JSON refuses: NaN and infinity, bytes that are not UTF-8, lone surrogates."""
    repaired: set[str] = set()
    try:
        found = tolerant_loads(raw, keep_numbers=True, notes=repaired)
    except (ValueError, RecursionError) as error:
        raise UnusableEvent("not_an_object") from error
    for code in sorted(repaired):
        notes.warn(code, f"in an event that begins {raw[:60].decode('utf-8', 'replace')!r}")
    return _Fields(
        **{k: _plain(found.get(k)) for k in ("ph", "name", "cat", "pid", "tid", "id", "args")},
        ts=_raw(found.get("ts")),
        dur=_raw(found.get("dur")),
    )


def _raw(value: Any) -> msgspec.Raw:
    text = "nan" if value is NOT_FINITE else value.text if isinstance(value, NumberText) else value
    return msgspec.Raw(b"" if text is None else str(text).encode())


def _plain(value: Any) -> Any:
    """Return a value with numbers as numbers again; those that are not finite become None."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, NumberText):
        whole = int64(value.text)
        return whole if whole is not None else float(value.text)
    return None if value is NOT_FINITE else value


def _time(raw: msgspec.Raw) -> int:
    text = bytes(raw).decode("utf-8", "replace").strip('"')
    if text in ("", "null"):
        raise UnusableEvent("ts_missing")
    found = text_to_ns(text)
    if isinstance(found, str):
        raise UnusableEvent(found)
    return found


def _length(raw: msgspec.Raw) -> int | None:
    found = text_to_ns(bytes(raw).decode("utf-8", "replace").strip('"'))
    return None if isinstance(found, str) else found


def _text(value: Any) -> str | None:
    """Return a name or an id as text."""
    if value is None or isinstance(value, str):
        return value
    return json_text(value)
