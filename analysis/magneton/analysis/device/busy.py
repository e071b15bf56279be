"""Time of a device on which several activities run at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def equal_share(start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the share of each interval in the time they cover. Each instant is divided equally among the intervals that cover it.

    Shapes ``(n,)`` in ns; the result sums to the length of the union (zero-length intervals get 0).
    """
    if not len(start):
        return np.zeros(0)
    edges = np.unique(np.concatenate([start, end]))
    change = np.zeros(len(edges), dtype=np.int64)
    np.add.at(change, np.searchsorted(edges, start), 1)
    np.add.at(change, np.searchsorted(edges, end), -1)
    active = np.cumsum(change)[:-1]
    parts = np.where(active > 0, np.diff(edges) / np.maximum(active, 1), 0.0)
    running = np.concatenate([[0.0], np.cumsum(parts)])
    shares: npt.NDArray[np.float64] = running[np.searchsorted(edges, end)] - running[np.searchsorted(edges, start)]
    return shares
