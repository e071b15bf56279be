"""One stratum of a diff: its steps averaged on each side, aligned, and summed up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from statistics import mean, median, stdev

from magneton.analysis.align.average import Average, average_steps
from magneton.analysis.align.comparable import Scale
from magneton.analysis.align.matcher import Correspondence
from magneton.analysis.align.steps import Stratum
from magneton.analysis.align.symmetric import match_symmetric
from magneton.analysis.align.tree import Interner, Node, Work
from magneton.analysis.align.work import total_work
from magneton.analysis.diff.regions import amount, energy_amount
from magneton.schemas.documents.diff import Amount, Spread


@dataclass
class Aligned:
    """One stratum aligned: averages per side (in the user's order) and correspondences."""

    name: str
    a: Average
    b: Average
    found: list[Correspondence]


def align(stratum: Stratum, units: tuple[float, float], scale: Scale | None, intern: Interner) -> Aligned:
    """Average the steps of a stratum on each side and align the two means by structure.

    Args:
        stratum: steps of both sides.
        units: samples or tokens of one step of A and of B, by which times are divided (1 each for steps).
        scale: factor between the work of the sides, None where it is the same.
        intern: numbering of structures shared by the sides.
    """
    average_a = average_steps(stratum.a, intern, units[0])
    average_b = average_steps(stratum.b, intern, units[1])
    factor = scale.factor if scale else Fraction(1)
    return Aligned(stratum.name, average_a, average_b, match_symmetric(average_a.tree, average_b.tree, factor))


def work_time_ns(tree: Node) -> float:
    """Return the time of the work in a tree, ns: of kernels, or on a CPU of the operators that compute."""
    return total_work([tree]).time_ns


def totals(aligned: list[Aligned]) -> dict[str, Amount]:
    """Return the totals per unit, summed over the strata (one step of each)."""
    a, b = Work(), Work()
    for part in aligned:
        a.add(total_work([part.a.tree]))
        b.add(total_work([part.b.tree]))
    return {
        "time_ns": amount(a.time_ns, b.time_ns),
        "median_ns": amount(_median_ns([p.a for p in aligned]), _median_ns([p.b for p in aligned])),
        "share_ns": amount(a.share_ns, b.share_ns),
        "transfer_ns": amount(a.transfer_ns, b.transfer_ns),
        "transfer_bytes": amount(a.transfer_bytes, b.transfer_bytes),
        "kernels": amount(a.n_kernels, b.n_kernels),
        "transfers": amount(a.n_transfers, b.n_transfers),
        "ops": amount(a.n_calls, b.n_calls),
        "energy_j": energy_amount(a, b),
        "host_ns": amount(_host_ns([p.a for p in aligned], mean), _host_ns([p.b for p in aligned], mean)),
        "median_host_ns": amount(_host_ns([p.a for p in aligned], median), _host_ns([p.b for p in aligned], median)),
    }


def _median_ns(averages: list[Average]) -> float:
    """Return the median work time of a step, ns; one step of each kind, if there are several kinds."""
    return sum(median(average.step_time_ns) for average in averages)


def _host_ns(averages: list[Average], middle: Callable[[list[float]], float]) -> float | None:
    if not all(average.step_host_ns for average in averages):
        return None
    return sum(middle(average.step_host_ns) for average in averages)


def spread(averages: list[Average]) -> Spread:
    """Return how the work time of a side's steps spreads, over all strata."""
    values = [v for average in averages for v in average.step_time_ns]
    # Strata differ by design, so the variation is only that of a single one.
    cv = None
    if len(averages) == 1 and len(values) > 1 and mean(values):
        cv = 100.0 * stdev(values) / mean(values)
    return Spread(len(values), mean(values), median(values), cv)
