"""Pairing begins with ends once a file is complete: ``B``/``E`` per thread, ``b n e`` and ``S T p F`` per id.

Ends are matched in order of time, not in the order of the file. An end closes the innermost open begin of its thread. If their names
differ, a warning says so. Of several events at one instant, ends of earlier slices come first, then begins, then ends of slices that
began at this instant. A begin without an end has no known length; an end without a begin is quarantined.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass

from magneton.schemas.kinds import Flag
from magneton.transforms.staging.stage import NONE, OPEN, Stage


@dataclass(slots=True)
class Edge:
    """One begin, end or mark: codes and numbers as staged."""

    phase: str
    name: str | None
    category: str | None
    track: int
    ts_ns: int
    flow: int
    args: str | None
    position: int


@dataclass(slots=True)
class Paired:
    """A begin with its length (``OPEN``: it never ended), or a mark within an asynchronous span (``NONE``)."""

    begin: Edge
    dur_ns: int
    kind: str
    flags: str | None


def pair(stage: Stage) -> Iterator[Paired]:
    """Yield the slices and spans made of the staged edges, and count the events they are made of."""
    stage.flush()
    sync: dict[int, list[Edge]] = {}
    spans: dict[tuple[str | None, int], list[Edge]] = {}
    for _, group in itertools.groupby(_edges(stage), key=lambda e: e.ts_ns):
        edges = list(group)
        starts = [e for e in edges if e.phase == "B"]
        ends = [e for e in edges if e.phase == "E"]
        late = []
        for end in sorted(ends, key=_file_order):
            open_ = sync.get(end.track)
            if open_:
                yield _close(stage, open_.pop(), end, "slice")
            else:
                late.append(end)
        for start in sorted(starts, key=_file_order):
            sync.setdefault(start.track, []).append(start)
        for end in late:
            open_ = sync.get(end.track)
            if open_:
                yield _close(stage, open_.pop(), end, "slice")
            else:
                _stray(stage, end)
        yield from _spans(stage, [e for e in edges if e.phase not in "BE"], spans)
    for begin in itertools.chain.from_iterable(sync.values()):
        stage.count(kept=1)
        stage.warn(Flag.UNTERMINATED_SLICE, f"{begin.name!r} begins and never ends")
        yield Paired(begin, OPEN, "slice", Flag.UNTERMINATED_SLICE)
    for begin in itertools.chain.from_iterable(spans.values()):
        stage.count(kept=1)
        stage.warn(Flag.UNTERMINATED_ASYNC, f"the async span {begin.name!r} begins and never ends")
        yield Paired(begin, OPEN, "async", Flag.UNTERMINATED_ASYNC)
    stage.drop("edges")


def _spans(stage: Stage, edges: list[Edge], spans: dict[tuple[str | None, int], list[Edge]]) -> Iterator[Paired]:
    rank = {"b": 0, "S": 0, "e": 2, "F": 2}
    for edge in sorted(edges, key=lambda e: (rank.get(e.phase, 1), e.position)):
        open_ = spans.setdefault((edge.category, edge.flow), [])
        if edge.phase in "bS":
            open_.append(edge)
        elif edge.phase in "eF":
            if not open_:
                _stray(stage, edge)
                continue
            same = [i for i, b in enumerate(open_) if b.name == edge.name]
            yield _close(stage, open_.pop(same[-1] if same else -1), edge, "async")
        else:
            stage.count(kept=1)
            yield Paired(edge, NONE, "async_instant", None)


def _close(stage: Stage, begin: Edge, end: Edge, kind: str) -> Paired:
    stage.count(kept=1, merged=1)
    if end.name is not None and end.name != begin.name:
        stage.warn("end_name_mismatch", f"an end named {end.name!r} closes {begin.name!r}")
    return Paired(begin, end.ts_ns - begin.ts_ns, kind, None)


def _stray(stage: Stage, end: Edge) -> None:
    pid, tid = stage.tracks.names[end.track]
    text = {"ph": end.phase, "name": end.name, "pid": pid, "tid": tid, "ts": end.ts_ns / 1000}
    stage.quarantine("end_without_begin", end.position, json.dumps({k: v for k, v in text.items() if v is not None}))
    stage.warn("end_without_begin", f"event {end.position} ends what never began")


def _file_order(edge: Edge) -> int:
    return edge.position


def _edges(stage: Stage) -> Iterator[Edge]:
    pool = stage.pool
    for batch in stage.batches("edges"):
        columns = (
            [pool[c] for c in batch["phase"].tolist()],
            [pool[c] for c in batch["name"].tolist()],
            [pool[c] for c in batch["category"].tolist()],
            batch["track"].tolist(),
            batch["ts_ns"].tolist(),
            batch["flow"].tolist(),
            [pool[c] for c in batch["args"].tolist()],
            [0 if p == NONE else p for p in batch["position"].tolist()],
        )
        for row in zip(*columns, strict=True):
            yield Edge(str(row[0]), *row[1:])
