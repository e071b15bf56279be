"""What a source that decodes row by row returns: rows of tables, counts of events, and warnings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from magneton.schemas.clocks import INT64_MAX, INT64_MIN, MAX_EVENT_TIME_NS
from magneton.transforms.reading.json_array import NOT_FINITE
from magneton.transforms.staging.stage import MAX_RAW, Stage

# Kind (see ``staging.KINDS``) and columns.
Row = tuple[str, dict[str, Any]]


@dataclass
class Notes:
    """Facts about an input; complete after all its rows were read.

    Attributes:
        framework, base_unix_ns, clock, devices, versions, metadata, incomplete: as in ``staging.SourceInfo``.
        max_dur_ns: longest credible event.
        n_raw: events seen; ``n_raw = n_kept + n_merged + n_ignored + n_quarantined``.
        warnings: how often each warning code was met, and the message for it.
    """

    framework: str | None = None
    base_unix_ns: int | None = None
    clock: str | None = None
    devices: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    incomplete: bool = False
    max_dur_ns: int = 7 * 86_400 * 10**9
    n_raw: int = 0
    n_kept: int = 0
    n_merged: int = 0
    n_ignored: int = 0
    n_quarantined: int = 0
    warnings: dict[str, tuple[int, str]] = field(default_factory=dict)

    def keep(self) -> None:
        """Count one event that became a row (or several)."""
        self.n_raw += 1
        self.n_kept += 1

    def merge(self) -> None:
        """Count one event that only describes others."""
        self.n_raw += 1
        self.n_merged += 1

    def ignore(self) -> None:
        """Count one empty element."""
        self.n_raw += 1
        self.n_ignored += 1

    def quarantine(self, reason: str, raw: Any, position: int | None = None) -> Row:
        """Count one event that cannot be used and return its row of ``quarantine``."""
        self.n_raw += 1
        self.n_quarantined += 1
        position = self.n_raw - 1 if position is None else position
        text = raw if isinstance(raw, str) else json_text(raw)
        return "quarantine", {"reason": reason, "position": position, "raw": text[:MAX_RAW]}

    def warn(self, code: str, message: str) -> None:
        """Note something about the capture; repeated codes add up and keep the first message."""
        seen, first = self.warnings.get(code, (0, message))
        self.warnings[code] = (seen + 1, first)

    def check_times(self, ts_ns: int | None, dur_ns: int | None) -> None:
        """Raise ``UnusableEvent`` for times no event can have. A length of None is unknown, not a fault."""
        if ts_ns is None:
            raise UnusableEvent("ts_missing")
        if abs(ts_ns) > MAX_EVENT_TIME_NS:
            raise UnusableEvent("ts_out_of_range")
        if dur_ns is not None and dur_ns < 0:
            raise UnusableEvent("dur_negative")
        if dur_ns is not None and dur_ns > self.max_dur_ns:
            raise UnusableEvent("dur_implausible")


class UnusableEvent(Exception):  # noqa: N818  (not an error of the program: the event goes to quarantine)
    """An event cannot be used; ``reason`` is one of ``QUARANTINE_REASONS``."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def hand_over(rows: Iterable[Row], notes: Notes, stage: Stage) -> None:
    """Stage rows, then what ``notes`` holds once they are through."""
    for kind, columns in rows:
        if kind == "quarantine":
            stage.quarantine(columns["reason"], columns["position"], columns["raw"])
            continue
        flow = columns.get("flow")
        if isinstance(flow, str):
            number = int64(flow)
            columns["flow"] = stage.wide_id(flow) if number is None else number
        stage.add_row(kind, **columns)
    stage.count(kept=notes.n_kept, merged=notes.n_merged, ignored=notes.n_ignored)
    for code, (count, message) in notes.warnings.items():
        stage.warn(code, message, count)
    for name in ("framework", "base_unix_ns", "clock", "devices", "versions", "metadata", "incomplete"):
        setattr(stage.info, name, getattr(notes, name))


def round_to_ns(ps: int) -> int:
    """Return picoseconds as nanoseconds; halves go to the even neighbour."""
    whole, rest = divmod(ps, 1000)
    return whole + (rest > 500 or (rest == 500 and whole & 1))


def json_text(value: Any) -> str:
    """Return a value as compact JSON; what JSON cannot hold is written as its text."""
    try:
        return msgspec.json.encode(value, enc_hook=_encode).decode()
    except (TypeError, ValueError, UnicodeError, msgspec.MsgspecError, RecursionError):
        return repr(value).encode("utf-8", "replace").decode()


def _encode(value: Any) -> Any:
    return None if value is NOT_FINITE else str(value)


def attributes(**values: Any) -> str | None:
    """Return the values that are known as a JSON object, or None where none is."""
    known = {k: v for k, v in values.items() if v is not None}
    return json_text(known) if known else None


def int64(value: Any) -> int | None:
    """Return a whole number that fits 64 bits, from a number or its decimal text; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            value = int(value) if len(value) <= 20 else None
        except ValueError:
            return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and INT64_MIN <= value <= INT64_MAX else None
