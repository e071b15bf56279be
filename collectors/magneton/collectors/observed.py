"""What a recorder saw, in the standard library alone: it runs inside programs that may lack every package of this project.

``recording.writer`` turns these into the entries of the manifest that have the same names.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from magneton.schemas.kinds import DeviceKind


@dataclass
class ClockAnchor:
    """One instant read on two clocks at once, in nanoseconds."""

    unix_ns: int
    clock: str
    clock_ns: int


@dataclass
class Capture:
    """One execution of the system, observed in one way, on one rank. ``file`` lies where it was written."""

    name: str
    kind: str
    rank: int = 0
    repeat: int | None = None
    input_id: str | None = None
    source_format: str | None = None
    file: str | None = None
    incomplete: bool = False
    anchors: list[ClockAnchor] = field(default_factory=list)


@dataclass
class Device:
    """A device as the recorded system saw it."""

    index: int | None = None
    name: str | None = None
    uuid: str | None = None
    kind: str = DeviceKind.GPU
