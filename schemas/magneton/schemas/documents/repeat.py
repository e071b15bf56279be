"""What one call takes, found by repeating it: the documents of ``magneton repeat`` and of ``magneton.flows.replays``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from magneton.schemas.errors import SchemaVersionError
from magneton.schemas.files.json import read_object
from magneton.schemas.kinds import EnergyBasis
from magneton.schemas.versions.registry import SCHEMA_VERSION, DocumentStep, upgrade_document

REPEATS_FORMAT, REPLAYS_FORMAT = "magneton-repeats", "magneton-replays"


class RefusalDoc(msgspec.Struct):
    """Why something is not known: ``code`` as errors have it, and the reason with its remedy."""

    code: str
    reason: str


class WindowDoc(msgspec.Struct):
    """A stretch of the run, in ns on CLOCK_MONOTONIC.

    ``iterations`` are the steps in it, or the calls where the region ran alone. ``times`` is how often each call ran in an
    iteration.
    """

    start_ns: int
    end_ns: int
    iterations: int
    times: int


class TimeEstimate(msgspec.Struct):
    """Time of all calls of a step, and of one call, with 95 % intervals. ``identified``: the interval is at most 10 % wide."""

    value_s: float
    low_s: float
    high_s: float
    value_s_per_call: float
    low_s_per_call: float
    high_s_per_call: float
    identified: bool


class EnergyEstimate(msgspec.Struct):
    """Energy on one device of all calls of a step, and of one call, with 95 % intervals; NULL where it is refused.

    ``compared`` are the clocks, temperatures and caps that were read and agree; ``conditions`` are their means. ``basis`` is
    ``gross``: all that the device drew.
    """

    device_kind: str | None
    device_id: str | None
    field: str | None
    label: str | None
    simulated: bool
    compared: list[str]
    conditions: dict[str, float]
    refusal: RefusalDoc | None
    basis: str = EnergyBasis.GROSS
    value_j: float | None = None
    low_j: float | None = None
    high_j: float | None = None
    value_j_per_call: float | None = None
    low_j_per_call: float | None = None
    high_j_per_call: float | None = None
    identified: bool | None = None


class RepeatedRegion(msgspec.Struct):
    """A region: an operator, or a module whose operators are repeated each by itself.

    ``times`` is r, how often each call ran; ``times_because`` says why. ``repeated`` holds the operators that were repeated, with
    their calls in a step; ``not_repeated`` holds the others, with the reason. ``cold``: there were so many copies of the
    arguments that no cache held those used next.
    """

    name: str
    system: str
    kind: str
    times: int
    times_because: str | None
    calls_per_step: int
    repeated: dict[str, int]
    not_repeated: dict[str, str]
    cold: bool
    windows: list[WindowDoc]
    time: TimeEstimate | None = None
    energies: list[EnergyEstimate] = []
    refusal: RefusalDoc | None = None


class RepeatDocument(msgspec.Struct):
    """What ``magneton repeat`` found. ``method`` is ``in_place`` or ``alone``; ``steps`` are those of the program.

    With ``in_place`` a region runs r times in some windows and once in others; what one call takes is the difference of the
    two, over r - 1. With ``alone`` it runs by itself.
    """

    method: str
    steps: int
    step_kind: str
    window_s: float
    rounds: int
    simulated: bool
    regions: list[RepeatedRegion]
    sensors: list[dict[str, Any]]
    versions: dict[str, str]
    notes: list[str]
    format: str = REPEATS_FORMAT
    schema_version: int = SCHEMA_VERSION


class ReplayedCallDoc(msgspec.Struct):
    """An operation that was replayed alone: its place in the program, its inputs, and what a call of it takes."""

    name: str
    place: str
    inputs: list[str]
    windows: list[WindowDoc] = []
    copies: int | None = None
    cold: bool | None = None
    time: TimeEstimate | None = None
    energies: list[EnergyEstimate] = []
    refusal: RefusalDoc | None = None


class ReplayDocument(msgspec.Struct):
    """What ``magneton.flows.replays.measure_replays`` found."""

    simulated: bool
    calls: list[ReplayedCallDoc]
    sensors: list[dict[str, Any]]
    notes: list[str]
    format: str = REPLAYS_FORMAT
    schema_version: int = SCHEMA_VERSION


Document = TypeVar("Document", RepeatDocument, ReplayDocument)
# Version 1 stated no version in these documents, so none of them can be read.
_STEPS: dict[int, DocumentStep] = {2: lambda document: document}


def read_repeats(path: Path) -> RepeatDocument:
    """Read what ``magneton repeat --out`` wrote.

    Raises:
        InputNotFoundError: no such file.
        InputFormatError: not JSON.
        SchemaVersionError: no version, one this release does not read, or another document.
    """
    return _read(path, RepeatDocument, REPEATS_FORMAT)


def read_replays(path: Path) -> ReplayDocument:
    """Read a document of ``measure_replays`` that was written with ``encode_json``. Raises as ``read_repeats`` does."""
    return _read(path, ReplayDocument, REPLAYS_FORMAT)


def _read(path: Path, kind: type[Document], format_: str) -> Document:
    document = read_object(path)
    if document.get("format") != format_:
        raise SchemaVersionError(f"is not a document of the format {format_}", path=path)
    try:
        return msgspec.convert(upgrade_document(document, _STEPS, path), kind)
    except msgspec.ValidationError as error:
        raise SchemaVersionError(f"is not a document of the format {format_}: {error}", path=path) from error
