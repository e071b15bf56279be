"""Where the time of the host goes in a step: operators, dispatch, Python between them, and waiting.

At every instant the innermost slice of a thread owns the time: an operator, or a call that waits. From that follows an identity that
holds to the nanosecond in every step::

    operators + dispatch + Python + waiting = wall time + beside

*Operators* is the own time of operators that compute, *dispatch* that of all others. *Waiting* is the time in calls that only
wait. *Python* is the rest: no operator ran, and no waiting is known. *Beside* is the own time of operators that made the step no
longer: two threads worked at once, or an operator ended after its step. With one thread it is 0.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from magneton.analysis.recording import Needs, Recording

# Calls of a device runtime that return when the device is done.
_RUNTIME_WAIT = r"(?i)synchronize"
# Functions written in C that return when something else has happened. Those of the same name that do not wait are left out: ``wait`` of
# an event makes a stream wait, and ``join`` joins texts.
_PYTHON_WAIT = re.compile(
    r"<built-in (?:function (?P<function>sleep|select|waitpid|_cuda_synchronize)>"
    r"|method (?P<method>acquire of (?:_thread|_multiprocessing)\.|poll of select\.|(?:recv|recv_into|accept) of _?socket\."
    r"|get of _queue\.|synchronize of ))"
)
_WAIT_COLUMNS = ("name", "ts_ns", "dur_ns", "pid", "tid", "rank")
_MARK_COLUMNS = ("step_id", "ts_ns", "dur_ns", "pid", "tid", "rank")
OP_COLUMNS = ("op_id", "name", "ts_ns", "dur_ns", "pid", "tid", "depth", "step_id")
NEEDS: Needs = {"launches": _WAIT_COLUMNS, "frames": _WAIT_COLUMNS, "annotations": _MARK_COLUMNS}

Ints = npt.NDArray[np.int64]
_Thread = tuple[str | None, str | None]
# Start, end, number of slices around it, and number of the slice: operators from 0, waits below 0.
_Slice = tuple[int, int, int, int]


@dataclass(frozen=True)
class HostTime:
    """Where the time of one step went on the host, ns.

    Attributes:
        wall_ns: length of the step.
        operators_ns: own time of operators that compute. On a device, where kernels compute, 0.
        dispatch_ns: own time of all other operators.
        python_ns: time in which no operator ran and no waiting is known.
        waiting_ns: time in calls that wait, by what is called.
        beside_ns: part of the operators' own time that is no part of the wall time.
    """

    wall_ns: float
    operators_ns: float
    dispatch_ns: float
    python_ns: float
    waiting_ns: dict[str, float]
    beside_ns: float

    def divided(self, by: float) -> HostTime:
        """Return the times divided by a number."""
        waiting = {name: value / by for name, value in self.waiting_ns.items()}
        return HostTime(
            self.wall_ns / by,
            self.operators_ns / by,
            self.dispatch_ns / by,
            self.python_ns / by,
            waiting,
            self.beside_ns / by,
        )


class Timeline:
    """Which operator, or which wait, owns each instant of each thread of one rank.

    Args:
        recording: the recording.
        rank: the rank.
        ops: timed rows of the table ``ops`` by ``op_id``, with ``OP_COLUMNS``.
    """

    def __init__(self, recording: Recording, rank: int, ops: Mapping[int, Mapping[str, Any]]) -> None:
        self._ops = [row for row in ops.values() if row["dur_ns"] is not None]
        waits = _waits(recording, rank)
        self._threads = _Numbers()
        self._names = _Numbers()
        slices: defaultdict[int, list[_Slice]] = defaultdict(list)
        for number, row in enumerate(self._ops):
            start = row["ts_ns"]
            slices[self._threads[_thread(row)]].append((start, start + row["dur_ns"], row["depth"] or 0, number))
        for number, (row, _) in enumerate(waits):
            # Inside of everything that began at the same time.
            start = row["ts_ns"]
            slices[self._threads[_thread(row)]].append((start, start + row["dur_ns"], 1 << 30, ~number))
        found = [
            (start, end, number, around, thread)
            for thread, own in slices.items()
            for start, end, number, around in _owned(own)
        ]
        table: Ints = np.array(found, dtype=np.int64).reshape(-1, 5)
        self._is_op = table[:, 2] >= 0
        self._start, self._end, self._number, self._around, self._thread = table.T
        self._op_start: Ints = np.array([row["ts_ns"] for row in self._ops], dtype=np.int64)
        steps = [-1 if row["step_id"] is None else row["step_id"] for row in self._ops]
        self._op_step: Ints = np.array(steps, dtype=np.int64)
        self._wait_name: Ints = np.array([self._names[name] for _, name in waits], dtype=np.int64)
        self._computes = np.zeros(len(self._ops), dtype=bool)
        self._carrier = {step: self._threads[thread] for step, thread in _carriers(recording, rank).items()}
        self._busiest = _busiest(self._thread[self._is_op], (self._end - self._start)[self._is_op])
        edges = recording.of_rank("launches", rank, _WAIT_COLUMNS)
        self.span = _span(self._start, self._end, edges)

    def own_times(self) -> dict[int, float]:
        """Return the own time of each operator, ns: without operators inside it, and without waiting."""
        length = np.where(self._is_op, self._end - self._start, 0)
        own = np.bincount(np.where(self._is_op, self._number, 0), length, minlength=len(self._ops))
        return {row["op_id"]: float(own[number]) for number, row in enumerate(self._ops)}

    def compute(self, names: Collection[str]) -> None:
        """Say which operators compute, by their names."""
        self._computes = np.array([row["name"] in names for row in self._ops], dtype=bool)

    def of_step(self, row: Mapping[str, Any]) -> HostTime | None:
        """Return where the time of a step went; None where its length is unknown, or no operator has one.

        Args:
            row: its row of ``steps``.
        """
        if row["dur_ns"] is None or not len(self._ops):
            return None
        start, end = row["ts_ns"], row["ts_ns"] + row["dur_ns"]
        carrier = self._carrier.get(row["step_id"], self._busiest)
        return self._between(start, end, self._op_step == row["step_id"], carrier)

    def between(self, start: int, end: int) -> HostTime | None:
        """Return where the time went between two instants; what began there belongs to it. None where nothing is known."""
        if not len(self._ops):
            return None
        return self._between(start, end, (self._op_start >= start) & (self._op_start < end), self._busiest)

    def _between(self, start: int, end: int, members: npt.NDArray[np.bool_], carrier: int) -> HostTime:
        of_members = np.zeros(len(self._number), dtype=bool)
        of_members[self._is_op] = members[self._number[self._is_op]]
        length = self._end - self._start
        computes = np.zeros(len(self._number), dtype=bool)
        computes[self._is_op] = self._computes[self._number[self._is_op]]
        operators, dispatch = int(length[of_members & computes].sum()), int(length[of_members & ~computes].sum())
        # The thread of the step waits anywhere, another thread only inside of the step's operators: a thread that sleeps in the
        # background keeps nobody waiting.
        inside = self._around >= 0
        inside[inside] = members[self._around[inside]]
        waits = ~self._is_op & ((self._thread == carrier) | inside)
        low, high = np.maximum(self._start, start), np.minimum(self._end, end)
        within = (high > low) & (of_members | waits)
        edges = np.unique(np.concatenate([low[within], high[within]]))
        widths = np.diff(edges)
        taken = _covered(edges, low, high, within & of_members)
        covered = int(widths[taken].sum())
        waiting: dict[str, float] = {}
        names = np.full(len(self._number), -1, dtype=np.int64)
        names[~self._is_op] = self._wait_name[~self._number[~self._is_op]]
        for number in np.unique(names[within & waits]):
            here = _covered(edges, low, high, within & waits & (names == number)) & ~taken
            if time := int(widths[here].sum()):
                waiting[self._names.of(int(number))] = float(time)
            taken |= here
        python = (end - start) - covered - sum(waiting.values())
        return HostTime(
            float(end - start),
            float(operators),
            float(dispatch),
            float(python),
            waiting,
            float(operators + dispatch - covered),
        )


class Call(Protocol):
    """A call of the top level: a row of ``ops`` or of ``frames`` (by ``kind`` and ``ident``), or what has a place in time only."""

    kind: str
    ident: int | None
    order: tuple[int, int]


class Windows:
    """Stretches of a capture without step marks, cut where calls of the top level begin.

    Args:
        timeline: the host's time.
        ops: rows of ``ops`` by ``op_id``.
        calls: rows of ``frames`` that are calls of modules, by ``frame_id``.
    """

    def __init__(
        self, timeline: Timeline, ops: Mapping[int, Mapping[str, Any]], calls: Mapping[int, Mapping[str, Any]]
    ) -> None:
        self._timeline = timeline
        self._rows = {"op": ops, "module": calls}

    def between(self, children: Sequence[Call], first: int, last: int) -> HostTime | None:
        """Return where the time went from the begin of one of the calls (the first: of the capture) to the begin of another.

        Args:
            children: all calls of the top level in order.
            first: number of the first call.
            last: number of the call after the last; beyond the end of the list the stretch goes to the end of the capture.
        """
        start, end = self._timeline.span
        start = self._begin(children[first]) if first > 0 else start
        end = self._begin(children[last]) if last < len(children) else end
        return self._timeline.between(start, max(start, end))

    def _begin(self, node: Call) -> int:
        row = self._rows.get(node.kind, {}).get(node.ident) if node.ident is not None else None
        return int(row["ts_ns"]) if row else node.order[0]


class _Numbers:
    """Numbers from 0 for things as they come."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def __getitem__(self, thing: Any) -> int:
        return self._numbers.setdefault(thing, len(self._numbers))

    def of(self, number: int) -> Any:
        """Return the thing of a number."""
        return list(self._numbers)[number]


def _thread(row: Mapping[str, Any]) -> _Thread:
    return row["pid"], row["tid"]


def _owned(slices: list[_Slice]) -> list[tuple[int, int, int, int]]:
    """Return the pieces of time of a thread with the slice that is innermost there, and the operator around it (-1: none)."""
    pieces: list[tuple[int, int, int, int]] = []
    stack: list[tuple[int, int, int]] = []
    at = -(1 << 62)
    for start, end, _, number in [*sorted(slices, key=lambda s: (s[0], -s[1], s[2], s[3])), (1 << 62, 0, 0, 0)]:
        while stack and stack[-1][0] <= start:
            until, inner, around = stack.pop()
            if until > at:
                pieces.append((at, until, inner, around))
                at = until
        if stack and start > at:
            pieces.append((at, start, *stack[-1][1:]))
        at = max(at, start)
        outer = stack[-1][1:] if stack else (-1, -1)
        stack.append((end, number, outer[0] if outer[0] >= 0 else outer[1]))
    return pieces


def _covered(edges: Ints, low: Ints, high: Ints, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which stretches between edges lie in a chosen interval, shape ``(len(edges) - 1,)``."""
    change = np.zeros(max(len(edges), 1), dtype=np.int64)
    np.add.at(change, np.searchsorted(edges, low[chosen]), 1)
    np.add.at(change, np.searchsorted(edges, high[chosen]), -1)
    return np.asarray(np.cumsum(change)[:-1] > 0)


def _waits(recording: Recording, rank: int) -> list[tuple[dict[str, Any], str]]:
    """Return the calls of a rank that wait, with the name of what is called."""
    launches = recording.of_rank("launches", rank, _WAIT_COLUMNS)
    named = pc.match_substring_regex(pc.fill_null(launches.column("name"), ""), _RUNTIME_WAIT)
    found = [(row, row["name"]) for row in _timed(launches.filter(named))]
    frames = recording.of_rank("frames", rank, _WAIT_COLUMNS)
    waiting = {}
    for name in pc.unique(frames.column("name")).to_pylist():
        match = _PYTHON_WAIT.match(name or "")
        if match is not None:
            waiting[name] = (match["function"] or match["method"]).partition(" ")[0]
    called = frames.filter(pc.is_in(frames.column("name"), pa.array(waiting, pa.string())))
    return [*found, *((row, waiting[row["name"]]) for row in _timed(called))]


def _timed(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return [row for row in rows if row["ts_ns"] is not None and row["dur_ns"] is not None]


def _carriers(recording: Recording, rank: int) -> dict[int, _Thread]:
    """Return the thread that carries each step: the one that marked it."""
    steps = {row["step_id"]: row for row in recording.of_rank("steps", rank).to_pylist()}
    marks = recording.of_rank("annotations", rank, _MARK_COLUMNS)
    found: dict[int, _Thread] = {}
    for mark in marks.filter(pc.is_valid(marks.column("step_id"))).to_pylist():
        row = steps.get(mark["step_id"])
        if row and (row["ts_ns"], row["dur_ns"]) == (mark["ts_ns"], mark["dur_ns"]):
            found.setdefault(mark["step_id"], _thread(mark))
    return found


def _busiest(thread: Ints, length: Ints) -> int:
    """Return the thread whose operators took most time."""
    return int(np.argmax(np.bincount(thread, length))) if len(thread) else 0


def _span(start: Ints, end: Ints, launches: pa.Table) -> tuple[int, int]:
    """Return the first and the last instant at which a host record of the capture is known."""
    rows = _timed(launches)
    begins = [*([int(start.min())] if len(start) else []), *(row["ts_ns"] for row in rows)]
    ends = [*([int(end.max())] if len(end) else []), *(row["ts_ns"] + row["dur_ns"] for row in rows)]
    return min(begins, default=0), max(ends, default=0)
