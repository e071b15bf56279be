"""What the user decides about a diff."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from magneton.schemas.errors import UsageError
from magneton.schemas.kinds import ASKED_UNITS, Unit


@dataclass(frozen=True)
class DiffSettings:
    """What the user decided.

    Attributes:
        per: ``step``, ``sample`` or ``token``: what times are divided by.
        threshold_percent: difference from which a group of regions is a finding; above 0.
        min_share_percent: least difference, in percent of the cheaper side's work time, that can be a finding; 0 to 100.
        skip_steps: leading steps left out on each side, at least 0; None judges by time.
        all_steps: leave out no step.
        rank: rank compared on both sides, at least 0; None takes the lowest that both have.
        energy: divide the energy of recordings with a power log among their kernels.
        min_power_coverage: least share of the device activity's time that power samples must cover, 0 to 1.
        idle_power_a: power of a device of side A at rest, W. It is subtracted. None: the energy is all that the device drew.
        idle_power_b: the same of side B.

    Raises:
        UsageError: a setting is not one of those that make sense.
    """

    per: str = Unit.STEP
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
        if self.per not in ASKED_UNITS:
            raise UsageError(f"per is {self.per!r}", remedy=f"give one of {', '.join(ASKED_UNITS)}")
        self._need_number("threshold_percent", above=0.0, most=math.inf)
        self._need_number("min_share_percent", least=0.0, most=100.0)
        self._need_number("min_power_coverage", least=0.0, most=1.0)
        for name in ("idle_power_a", "idle_power_b"):
            if getattr(self, name) is not None:
                self._need_number(name, least=0.0, most=math.inf)
        for name in ("skip_steps", "rank"):
            if getattr(self, name) is not None:
                self._need_count(name)
        if self.skip_steps and self.all_steps:
            raise UsageError(
                f"skip_steps is {self.skip_steps} and all_steps is set",
                remedy="give one of them: they exclude each other",
            )

    def _need_number(self, name: str, *, most: float, least: float = -math.inf, above: float = -math.inf) -> None:
        """Keep a setting as a float, or refuse what is no finite number between the bounds."""
        value = getattr(self, name)
        if _is_a(Real, value) and math.isfinite(value) and least <= value <= most and value > above:
            object.__setattr__(self, name, float(value))
            return
        low = f"above {above:g}" if above > -math.inf else f"at least {least:g}"
        high = "finite" if most == math.inf else f"at most {most:g}"
        raise UsageError(f"{name} is {value!r}", remedy=f"give a number, {low} and {high}")

    def _need_count(self, name: str) -> None:
        """Keep a setting as an int, or refuse what is no whole number from 0 on."""
        value = getattr(self, name)
        if not _is_a(Integral, value) or value < 0:
            raise UsageError(f"{name} is {value!r}", remedy="give a whole number, at least 0")
        object.__setattr__(self, name, int(value))


def _is_a(kind: type[Any], value: object) -> bool:
    """Tell whether a value is a number of a kind; truth values are none."""
    return isinstance(value, kind) and not isinstance(value, bool)
