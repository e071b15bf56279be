"""Waiting in collective communication, told from transfer by the other ranks of the recording.

A collective kernel starts when its rank arrives and ends when all have their data. The rank that arrives last does not wait: what its
kernel takes is the transfer. Every other rank waits for as long as its kernel takes longer. Clocks of the ranks are not compared.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from magneton.analysis.names import short_kernel_name
from magneton.analysis.recording import Recording
from magneton.schemas.kinds import Activity, KernelClass

COLUMNS = ("kernel_id", "name", "ts_ns", "dur_ns", "category", "kernel_class", "step_id", "rank")
STEP_COLUMNS = ("step_id", "name", "rank")

_Key = tuple[str | None, str]


def waiting_times(recording: Recording, rank: int) -> dict[int, float]:
    """Return how long the collective kernels of a rank waited for other ranks, ns, by ``kernel_id``.

    The k-th collective of one name in one step is the same on all ranks that have as many of them. Kernels of which that is not
    so are left out, and so are all if the recording holds one rank: their waiting is unknown.
    """
    ranks = recording.ranks()
    if len(ranks) < 2 or not any(_collectives(recording, rank)):
        return {}
    found = {other: _collectives(recording, other) for other in ranks}
    waiting: dict[int, float] = {}
    for key, own in found[rank].items():
        together = [calls[key] for calls in found.values() if len(calls.get(key, ())) == len(own)]
        if len(together) < 2:
            continue
        for at, (kernel_id, duration) in enumerate(own):
            waiting[kernel_id] = duration - min(calls[at][1] for calls in together)
    return waiting


def _collectives(recording: Recording, rank: int) -> dict[_Key, list[tuple[int, float]]]:
    """Return id and length of the collective kernels of a rank in order of time, by step and name."""
    steps = {row["step_id"]: row["name"] for row in recording.of_rank("steps", rank).to_pylist()}
    kernels: list[dict[str, Any]] = [
        row
        for row in recording.of_rank("kernels", rank, COLUMNS).to_pylist()
        if row["kernel_class"] == KernelClass.COLLECTIVE
        and row["category"] == Activity.KERNEL
        and row["dur_ns"] is not None
    ]
    kernels.sort(key=lambda row: (row["ts_ns"], row["kernel_id"]))
    calls: dict[_Key, list[tuple[int, float]]] = defaultdict(list)
    for row in kernels:
        key = steps.get(row["step_id"]), short_kernel_name(row["name"])
        calls[key].append((row["kernel_id"], float(row["dur_ns"])))
    return calls
