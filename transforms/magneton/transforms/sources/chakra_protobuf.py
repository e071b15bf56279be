"""Chakra execution traces as protocol buffers (``*.et``), made by ``chakra_converter`` from traces of PyTorch or by hand.

The file is a sequence of messages, each behind its length: first ``GlobalMetadata``, then one ``Node`` per call, as in
``et_def.proto`` of MLCommons Chakra. A node is work of the host where its attribute ``is_cpu_op`` is true, else of a device;
control and data dependencies name nodes that come before it. Times are whole microseconds. Traces made by hand for simulators
have none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from magneton.schemas.errors import InputFormatError, TruncatedInputError
from magneton.schemas.kinds import Activity, Clock
from magneton.transforms.reading.limits import Limits
from magneton.transforms.sources import Input
from magneton.transforms.sources.local_file import mapped
from magneton.transforms.sources.rows import Notes, Row, attributes, hand_over, int64
from magneton.transforms.sources.xla.protowire import (
    FIXED64,
    LENGTH,
    VARINT,
    Buffer,
    WireError,
    double,
    fields,
    read_varint,
    signed,
    text,
    varints,
)
from magneton.transforms.staging.stage import Stage

FORMAT = "chakra_protobuf"

# Fields of `Node`.
_ID, _NAME, _TYPE, _CTRL, _DATA, _START, _DURATION, _INPUTS, _OUTPUTS, _ATTR = range(1, 11)
_NUMBERS = {_ID: "id", _TYPE: "type", _START: "start", _DURATION: "duration"}
_TYPES = {2: "MEM_LOAD", 3: "MEM_STORE", 4: "COMP", 5: "COMM_SEND", 6: "COMM_RECV", 7: "COMM_COLL"}
_METADATA, _SEND, _COLLECTIVE = 1, 5, 7
_COLLECTIVES = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
    "reduce_scatter_block", "barrier",
)  # fmt: skip
# Fields of `AttributeProto` by what they hold; the converter writes no others.
_DOUBLE, _INTEGERS, _BOOL, _STRING = 3, (7, 9, 11, 13), 27, 29
_SHOWN = ("tensor_size", "pg_name", "comm_size", "num_ops", "comm_tag", "comm_src", "comm_dst")


@dataclass
class _Node:
    id: int = 0
    name: str = ""
    type: int = 0
    before: list[int] = field(default_factory=list)
    start: int = 0
    duration: int = 0
    shapes: str | None = None
    types: str | None = None
    attr: dict[str, Any] = field(default_factory=dict)


def sniff(head: bytes, path: Path) -> bool:
    """Tell whether a file's first bytes are a short message with a version, and a node behind it."""
    try:
        size, start = read_varint(head, 0, min(len(head), 10))
        stop = start + size
        if not 0 < size <= 4096 or stop >= len(head):
            return False
        found = list(fields(head, start, stop))
        if not found or any(number > 2 or wire != LENGTH for number, wire, *_ in found):
            return False
        size, start = read_varint(head, stop, len(head))
        first = next(fields(head, start, min(start + size, len(head))))
    except (WireError, StopIteration):
        return False
    version = next((text(head, a, b) for number, _, a, b in found if number == 1), "")
    return first[0] in (_ID, _NAME) and (not version or version.replace(".", "").isalnum())


def read(source: Input, stage: Stage, limits: Limits) -> None:
    """Stage the nodes of a file.

    Raises:
        InputFormatError: it is damaged.
        TruncatedInputError: it stops in the middle.
    """
    notes = Notes(max_dur_ns=limits.max_event_dur_ns)
    with mapped(source) as data:
        try:
            hand_over(_rows(data, notes), notes, stage)
        except WireError as error:
            if error.cut_off:
                raise TruncatedInputError("stops in the middle of a node", path=source.path) from error
            raise InputFormatError(f"is a damaged Chakra trace: {error}", path=source.path) from error


def _messages(data: Buffer) -> Iterator[tuple[int, int]]:
    position = 0
    while position < len(data):
        size, position = read_varint(data, position, len(data))
        if position + size > len(data):
            raise WireError("a message runs past the end", cut_off=True)
        yield position, position + size
        position += size


def _timed(data: Buffer) -> bool:
    """Tell whether any node has a duration."""
    messages = _messages(data)
    next(messages, None)
    return any(
        number == _DURATION and value for start, stop in messages for number, _, value, _ in fields(data, start, stop)
    )


def _rows(data: Buffer, notes: Notes) -> Iterator[Row]:
    notes.framework = "chakra"
    notes.clock = Clock.SESSION
    messages = _messages(data)
    start, stop = next(messages)
    notes.metadata["version"] = next((text(data, a, b) for n, _, a, b in fields(data, start, stop) if n == 1), None)
    timed = _timed(data)
    if not timed:
        notes.warn("no_times", "the nodes have no durations: `ts_ns` only numbers them")
    # For each node the operator of the host that it belongs to: itself, or that of a node it depends on.
    operator: dict[int, int] = {}
    for position, (start, stop) in enumerate(messages):
        node = _node(data, start, stop)
        above = next((operator[b] for b in node.before if b in operator), None)
        identity = int64(node.id + 1) if node.attr.get("is_cpu_op") else above
        if identity is not None:
            operator[node.id] = identity
        if node.type == _METADATA:
            notes.merge()
            continue
        notes.keep()
        times = (
            {"ts_ns": node.start * 1000, "dur_ns": node.duration * 1000}
            if timed
            else {"ts_ns": position, "dur_ns": None}
        )
        yield _row(node, {"name": node.name, "pid": "0", "external_id": identity, **times})


def _row(node: _Node, row: dict[str, Any]) -> Row:
    said = attributes(type=_TYPES.get(node.type), **{k: node.attr[k] for k in _SHOWN if k in node.attr})
    if node.attr.get("is_cpu_op"):
        tid = node.attr.get("tid")
        tensors = {"input_dims": node.shapes, "input_types": node.types}
        return "ops", {**row, "tid": None if tid is None else str(tid), **tensors, "attributes": said}
    stream = int64(node.attr.get("stream"))
    kind = node.attr.get("comm_type")
    known = node.type == _COLLECTIVE and isinstance(kind, int) and 0 <= kind < len(_COLLECTIVES)
    return "kernels", {
        **row,
        "tid": None if stream is None else str(stream),
        "stream": stream,
        "category": Activity.MEMCPY if node.type in (2, 3) else Activity.KERNEL,
        "kernel_class": "collective" if node.type >= _SEND else None,
        "collective": attributes(name=_COLLECTIVES[kind]) if known and kind is not None else None,
        "attributes": said,
    }


def _node(data: Buffer, start: int, stop: int) -> _Node:
    node = _Node()
    for number, wire, a, b in fields(data, start, stop):
        if wire == VARINT and number in _NUMBERS:
            setattr(node, _NUMBERS[number], signed(a))
        elif number in (_CTRL, _DATA):
            node.before += varints(data, wire, a, b)
        elif wire != LENGTH:
            continue
        elif number == _NAME:
            node.name = text(data, a, b)
        elif number == _INPUTS:
            said = {n: text(data, c, d) for n, w, c, d in fields(data, a, b) if w == LENGTH}
            node.shapes, node.types = said.get(2), said.get(3)
        elif number == _ATTR:
            name, value = _attribute(data, a, b)
            node.attr[name] = value
    return node


def _attribute(data: Buffer, start: int, stop: int) -> tuple[str, Any]:
    name = ""
    value: Any = None
    for number, wire, a, b in fields(data, start, stop):
        if number == 1 and wire == LENGTH:
            name = text(data, a, b)
        elif number == _STRING and wire == LENGTH:
            value = text(data, a, b)
        elif number == _BOOL and wire == VARINT:
            value = bool(a)
        elif number in _INTEGERS and wire == VARINT:
            value = signed(a)
        elif number == _DOUBLE and wire == FIXED64:
            value = double(data, a)
    return name, value
