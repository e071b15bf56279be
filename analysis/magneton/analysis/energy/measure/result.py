"""An energy over a window: a number or None, how much of the window it covers, and its provenance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from magneton.schemas.errors import InsufficientPowerDataError, NotComparableError
from magneton.schemas.kinds import EnergyBasis, EnergyLabel

# Weakest last; a sum inherits the weakest label of its parts.
LABELS: tuple[str, ...] = tuple(EnergyLabel)


@dataclass(frozen=True)
class Window:
    """A stretch of time ``[start_ns, end_ns)`` in ns, on the time line of the samples."""

    start_ns: int
    end_ns: int

    def __post_init__(self) -> None:
        if self.end_ns < self.start_ns:
            raise ValueError("a window must not end before it starts")

    @property
    def length_ns(self) -> int:
        """Length in ns."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Provenance:
    """Where an energy comes from.

    Attributes:
        label: one of ``LABELS``.
        source: who read the sensor.
        name: what the source calls the reading.
        device_kind: kind of the device.
        device_id: id of the device as the sensor names it.
        field: the reading used; fields are never mixed.
        fields_not_used: other readings of the device that could have given an energy.
    """

    label: str = EnergyLabel.MEASURED
    source: str | None = None
    name: str | None = None
    device_kind: str | None = None
    device_id: str | None = None
    field: str | None = None
    fields_not_used: tuple[str, ...] = ()


@dataclass(frozen=True)
class EnergyResult:
    """Energy over one window.

    Attributes:
        value_j: energy of the covered part, J; None when nothing is covered (never 0 for "unknown").
        lower_bound_j: the energy is at least this; equals ``value_j`` unless a counter reset or may have wrapped.
        bridged_j: an estimate with the gaps between samples bridged by straight lines. It is never called measured.
        window_s: length of the window, s; None for a difference between two snapshots without times.
        covered_s: how much of it is measured, s.
        gaps: the parts that are not, as (start ns, end ns).
        n_samples_inside: samples within the window, its edges included.
        max_gap_s: longest interval between samples that was bridged, s; None for counters.
        cadence_s: median interval between samples over the whole series, s.
        min_window_for_trust_s: shortest window, s, for which this sensor field is good.
        n_resets: counter resets inside the window.
        n_wraps: counter wraps inside the window that were undone.
        warnings: codes of ``schemas.codes.WARNING_CODES``, sorted.
        provenance: where the number comes from.
        basis: ``gross`` (all the device drew) or ``dynamic`` (above its power at rest).
    """

    value_j: float | None
    window_s: float | None
    covered_s: float | None
    lower_bound_j: float | None = None
    bridged_j: float | None = None
    gaps: tuple[tuple[int, int], ...] = ()
    n_samples_inside: int = 0
    max_gap_s: float | None = None
    cadence_s: float | None = None
    min_window_for_trust_s: float | None = None
    n_resets: int = 0
    n_wraps: int = 0
    warnings: tuple[str, ...] = ()
    provenance: Provenance = field(default_factory=Provenance)
    basis: str = EnergyBasis.GROSS

    @property
    def coverage(self) -> float | None:
        """Covered share of the window, 0 to 1; None where the window has no length."""
        if not self.window_s or self.covered_s is None:
            return None
        return self.covered_s / self.window_s

    @property
    def partial(self) -> bool:
        """Whether part of the window is not measured."""
        return bool(self.gaps)

    def with_warnings(self, codes: Iterable[str]) -> EnergyResult:
        """Return the result with more warnings."""
        return replace(self, warnings=tuple(sorted({*self.warnings, *codes})))


def need_coverage(result: EnergyResult, minimum: float = 0.9, what: str = "the window") -> float:
    """Return the energy, or refuse it.

    Args:
        result: energy over a window.
        minimum: least share of the window that must be measured.
        what: what the window is, for the message.

    Raises:
        InsufficientPowerDataError: nothing is measured, or less than ``minimum`` of the window.
    """
    share = result.coverage
    if result.value_j is None or (share is not None and share < minimum):
        known = 0.0 if share is None or result.value_j is None else share
        raise InsufficientPowerDataError(
            f"power samples cover {known:.1%} of {what}, and {minimum:.0%} is needed",
            remedy="record power over the whole window, or accept less: magneton diff --min-power-coverage",
        )
    return result.value_j


def need_same_field(a: EnergyResult, b: EnergyResult) -> None:
    """Refuse to compare energies from different sensor fields. The errors of two fields differ by more than most differences.

    Raises:
        NotComparableError: the fields differ.
    """
    if a.provenance.field != b.provenance.field:
        raise NotComparableError(
            f"one energy comes from {a.provenance.field} and the other from {b.provenance.field}",
            remedy="record both with the same sensor field",
        )


def sum_results(results: Iterable[EnergyResult]) -> EnergyResult:
    """Return the energy of several devices over the same window.

    If one energy is unknown, the sum is unknown, and the known part is its lower bound. The label is the weakest of all.

    Raises:
        ValueError: there is nothing to sum, or the windows differ in length or the basis.
    """
    parts = list(results)
    if not parts:
        raise ValueError("nothing to sum")
    if len({p.basis for p in parts}) > 1:
        raise ValueError("gross and dynamic energies do not add up")
    if len({p.window_s for p in parts}) > 1:
        raise ValueError("energies over windows of different length do not add up")
    values = [p.value_j for p in parts]
    bounds = [p.lower_bound_j for p in parts if p.lower_bound_j is not None]
    covered = [p.covered_s for p in parts if p.covered_s is not None]
    label = max((p.provenance.label for p in parts), key=LABELS.index)
    fields = {p.provenance.field for p in parts}
    codes = {code for p in parts for code in p.warnings} | ({"sensor_field_mismatch"} if len(fields) > 1 else set())
    return EnergyResult(
        value_j=None if any(v is None for v in values) else sum(v for v in values if v is not None),
        window_s=parts[0].window_s,
        covered_s=min(covered) if len(covered) == len(parts) else None,
        lower_bound_j=sum(bounds) if bounds else None,
        gaps=tuple(sorted({gap for p in parts for gap in p.gaps})),
        n_samples_inside=min(p.n_samples_inside for p in parts),
        warnings=tuple(sorted(codes)),
        provenance=Provenance(label=label, field=fields.pop() if len(fields) == 1 else None),
        basis=parts[0].basis,
    )
