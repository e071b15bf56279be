"""The tree of ``nn.Module`` instances, from the frames that call them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magneton.transforms.naming.frame_names import module_class
from magneton.transforms.staging.arrays import Growing
from magneton.transforms.staging.stage import NONE

Ints = NDArray[np.int64]


@dataclass
class Module:
    """One instance at one place of the tree."""

    module_id: int
    parent: Module | None
    instance: str
    path: str
    depth: int
    track: int
    ts_ns: int
    dur_ns: int = 0
    n_calls: int = 0


class ModuleTree:
    """Instances by their place: the same instance called from two parents is two modules.

    Args:
        first_id: id of the first module of this capture.
    """

    def __init__(self, first_id: int) -> None:
        self.modules: list[Module] = []
        self._first_id = first_id
        self._by_place: dict[tuple[int, str], Module] = {}
        self._open: dict[int, Module] = {}
        self._calls = Growing()
        self._called = Growing()
        self._fresh: list[tuple[int, int]] = []

    def call(self, frame_id: int, around: int, instance: str, track: int, ts_ns: int, dur_ns: int) -> int:
        """Enter one call, in the order of time, and return the id of its module.

        Args:
            frame_id: the calling frame of kind module.
            around: the module call around it (-1: none).
            instance: class and number, e.g. ``Linear_3``.
            track: thread.
            ts_ns: start.
            dur_ns: length; below 0 where unknown.
        """
        parent = self._open.get(around)
        place = (-1 if parent is None else parent.module_id, instance)
        module = self._by_place.get(place)
        if module is None:
            path = instance if parent is None else f"{parent.path}/{instance}"
            depth = 0 if parent is None else parent.depth + 1
            module = Module(self._first_id + len(self.modules), parent, instance, path, depth, track, ts_ns)
            self._by_place[place] = module
            self.modules.append(module)
        module.n_calls += 1
        module.dur_ns += max(dur_ns, 0)
        self._open[frame_id] = module
        self._fresh.append((frame_id, module.module_id))
        return module.module_id

    def settle(self, still_open: Iterable[int]) -> None:
        """Take note that all calls but these are over; call it after each stretch of time."""
        self._open = {call: self._open[call] for call in still_open if call in self._open}
        self._flush()

    def _flush(self) -> None:
        if self._fresh:
            calls, modules = zip(*self._fresh, strict=True)
            self._calls.append(np.array(calls, np.int64))
            self._called.append(np.array(modules, np.int64))
            self._fresh.clear()

    def of_calls(self, calls: Ints) -> Ints:
        """Return the modules of module calls (-1 or ``NONE``: no call, no module)."""
        self._flush()
        known = self._calls.view()
        if not len(known):
            return np.full(len(calls), NONE, np.int64)
        at = np.minimum(np.searchsorted(known, calls), len(known) - 1)
        return np.where(known[at] == calls, self._called.view()[at], NONE)

    def columns(self) -> dict[str, Any]:
        """Return the rows of table ``modules`` (without threads) as columns."""
        ms = self.modules
        return {
            "name": [m.instance for m in ms],
            "ts_ns": np.array([m.ts_ns for m in ms], np.int64),
            "dur_ns": np.array([m.dur_ns for m in ms], np.int64),
            "module_id": np.array([m.module_id for m in ms], np.int64),
            "parent_id": np.array([NONE if m.parent is None else m.parent.module_id for m in ms], np.int64),
            "class_name": [module_class(m.instance) for m in ms],
            "path": [m.path for m in ms],
            "depth": np.array([m.depth for m in ms], np.int64),
            "n_calls": np.array([m.n_calls for m in ms], np.int64),
        }
