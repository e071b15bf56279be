"""What the user decides about a diff."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DiffSettings:
    """What the user decided.

    Attributes:
        per: ``step``, ``sample`` or ``token``: what times are divided by.
        threshold_percent: difference from which a group of regions is a finding.
        min_share_percent: least difference, in percent of the cheaper side's kernel time, that can be a finding.
        skip_steps: leading steps left out on each side; None judges by time.
        all_steps: leave out no step.
        rank: rank compared on both sides; None takes the lowest that both have.
        energy: share out the energy of recordings with a power log.
        min_power_coverage: least share of the device activity's time that power samples must cover.
        idle_power_a: power of a device of side A at rest, W, taken off every joule; None counts everything.
        idle_power_b: the same of side B.
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
