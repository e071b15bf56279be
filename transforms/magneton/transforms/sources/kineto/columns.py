"""Columns of staged rows, made from decoded kineto events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from magneton.transforms.sources.kineto.attributes import Attributes
from magneton.transforms.sources.kineto.events import CollectiveArgs, Event, FrameEvent, KernelArgs, OpArgs
from magneton.transforms.staging.stage import NO_TEXT, NONE, Stage, Values

_CACHE = 100_000
_COLLECTIVE = (
    ("name", "collective_name"),
    ("dtype", "dtype"),
    ("in_nelems", "in_nelems"),
    ("out_nelems", "out_nelems"),
    ("in_split", "in_split"),
    ("out_split", "out_split"),
    ("group_size", "group_size"),
    ("group", "group_name"),
    ("group_description", "group_description"),
    ("group_ranks", "group_ranks"),
    ("comms_id", "comms_id"),
)
# c10::DeviceType of the allocator's instants: 0 is the host.
_HOST = 0
_MEMORY_SERIES = ("Total Reserved", "Total Allocated", "Bytes")

Ints = NDArray[np.int64]


@dataclass(slots=True)
class Table:
    """Rows of one kind, ready to be staged."""

    kind: str
    columns: dict[str, Values]


class Columns:
    """Turns events of one group into the columns of their kind."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._op_attributes = Attributes(stage, OpArgs)
        self._kernel_attributes = Attributes(stage, KernelArgs)
        self._compact_codes: dict[bytes, int] = {}
        self._makers: dict[str, Callable[[Sequence[Any]], dict[str, Values]]] = {
            "ops": self._ops,
            "frames": self._frames,
            "launches": self._launches,
            "kernels": self._kernels,
        }

    def of(
        self,
        group: str,
        category: str | None,
        phase: str,
        events: Sequence[Event] | Sequence[FrameEvent],
        args: Sequence[Any],
        ts: Ints,
        dur: Ints,
        positions: list[int],
    ) -> Table:
        """Return the rows for events of one group.

        Raises:
            OverflowError, UnicodeError, msgspec.MsgspecError: a value does not fit its column.
        """
        stage = self._stage
        rows = len(events)
        track = stage.tracks.encode([e.pid for e in events], [e.tid for e in events])
        name = stage.pool.encode([e.name for e in events])
        shared: dict[str, Values] = {"name": name, "track": track, "ts_ns": ts, "dur_ns": dur}
        category_codes = np.full(rows, stage.pool.codes[category], np.int32)
        if group in ("counters", "memory"):
            return self._samples(group, shared, args)
        if group in self._makers:
            more = self._makers[group](args)
            if group in ("launches", "kernels"):
                more["category"] = category_codes
            return Table(group, shared | more)
        phases = np.full(rows, stage.pool.codes[phase], np.int32)
        if group == "flows":
            return Table("flows", shared | {"category": category_codes, "phase": phases, "flow": self._flow(events)})
        text = self._compact([e.args for e in events])
        if group == "edges":
            edge: dict[str, Values] = {"category": category_codes, "phase": phases, "args": text}
            edge |= {"flow": self._flow(events), "position": np.array(positions, np.int64)}
            return Table("edges", shared | edge)
        if group == "annotations":
            ids = {
                "external_id": _ints(stage, [a.external_id for a in args], lowest=1),
                "correlation": _ints(stage, [a.correlation for a in args], lowest=1),
            }
            return Table("annotations", shared | ids | self._mark(category_codes, "slice", text))
        kind = "instant"
        if group == "others":
            kind = "sample" if phase == "P" else "object" if phase in "NOD" else "mark"
        return Table("annotations", shared | self._mark(category_codes, kind, text))

    def _mark(self, category: Values, kind: str, args: Values) -> dict[str, Values]:
        return {"category": category, "kind": np.full(len(args), self._stage.pool.codes[kind], np.int32), "args": args}

    def _frames(self, args: Sequence[Any]) -> dict[str, Values]:
        return {
            "python_id": _ints(self._stage, [a.python_id for a in args]),
            "python_parent_id": _ints(self._stage, [a.python_parent_id for a in args]),
        }

    def _ops(self, args: Sequence[Any]) -> dict[str, Values]:
        stage = self._stage
        return {
            "external_id": _ints(stage, [a.external_id for a in args], lowest=1),
            "record_function_id": _ints(stage, [a.record_function_id for a in args], lowest=1),
            "sequence_number": _ints(stage, [a.sequence_number for a in args], lowest=0),
            "fwd_thread_id": _ints(stage, [a.fwd_thread_id for a in args]),
            "input_dims": self._compact([a.input_dims for a in args]),
            "input_types": self._compact([a.input_types for a in args]),
            "input_strides": self._compact([a.input_strides for a in args]),
            "concrete_inputs": self._compact([a.concrete_inputs for a in args]),
            "attributes": self._op_attributes.codes(args),
            "collective": self._collective(args),
        }

    def _launches(self, args: Sequence[Any]) -> dict[str, Values]:
        stage = self._stage
        return {
            "correlation": _ints(stage, [a.correlation for a in args], lowest=1),
            "external_id": _ints(stage, [a.external_id for a in args], lowest=1),
            "kernel_name": stage.pool.encode([a.kernel for a in args]),
        }

    def _kernels(self, args: Sequence[Any]) -> dict[str, Values]:
        stage = self._stage
        occupancy = [a.occupancy_percent for a in args]
        return {
            "device": _ints(stage, [a.device for a in args]),
            # XPU has queues for streams.
            "stream": _ints(stage, [a.stream if a.queue is None else _queue(a) for a in args]),
            "correlation": _ints(stage, [a.correlation for a in args], lowest=1),
            "external_id": _ints(stage, [a.external_id for a in args], lowest=1),
            "graph_node_id": _ints(stage, [a.graph_node_id for a in args], lowest=1),
            "bytes": _ints(stage, [a.bytes for a in args], lowest=0),
            "grid": self._sizes([a.grid for a in args]),
            "block": self._sizes([a.block for a in args]),
            "registers_per_thread": _ints(stage, [a.registers_per_thread for a in args], lowest=0),
            "shared_memory_bytes": _ints(stage, [a.shared_memory_bytes for a in args], lowest=0),
            "occupancy_percent": np.array([np.nan if v is None else v for v in occupancy], np.float64),
            "attributes": self._kernel_attributes.codes(args),
            "collective": self._collective(args),
        }

    def _samples(self, group: str, shared: dict[str, Values], args: Sequence[Any]) -> Table:
        """One event is several samples: one for each series."""
        rows: list[int] = []
        series: list[str] = []
        values: list[float | None] = []
        devices: list[int | None] = []
        for row, arg in enumerate(args):
            if group == "memory":
                known = (arg.total_reserved, arg.total_allocated, arg.bytes)
                on_host = arg.device_type in (None, _HOST) or arg.device_id is None or arg.device_id < 0
                device = None if on_host else arg.device_id
                pairs: list[tuple[str, Any]] = list(zip(_MEMORY_SERIES, known, strict=True))
            else:
                device = None
                pairs = list(arg.items()) or [("value", None)]
            for label, value in pairs:
                if group == "memory" and value is None:
                    continue
                rows.append(row)
                series.append(label)
                values.append(_number(value))
                devices.append(device)
        picked: dict[str, Values] = {k: np.asarray(v)[rows] for k, v in shared.items()}
        unit = "bytes" if group == "memory" else None
        stage = self._stage
        return Table(
            "counters",
            picked
            | {
                "series": stage.pool.encode(series),
                "value": np.array([np.nan if v is None else v for v in values], np.float64),
                "device": _ints(stage, devices),
                "unit": np.full(len(rows), stage.pool.codes[unit], np.int32),
            },
        )

    def _flow(self, events: Sequence[Any]) -> Ints:
        wide = self._stage.wide_id
        return np.array(
            [
                e.id if isinstance(e.id, int) and -(2**62) < e.id < 2**63 else wide("" if e.id is None else str(e.id))
                for e in events
            ],
            np.int64,
        )

    def _compact(self, raws: Sequence[Any]) -> NDArray[np.int32]:
        """Return codes of JSON texts without blanks; nothing and ``{}`` are NULL."""
        known = self._compact_codes
        if len(known) > _CACHE:
            known.clear()
        codes = []
        for raw in map(bytes, raws):
            code = known.get(raw)
            if code is None:
                code = NO_TEXT
                if raw and raw != b"{}" and raw != b"null":
                    text = msgspec.json.encode(msgspec.json.decode(raw), enc_hook=str).decode()
                    code = self._stage.pool.codes[text]
                known[raw] = code
            codes.append(code)
        return np.array(codes, np.int32)

    def _sizes(self, sizes: Sequence[list[int] | None]) -> NDArray[np.int32]:
        codes = self._stage.pool.codes
        out = []
        for size in sizes:
            if size is not None and any(not -(2**63) <= v < 2**63 for v in size):
                raise OverflowError
            out.append(NO_TEXT if size is None else codes["[" + ",".join(map(str, size)) + "]"])
        return np.array(out, np.int32)

    def _collective(self, args: Sequence[CollectiveArgs]) -> NDArray[np.int32]:
        codes = np.full(len(args), NO_TEXT, np.int32)
        for row, arg in enumerate(args):
            if arg.collective_name is None and arg.comms_id is None and arg.group_name is None:
                continue
            known = {k: getattr(arg, a) for k, a in _COLLECTIVE if getattr(arg, a) is not None}
            if isinstance(known.get("comms_id"), int):
                known["comms_id"] = str(known["comms_id"])
            codes[row] = self._stage.pool.codes[msgspec.json.encode(known, enc_hook=str).decode()]
        return codes


def _ints(stage: Stage, values: Sequence[int | None], lowest: int | None = None) -> Ints:
    """Return a column of integers; values below ``lowest`` mean "none" (stand-ins for wide ids stay).

    Raises:
        OverflowError: a value does not fit 64 bits.
    """
    try:
        column = np.array(values, np.int64)
    except TypeError:
        column = np.array([NONE if v is None else v for v in values], np.int64)
    if lowest is not None:
        none = column < lowest
        if none.any():
            column[none & ~stage.is_wide(column)] = NONE
    return column


def _queue(args: KernelArgs) -> int | None:
    queue = args.queue if isinstance(args.queue, int) and not isinstance(args.queue, bool) else None
    return args.stream if args.stream is not None else queue


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) != float("inf") and number == number else None
