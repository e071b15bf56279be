"""What may be concluded from a difference.

A verdict about waste needs repeated runs and energy with an interval. One recording per side always gives ``inconclusive``,
because the variation between runs is unknown. Two cases give ``not comparable``: the devices differ, or the side that looks
cheaper lacks device records of this work.

A difference between comparable sides is no finding at all, however large, in four cases. A side has fewer than five steps, so that
nothing is known of the variation between steps. The times of single steps overlap. The work is collective communication, whose time
holds the waiting for other ranks. Both sides run the same operators on a processor: of two recordings of one program on a busy machine, one was
half as slow again as the other, in every step. How many groups are held back for each reason is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magneton.analysis.diff.spread import MIN_STEPS
from magneton.schemas.documents.diff import Finding, Group, Note
from magneton.schemas.kinds import KernelClass, Verdict

_UNREPEATED = "one recording per side: the variation between runs is unknown; the verdict is on time, not on energy"

_COMMUNICATION = {KernelClass.COLLECTIVE, KernelClass.COLLECTIVE_WAIT}


@dataclass(frozen=True)
class Gate:
    """What a difference must pass to be a finding.

    Attributes:
        threshold_percent: least difference relative to the cheaper side, in percent.
        min_share_percent: least difference relative to the cheaper side's total, in percent.
        total_ns: median work time of a step of the cheaper side.
        n_steps: number of steps of A and of B by kind of step.
        on_device: the times are of a device, not of a processor.
    """

    threshold_percent: float
    min_share_percent: float
    total_ns: float
    n_steps: Mapping[str, tuple[int, int]]
    on_device: bool

    def open_to(self, group: Group) -> bool:
        """Return whether a group's difference is large enough."""
        delta = abs(group.median_ns.delta or 0.0)
        cheaper = min(group.median_ns.a or 0.0, group.median_ns.b or 0.0)
        enough = delta >= self.threshold_percent / 100.0 * cheaper
        return delta > 0 and enough and delta >= self.min_share_percent / 100.0 * self.total_ns

    def held_back(self, group: Group) -> str | None:
        """Return the code of the reason why a large difference is no finding, None if it is one."""
        if min(self.n_steps[group.stratum]) < MIN_STEPS:
            return "too_few_steps"
        if _COMMUNICATION & {group.kernel_class_a, group.kernel_class_b}:
            return "collective_time"
        if group.overlap:
            return "steps_overlap"
        same_work = group.ops_a == group.ops_b and group.shapes_a == group.shapes_b
        return "equal_operators" if same_work and not self.on_device else None


def find(groups: list[Group], gate: Gate, *, same_run: bool, obstacle: str | None) -> tuple[list[Finding], list[Note]]:
    """Return the groups whose work time differs, largest difference first, and what is said of those held back.

    Args:
        groups: groups of regions.
        gate: what a difference must pass.
        same_run: both sides are the same recording, so nothing can differ.
        obstacle: why nothing can be concluded at all, if so.
    """
    if same_run:
        return [], []
    large = [group for group in groups if gate.open_to(group)]
    large.sort(key=lambda group: (-abs(group.median_ns.delta or 0.0), group.group_id))
    held: dict[str, int] = {}
    found: list[Finding] = []
    for group in large:
        delta = group.median_ns.delta or 0.0
        why = obstacle or _missing(group, delta)
        reason = None if why else gate.held_back(group)
        if reason is not None:
            held[reason] = held.get(reason, 0) + 1
            continue
        found.append(
            Finding(
                finding_id=len(found),
                group_id=group.group_id,
                verdict=Verdict.INCONCLUSIVE if why is None else Verdict.NOT_COMPARABLE,
                costly_side="b" if delta > 0 else "a",
                delta_ns=delta,
                delta_percent=group.median_ns.delta_percent,
                share_percent=100.0 * abs(delta) / gate.total_ns,
                reason=why or _UNREPEATED,
            )
        )
    return found, [Note(code, _text(code, count, gate)) for code, count in held.items()]


def _text(code: str, count: int, gate: Gate) -> str:
    what = "1 group differs" if count == 1 else f"{count} groups differ"
    that = "it is no finding" if count == 1 else "they are no findings"
    if code == "too_few_steps":
        fewest = min(gate.n_steps.values(), key=min)
        steps = " and ".join(f"{number} of {side}" for number, side in zip(fewest, "AB", strict=True))
        return f"{what} by that much, but {that}: at least {MIN_STEPS} steps a side are needed, and there are {steps}; record more steps"
    if code == "collective_time":
        return (
            f"{what} by that much, but {that}: the time of collective communication holds the waiting for other ranks"
        )
    if code == "equal_operators":
        why = "both sides run the same operators on a processor, whose speed differs from one recording to the next by more than that"
        return f"{what} by that much, but {that}: {why}; see whether the difference comes again in other recordings"
    return f"{what} by that much, but {that}: times of single steps overlap"


def _missing(group: Group, delta: float) -> str | None:
    """Return why it is unknown which side is cheaper, if the side that looks cheaper lacks device records."""
    cheaper = "a" if delta > 0 else "b"
    if cheaper not in (group.missing_records or "").split():
        return None
    return f"side {cheaper.upper()} launched this work too, but its device records are missing, so this is not a saving"
