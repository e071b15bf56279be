"""The host side of a capture: operators, launches, frames and annotations, nested and written as they are read.

One pass in order of time finds which slice encloses which. The device side needs to know where each launch belongs; this is kept
in a few arrays. Everything else is written and not kept in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from magneton.transforms.linking.autograd import Autograd
from magneton.transforms.linking.flow_events import FORWARD_BACKWARD, FlowEnds
from magneton.transforms.linking.module_tree import ModuleTree
from magneton.transforms.linking.nest import Sweep
from magneton.transforms.linking.steps import Steps
from magneton.transforms.naming.frame_names import Place, module_instance, place
from magneton.transforms.naming.launch_names import (
    capture_step,
    launches_graph,
    leaves_activity,
    moves_memory,
)
from magneton.transforms.staging.arrays import Growing, IdMap
from magneton.transforms.staging.stage import NONE, Stage
from magneton.transforms.staging.windows import FOREVER, Window, ends, windows
from magneton.transforms.staging.writer import RunWriter, Texts, ids, known, threads

_FACTS: dict[str, Callable[[str], int]] = {
    "capture": capture_step,
    "activity": leaves_activity,
    "graph": launches_graph,
    "transfer": moves_memory,
}
KINDS = ("annotations", "frames", "ops", "launches", "flows")

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass
class NextIds:
    """The next free id of every table, shared by the captures of a run."""

    ops: int = 0
    launches: int = 0
    kernels: int = 0
    frames: int = 0
    modules: int = 0
    annotations: int = 0
    steps: int = 0
    flows: int = 0

    def take(self, kind: str, count: int) -> Ints:
        """Return ``count`` consecutive ids."""
        first = getattr(self, kind)
        setattr(self, kind, first + count)
        return np.arange(first, first + count, dtype=np.int64)


@dataclass
class Placed:
    """Where rows that others refer to belong: one number per row, in the order of their ids."""

    first: int = 0
    columns: dict[str, Growing] = field(default_factory=dict)

    def append(self, **values: Ints) -> None:
        """Add rows."""
        for name, column in values.items():
            self.columns.setdefault(name, Growing()).append(column)

    def __getitem__(self, name: str) -> Ints:
        column = self.columns.get(name)
        return np.empty(0, np.int64) if column is None else column.view()

    def of(self, name: str, row_ids: Ints) -> Ints:
        """Return a column for rows given by id (``NONE`` or -1: none)."""
        known = row_ids >= self.first
        out = np.full(len(row_ids), NONE, np.int64)
        out[known] = self[name][row_ids[known] - self.first]
        return out


class HostPass:
    """Nests, places and writes the host side of one capture.

    Attributes:
        ops: external_id, process, module, call, step of every operator; record_function where tensors refer to it.
        launches: correlation, process, ts, op, module, call, step, graph, expects of every launch; family is its
            category where its name says that it leaves an activity, else -1.
        flows: what the ends of flow arrows lie in.
    """

    def __init__(
        self, stage: Stage, writer: RunWriter, keys: Mapping[str, Any], next_ids: NextIds, steps: Steps
    ) -> None:
        self.ops = Placed(next_ids.ops)
        self.launches = Placed(next_ids.launches)
        self.flows = FlowEnds()
        self.modules = ModuleTree(next_ids.modules)
        self._stage = stage
        self._writer = writer
        self._keys = keys
        self._next = next_ids
        self._steps = steps
        self._texts = stage.pool.arrow()
        names = stage.pool.texts()
        self._is_module = np.array([module_instance(n) is not None for n in names] or [False])
        self._sweeps = {kind: Sweep() for kind in ("frames", "ops", "annotations", "modules", "launches")}
        self._autograd = Autograd()
        self._python: dict[int, IdMap] = {}
        self._forward_by_flow = False
        self._held: list[dict[str, Any]] = []
        self._places: dict[int, Place] = {}
        self._capturing: dict[int, int] = {}
        self._active = np.unique(stage.column("kernels", "correlation"))
        self._names = names
        self._process = _processes(stage)
        self._name_facts: dict[str, NDArray[np.int8]] = {}

    def run(self) -> None:
        """Go through all events."""
        stage = self._stage
        self._forward_by_flow = self._needs_flows()
        for window in windows(stage, KINDS, whole=self._forward_by_flow):
            self._window(window)
        self._release_frames()
        self._write_modules()
        if overlaps := self._sweeps["ops"].overlaps:
            stage.warn("overlapping_slices", "operators of one thread that overlap without nesting", overlaps)

    def _needs_flows(self) -> bool:
        """Tell whether only arrows connect forward with backward operators. Then all events are read before any is written."""
        stage = self._stage
        codes = [c for f in FORWARD_BACKWARD if (c := stage.pool.codes.get(f)) is not None]
        if not codes or not np.isin(stage.column("flows", "category"), codes).any():
            return False
        return not (stage.column("ops", "sequence_number") != NONE).any()

    # --- one window -----------------------------------------------------------------------------------------------

    def _window(self, w: Window) -> None:
        stage = self._stage
        is_frame, is_op, is_launch = w.of("frames"), w.of("ops"), w.of("launches")
        is_annotation, is_flow = w.of("annotations"), w.of("flows")
        codes = stage.pool.codes
        kind = w.gather("kind")
        nested = ~np.isin(kind, [codes["async"], codes["async_instant"]])
        ident = np.empty(len(w.kind), np.int64)
        for label in KINDS[:-1]:
            mine = w.of(label)
            ident[mine] = self._next.take(label, int(mine.sum()))
        track = w.gather("track")
        ts = w.gather("ts_ns")
        end = np.empty(len(ts), np.int64)
        for label in KINDS:
            end[w.of(label)] = ends(w.rows[label])
        # Launches may settle for what encloses their start.
        settle = np.where(is_launch, ts, FOREVER)
        name = w.gather("name", -1)
        is_module = is_frame & self._is_module[np.maximum(name, 0)] & (name >= 0)

        def sweep(what: str, among: Mask, containers: Mask) -> tuple[Ints, Ints]:
            around = np.full(len(ts), -1, np.int64)
            depth = np.zeros(len(ts), np.int64)
            rows = np.flatnonzero(among & nested)
            if len(rows):
                around[rows], depth[rows] = self._sweeps[what].run(
                    track[rows], containers[rows], ts[rows], end[rows], end[rows], ident[rows], settle[rows]
                )
            return around, depth

        frame, frames_around = sweep("frames", ~is_annotation, is_frame)
        op, ops_around = sweep("ops", is_op | is_launch | is_flow, is_op)
        annotation, annotations_around = sweep("annotations", ~is_frame, is_annotation & (kind == codes["slice"]))
        call, _ = sweep("modules", is_op | is_launch | is_module, is_module)
        depth = frames_around + ops_around + annotations_around
        self._enter_modules(w, np.flatnonzero(is_module), ident, call, track, ts)

        self._frames(w, ident[is_frame], frame[is_frame])
        self._annotations(w, ident[is_annotation], annotation[is_annotation])
        if is_flow.any():
            launch, _ = sweep("launches", is_launch | is_flow, is_launch)
            self.flows.add(
                stage,
                w.rows["flows"],
                {
                    "launches": launch[is_flow],
                    "ops": op[is_flow],
                    "annotations": annotation[is_flow],
                    "frames": frame[is_flow],
                },
            )
        self._ops(w, ident[is_op], op[is_op], depth[is_op], call[is_op], frame[is_op])
        self._launches(w, ident[is_launch], op[is_launch], depth[is_launch], call[is_launch], frame[is_launch])
        self.modules.settle(self._sweeps["modules"].open())

    def _enter_modules(self, w: Window, rows: Ints, ident: Ints, call: Ints, track: Ints, ts: Ints) -> None:
        frames = w.rows["frames"]
        index = w.index[rows]
        for row, at in zip(rows.tolist(), index.tolist(), strict=True):
            instance = module_instance(self._names[frames["name"][at]]) or ""
            self.modules.call(
                int(ident[row]), int(call[row]), instance, int(track[row]), int(ts[row]), int(frames["dur_ns"][at])
            )

    def _annotations(self, w: Window, ident: Ints, parent: Ints) -> None:
        rows = w.rows["annotations"]
        self._writer.write(
            "annotations",
            len(ident),
            self._keys,
            self._event("annotations", w)
            | {
                "annotation_id": ident,
                "parent_id": _id(parent),
                "step_id": self._steps.lookup(rows["track"], rows["ts_ns"]),
                "category": self._text(rows["category"]),
                "kind": self._text(rows["kind"]),
                "external_id": ids(rows["external_id"], self._stage),
                "correlation": ids(rows["correlation"], self._stage),
                "args": self._text(rows["args"]),
                "flags": self._text(rows["flags"]),
            },
        )

    def _ops(self, w: Window, ident: Ints, parent: Ints, depth: Ints, call: Ints, frame: Ints) -> None:
        rows = w.rows["ops"]
        if not len(ident):
            return
        stage = self._stage
        track = rows["track"]
        step = self._steps.lookup(track, rows["ts_ns"])
        forward = self._autograd.links(
            ident, track.astype(np.int64), self._process[track], rows["sequence_number"], rows["fwd_thread_id"]
        )
        if self._forward_by_flow:
            by_flow = self.flows.forward()
            forward = np.array(
                [
                    by_flow.get(i, NONE) if f == NONE else f
                    for i, f in zip(ident.tolist(), forward.tolist(), strict=True)
                ],
                np.int64,
            )
        self.ops.append(
            external_id=rows["external_id"],
            process=self._process[track],
            step=step,
            call=call,
            module=np.full_like(call, NONE),
        )
        if stage.n_rows["uses"]:
            self.ops.append(record_function=rows["record_function_id"])
        call = self._inherit(ident, parent, forward)
        module = self.modules.of_calls(call)
        self.ops["module"][ident - self.ops.first] = module
        self._writer.write(
            "ops",
            len(ident),
            self._keys,
            self._event("ops", w)
            | {
                "op_id": ident,
                "parent_id": _id(parent),
                "depth": depth,
                "module_id": module,
                "module_call": _id(call),
                "step_id": step,
                "frame_id": _id(frame),
                "external_id": ids(rows["external_id"], stage),
                "record_function_id": rows["record_function_id"],
                "sequence_number": rows["sequence_number"],
                "fwd_thread_id": rows["fwd_thread_id"],
                "forward_op_id": forward,
            }
            | {
                c: self._text(rows[c])
                for c in (
                    "input_dims", "input_types", "input_strides", "concrete_inputs", "collective", "attributes", "flags",
                )
            },
        )  # fmt: skip

    def _inherit(self, ident: Ints, parent: Ints, forward: Ints) -> Ints:
        """Let operators outside any module call take the call of their forward operator, or of their parent."""
        calls = self.ops["call"]
        own = ident - self.ops.first
        source = np.where(forward != NONE, forward, parent)
        lacking = np.flatnonzero((calls[own] < 0) & (source >= self.ops.first))
        while len(lacking):
            given = calls[source[lacking] - self.ops.first]
            calls[own[lacking]] = given
            lacking = lacking[given < 0]
            if not (given >= 0).any():
                break
        return calls[own].copy()

    def _launches(self, w: Window, ident: Ints, op: Ints, depth: Ints, call: Ints, frame: Ints) -> None:
        rows = w.rows["launches"]
        if not len(ident):
            return
        stage = self._stage
        track, name, correlation = rows["track"], rows["name"], rows["correlation"]
        step = self._steps.lookup(track, rows["ts_ns"])
        call = np.where(call >= 0, call, self.ops.of("call", op))
        module = self.modules.of_calls(call)
        captured = self._in_capture(track, self._fact("capture", name))
        linked = (correlation != NONE) & np.isin(correlation, self._active)
        stated = rows["expects_device_activity"]
        named = (self._fact("activity", name) > 0) & ~captured
        moves = self._fact("transfer", name) > 0
        named &= ~(moves & ~linked & _between_complete(track, named & ~moves, linked))
        expects = np.where(stated >= 0, stated > 0, named) | linked
        graph = self._fact("graph", name) > 0
        self.launches.append(
            correlation=correlation,
            process=self._process[track],
            ts=rows["ts_ns"],
            op=_id(op),
            module=module,
            call=_id(call),
            step=step,
            graph=graph.astype(np.int64),
            expects=expects.astype(np.int64),
            family=np.where(named, rows["category"], -1).astype(np.int64),
        )
        self._writer.write(
            "launches",
            len(ident),
            self._keys,
            self._event("launches", w)
            | {
                "launch_id": ident,
                "category": self._text(rows["category"]),
                "correlation": ids(correlation, stage),
                "external_id": ids(rows["external_id"], stage),
                "op_id": _id(op),
                "depth": depth,
                "module_id": module,
                "module_call": _id(call),
                "step_id": step,
                "frame_id": _id(frame),
                "kernel_name": self._text(rows["kernel_name"]),
                "expects_device_activity": expects.astype(np.int8),
            },
        )

    def _in_capture(self, track: NDArray[Any], change: NDArray[np.int8]) -> Mask:
        """Tell which launches happen while their thread records a graph."""
        out = np.zeros(len(track), bool)
        if not change.any() and not any(self._capturing.values()):
            return out
        for number in np.unique(track).tolist():
            mine = np.flatnonzero(track == number)
            level = self._capturing.get(number, 0)
            for row, step in zip(mine.tolist(), change[mine].tolist(), strict=True):
                out[row] = level > 0
                level = max(level + step, 0)
            self._capturing[number] = level
        return out

    def _fact(self, what: str, name: NDArray[Any]) -> NDArray[np.int8]:
        """Look up something that follows from a launch's name."""
        known = self._name_facts.setdefault(what, np.full(len(self._names) + 1, -2, np.int8))
        for code in np.unique(name).tolist():
            if known[code] == -2:
                text = self._names[code] if code >= 0 else ""
                rule = _FACTS[what]
                known[code] = int(rule(text))
        facts: NDArray[np.int8] = known[name]
        return facts

    # --- frames ---------------------------------------------------------------------------------------------------

    def _frames(self, w: Window, ident: Ints, around: Ints) -> None:
        rows = w.rows["frames"]
        if not len(ident):
            return
        python, parent_python = rows["python_id"], rows["python_parent_id"]
        process = self._process[rows["track"]]
        parent = np.where(python == NONE, _id(around), NONE)
        missing = np.zeros(len(ident), bool)
        for number in np.unique(process).tolist():
            mine = np.flatnonzero(process == number)
            known = self._python.setdefault(number, IdMap())
            known.set(python[mine], ident[mine])
            asks = mine[(python[mine] != NONE) & (parent_python[mine] != NONE)]
            parent[asks] = known.get(parent_python[asks])
            missing[asks] = parent[asks] == NONE
        columns = {
            **{name: rows[name] for name in ("name", "track", "ts_ns", "dur_ns", "python_id", "python_parent_id")},
            "frame_id": ident,
            "parent_id": parent,
            "process": process,
        }
        if missing.any():
            # The caller may start later, by a clock that was read late: wait for it.
            self._held.append({name: values[missing] for name, values in columns.items()})
            columns = {name: values[~missing] for name, values in columns.items()}
        self._write_frames(columns)

    def _release_frames(self) -> None:
        for columns in self._held:
            for number in np.unique(columns["process"]).tolist():
                mine = columns["process"] == number
                columns["parent_id"][mine] = self._python[number].get(columns["python_parent_id"][mine])
            self._write_frames(columns)
        self._held.clear()

    def _write_frames(self, columns: dict[str, Any]) -> None:
        name = columns["name"]
        unique, inverse = np.unique(name, return_inverse=True)
        places = [self._place(c) for c in unique.tolist()]
        lines = np.array([NONE if p.line is None else p.line for p in places] or [NONE], np.int64)
        self._writer.write(
            "frames",
            len(name),
            self._keys,
            threads(self._stage, columns["track"])
            | {
                "name": self._text(name),
                "ts_ns": columns["ts_ns"],
                "dur_ns": known(columns["dur_ns"]),
                "frame_id": columns["frame_id"],
                "python_id": ids(columns["python_id"], self._stage),
                "parent_id": columns["parent_id"],
                "file": Texts(inverse, pa.array([p.file for p in places], pa.string())),
                "line": lines[inverse] if len(inverse) else np.empty(0, np.int64),
                "function": Texts(inverse, pa.array([p.function for p in places], pa.string())),
                "module_id": self.modules.of_calls(columns["frame_id"]),
            },
        )

    def _place(self, name: int) -> Place:
        found = self._places.get(name)
        if found is None:
            found = self._places[name] = place(self._names[name] if name >= 0 else "")
        return found

    # --- the rest -------------------------------------------------------------------------------------------------

    def _event(self, kind: str, w: Window) -> dict[str, Any]:
        rows = w.rows[kind]
        return threads(self._stage, rows["track"]) | {
            "name": self._text(rows["name"]),
            "ts_ns": rows["ts_ns"],
            "dur_ns": known(rows["dur_ns"]),
        }

    def _text(self, codes: NDArray[Any]) -> Texts:
        return Texts(codes, self._texts)

    def _write_modules(self) -> None:
        columns = self.modules.columns()
        self._next.take("modules", len(self.modules.modules))
        columns = {k: pa.array(v, pa.string()) if isinstance(v, list) else v for k, v in columns.items()}
        self._writer.write("modules", len(self.modules.modules), self._keys, columns)


def _between_complete(track: NDArray[Any], works: Mask, linked: Mask) -> Mask:
    """Tell which calls stand between launches of their thread that all left their activity.

    A copy or a fill without an activity there had nothing to do (cuBLAS clears workspaces of no bytes): profilers lose
    records in runs, not one by one.
    """
    out = np.zeros(len(track), bool)
    for number in np.unique(track).tolist():
        mine = np.flatnonzero(track == number)
        known = mine[works[mine]]
        if not len(known):
            continue
        after = np.searchsorted(known, mine)
        before = np.maximum(after - 1, 0)
        after = np.minimum(after, len(known) - 1)
        out[mine] = linked[known[before]] & linked[known[after]]
    return out


def _id(column: Ints) -> Ints:
    """Return ids with -1 as ``NONE``."""
    return np.where(column < 0, NONE, column)


def _processes(stage: Stage) -> Ints:
    """Return a number for the process of each track."""
    numbers: dict[str | None, int] = {}
    return np.array([numbers.setdefault(pid, len(numbers)) for pid, _ in stage.tracks.names] or [0], np.int64)
