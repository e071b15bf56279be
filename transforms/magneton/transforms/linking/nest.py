"""Which slice encloses which: innermost containers by a sweep over events in the order of time.

A container encloses an event of the same thread that comes after it in the total order of ``windows`` and ends no later
than it does (ends count as inside). The innermost is the last such container. A launch has a container, but is never a container
itself. A slice may run past the end of the slice in which it started. It then belongs to the innermost slice that contains all of
it. The open slices of each thread are carried from window to window, so memory grows with the depth of the stacks, not with the
number of events.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

NOBODY = -1
# Slices whose time stamps are cut to whole microseconds may overlap by less than this by accident.
_ROUNDING_NS = 1000
# Steps to climb one by one before jumping.
_STEPS = 16

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass
class _Open:
    """Open containers of one thread, outermost first."""

    end: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    ident: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    depth: Ints = field(default_factory=lambda: np.empty(0, np.int64))


class Sweep:
    """Finds the innermost container of one class (operators, frames, modules ...) for events of consecutive windows.

    Attributes:
        overlaps: containers that begin well inside another one and end well after it.
    """

    def __init__(self) -> None:
        self.overlaps = 0
        self._open: dict[int, _Open] = {}

    def run(
        self,
        track: Ints,
        container: Mask,
        start: Ints,
        end: Ints,
        query_end: Ints,
        ident: Ints,
        point: Ints | None = None,
    ) -> tuple[Ints, Ints]:
        """Return for each event the id of its innermost container (-1: none) and the number of containers around it.

        Args:
            track: thread of each event; events are in total order.
            container: which events are containers.
            start: where containers start.
            end: where containers end.
            query_end: up to where an event must be enclosed (its own end).
            ident: ids of containers.
            point: where an event starts, for those that may settle for a container of their start alone, when none
                contains all of them; negative infinity otherwise. None: nobody settles.
        """
        parent = np.full(len(track), NOBODY, np.int64)
        depth = np.zeros(len(track), np.int64)
        order = np.argsort(track, kind="stable")
        sorted_track = track[order]
        changes = np.flatnonzero(sorted_track[1:] != sorted_track[:-1]) + 1
        bounds = [0, *changes.tolist(), len(track)] if len(track) else [0]
        for a, b in itertools.pairwise(bounds):
            at = order[a:b]
            open_ = self._open.setdefault(int(sorted_track[a]), _Open())
            settle = None if point is None else point[at]
            parent[at], depth[at] = self._thread(
                open_, container[at], start[at], end[at], query_end[at], ident[at], settle
            )
        return parent, depth

    def open(self) -> Iterator[int]:
        """Yield the ids of the containers that may still be open, on all threads."""
        for stack in self._open.values():
            yield from stack.ident.tolist()

    def _thread(
        self,
        open_: _Open,
        container: Mask,
        start: Ints,
        end: Ints,
        query_end: Ints,
        ident: Ints,
        point: Ints | None,
    ) -> tuple[Ints, Ints]:
        carried = len(open_.end)
        rows = np.flatnonzero(container)
        c_end = np.concatenate([open_.end, end[rows]])
        c_ident = np.concatenate([open_.ident, ident[rows]])
        total = len(c_end)
        up = np.arange(-1, total - 1)
        # Containers: step up until one ends late enough. Those skipped ended too early for whoever skips them next.
        active = np.arange(carried, total)
        if len(rows):
            last = up[active]
            before_end = np.where(last >= 0, c_end[last], 0) - _ROUNDING_NS
            self.overlaps += int(
                ((last >= 0) & (before_end > start[rows]) & (before_end < end[rows] - 2 * _ROUNDING_NS)).sum()
            )
        while len(active):
            above = up[active]
            active = active[(above >= 0) & (c_end[above] < c_end[active])]
            up[active] = up[up[active]]
        depth = _depths(up, carried, open_.depth)
        # Everyone else starts from the last container before it.
        before = carried - 1 + np.cumsum(container)
        found = np.empty(len(container), np.int64)
        found[rows] = up[carried:]
        others = np.flatnonzero(~container)
        found[others] = _climb(up, c_end, before[others], query_end[others])
        if point is not None:
            lost = others[found[others] < 0]
            found[lost] = _climb(up, c_end, before[lost], point[lost])
        parent = np.where(found >= 0, c_ident[found], NOBODY) if total else np.full(len(found), NOBODY, np.int64)
        around = np.where(found >= 0, depth[found] + 1, 0) if total else np.zeros(len(found), np.int64)
        if total:
            chain = []
            at = total - 1
            while at >= 0:
                chain.append(at)
                at = int(up[at])
            kept = np.array(chain[::-1], np.int64)
            open_.end, open_.ident, open_.depth = c_end[kept], c_ident[kept], depth[kept]
        return parent, around


def _climb(up: Ints, end: Ints, start: Ints, query: Ints) -> Ints:
    """Return the innermost container at or above ``start`` that ends no earlier than ``query`` (-1: none)."""
    at = start.copy()
    active = np.flatnonzero(at >= 0)
    for _ in range(_STEPS):
        active = active[end[at[active]] < query[active]]
        at[active] = up[at[active]]
        active = active[at[active] >= 0]
        if not len(active):
            return at
    # A deep stack: jump. Ends never shrink on the way up, so that all those skipped end too early.
    jumps = [up]
    while (jumps[-1] >= 0).any():
        last = jumps[-1]
        jumps.append(np.where(last >= 0, last[last], -1))
    active = active[end[at[active]] < query[active]]
    for jump in reversed(jumps):
        target = jump[at[active]]
        early = (target >= 0) & (end[target] < query[active])
        at[active[early]] = target[early]
    at[active] = up[at[active]]
    return at


def _depths(up: Ints, carried: int, known: Ints) -> Ints:
    """Return how many containers enclose each, by doubling along the chains."""
    total = len(up)
    steps = (up >= 0).astype(np.int64)
    jump = up.copy()
    steps[:carried], jump[:carried] = known, -1
    while (jump >= 0).any():
        steps = steps + np.where(jump >= 0, steps[jump], 0)
        jump = np.where(jump >= 0, jump[jump], -1)
    return steps if total else np.empty(0, np.int64)
