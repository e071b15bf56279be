"""Marking steps inside a program: ``record.step()``. It does nothing where nothing is recorded."""

from __future__ import annotations

import sys
from typing import Any, Protocol


class Stepping(Protocol):
    """A recorder whose steps the program marks."""

    def step(self) -> None:
        """A step has ended."""


_ACTIVE: list[Stepping] = []


def enter(recorder: Stepping) -> None:
    """Pass steps on to a recorder from now on."""
    _ACTIVE.append(recorder)


def leave(recorder: Stepping) -> None:
    """Pass them on no more."""
    if recorder in _ACTIVE:
        _ACTIVE.remove(recorder)


def step() -> None:
    """Say that a step of the program has ended: to the recorder of the ``with`` block around, else to ``magneton record``.

    Example::

        for batch in batches:
            model(batch)
            record.step()
    """
    if _ACTIVE:
        _ACTIVE[-1].step()
        return
    child: Any = sys.modules.get("magneton.collectors.attach.child")
    attached = None if child is None else child.attached_here()
    if attached is not None:
        attached.marked()
