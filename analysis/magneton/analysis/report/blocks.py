"""Tables of a report, and how numbers with units are written in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Block:
    """A table of a report: title, headings, rows, and which headings are numbers or may wrap."""

    title: str
    names: list[str]
    rows: list[list[Any]]
    right: set[str] = field(default_factory=set)
    wrap: set[str] = field(default_factory=set)
    remark: str | None = None


def duration(ns: float | None, signed: bool = False) -> str:
    """Return a time in ms with three decimals (below 10 us in us), ``-`` when unknown."""
    if ns is None:
        return "-"
    sign = "+" if signed and ns > 0 else ""
    return f"{sign}{ns / 1e6:.3f} ms" if abs(ns) >= 1e4 or ns == 0 else f"{sign}{ns / 1e3:.3f} us"


def energy(joules: float | None, signed: bool = False) -> str:
    """Return an energy in J or mJ, ``-`` when unknown."""
    if joules is None:
        return "-"
    sign = "+" if signed and joules > 0 else ""
    return f"{sign}{joules:.4g} J" if abs(joules) >= 1 or joules == 0 else f"{sign}{joules * 1e3:.4g} mJ"


def percent(value: float | None) -> str:
    """Return a signed percentage, ``-`` when unknown."""
    return "-" if value is None else f"{value:+.1f} %"


def count(value: float | None) -> str:
    """Return a number of things, without decimals where it is whole."""
    return "-" if value is None else f"{value:.0f}" if value == round(value) else f"{value:.2f}"
