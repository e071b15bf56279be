"""Converting times of one clock to times of another, in exact arithmetic.

An anchor is one instant read on two clocks at once. One anchor gives a fixed offset. Several anchors give straight lines between
neighbouring anchors; the outermost lines continue beyond the first and last anchor. Without an anchor, times are not converted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from magneton.schemas.errors import ClockAlignmentError
from magneton.schemas.kinds import Clock
from magneton.schemas.manifest import ClockAnchor

# Clocks that anchors tie together.
CLOCKS = (Clock.REALTIME, Clock.MONOTONIC, Clock.BOOTTIME)
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
# Times of events beyond this (in the year 2079) are refused: the difference of two others and a length fit 64 bits.
MAX_EVENT_TIME_NS = 3 << 60

# Clocks of one machine drift by some hundred parts per million. More than 1 % means that the machine slept, or that
# someone set a clock, between two anchors: then no straight line is right.
MAX_RATE_ERROR = Fraction(1, 100)

Points = list[tuple[int, int]]


def anchors_from_readings(readings: Iterable[Mapping[str, object]]) -> list[ClockAnchor]:
    """Return anchors from readings such as ``{"realtime_ns": .., "boottime_ns": .., "monotonic_ns": ..}``.

    Raises:
        ClockAlignmentError: a reading has no ``realtime_ns``, or a value is not a whole number of 64 bits.
    """
    anchors = []
    for reading in readings:
        values = {name: reading[f"{name}_ns"] for name in CLOCKS if reading.get(f"{name}_ns") is not None}
        if any(isinstance(v, bool) or not isinstance(v, int) for v in values.values()) or Clock.REALTIME not in values:
            raise ClockAlignmentError("a clock anchor needs realtime_ns and whole numbers of nanoseconds")
        if not all(INT64_MIN <= v <= INT64_MAX for v in values.values()):  # type: ignore[operator]
            raise ClockAlignmentError("a clock anchor has a time that does not fit 64 bits of nanoseconds")
        unix_ns = values.pop(Clock.REALTIME)
        anchors += [ClockAnchor(unix_ns=unix_ns, clock=k, clock_ns=v) for k, v in values.items()]  # type: ignore[arg-type]
    return anchors


class ClockMap:
    """Map of time stamps from one clock to another: one or more straight lines, exact until the final rounding.

    Args:
        stages: for each step of the way, points (source ns, target ns); an empty tuple is the identity.
    """

    def __init__(self, stages: Sequence[Points] = ()) -> None:
        self._stages = [_checked(points) for points in stages]

    @property
    def offset_ns(self) -> int | None:
        """The constant offset, or NULL where the clocks run at different rates."""
        total = 0
        for points in self._stages:
            offsets = {target - source for source, target in points}
            if len(offsets) != 1:
                return None
            total += offsets.pop()
        return total

    def convert(self, ts_ns: int) -> int:
        """Return a time stamp on the target clock, rounded half to even.

        Raises:
            ClockAlignmentError: the result does not fit 64 bits of nanoseconds.
        """
        value = Fraction(ts_ns)
        for points in self._stages:
            value = _line(points, value)
        result = round(value)
        if not INT64_MIN <= result <= INT64_MAX:
            raise ClockAlignmentError("a converted time stamp does not fit 64 bits of nanoseconds")
        return result

    def convert_array(self, ts_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return an int64 array of time stamps (ns) on the target clock; see ``convert``."""
        if len(ts_ns) == 0:
            return ts_ns.astype(np.int64)
        offset = self.offset_ns
        if offset is None or not INT64_MIN <= offset <= INT64_MAX:
            return np.array([self.convert(t) for t in ts_ns.tolist()], dtype=np.int64)
        if int(ts_ns.min()) + offset < INT64_MIN or int(ts_ns.max()) + offset > INT64_MAX:
            raise ClockAlignmentError("a converted time stamp does not fit 64 bits of nanoseconds")
        return ts_ns + np.int64(offset)


def clock_map(anchors: Iterable[ClockAnchor], source: str, target: str = Clock.REALTIME) -> ClockMap:
    """Return the map from clock ``source`` to clock ``target``.

    Two clocks other than ``realtime`` are converted through ``realtime``.

    Raises:
        ClockAlignmentError: no anchor of a clock that is needed, anchors that contradict one another, or clocks that
            ran apart by more than 1 % between two anchors (the machine slept, or a clock was set).
    """
    if source == target:
        return ClockMap()
    known = list(anchors)
    stages = []
    if source != Clock.REALTIME:
        stages.append([(a.clock_ns, a.unix_ns) for a in known if a.clock == source])
    if target != Clock.REALTIME:
        stages.append([(a.unix_ns, a.clock_ns) for a in known if a.clock == target])
    for name, points in zip([c for c in (source, target) if c != Clock.REALTIME], stages, strict=True):
        if not points:
            raise ClockAlignmentError(
                f"no anchor ties the clock {name[:40]!r} to the wall clock",
                remedy="record both clocks at one instant and give the pair as a clock anchor",
            )
    return ClockMap(stages)


def _checked(points: Points) -> Points:
    ordered = sorted(set(points))
    for (s0, t0), (s1, t1) in itertools.pairwise(ordered):
        if s1 == s0 or t1 <= t0:
            raise ClockAlignmentError("clock anchors contradict one another: a clock stood still or was set back")
        if abs(Fraction(t1 - t0, s1 - s0) - 1) > MAX_RATE_ERROR:
            raise ClockAlignmentError(
                "two clocks ran apart by more than 1 % between anchors: the machine slept or a clock was set",
                remedy="give anchors from the stretch of time that was recorded",
            )
    return ordered


def _line(points: Points, value: Fraction) -> Fraction:
    """Evaluate the straight lines through ``points`` (sorted, at least one) at ``value``."""
    if len(points) == 1:
        return value + (points[0][1] - points[0][0])
    upper = next((i for i in range(1, len(points) - 1) if value <= points[i][0]), len(points) - 1)
    (s0, t0), (s1, t1) = points[upper - 1], points[upper]
    return t0 + (value - s0) * Fraction(t1 - t0, s1 - s0)
