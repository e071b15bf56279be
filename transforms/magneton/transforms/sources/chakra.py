"""Execution traces of PyTorch's ``ExecutionTraceObserver`` (Chakra schemas 1.0.1 to 1.1.1): calls and their tensors.

A node is one call; ids grow in the order in which calls began, while the list is in the order in which they ended.
Until 1.0.x inputs, shapes and types are fields of the node, since 1.0.2-chakra they are grouped and the rest are
``attrs``. A tensor is `[tensor id, storage id, offset, elements, bytes per element, device]`. There are no times: those
are in the trace of the same run, whose ``Record function id`` is a node's ``rf_id``. ``chakra_trace_link`` puts both into one
file: nodes then have ``ts`` and ``inclusive_dur`` (microseconds), and device activities are nodes with a ``cat`` and a ``stream``
that depend on their operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from magneton.schemas.kinds import Activity
from magneton.transforms.reading.json_array import tolerant_loads
from magneton.transforms.reading.limits import Limits
from magneton.transforms.reading.timestamps import text_to_ns
from magneton.transforms.sources import Input
from magneton.transforms.sources.chrome_event import Elements, read_list
from magneton.transforms.sources.rows import Notes, Row, UnusableEvent, attributes, int64, json_text
from magneton.transforms.staging.stage import Stage

FORMAT = "chakra"

_HEAD = re.compile(rb'"schema"\s*:\s*"\d')
_TENSOR = re.compile(r"Tensor\((?P<dtype>.*)\)")
_LIST = re.compile(r"(?:GenericList|TensorList|Tuple)\[(?P<types>.*)\]", re.DOTALL)
_TENSOR_FIELDS = ("tensor_id", "storage_id", "storage_offset", "numel", "itemsize")
_DEVICE = frozenset(Activity)
USER_SCOPE = 7
_MAX_LIST = 100_000


@dataclass(slots=True)
class Argument:
    """Values, types, shapes and strides of one side of a call, as written: one entry an argument."""

    values: list[Any] = field(default_factory=list)
    types: list[Any] = field(default_factory=list)
    shapes: list[Any] = field(default_factory=list)
    strides: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Node:
    """One call. ``rf_id`` is 0 for the nodes that stand for the process and its threads."""

    id: int
    name: str
    parent: int | None
    rf_id: int
    scope: int | None
    tid: int | None
    fwd_tid: int | None
    sequence_number: int | None
    schema: str | None
    inputs: Argument
    outputs: Argument
    more: dict[str, Any]
    ts_ns: int | None = None
    dur_ns: int | None = None
    category: str | None = None
    stream: int | None = None


def sniff(head: bytes, path: Path) -> bool:
    """Tell whether a file's first bytes are those of an execution trace."""
    return head.lstrip()[:1] == b"{" and _HEAD.search(head) is not None and b'"nodes"' in head


def read(source: Input, stage: Stage, limits: Limits) -> None:
    """Stage the calls of an execution trace (see ``chrome_event.read_list`` for what it raises)."""
    elements = read_list(decode, source, stage, limits, key="nodes")
    stage.info.metadata["schema"] = elements.metadata.get("schema")


def parse(raw: bytes) -> Node:
    """Decode one element of ``nodes``.

    Raises:
        UnusableEvent: it is not an object, or has no id.
    """
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            found = tolerant_loads(raw)  # the writer prints infinities and NaN as they are
        except (ValueError, RecursionError):
            found = None
    if not isinstance(found, dict):
        raise UnusableEvent("not_an_object")
    facts = found
    if isinstance(listed := found.get("attrs"), list):
        facts = {a["name"]: a.get("value") for a in listed if isinstance(a, dict) and isinstance(a.get("name"), str)}
    identity = int64(found.get("id"))
    if identity is None:
        raise UnusableEvent("not_an_object")
    sequence = int64(facts.get("seq_id"))
    return Node(
        id=identity,
        name=str(found.get("name") or ""),
        parent=int64(found.get("ctrl_deps", found.get("parent"))),
        rf_id=int64(facts.get("rf_id")) or 0,
        scope=int64(facts.get("scope")),
        tid=int64(facts.get("tid")),
        fwd_tid=int64(facts.get("fw_tid")),
        sequence_number=None if sequence is None or sequence < 0 else sequence,
        schema=_text(facts.get("op_schema")),
        inputs=_side(found, "input"),
        outputs=_side(found, "output"),
        more={k: v for k in ("kernel_backend", "kernel_file", "tensor_range") if (v := _text(facts.get(k)))},
        ts_ns=_microseconds(found.get("ts")),
        dur_ns=_microseconds(found.get("inclusive_dur", found.get("dur", found.get("exclusive_dur")))),
        category=_text(found.get("cat")),
        stream=int64(found.get("stream")),
    )


def decode(elements: Elements, notes: Notes) -> Iterator[Row]:
    """Yield the rows of an execution trace that stands alone: calls in order, without times, and their tensors.

    ``ts_ns`` only numbers the calls (it is the node's id), ``dur_ns`` is unknown.

    Args:
        elements: the elements of ``nodes``, as their JSON text.
        notes: filled on the way.
    """
    notes.framework = "torch"
    timed = any(b'"inclusive_dur"' in raw or b'"exclusive_dur"' in raw for raw in elements())
    if not timed:
        notes.warn("no_times", "an execution trace tells the order of calls, not their times")
    for position, raw in enumerate(elements()):
        try:
            node = parse(raw)
        except UnusableEvent as unusable:
            yield notes.quarantine(unusable.reason, raw.decode("utf-8", "replace"), position)
            continue
        process = int64(elements.metadata.get("pid"))
        common = {"name": node.name, "ts_ns": node.id, "dur_ns": None, "pid": process, "tid": node.tid}
        if timed:
            common |= {"ts_ns": node.ts_ns, "dur_ns": node.dur_ns}
        if node.rf_id == 0 and not (timed and node.category):
            notes.merge()
            continue
        if common["ts_ns"] is None:
            yield notes.quarantine("ts_missing", raw.decode("utf-8", "replace"), position)
            continue
        notes.keep()
        if timed and node.category in _DEVICE:
            yield (
                "kernels",
                {
                    **common,
                    "tid": None if node.stream is None else str(node.stream),
                    "stream": node.stream,
                    "category": node.category,
                    "external_id": None if node.parent is None else node.parent + 1,
                },
            )
            continue
        if node.scope == USER_SCOPE:
            yield "annotations", {**common, "category": "user_annotation", "kind": "slice"}
        else:
            yield "ops", {**common, **operator(node), "external_id": node.id + 1 if timed else None}
            for use in uses(node):
                yield "uses", {"record_function_id": node.rf_id, **use}


def operator(node: Node) -> dict[str, Any]:
    """Return the columns of ``ops`` that a node fills."""
    inputs = node.inputs
    concrete = [
        "" if _is_tensor(kind) else _plain(value) for value, kind in zip(inputs.values, inputs.types, strict=False)
    ]
    return {
        "record_function_id": node.rf_id,
        "sequence_number": node.sequence_number,
        "fwd_thread_id": node.fwd_tid,
        "input_dims": json_text(inputs.shapes),
        "input_types": json_text(inputs.types),
        "input_strides": json_text(inputs.strides) if inputs.strides else None,
        "concrete_inputs": json_text(concrete),
        "attributes": attributes(parent_node_id=node.parent, op_schema=node.schema, **node.more),
    }


def uses(node: Node) -> Iterator[dict[str, Any]]:
    """Yield the tensors a call reads and writes: the columns of the table ``uses`` but for the call itself."""
    for direction, side in (("input", node.inputs), ("output", node.outputs)):
        for position, (value, kind) in enumerate(zip(side.values, side.types, strict=False)):
            shape = side.shapes[position] if position < len(side.shapes) else None
            stride = side.strides[position] if position < len(side.strides) else None
            yield from _uses(value, kind, shape, stride, {"direction": direction, "position": position})


def _uses(value: Any, kind: Any, shape: Any, stride: Any, place: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if not isinstance(kind, str) or not isinstance(value, list):
        return
    tensor = _TENSOR.fullmatch(kind)
    if tensor is not None:
        yield {**place, **_tensor(value), "dtype": tensor["dtype"], "dims": _ints(shape), "strides": _ints(stride)}
        return
    listed = _LIST.fullmatch(kind)
    if listed is None or "Tensor(" not in kind:
        return
    for element, (part, part_kind) in enumerate(zip(value[:_MAX_LIST], _split(listed["types"]), strict=False)):
        found = _TENSOR.fullmatch(part_kind)
        if found is not None and isinstance(part, list):
            dims, strides = _ints(_at(shape, element)), _ints(_at(stride, element))
            yield {
                **place,
                "element": element,
                **_tensor(part),
                "dtype": found["dtype"],
                "dims": dims,
                "strides": strides,
            }


def _tensor(value: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {name: int64(part) for name, part in zip(_TENSOR_FIELDS, value, strict=False)}
    found["device"] = _text(value[5]) if len(value) > 5 else None
    return found


def _split(types: str) -> list[str]:
    """Split the types of a list at its own commas: `Tensor(long int),GenericList[Int,Int]` has two."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(types):
        if letter in "[(":
            depth += 1
        elif letter in "])":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(types[start:index])
            start = index + 1
    return [*parts, types[start:]]


def _side(found: dict[str, Any], name: str) -> Argument:
    grouped = found.get(f"{name}s")
    if isinstance(grouped, dict):
        return Argument(*(_list(grouped.get(k)) for k in ("values", "types", "shapes", "strides")))
    keys = (f"{name}_types", f"{name}_shapes", f"{name}_strides")
    return Argument(_list(grouped), *(_list(found.get(k)) for k in keys))


def _is_tensor(kind: Any) -> bool:
    return isinstance(kind, str) and "Tensor(" in kind


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)


def _microseconds(value: Any) -> int | None:
    """Return a number of microseconds in nanoseconds; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    found = text_to_ns(repr(value))
    return None if isinstance(found, str) else found


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _at(value: Any, index: int) -> Any:
    return value[index] if isinstance(value, list) and index < len(value) else None


def _ints(value: Any) -> list[int] | None:
    if not isinstance(value, list):
        return None
    found = [n for n in map(int64, value) if n is not None]
    return found if len(found) == len(value) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
