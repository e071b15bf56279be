"""Device time that is in no row of a diff, with the reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

_NAMES_SHOWN = 5


@dataclass
class LeftOut:
    """Device activities that are left out for one reason. Times in ns.

    Attributes:
        n_activities: number of kernels, copies and memsets.
        kernel_ns: time of kernels.
        transfer_ns: time of copies and memsets.
    """

    n_activities: float = 0.0
    kernel_ns: float = 0.0
    transfer_ns: float = 0.0
    _counts: Counter[str] = field(default_factory=Counter)
    _times: dict[str, float] = field(default_factory=dict)

    @property
    def time_ns(self) -> float:
        """Kernels, copies and memsets together."""
        return self.kernel_ns + self.transfer_ns

    def add(self, name: str, n: float, ns: float, *, is_kernel: bool) -> None:
        """Add activities of one name."""
        self.n_activities += n
        if is_kernel:
            self.kernel_ns += ns
        else:
            self.transfer_ns += ns
        self._counts[name] += round(n)
        self._times[name] = self._times.get(name, 0.0) + ns

    def names(self) -> str:
        """Return the names with counts, most time first: ``gemm x12 + Memset (Device) x3 + 4 more``."""
        ordered = sorted(self._times, key=lambda name: (-self._times[name], name))
        parts = [
            name if self._counts[name] == 1 else f"{name} x{self._counts[name]}" for name in ordered[:_NAMES_SHOWN]
        ]
        if len(ordered) > _NAMES_SHOWN:
            parts.append(f"{len(ordered) - _NAMES_SHOWN} more")
        return " + ".join(parts)
