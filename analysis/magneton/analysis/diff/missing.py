"""Regions in which device records of a side are missing.

The time of that side is a lower bound there. A side that looks cheaper need not be cheaper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from magneton.analysis.align.tree import Node
from magneton.analysis.align.work import Side, Step
from magneton.analysis.diff.regions import RawRegion, class_path
from magneton.schemas.kinds import RegionKind

# If a larger share of a side's kernel launches has no record, the two sides are not compared.
MAX_LOST = 0.1
_NAMES_SHOWN = 5


@dataclass(frozen=True)
class Missing:
    """Kernel launches of one side without a device record of their time, in the steps that are compared."""

    n_lost: int
    n_launches: int
    names: tuple[str, ...]

    @property
    def share(self) -> float:
        """Share of the launches, 0 to 1."""
        return min(self.n_lost / self.n_launches, 1.0) if self.n_launches else 1.0

    def describe(self) -> str:
        """Return one clause with the numbers and the operators that lost most records."""
        more = len(self.names) - _NAMES_SHOWN
        names = ", ".join(self.names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
        count = f"{self.n_lost} of {self.n_launches} kernel launches have no device record with a time"
        return f"{count} ({names})" if names else count


def find_missing(side: Side, steps: list[Step]) -> Missing | None:
    """Return what is missing of a side in the steps that are compared, None where nothing is."""
    names: Counter[str] = Counter()
    for step in steps:
        for leaf in step.tree.leaves():
            if leaf.work and leaf.work.n_lost:
                names[leaf.name] += round(leaf.work.n_lost)
    marked = all(step.row for step in steps)
    n_lost, n_launches = side.lost.in_steps([s.row["step_id"] for s in steps if s.row] if marked else None)
    # The trees count records without a length; the launches count kernels without any record.
    n_lost = max(n_lost, names.total())
    if not n_lost:
        return None
    return Missing(n_lost, n_launches, tuple(sorted(names, key=lambda name: (-names[name], name))))


def mark_missing(regions: Iterable[RawRegion]) -> None:
    """Mark the regions in which device records of a side are missing.

    A region is marked if it holds such work. Such work may also have no partner. Then regions of the other side alone are marked
    too, if they hold operators of the same name in the same kind of module.
    """
    alone: dict[str, set[tuple[str, str | None]]] = {"a": set(), "b": set()}
    for region in regions:
        works = {"a": region.work_a, "b": region.work_b}
        region.missing = tuple(side for side, work in works.items() if work and work.n_lost)
        if region.kind != RegionKind.PAIRED:
            for side in region.missing:
                alone[side].update(_key(leaf) for leaf in (*region.a, *region.b) if leaf.work and leaf.work.n_lost)
    for region in regions:
        for side, other in (("a", region.b), ("b", region.a)):
            if region.kind == f"only_{'b' if side == 'a' else 'a'}" and alone[side] & {_key(leaf) for leaf in other}:
                region.missing = tuple(sorted({*region.missing, side}))


def _key(leaf: Node) -> tuple[str, str | None]:
    return leaf.name, class_path(leaf.module)
