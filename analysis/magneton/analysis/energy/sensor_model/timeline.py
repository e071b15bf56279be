"""Which kernels run when: the activity of a device as functions of time that can be integrated exactly.

Let ``n_c(t)`` be the number of kernels of class c that run at time t, and ``n(t)`` the number of all kernels. Energies are computed
from two integrals per class: ``A_c = integral n_c`` (kernel seconds), and ``S_c = integral n_c / n`` (the equal share of the class
in the busy time). ``sum_c S_c`` is exactly the busy time.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Activity(Protocol):
    """Activity of one device over time; times in s on any one time line.

    Attributes:
        classes: name of each class.
        start_s: before it nothing runs.
        end_s: after it nothing runs.
    """

    classes: tuple[str, ...]
    start_s: float
    end_s: float

    def active(self, t: Array) -> Array:
        """Return the integral of ``n_c`` from the start to each time, shape (classes, times), s."""
        ...

    def share(self, t: Array) -> Array:
        """Return the integral of ``n_c / n`` from the start to each time, shape (classes, times), s."""
        ...


class Timeline:
    """Activity given by the kernels themselves.

    Args:
        start_s: starts, s, in any order.
        length_s: lengths, s.
        class_of: class of each kernel, an index into ``classes``.
        classes: names.

    Kernels without length count for nothing. Kernels of one class that run at once count twice.
    """

    def __init__(self, start_s: Array, length_s: Array, class_of: Ints, classes: tuple[str, ...]) -> None:
        keep = length_s > 0
        start, end, which = start_s[keep], start_s[keep] + length_s[keep], np.asarray(class_of)[keep]
        self.classes = classes
        ordered = np.sort(np.concatenate([start, end]))
        edges = ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else np.zeros(1)
        self.edges = edges
        self.start_s, self.end_s = float(edges[0]), float(edges[-1])
        change = np.zeros((len(classes), len(edges)))
        np.add.at(change, (which, np.searchsorted(edges, start)), 1.0)
        np.add.at(change, (which, np.searchsorted(edges, end)), -1.0)
        # Sums of whole numbers are exact: after the last kernel the count is 0 and not almost 0.
        self._count = np.cumsum(change, axis=1)
        total = self._count.sum(axis=0)
        self._rate = np.divide(self._count, total, out=np.zeros_like(self._count), where=total > 0)
        self._active = _integral(self._count, edges)
        self._share = _integral(self._rate, edges)

    def active(self, t: Array) -> Array:
        """See ``Activity``."""
        return self._at(t, self._active, self._count)

    def share(self, t: Array) -> Array:
        """See ``Activity``."""
        return self._at(t, self._share, self._rate)

    def _at(self, t: Array, cumulative: Array, rate: Array) -> Array:
        at = np.clip(np.asarray(t, np.float64), self.start_s, self.end_s)
        index = np.clip(np.searchsorted(self.edges, at, "right") - 1, 0, len(self.edges) - 1)
        found: Array = cumulative[:, index] + rate[:, index] * (at - self.edges[index])
        return found


def _integral(rate: Array, edges: Array) -> Array:
    """Return the integral of a step function (constant from each edge to the next) up to each edge."""
    total = np.zeros_like(rate)
    np.cumsum(rate[:, :-1] * np.diff(edges), axis=1, out=total[:, 1:])
    return total


def between(cumulative: Array) -> Array:
    """Return what lies between the two times of a cumulative function, shape (classes,)."""
    found: Array = cumulative[:, 1] - cumulative[:, 0]
    return found
