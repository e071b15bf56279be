"""Arrays that grow: one number per operator, launch or frame of a capture."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from magneton.transforms.staging import NONE

Ints = NDArray[np.int64]
# An array may be this many times as long as there are ids.
_SPREAD = 8
_SMALL = 1 << 16


class Growing:
    """A list of integers, appended to in pieces."""

    def __init__(self) -> None:
        self._data = np.empty(1024, np.int64)
        self.size = 0

    def append(self, values: Ints) -> None:
        """Add values at the end."""
        need = self.size + len(values)
        if need > len(self._data):
            bigger = np.empty(max(need, 2 * len(self._data)), np.int64)
            bigger[: self.size] = self._data[: self.size]
            self._data = bigger
        self._data[self.size : need] = values
        self.size = need

    def view(self) -> Ints:
        """Return what is there (a view: writing to it changes the list)."""
        return self._data[: self.size]


class IdMap:
    """From native ids to row ids. Ids that lie close together share an array, others go to a dict."""

    def __init__(self) -> None:
        self._base = 0
        self._dense = np.zeros(0, np.int64)
        self._sparse: dict[int, int] = {}
        self._count = 0

    def set(self, keys: Ints, values: Ints) -> None:
        """Remember ``values`` under ``keys``; later ones replace earlier ones."""
        given = keys != NONE
        if not given.all():
            keys, values = keys[given], values[given]
        if not len(keys):
            return
        if not len(self._dense):
            self._base = int(keys.min())
        self._count += len(keys)
        room = self._base + max(_SMALL, _SPREAD * self._count)
        near = (keys >= self._base) & (keys < room)
        if near.any():
            top = int(keys[near].max()) - self._base + 1
            if top > len(self._dense):
                bigger = np.zeros(max(top, 2 * len(self._dense)), np.int64)
                bigger[: len(self._dense)] = self._dense
                self._dense = bigger
            self._dense[keys[near] - self._base] = values[near] + 1
        if not near.all():
            self._sparse.update(zip(keys[~near].tolist(), values[~near].tolist(), strict=True))

    def get(self, keys: Ints) -> Ints:
        """Return the values under ``keys``, ``NONE`` where there is none."""
        out = np.full(len(keys), NONE, np.int64)
        near = (keys >= self._base) & (keys < self._base + len(self._dense))
        found = self._dense[keys[near] - self._base]
        out[near] = np.where(found > 0, found - 1, NONE)
        if self._sparse:
            rest = np.flatnonzero((out == NONE) & (keys != NONE))
            out[rest] = [self._sparse.get(k, NONE) for k in keys[rest].tolist()]
        return out
