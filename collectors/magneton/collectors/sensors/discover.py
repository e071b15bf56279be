"""Which sensors there are, by name, and what can be read on this machine."""

from __future__ import annotations

import importlib
import logging
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from magneton.collectors.sensors.external import CommandMeter, FileMeter
from magneton.collectors.sensors.protocol import Meter, Refusal, Sensor, SensorError, SensorInfo, SensorPermissionError
from magneton.schemas.errors import UsageError

LOG = logging.getLogger(__name__)

# Name of each polled sensor, with the module of this package and the class in it, which is made without arguments.
SENSORS: dict[str, str] = {
    "nvml": "nvml.NvmlSensor",
    "amd-smi": "amd.AmdSmiSensor",
    "rapl": "rapl.RaplSensor",
}
METERS = ("command", "file")


@dataclass
class Opened:
    """Sensors that are open, with what each found, and those that could not be opened."""

    sensors: list[tuple[Sensor, SensorInfo]] = field(default_factory=list)
    refusals: dict[str, Refusal] = field(default_factory=dict)

    def close(self) -> None:
        """Close all of them."""
        for sensor, _ in self.sensors:
            sensor.close()


def split(wanted: Sequence[str] | None) -> tuple[list[str], list[Meter]]:
    """Return the names of polled sensors, and the meters, among names such as ``nvml``, ``command:...``, ``file:...``.

    Args:
        wanted: the names; None means every polled sensor.

    Raises:
        UsageError: a name that is none.
    """
    if wanted is None:
        return list(SENSORS), []
    polled: list[str] = []
    meters: list[Meter] = []
    for name in wanted:
        kind, colon, rest = name.partition(":")
        file = "meter.csv" if not meters else f"meter-{len(meters) + 1}.csv"
        if name in SENSORS:
            polled.append(name)
        elif colon and kind == "command" and (words := _words(rest)):
            meters.append(CommandMeter(words, file))
        elif colon and kind == "file" and rest:
            meters.append(FileMeter(Path(rest), file))
        else:
            known = ", ".join([*SENSORS, *(f"{m}:..." for m in METERS)])
            raise UsageError(f"there is no sensor {name[:40]!r}", remedy=f"known: {known}")
    return polled, meters


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"cannot read the command {text[:40]!r}: {error}", remedy="close its quotes") from error


def open_sensors(names: Iterable[str]) -> Opened:
    """Open polled sensors; one that cannot be opened is a refusal, not an error."""
    opened = Opened()
    for name in names:
        sensor = _make(name)
        try:
            opened.sensors.append((sensor, sensor.open()))
        except SensorError as error:
            kind = "permission" if isinstance(error, SensorPermissionError) else "unavailable"
            opened.refusals[name] = Refusal(None, None, error.reason, error.remedy, kind)
            LOG.info("sensor %s: not used: %s", name, error.reason)
        else:
            LOG.info("sensor %s: used", name)
    return opened


def _make(name: str) -> Sensor:
    module, made = SENSORS[name].split(".")
    return cast("Sensor", getattr(importlib.import_module(f"magneton.collectors.sensors.{module}"), made)())
