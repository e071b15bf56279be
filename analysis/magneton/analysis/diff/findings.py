"""What may be said about a difference from the recordings at hand.

A verdict needs repeated runs and energy with an interval; one recording per side never gives more than
``inconclusive`` (run-to-run variation is unknown), and different devices give ``not comparable``.
"""

from __future__ import annotations

from magneton.schemas.diffdoc import Finding, Group


def find(
    groups: list[Group], *, threshold_percent: float, min_share_percent: float, same_run: bool, obstacle: str | None
) -> list[Finding]:
    """Return the groups whose kernel time differs by the threshold or more, largest difference first.

    Args:
        groups: groups of regions.
        threshold_percent: difference relative to the cheaper side, in percent.
        min_share_percent: least difference relative to the cheaper side's total, in percent.
        same_run: both sides are the same recording: nothing can differ.
        obstacle: why nothing can be concluded at all, if so.
    """
    if same_run:
        return []
    total = min(
        sum(g.kernel_ns.a or 0.0 for g in groups) or float("inf"),
        sum(g.kernel_ns.b or 0.0 for g in groups) or float("inf"),
    )
    found = []
    for group in groups:
        delta = group.kernel_ns.delta or 0.0
        cheaper = min(group.kernel_ns.a or 0.0, group.kernel_ns.b or 0.0)
        if (
            abs(delta) >= threshold_percent / 100.0 * cheaper
            and abs(delta) >= min_share_percent / 100.0 * total
            and delta
        ):
            found.append((abs(delta), group, delta))
    found.sort(key=lambda item: (-item[0], item[1].group_id))
    unrepeated = "one recording per side: the variation between runs is unknown; no energy was measured"
    verdict, reason = ("not comparable", obstacle) if obstacle else ("inconclusive", unrepeated)
    return [
        Finding(
            finding_id=number,
            group_id=group.group_id,
            verdict=verdict,
            costly_side="b" if delta > 0 else "a",
            delta_ns=delta,
            delta_percent=group.kernel_ns.delta_percent,
            share_percent=100.0 * size / total,
            reason=reason,
        )
        for number, (size, group, delta) in enumerate(found)
    ]
