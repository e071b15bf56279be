"""Graph replays in the tables of a run: what `graph_replay` finds, as columns of ``kernels`` and as warnings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from magneton.schemas.kinds import CaptureKind, Flag
from magneton.transforms.cuda_graphs.place import captured_graphs, label_blocks, place_by_capture
from magneton.transforms.naming.kernel_names import activity_token, launch_token
from magneton.transforms.naming.launch_names import leaves_activity

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

KERNEL_COLUMNS = (
    "kernel_id", "capture", "rank", "name", "category", "ts_ns", "dur_ns", "device", "launch_id", "correlation",
    "op_id", "link",    "module_id", "module_call", "step_id", "graph_launch", "graph_node_id",
)  # fmt: skip
LAUNCH_COLUMNS = (
    "launch_id", "capture", "rank", "name", "pid", "tid", "ts_ns", "kernel_name", "op_id",
    "module_id", "module_call",
)  # fmt: skip
CHANGED_COLUMNS = ("op_id", "link", "module_id", "module_call", "capture_launch_id", "layer", "layer_position")

# vLLM brackets the capture of each graph with its batch size in tokens: capture_32_FULL, capture_8192_PIECEWISE.
_SIZE = re.compile(r"capture_(\d+)_")


@dataclass(frozen=True)
class Warned:
    """One warning: which capture it concerns, its code, how often it was seen, and one sentence."""

    capture: str
    rank: int | None
    code: str
    count: int
    message: str


@dataclass(frozen=True)
class _Graphs:
    """Captured graphs in order of capture: rows of their calls in ``launches``, what these name, and batch sizes."""

    calls: list[Ints]
    names: list[list[str]]
    size: list[int | None]


def place_replays(
    kernels: pa.Table, launches: pa.Table, captures: pa.Table, steps: pa.Table, annotations: pa.Table
) -> tuple[dict[str, pa.Array], list[Warned]]:
    """Tie the kernels of graph replays to the calls that captured them, and number the layers they repeat.

    Args:
        kernels: ``KERNEL_COLUMNS`` of the run's kernels.
        launches: ``LAUNCH_COLUMNS`` of the run's launches (those of captures of kind ``graph_capture`` are enough).
        captures: ``capture``, ``rank`` and ``kind`` of the run's captures.
        steps: ``step_id``, ``context_tokens`` and ``generation_tokens`` of the run's steps.
        annotations: ``capture``, ``rank``, ``name``, ``ts_ns`` and ``dur_ns`` of the run's annotations (as launches).

    Returns:
        ``CHANGED_COLUMNS`` in the order of ``kernels`` (empty if no graph was replayed), and warnings. If single kernels of a
        replay have their own operators, these are kept. One operator around the whole replay is replaced by the captured
        operators. A graph capture of the same rank is preferred. Without one, that of another rank is used, since all
        ranks capture the same program.
    """
    recorded = {
        (c, r) for c, r, kind in _rows(captures, "capture", "rank", "kind") if kind == CaptureKind.GRAPH_CAPTURE
    }
    replay = _replays(kernels)
    replayed = replay >= 0
    if not replayed.any():
        return {}, []
    changed = _Changed(kernels)
    warned: list[Warned] = []
    for capture, rank, rows in _by_capture(kernels):
        mine = rows[replayed[rows]]
        if (capture, rank) in recorded or not len(mine):
            continue
        _label_layers(kernels, rows, replay, changed)
        sources = {s for s in recorded if s[1] == rank} or recorded
        if sources:
            graphs = _captured(launches, annotations, kernels, sources)
            _place(kernels, mine, replay, graphs, launches, steps, changed)
        warned += _warnings(kernels, mine, changed, capture, rank, sorted({name for name, _ in sources}))
    return changed.columns(), warned


class _Changed:
    """The columns that change, as arrays; -1 is NULL inside."""

    def __init__(self, kernels: pa.Table) -> None:
        self.ids = {name: _numbers(kernels, name) for name in ("op_id", "module_id", "module_call")}
        for name in ("capture_launch_id", "layer", "layer_position"):
            self.ids[name] = np.full(len(kernels), -1, dtype=np.int64)
        self.link: list[str | None] = kernels.column("link").to_pylist()

    def columns(self) -> dict[str, pa.Array]:
        """Return ``CHANGED_COLUMNS``."""
        columns = {name: pa.array(values, mask=values < 0) for name, values in self.ids.items()}
        columns["link"] = pa.array(self.link, pa.string())
        return {name: columns[name] for name in CHANGED_COLUMNS}


def _rows(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def _texts(table: pa.Table, name: str) -> list[str]:
    """Return a column of text as a list in which equal texts are one object."""
    coded = table.column(name).combine_chunks()
    if not pa.types.is_dictionary(coded.type):
        coded = coded.dictionary_encode()
    values = coded.dictionary.to_pylist()
    return [values[code] for code in coded.indices.to_pylist()]


def _numbers(table: pa.Table, name: str) -> Ints:
    """Return an integer column, -1 for NULL."""
    values: Ints = pc.fill_null(table.column(name), -1).to_numpy().astype(np.int64)
    return values


def _replays(kernels: pa.Table) -> Ints:
    """Return for each activity a number of the graph launch it belongs to, -1 for none.

    The launch is known by its row or, where it lies before the recording, by its correlation id.
    """
    replayed = pc.fill_null(kernels.column("graph_launch"), False).to_numpy().astype(bool)
    launch, correlation = _numbers(kernels, "launch_id"), _numbers(kernels, "correlation")
    keys = np.stack([launch, np.where(launch < 0, correlation, -1)], axis=1)
    replayed &= keys.max(axis=1) >= 0
    replay = np.full(len(kernels), -1, dtype=np.int64)
    replay[replayed] = np.unique(keys[replayed], axis=0, return_inverse=True)[1].reshape(-1)
    return replay


def _by_capture(table: pa.Table) -> list[tuple[str, int | None, Ints]]:
    """Return each capture and rank with its rows, in order of time."""
    ranks = pc.fill_null(table.column("rank"), -1)
    codes = [c.combine_chunks().dictionary_encode().indices.to_numpy() for c in (table.column("capture"), ranks)]
    key = codes[0].astype(np.int64) * (int(codes[1].max(initial=0)) + 1) + codes[1]
    order = np.lexsort((_numbers(table, "ts_ns"), key))
    groups = np.split(order, np.flatnonzero(np.diff(key[order])) + 1) if len(order) else []
    return [(table["capture"][int(g[0])].as_py(), table["rank"][int(g[0])].as_py(), g) for g in groups]


def _label_layers(kernels: pa.Table, rows: Ints, replay: Ints, changed: _Changed) -> None:
    """Number the layers on each device of one capture."""
    device = _numbers(kernels, "device")[rows]
    step = _numbers(kernels, "step_id")
    names = _texts(kernels, "name")
    for number in np.unique(device[replay[rows] >= 0]).tolist():
        members = rows[device == number]
        layer, position = label_blocks([names[i] for i in members.tolist()], replay[members], step[members])
        changed.ids["layer"][members] = layer
        changed.ids["layer_position"][members] = position


def _captured(
    launches: pa.Table, annotations: pa.Table, kernels: pa.Table, sources: set[tuple[str, int | None]]
) -> _Graphs:
    """Return the graphs that the captures ``sources`` recorded, capture by capture in order of time."""
    ran = _numbers(kernels, "launch_id")
    spans = [
        (capture, rank, ts, ts + dur, int(match.group(1)))
        for capture, rank, name, ts, dur in _rows(annotations, "capture", "rank", "name", "ts_ns", "dur_ns")
        if dur is not None and (match := _SIZE.match(name)) is not None
    ]
    found = _Graphs([], [], [])
    for capture, rank, rows in _by_capture(launches):
        if (capture, rank) not in sources:
            continue
        calls = launches.take(rows)
        api = calls.column("name").to_pylist()
        # A call whose kernel ran during the trace was launched, not captured.
        wanted = np.fromiter(map(leaves_activity, api), bool, len(api)) & ~np.isin(_numbers(calls, "launch_id"), ran)
        tokens = [launch_token(api, kernel) for api, kernel in _rows(calls, "name", "kernel_name")]
        threads = [f"{pid} {tid}" for pid, tid in _rows(calls, "pid", "tid")]
        start = _numbers(calls, "ts_ns")
        for graph in captured_graphs(api, threads, wanted):
            at = int(start[graph[0]])
            found.calls.append(rows[graph])
            found.names.append([tokens[i] for i in graph.tolist()])
            sizes = [s for c, r, begin, end, s in spans if (c, r) == (capture, rank) and begin <= at <= end]
            found.size.append(sizes[-1] if sizes else None)
    return found


def _place(
    kernels: pa.Table,
    mine: Ints,
    replay: Ints,
    graphs: _Graphs,
    launches: pa.Table,
    steps: pa.Table,
    changed: _Changed,
) -> None:
    """Place the replayed kernels ``mine`` of one capture, given in order of time."""
    number = replay[mine]
    step = _numbers(kernels, "step_id")[mine]
    node = _numbers(kernels, "graph_node_id")[mine]
    replays: list[Ints] = []
    order = np.argsort(number, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(number[order])) + 1):
        # Nodes are numbered as they were captured; kernels of parallel streams start in another order.
        known = node[members]
        by_node = known.min() >= 0 and len(np.unique(known)) == len(known)
        replays.append(members[np.argsort(known, kind="stable")] if by_node else members)
    replays.sort(key=lambda members: int(members.min()))

    names, categories = (_texts(kernels.select([c]).take(mine), c) for c in ("name", "category"))
    needed = {
        step_id: None if context is None and generation is None else (context or 0) + (generation or 0)
        for step_id, context, generation in _rows(steps, "step_id", "context_tokens", "generation_tokens")
    }
    of_replay = [int(step[members[0]]) for members in replays]
    placement = place_by_capture(
        graphs.names,
        [[activity_token(categories[i], names[i]) for i in members.tolist()] for members in replays],
        group=of_replay,
        size=graphs.size,
        needed=[needed.get(step_id) for step_id in of_replay],
    )
    source = {name: _numbers(launches, name) for name in ("launch_id", "op_id", "module_id", "module_call")}
    for segment, partner, members in zip(placement.segment.tolist(), placement.partner, replays, strict=True):
        if segment < 0:
            continue
        placed = mine[members[partner >= 0]]
        calls = graphs.calls[segment][partner[partner >= 0]]
        changed.ids["capture_launch_id"][placed] = source["launch_id"][calls]
        # If all kernels of a replay have one operator, it only surrounds the launch. Operators of single kernels are kept.
        known = np.unique(changed.ids["op_id"][mine[members]])
        coarse = len(known[known >= 0]) <= 1
        gains = (source["op_id"][calls] >= 0) & (coarse | (changed.ids["op_id"][placed] < 0))
        for name in ("op_id", "module_id", "module_call"):
            changed.ids[name][placed[gains]] = source[name][calls[gains]]
        for i in placed[gains].tolist():
            changed.link[i] = "capture"


def _warnings(
    kernels: pa.Table, mine: Ints, changed: _Changed, capture: str, rank: int | None, sources: list[str]
) -> list[Warned]:
    """Return warnings: how much of the replayed work has an operator, and how much has a layer."""
    time = np.maximum(_numbers(kernels, "dur_ns")[mine], 0)
    op, layer = changed.ids["op_id"][mine] >= 0, changed.ids["layer"][mine]
    placed = changed.ids["capture_launch_id"][mine] >= 0

    def share(chosen: Bools) -> str:
        return f"{100 * time[chosen].sum() / max(int(time.sum()), 1):.1f} % of their time"

    layers = f"{layer.max() + 1} layers found by repetition hold {share(layer >= 0)}"
    found = layers if (layer >= 0).any() else "no repetition was found in them"
    warned: list[Warned] = []
    if placed.any():
        message = (
            f"{placed.sum()} of {len(mine)} activities of graph replays ({share(placed)}) placed by "
            f"{', '.join(sources)}; {found}"
        )
        warned.append(Warned(capture, rank, "graph_replay_placed", int(placed.sum()), message))
    if not op.all():
        message = f"{(~op).sum()} of {len(mine)} activities of graph replays ({share(~op)}) have no operator; {found}"
        warned.append(Warned(capture, rank, Flag.GRAPH_REPLAY_NO_OP, int((~op).sum()), message))
    return warned
