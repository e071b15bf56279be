"""Kernel launches whose kernel is not in the recording: the work was done, and its time is unknown.

Profilers lose device records, for example when a buffer is full, and the file does not say so. The launch of such a kernel is
still recorded. It keeps its place in the tree of work, so that the work is not taken for absent or for free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc

from magneton.analysis.recording import Needs, Recording

# Copies and memsets of nothing rightly leave no record.
_TRANSFER = r"(?i)mem(cpy|set|fill|ory|buffer|image)|USM"
_COLUMNS = (
    "launch_id", "name", "ts_ns", "correlation", "op_id", "module_id", "module_call", "step_id", "rank",
    "expects_device_activity",
)  # fmt: skip

_USED_COLUMNS = ("launch_id", "rank")
# What ``lost_launches`` asks of a recording.
NEEDS: Needs = {"launches": _COLUMNS, "kernels": _USED_COLUMNS}


@dataclass
class Lost:
    """Kernel launches of one rank.

    Attributes:
        rows: those without a kernel, rows of ``launches``.
        n_launches: number of all by step (None: outside of steps).
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    n_launches: Counter[int | None] = field(default_factory=Counter)

    def in_steps(self, steps: Iterable[int | None] | None) -> tuple[int, int]:
        """Return two numbers for some steps (None: the whole capture): launches without a kernel, and all launches."""
        if steps is None:
            return len(self.rows), self.n_launches.total()
        wanted = set(steps)
        return sum(row["step_id"] in wanted for row in self.rows), sum(self.n_launches[step] for step in wanted)


def lost_launches(recording: Recording, rank: int) -> Lost:
    """Find the kernel launches of a rank that left no kernel."""
    launches = recording.of_rank("launches", rank, _COLUMNS)
    expected = pc.and_(
        pc.fill_null(launches.column("expects_device_activity"), False), pc.is_valid(launches.column("correlation"))
    )
    no_transfer = pc.invert(pc.match_substring_regex(pc.fill_null(launches.column("name"), ""), _TRANSFER))
    launches = launches.filter(pc.and_(expected, no_transfer))
    used = pc.unique(recording.of_rank("kernels", rank, _USED_COLUMNS).column("launch_id"))
    lost = launches.filter(pc.invert(pc.is_in(launches.column("launch_id"), used)))
    counts = pc.value_counts(launches.column("step_id")).to_pylist()
    return Lost(lost.to_pylist(), Counter({row["values"]: row["counts"] for row in counts}))
