"""Python frames as kineto names them: ``file.py(12): function``, ``<built-in method ...>``, ``nn.Module: Linear_3``."""

from __future__ import annotations

import re
from dataclasses import dataclass

MODULE = "nn.Module: "
_PLACE = re.compile(r"(?P<file>.+?)\((?P<line>\d{1,18})\): (?P<function>.*)", re.DOTALL)
_INSTANCE = re.compile(r"_\d+$")


@dataclass(frozen=True)
class Place:
    """Where a function is defined. All of it is None for built-in functions and module calls."""

    file: str | None = None
    line: int | None = None
    function: str | None = None


def place(name: str) -> Place:
    r"""Return file, line and function of a frame.

    The file is everything before ``(line): ``, so drive letters (``C:\model.py``), ``//server/share`` and parentheses in
    paths stay whole.
    """
    found = _PLACE.fullmatch(name)
    if found is None:
        return Place()
    return Place(found["file"], int(found["line"]), found["function"])


def module_instance(name: str) -> str | None:
    """Return the instance (``Linear_3``) when the frame is a call of an ``nn.Module``, else None."""
    return name.removeprefix(MODULE) if name.startswith(MODULE) else None


def module_class(instance: str) -> str:
    """Return the class of a module instance: ``Linear_3`` is a ``Linear``."""
    return _INSTANCE.sub("", instance)
