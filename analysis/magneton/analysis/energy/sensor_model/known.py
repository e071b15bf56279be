"""The table of known sensors: what is told by nobody else about a field of a chip, with the uncertainty of each fact.

The table is ``known_sensors.toml`` beside this module; every entry names its sources.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from magneton.analysis.energy.sensor_model.sensor import Response, boxcar, first_order

_TABLE = "known_sensors.toml"
UNKNOWN = "unknown"
# A range of widths is averaged over at so many points; one that spans more than a factor of two has more of them.
_POINTS, _POINTS_OF_WIDE = 5, 10
_MAKERS = {"boxcar": boxcar, "first_order": first_order}


@dataclass(frozen=True)
class KnownSensor:
    """What is known of one field of a family of chips.

    Attributes:
        family: of the chip; ``unknown`` where the table does not know it.
        field: field of the table ``power``.
        update_s: least and greatest time between new values, s; None where it is not known.
        responses: ranges of responses that a reading may have, each a tuple of equally likely ones; empty for a counter.
        gain: reading per true watt.
        gain_sd: its standard deviation.
        offset_sd: standard deviation of the reading at no power, as a share of the power limit.
        duty: share of the time that the sensor sees.
        confidence: ``measured``, ``study``, ``documented``, ``reported`` or ``assumed``.
        sources: where the facts are from.
    """

    family: str
    field: str
    update_s: tuple[float, float] | None
    responses: tuple[tuple[Response, ...], ...]
    gain: float
    gain_sd: float
    offset_sd: float
    duty: float
    confidence: str
    sources: tuple[str, ...]


def family_of(device_name: str | None) -> str:
    """Return the family of a chip by the name of the device: ``NVIDIA A100-PCIE-40GB`` is a ``GA100``."""
    for family, patterns in _table()["chips"].items():
        if any(re.search(pattern, device_name or "", re.IGNORECASE) for pattern in patterns):
            return str(family)
    return UNKNOWN


def known_sensor(device_name: str | None, field: str) -> KnownSensor:
    """Return what is known of a field of a device; of a device that the table does not hold, what holds for any.

    Args:
        device_name: as the driver names it.
        field: field of the table ``power``.
    """
    family = family_of(device_name)
    table = _table()
    for name in (family, UNKNOWN):
        for entry in table["sensor"]:
            if name in entry["family"] and field in entry["fields"]:
                return KnownSensor(
                    family=name,
                    field=field,
                    update_s=tuple(entry["update_s"]) if "update_s" in entry else None,
                    responses=tuple(r for one in entry["responses"] for r in _ranges(one["kind"], *one["s"])),
                    gain=entry["gain"],
                    gain_sd=entry["gain_sd"],
                    offset_sd=entry["offset_sd"],
                    duty=entry.get("duty", 1.0),
                    confidence=entry["confidence"],
                    sources=tuple(table["sources"][key] for key in entry["source"]),
                )
    raise LookupError(f"no sensor has the field {field}")


def _ranges(kind: str, low: float, high: float) -> tuple[tuple[Response, ...], ...]:
    """Return a range as equally likely responses; of a wide one each response is a range of its own, which any load tells apart."""
    if high > 2 * low:
        return tuple((_MAKERS[kind](s),) for s in np.geomspace(low, high, _POINTS_OF_WIDE).tolist())
    return (tuple(_MAKERS[kind](s) for s in np.linspace(low, high, _POINTS).tolist()),)


@cache
def _table() -> dict[str, dict]:  # type: ignore[type-arg]
    return tomllib.loads(files(__package__).joinpath(_TABLE).read_text(encoding="utf-8"))
