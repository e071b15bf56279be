"""Sums by module, operator and kernel class.

Operators and kernel classes are compared by name. A module of A is compared with the module of B that does most of the same work.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from magneton.analysis.align.tree import Node, Work
from magneton.analysis.diff.regions import RawRegion, amount, class_path, energy_amount
from magneton.schemas.documents.diff import RollupRow

# A side of whose regions this share lies in one module is not divided into modules.
FLAT_SHARE = 0.9
_QUANTITIES: dict[str, Callable[[Work], float | None]] = {
    "time_ns": lambda work: work.known_time_ns,
    "transfer_ns": lambda work: work.transfer_ns,
    "calls": lambda work: work.n_calls,
    "launches": lambda work: work.n_kernels + work.n_transfers,
}


def rollups(regions: list[RawRegion]) -> dict[str, list[RollupRow]]:
    """Return the roll-ups ``module``, ``op`` and ``kernel_class``, largest difference first.

    Every leaf enters each roll-up exactly once, so each adds up to the totals.
    """
    return {"module": _modules(regions), "op": _ops(regions), "kernel_class": _classes(regions)}


_Key = tuple[str | None, str | None]


def _rows(
    sums: dict[_Key, tuple[Work, Work]], seen: dict[object, set[str]], steps: dict[_Key, _Steps]
) -> list[RollupRow]:
    rows = []
    for (name_a, name_b), (a, b) in sums.items():
        sides = seen[(name_a, name_b)]
        medians = [
            steps[(name_a, name_b)].median(side) if side in sides and work.known_time_ns is not None else None
            for side, work in (("a", a), ("b", b))
        ]
        rows.append(
            RollupRow(
                name_a=name_a,
                name_b=name_b,
                **{
                    what: amount(value(a) if "a" in sides else None, value(b) if "b" in sides else None)
                    for what, value in _QUANTITIES.items()
                },
                median_ns=amount(*medians),
                energy_j=energy_amount(a if "a" in sides else None, b if "b" in sides else None),
            )
        )
    rows.sort(key=lambda r: (-_size(r), r.name_a or "", r.name_b or ""))
    return rows


def _size(row: RollupRow) -> float:
    return abs(row.median_ns.delta or 0.0) + abs(row.transfer_ns.delta or 0.0)


class _Steps:
    """Times of one row in the single steps, by side and kind of step."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], npt.NDArray[np.float64]] = {}

    def add(self, side: str, stratum: str, times: npt.NDArray[np.float64]) -> None:
        before = self._times.get((side, stratum))
        self._times[side, stratum] = times if before is None else before + times

    def median(self, side: str) -> float:
        """Return the median over the steps, ns; one step of each kind, if there are several kinds."""
        return sum(float(np.median(times)) for (of, _), times in self._times.items() if of == side)


class _Sums:
    def __init__(self) -> None:
        self.sums: dict[_Key, tuple[Work, Work]] = defaultdict(lambda: (Work(), Work()))
        self.seen: dict[object, set[str]] = defaultdict(set)
        self.steps: dict[_Key, _Steps] = defaultdict(_Steps)

    def add(self, key: _Key, side: str, work: Work, stratum: str, times: npt.NDArray[np.float64] | None = None) -> None:
        self.sums[key][0 if side == "a" else 1].add(work)
        self.seen[key].add(side)
        if times is not None:
            self.steps[key].add(side, stratum, times)

    def rows(self) -> list[RollupRow]:
        return _rows(self.sums, self.seen, self.steps)


def _leaves(regions: Iterable[RawRegion]) -> Iterable[tuple[RawRegion, str, Node, Work]]:
    for region in regions:
        for side, nodes in (("a", region.a), ("b", region.b)):
            for node in nodes:
                yield region, side, node, node.work or Work()


def _ops(regions: list[RawRegion]) -> list[RollupRow]:
    sums = _Sums()
    for region, side, node, work in _leaves(regions):
        sums.add((node.name, node.name), side, work, region.stratum, _times(node))
    return sums.rows()


def _times(node: Node) -> npt.NDArray[np.float64] | None:
    return None if node.per_step is None else node.per_step[0]


def _classes(regions: list[RawRegion]) -> list[RollupRow]:
    sums = _Sums()
    for region, side, node, work in _leaves(regions):
        for name, value in work.class_ns.items():
            sums.add((name, name), side, Work(time_ns=value), region.stratum, node.class_steps.get(name))
        if work.n_transfers:
            part = Work(transfer_ns=work.transfer_ns, n_transfers=work.n_transfers, transfer_bytes=work.transfer_bytes)
            sums.add(("transfer", "transfer"), side, part, region.stratum)
    return sums.rows()


def _modules(regions: list[RawRegion]) -> list[RollupRow]:
    """Sum by module. Each module path of A is shown beside the path of B that does most of the same work."""
    together: dict[tuple[str | None, str | None], float] = defaultdict(float)
    for region in regions:
        if region.a and region.b:
            paths_a = {class_path(n.module) for n in region.a}
            paths_b = {class_path(n.module) for n in region.b}
            weight = (region.work_a.device_ns if region.work_a else 0) + (
                region.work_b.device_ns if region.work_b else 0
            )
            for a in paths_a:
                for b in paths_b:
                    together[(a, b)] += weight / (len(paths_a) * len(paths_b))
    # Pairs with most common work first. Every path is used once, so that the rows of each side add up.
    partner_a: dict[str | None, str | None] = {}
    partner_b: dict[str | None, str | None] = {}
    for (a, b), _ in sorted(together.items(), key=lambda item: (-item[1], item[0][0] or "", item[0][1] or "")):
        if a not in partner_a and b not in partner_b:
            partner_a[a], partner_b[b] = b, a
    flat = _flat_side(regions)
    sums = _Sums()
    for region, side, node, work in _leaves(regions):
        path = class_path(node.module)
        if flat is not None and flat[0] == "b":
            # All of B is one module, or none: its time stands beside the module of A that does the same work.
            key = (path, flat[1]) if side == "a" else (_main_path(region.a), path)
        elif flat is not None:
            key = (flat[1], path) if side == "b" else (path, _main_path(region.b))
        else:
            key = (path, partner_a.get(path)) if side == "a" else (partner_b.get(path), path)
        sums.add(key, side, work, region.stratum, _times(node))
    return sums.rows()


def _flat_side(regions: list[RawRegion]) -> tuple[str, str | None] | None:
    """Return the side that is all one module, and this module, where the other side is divided into several.

    Example: compiled code has no modules, or only the one that was compiled. The module is None where it has none.
    """
    paired = [region for region in regions if region.a and region.b]
    most: list[tuple[str | None, float]] = []
    for nodes in ([r.a for r in paired], [r.b for r in paired]):
        counted = Counter(_main_path(found) for found in nodes)
        path, number = min(counted.items(), key=lambda item: (-item[1], item[0] or ""), default=(None, 0))
        most.append((path, number / max(len(paired), 1)))
    flat = [share >= FLAT_SHARE for _, share in most]
    return None if flat[0] == flat[1] else ("a", most[0][0]) if flat[0] else ("b", most[1][0])


def _main_path(nodes: list[Node]) -> str | None:
    """Return the module path in which some operators spend most time, None where they have none."""
    time: dict[str | None, float] = defaultdict(float)
    for node in nodes:
        time[class_path(node.module)] += node.device_ns
    return max(sorted(time, key=lambda path: path or ""), key=lambda path: time[path]) if time else None
