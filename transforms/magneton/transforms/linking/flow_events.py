"""Flow arrows: each end belongs to a slice, starts and ends are joined in order of time, and arrows become rows of ``flows``.

kineto draws an arrow from every launch to its device activities, with the correlation id. These arrows add nothing and are not
kept (``fold_repeats``). The other arrows connect forward with backward operators, or replace correlation ids that are missing in
the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from magneton.transforms.linking.nest import Sweep
from magneton.transforms.staging.stage import NONE, Stage
from magneton.transforms.staging.windows import ends, windows
from magneton.transforms.staging.writer import RunWriter

FORWARD_BACKWARD = frozenset({"fwdbwd", "forward_backward"})
_LAUNCH_TO_DEVICE = frozenset({"ac2g", "async_cpu_to_gpu", "async_gpu"})
# Innermost first: what an end that lies in several slices is bound to.
_PREFERENCE = ("kernels", "launches", "ops", "annotations", "frames")

Ints = NDArray[np.int64]


@dataclass(slots=True)
class End:
    """One end of an arrow. ``row_id`` is None where it lies in no slice."""

    category: str | None
    flow: int
    phase: str
    ts_ns: int
    track: int
    name: int
    kind: str | None = None
    row_id: int | None = None


@dataclass(slots=True)
class Arrow:
    """A joined or dangling arrow."""

    start: End | None
    end: End | None


def fold_repeats(stage: Stage) -> None:
    """Drop arrow ends that only repeat the correlation of a launch, activity or synchronisation on their own track."""
    stage.flush()
    if not stage.n_rows["flows"]:
        return
    links = [code for c in sorted(_LAUNCH_TO_DEVICE) if (code := stage.pool.codes.get(c)) is not None]
    stage.count(merged=stage.drop_repeated_flows(links))


class FlowEnds:
    """All ends of a capture's arrows that are left, in the order of time."""

    def __init__(self) -> None:
        self.ends: list[End] = []
        self._stage: Stage | None = None

    def add(self, stage: Stage, rows: Mapping[str, NDArray[Any]], bound: Mapping[str, Ints]) -> None:
        """Add ends and what they lie in on the host (ids per kind, -1: nothing)."""
        first = len(self.ends)
        self.ends.extend(_read(stage, rows))
        for kind in reversed(_PREFERENCE):
            if kind in bound:
                _bind(self.ends[first:], kind, bound[kind])

    def bind_kernels(self, stage: Stage, kernel_ids: int) -> None:
        """Bind ends on device tracks to the activities they lie in.

        Args:
            stage: the capture.
            kernel_ids: id of its first activity; ids follow the order of ``windows``.
        """
        if not self.ends:
            return
        sweep, done = Sweep(), 0
        for w in windows(stage, ("kernels", "flows")):
            is_kernel = w.of("kernels")
            ident = np.full(len(w.kind), -1, np.int64)
            ident[is_kernel] = kernel_ids + np.arange(int(is_kernel.sum()))
            kernel_ids += int(is_kernel.sum())
            end = np.empty(len(w.kind), np.int64)
            for kind in w.kinds:
                end[w.of(kind)] = ends(w.rows[kind])
            inside, _ = sweep.run(w.gather("track"), is_kernel, w.gather("ts_ns"), end, end, ident)
            flows = inside[~is_kernel]
            _bind(self.ends[done : done + len(flows)], "kernels", flows)
            done += len(flows)

    def arrows(self) -> Iterator[Arrow]:
        """Join starts and ends of one category and id; a start that comes again replaces none before it was joined.

        Of several ends at one instant, those that end an earlier start come first, then starts, then the others.
        """
        open_: dict[tuple[str | None, int], End] = {}
        for group in _instants(self.ends):
            late = []
            for end in (e for e in group if e.phase != "s"):
                key = (end.category, end.flow)
                if key in open_:
                    yield Arrow(open_.pop(key), end)
                    if end.phase == "t":
                        open_[key] = end
                else:
                    late.append(end)
            for start in (e for e in group if e.phase == "s"):
                key = (start.category, start.flow)
                if key in open_:
                    yield Arrow(open_[key], None)
                open_[key] = start
            for end in late:
                key = (end.category, end.flow)
                begun = open_.pop(key, None)
                yield Arrow(begun, end)
                if end.phase == "t":
                    open_[key] = end
        for rest in open_.values():
            if rest.phase == "s":
                yield Arrow(rest, None)

    def forward(self) -> dict[int, int]:
        """Return forward operators by backward operator, as arrows between them say."""
        return {
            a.end.row_id: a.start.row_id
            for a in self.arrows()
            if a.start and a.end and a.start.kind == a.end.kind == "ops" and a.start.category in FORWARD_BACKWARD
            and a.start.row_id is not None and a.end.row_id is not None
        }  # fmt: skip

    def launches(self) -> dict[int, int]:
        """Return launches by device activity, as arrows between them say."""
        return {
            a.end.row_id: a.start.row_id
            for a in self.arrows()
            if a.start and a.end and a.start.kind == "launches" and a.end.kind == "kernels"
            and a.start.row_id is not None and a.end.row_id is not None
        }  # fmt: skip


def write_flows(flows: FlowEnds, stage: Stage, writer: RunWriter, keys: Mapping[str, Any], first_id: int) -> int:
    """Write the arrows, count their ends as kept or merged, and return how many there are."""
    arrows = sorted(flows.arrows(), key=_order)
    state = []
    for arrow in arrows:
        if arrow.start is not None and arrow.end is not None:
            state.append("linked")
            # The end of an arrow that goes on is the start of the next one.
            stage.count(kept=int(arrow.start.phase == "s"), merged=1)
            continue
        state.append("dangling_start" if arrow.end is None else "dangling_end")
        stage.count(kept=1)
        dangling = arrow.start or arrow.end
        if dangling is not None:
            stage.warn("dangling_flow", f"the {dangling.category} arrow at {dangling.ts_ns} ns has one end only")
    begins = [a.start or a.end for a in arrows]
    finishes = [a.end or a.start for a in arrows]
    some = [e for e in begins if e is not None]
    ts = np.array([e.ts_ns for e in some], np.int64)
    known = np.array([s == "linked" for s in state], bool)
    last = np.array([e.ts_ns for e in finishes if e is not None], np.int64)
    writer.write(
        "flows",
        len(arrows),
        keys,
        {
            "name": pa.array([stage.pool[e.name] for e in some], pa.string()),
            "ts_ns": ts,
            "dur_ns": np.where(known, last - ts, NONE),
            "flow_id": np.arange(first_id, first_id + len(arrows), dtype=np.int64),
            "category": pa.array([e.category for e in some], pa.string()),
            "source_kind": pa.array([None if a.start is None else a.start.kind for a in arrows], pa.string()),
            "source_id": pa.array([None if a.start is None else a.start.row_id for a in arrows], pa.int64()),
            "target_kind": pa.array([None if a.end is None else a.end.kind for a in arrows], pa.string()),
            "target_id": pa.array([None if a.end is None else a.end.row_id for a in arrows], pa.int64()),
            "state": pa.array(state, pa.string()),
        },
    )
    return len(arrows)


def _order(arrow: Arrow) -> tuple[int, str, int, int]:
    begin = arrow.start or arrow.end
    if begin is None:
        return (0, "", 0, 0)
    return (begin.ts_ns, begin.category or "", begin.flow, 0 if arrow.end is None else arrow.end.ts_ns)


def _read(stage: Stage, rows: Mapping[str, NDArray[Any]]) -> list[End]:
    pool = stage.pool
    columns = [rows[c].tolist() for c in ("category", "flow", "phase", "ts_ns", "track", "name")]
    return [
        End(pool[category], flow, pool[phase] or "", ts, track, name)
        for category, flow, phase, ts, track, name in zip(*columns, strict=True)
    ]


def _bind(found: list[End], kind: str, row_ids: Ints) -> None:
    for end, row_id in zip(found, row_ids.tolist(), strict=True):
        if row_id >= 0:
            end.kind, end.row_id = kind, row_id


def _instants(found: list[End]) -> Iterator[list[End]]:
    group: list[End] = []
    for end in found:
        if group and end.ts_ns != group[0].ts_ns:
            yield group
            group = []
        group.append(end)
    if group:
        yield group
