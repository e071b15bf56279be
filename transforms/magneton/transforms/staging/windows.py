"""Going through staged events in the order of time, several kinds at once, without holding them all.

Each kind comes sorted by time from the staging area. A *window* is a span of time that holds about one batch of the
densest kind; events that start at one instant are never split between windows. Within a window the order is total and
depends on content only, never on the order in the file:

1. earlier start;
2. longer (a slice whose end is unknown counts as longest where it was left open, as empty where its length is missing);
3. annotations, then frames, then operators, then launches, then flow ends;
4. smaller native id (``External id``, ``Python id``, correlation): the caller is numbered before the callee;
5. name, then process and thread, then everything else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magneton.transforms.staging.stage import KINDS, NONE, OPEN, Stage

FOREVER = 2**63 - 1
_NATIVE_ID = {
    "annotations": "external_id",
    "frames": "python_id",
    "ops": "external_id",
    "launches": "correlation",
    "kernels": "correlation",
    "flows": "flow",
    "counters": None,
}

Ints = NDArray[np.int64]
Rows = dict[str, NDArray[Any]]


@dataclass
class Window:
    """Events that start within a span of time, in their total order.

    Attributes:
        kinds: the kinds, in the order of rule 3.
        rows: columns per kind, each in the total order.
        kind: for each event of the window, in order, the position of its kind in ``kinds``.
        index: for each event, its row within its kind.
    """

    kinds: tuple[str, ...]
    rows: dict[str, Rows]
    kind: NDArray[np.int8]
    index: Ints

    def gather(self, column: str, fill: int = NONE) -> Ints:
        """Return one column over all events of the window; kinds that lack it give ``fill``."""
        out = np.full(len(self.kind), fill, np.int64)
        for number, kind in enumerate(self.kinds):
            if column in self.rows[kind]:
                mine = self.kind == number
                out[mine] = self.rows[kind][column][self.index[mine]]
        return out

    def of(self, kind: str) -> NDArray[np.bool_]:
        """Tell which events are of a kind."""
        mine: NDArray[np.bool_] = self.kind == self.kinds.index(kind)
        return mine


def ends(rows: Rows) -> Ints:
    """Return where slices end: open ones never, those of unknown length where they start."""
    ts, dur = rows["ts_ns"], rows["dur_ns"]
    end: Ints = np.where(dur == OPEN, FOREVER, ts + np.maximum(dur, 0))
    return end


def windows(stage: Stage, kinds: Sequence[str], *, whole: bool = False) -> Iterator[Window]:
    """Yield the events of several kinds, window by window.

    Args:
        stage: the events.
        kinds: which of them; the order is that of rule 3.
        whole: make one window of everything.
    """
    stage.flush()
    cursors = {kind: _Cursor(stage, kind) for kind in kinds}
    while whole and any([c.grow() for c in cursors.values() if not c.exhausted]):  # noqa: C419  (grow all of them)
        pass
    while True:
        live = [c for c in cursors.values() if c.fill()]
        if not live:
            return
        unfinished = [c for c in live if not c.exhausted]
        if unfinished:
            frontier = min(c.last for c in unfinished)
            if all(c.first >= frontier for c in live):
                # One instant fills the buffers: take in more of it.
                for cursor in unfinished:
                    if cursor.last == frontier:
                        cursor.grow()
                continue
            taken = {kind: c.take(frontier) for kind, c in cursors.items()}
        else:
            taken = {kind: c.take(None) for kind, c in cursors.items()}
        yield _ordered(stage, tuple(kinds), taken)


class _Cursor:
    def __init__(self, stage: Stage, kind: str) -> None:
        self._batches = stage.batches(kind)
        self._columns = {name: np.empty(0, np.int64) for name in KINDS[kind]}
        self.exhausted = False

    @property
    def _ts(self) -> Ints:
        return self._columns["ts_ns"]

    @property
    def first(self) -> int:
        return int(self._ts[0])

    @property
    def last(self) -> int:
        return int(self._ts[-1])

    def fill(self) -> bool:
        """Make sure that there are rows; False when there are no more."""
        return bool(len(self._ts)) or (not self.exhausted and self.grow())

    def grow(self) -> bool:
        batch = next(self._batches, None)
        if batch is None:
            self.exhausted = True
            return bool(len(self._ts))
        if len(self._ts):
            batch = {name: np.concatenate([self._columns[name], batch[name]]) for name in batch}
        self._columns = batch
        return True

    def take(self, before: int | None) -> Rows:
        """Remove and return the rows that start before a time (None: all)."""
        cut = len(self._ts) if before is None else int(np.searchsorted(self._ts, before, "left"))
        taken = {name: values[:cut] for name, values in self._columns.items()}
        self._columns = {name: values[cut:] for name, values in self._columns.items()}
        return taken


def _ordered(stage: Stage, kinds: tuple[str, ...], rows: dict[str, Rows]) -> Window:
    sizes = [len(rows[k]["ts_ns"]) for k in kinds]
    kind = np.repeat(np.arange(len(kinds), dtype=np.int8), sizes)
    index = np.concatenate([np.arange(n, dtype=np.int64) for n in sizes])
    ts = np.concatenate([rows[k]["ts_ns"] for k in kinds])
    order = np.argsort(ts, kind="stable")
    sorted_ts = ts[order]
    same = sorted_ts[1:] == sorted_ts[:-1]
    tied = np.zeros(len(ts), bool)
    tied[1:] |= same
    tied[:-1] |= same
    if tied.any():
        members = order[tied]
        keys = _keys(stage, kinds, rows, kind[members], index[members], ts[members])
        order[tied] = members[np.lexsort(keys[::-1])]
    kind, index = kind[order], index[order]
    for number, name in enumerate(kinds):
        mine = kind == number
        moved = index[mine]
        if len(moved) and (moved[1:] < moved[:-1]).any():
            rows[name] = {column: values[moved] for column, values in rows[name].items()}
        index[mine] = np.arange(len(moved))
    return Window(kinds, rows, kind, index)


def _keys(
    stage: Stage, kinds: tuple[str, ...], rows: dict[str, Rows], kind: NDArray[np.int8], index: Ints, ts: Ints
) -> list[NDArray[Any]]:
    """Return the sort keys of tied events, most significant first."""
    size = len(ts)
    end = np.zeros(size, np.int64)
    native = np.full(size, NONE, np.int64)
    name = np.full(size, -1, np.int32)
    rest = np.zeros(size, np.uint64)
    for number, label in enumerate(kinds):
        mine = kind == number
        at = index[mine]
        if not len(at):
            continue
        part = {column: values[at] for column, values in rows[label].items()}
        end[mine] = ends(part)
        own = _NATIVE_ID[label]
        if own is not None:
            native[mine] = part[own]
        name[mine] = part["name"]
        rest[mine] = _content(stage, label, part)
    return [ts, -end, kind, native, stage.pool.ranks(name), rest]


def _content(stage: Stage, kind: str, rows: Rows) -> NDArray[np.uint64]:
    """Return a hash of everything a row says: an order for rows that agree in all that matters."""
    total = np.zeros(len(rows["ts_ns"]), np.uint64)
    for position, (column, type_) in enumerate(KINDS[kind].items()):
        values = rows[column]
        if type_ in ("text", "ints", "track"):
            unique, inverse = np.unique(values, return_inverse=True)
            if type_ == "track":
                texts = ["\0".join(p or "" for p in stage.tracks.names[c]) for c in unique.tolist()]
            else:
                texts = [stage.pool[c] or "" for c in unique.tolist()]
            digests = [hashlib.blake2b(t.encode(), digest_size=8).digest() for t in texts]
            bits = np.frombuffer(b"".join(digests), np.uint64)[inverse]
        elif type_ == "float":
            bits = np.nan_to_num(values, nan=-1.0).view(np.uint64)
        else:
            bits = values.astype(np.int64).view(np.uint64)
        mixed = (bits ^ (bits >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
        total = (total ^ mixed) * np.uint64(2 * position + 0x100000001B3)
    return total
