"""Times of single steps: what is shown of them, and whether two sides can be told apart by them.

One step that the operating system interrupted rules a mean. Reports therefore show the median of the steps and the range beside it.
Medians do not add up. What must add up is the mean (``time_ns``), and in every single step the times of all rows.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from magneton.analysis.align.tree import Node
from magneton.schemas.documents.diff import StepTimes

# With fewer steps a range says little: the chance that all of three steps lie on one side of the true median is one in four,
# of five steps one in sixteen.
MIN_STEPS = 5
# The range leaves out this share of the steps at each end: none of fewer than ten.
TRIMMED = 0.1


def per_step(nodes: Iterable[Node]) -> npt.NDArray[np.float64] | None:
    """Return the time of the work (row 0) and of transfers (row 1) of nodes in every step, shape ``(2, steps)``, ns.

    None where there is no node.
    """
    total: npt.NDArray[np.float64] | None = None
    for node in nodes:
        for leaf in node.leaves():
            if leaf.per_step is not None:
                total = leaf.per_step.copy() if total is None else total + leaf.per_step
    return total


def step_times(values: npt.NDArray[np.float64]) -> StepTimes:
    """Return median and range of times, shape ``(steps,)``, ns.

    Example: of five steps the range goes from the shortest to the longest, of twenty from the third shortest to the third longest.
    """
    ordered = np.sort(values)
    cut = int(TRIMMED * len(ordered))
    return StepTimes(len(ordered), float(np.median(ordered)), float(ordered[cut]), float(ordered[-1 - cut]))


def overlap(a: StepTimes | None, b: StepTimes | None) -> bool:
    """Return whether the ranges of both sides have a time in common; a side without the work took no time."""
    low_a, high_a = (a.low_ns, a.high_ns) if a else (0.0, 0.0)
    low_b, high_b = (b.low_ns, b.high_ns) if b else (0.0, 0.0)
    return low_a <= high_b and low_b <= high_a
