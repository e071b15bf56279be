"""Tying device activities to the launches, operators, modules and steps they belong to.

Within one process a correlation id joins a launch and its activities. A replayed graph has many activities and one launch.

Files that were merged from several processes use the same ids again. So the process that owns a device is found first: by
correlations that occur in one process only, else by exclusion, else by order. If a process has several launches with one id, the
last one that starts before the activity is taken, among those that leave activities. If the activity of
that launch is known already, the next launch is taken, provided that it starts at about the same time: the clocks of host and
device differ a little. An activity without such a launch may get
its operator from its ``External id``, unless this is only a copy of the correlation (files of 2021 to 2023).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from magneton.schemas.kinds import Activity, Flag
from magneton.transforms.linking.host import NextIds, Placed
from magneton.transforms.linking.steps import Steps
from magneton.transforms.naming.kernel_classes import kernel_class
from magneton.transforms.staging.stage import NONE, Stage
from magneton.transforms.staging.windows import windows
from magneton.transforms.staging.writer import RunWriter, Texts, ids, known, sizes, threads

# How far the clocks of host and device may be apart.
_SKEW_NS = 1_000_000

Ints = NDArray[np.int64]
LINKS = pa.array(["launch", "external_id", "flow"], pa.string())


class DevicePass:
    """Links and writes the device side of one capture."""

    def __init__(
        self,
        stage: Stage,
        writer: RunWriter,
        keys: Mapping[str, Any],
        next_ids: NextIds,
        ops: Placed,
        launches: Placed,
        by_flow: Mapping[int, int],
        steps: Steps,
    ) -> None:
        self._stage = stage
        self._writer = writer
        self._keys = keys
        self._next = next_ids
        self._ops = ops
        self._launches = launches
        self._by_flow = by_flow
        self._steps = steps
        self._texts = stage.pool.arrow()
        self._classes: dict[tuple[int, int], str] = {}
        self._used = np.zeros(launches["correlation"].size, bool)
        # Launches among several of one correlation whose activity was met.
        self._taken: set[int] = set()
        self._unlaunched = self._early = self._homeless = 0

    def run(self) -> None:
        """Go through all activities."""
        self._use_external = self._external_ids_mean_operators()
        self._index_launches()
        self._index_operators()
        for window in windows(self._stage, ("kernels",)):
            self._rows(window.rows["kernels"])
        self._warn()

    # --- what there is to link to ---------------------------------------------------------------------------------

    def _external_ids_mean_operators(self) -> bool:
        """Tell whether ``External id`` of activities is more than a copy of their correlation."""
        external = self._stage.column("kernels", "external_id")
        correlation = self._stage.column("kernels", "correlation")
        both = (external != NONE) & (correlation != NONE)
        copies = int(both.sum())
        if copies and bool((external[both] == correlation[both]).all()):
            self._stage.warn(
                "correlation_as_external_id",
                "External id of every device activity equals its correlation; it names no operator",
                copies,
            )
            return False
        return True

    def _index_launches(self) -> None:
        """Sort launches by (process, correlation, leaves activity, start), and find out who owns each device."""
        launches = self._launches
        known = np.flatnonzero(launches["correlation"] != NONE)
        keys = (launches["ts"][known], launches["expects"][known], launches["correlation"][known])
        order = known[np.lexsort((*keys, launches["process"][known]))]
        self._order = order
        self._correlation = launches["correlation"][order]
        self._pid = launches["process"][order]
        self._start = launches["ts"][order]
        self._owner = self._owners()

    def _owners(self) -> dict[int, list[int]]:
        """Return the processes that launch on each device (the ``pid`` of its activities), likeliest first."""
        processes = np.unique(self._pid).tolist()
        device = _device_of_tracks(self._stage)
        if len(processes) < 2:
            return defaultdict(lambda: processes)
        homes: dict[int, set[int]] = defaultdict(set)
        for correlation, pid in zip(self._correlation.tolist(), self._pid.tolist(), strict=True):
            homes[correlation].add(pid)
        votes: dict[int, Counter[int]] = defaultdict(Counter)
        tracks, correlations = self._stage.column("kernels", "track"), self._stage.column("kernels", "correlation")
        seen = sorted({device[t] for t in np.unique(tracks).tolist()})
        for track, correlation in zip(tracks.tolist(), correlations.tolist(), strict=True):
            home = homes.get(correlation, ())
            if len(home) == 1:
                votes[device[track]].update(home)
        owners: dict[int, list[int]] = defaultdict(lambda: processes)
        for number in seen:
            owners[number] = [p for p, _ in sorted(votes[number].items(), key=lambda v: (-v[1], v[0]))]
        taken = {pids[0] for pids in owners.values() if pids}
        free = [p for p in processes if p not in taken]
        for number in seen:
            if not owners[number] and free:
                owners[number].append(free.pop(0))
        for number in seen:
            owners[number] += [p for p in processes if p not in owners[number]]
            if number in processes:
                owners[number] = [number]  # the activities name the process that launched them, not a device
        return owners

    def _index_operators(self) -> None:
        external, process = self._ops["external_id"], self._ops["process"]
        known = np.flatnonzero(external != NONE)
        order = known[np.lexsort((external[known], process[known]))]
        self._op_order, self._op_external, self._op_process = order, external[order], process[order]

    # --- activities -----------------------------------------------------------------------------------------------

    def _rows(self, rows: dict[str, NDArray[Any]]) -> None:
        stage, launches = self._stage, self._launches
        count = len(rows["ts_ns"])
        ident = self._next.take("kernels", count)
        correlation = rows["correlation"]
        launch = self._find_launches(rows)
        link = np.where(launch != NONE, 0, -1)
        if self._by_flow:
            for row in np.flatnonzero(launch == NONE).tolist():
                found = self._by_flow.get(int(ident[row]))
                if found is not None:
                    launch[row], link[row] = found, 2
        has = launch != NONE
        self._used[launch[has] - launches.first] = True
        op = launches.of("op", launch)
        external = rows["external_id"] if self._use_external else np.full(count, NONE, np.int64)
        step, module, call = (launches.of(c, launch) for c in ("step", "module", "call"))
        lost = np.flatnonzero((op == NONE) & (external != NONE))
        if len(lost):
            operators = self._find_operators(rows["track"][lost], external[lost], launch[lost])
            at, named = lost[operators != NONE], operators[operators != NONE]
            op[at] = named
            link[at] = 1
            for column, name in ((step, "step"), (module, "module"), (call, "call")):
                better = self._ops.of(name, named)
                column[at] = np.where(better != NONE, better, column[at])
        step = np.where(step == NONE, self._steps.on_device(rows["ts_ns"]), step)
        latency = np.where(has, rows["ts_ns"] - np.where(has, launches.of("ts", launch), 0), NONE)
        node = rows["graph_node_id"]
        graph = np.where(has, launches.of("graph", launch), np.where(node != NONE, 1, -1)).astype(np.int8)
        self._unlaunched += int((~has & (correlation != NONE)).sum())
        self._early += int((has & (latency < 0)).sum())
        self._homeless += int(((graph > 0) & (op == NONE)).sum())
        self._writer.write(
            "kernels",
            count,
            self._keys,
            threads(stage, rows["track"])
            | {
                "name": Texts(rows["name"], self._texts),
                "ts_ns": rows["ts_ns"],
                "dur_ns": known(rows["dur_ns"]),
                "kernel_id": ident,
                "category": Texts(rows["category"], self._texts),
                "kernel_class": self._class(rows),
                "device": self._device(rows),
                "stream": self._stream(rows),
                "correlation": ids(correlation, stage),
                "external_id": ids(external, stage),
                "launch_id": launch,
                "op_id": op,
                "link": Texts(link, LINKS),
                "module_id": module,
                "module_call": call,
                "step_id": step,
                "launch_latency_ns": latency,
                "graph_launch": graph,
                "graph_node_id": node,
                "bytes": rows["bytes"],
                "grid": sizes(rows["grid"], stage.pool),
                "block": sizes(rows["block"], stage.pool),
                "registers_per_thread": rows["registers_per_thread"],
                "shared_memory_bytes": rows["shared_memory_bytes"],
                "occupancy_percent": rows["occupancy_percent"],
                "collective": Texts(rows["collective"], self._texts),
                "attributes": Texts(rows["attributes"], self._texts),
            },
        )

    def _find_launches(self, rows: dict[str, NDArray[Any]]) -> Ints:
        """Return the launch of each activity by correlation, or ``NONE``."""
        correlation, ts = rows["correlation"], rows["ts_ns"]
        out = np.full(len(ts), NONE, np.int64)
        if not len(self._order):
            return out
        device = _device_of_tracks(self._stage)[rows["track"]]
        for number in np.unique(device).tolist():
            todo = np.flatnonzero((device == number) & (correlation != NONE))
            for pid in self._owner[number]:
                if not len(todo):
                    break
                a, b = np.searchsorted(self._pid, [pid, pid + 1])
                found = self._last_before(a, b, correlation[todo], ts[todo])
                out[todo] = np.where(found >= 0, self._launches.first + self._order[np.maximum(found, 0)], NONE)
                todo = todo[found < 0]
        return out

    def _last_before(self, a: int, b: int, correlation: Ints, ts: Ints) -> Ints:
        """Return positions (-1: none) of launches of one process: the last to start no later than ``ts``, else the first."""
        mine = self._correlation[a:b]
        # Within one correlation rows are sorted by (leaves activity, start); only the best class is looked at.
        low = np.searchsorted(mine, correlation, "left")
        high = np.searchsorted(mine, correlation, "right")
        expects = self._launches["expects"][self._order[a:b]]
        start = self._start[a:b]
        found = np.where(high > low, high - 1, -1)
        graph = self._launches["graph"]
        for i in np.flatnonzero(high - low > 1).tolist():
            lo, hi = int(low[i]), int(high[i])
            lo += int(np.searchsorted(expects[lo:hi], expects[hi - 1], "left"))
            at = max(lo + int(np.searchsorted(start[lo:hi], ts[i], "right")) - 1, lo)
            if a + at in self._taken and not graph[self._order[a + at]]:
                free = [j for j in (at + 1, at - 1) if lo <= j < hi and a + j not in self._taken]
                at = next((j for j in free if abs(int(start[j]) - int(ts[i])) <= _SKEW_NS), at)
            self._taken.add(a + at)
            found[i] = at
        return np.where(found >= 0, found + a, -1)

    def _find_operators(self, track: NDArray[Any], external: Ints, launch: Ints) -> Ints:
        """Return operators by ``External id``, within the process that launched or that owns the device."""
        device = _device_of_tracks(self._stage)[track]
        process = self._launches.of("process", launch)
        out = np.full(len(track), NONE, np.int64)
        for i, (number, ext, pid) in enumerate(zip(device.tolist(), external.tolist(), process.tolist(), strict=True)):
            owners = [pid] if pid != NONE else self._owner[number] or np.unique(self._op_process).tolist()
            for owner in owners:
                a, b = np.searchsorted(self._op_process, [owner, owner + 1])
                at = a + int(np.searchsorted(self._op_external[a:b], ext))
                if at < b and self._op_external[at] == ext:
                    # An id that several operators of the process carry names none of them.
                    if at + 1 >= b or self._op_external[at + 1] != ext:
                        out[i] = self._ops.first + self._op_order[at]
                    break
        return out

    def _class(self, rows: dict[str, NDArray[Any]]) -> Texts:
        stated = rows["kernel_class"]
        pairs = np.stack([rows["name"], rows["category"], stated])
        unique, inverse = np.unique(pairs, axis=1, return_inverse=True)
        pool = self._stage.pool
        labels = [pool[s] or kernel_class(pool[n] or "", pool[c] or Activity.KERNEL) for n, c, s in unique.T.tolist()]
        return Texts(inverse.reshape(-1), pa.array(labels, pa.string()))

    def _device(self, rows: dict[str, Any]) -> Ints:
        """Return the device as stated, else the number that kineto writes as process id of activities."""
        if self._stage.info.source_format != "kineto":
            stated: Ints = rows["device"]
            return stated
        return _or_number(rows["device"], rows["track"], [p for p, _ in self._stage.tracks.names])

    def _stream(self, rows: dict[str, NDArray[Any]]) -> Ints:
        return _or_number(rows["stream"], rows["track"], [t for _, t in self._stage.tracks.names])

    def _warn(self) -> None:
        stage = self._stage
        if self._unlaunched:
            stage.warn(
                "kernel_without_launch",
                "device activities whose correlation no launch in the file carries",
                self._unlaunched,
            )
        if self._early:
            stage.warn("kernel_before_launch", "device activities start before their launch", self._early)
        if self._homeless:
            stage.warn(Flag.GRAPH_REPLAY_NO_OP, "kernels of a replayed graph belong to no operator", self._homeless)
        reused = self._reused()
        if reused:
            stage.warn(
                "correlation_reused",
                "launches of one process share a correlation: which activity is whose was judged by time",
                reused,
            )
        if missing := self._missing():
            stage.warn(
                "gpu_records_missing",
                "launches whose device activity is not in the file: their device time is unknown, not 0",
                missing,
            )

    def _reused(self) -> int:
        """Return how many launches carry a correlation that another of their process and kind carries."""
        family = self._launches["family"][self._order]
        rows = np.flatnonzero(family >= 0)
        keys = np.stack([self._pid[rows], self._correlation[rows], family[rows]])
        _, counts = np.unique(keys, axis=1, return_counts=True)
        return int(counts[counts > 1].sum())

    def _missing(self) -> int:
        """Return how many launches have no activity; the calls of runtime and driver for one launch count once."""
        launches = self._launches
        rows = np.flatnonzero((launches["expects"] > 0) & (launches["correlation"] != NONE))
        if not len(rows):
            return 0
        keys = np.stack([launches["process"][rows], launches["correlation"][rows]])
        _, group = np.unique(keys, axis=1, return_inverse=True)
        group = group.reshape(-1)
        pairs = np.stack([group, launches["family"][rows]])
        of, per_family = np.unique(pairs, axis=1, return_counts=True)
        wanted = np.zeros(int(group.max()) + 1, np.int64)
        np.maximum.at(wanted, of[0], per_family)
        found = np.bincount(group, weights=self._used[rows], minlength=len(wanted)).astype(np.int64)
        return int(np.maximum(wanted - found, 0).sum())


def _or_number(stated: Ints, track: NDArray[Any], names: list[str | None]) -> Ints:
    missing = stated == NONE
    if not missing.any():
        return stated
    numbers = [int(n) if n is not None and n.isascii() and n.isdigit() and len(n) < 19 else NONE for n in names]
    return np.where(missing, np.array(numbers or [NONE], np.int64)[track], stated)


def _device_of_tracks(stage: Stage) -> Ints:
    """Return a number for the process (to kineto: the device) of each track."""
    numbers: dict[str | None, int] = {}
    return np.array([numbers.setdefault(pid, len(numbers)) for pid, _ in stage.tracks.names] or [0], np.int64)
