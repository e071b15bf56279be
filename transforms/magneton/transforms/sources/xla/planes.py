"""The meaning of the events of an XLA profile, from either file: ``*.xplane.pb`` or the trace JSON that is made from it.

JAX and TensorFlow share one profiler. A plane (a process in JSON) is a host or a device, a line (a thread) is a thread,
a stream, or a view that the profiler derived from the streams. Both files go through this module, so that one run gives
the same rows either way. Names of planes, lines and statistics: ``xplane_schema.cc`` of XLA.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from magneton.schemas.kinds import Activity
from magneton.transforms.sources.rows import Row, attributes, int64, json_text
from magneton.transforms.sources.xla.hlo import Instruction

Role = Literal["stream", "device_ops", "view", "host"]

_DEVICE = re.compile(r"/device:(?P<kind>[A-Za-z]+):(?P<number>\d+)")
_STREAM = re.compile(r"Stream #(?P<number>\d+)")
_VIEW = re.compile(r" - from #\d+.*$")
DEVICE_OPS = frozenset({"XLA Ops", "Sparse Core Ops"})
_FRAME = re.compile(r"\$(?P<file>.*?\.pyx?|<[^>]*>):(?P<line>\d+) (?P<function>.*)", re.DOTALL)
_DETAIL = re.compile(r"(\w+):(\S+)")
_DRIVER_CALL = re.compile(r"cu[A-Z]")
_ALLOCATION = frozenset({"MemoryAllocation", "MemoryDeallocation"})
_ALLOCATED = ("bytes_allocated", "bytes_reserved", "bytes_available")
# Arguments that tie a trace event to others inside the profiler and say nothing of the program.
_INTERNAL = frozenset({"flow", "is_eager"})


@dataclass(frozen=True, slots=True)
class Track:
    """A line of a plane, and what its events are."""

    process: str
    thread: str
    role: Role
    device: int | None = None
    stream: int | None = None
    view: str | None = None


@dataclass(frozen=True, slots=True)
class XlaEvent:
    """One event. ``full_name`` is its long name, ``name`` the shorter one shown where there is one."""

    name: str
    ts_ns: int
    dur_ns: int
    args: Mapping[str, Any]
    full_name: str = ""


class Dispatches:
    """Where host threads dispatched which operation.

    ROCm's tracer keeps the runtime calls of all threads on lines of its own; a call then belongs to the thread that was
    in the operation the call names, at that time.
    """

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[int, int, str]]] = {}
        self._sorted: set[str] = set()

    def add(self, operation: str, ts_ns: int, dur_ns: int, thread: str) -> None:
        """Note that a thread dispatched an operation."""
        self._found.setdefault(operation, []).append((ts_ns, ts_ns + dur_ns, thread))
        self._sorted.discard(operation)

    def thread(self, operation: str, ts_ns: int, dur_ns: int) -> str | None:
        """Return the thread that was in the operation all through a call, where there is one."""
        found = self._found.get(operation)
        if not found:
            return None
        if operation not in self._sorted:
            found.sort()
            self._sorted.add(operation)
        start, end, thread = found[max(0, bisect_right(found, ts_ns, key=lambda d: d[0]) - 1)]
        return thread if start <= ts_ns and ts_ns + dur_ns <= end else None


def track(process: str, line: str, thread: str, *, has_streams: bool) -> Track:
    """Return what the events of a line are.

    Args:
        process: name of the plane.
        line: name of the line.
        thread: what identifies the line among those of its plane.
        has_streams: the plane has lines for streams; lines of operations are then derived from them.
    """
    found = _DEVICE.match(process)
    if found is None:
        return Track(process, thread, "host")
    device = int(found["number"]) if len(found["number"]) < 10 else None
    view = _VIEW.sub("", line)
    stream = _STREAM.match(line)
    if stream is not None and view == line:
        number = int(stream["number"]) if len(stream["number"]) < 19 else None
        return Track(process, line, "stream", device, number)
    if view in DEVICE_OPS and view == line and not has_streams:
        return Track(process, line, "device_ops", device, None, view)
    return Track(process, line, "view", device, None, view)


def is_stream(line: str) -> bool:
    """Tell whether a line of a device plane is a stream."""
    return _STREAM.match(line) is not None and _VIEW.search(line) is None


def framework(name: str) -> str | None:
    """Return the framework that a host event's name gives away."""
    if name.startswith("PjitFunction("):
        return "jax"
    return "tensorflow" if name.startswith(("TFE_", "ExecutorState::Process", "EagerExecute")) else None


def rows(
    track: Track, event: XlaEvent, operations: Collection[str], instruction: Instruction | None = None
) -> list[Row]:
    """Return the rows of one event (more than one for a sample of several counters).

    Args:
        track: its line.
        event: the event.
        operations: names of HLO instructions that the devices ran; a host event of that name dispatched it.
        instruction: what the program says of the instruction the event ran.
    """
    common = {
        "name": event.name,
        "ts_ns": event.ts_ns,
        "dur_ns": event.dur_ns,
        "pid": track.process,
        "tid": track.thread,
    }
    if track.role in ("stream", "device_ops"):
        return [("kernels", {**common, **_kernel(track, event, instruction)})]
    if track.role == "view":
        # The line `Steps` has one event per step, named by its number.
        step = int64(event.name) if track.view == "Steps" else None
        row = {**common, "category": track.view, "kind": "slice", "args": _said(event), "step": step}
        return [("annotations", row)]
    return _host_rows(event, common, operations, instruction)


def _host_rows(
    event: XlaEvent, common: dict[str, Any], operations: Collection[str], instruction: Instruction | None
) -> list[Row]:
    args = event.args
    if event.name.startswith("$"):
        return [("frames", {**common, "name": frame_name(event.name)})]
    if (correlation := int64(args.get("correlation_id"))) is not None:
        category = "cuda_driver" if _DRIVER_CALL.match(event.name) else "cuda_runtime"
        return [("launches", {**common, "category": category, "correlation": correlation})]
    if "hlo_op" in args or event.name in operations:
        return [("ops", {**common, **_instruction(event, instruction)})]
    if event.full_name.endswith(f":{event.name}") and "/device:" not in event.full_name:
        node = event.full_name[: -len(event.name) - 1]
        return [("ops", {**common, "attributes": attributes(node=node or None)})]
    if "eager_op" in args and not int64(args.get("is_func")):
        return [("ops", {**common, "name": str(args["eager_op"]), "attributes": attributes(event=event.name)})]
    if event.name in _ALLOCATION and (samples := _allocator(event, common)):
        return samples
    kind = "slice" if event.dur_ns else "instant"
    step = int64(args.get("step_num"))
    row = {**common, "category": None, "kind": kind, "args": _said(event), "step": step}
    return [("annotations", row)]


def frame_name(name: str) -> str:
    """Return a Python frame's name as kineto spells it: `$api.py:3105 wait` is `api.py(3105): wait`."""
    found = _FRAME.fullmatch(name)
    if found is not None:
        return f"{found['file']}({found['line']}): {found['function']}"
    scope, _, function = name[1:].partition(" ")
    return f"<built-in function {function}>" if scope in ("builtins", "<unknown>") and function else name[1:]


def _instruction(event: XlaEvent, instruction: Instruction | None) -> dict[str, Any]:
    args = event.args
    found: dict[str, Any] = {}
    opcode = op_name = source = None
    if instruction is not None:
        shapes = [shape for operand in instruction.operands for shape in operand]
        found = {"input_dims": json_text([s.dims for s in shapes]), "input_types": json_text([s.dtype for s in shapes])}
        opcode, op_name, source = instruction.opcode, instruction.op_name, _source(instruction)
    # Only what all executions share: a number of its own in each would be a text of its own in each.
    found["attributes"] = attributes(
        hlo_op=args.get("hlo_op") or event.name,
        hlo_module=args.get("hlo_module"),
        device_ordinal=int64(args.get("device_ordinal")),
        opcode=opcode,
        op_name=op_name,
        source=source,
    )
    return found


def _source(instruction: Instruction) -> str | None:
    if instruction.source_file is None or instruction.source_line is None:
        return instruction.source_file
    return f"{instruction.source_file}:{instruction.source_line}"


def _kernel(track: Track, event: XlaEvent, instruction: Instruction | None) -> dict[str, Any]:
    args = event.args
    details = dict(_DETAIL.findall(str(args.get("kernel_details") or "")))
    moved = args.get("memcpy_details") or args.get("memset_details")
    category = Activity.KERNEL
    if "memcpy_details" in args or event.name.startswith("Memcpy"):
        category = Activity.MEMCPY
    elif "memset_details" in args or event.name.startswith("Memset"):
        category = Activity.MEMSET
    shared = [int64(details[k]) for k in ("static_shared", "dynamic_shared", "group_mem") if k in details]
    occupancy = _number(details.get("occ_pct"))
    return {
        "category": category,
        "device": track.device,
        "stream": track.stream,
        "correlation": int64(args.get("correlation_id")),
        "bytes": int64(dict(_DETAIL.findall(str(moved))).get("size")) if moved else None,
        "grid": _numbers(details.get("grid")),
        "block": _numbers(details.get("block")),
        "registers_per_thread": int64(details.get("regs")),
        "shared_memory_bytes": int64(sum(n for n in shared if n is not None)) if shared else None,
        # a kernel that ran had an occupancy above 0: ROCm writes 0 where it did not look
        "occupancy_percent": occupancy or None,
        "attributes": attributes(
            hlo_op=args.get("hlo_op"),
            hlo_module=args.get("hlo_module"),
            op_name=args.get("name") or (instruction.op_name if instruction is not None else None),
            details=args.get("kernel_details") or moved,
        ),
    }


def _allocator(event: XlaEvent, common: dict[str, Any]) -> list[Row]:
    name = str(event.args.get("allocator_name") or event.name)
    found: list[Row] = []
    for series in _ALLOCATED:
        value = int64(event.args.get(series))
        if value is not None:
            row = {**common, "name": name, "dur_ns": None, "series": series, "value": float(value), "unit": "bytes"}
            found.append(("counters", row))
    return found


def _said(event: XlaEvent) -> str | None:
    said = {k: v for k, v in event.args.items() if not k.startswith("_") and k not in _INTERNAL}
    return json_text(said) if said else None


def _numbers(text: str | None) -> list[int] | None:
    found = [int64(part) for part in text.split(",")] if text else []
    known = [n for n in found if n is not None]
    return known if known and len(known) == len(found) else None


def _number(text: str | None) -> float | None:
    try:
        found = float(text or "nan")
    except ValueError:
        return None
    return found if math.isfinite(found) else None
