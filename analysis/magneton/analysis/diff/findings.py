"""What may be concluded from a difference.

A verdict about waste needs repeated runs and energy with an interval. One recording per side always gives ``inconclusive``,
because the variation between runs is unknown. Two cases give ``not comparable``: the devices differ, or the side that looks
cheaper lacks device records of this work.
"""

from __future__ import annotations

from magneton.schemas.documents.diff import Finding, Group
from magneton.schemas.kinds import Verdict

_UNREPEATED = "one recording per side: the variation between runs is unknown; the verdict is on time, not on energy"


def find(
    groups: list[Group], *, threshold_percent: float, min_share_percent: float, same_run: bool, obstacle: str | None
) -> list[Finding]:
    """Return the groups whose work time differs by the threshold or more, largest difference first.

    Args:
        groups: groups of regions.
        threshold_percent: difference relative to the cheaper side, in percent.
        min_share_percent: least difference relative to the cheaper side's total, in percent.
        same_run: both sides are the same recording, so nothing can differ.
        obstacle: why nothing can be concluded at all, if so.
    """
    if same_run:
        return []
    total = min(
        sum(g.time_ns.a or 0.0 for g in groups) or float("inf"),
        sum(g.time_ns.b or 0.0 for g in groups) or float("inf"),
    )
    found = []
    for group in groups:
        delta = group.time_ns.delta or 0.0
        cheaper = min(group.time_ns.a or 0.0, group.time_ns.b or 0.0)
        if (
            abs(delta) >= threshold_percent / 100.0 * cheaper
            and abs(delta) >= min_share_percent / 100.0 * total
            and delta
        ):
            found.append((abs(delta), group, delta))
    found.sort(key=lambda item: (-item[0], item[1].group_id))
    return [
        Finding(
            finding_id=number,
            group_id=group.group_id,
            verdict=Verdict.INCONCLUSIVE
            if (why := obstacle or _missing(group, delta)) is None
            else Verdict.NOT_COMPARABLE,
            costly_side="b" if delta > 0 else "a",
            delta_ns=delta,
            delta_percent=group.time_ns.delta_percent,
            share_percent=100.0 * size / total,
            reason=why or _UNREPEATED,
        )
        for number, (size, group, delta) in enumerate(found)
    ]


def _missing(group: Group, delta: float) -> str | None:
    """Return why it is unknown which side is cheaper, if the side that looks cheaper lacks device records."""
    cheaper = "a" if delta > 0 else "b"
    if cheaper not in (group.missing_records or "").split():
        return None
    return f"side {cheaper.upper()} launched this work too, but its device records are missing, so this is not a saving"
