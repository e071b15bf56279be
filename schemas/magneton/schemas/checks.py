"""Checks of settings. The library makes them, so that the command line and a Python program are refused alike.

Example: ``need_number("threshold_percent", float("nan"), above=0)`` raises ``UsageError`` with the message
``threshold_percent is nan (give a number, above 0 and finite)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from os import PathLike, fspath
from pathlib import Path

from magneton.schemas.errors import UsageError

PathText = str | PathLike[str]


def need_one_of(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a word that is not one of the choices.

    Raises:
        UsageError: it is another word, or no word.
    """
    if value not in choices:
        raise UsageError(f"{name} is {_shown(value)}", remedy=f"give one of {', '.join(choices)}")


def need_number(
    name: str,
    value: object,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
) -> float:
    """Return a number, or refuse what is none, is not finite, or lies outside of its bounds.

    Args:
        name: name of the setting.
        value: what was given; a number of numpy is a number, a truth value is none.
        least: smallest value that is allowed.
        above: value that has to be exceeded.
        most: largest value that is allowed.

    Raises:
        UsageError: not a number, not finite, or out of bounds.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        known = float(value)
        if math.isfinite(known) and least <= known <= most and known > above:
            return known
    low = f"above {above:g} and " if above > -math.inf else f"at least {least:g} and " if least > -math.inf else ""
    high = "finite" if most == math.inf else f"at most {most:g}"
    raise UsageError(f"{name} is {_shown(value)}", remedy=f"give a number, {low}{high}")


def need_whole(name: str, value: object, *, least: int | None = None) -> int:
    """Return a whole number, or refuse what is none, or lies below its bound.

    Raises:
        UsageError: not a whole number, or less than ``least``.
    """
    if isinstance(value, Integral) and not isinstance(value, bool):
        known = int(value)
        if least is None or known >= least:
            return known
    low = "" if least is None else f", at least {least}"
    raise UsageError(f"{name} is {_shown(value)}", remedy=f"give a whole number{low}")


def path_of(name: str, value: object) -> Path:
    """Return a path that was given as text or as a path.

    Raises:
        UsageError: it is neither, or empty.
    """
    text = fspath(value) if isinstance(value, str | PathLike) else None
    if not isinstance(text, str) or not text:
        raise UsageError(f"{name} is {_shown(value)}", remedy="give a path, as text or as pathlib.Path")
    return Path(text)


def paths_of(name: str, value: PathText | Sequence[PathText]) -> list[Path]:
    """Return the paths in a sequence of them; one path is a sequence of one.

    Raises:
        UsageError: something is no path.
    """
    if isinstance(value, str | PathLike) or not isinstance(value, Sequence):
        return [path_of(name, value)]
    return [path_of(name, one) for one in value]


def _shown(value: object) -> str:
    return repr(value)[:60]
