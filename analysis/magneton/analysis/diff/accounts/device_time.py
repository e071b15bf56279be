"""What becomes of all device time of a side: compared, or left out with a reason.

``kernels + copies + left out = all device time`` to the nanosecond. What belongs to no step cannot be compared, but it is device time that was
spent: it counts in the headline and in the share that is aligned.
"""

from __future__ import annotations

from dataclasses import dataclass

from magneton.analysis.align.steps import Choice
from magneton.analysis.align.tree import Work
from magneton.analysis.align.work import Side, Step, total_work
from magneton.analysis.device.left_out import LeftOut
from magneton.schemas.documents.diff import DeviceTimeDoc, LeftOutDoc
from magneton.schemas.kinds import Reason


@dataclass(frozen=True)
class Unplaced:
    """Device time of one side that belongs to no step, per unit of the comparison, ns."""

    kernel_ns: float = 0.0
    transfer_ns: float = 0.0

    @property
    def time_ns(self) -> float:
        """Kernels, copies and memsets together."""
        return self.kernel_ns + self.transfer_ns


def unplaced(side: Side, choice: Choice, n_usable: int, unit: float) -> Unplaced:
    """Return the device time that belongs to no step, as an equal share for each step.

    Args:
        side: the side.
        choice: steps that are compared; the totals hold one step of each stratum.
        n_usable: number of its steps that could have been compared.
        unit: samples or tokens of one step.
    """
    if not side.on_device:
        return Unplaced()
    # A step whose own records are lost is a step all the same.
    part = len(choice.strata) / (max(n_usable, len(side.steps)) * unit)
    found = [one for reason, one in side.left_out.items() if reason != Reason.OTHER_STEPS]
    return Unplaced(part * sum(one.kernel_ns for one in found), part * sum(one.transfer_ns for one in found))


def device_time(side: Side, used: list[Step]) -> DeviceTimeDoc | None:
    """Return what becomes of all device time of a side; None on a CPU.

    Args:
        side: the side.
        used: its steps that are compared.
    """
    if not side.on_device:
        return None
    compared = _sum(used)
    recorded = _sum(side.steps)
    others = LeftOut()
    others.n_activities = recorded.n_kernels + recorded.n_transfers - compared.n_kernels - compared.n_transfers
    others.kernel_ns = recorded.time_ns - compared.time_ns
    others.transfer_ns = recorded.transfer_ns - compared.transfer_ns
    left = {**side.left_out, Reason.OTHER_STEPS: others}
    return DeviceTimeDoc(
        device_ns=side.inventory.device_ns,
        kernels_ns=compared.time_ns,
        copies_ns=compared.transfer_ns,
        left_out=[
            LeftOutDoc(str(reason), round(one.n_activities), one.time_ns, one.kernel_ns, one.names() or None)
            for reason, one in left.items()
            if one.n_activities
        ],
    )


def _sum(steps: list[Step]) -> Work:
    total = Work()
    for step in steps:
        total.add(total_work([step.tree]))
    return total
