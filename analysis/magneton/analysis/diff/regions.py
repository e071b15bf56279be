"""From correspondences to regions with times on both sides, and groups of the same region in every layer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from magneton.analysis.align.matcher import Correspondence
from magneton.analysis.align.tree import Node, Shape, Work
from magneton.analysis.align.work import total_work
from magneton.analysis.diff.spread import overlap, per_step, step_times
from magneton.schemas.documents.diff import Amount, Group, Region, StepTimes
from magneton.schemas.kinds import Evidence, RegionKind, in_order

# A pair with more than this share of a side's time and several operators on both sides is coarse: it does not count as aligned.
MAX_ALIGNED_SHARE = 0.10
# A pair by value is right whatever its size. With at most this many operators on one side it also says where the time goes: in a model
# of ten operators, three are more than a tenth of the time.
MAX_ALIGNED_CALLS = 8
_MAX_OP_NAMES = 6
_MAX_SHAPES = 3
_INSTANCE = re.compile(r"_\d+(?=/|$)")


@dataclass(slots=True)
class RawRegion:
    """A correspondence with its summed work per side; ``work_a`` is None where side A has nothing.

    ``steps_a`` and ``steps_b`` are the times of its work and transfers in every step, shape ``(2, steps)``, ns.
    ``missing`` are the sides (``a``, ``b``) that launched work here whose device records are not in the recording.
    """

    stratum: str
    a: list[Node]
    b: list[Node]
    work_a: Work | None
    work_b: Work | None
    score: float | None
    evidence: tuple[str, ...]
    coarse: bool = False
    missing: tuple[str, ...] = ()
    steps_a: npt.NDArray[np.float64] | None = None
    steps_b: npt.NDArray[np.float64] | None = None

    @property
    def of_host(self) -> bool:
        """Time of the host without an operator."""
        return (self.a or self.b)[0].kind == "host"

    @property
    def kind(self) -> str:
        """``paired``, ``only_a`` or ``only_b``."""
        return RegionKind.PAIRED if self.a and self.b else RegionKind.ONLY_A if self.a else RegionKind.ONLY_B


def amount(a: float | None, b: float | None) -> Amount:
    """Return both values with difference and percentage. In the difference, a missing side counts as 0."""
    if a is None and b is None:
        return Amount(None, None)
    delta = (b or 0.0) - (a or 0.0)
    return Amount(a, b, delta, 100.0 * delta / a if a else None)


def energy_amount(a: Work | None, b: Work | None) -> Amount:
    """Return the energies of both sides. The difference is known if both energies are, or if one side does not do the work."""
    left, right = (None if work is None else work.known_energy_j for work in (a, b))
    if (a is not None and left is None) or (b is not None and right is None):
        return Amount(left, right)
    return amount(left, right)


def class_path(path: str | None) -> str | None:
    """Return a module path without instance numbers: ``GPT2Model/GPT2Block/LayerNorm``."""
    return None if path is None else _INSTANCE.sub("", path)


def ops_text(nodes: list[Node]) -> str | None:
    """Return operator names with counts, most time first: ``aten::mm x3 + aten::copy_``."""
    if not nodes:
        return None
    count: Counter[str] = Counter()
    time: Counter[str] = Counter()
    for node in nodes:
        count[node.token] += 1
        time[node.token] += node.work.device_ns if node.work else 0.0  # type: ignore[assignment]
    names = sorted(count, key=lambda n: (-time[n], n))
    parts = [name if count[name] == 1 else f"{name} x{count[name]}" for name in names[:_MAX_OP_NAMES]]
    if len(names) > _MAX_OP_NAMES:
        parts.append(f"{len(names) - _MAX_OP_NAMES} more")
    return " + ".join(parts)


def common_module(nodes: list[Node]) -> str | None:
    """Return the innermost module path that contains all nodes, None where there is none."""
    paths = [node.module.split("/") if node.module else [] for node in nodes]
    if not paths:
        return None
    shared: list[str] = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "/".join(shared) or None


def build(correspondences: list[Correspondence], stratum: str, time_a: float, time_b: float) -> list[RawRegion]:
    """Sum the work of each correspondence and mark pairs too coarse to count as aligned.

    Args:
        correspondences: every leaf of both averaged trees exactly once.
        stratum: name of the kind of step.
        time_a: work time of side A per unit, ns, over all strata.
        time_b: the same of side B.
    """
    regions = []
    for found in correspondences:
        work_a, work_b = _total(found.a), _total(found.b)
        region = RawRegion(stratum, found.a, found.b, work_a, work_b, found.score, tuple(in_order(found.evidence)))
        region.coarse = is_coarse(found, time_a, time_b)
        region.steps_a, region.steps_b = per_step(found.a), per_step(found.b)
        regions.append(region)
    regions.sort(key=_order)
    return regions


def is_coarse(found: Correspondence, time_a: float, time_b: float) -> bool:
    """Tell whether a pair holds too much of a side's time, and too many operators on both, to say where the time goes.

    Args:
        found: the pair; one side alone is never coarse.
        time_a: work time of side A, ns.
        time_b: the same of side B.
    """
    work_a, work_b = _total(found.a), _total(found.b)
    leaves = len(found.a), len(found.b)
    most = MAX_ALIGNED_CALLS if Evidence.VALUES in found.evidence else 1
    if work_a is None or work_b is None or min(*leaves, *(found.calls or leaves)) <= most:
        return False
    return work_a.time_ns > MAX_ALIGNED_SHARE * time_a or work_b.time_ns > MAX_ALIGNED_SHARE * time_b


def _total(nodes: list[Node]) -> Work | None:
    return total_work(nodes) if nodes else None


def _order(region: RawRegion) -> tuple[tuple[int, int], int, str]:
    first = min(node.order for node in (region.a or region.b))
    return first, 0 if region.a else 1, region.kind


def top_class(work: Work | None) -> str | None:
    """Return the kernel class with most time."""
    if work is None or not work.class_ns:
        return None
    return max(sorted(work.class_ns), key=lambda name: work.class_ns[name])


def region_docs(regions: list[RawRegion]) -> tuple[list[Region], list[Group]]:
    """Number the regions in order of execution and group those that are the same operators in every layer."""
    keys: dict[tuple[object, ...], int] = {}
    members: list[list[int]] = []
    docs: list[Region] = []
    for number, raw in enumerate(regions):
        module_a, module_b = common_module(raw.a), common_module(raw.b)
        ops_a, ops_b = ops_text(raw.a), ops_text(raw.b)
        names = (_calls_key(raw.a), _calls_key(raw.b))
        key = (raw.stratum, raw.kind, class_path(module_a), class_path(module_b), names)
        group = keys.setdefault(key, len(keys))
        if group == len(members):
            members.append([])
        members[group].append(number)
        docs.append(_region(number, group, raw, module_a, module_b, ops_a, ops_b))
    return docs, [_group(index, ids, regions, docs) for index, ids in enumerate(members)]


def _calls_key(nodes: list[Node]) -> tuple[tuple[tuple[str, Shape | None], int], ...]:
    """Return which operators run on which shapes how often: what regions of one group have in common."""
    return tuple(sorted(Counter((n.token, n.shapes) for n in nodes).items(), key=repr))


def kernels_text(nodes: list[Node]) -> str | None:
    """Return kernel names with counts, most time first: ``ampere_sgemm x3 + vectorized_elementwise_kernel``."""
    found: dict[str, tuple[int, float]] = {}
    for node in nodes:
        for name, (number, time) in node.kernels.items():
            before, so_far = found.get(name, (0, 0.0))
            found[name] = before + number, so_far + time
    names = sorted(found, key=lambda n: (-found[n][1], n))
    parts = [name if found[name][0] == 1 else f"{name} x{found[name][0]}" for name in names[:_MAX_OP_NAMES]]
    if len(names) > _MAX_OP_NAMES:
        parts.append(f"{len(names) - _MAX_OP_NAMES} more")
    return " + ".join(parts) or None


def shapes_text(nodes: list[Node]) -> str | None:
    """Return the input shapes of the operators with most time: ``[4, 128, 768] [768, 768]``, operators apart by `` | ``."""
    known: dict[tuple[str, Shape], float] = {}
    for node in nodes:
        if node.shapes:
            key = (node.token, node.shapes)
            known[key] = known.get(key, 0.0) + (node.work.device_ns if node.work else 0.0)
    most = sorted(known, key=lambda k: (-known[k], k))[:_MAX_SHAPES]
    return " | ".join(" ".join(str(list(shape)) for shape in shapes) for _, shapes in most) or None


def _median(values: npt.NDArray[np.float64] | None, work: Work | None) -> StepTimes | None:
    """Return the times of a region's or group's work in the single steps; None where its time is unknown or nothing ran."""
    return None if values is None or work is None or work.known_time_ns is None else step_times(values[0])


def _region(
    number: int,
    group: int,
    raw: RawRegion,
    module_a: str | None,
    module_b: str | None,
    ops_a: str | None,
    ops_b: str | None,
) -> Region:
    a, b = raw.work_a, raw.work_b
    steps_a, steps_b = _median(raw.steps_a, a), _median(raw.steps_b, b)
    where = module_a or module_b
    what = ops_a if ops_a == ops_b or not ops_b else ops_b if not ops_a else f"{ops_a} | {ops_b}"
    return Region(
        region_id=number,
        group_id=group,
        kind=raw.kind,
        stratum=raw.stratum,
        label=f"{where}: {what}" if where else str(what),
        module_a=module_a,
        module_b=module_b,
        ops_a=ops_a,
        ops_b=ops_b,
        n_ops_a=a.n_calls if a else None,
        n_ops_b=b.n_calls if b else None,
        n_kernels_a=a.n_kernels if a else None,
        n_kernels_b=b.n_kernels if b else None,
        time_ns_a=a.known_time_ns if a else None,
        time_ns_b=b.known_time_ns if b else None,
        share_ns_a=a.share_ns if a else None,
        share_ns_b=b.share_ns if b else None,
        transfer_ns_a=a.transfer_ns if a else None,
        transfer_ns_b=b.transfer_ns if b else None,
        bytes_a=a.transfer_bytes if a else None,
        bytes_b=b.transfer_bytes if b else None,
        launches_a=a.n_kernels + a.n_transfers if a else None,
        launches_b=b.n_kernels + b.n_transfers if b else None,
        kernel_class_a=top_class(a),
        kernel_class_b=top_class(b),
        delta_ns=(b.time_ns if b else 0.0) - (a.time_ns if a else 0.0),
        evidence=" ".join(raw.evidence) or None,
        score=raw.score,
        coarse=raw.coarse,
        missing_records=_sides(raw.missing),
        median_ns_a=steps_a.median_ns if steps_a else None,
        median_ns_b=steps_b.median_ns if steps_b else None,
        low_ns_a=steps_a.low_ns if steps_a else None,
        low_ns_b=steps_b.low_ns if steps_b else None,
        high_ns_a=steps_a.high_ns if steps_a else None,
        high_ns_b=steps_b.high_ns if steps_b else None,
        kernels_a=kernels_text(raw.a),
        kernels_b=kernels_text(raw.b),
        shapes_a=shapes_text(raw.a),
        shapes_b=shapes_text(raw.b),
        energy_j_a=a.known_energy_j if a else None,
        energy_j_b=b.known_energy_j if b else None,
        energy_low_j_a=a.energy_low_j if a and a.known_energy_j is not None else None,
        energy_low_j_b=b.energy_low_j if b and b.known_energy_j is not None else None,
        energy_high_j_a=a.most_energy_j if a and a.known_energy_j is not None else None,
        energy_high_j_b=b.most_energy_j if b and b.known_energy_j is not None else None,
    )


def _group(index: int, ids: list[int], regions: list[RawRegion], docs: list[Region]) -> Group:
    first = docs[ids[0]]
    a = _sum([regions[i].work_a for i in ids])
    b = _sum([regions[i].work_b for i in ids])
    steps_a = _median(_add([regions[i].steps_a for i in ids]), a)
    steps_b = _median(_add([regions[i].steps_b for i in ids]), b)
    evidence = Counter(code for i in ids for code in regions[i].evidence)
    scores = [s for i in ids if (s := regions[i].score) is not None]
    return Group(
        group_id=index,
        kind=first.kind,
        stratum=first.stratum,
        module_a=class_path(first.module_a),
        module_b=class_path(first.module_b),
        ops_a=first.ops_a,
        ops_b=first.ops_b,
        n_regions=len(ids),
        time_ns=amount(a.known_time_ns if a else None, b.known_time_ns if b else None),
        transfer_ns=amount(a.transfer_ns if a else None, b.transfer_ns if b else None),
        launches=amount(a.n_kernels + a.n_transfers if a else None, b.n_kernels + b.n_transfers if b else None),
        kernel_class_a=top_class(a),
        kernel_class_b=top_class(b),
        evidence=in_order(evidence),
        score=min(scores) if scores else None,
        coarse=any(regions[i].coarse for i in ids),
        missing_records=_sides({side for i in ids for side in regions[i].missing}),
        median_ns=amount(steps_a.median_ns if steps_a else None, steps_b.median_ns if steps_b else None),
        steps_a=steps_a,
        steps_b=steps_b,
        overlap=overlap(steps_a, steps_b),
        kernels_a=first.kernels_a,
        kernels_b=first.kernels_b,
        shapes_a=first.shapes_a,
        shapes_b=first.shapes_b,
        region_ids=ids,
        energy_j=energy_amount(a, b),
        energy_bounds_j_a=_bounds(a),
        energy_bounds_j_b=_bounds(b),
    )


def _add(steps: list[npt.NDArray[np.float64] | None]) -> npt.NDArray[np.float64] | None:
    known = [values for values in steps if values is not None]
    return np.add.reduce(known) if known else None


def _bounds(work: Work | None) -> list[float] | None:
    return None if work is None or work.known_energy_j is None else [work.energy_low_j, work.most_energy_j]


def _sides(sides: Iterable[str]) -> str | None:
    return " ".join(sorted(sides)) or None


def _sum(works: list[Work | None]) -> Work | None:
    present = [work for work in works if work is not None]
    if not present:
        return None
    total = Work()
    for work in present:
        total.add(work)
    return total
