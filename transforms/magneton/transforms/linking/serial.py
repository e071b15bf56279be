"""Device records that cannot be: a stream does one thing at a time, so that an activity is over when the next one begins.

A profiler that lost the end of a record writes any number for it (4.29 s is 2^32 - 1 ns). Such a record reaches beyond its
successor on the same stream. What may overlap is left alone: kernels of a replayed graph, whose branches share a stream,
and a kernel that starts early on purpose (programmatic dependent launch), which still ends after the one before it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from magneton.schemas.kinds import Activity
from magneton.transforms.naming.launch_names import launches_graph
from magneton.transforms.staging.stage import NONE, Stage

# Starts and lengths cut to whole microseconds overlap by less than this without meaning it.
_ROUNDING_NS = 2_000
# Two kernels that follow each other may touch by this share of the first one: their time stamps are not that exact.
_TOUCH = 0.1
_LOST_NS = 2**32 - 1
# Where so many records overlap the next one, they are not those of one stream.
_SEVERAL, _MANY = 8, 0.1
# Launches whose kernel waits for all that was launched before it on its stream.
_PLAIN_LAUNCH = re.compile(r"(?:cudaLaunchKernel|cuLaunchKernel|hipLaunchKernel|hipModuleLaunchKernel)(?:_\w+)?")

_SUSPECTS = """
WITH following AS (
    SELECT rowid AS row, ts_ns, dur_ns, category, correlation, graph_node_id, attributes, track, device, stream,
        lead(ts_ns) OVER w AS next_ts, lead(dur_ns) OVER w AS next_dur, lead(correlation) OVER w AS next_correlation
    FROM {kernels}
    WINDOW w AS (PARTITION BY track, device, stream ORDER BY ts_ns, dur_ns DESC, correlation, name)
)
SELECT row, ts_ns, dur_ns, category, correlation, graph_node_id, attributes, track, device, stream,
    next_ts, greatest(next_dur, 0), next_correlation
FROM following
WHERE dur_ns > {rounding} AND (ts_ns + dur_ns - next_ts > {rounding} OR (next_ts IS NULL AND dur_ns = {lost}))
ORDER BY ts_ns, dur_ns, track, device, stream, correlation, row
"""


@dataclass(frozen=True, slots=True)
class _Suspect:
    row: int
    ts: int
    dur: int
    category: int
    correlation: int
    node: int
    attributes: int
    track: int
    device: int
    stream: int
    next_ts: int | None
    next_dur: int | None
    next_correlation: int | None

    @property
    def place(self) -> tuple[int, int, int]:
        return (self.track, self.device, self.stream)


def clip_overruns(stage: Stage) -> None:
    """Cut device records that run into their successor at its start; a length that says nothing becomes unknown."""
    stage.flush()
    if not stage.n_rows["kernels"]:
        return
    query = _SUSPECTS.format(kernels=stage.table("kernels"), rounding=_ROUNDING_NS, lost=_LOST_NS)
    suspects = [_Suspect(*row) for row in stage.connection.execute(query).fetchall()]
    if not suspects:
        return
    names, shared = _launches(stage, suspects), _shared(stage, suspects)
    found = [s for s in suspects if _impossible(stage, s, names, shared)]
    per_stream = Counter(s.place for s in found)
    if not stage.info.serial_streams:
        crowded = set(per_stream)
    else:
        crowded = {place for place, n in per_stream.items() if n >= _SEVERAL and n > _MANY * _size(stage, place)}
    cut = [s for s in found if s.place not in crowded]
    left = len(found) - len(cut)
    if left:
        stage.warn(
            "stream_not_serial",
            "many device activities overlap on what the file calls one stream: it is several, and their times add up",
            left,
        )
    if not cut:
        return
    lengths = [s.next_ts - s.ts if s.next_ts is not None and s.next_ts > s.ts else NONE for s in cut]
    texts = [_with_written(stage, s) for s in cut]
    rows = np.array([s.row for s in cut], np.int64)
    stage.replace("kernels", rows, {"dur_ns": np.array(lengths, np.int64), "attributes": stage.pool.encode(texts)})
    stage.warn(
        "activity_overrun",
        "device activities that reach beyond the next one on their stream: cut at its start, or unknown where that says "
        f"nothing (the first: {cut[0].dur} ns as written, at {cut[0].ts} ns)",
        len(cut),
    )


def _impossible(stage: Stage, suspect: _Suspect, names: dict[int, list[str]], shared: set[tuple[int, int]]) -> bool:
    if suspect.next_ts is None or suspect.next_dur is None:
        return True
    mine, following = names.get(suspect.correlation, []), names.get(suspect.next_correlation or NONE, [])
    graph = any(map(launches_graph, mine + following)) or suspect.node != NONE
    if graph or (suspect.track, suspect.correlation) in shared:
        return False
    end = suspect.ts + suspect.dur
    if suspect.next_ts + suspect.next_dur <= end:
        return True  # the next one is over before this one is
    if stage.pool[suspect.category] != Activity.KERNEL:
        return True
    plain = bool(following) and all(_PLAIN_LAUNCH.fullmatch(n) for n in following)
    return plain and end - suspect.next_ts > _TOUCH * suspect.dur


def _launches(stage: Stage, suspects: list[_Suspect]) -> dict[int, list[str]]:
    """Return the names of the calls that carry a correlation of a suspect or of its successor."""
    wanted = {c for s in suspects for c in (s.correlation, s.next_correlation) if c is not None and c != NONE}
    names: dict[int, list[str]] = {}
    if not wanted or not stage.n_rows["launches"]:
        return names
    table = stage.table("launches")
    query = f"SELECT DISTINCT correlation, name FROM {table} WHERE correlation IN (SELECT unnest(?))"
    for correlation, name in stage.connection.execute(query, [sorted(wanted)]).fetchall():
        names.setdefault(correlation, []).append(stage.pool[name] or "")
    return names


def _shared(stage: Stage, suspects: list[_Suspect]) -> set[tuple[int, int]]:
    """Return the suspects' tracks and correlations that several activities of one launch carry: a graph.

    An id that is used again has as many launches as activities. It says nothing of graphs.
    """
    wanted = sorted({s.correlation for s in suspects if s.correlation != NONE})
    kernels = stage.table("kernels")
    query = (
        f"SELECT track, correlation, count(*) FROM {kernels} WHERE correlation IN (SELECT unnest(?))"
        " GROUP BY track, correlation"
    )
    counts = stage.connection.execute(query, [wanted]).fetchall()
    launches: Counter[int] = Counter()
    if stage.n_rows["launches"]:
        query = f"SELECT correlation, count(*) FROM {stage.table('launches')} WHERE correlation IN (SELECT unnest(?)) GROUP BY correlation"
        launches.update(dict(stage.connection.execute(query, [wanted]).fetchall()))
    activities: Counter[int] = Counter()
    for _, correlation, count in counts:
        activities[correlation] += count
    return {(track, name) for track, name, count in counts if count > 2 and activities[name] > launches[name]}


def _size(stage: Stage, place: tuple[int, int, int]) -> int:
    query = f"SELECT count(*) FROM {stage.table('kernels')} WHERE track = ? AND device = ? AND stream = ?"
    return int(stage.connection.execute(query, list(place)).fetchall()[0][0])


def _with_written(stage: Stage, suspect: _Suspect) -> str:
    said: dict[str, Any] = json.loads(stage.pool[suspect.attributes] or "{}")
    return json.dumps({**said, "dur_ns_as_written": suspect.dur}, separators=(",", ":"), ensure_ascii=False)
