"""Operators and modules of a recording by name: whether they exist, and how long they take in a step."""

from __future__ import annotations

import difflib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from magneton.analysis.energy.repeats.difference import times_needed
from magneton.analysis.recording import Recording
from magneton.schemas.errors import UsageError
from magneton.schemas.kinds import CaptureKind

# Used if the recording has no times. The accuracy of the method was measured with this number.
DEFAULT_TIMES = 20
# Dispatching a call takes microseconds, however short its kernel is. With more calls, a step would consist of dispatch.
MAX_TIMES = 10_000


@dataclass(frozen=True)
class RegionTime:
    """A region of a recording.

    Attributes:
        name: an operator's name or a module's path.
        module: whether it is a module's path.
        region_s: time of all its calls in one step, s: of its kernels, or of its operators where nothing ran on a device;
            None where the recording has no times or steps.
        step_s: length of a step, s (the median); None likewise.
    """

    name: str
    module: bool
    region_s: float | None
    step_s: float | None


def find_regions(recording: Recording, names: Sequence[str]) -> list[RegionTime]:
    """Return the regions that names stand for.

    Args:
        recording: with tables ``ops`` and ``modules``; its first rank is looked at.
        names: names of operators, or paths of modules as in ``modules.path``.

    Raises:
        UsageError: no names, or one that the recording does not have.
    """
    if not names:
        raise UsageError("no region is named", remedy="give --regions NAME")
    operators = {n for n in pc.unique(recording.table("ops", ("name",))["name"]).to_pylist() if n}
    paths = {p for p in pc.unique(recording.table("modules", ("path",))["path"]).to_pylist() if p}
    for name in names:
        if name not in operators and name not in paths:
            near = difflib.get_close_matches(name, sorted(operators | paths), n=1, cutoff=0.5)
            raise UsageError(
                f"no operator and no module is called {name!r}",
                remedy=f"did you mean {near[0]}?" if near else "see its tables ops (name) and modules (path)",
            )
    times = _Times(recording)
    return [times.region(name, module=name not in operators) for name in dict.fromkeys(names)]


class _Times:
    """Calls, kernels and steps of the profile of the first rank."""

    def __init__(self, recording: Recording) -> None:
        self._recording, self._rank = recording, recording.ranks()[0]
        ops = self._rows("ops", ("op_id", "parent_id", "module_id", "name", "dur_ns"))
        self._parent = dict(zip(ops["op_id"], ops["parent_id"], strict=True))
        self._names = dict(zip(ops["op_id"], ops["name"], strict=True))
        self._module = dict(zip(ops["op_id"], ops["module_id"], strict=True))
        self._length = dict(zip(ops["op_id"], ops["dur_ns"], strict=True))
        modules = recording.table("modules", ("module_id", "path"))
        self._paths = dict(zip(modules["module_id"].to_pylist(), modules["path"].to_pylist(), strict=True))
        kernels = self._rows("kernels", ("op_id", "dur_ns"))
        self._kernels = list(zip(kernels["op_id"], kernels["dur_ns"], strict=True))
        steps = self._rows("steps", ("dur_ns",))["dur_ns"]
        self._steps = [ns for ns in steps if ns]

    def _rows(self, name: str, columns: tuple[str, ...]) -> dict[str, list[object]]:
        table = self._recording.of_rank(name, self._rank, (*columns, "capture", "rank"))
        found: dict[str, list[object]] = table.filter(pc.equal(table["capture"], CaptureKind.PROFILE)).to_pydict()
        return found

    def region(self, name: str, *, module: bool) -> RegionTime:
        """Return a region with its times."""
        if module:
            inside = {m for m, path in self._paths.items() if path == name or (path or "").startswith(f"{name}/")}
            chosen = {op for op, at in self._module.items() if at in inside}
        else:
            chosen = {op for op, called in self._names.items() if called == name}
        if not chosen or not self._steps:
            return RegionTime(name, module, None, None)
        if self._kernels:
            total = sum(_number(ns) for op, ns in self._kernels if self._within(op, chosen))
        else:
            # An operator inside another that counts is in that one's time.
            total = sum(_number(self._length[op]) for op in chosen if not self._within(self._parent[op], chosen))
        step_s = statistics.median(map(_number, self._steps)) / 1e9
        return RegionTime(name, module, total / 1e9 / len(self._steps), step_s)

    def _within(self, op: object, chosen: set[object]) -> bool:
        while op is not None:
            if op in chosen:
                return True
            op = self._parent.get(op)
        return False


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def times_for(region: RegionTime, period_s: float | None, reach_s: float) -> tuple[int, str]:
    """Return how often to run a region, and why.

    Args:
        region: the region, as a recording has it.
        period_s: update period of the sensor, s; None without one: the region should then take half of a step.
        reach_s: how far back a reading of the sensor looks, s.
    """
    if not region.region_s or not region.step_s:
        return DEFAULT_TIMES, "the recording has no times of it"
    period = float("inf") if period_s is None else period_s
    needed = times_needed(period, reach_s, region.step_s, region.region_s)
    known = f"{region.region_s * 1e6:.4g} us of a step of {region.step_s * 1e6:.4g} us"
    sensor = "no sensor" if period_s is None else f"a sensor that updates every {period_s * 1e3:.4g} ms"
    return min(needed, MAX_TIMES), f"{known}, {sensor}"
