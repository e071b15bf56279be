"""ONNX Runtime profiles (``SessionOptions.enable_profiling``).

A top-level list; integer microseconds since the start of the session, which the file does not tell (the program can ask
``get_profiling_start_time_ns()``). A node has a row ``<node>_kernel_time``; versions before 1.11 put fences before and
after it, which are waiting, not work. Sizes are text. With a GPU, device activities (`Kernel`) and HIP calls (`Api`)
follow the node that caused them. WebGPU's kernels are `Api` events with their shapes; they count from a start of their own.
The writer stops silently at a number of events (a million unless set).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from magneton.schemas.kinds import Activity, Clock
from magneton.transforms.reading.limits import Limits
from magneton.transforms.sources import Input
from magneton.transforms.sources.chrome_event import ChromeEvent, other_rows, read_list, usable
from magneton.transforms.sources.rows import Notes, Row, attributes, int64, json_text
from magneton.transforms.staging.stage import Stage

FORMAT = "onnxruntime"

_CATEGORY = re.compile(rb'"cat"\s*:\s*"(?:Session|Node|Kernel|Api)"')
_SNIFF_BYTES = 4096
_WORK = "_kernel_time"
_FENCES = ("_fence_before", "_fence_after")
_RUN = "model_run"
_MAX_EVENTS = 1_000_000
_SIZES = ("activation_size", "parameter_size", "output_size")


def sniff(head: bytes, path: Path) -> bool:
    """Tell whether a file's first bytes are those of a list whose events are of a session's categories."""
    return head.lstrip()[:1] == b"[" and _CATEGORY.search(head[:_SNIFF_BYTES]) is not None


def read(source: Input, stage: Stage, limits: Limits) -> None:
    """Stage the events of a file (see ``chrome_event.read_list`` for what it raises)."""
    read_list(decode, source, stage, limits)


def decode(events: Callable[[], Iterable[bytes]], notes: Notes) -> Iterator[Row]:
    """Yield the rows of a profile and fill ``notes``.

    Args:
        events: starts a pass over the elements of the list, as their JSON text.
        notes: filled on the way.
    """
    notes.framework = "onnxruntime"
    notes.clock = Clock.SESSION
    with_devices = any(b'"Kernel"' in raw or b'"Api"' in raw for raw in events())
    first_node = next(_nodes(events), None) if with_devices else None
    node: dict[str, Any] = {}
    runs = last_run = 0
    for event in usable(events(), notes):
        if not isinstance(event, ChromeEvent):
            yield event
            continue
        if event.phase != "X":
            yield from other_rows(event)
            continue
        common = {"name": event.name, "ts_ns": event.ts_ns, "dur_ns": event.dur_ns, "pid": event.pid, "tid": event.tid}
        if event.category == "Node" and not event.name.endswith(_FENCES):
            identity = event.position if with_devices else None
            yield "ops", {**common, **_operator(event), "external_id": identity}
            node = {**common, "external_id": identity}
        elif event.category == "Kernel":
            # its own process is -1: it belongs to that of its node
            yield (
                "kernels",
                {**common, **_kernel(event), "pid": node.get("pid"), "external_id": node.get("external_id")},
            )
        elif event.category == "Api" and "shapes" in event.args:
            # WebGPU writes its kernels as calls of an interface, on a clock that starts at the first of them.
            first_node = event.ts_ns if first_node is None else first_node
            if event.ts_ns < first_node:
                notes.warn(
                    "kernel_before_launch",
                    "kernels are counted from another start than the nodes: none could be tied to its node",
                )
            said = attributes(
                shapes=event.args["shapes"] or None, **{k: v for k, v in event.args.items() if k != "shapes"}
            )
            yield "kernels", {**common, "category": Activity.KERNEL, "attributes": said}
        elif event.category == "Api":
            yield "launches", {**common, "category": "cuda_runtime", "external_id": node.get("external_id")}
        else:
            step = None
            if event.category == "Session" and event.name == _RUN:
                step, runs = runs, runs + 1
                last_run = max(last_run, event.ts_ns + (event.dur_ns or 0))
            args = json_text(event.args) if event.args else None
            kept = {"category": event.category, "kind": "slice", "args": args, "step": step}
            yield "annotations", {**common, **kept}
    if notes.n_raw >= _MAX_EVENTS or node.get("ts_ns", 0) > last_run:
        # a run is written when it is over, after its nodes
        notes.warn("maybe_incomplete", "the last nodes belong to no run: the profiler may have stopped at its limit")


def _nodes(events: Callable[[], Iterable[bytes]]) -> Iterator[int]:
    """Yield when nodes began."""
    for event in usable((raw for raw in events() if b'"Node"' in raw), Notes()):
        if isinstance(event, ChromeEvent) and event.category == "Node":
            yield event.ts_ns


def _operator(event: ChromeEvent) -> dict[str, Any]:
    args = event.args
    types, dims = _tensors(args.get("input_type_shape"))
    output_types, output_dims = _tensors(args.get("output_type_shape"))
    return {
        "name": str(args.get("op_name") or event.name),
        "input_types": None if types is None else json_text(types),
        "input_dims": None if dims is None else json_text(dims),
        "attributes": attributes(
            node=event.name.removesuffix(_WORK),
            node_index=int64(args.get("node_index")),
            provider=args.get("provider"),
            output_types=output_types,
            output_dims=output_dims,
            **{f"{size}_bytes".replace("_size", ""): int64(args.get(size)) for size in _SIZES},
        ),
    }


def _tensors(listed: Any) -> tuple[list[str] | None, list[Any] | None]:
    """Return types and shapes of `[{"float": [1, 2]}, ...]`."""
    if not isinstance(listed, list):
        return None, None
    pairs = [next(iter(entry.items())) for entry in listed if isinstance(entry, dict) and entry]
    return [str(name) for name, _ in pairs], [shape for _, shape in pairs]


def _kernel(event: ChromeEvent) -> dict[str, Any]:
    args = event.args
    moved = event.name.lower()
    kinds = {"memcpy": Activity.MEMCPY, "memset": Activity.MEMSET}
    return {
        "category": next((kind for word, kind in kinds.items() if word in moved), Activity.KERNEL),
        "stream": int64(args.get("stream")),
        "grid": _triple(args, "grid"),
        "block": _triple(args, "block"),
        "bytes": int64(args.get("size")),
        "attributes": attributes(op_name=args.get("op_name")),
    }


def _triple(args: dict[str, Any], name: str) -> list[int] | None:
    found = [int64(args.get(f"{name}_{axis}")) for axis in "xyz"]
    known = [n for n in found if n is not None]
    return known if len(known) == len(found) else None
