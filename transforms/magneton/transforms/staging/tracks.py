"""Processes and threads as the input names them, and their numbers in the staging area."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Tracks:
    """Processes and threads as the input names them, numbered by first appearance."""

    def __init__(self) -> None:
        self._codes = _TrackCodes(self._new)
        self._numbers: dict[tuple[str | None, str | None], int] = {}
        self.names: list[tuple[str | None, str | None]] = []

    def encode(self, pids: Iterable[Any], tids: Iterable[Any]) -> NDArray[np.int32]:
        """Return the numbers of (pid, tid) pairs; 12 and "12" are the same."""
        pids, tids = list(pids), list(tids)
        if pids and pids.count(pids[0]) == len(pids) and tids.count(tids[0]) == len(tids):
            return np.full(len(pids), self.number(pids[0], tids[0]), np.int32)
        return np.fromiter(map(self._codes.__getitem__, zip(pids, tids, strict=True)), np.int32)

    def number(self, pid: Any, tid: Any) -> int:
        """Return the number of one pair."""
        return self._codes[pid, tid]

    def _new(self, key: tuple[Any, Any]) -> int:
        name = (None if key[0] is None else str(key[0]), None if key[1] is None else str(key[1]))
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.names)
            self.names.append(name)
        return number


class _TrackCodes(dict[tuple[Any, Any], int]):
    def __init__(self, new: Callable[[tuple[Any, Any]], int]) -> None:
        self._new = new

    def __missing__(self, key: tuple[Any, Any]) -> int:
        code = self[key] = self._new(key)
        return code
