"""Operations of a TPU that hold others: ``while``, ``conditional`` and ``call`` stand on the line of what runs inside them.

Counting both would double the time. An operation that encloses the next one of its line becomes an annotation; what runs
inside it stays work.
"""

from __future__ import annotations

import numpy as np

from magneton.transforms.staging.stage import Stage

_CONTAINERS = """
WITH following AS (
    SELECT rowid AS row, ts_ns, dur_ns, lead(ts_ns) OVER w AS next_ts, lead(dur_ns) OVER w AS next_dur
    FROM {kernels} WHERE list_contains(?, track)
    WINDOW w AS (PARTITION BY track ORDER BY ts_ns, dur_ns DESC, rowid)
)
SELECT row FROM following
WHERE dur_ns > 0 AND next_dur < dur_ns AND next_ts < ts_ns + dur_ns AND next_ts + greatest(next_dur, 0) <= ts_ns + dur_ns
"""


def set_containers_apart(stage: Stage, lines: frozenset[str]) -> None:
    """Move operations that enclose others from ``kernels`` to ``annotations``.

    Args:
        stage: the events.
        lines: names of lines that hold operations of a device.
    """
    stage.flush()
    tracks = [number for number, (_, line) in enumerate(stage.tracks.names) if line in lines]
    if not tracks or not stage.n_rows["kernels"]:
        return
    kernels = stage.table("kernels")
    rows = [row for (row,) in stage.connection.execute(_CONTAINERS.format(kernels=kernels), [tracks]).fetchall()]
    if not rows:
        return
    chosen = "rowid IN (SELECT unnest(?))"
    query = f"SELECT name, track, ts_ns, dur_ns, attributes FROM {kernels} WHERE {chosen} ORDER BY rowid"
    name, track, ts, dur, args = zip(*stage.connection.execute(query, [rows]).fetchall(), strict=True)
    stage.add(
        "annotations",
        {
            "name": np.array(name, np.int32),
            "track": np.array(track, np.int32),
            "ts_ns": list(ts),
            "dur_ns": list(dur),
            "category": [stage.tracks.names[number][1] for number in track],
            "kind": ["slice"] * len(rows),
            "args": np.array(args, np.int32),
        },
    )
    stage.connection.execute(f"DELETE FROM {kernels} WHERE {chosen}", [rows])
    stage.n_rows["kernels"] -= len(rows)
