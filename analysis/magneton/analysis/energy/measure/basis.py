"""What an energy counts: all the device drew (``gross``), or what it drew above its power at rest (``dynamic``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from magneton.analysis.energy.measure.result import EnergyResult
from magneton.schemas.errors import NotComparableError
from magneton.schemas.kinds import EnergyBasis, Flag


def dynamic(result: EnergyResult, idle_w: float) -> EnergyResult:
    """Return the energy above rest, with the basis ``dynamic``.

    It is negative, with a warning, if the device drew less than at rest.

    Args:
        result: gross energy over a window.
        idle_w: power at rest, W, from a window in which the device rested. The least power under load is not the power at rest.

    Raises:
        NotComparableError: the energy is not gross.
    """
    if result.basis != EnergyBasis.GROSS:
        raise NotComparableError(f"power at rest was already taken from an energy of basis {result.basis}")
    rest = idle_w * (result.covered_s or 0.0)
    value = None if result.value_j is None else result.value_j - rest
    lower = None if result.lower_bound_j is None else result.lower_bound_j - rest
    found = replace(result, value_j=value, lower_bound_j=lower, bridged_j=None, basis=EnergyBasis.DYNAMIC)
    return found.with_warnings([Flag.BELOW_IDLE_BASELINE]) if value is not None and value < 0 else found


class Based(Protocol):
    """An energy with a basis: ``gross`` or ``dynamic``."""

    @property
    def basis(self) -> str: ...  # noqa: D102


def need_same_basis(a: Based, b: Based) -> None:
    """Refuse to compare an energy above rest with one that counts everything.

    Raises:
        NotComparableError: the bases differ.
    """
    if a.basis != b.basis:
        raise NotComparableError(
            f"the energy of side A is {a.basis} and that of side B {b.basis}",
            remedy="take the power at rest off on both sides or on neither",
        )
