"""Which forward operator a backward operator belongs to.

A backward operator has the sequence number of its forward operator, and autograd's number of the thread that ran the forward
operator. Sequence numbers count per thread, and only differentiable operators increase them. So several operators may have one
number; the last of them to start is the one that was differentiated. Autograd's thread numbers are not those of the trace. The thread
is recognised by the sequence numbers that occur on it.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from magneton.transforms.staging.stage import NONE

Ints = NDArray[np.int64]


class Autograd:
    """Forward operators by sequence number, fed in the order of time."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], int] = {}
        self._tracks: dict[int, list[int]] = {}
        self._votes: dict[tuple[int, int], Counter[int]] = {}

    def links(self, op_id: Ints, track: Ints, process: Ints, sequence: Ints, fwd_thread: Ints) -> Ints:
        """Return the forward operator of each operator (``NONE``: it is not a backward operator, or its forward is lost).

        Args:
            op_id: operators in the order of time.
            track: their threads.
            process: their processes.
            sequence: autograd sequence numbers or ``NONE``.
            fwd_thread: autograd's number of the forward thread; 0 or ``NONE`` on forward operators.
        """
        out = np.full(len(op_id), NONE, np.int64)
        rows = np.flatnonzero(sequence != NONE)
        columns = (rows, op_id[rows], track[rows], process[rows], sequence[rows], fwd_thread[rows])
        for row, op, thread, pid, number, forward in zip(*(c.tolist() for c in columns), strict=True):
            if forward in (0, NONE):
                if (thread, number) not in self._last and thread not in self._tracks.setdefault(pid, []):
                    self._tracks[pid].append(thread)
                self._last[thread, number] = op
            else:
                out[row] = self._forward(pid, forward, number)
        return out

    def _forward(self, pid: int, forward: int, number: int) -> int:
        candidates = [t for t in self._tracks.get(pid, ()) if (t, number) in self._last]
        if not candidates:
            return NONE
        votes = self._votes.setdefault((pid, forward), Counter())
        if len(candidates) == 1:
            votes[candidates[0]] += 1
        best = max(candidates, key=lambda t: (votes[t], self._last[t, number]))
        return self._last[best, number]
