"""Checks of settings. The library makes them, so that the command line and a Python program are refused alike.

Example: ``need_number("threshold_percent", float("nan"), above=0)`` raises ``UsageError`` with the message
``threshold_percent is nan (give a finite number above 0)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
        raise UsageError(f"{name} is {_shown(value)}", remedy=f"give {_listed(choices)}")


def need_number(
    name: str, value: object, *, least: float | None = None, above: float | None = None, most: float | None = None
) -> None:
    """Refuse what is no finite number, or lies outside of its bounds.

    Args:
        name: name of the setting.
        value: what was given.
        least: smallest value that is allowed.
        above: value that has to be exceeded.
        most: largest value that is allowed.

    Raises:
        UsageError: not a number, not finite, or out of bounds.
    """
    # Of the numbers, truth values are none that anyone means.
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if fits and isinstance(value, int | float):
        fits = (
            (least is None or value >= least) and (above is None or value > above) and (most is None or value <= most)
        )
    if not fits:
        raise UsageError(f"{name} is {_shown(value)}", remedy=f"give a finite number{_bounds(least, above, most)}")


def need_whole(name: str, value: object, *, least: int | None = None, most: int | None = None) -> None:
    """Refuse what is no whole number, or lies outside of its bounds.

    Raises:
        UsageError: not a whole number, or out of bounds.
    """
    fits = isinstance(value, int) and not isinstance(value, bool)
    if fits and isinstance(value, int):
        fits = (least is None or value >= least) and (most is None or value <= most)
    if not fits:
        raise UsageError(f"{name} is {_shown(value)}", remedy=f"give a whole number{_bounds(least, None, most)}")


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


def _listed(choices: Sequence[str]) -> str:
    return ", ".join(choices[:-1]) + f" or {choices[-1]}" if len(choices) > 1 else choices[0]


def _bounds(least: float | None, above: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f" from {least:g} to {most:g}"
    if least is not None:
        return f", {least:g} or more"
    if above is not None:
        return f" above {above:g}" + ("" if most is None else f" and at most {most:g}")
    return "" if most is None else f", at most {most:g}"
