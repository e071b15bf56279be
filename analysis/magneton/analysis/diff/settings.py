"""What the user decides about a diff."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from magneton.schemas.checks import need_number, need_one_of, need_whole
from magneton.schemas.errors import UsageError

# What times can be divided by.
UNITS = ("step", "sample", "token")
_MAY_BE_UNSET = {"idle_power_a", "idle_power_b", "skip_steps", "rank"}


@dataclass(frozen=True)
class DiffSettings:
    """What the user decided.

    Attributes:
        per: ``step``, ``sample`` or ``token``: what times are divided by.
        threshold_percent: difference from which a group of regions is a finding; above 0.
        min_share_percent: least difference, in percent of the cheaper side's kernel time, that can be a finding; 0 to 100.
        skip_steps: leading steps left out on each side, at least 0; None judges by time.
        all_steps: leave out no step.
        rank: rank compared on both sides, at least 0; None takes the lowest that both have.
        energy: share out the energy of recordings with a power log.
        min_power_coverage: least share of the device activity's time that power samples must cover, 0 to 1.
        idle_power_a: power of a device of side A at rest, W, taken off every joule; None counts everything.
        idle_power_b: the same of side B.

    Raises:
        UsageError: a setting is not one of those that make sense.
    """

    per: str = "step"
    threshold_percent: float = 10.0
    min_share_percent: float = 0.5
    skip_steps: int | None = None
    all_steps: bool = False
    rank: int | None = None
    energy: bool = True
    min_power_coverage: float = 0.9
    idle_power_a: float | None = None
    idle_power_b: float | None = None

    def __post_init__(self) -> None:
        need_one_of("per", self.per, UNITS)
        self._set("threshold_percent", need_number, above=0.0)
        self._set("min_share_percent", need_number, least=0.0, most=100.0)
        self._set("min_power_coverage", need_number, least=0.0, most=1.0)
        self._set("idle_power_a", need_number, least=0.0)
        self._set("idle_power_b", need_number, least=0.0)
        self._set("skip_steps", need_whole, least=0)
        self._set("rank", need_whole, least=0)
        if self.skip_steps and self.all_steps:
            raise UsageError(
                f"skip_steps is {self.skip_steps} and all_steps is set",
                remedy="give one of them: they exclude each other",
            )

    def _set(self, name: str, check: Callable[..., float], **bounds: float) -> None:
        """Keep a setting as a number of Python (those of NumPy cannot be written as JSON), or refuse it."""
        value = getattr(self, name)
        if value is not None or name not in _MAY_BE_UNSET:
            object.__setattr__(self, name, check(name, value, **bounds))
