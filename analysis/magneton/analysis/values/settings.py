"""Settings of the matcher. One configuration serves all programs; the switches show what each part of the method contributes."""

from __future__ import annotations

from dataclasses import dataclass

# Relative tolerance by the coarsest type upstream of a value; other types use the tolerance of the settings.
PRECISION_TOLERANCE = {
    "bfloat16": 2e-2,
    "float16": 2e-3,
    "half": 2e-3,
    "tfloat32": 2e-3,  # as many digits as float16
    "float8_e4m3fn": 1.5e-1,
    "float8_e5m2": 3e-1,
    "float8_e4m3fnuz": 1.5e-1,
    "float8_e5m2fnuz": 3e-1,
}
# Rounding noise relative to the norm (not centred). Values that are mostly their mean differ by this much.
NOISE = {
    "float64": 1e-9,
    "double": 1e-9,
    "complex128": 1e-9,
    "float32": 16 * 1.2e-7,
    "complex64": 16 * 1.2e-7,
    "float16": 9.8e-4,
    "half": 9.8e-4,
    "tfloat32": 9.8e-4,
    "bfloat16": 7.8e-3,
}
_NOISE_OF_FLOAT8 = 6e-2


@dataclass(frozen=True)
class MatchSettings:
    """How values are matched.

    Attributes:
        tolerance: relative distance within which values of single precision are the same.
        views: use the arrangements that views add, not only the one a value was defined in.
        copies: join values that a copy or float cast connects.
        unions: recognise a value as the concatenation of others along an axis.
        definition_order: decide between nearly equal candidates by order of definition.
        mutual: match only mutually nearest values, never all within tolerance.
        second_input: drop matches that do not hold for a second input.
        context: align several definitions of one value by what surrounds them, not only first with first.
    """

    tolerance: float = 1e-4
    views: bool = True
    copies: bool = True
    unions: bool = True
    definition_order: bool = True
    mutual: bool = True
    second_input: bool = True
    context: bool = True


def tolerance_of(precision: str, settings: MatchSettings) -> float:
    """Return the relative tolerance for values of a precision."""
    return max(settings.tolerance, PRECISION_TOLERANCE.get(precision, 0.0))


def noise_of(precision: str) -> float:
    """Return the rounding noise of a precision, relative to the norm."""
    return NOISE.get(precision, _NOISE_OF_FLOAT8 if precision.startswith("float8") else NOISE["float32"])
