"""Repairing or quarantining a single malformed event of a kineto trace.

An event is repaired and kept if its meaning is clear: a number written as a string, an id written as a float, a name with broken
bytes. It is quarantined with the reason otherwise: a time that is not a number, a negative length, an undefined phase.
"""

from __future__ import annotations

import re
import typing
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from magneton.schemas.clocks import INT64_MAX, INT64_MIN
from magneton.transforms.reading.json_array import MAX_NUMBER, NOT_FINITE, NotJsonError, NumberText, tolerant_loads
from magneton.transforms.reading.limits import Limits
from magneton.transforms.reading.timestamps import text_to_ns
from magneton.transforms.sources.kineto.events import ARGS, MORE, NO_ARGS, PHASES, REST, Event, group_of, known_names
from magneton.transforms.staging.stage import Stage

_INT = re.compile(r"[+-]?\d{1,100}", re.ASCII)
# Ids that only have to join: what does not fit 63 bits gets a stand-in.
_JOINED = frozenset({"correlation", "External id", "Python id", "Python parent id"})
_MESSAGES = {
    "invalid_utf8": "bytes that are not UTF-8 were replaced by U+FFFD",
    "lone_surrogate": "lone UTF-16 surrogates were replaced by U+FFFD",
    "args_not_finite": "NaN or infinity among the arguments; stored as NULL",
}


@dataclass(slots=True)
class Cleaned:
    """An event that fits, and its arguments in the type of its group (a dict where the group has none).

    ``suspect`` marks a device record of time 0: real only where the capture begins there.
    """

    event: Event
    args: Any
    suspect: bool = False


def clean(raw: bytes, position: int, stage: Stage, limits: Limits) -> Cleaned | None:
    """Return a repaired event, or None after it was counted as ignored or quarantined.

    Raises:
        NotJsonError: the text is not JSON, even with all repairs.
    """
    notes: set[str] = set()
    text = raw.decode("utf-8", "replace")
    try:
        value = tolerant_loads(raw, keep_numbers=True, notes=notes)
    except ValueError as error:
        raise NotJsonError(error, raw, f"in event {position}") from error
    except RecursionError:
        stage.quarantine("event_too_large", position, text)
        return None
    if value == {}:
        stage.count(ignored=1)
        return None
    reason, event, group = _event(value, limits)
    if reason is not None or event is None:
        stage.quarantine(reason or "not_an_object", position, text)
        if reason == "kernel_ts_zero":
            stage.warn("kernel_ts_zero", f"event {position} is a device record of time 0 that was never filled")
        return None
    args = value.get("args")
    args = args if isinstance(args, dict) else {}
    plain_args = plain(args, notes)
    typed = coerce_args(group, plain_args, stage) if group in ARGS else plain_args
    event.args = Raw(_json(plain_args)) if plain_args else NO_ARGS
    for note in notes:
        stage.warn(note, f"{_MESSAGES[note]} (first in event {position})")
    return Cleaned(event, typed, group == "kernels" and bytes(event.ts) == b"0.000")


def _event(value: Any, limits: Limits) -> tuple[str | None, Event | None, str]:
    """Return why the event cannot be used (or None), the event without its arguments, and its group."""
    if not isinstance(value, dict):
        return "not_an_object", None, ""
    phase = value.get("ph")
    if phase is None:
        return "phase_missing", None, ""
    if not isinstance(phase, str) or phase not in PHASES:
        return "phase_unknown", None, ""
    category = value.get("cat")
    event = Event(
        ph=phase,
        name=_text(value.get("name")),
        cat=category if isinstance(category, str) else None,
        pid=_id(value.get("pid")),
        tid=_id(value.get("tid")),
        id=_id(value.get("id", value.get("id2"))),
    )
    group = group_of(event.ph, event.cat, event.name)[0]
    if group == "metadata":
        return None, event, group
    ts = _time(value.get("ts"))
    if isinstance(ts, str):
        return ts, None, group
    event.ts = _microseconds(ts)
    if phase == "X":
        dur = _duration(value.get("dur"))
        if dur is not None and dur < 0:
            return "dur_negative", None, group
        if dur is not None and dur > limits.max_event_dur_ns:
            return "dur_implausible", None, group
        if dur is not None:
            event.dur = _microseconds(dur)
        if group == "kernels" and ts == 0 and not dur:
            return "kernel_ts_zero", None, group
    return None, event, group


def _microseconds(ns: int) -> Raw:
    whole, rest = divmod(abs(ns), 1000)
    return Raw(b"%b%d.%03d" % (b"-" if ns < 0 else b"", whole, rest))


def _time(value: Any) -> int | str:
    if value is None:
        return "ts_missing"
    if value is NOT_FINITE:
        return "ts_not_finite"
    if isinstance(value, NumberText):
        return text_to_ns(value.text)
    return text_to_ns(value) if isinstance(value, str) else "ts_not_numeric"


def _duration(value: Any) -> int | None:
    """Return a length in ns; None where it says nothing; out of range is a very long (or negative) one."""
    ns = _time(value)
    if ns == "ts_out_of_range":
        written = value.text if isinstance(value, NumberText) else str(value)
        return -1 if written.startswith("-") else INT64_MAX
    return None if isinstance(ns, str) else ns


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return value.text if isinstance(value, NumberText) else _json(plain(value, set())).decode()


def _id(value: Any) -> int | str | None:
    if isinstance(value, NumberText):
        if _INT.fullmatch(value.text):
            return int(value.text)
        whole = text_to_ns(value.text)
        return whole // 1000 if isinstance(whole, int) and whole % 1000 == 0 else value.text
    return _text(value)


def plain(value: Any, notes: set[str]) -> Any:
    """Return JSON with its numbers as Python's; what is not finite becomes None and is noted."""
    if isinstance(value, NumberText):
        if _INT.fullmatch(value.text):
            return int(value.text)
        number = float(value.text) if len(value.text) <= MAX_NUMBER else float("inf")
        if abs(number) != float("inf"):
            return number
        value = NOT_FINITE
    if value is NOT_FINITE:
        notes.add("args_not_finite")
        return None
    if isinstance(value, list):
        return [plain(v, notes) for v in value]
    if isinstance(value, dict):
        return {k: plain(v, notes) for k, v in value.items()}
    return value


def coerce_args(group: str, args: dict[str, Any], stage: Stage) -> Any:
    """Return the arguments of one event in the type of its group; what cannot be converted becomes None."""
    type_ = ARGS[group]
    values = {}
    for field in msgspec.structs.fields(type_):
        value = args.get(field.encode_name)
        if value is not None:
            converted = _coerce(value, field.type, field.encode_name in _JOINED, stage)
            if converted is not None:
                values[field.name] = converted
    rest = {k: v for k, v in args.items() if k not in known_names(type_)}
    if rest and type_ in MORE:
        values[REST] = rest
    return type_(**values)


def _coerce(value: Any, type_: Any, joined: bool, stage: Stage) -> Any:
    wanted = next(t for t in typing.get_args(type_) or (type_,) if t is not type(None))
    if wanted is Raw:
        return Raw(_json(value))
    if wanted is int:
        return _int(value, joined, stage)
    if wanted is float:
        try:
            return None if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            return None
    if wanted is str:
        return value if isinstance(value, str) else None
    if typing.get_origin(wanted) is list:
        numbers = [_int(v, False, stage) for v in value] if isinstance(value, list) else [None]
        return None if None in numbers else numbers
    return value


def _int(value: Any, joined: bool, stage: Stage) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) and _INT.fullmatch(value):
        value = int(value)
    if not isinstance(value, int):
        return None
    if INT64_MIN < value <= INT64_MAX:
        return value
    return stage.wide_id(value) if joined else None


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)
