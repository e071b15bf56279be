"""TensorFlow v1 timelines: ``Timeline(run_metadata.step_stats).generate_chrome_trace_format()``.

Microseconds since 1970. A process is a device: `... Compute` has its operators (named by type, the node and its inputs
in the arguments), `... Tensors` the life of their outputs, whose snapshots say type and shape, `Allocators` the memory.
With a GPU, `/device:GPU:0/stream:all Compute` has its kernels, which processes of single streams repeat.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from magneton.schemas.kinds import Activity, Clock
from magneton.transforms.reading.limits import Limits
from magneton.transforms.sources import Input
from magneton.transforms.sources.chrome_event import ChromeEvent, other_rows, parse, read_list, usable
from magneton.transforms.sources.rows import Notes, Row, UnusableEvent, attributes, json_text
from magneton.transforms.staging.stage import Stage

FORMAT = "tensorflow_timeline"

_PROCESS = re.compile(rb'"/job:[^"]{0,200} Compute"')
_COMPUTE = " Compute"
_STREAM = re.compile(r"/device:GPU:(?P<device>\d{1,9})/stream:(?P<stream>\w+)")
_DTYPE = re.compile(r"\bdtype: (\w+)")
_SHAPE = re.compile(r"\bshape \{(.*?)\n\}", re.DOTALL)
_SIZE = re.compile(r"\bsize: (-?\d{1,18})")
_INPUT = re.compile(r"input(\d{1,6})")

_Tensor = tuple[str | None, list[int] | None]


def sniff(head: bytes, path: Path) -> bool:
    """Tell whether a file's first bytes are those of a trace whose processes are TensorFlow devices."""
    return b'"traceEvents"' in head and _PROCESS.search(head) is not None and b'"schemaVersion"' not in head


def read(source: Input, stage: Stage, limits: Limits) -> None:
    """Stage the events of a file (see ``chrome_event.read_list`` for what it raises)."""
    read_list(decode, source, stage, limits)


def decode(events: Callable[[], Iterable[bytes]], notes: Notes) -> Iterator[Row]:
    """Yield the rows of a timeline and fill ``notes``.

    Args:
        events: starts a pass over the elements of the event list, as their JSON text. There are two: shapes of tensors
            follow the operators that read them.
        notes: filled on the way.
    """
    notes.framework = "tensorflow"
    notes.base_unix_ns, notes.clock = 0, Clock.REALTIME
    processes, tensors = _survey(events(), notes)
    all_streams = {m["device"] for m in map(_STREAM.search, processes.values()) if m and m["stream"] == "all"}
    for event in usable(events(), notes):
        if not isinstance(event, ChromeEvent):
            yield event
            continue
        process = processes.get(event.pid, "")
        if event.phase != "X":
            unit = "bytes" if event.category == "Memory" else None
            for kind, row in other_rows(event):
                yield kind, {**row, "unit": unit} if kind == "counters" else row
            continue
        if event.dur_ns is None:
            notes.warn("dur_missing", f"{event.name!r} has no length")
        common = {"name": event.name, "ts_ns": event.ts_ns, "dur_ns": event.dur_ns, "pid": event.pid, "tid": event.tid}
        stream = _STREAM.search(process)
        if stream is not None and (stream["stream"] == "all" or stream["device"] not in all_streams):
            yield "kernels", {**common, **_kernel(event, stream)}
        elif stream is None and event.category == "Op" and process.endswith(_COMPUTE):
            yield "ops", {**common, **_operator(event, process, tensors)}
        else:
            args = json_text(event.args) if event.args else None
            yield "annotations", {**common, "category": event.category, "kind": "slice", "args": args}


def _survey(raws: Iterable[bytes], notes: Notes) -> tuple[dict[str | None, str], dict[str, _Tensor]]:
    """Return names of processes, and type and shape of tensors by name."""
    processes: dict[str | None, str] = {}
    tensors: dict[str, _Tensor] = {}
    for raw in raws:
        if b'"M"' not in raw and b'"snapshot"' not in raw:
            continue
        try:
            event = parse(raw, notes)
        except UnusableEvent:
            continue  # counted by the second pass
        if event is None:
            continue
        name = event.args.get("name")
        if event.phase == "M" and event.name == "process_name" and isinstance(name, str):
            processes[event.pid] = name
        elif event.phase == "O":
            snapshot = event.args.get("snapshot")
            described = snapshot.get("tensor_description") if isinstance(snapshot, dict) else None
            if isinstance(described, str):
                tensors.setdefault(event.name, _describe(described))
    return processes, tensors


def _describe(text: str) -> _Tensor:
    dtype, shape = _DTYPE.search(text), _SHAPE.search(text)
    return (dtype[1] if dtype else None), ([int(n) for n in _SIZE.findall(shape[1])] if shape else None)


def _operator(event: ChromeEvent, process: str, tensors: dict[str, _Tensor]) -> dict[str, Any]:
    numbered = {int(m[1]): v for k, v in event.args.items() if (m := _INPUT.fullmatch(k)) and isinstance(v, str)}
    inputs = [numbered[i] for i in sorted(numbered)]
    # `node:1` is the node's second output; a timeline keeps one snapshot a node
    known = [tensors.get(name.partition(":")[0], (None, None)) for name in inputs if not name.startswith("^")]
    return {
        "input_types": json_text([dtype for dtype, _ in known]) if known else None,
        "input_dims": json_text([dims for _, dims in known]) if known else None,
        "attributes": attributes(
            node=event.args.get("name"), inputs=inputs or None, device=process.removesuffix(_COMPUTE)
        ),
    }


def _kernel(event: ChromeEvent, stream: re.Match[str]) -> dict[str, Any]:
    name = event.name.upper()
    kinds = {"MEMCPY": Activity.MEMCPY, "MEMSET": Activity.MEMSET}
    return {
        "category": next((kind for word, kind in kinds.items() if word in name), Activity.KERNEL),
        "device": int(stream["device"]),
        "stream": int(stream["stream"]) if stream["stream"].isdigit() and len(stream["stream"]) < 19 else None,
        "attributes": attributes(node=event.args.get("name")),
    }
