"""From tables to trees of work: which operator did which device work in which step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from magneton.analysis.align.tree import KernelJoules, Node, Shape, Work
from magneton.analysis.device.busy import equal_share
from magneton.analysis.device.collectives import waiting_times
from magneton.analysis.device.left_out import LeftOut
from magneton.analysis.device.lost import Lost, lost_launches
from magneton.analysis.host.computing import computing_names
from magneton.analysis.host.timeline import HostTime, Timeline, Windows
from magneton.analysis.names import short_kernel_name, stable_name
from magneton.analysis.recording import Needs, Recording
from magneton.schemas.kinds import Activity, KernelClass, Reason

_OP_COLUMNS = (
    "op_id", "parent_id", "name", "ts_ns", "dur_ns", "module_id", "module_call", "step_id", "input_dims", "rank",
    "forward_op_id", "pid", "tid", "depth",
)  # fmt: skip
_KERNEL_COLUMNS = (
    "kernel_id", "name", "ts_ns", "dur_ns", "category", "kernel_class", "device", "launch_id", "op_id", "module_id", "module_call",
    "step_id", "link", "graph_launch", "bytes", "rank", "layer",
)  # fmt: skip
_FRAME_COLUMNS = ("frame_id", "parent_id", "module_id", "ts_ns", "dur_ns")
_LAUNCH_COLUMNS = ("launch_id", "name", "ts_ns", "rank")
# What ``load_side`` asks of a recording, itself and through ``lost_launches``.
NEEDS: Needs = {
    "ops": _OP_COLUMNS, "kernels": _KERNEL_COLUMNS, "launches": _LAUNCH_COLUMNS, "frames": _FRAME_COLUMNS, "modules": None,
    "steps": None,
}  # fmt: skip


@dataclass(slots=True)
class Inventory:
    """Totals over all device activities of the capture, before steps are chosen. Times in ns."""

    n_kernels: int = 0
    time_ns: float = 0.0
    n_device: int = 0
    device_ns: float = 0.0
    busy_ns: float = 0.0
    linked_time_ns: float = 0.0
    n_without_launch: int = 0
    without_launch_ns: float = 0.0
    n_launch_without_op: int = 0
    span_ns: float = 0.0


@dataclass
class Step:
    """One step of one side: its row in ``steps`` and its tree. ``row`` is None where the whole capture is the step."""

    row: dict[str, Any] | None
    tree: Node
    host_ns: float | None = None
    host: HostTime | None = None
    windows: Windows | None = None

    def host_of_part(self, first: int, last: int) -> HostTime | None:
        """Return where the host's time went from a child of the tree up to another; the last runs to the end of the capture."""
        return self.windows.between(self.tree.children, first, last) if self.windows else None

    @property
    def name(self) -> str:
        """Name the system gave the step."""
        return self.row["name"] if self.row else "whole capture"


@dataclass
class Side:
    """What the alignment needs of one recording, on one rank."""

    recording: Recording
    rank: int
    on_device: bool
    steps: list[Step]
    inventory: Inventory
    outside_steps_ns: float = 0.0
    lost: Lost = field(default_factory=Lost)
    left_out: dict[str, LeftOut] = field(default_factory=dict)


def _timed(table: pa.Table) -> pa.Table:
    """Return the rows that have a time. A capture of values holds the same calls once more, without times."""
    return table.filter(pc.is_valid(table.column("ts_ns")))


def _shapes(cache: dict[str, Shape], text: str | None) -> Shape | None:
    """Return the tensor shapes in an ``input_dims`` text; scalars and lists of tensors flattened to tensors."""
    if text is None:
        return None
    if text not in cache:
        found: list[tuple[int, ...]] = []
        try:
            _collect(msgspec.json.decode(text), found)
        except msgspec.DecodeError:
            found = []
        cache[text] = tuple(found)
    return cache[text]


def _collect(value: object, into: list[tuple[int, ...]]) -> None:
    if isinstance(value, list):
        if value and all(isinstance(v, int) for v in value):
            into.append(tuple(value))
        else:
            for item in value:
                _collect(item, into)


Scope = tuple[int | None, int | None]


class _Builder:
    """Inserts device work into per-step trees from the innermost operator outwards."""

    def __init__(self, recording: Recording, rank: int) -> None:
        self.rank = rank
        ops = _timed(recording.of_rank("ops", rank, _OP_COLUMNS))
        self.ops = {row["op_id"]: row for row in ops.to_pylist()}
        # Without shapes, what an operator calls tells it from others of its name. Ids follow time.
        self.inner_calls: dict[int, list[str]] = {}
        for _, row in sorted(self.ops.items()):
            around = self.ops.get(row["parent_id"])
            if around is not None and around["input_dims"] is None:
                self.inner_calls.setdefault(row["parent_id"], []).append(stable_name(row["name"]))
        frames = _timed(recording.table("frames", _FRAME_COLUMNS))
        ids = frames.column("frame_id").to_numpy()
        parents = pc.fill_null(frames.column("parent_id"), -1).to_numpy()
        self.frame_parent = dict(zip(ids.tolist(), parents.tolist(), strict=True))
        calls = frames.filter(pc.is_valid(frames.column("module_id"))).to_pylist()
        self.calls = {row["frame_id"]: row for row in calls}
        self.modules = {row["module_id"]: row for row in recording.table("modules").to_pylist()}
        self._call_parent: dict[int, int | None] = {}
        self._shape_cache: dict[str, Shape] = {}
        self.roots: dict[int | None, Node] = {}
        # Nodes by step and layer of a graph replay (None: no replay), kind, and row.
        self._nodes: dict[tuple[Scope, str, int], Node] = {}

    def enclosing_call(self, call: int) -> int | None:
        """Return the module call around a module call."""
        if call not in self._call_parent:
            at = self.frame_parent.get(call, -1)
            while at >= 0 and at not in self.calls:
                at = self.frame_parent.get(at, -1)
            self._call_parent[call] = at if at >= 0 else None
        return self._call_parent[call]

    def call_around(self, row: dict[str, Any]) -> int | None:
        """Return the module call during which an operator ran.

        None for backward work: its module is that of the forward operator, whose call has ended.
        """
        call = row["module_call"]
        frame = self.calls.get(call)
        if frame is None or row["ts_ns"] is None:
            return None
        inside = frame["ts_ns"] <= row["ts_ns"] <= frame["ts_ns"] + (frame["dur_ns"] or 0)
        return call if inside else None

    def root(self, scope: Scope, order: tuple[int, int]) -> Node:
        """Return the root of the tree of a step, or the node of one layer of a graph replay in it."""
        step, layer = scope
        if step not in self.roots:
            self.roots[step] = Node("step", "step", step, (0, 0))
        root = self.roots[step]
        if layer is None:
            return root
        key = (scope, "layer", layer)
        if key not in self._nodes:
            self._nodes[key] = Node("module", "layer", None, order, module=f"layer_{layer}")
            root.children.append(self._nodes[key])
        node = self._nodes[key]
        node.order = min(node.order, order)
        return node

    def module_path(self, module_id: int | None) -> str | None:
        """Return the path of a module."""
        module = self.modules.get(module_id)
        return module["path"] if module else None

    def node_for_op(self, scope: Scope, op_id: int, order: tuple[int, int]) -> Node:
        """Return the node of an operator in a step, creating it and what is around it."""
        chain: list[tuple[str, int]] = []
        kind, ident, pending = "op", op_id, None
        while True:
            chain.append((kind, ident))
            if (scope, kind, ident) in self._nodes:
                break
            if kind == "op":
                row = self.ops[ident]
                parent = row["parent_id"] if row["parent_id"] in self.ops else None
                call = self.call_around(row)
                around = self.call_around(self.ops[parent]) if parent is not None else None
                if call is None or (parent is not None and around == call):
                    if parent is None:
                        break
                    kind, ident = "op", parent
                else:
                    kind, ident, pending = "module", call, parent
            else:
                outer = self.enclosing_call(ident)
                if pending is not None and self.call_around(self.ops[pending]) == outer:
                    kind, ident, pending = "op", pending, None
                elif outer is not None:
                    kind, ident = "module", outer
                elif pending is not None:
                    kind, ident, pending = "op", pending, None
                else:
                    break
        return self._attach(scope, chain, order)

    def node_for_launch(
        self, scope: Scope, key: int, name: str, call: int | None, module: str | None, order: tuple[int, int]
    ) -> Node:
        """Return a node for device work whose launch lies in no operator."""
        chain: list[tuple[str, int]] = [("launch", key)]
        while call is not None and call in self.calls:
            chain.append(("module", call))
            call = self.enclosing_call(call)
        node = self._attach(scope, chain, order)
        node.name = name
        if module:
            node.module = module if scope[1] is None else f"{module}/layer_{scope[1]}"
        return node

    def _attach(self, scope: Scope, chain: list[tuple[str, int]], order: tuple[int, int]) -> Node:
        parent = self.root(scope, order)
        for kind, ident in reversed(chain):
            key = (scope, kind, ident)
            node = self._nodes.get(key)
            if node is None:
                node = self._new(kind, ident, order)
                node.backward = node.backward or parent.backward
                if scope[1] is not None:
                    node.module = f"{node.module}/layer_{scope[1]}" if node.module else f"layer_{scope[1]}"
                self._nodes[key] = node
                parent.children.append(node)
            node.order = min(node.order, order)
            parent = node
        return parent

    def _new(self, kind: str, ident: int, order: tuple[int, int]) -> Node:
        if kind == "op":
            row = self.ops[ident]
            return Node(
                "op",
                stable_name(row["name"]),
                ident,
                order,
                _shapes(self._shape_cache, row["input_dims"]),
                self.module_path(row["module_id"]),
                backward=row["forward_op_id"] is not None or row["name"].startswith("autograd::engine::"),
                calls=tuple(self.inner_calls.get(ident, ())),
            )
        if kind == "module":
            module = self.modules.get(self.calls[ident]["module_id"])
            name = module["class_name"] if module else "module"
            return Node("module", name, ident, order, module=module["path"] if module else None)
        return Node("launch", "launch", ident, order)


def host_names(recording: Recording, rank: int) -> frozenset[str] | None:
    """Return the names of the operators that compute on the host; None where there is device work."""
    if recording.of_rank("kernels", rank, _KERNEL_COLUMNS).num_rows:
        return None
    ops = {row["op_id"]: row for row in _timed(recording.of_rank("ops", rank, _OP_COLUMNS)).to_pylist()}
    return computing_names(ops, Timeline(recording, rank, ops).own_times())


def load_side(
    recording: Recording,
    rank: int,
    energy: Mapping[int, KernelJoules] | None = None,
    computing: Collection[str] | None = None,
) -> Side:
    """Build the trees of work of one rank of a recording.

    Args:
        recording: the recording.
        rank: the rank.
        energy: energy of kernels by ``kernel_id``, where it is known.
        computing: names of the operators that compute, for work on the host (default: judged from this recording).
    """
    kernels = recording.of_rank("kernels", rank, _KERNEL_COLUMNS)
    on_device = kernels.num_rows > 0
    step_rows = {r["step_id"]: r for r in recording.of_rank("steps", rank).to_pylist()}
    builder = _Builder(recording, rank)
    inventory = Inventory()
    lost = lost_launches(recording, rank)
    without_launch = LeftOut()
    timeline = Timeline(recording, rank, builder.ops)
    if on_device:
        _insert_kernels(builder, recording, kernels, inventory, without_launch, bool(step_rows), energy or {})
        _insert_lost(builder, lost, bool(step_rows))
    else:
        own = timeline.own_times()
        names = computing_names(builder.ops, own) if computing is None else computing
        timeline.compute(names)
        _insert_host_work(builder, inventory, bool(step_rows), own, names)
    outside = builder.roots.pop(None, None) if step_rows and len(builder.roots) > 1 else None
    steps = [Step(step_rows.get(key) if key is not None else None, tree) for key, tree in builder.roots.items()]
    windows = Windows(timeline, builder.ops, builder.calls)
    for step in steps:
        step.windows = windows
        step.host_ns = float(step.row["dur_ns"]) if step.row and step.row["dur_ns"] is not None else None
        step.host = timeline.of_step(step.row) if step.row else timeline.between(*timeline.span)
    steps.sort(key=lambda s: s.row["ts_ns"] if s.row else 0)
    left_out: dict[str, LeftOut] = {Reason.NO_LAUNCH: without_launch, Reason.OUTSIDE_STEPS: _outside(outside)}
    left = left_out[Reason.OUTSIDE_STEPS].time_ns if on_device else _operator_ns(outside)
    return Side(recording, rank, on_device, steps, inventory, outside_steps_ns=left, lost=lost, left_out=left_out)


def _outside(tree: Node | None) -> LeftOut:
    """Return the device work in a tree that is not frozen yet: inner nodes have work of their own."""
    found = LeftOut()
    nodes = [tree] if tree else []
    while nodes:
        node = nodes.pop()
        nodes += node.children
        for name, (count, time) in node.kernels.items():
            found.add(name, count, time, is_kernel=True)
        if node.work and node.work.n_transfers:
            found.add("copies and memsets", node.work.n_transfers, node.work.transfer_ns, is_kernel=False)
    return found


def _operator_ns(tree: Node | None) -> float:
    """Return the time of the operators in a tree that is not frozen yet."""
    nodes, total = [tree] if tree else [], 0.0
    while nodes:
        node = nodes.pop()
        total += node.work.time_ns if node.work else 0.0
        nodes += node.children
    return total


def _insert_kernels(
    builder: _Builder,
    recording: Recording,
    kernels: pa.Table,
    inventory: Inventory,
    without_launch: LeftOut,
    has_steps: bool,
    energy: Mapping[int, KernelJoules],
) -> None:
    launches = recording.of_rank("launches", builder.rank, _LAUNCH_COLUMNS)
    launch_at = {r["launch_id"]: (r["ts_ns"], r["name"]) for r in launches.to_pylist()}
    start = pc.fill_null(kernels.column("ts_ns"), 0).to_numpy()
    length = pc.fill_null(kernels.column("dur_ns"), 0).to_numpy()
    device = pc.fill_null(kernels.column("device"), -1).to_numpy()
    share = np.zeros(len(start))
    for d in np.unique(device):
        mask = device == d
        share[mask] = equal_share(start[mask], start[mask] + length[mask])
    inventory.busy_ns = float(share.sum())
    inventory.span_ns = float((start + length).max() - start.min())
    waiting = waiting_times(recording, builder.rank)
    # A trace of the device alone: every kernel stands for itself, in order.
    device_only = kernels.column("launch_id").null_count == kernels.column("op_id").null_count == kernels.num_rows
    for index, row in enumerate(kernels.to_pylist()):
        duration = float(row["dur_ns"] or 0)
        is_kernel = row["category"] == Activity.KERNEL
        inventory.n_device += 1
        inventory.device_ns += duration
        if is_kernel:
            inventory.n_kernels += 1
            inventory.time_ns += duration
        launch = row["launch_id"]
        if launch is None and row["op_id"] is None and not device_only:
            inventory.n_without_launch += 1
            inventory.without_launch_ns += duration
            without_launch.add(short_kernel_name(row["name"]), 1, duration, is_kernel=is_kernel)
            continue
        if is_kernel:
            inventory.linked_time_ns += duration
        # Kernels of a replayed graph belong to the call that replays it. With a graph capture they belong to the operators of the
        # model.
        whole_graph = row["graph_launch"] and row["link"] != "capture" and row["op_id"] in builder.ops
        scope = (row["step_id"] if has_steps else None, None if whole_graph else row["layer"])
        launched = launch_at.get(launch, (row["ts_ns"], "launch"))
        order = (launched[0], row["ts_ns"])
        short = short_kernel_name(row["name"])
        if row["op_id"] in builder.ops:
            # Kernels of a replayed graph are ordered by their own times, not by the operators of the graph capture.
            node = builder.node_for_op(scope, row["op_id"], order)
        else:
            inventory.n_launch_without_op += 1
            key = ~index if row["graph_launch"] or launch is None else launch
            name = short if launch is None else f"{launched[1]}: {short}"
            path = builder.module_path(row["module_id"])
            node = builder.node_for_launch(scope, key, name, row["module_call"], path, order)
            node.ident = launch
        work = _device_work(row, float(share[index]), waiting.get(row["kernel_id"], 0.0))
        if row["kernel_id"] in energy:
            joules = energy[row["kernel_id"]]
            work.n_measured = 1
            work.energy_j, work.energy_low_j, work.energy_high_j = joules.energy_j, joules.low_j, joules.high_j
            work.stretches = [] if joules.within is None else [(*joules.within, 1.0)]
        if is_kernel:
            count, time = node.kernels.get(short, (0, 0.0))
            node.kernels[short] = count + 1, time + duration
        if whole_graph:
            leaf = _inside(node, row["layer"], order, short)
            leaf.work, leaf.kernels = work, {short: (1, duration)} if is_kernel else {}
        if node.work is None:
            node.work = Work(n_calls=1)
        node.work.add(work)


def _insert_lost(builder: _Builder, lost: Lost, has_steps: bool) -> None:
    """Give launches without a kernel their place, with work of unknown time."""
    for row in lost.rows:
        scope = (row["step_id"] if has_steps else None, None)
        order = (row["ts_ns"], row["ts_ns"])
        if row["op_id"] in builder.ops:
            node = builder.node_for_op(scope, row["op_id"], order)
        else:
            path = builder.module_path(row["module_id"])
            node = builder.node_for_launch(scope, row["launch_id"], row["name"], row["module_call"], path, order)
        if node.work is None:
            node.work = Work(n_calls=1)
        node.work.n_lost += 1


def _device_work(row: dict[str, Any], share_ns: float, waiting_ns: float) -> Work:
    """Return the work of one device activity; waiting for other ranks is a class of its own."""
    duration = float(row["dur_ns"] or 0)
    if row["category"] != Activity.KERNEL:
        return Work(share_ns=share_ns, transfer_ns=duration, transfer_bytes=float(row["bytes"] or 0), n_transfers=1)
    kernel_class = row["kernel_class"] or "other"
    n_lost = float(row["dur_ns"] is None)
    classes = {kernel_class: duration - waiting_ns}
    if waiting_ns:
        classes[KernelClass.COLLECTIVE_WAIT] = waiting_ns
    return Work(time_ns=duration, share_ns=share_ns, n_kernels=1, n_lost=n_lost, class_ns=classes)


def _inside(node: Node, layer: int | None, order: tuple[int, int], kernel: str) -> Node:
    """Return a new leaf for a kernel of the graph that a call replays, in its layer if the graph repeats itself."""
    if node.inner is None:
        node.inner = Node("graph", "graph", None, order)
    place, module = node.inner, node.module
    if layer is not None:
        module = f"{module}/layer_{layer}" if module else f"layer_{layer}"
        if not place.children or place.children[-1].module != module:
            place.children.append(Node("module", "layer", None, order, module=module))
        place = place.children[-1]
    leaf = Node("op", node.name, node.ident, order, module=module, backward=node.backward, detail=kernel)
    place.children.append(leaf)
    return leaf


def _insert_host_work(
    builder: _Builder,
    inventory: Inventory,
    has_steps: bool,
    own: Mapping[int, float],
    computing: Collection[str],
) -> None:
    """Take the own time of operators that compute as device work; that of views and dispatch is in no tree."""
    starts, ends = [0], [0]
    for op_id, row in builder.ops.items():
        duration = own.get(op_id, 0.0)
        step = row["step_id"] if has_steps else None
        starts.append(row["ts_ns"])
        ends.append(row["ts_ns"] + (row["dur_ns"] or 0))
        inventory.n_device += 1
        inventory.device_ns += duration
        if row["name"] not in computing or row["dur_ns"] is None:
            continue
        inventory.n_kernels += 1
        inventory.time_ns += duration
        inventory.linked_time_ns += duration
        node = builder.node_for_op((step, None), op_id, (row["ts_ns"], op_id))
        node.work = Work(time_ns=duration, share_ns=duration, n_kernels=1, n_calls=1)
        node.work.class_ns["cpu"] = duration
    inventory.busy_ns = inventory.time_ns
    inventory.span_ns = float(max(ends[1:], default=0) - min(starts[1:], default=0))


def total_work(nodes: Iterable[Node]) -> Work:
    """Return the summed work of all leaves below ``nodes``."""
    result = Work()
    for node in nodes:
        for leaf in node.leaves():
            if leaf.work:
                result.add(leaf.work)
    return result
