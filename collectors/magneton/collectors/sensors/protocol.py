"""The interface of all sensors: one protocol, one kind of reading, one hierarchy of errors.

A sensor is polled. ``open`` lists its series. After that, each poll gives a number or a reason for each series. If a device lacks a
field, that is an error of this field only (``Refusal``), not of the sensor. If a device is lost, its own series end; the others go on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from magneton.schemas.errors import MagnetonError
from magneton.schemas.kinds import Flag, PowerField

# Readings from which energy can be had. Which one is preferred is decided by the analysis, never here.
ENERGETIC = (PowerField.ENERGY_COUNTER, PowerField.POWER_INSTANT, PowerField.POWER, PowerField.POWER_AVERAGE)

# A library that stands in for a sensor says so in its attribute of this name; its readings carry ``Flag.SIMULATED``.
STAND_IN_ATTRIBUTE = "SIMULATED"
# Why a poll gave no number: codes of the column ``flags`` of the table ``power``.
REASONS = (Flag.NOT_AVAILABLE, Flag.NEGATIVE_ENERGY, Flag.NEGATIVE_POWER, Flag.VALUE_NOT_NUMERIC, Flag.VALUE_NOT_FINITE)


class SensorError(MagnetonError):
    """A sensor cannot be read."""


class SensorUnavailableError(SensorError):
    """There is no such sensor here: no library, no driver, no device."""


class SensorPermissionError(SensorError):
    """The sensor is here and this user may not read it."""


class SensorLostError(SensorError):
    """A device stopped answering for good."""

    def __init__(self, reason: str, device_id: str | None = None) -> None:
        super().__init__(reason)
        self.device_id = device_id


class FieldError(SensorError):
    """One field of one device gave no reading this time.

    Args:
        reason: what is wrong, in one clause.
        flag: code for the column ``flags`` of the table ``power``.
        remedy: what the user can do.
    """

    def __init__(self, reason: str, flag: str = Flag.NOT_AVAILABLE, *, remedy: str | None = None) -> None:
        super().__init__(reason, remedy=remedy)
        self.flag = flag


class FieldUnsupportedError(FieldError):
    """One field is not there on this device, and will not be."""


@dataclass(frozen=True)
class Series:
    """One reading of one device, polled again and again.

    Attributes:
        device_kind: ``gpu``, ``module`` (a board with GPU and CPU), ``cpu``, ``dram``, ``psys``. ``module`` and ``psys``
            contain other devices and must not be added to them.
        device_id: UUID of a GPU, name of a RAPL zone.
        name: name of the reading as its vendor has it.
        field: what it reads, as in the table ``power``.
        unit: ``W``, ``J``, ``MHz``, ``degC``, ``%`` or ``1``.
        slow: read ten times less often. Clocks and temperatures are slow, since they give no energy.
        labels: other facts, e.g. ``range_j`` (the value at which a counter starts again at 0), ``scope``.
        simulated: the reading comes from a stand-in and not from a device.
    """

    device_kind: str
    device_id: str | None
    name: str
    field: str
    unit: str
    slow: bool = False
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    simulated: bool = False


@dataclass(frozen=True)
class Refusal:
    """Something that cannot be read, and why.

    Attributes:
        device_id: of which device; None where the whole sensor is meant.
        name: which reading; None where the whole device or sensor is meant.
        reason: why, in one clause.
        remedy: what the user can do, if anything.
        kind: ``unsupported``, ``permission``, ``unavailable``, ``left_out`` (it would be counted twice) or ``error``.
    """

    device_id: str | None
    name: str | None
    reason: str
    remedy: str | None = None
    kind: str = "unsupported"


@dataclass
class SensorInfo:
    """What a sensor found when it was opened.

    Attributes:
        source: ``nvml``, ``amd-smi``, ``rapl``, ``command`` or ``file``.
        series: what can be read here.
        refusals: what cannot.
        devices: facts of each device: ``device_kind, device_id, index, name`` and what else the vendor says.
        facts: facts about the sensor as a whole: driver, library, visible devices.
        warnings: codes of ``magneton.schemas.codes.WARNING_CODES``.
    """

    source: str
    series: list[Series] = dataclasses.field(default_factory=list)
    refusals: list[Refusal] = dataclasses.field(default_factory=list)
    devices: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    warnings: list[str] = dataclasses.field(default_factory=list)

    @property
    def energetic(self) -> bool:
        """Whether anything here gives energy."""
        return any(s.field in ENERGETIC for s in self.series)


# One poll of one series: its number among the sensor's series, when (CLOCK_MONOTONIC, ns), the value or None, and why.
Reading = tuple[int, int, float | None, str | None]


class Sensor(Protocol):
    """A sensor. Everything but ``source`` may raise ``SensorError`` and nothing else."""

    source: str

    def open(self) -> SensorInfo:
        """Find what can be read.

        Raises:
            SensorUnavailableError: nothing can.
            SensorPermissionError: something is here, and none of it may be read.
        """

    def poll(self, *, slow: bool) -> Sequence[Reading]:
        """Read every series once, those that are slow only where ``slow`` is set.

        Raises:
            SensorLostError: no series is left. (A device of several that is lost gives None once and then nothing.)
        """

    def close(self) -> None:
        """Close the sensor. It may be opened again."""


class Meter(Protocol):
    """A meter that writes readings itself, stamped by itself, in the long CSV form of ``docs/power.md``."""

    source: str

    def start(self, directory: Path) -> None:
        """Begin to collect into ``directory``."""

    def stop(self) -> tuple[Path | None, list[str]]:
        """End, and return the file (None if there is none) and what went wrong."""
