"""kineto: the Chrome traces of torch.profiler, and of what is built on it (vLLM, SGLang, Megatron, Diffusers ...).

The fast path decodes a piece of the file into typed events, sorts them into groups, and stages them in columns. An event may not fit:
a wrong type, an odd number, a broken string, an undefined phase. Then its small group of events goes through ``malformed``, which
repairs or quarantines each event and hands it to the same staging.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from magneton.schemas.errors import InputFormatError
from magneton.transforms.reading.json_array import Clean, EventArray, NotJsonError
from magneton.transforms.reading.json_scan import value_end
from magneton.transforms.reading.limits import HEAD_BYTES, Limits
from magneton.transforms.reading.timestamps import NotPlainError, to_ns
from magneton.transforms.sources import Input
from magneton.transforms.sources.kineto.columns import Columns, Table
from magneton.transforms.sources.kineto.events import (
    ARGS,
    DECODE_ARGS,
    PHASES,
    Event,
    FrameEvent,
    decode_events,
    decode_frames,
    group_of,
)
from magneton.transforms.sources.kineto.header import ProcessNames, read_header
from magneton.transforms.sources.kineto.malformed import Cleaned, clean, coerce_args
from magneton.transforms.sources.kineto.unknown_kinds import adopt_unknown_kinds
from magneton.transforms.staging.pairing import Paired, pair
from magneton.transforms.staging.stage import NONE, Stage

FORMAT = "kineto"

_GROUP = 64
# A list of so many objects without a single event is of something else.
_ENOUGH = 512
# A device record of time 0 this long before everything else was never filled.
_FAR_NS = 3_600 * 10**9

Ints = NDArray[np.int64]


def sniff(head: bytes, path: Path) -> bool:
    """Tell whether a file may be a Chrome trace; formats with their own dialect of it are asked first."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"{"):
        # The event array may begin beyond the head, or the file may stop before it.
        return b'"traceEvents"' in text or len(head) >= HEAD_BYTES or value_end(text, 0) is None
    # A list of other things (settings, a memory timeline) has no phases.
    return text.startswith(b"[") and (b'"ph"' in text or re.fullmatch(rb"\[\s*\]?\s*", text) is not None)


def read(source: Input, stage: Stage, limits: Limits) -> None:
    """Stage the events of a file.

    Raises:
        InputFormatError: not a trace, or broken beyond single events.
        TruncatedInputError: the file stops in the middle, and that was not allowed.
    """
    _Reader(source, stage, limits).run()


class _Dirty(Exception):  # noqa: N818  (control flow: a group of events must be looked at one by one)
    pass


class _Reader:
    def __init__(self, source: Input, stage: Stage, limits: Limits) -> None:
        self._source = source
        self._stage = stage
        self._limits = limits
        self._columns = Columns(stage)
        self._names = ProcessNames()
        self._earliest: int | None = None
        self._in_frames = False
        self._suspects: list[tuple[Cleaned, int, str]] = []

    def run(self) -> None:
        blocks = self._source.blocks()
        try:
            self._read(blocks)
        except NotJsonError as error:
            raise error.refusal(self._source.blocks(), self._source.path) from error
        finally:
            # Ends the thread that decompresses ahead, also when the file is refused.
            if isinstance(blocks, Generator):
                blocks.close()

    def _read(self, blocks: Iterator[bytes]) -> None:
        path, stage = self._source.path, self._stage
        array: EventArray[Any] = EventArray(
            blocks, self._decode, path=path, allow_truncated=self._limits.allow_truncated
        )
        position = 0
        for piece in array:
            if isinstance(piece, Clean):
                try:
                    self._stage_all(piece.items, position)
                    position += len(piece.items)
                    continue
                except _Dirty:
                    elements = piece.elements()
            else:
                elements = piece.elements
            for start in range(0, len(elements), _GROUP):
                self._group(elements[start : start + _GROUP], position + start)
                self._refuse_other_lists(position + min(start + _GROUP, len(elements)))
            position += len(elements)
        self._settle_suspects()
        for paired in pair(stage):
            self._stage_paired(paired)
        read_header(stage, array.metadata, self._names, self._earliest)
        adopt_unknown_kinds(stage, self._names)
        if array.left_out:
            stage.warn("metadata_left_out", f"too large to keep: {array.left_out[0][:80]!r}", len(array.left_out))
        if array.unterminated:
            stage.warn("array_not_terminated", "the event array has no closing bracket")
            stage.warn("maybe_incomplete", "the file may have been cut off: its event array has no closing bracket")
        if array.truncated or getattr(self._source, "truncated", False):
            stage.info.incomplete = True
            stage.warn("truncated", f"the file stops in the middle; {position} events were read")

    def _decode(self, text: bytes | memoryview) -> list[Event] | list[FrameEvent]:
        """Decode a piece; where the last one was all frames, this one likely is too."""
        if self._in_frames:
            try:
                return decode_frames(text)
            except msgspec.ValidationError:
                self._in_frames = False
        events = decode_events(text)
        self._in_frames = len(events) > 1 and events[0].cat == events[-1].cat == "python_function"
        return events

    def _refuse_other_lists(self, position: int) -> None:
        """Refuse a file whose elements, up to here, are no objects at all, or many objects of which none is an event."""
        quarantined = self._stage.quarantined
        others = quarantined.get("not_an_object", 0)
        if others == position or (position >= _ENOUGH and others + quarantined.get("phase_missing", 0) == position):
            raise InputFormatError("is not a trace: the elements of its list are not events", path=self._source.path)

    def _settle_suspects(self) -> None:
        """Decide on device records of time 0: where everything else is far away, the profiler never filled them."""
        for cleaned, position, text in self._suspects:
            if self._earliest is not None and self._earliest > _FAR_NS:
                self._stage.quarantine("kernel_ts_zero", position, text)
                self._stage.warn("kernel_ts_zero", f"event {position} is a device record of time 0")
                continue
            event = cleaned.event
            group, category = group_of(event.ph, event.cat, event.name)
            table = self._prepare(group, category, event.ph, [event], [cleaned.args], [position])
            self._commit(group, event.ph, [event], table)

    def _group(self, elements: list[bytes], position: int) -> None:
        try:
            self._stage_all(decode_events(b"[%b]" % b",".join(elements)), position)
        except (_Dirty, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._one_by_one(elements, position)

    def _one_by_one(self, elements: list[bytes], position: int) -> None:
        """Repair or quarantine each element, then stage what is left as if it had been read that way."""
        kept: dict[tuple[str, str | None, str], list[tuple[Cleaned, int]]] = defaultdict(list)
        for at, raw in enumerate(elements, position):
            if raw == b"{}":
                self._stage.count(ignored=1)
                continue
            cleaned = clean(raw, at, self._stage, self._limits)
            if cleaned is not None and cleaned.suspect:
                self._suspects.append((cleaned, at, raw.decode("utf-8", "replace")))
            elif cleaned is not None:
                event = cleaned.event
                kept[(*group_of(event.ph, event.cat, event.name), event.ph)].append((cleaned, at))
        for (group, category, phase), members in kept.items():
            events = [c.event for c, _ in members]
            args = [c.args for c, _ in members]
            table = self._prepare(group, category, phase, events, args, [at for _, at in members])
            self._commit(group, phase, events, table)

    def _stage_all(self, events: Sequence[Event] | Sequence[FrameEvent], position: int) -> None:
        """Stage events, all or none.

        Raises:
            _Dirty: one of them needs a closer look.
        """
        if events and isinstance(events[0], FrameEvent):
            self._stage_frames(cast("Sequence[FrameEvent]", events))
        else:
            self._stage_mixed(cast("Sequence[Event]", events), position)

    def _stage_frames(self, frames: Sequence[FrameEvent]) -> None:
        try:
            table = self._prepare("frames", "python_function", "X", frames, [f.args for f in frames], [])
        except (OverflowError, NotPlainError) as error:
            raise _Dirty from error
        self._commit("frames", "X", frames, table)

    def _stage_mixed(self, events: Sequence[Event], position: int) -> None:
        buckets: dict[tuple[str, str | None], list[Event]] = defaultdict(list)
        for event in events:
            buckets[event.ph, event.cat].append(event)
        positions: dict[int, int] = {}
        if any(phase in "BEbneSTpF" for phase, _ in buckets):
            positions = {id(e): at for at, e in enumerate(events, position)}
        work = []
        for (phase, category), bucket in buckets.items():
            if phase not in PHASES:
                raise _Dirty
            for members in _split_memory(bucket) if category == "cpu_instant_event" else (bucket,):
                group, spelled = group_of(phase, category, members[0].name)
                try:
                    args: list[Any] = []
                    if group in DECODE_ARGS:
                        args = DECODE_ARGS[group](b"[%b]" % b",".join([e.args for e in members]))
                    at = [positions[id(e)] for e in members] if group == "edges" else []
                    table = self._prepare(group, spelled, phase, members, args, at)
                    if table is not None and group == "kernels" and not np.all(table.columns["ts_ns"]):
                        raise _Dirty
                    work.append((group, phase, members, table))
                except (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError, NotPlainError) as error:
                    raise _Dirty from error
        for group, phase, members, table in work:
            self._commit(group, phase, members, table)

    def _prepare(
        self,
        group: str,
        category: str | None,
        phase: str,
        events: Sequence[Event] | Sequence[FrameEvent],
        args: Sequence[Any],
        positions: list[int],
    ) -> Table | None:
        """Return the columns to stage for events of one group; nothing has happened yet.

        Raises:
            _Dirty, NotPlainError, OverflowError, UnicodeError, msgspec.MsgspecError: an event does not fit.
        """
        if group == "metadata":
            self._names.prepare(cast("Sequence[Event]", events), args)
            return None
        ts = to_ns([e.ts for e in events])
        if (ts == NONE).any():
            raise _Dirty
        dur = np.full(len(events), NONE, np.int64)
        if phase == "X":
            dur = to_ns([e.dur for e in events])
            known = dur != NONE
            if (dur[known] < 0).any() or (dur > self._limits.max_event_dur_ns).any():
                raise _Dirty
        return self._columns.of(group, category, phase, events, args, ts, dur, positions)

    def _commit(
        self, group: str, phase: str, events: Sequence[Event] | Sequence[FrameEvent], table: Table | None
    ) -> None:
        stage = self._stage
        if group == "metadata":
            self._names.commit(cast("Sequence[Event]", events))
            stage.count(merged=len(events))
        if table is None:
            return
        stage.add(table.kind, table.columns)
        if group not in ("flows", "edges"):  # counted once it is known what became of them
            stage.count(kept=len(events))
        if phase == "X" and (unknown := np.asarray(table.columns["dur_ns"]) == NONE).any():
            first = events[int(np.argmax(unknown))].name
            stage.warn("dur_missing", f"{first!r} has no length", int(unknown.sum()))
        ts = np.asarray(table.columns["ts_ns"])
        if len(ts) and (self._earliest is None or ts.min() < self._earliest):
            self._earliest = int(ts.min())

    def _stage_paired(self, paired: Paired) -> None:
        """Stage a slice or span that was written as two events; it is already counted."""
        begin = paired.begin
        group, category = group_of("X", begin.category, begin.name)
        if paired.kind != "slice":
            group, category = "annotations", begin.category
        written = msgspec.json.decode(begin.args) if begin.args else {}
        args = coerce_args(group, written if isinstance(written, dict) else {}, self._stage)
        event = Event(ph="X", name=begin.name, args=msgspec.Raw(begin.args or b"{}"))
        ts = np.array([begin.ts_ns], np.int64)
        dur = np.array([paired.dur_ns], np.int64)
        table = self._columns.of(group, category, "X", [event], [args], ts, dur, [])
        columns = table.columns | {"track": np.array([begin.track], np.int32)}
        if group in ("ops", "annotations"):
            columns["flags"] = [paired.flags]
        if group == "annotations":
            columns["kind"] = [paired.kind]
        self._stage.add(table.kind, columns)


def _split_memory(events: list[Event]) -> list[list[Event]]:
    """Separate the allocator's instants from others of the same category."""
    return [list(g) for _, g in itertools.groupby(events, key=lambda e: e.name == "[memory]")]


assert set(ARGS) <= set(DECODE_ARGS)  # noqa: S101  (both tables describe the same groups)
