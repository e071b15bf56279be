"""Numbers read from their text, exactly: time stamps to integer nanoseconds, readings to floats with a reason if not."""

from __future__ import annotations

import decimal
import re

from magneton.schemas.clocks import INT64_MAX, INT64_MIN
from magneton.schemas.kinds import Flag

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_NAN, _INFINITE = {"nan", "+nan", "-nan"}, {"inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"}
_MISSING = {"", "n/a", "na", "none", "null", "-", "err!", "unknown", "not supported", "not available"} | _NAN
_CONTEXT = decimal.Context(prec=200, rounding=decimal.ROUND_HALF_EVEN, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
_MAX_DIGITS = 100


def time_ns(text: str, exponent: int) -> int | str:
    """Return a time stamp written in units of 10**(exponent - 9) seconds as integer nanoseconds, or a reason code.

    The decimal text is scaled exactly; digits below 1 ns round half to even. ``exponent`` is 9 for seconds, 6 for
    milliseconds, 3 for microseconds, 0 for nanoseconds. The reasons are those of ``codes.QUARANTINE_REASONS``.
    """
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 20:
        value = int(text) * 10**exponent
    else:
        lowered = text.lower()
        if lowered in _NAN or lowered in _INFINITE:
            return "ts_not_finite"
        if lowered in _MISSING:
            return "ts_missing"
        if len(text) > _MAX_DIGITS or not _NUMBER.fullmatch(text):
            return "ts_not_numeric"
        exact = decimal.Decimal(text).scaleb(exponent, _CONTEXT)
        if exact and exact.adjusted() > 20:
            return "ts_out_of_range"
        value = int(exact.to_integral_value(context=_CONTEXT))
    return value if INT64_MIN <= value <= INT64_MAX else "ts_out_of_range"


def is_missing(text: str) -> bool:
    """Say whether a cell is one of the spellings of "no reading" (``N/A``, ``[Not Supported]``, empty, ``nan``)."""
    text = text.strip()
    return text.lower() in _MISSING or (text.startswith("[") and text.endswith("]"))


def reading(text: str) -> float | str:
    """Return a reading as a float, or a reason code (``not_available``, ``value_not_finite``, ``value_not_numeric``)."""
    text = text.strip()
    if is_missing(text):
        return Flag.NOT_AVAILABLE
    if text.lower() in _INFINITE:
        return "value_not_finite"
    if not _NUMBER.fullmatch(text):
        return "value_not_numeric"
    value = float(text)
    return value if abs(value) != float("inf") else "value_not_finite"
