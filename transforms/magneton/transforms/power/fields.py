"""Units and names of sensor readings: everything becomes W, J, MHz, degC, %, bytes, V, A or 1 (a plain ratio)."""

from __future__ import annotations

from collections.abc import Callable

from magneton.schemas.kinds import DeviceKind, Flag, PowerField
from magneton.transforms.reading.decimals import reading

_UNIT_OF_FIELD: dict[str, str] = {
    PowerField.ENERGY_COUNTER: "J",
    PowerField.POWER_INSTANT: "W",
    PowerField.POWER: "W",
    PowerField.POWER_AVERAGE: "W",
    PowerField.POWER_LIMIT: "W",
}

# unit as written -> (base unit, multiplier, divisor). Division keeps whole milli- and microjoules exact.
_UNITS: dict[str, tuple[str, float, float]] = {
    "W": ("W", 1, 1),
    "mW": ("W", 1, 1e3),
    "uW": ("W", 1, 1e6),
    "kW": ("W", 1e3, 1),
    "J": ("J", 1, 1),
    "mJ": ("J", 1, 1e3),
    "uJ": ("J", 1, 1e6),
    "nJ": ("J", 1, 1e9),
    "kJ": ("J", 1e3, 1),
    "MJ": ("J", 1e6, 1),
    "mWh": ("J", 3.6, 1),
    "Wh": ("J", 3600, 1),
    "kWh": ("J", 3.6e6, 1),
    "Hz": ("MHz", 1, 1e6),
    "kHz": ("MHz", 1, 1e3),
    "MHz": ("MHz", 1, 1),
    "GHz": ("MHz", 1e3, 1),
    "degC": ("degC", 1, 1),
    "C": ("degC", 1, 1),
    "°C": ("degC", 1, 1),
    "%": ("%", 1, 1),
    "B": ("bytes", 1, 1),
    "bytes": ("bytes", 1, 1),
    "KiB": ("bytes", 1024, 1),
    "MiB": ("bytes", 1024**2, 1),
    "GiB": ("bytes", 1024**3, 1),
    "KB": ("bytes", 1000, 1),
    "MB": ("bytes", 1000**2, 1),
    "GB": ("bytes", 1000**3, 1),
    "V": ("V", 1, 1),
    "mV": ("V", 1, 1e3),
    "A": ("A", 1, 1),
    "mA": ("A", 1, 1e3),
    "1": ("1", 1, 1),
}
# Upper and lower case tell mega from milli. So case is ignored only for these spellings.
_SPELLED = {
    "watt": "W",
    "watts": "W",
    "milliwatts": "mW",
    "microwatts": "uW",
    "kilowatts": "kW",
    "joule": "J",
    "joules": "J",
    "millijoules": "mJ",
    "microjoules": "uJ",
    "nanojoules": "nJ",
    "kilojoules": "kJ",
    "hertz": "Hz",
    "megahertz": "MHz",
    "celsius": "degC",
    "percent": "%",
    "volts": "V",
    "amperes": "A",
    "ratio": "1",
}

Scale = tuple[str, Callable[[float], float]]
# One reading of a row: its series, its value, and where there is none the reason.
Cell = tuple[int, float | None, str | None]


def unit_scale(unit: str | None) -> Scale | None:
    """Return the base unit and the function that brings a value into it, or None for no unit or an unknown one."""
    text = (unit or "").strip().replace("µ", "u").replace("μ", "u")
    found = _UNITS.get(text) or _UNITS.get(_SPELLED.get(text.lower(), ""))
    if found is None:
        return None
    base, multiplier, divisor = found
    if divisor != 1:
        return base, lambda value: value / divisor
    if multiplier != 1:
        return base, lambda value: value * multiplier
    return base, lambda value: value


def expected_unit(field: str) -> str | None:
    """Return the base unit that a field must have, or None for an unknown field."""
    return _UNIT_OF_FIELD.get(field)


def gives_energy(field: str, unit: str | None) -> bool:
    """Say whether a field of that base unit measures power or energy (a limit does not)."""
    return unit in {"W", "J"} and field != PowerField.POWER_LIMIT


# Fields that give the energy of a whole device. Others (of its memory, of its module) are parts of it or hold it.
TOTAL_FIELDS = (PowerField.ENERGY_COUNTER, PowerField.POWER_INSTANT, PowerField.POWER, PowerField.POWER_AVERAGE)


def gives_total(field: str) -> bool:
    """Say whether a field gives the energy of a whole device."""
    return field in TOTAL_FIELDS


_LIMIT_WORDS = ("limit", "cap", "max", "min", "threshold", "default")


def power_field(name: str) -> str:
    """Return the field that a power metric called ``name`` reads, judged by the words in it."""
    words = name.lower().replace(".", "_").split("_")
    if any(word in words for word in _LIMIT_WORDS):
        return PowerField.POWER_LIMIT
    if "average" in words or "avg" in words:
        return PowerField.POWER_AVERAGE
    if any(word.startswith("instant") for word in words) or "current" in words:
        return PowerField.POWER_INSTANT
    return PowerField.POWER


# More than one device of any kind but these draws, W. Meters and nodes may stand for a rack.
_MOST_W = 5e3
_MOST_OF_MANY_W = 1e6
_SINGLE = frozenset({DeviceKind.GPU, DeviceKind.MODULE, DeviceKind.CPU, DeviceKind.CPU_PACKAGE, DeviceKind.PACKAGE, DeviceKind.CORE, DeviceKind.UNCORE, DeviceKind.DRAM})  # fmt: skip
# A device that drew the most for ten years has used less, J.
_MOST_J = 1e14
# What drivers write where they have no value: all bits of 32 and 64, and the largest signed numbers.
_BLANKS = frozenset({2.0**31 - 1, 2.0**32 - 1, 2.0**63, 2.0**64})
_LARGEST = 9.2e18


def is_blank(field: str, value: float) -> bool:
    """Say whether a number as written, in its own unit, is a driver's word for no value (all bits set).

    A counter may pass 65535 or 2^32 - 1 on its way, so for counters only numbers count that none can reach.
    """
    return value in _BLANKS if field != PowerField.ENERGY_COUNTER else value >= _LARGEST


def check_value(field: str, unit: str | None, value: float, device_kind: str | None = None) -> str | None:
    """Return the reason why a reading in its base unit cannot be right, or None."""
    wanted = expected_unit(field)
    if wanted is not None and unit != wanted:
        return "unit_mismatch"
    if value < 0 and unit == "W":
        return Flag.NEGATIVE_POWER
    if value < 0 and unit == "J":
        return Flag.NEGATIVE_ENERGY
    if unit == "W" and value > (_MOST_W if device_kind in _SINGLE else _MOST_OF_MANY_W):
        return Flag.VALUE_IMPLAUSIBLE
    if unit == "J" and value > _MOST_J:
        return Flag.VALUE_IMPLAUSIBLE
    return None


def read_cell(series: int, field: str, scale: Scale | None, text: str, device_kind: str | None = None) -> Cell:
    """Return the reading in a cell in its base unit, or the reason why there is none.

    Args:
        series: number of the series, passed through.
        field: what is read.
        scale: from ``unit_scale``; None where the unit is unknown.
        text: the cell without its unit.
        device_kind: kind of the device, which decides what power is possible.
    """
    value = reading(text)
    if isinstance(value, str):
        return series, None, value
    if scale is None:
        return series, None, "unit_unknown"
    scaled = scale[1](value)
    wrong = check_value(field, scale[0], scaled, device_kind)
    if wrong is None and scale[0] in {"W", "J"} and is_blank(field, value):
        wrong = Flag.VALUE_IMPLAUSIBLE
    return series, None if wrong else scaled, wrong
