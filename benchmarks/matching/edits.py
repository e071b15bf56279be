"""Traces with one known change: what alignment of bare traces is measured on.

Every device activity gets a number, which stays with it through all edits. It stands in the field ``registers per thread``, which the
normaliser keeps as a column of its own and no part of the alignment looks at. So the truth is a map of numbers, kept aside:
which activities of side A do the work of an activity of side B. Where the map says nothing, a number stands for itself.

Example: ``fuse`` makes one kernel, number 7, out of the kernels 7, 8, 9: its truth is ``{7: [7, 8, 9]}``.
"""

from __future__ import annotations

import gzip
import hashlib
import heapq
import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Event = dict[str, Any]

NUMBER = "registers per thread"
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
LAUNCH = {"cuda_runtime", "cuda_driver", "hip_runtime"}
_HOST = LAUNCH | {"cpu_op", "python_function"}
_ARROWS = {"ac2g", "async_cpu_to_gpu"}
_STACKS = ("Call stack", "Module Hierarchy", "Python parent id", "Python module id", "Python id")

SLOWER = 1.2
# The class that is slowed takes at most this share of the kernel time: a class that is the whole program proves nothing.
MAX_CLASS = 0.35
HELD_UP = 3.0
DROPPED = 0.05
CUT = 0.25


@dataclass
class Trace:
    """The events of a kineto trace, and which operator launched which device activity.

    Attributes:
        document: the file without its events.
        events: the events, numbered (see the module).
        operators: complete ``cpu_op`` events.
        parent: for each operator the one around it, by index, None at the top.
        kernels: device activities by the index of the operator that launched them.
    """

    document: dict[str, Any]
    events: list[Event]
    operators: list[Event] = field(default_factory=list)
    parent: list[int | None] = field(default_factory=list)
    kernels: dict[int, list[Event]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.link()

    def link(self) -> None:
        """Find the operators and what they launched, after the events have changed."""
        self.operators = [e for e in self.events if e.get("cat") == "cpu_op" and e.get("ph") == "X" and "dur" in e]
        self.parent = [None] * len(self.operators)
        rows: dict[tuple[Any, Any], list[tuple[float, float, int, int | None, Event]]] = defaultdict(list)
        for index, op in enumerate(self.operators):
            rows[op["pid"], op["tid"]].append((op["ts"], -op["dur"], 0, index, op))
        for event in self.events:
            if event.get("cat") in LAUNCH and event.get("ph") == "X" and "correlation" in event.get("args", {}):
                rows[event["pid"], event["tid"]].append((event["ts"], -event.get("dur", 0), 1, None, event))
        launched_by: dict[int, int | None] = {}
        for row in rows.values():
            row.sort(key=lambda one: one[:3])
            around: list[tuple[float, int]] = []
            for start, _, _, index, event in row:
                while around and around[-1][0] <= start:
                    around.pop()
                inside = around[-1][1] if around else None
                if index is None:
                    launched_by.setdefault(event["args"]["correlation"], inside)
                else:
                    self.parent[index] = inside
                    around.append((start + event["dur"], index))
        kernels: dict[int, list[Event]] = defaultdict(list)
        for event in self.device():
            owner = launched_by.get(event["args"].get("correlation"))
            if owner is not None:
                kernels[owner].append(event)
        self.kernels = dict(kernels)

    def device(self) -> list[Event]:
        """Return the device activities in the order of the file."""
        return [e for e in self.events if e.get("cat") in DEVICE]

    def copy(self) -> Trace:
        """Return a copy whose events may be changed."""
        events = [dict(e, args=dict(e["args"])) if isinstance(e.get("args"), dict) else dict(e) for e in self.events]
        return Trace(self.document, events)

    def steps(self) -> list[tuple[float, float]]:
        """Return start and end of each profiler step."""
        return sorted(
            (e["ts"], e["ts"] + e["dur"])
            for e in self.events
            if str(e.get("name")).startswith("ProfilerStep")
            and e.get("ph") == "X"
            and e.get("cat") == "user_annotation"
        )

    def in_steps(self) -> dict[int, list[int]]:
        """Return the operators that launched something, by step and in order (-1: outside of steps)."""
        steps = self.steps()
        found: dict[int, list[int]] = defaultdict(list)
        for index in sorted(self.kernels, key=lambda i: self.operators[i]["ts"]):
            start = self.operators[index]["ts"]
            found[next((n for n, (a, b) in enumerate(steps) if a <= start < b), -1)].append(index)
        return dict(found)

    def write(self, path: Path, *, indent: int | None = None, shuffled: int | None = None) -> None:
        """Write the trace, with blanks between its parts or with the events in an order drawn from a seed."""
        events = self.events
        if shuffled is not None:
            events = [events[i] for i in np.random.default_rng(shuffled).permutation(len(events))]
        path.write_text(json.dumps({**self.document, "traceEvents": events}, indent=indent), encoding="utf-8")


@dataclass
class Edited:
    """A trace with one change.

    Attributes:
        trace: side B.
        truth: number of an activity of B, and those of A whose work it does, where these are not just the same number.
        changed: numbers whose time was changed on purpose.
        dropped: numbers that side B does not have.
        what: what was changed, in words.
    """

    trace: Trace
    truth: dict[int, list[int]] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    what: str = ""


def read(path: Path) -> Trace:
    """Read a trace and number its device activities in the order of the file."""
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    events = document.pop("traceEvents")
    number = 0
    for event in events:
        if event.get("cat") in DEVICE:
            event.setdefault("args", {})[NUMBER] = number
            number += 1
    return Trace(document, events)


def number_of(event: Event) -> int:
    """Return the number of a device activity."""
    return int(event["args"][NUMBER])


def kernel_time(events: Iterable[Event]) -> float:
    """Return the summed time of those device activities that are kernels."""
    return sum(e.get("dur", 0) for e in events if e["cat"] == "kernel")


def slow_class(trace: Trace, _random: np.random.Generator) -> Edited:
    """Make all kernels of one operator name 20 % longer; what starts after them on the device starts later."""
    time: Counter[str] = Counter()
    for index, events in trace.kernels.items():
        time[trace.operators[index]["name"]] += kernel_time(events)
    total = kernel_time(trace.device())
    name = next((n for n, t in time.most_common() if t <= MAX_CLASS * total), time.most_common()[-1][0])
    numbers = {
        number_of(e)
        for index, events in trace.kernels.items()
        if trace.operators[index]["name"] == name
        for e in events
        if e["cat"] == "kernel"
    }
    _stretch(trace, dict.fromkeys(numbers, SLOWER))
    return Edited(trace, changed=numbers, what=f"{name}: {len(numbers)} kernels")


def hold_up_step(trace: Trace, _random: np.random.Generator) -> Edited | None:
    """Make every kernel of one step three times as long, as where the device was taken away for a while."""
    steps = trace.in_steps()
    marked = sorted(step for step in steps if step >= 0)
    if len(marked) < 3:
        return None
    numbers = {number_of(e) for i in steps[marked[1]] for e in trace.kernels[i]}
    _stretch(trace, dict.fromkeys(numbers, HELD_UP))
    return Edited(trace, changed=numbers, what=f"step {marked[1]} of {len(marked)}")


def _stretch(trace: Trace, factors: dict[int, float]) -> None:
    """Make activities longer, and let what starts after their end on the same device start later."""
    devices: dict[Any, list[Event]] = defaultdict(list)
    for event in trace.device():
        devices[event["pid"]].append(event)
    for events in devices.values():
        events.sort(key=lambda e: e["ts"])
        later: list[tuple[float, float]] = []
        shift = 0.0
        for event in events:
            while later and later[0][0] <= event["ts"]:
                shift += heapq.heappop(later)[1]
            factor = factors.get(number_of(event))
            if factor:
                heapq.heappush(later, (event["ts"] + event["dur"], event["dur"] * (factor - 1)))
                event["dur"] = round(event["dur"] * factor, 3)
            event["ts"] = round(event["ts"] + shift, 3)


def drop_one(trace: Trace, rnd: np.random.Generator) -> Edited:
    """Leave out one operator of every step, with all that it launched."""
    return _drop_places(trace, rnd, 1)


def drop_some(trace: Trace, rnd: np.random.Generator) -> Edited:
    """Leave out 5 % of the operators, the same ones of every step."""
    return _drop_places(trace, rnd, None)


def _drop_places(trace: Trace, rnd: np.random.Generator, count: int | None) -> Edited:
    steps = trace.in_steps()
    length = Counter(len(found) for found in steps.values()).most_common(1)[0][0]
    names = [trace.operators[i]["name"] for i in next(found for found in steps.values() if len(found) == length)]
    # Of two neighbours of one name nothing tells which is missing, where shapes are not known.
    alone = [p for p in range(length) if names[p] not in (names[p - 1 : p] + names[p + 1 : p + 2])] or list(
        range(length)
    )
    wanted = min(count or max(1, round(DROPPED * length)), len(alone))
    places = rnd.choice(alone, wanted, replace=False)
    gone = [found[p] for found in steps.values() for p in places if p < len(found)]
    counts = Counter(trace.operators[i]["name"] for i in gone)
    return Edited(trace, dropped=_drop(trace, gone), what=", ".join(f"{n} x{c}" for n, c in counts.most_common(4)))


def _drop(trace: Trace, indices: Iterable[int]) -> set[int]:
    """Take operators out, with all that ran inside them; return the numbers of the activities that went with them."""
    spans: dict[tuple[Any, Any], list[tuple[float, float]]] = defaultdict(list)
    for index in indices:
        op = trace.operators[index]
        spans[op["pid"], op["tid"]].append((op["ts"], op["ts"] + op["dur"]))
    for found in spans.values():
        found.sort()

    def inside(event: Event) -> bool:
        found = spans.get((event.get("pid"), event.get("tid")), [])
        at = bisect_right(found, (event["ts"], float("inf"))) - 1
        return at >= 0 and found[at][0] <= event["ts"] and event["ts"] + event.get("dur", 0) <= found[at][1]

    gone = [e for e in trace.events if e.get("ph") == "X" and e.get("cat") in LAUNCH | {"cpu_op"} and inside(e)]
    ids = {id(e) for e in gone}
    correlations = {e.get("args", {}).get("correlation") for e in gone if e["cat"] in LAUNCH} - {None}
    numbers: set[int] = set()
    kept = []
    for event in trace.events:
        if event.get("cat") in DEVICE and event["args"].get("correlation") in correlations:
            numbers.add(number_of(event))
        elif id(event) not in ids and not (event.get("cat") in _ARROWS and event.get("id") in correlations):
            kept.append(event)
    trace.events = kept
    trace.link()
    return numbers


def fuse(trace: Trace, _random: np.random.Generator) -> Edited | None:
    """Make one operator of one kernel, in half the time, out of four that follow one another in many places."""
    runs: Counter[tuple[str, ...]] = Counter()
    time: Counter[tuple[str, ...]] = Counter()
    places: dict[tuple[str, ...], list[tuple[int, ...]]] = defaultdict(list)
    for found in trace.in_steps().values():
        ends: dict[tuple[str, ...], int] = defaultdict(int)
        for at in range(len(found) - 3):
            run = tuple(found[at : at + 4])
            names = tuple(trace.operators[i]["name"] for i in run)
            apart = len({trace.operators[i]["tid"] for i in run}) > 1 or any(trace.parent[i] in run for i in run)
            if len(set(names)) < 3 or apart or at < ends[names] or any(len(trace.kernels[i]) > 4 for i in run):
                continue
            if not all(any(e["cat"] == "kernel" for e in trace.kernels[i]) for i in run):
                continue
            ends[names] = at + 4
            runs[names] += 1
            time[names] += int(kernel_time(e for i in run for e in trace.kernels[i]))  # type: ignore[assignment]
            places[names].append(run)
    limit = MAX_CLASS * kernel_time(trace.device())
    names = max(runs, key=lambda n: ("softmax" in " ".join(n), min(time[n], limit), n), default=())
    if not names:
        return None
    truth: dict[int, list[int]] = {}
    rest: list[int] = []
    for run in places[names]:
        events = [e for i in run for e in trace.kernels[i] if e["cat"] == "kernel"]
        first = next(e for e in trace.kernels[run[0]] if e["cat"] == "kernel")
        truth[number_of(first)] = [number_of(e) for e in events]
        first["name"], first["dur"] = "fused_kernel", round(0.5 * kernel_time(events), 3)
        others = {id(e) for e in trace.kernels[run[0]]} - {id(first)}
        trace.events = [e for e in trace.events if id(e) not in others]
        trace.operators[run[0]]["name"] = "example::fused"
        rest += run[1:]
    _drop(trace, rest)
    return Edited(trace, truth, what=f"{' + '.join(names)}: {runs[names]} times")


def swap_shapes(trace: Trace, rnd: np.random.Generator) -> Edited | None:
    """Let neighbours of one name and different shapes run in the other order."""
    return _swap(trace, rnd, lambda u, v: u["name"] == v["name"] and _dims(u) and _dims(v) and _dims(u) != _dims(v))


def swap_names(trace: Trace, rnd: np.random.Generator) -> Edited | None:
    """Let neighbours of different names run in the other order, one pair in five of those that could."""
    return _swap(trace, rnd, lambda u, v: u["name"] != v["name"] and rnd.random() < 0.2)


def _dims(op: Event) -> Any:
    args = op.get("args") or {}
    return args.get("Input Dims") or args.get("Input dims")


def _swap(trace: Trace, rnd: np.random.Generator, wanted: Callable[[Event, Event], Any]) -> Edited | None:
    """Exchange neighbours that lie on one thread with nothing of Python across them, at most a twentieth of a step."""
    threads: dict[tuple[Any, Any], list[Event]] = defaultdict(list)
    for event in trace.events:
        if event.get("ph") == "X" and event.get("cat") in _HOST and "ts" in event:
            threads[event["pid"], event["tid"]].append(event)
    pairs: list[tuple[int, int]] = []
    names: Counter[str] = Counter()
    for found in trace.in_steps().values():
        used: set[int] = set()
        for place in rnd.permutation(max(len(found) - 1, 0)):
            left, right = found[place], found[place + 1]
            outer = _outermost_apart(trace, left, right)
            if outer is None or {left, right} & used or not wanted(trace.operators[left], trace.operators[right]):
                continue
            first, second = (trace.operators[i] for i in outer)
            if not _exchangeable(first, second, threads[first["pid"], first["tid"]]):
                continue
            pairs.append(outer)
            # The neighbours too: a chain of exchanges would move an operator far away.
            used |= set(found[max(place - 1, 0) : place + 3])
            names[f"{trace.operators[left]['name']} / {trace.operators[right]['name']}"] += 1
            if len(used) >= max(4, len(found) // 5):
                break
    for one, other in pairs:
        first, second = trace.operators[one], trace.operators[other]
        _exchange(first, second, threads[first["pid"], first["tid"]])
    trace.link()
    return Edited(trace, what=", ".join(f"{n} x{c}" for n, c in names.most_common(3))) if pairs else None


def _outermost_apart(trace: Trace, left: int, right: int) -> tuple[int, int] | None:
    """Return the outermost operators around two operators that hold one of them and not the other."""
    around = []
    for index in (left, right):
        chain: list[int] = []
        at: int | None = index
        while at is not None:
            chain.append(at)
            at = trace.parent[at]
        around.append(chain)
    apart = [[i for i in chain if i not in other] for chain, other in (around, around[::-1])]
    return (apart[0][-1], apart[1][-1]) if all(apart) else None


def _exchangeable(first: Event, second: Event, thread: list[Event]) -> bool:
    if (first["pid"], first["tid"]) != (second["pid"], second["tid"]):
        return False
    end = first["ts"] + first["dur"]
    low, high = first["ts"], second["ts"] + second["dur"]
    if end > second["ts"]:
        return False
    for event in thread:
        a, b = event["ts"], event["ts"] + event.get("dur", 0)
        outside = b <= low or a >= high or (a <= low and b >= high)
        whole = (a >= low and b <= end) or (a >= second["ts"] and b <= high) or (a >= end and b <= second["ts"])
        if not outside and not whole:
            return False
    return True


def _exchange(first: Event, second: Event, thread: list[Event]) -> None:
    a0, a1 = first["ts"], first["ts"] + first["dur"]
    b0, b1 = second["ts"], second["ts"] + second["dur"]
    for event in thread:
        start, end = event["ts"], event["ts"] + event.get("dur", 0)
        if start >= a0 and end <= a1:
            event["ts"] = round(start + b1 - a1, 3)
        elif start >= b0 and end <= b1:
            event["ts"] = round(start + a0 - b0, 3)
        elif start >= a1 and end <= b0:
            event["ts"] = round(start + (b1 - b0) - (a1 - a0), 3)


def rename_kernels(trace: Trace, _random: np.random.Generator) -> Edited:
    """Give every kernel another name, the same for those of one name."""
    for event in trace.device():
        if event["cat"] == "kernel":
            event["name"] = "gen_" + hashlib.sha256(event["name"].encode()).hexdigest()[:10]
    return Edited(trace, what="all kernels")


def strip(trace: Trace, *, shapes: bool, stacks: bool) -> None:
    """Take shapes, or Python frames and modules, out of a trace, as if they had not been recorded."""
    if stacks:
        trace.events = [e for e in trace.events if e.get("cat") != "python_function"]
    for event in trace.events:
        args = event.get("args")
        if not isinstance(args, dict) or event.get("cat") in DEVICE:
            continue
        for name in list(args):
            shape = shapes and name.startswith(("Input", "Concrete", "Output"))
            if shape or (stacks and name in _STACKS):
                del args[name]
    trace.link()


def cut_begin(trace: Trace, _random: np.random.Generator) -> Edited:
    """Lose the first quarter, as where the recording began later. Device work of lost launches stays, as in real traces."""
    return _cut(trace, begin=True)


def cut_end(trace: Trace, _random: np.random.Generator) -> Edited:
    """Lose the last quarter, as where the recording ended earlier."""
    return _cut(trace, begin=False)


def _cut(trace: Trace, *, begin: bool) -> Edited:
    stamps = [(op["ts"], op["ts"] + op["dur"]) for op in trace.operators]
    low, high = min(a for a, _ in stamps), max(b for _, b in stamps)
    at = low + CUT * (high - low) if begin else high - CUT * (high - low)

    def lost(event: Event) -> bool:
        if event.get("ph") == "M" or "ts" not in event:
            return False
        return bool(event["ts"] < at if begin else event["ts"] + event.get("dur", 0) > at)

    gone = {number_of(e) for e in trace.device() if lost(e)}
    trace.events = [e for e in trace.events if not lost(e)]
    trace.link()
    return Edited(trace, dropped=gone, what=f"{'first' if begin else 'last'} {100 * CUT:.0f} % of the time")


def same(trace: Trace, _random: np.random.Generator) -> Edited:
    """Change nothing."""
    return Edited(trace)


EDITS: dict[str, Callable[[Trace, np.random.Generator], Edited | None]] = {
    "same": same,
    "slow class": slow_class,
    "drop one": drop_one,
    "drop 5 %": drop_some,
    "fuse": fuse,
    "swap shapes": swap_shapes,
    "swap names": swap_names,
    "rename kernels": rename_kernels,
    "hold up a step": hold_up_step,
    "cut begin": cut_begin,
    "cut end": cut_end,
}


def edit(trace: Trace, name: str, seed: int = 1) -> Edited | None:
    """Return a copy of a trace with one change; None where the trace holds nothing that could be changed so."""
    return EDITS[name](trace.copy(), np.random.default_rng(seed))
