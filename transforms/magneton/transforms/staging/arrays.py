"""Arrays that grow: one number per operator, launch or frame of a capture."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from magneton.transforms.staging.stage import NONE

Ints = NDArray[np.int64]
_PAGE_BITS = 16
_IN_PAGE = (1 << _PAGE_BITS) - 1
_EMPTY = -(2**31)
_OFFSETS = 2**31 - 1
# Pages may have room for this many times as many ids as there are.
_SPREAD = 8
_SPARE_PAGES = 4


class Growing:
    """A list of integers, appended to in pieces."""

    def __init__(self) -> None:
        self._data = np.empty(1024, np.int64)
        self.size = 0

    def append(self, values: Ints) -> None:
        """Add values at the end."""
        need = self.size + len(values)
        if need > len(self._data):
            bigger = np.empty(max(need, len(self._data) + len(self._data) // 4), np.int64)
            bigger[: self.size] = self._data[: self.size]
            self._data = bigger
        self._data[self.size : need] = values
        self.size = need

    def view(self) -> Ints:
        """Return what is there (a view: writing to it changes the list)."""
        return self._data[: self.size]


class IdMap:
    """From native ids to row ids. Ids that lie close together share pages, others go to a dict.

    Row ids are kept as 32-bit offsets from the first one, so a page of 65,536 ids takes 256 KiB.
    """

    def __init__(self) -> None:
        self._pages: dict[int, NDArray[np.int32]] = {}
        self._sparse: dict[int, int] = {}
        self._first: int | None = None
        self._count = 0

    def set(self, keys: Ints, values: Ints) -> None:
        """Remember ``values`` under ``keys``; later ones replace earlier ones."""
        given = keys != NONE
        if not given.all():
            keys, values = keys[given], values[given]
        if not len(keys):
            return
        if self._first is None:
            self._first = int(values.min())
        self._count += len(keys)
        offsets = values - self._first
        page = keys >> _PAGE_BITS
        for number in np.unique(page).tolist():
            mine = page == number
            fits = bool((np.abs(offsets[mine]) < _OFFSETS).all())
            if fits and (
                number in self._pages or len(self._pages) < _SPARE_PAGES + (_SPREAD * self._count >> _PAGE_BITS)
            ):
                if number not in self._pages:
                    self._pages[number] = np.full(1 << _PAGE_BITS, _EMPTY, np.int32)
                self._pages[number][keys[mine] & _IN_PAGE] = offsets[mine]
            else:
                self._sparse.update(zip(keys[mine].tolist(), values[mine].tolist(), strict=True))

    def get(self, keys: Ints) -> Ints:
        """Return the values under ``keys``, ``NONE`` where there is none."""
        out = np.full(len(keys), NONE, np.int64)
        page = keys >> _PAGE_BITS
        for number in np.unique(page).tolist():
            known = self._pages.get(number)
            if known is not None:
                mine = page == number
                offsets = known[keys[mine] & _IN_PAGE].astype(np.int64)
                out[mine] = np.where(offsets != _EMPTY, offsets + (self._first or 0), NONE)
        if self._sparse:
            rest = np.flatnonzero((out == NONE) & (keys != NONE))
            out[rest] = [self._sparse.get(k, NONE) for k in keys[rest].tolist()]
        return out
