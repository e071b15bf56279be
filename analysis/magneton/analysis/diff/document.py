"""The document of a diff and the tables that go with it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from math import fsum
from typing import Any

import pyarrow as pa

from magneton.analysis.align.average import Average
from magneton.analysis.align.steps import Choice
from magneton.analysis.align.tree import Node
from magneton.analysis.align.work import Side, Step, total_work
from magneton.analysis.diff.accounts.device_time import Unplaced, device_time
from magneton.analysis.diff.accounts.host_rows import host_docs
from magneton.analysis.diff.checks import devices, obstacle, same_devices
from magneton.analysis.diff.findings import Gate, find
from magneton.analysis.diff.joules.conditions import obstacle_of
from magneton.analysis.diff.joules.energy import SideEnergy
from magneton.analysis.diff.joules.ledger import ledgers
from magneton.analysis.diff.joules.served import served
from magneton.analysis.diff.missing import Missing
from magneton.analysis.diff.regions import MAX_ALIGNED_SHARE, RawRegion, amount, region_docs
from magneton.analysis.diff.rollup import rollups
from magneton.analysis.diff.settings import DiffSettings
from magneton.analysis.diff.stratum import Aligned, spread, totals, work_time_ns
from magneton.schemas.documents.diff import (
    Amount,
    Comparison,
    ConditionDoc,
    Coverage,
    DiffDocument,
    Note,
    Region,
    SideDoc,
    StratumDoc,
)
from magneton.schemas.ids import diff_id
from magneton.schemas.kinds import Evidence, RegionKind, Unit
from magneton.schemas.tables.columns import Table
from magneton.schemas.tables.diff import FINDINGS, MATCHES, REGION_STEPS, REGIONS
from magneton.schemas.tables.parquet import file_schema


@dataclass
class DiffResult:
    """The document and the tables that go with it."""

    document: DiffDocument
    tables: dict[str, tuple[Table, pa.Table]]


@dataclass(frozen=True)
class ComparedSide:
    """One side of a finished comparison.

    Attributes:
        side: its recording and trees of work.
        n_usable: number of its steps that could have been compared.
        energy: energy of its kernels, None where no power was recorded.
        missing: launches whose device records are missing.
        unplaced: device time that belongs to no step.
    """

    side: Side
    n_usable: int
    energy: SideEnergy | None
    missing: Missing | None
    unplaced: Unplaced


@dataclass(frozen=True)
class Compared:
    """A finished comparison: what the document is made of.

    Attributes:
        a: side A.
        b: side B.
        choice: steps that were compared.
        units: samples or tokens of one step on each side (1 each for steps).
        aligned: the strata, aligned.
        method: ``values`` or ``structure``.
        regions: what corresponds to what, with its work.
        coverage: how much of each side is aligned.
        too_little: why nothing can be concluded, if so little is aligned; None otherwise.
        notes: what must be said of the comparison.
        same: both sides hold the same events.
        conditions: what both sides read of the conditions they ran under.
    """

    a: ComparedSide
    b: ComparedSide
    choice: Choice
    units: tuple[float, float]
    aligned: list[Aligned]
    method: str
    regions: list[RawRegion]
    coverage: Coverage
    too_little: str | None
    notes: list[Note]
    same: bool
    conditions: list[ConditionDoc] = field(default_factory=list)

    def trees(self) -> tuple[list[Node], list[Node]]:
        """Return the averaged steps of both sides."""
        return [part.a.tree for part in self.aligned], [part.b.tree for part in self.aligned]


def build_result(compared: Compared, settings: DiffSettings, tool: str) -> DiffResult:
    """Return the document of a comparison and its tables.

    Args:
        compared: the comparison.
        settings: what the user decided.
        tool: name and version of the program, for the document.
    """
    a, b = compared.a, compared.b
    run_a, run_b = (one.side.recording.manifest.run_id for one in (a, b))
    choice, aligned = compared.choice, compared.aligned
    docs, groups = region_docs(compared.regions)
    same = same_devices(a.side, b.side)
    sums = totals(aligned) | _device_sums(compared)
    shorter = min((t for t in (sums["median_ns"].a, sums["median_ns"].b) if t), default=float("inf"))
    findings, held_back = find(
        groups,
        Gate(
            settings.threshold_percent,
            settings.min_share_percent,
            shorter,
            {part.name: (part.a.n_steps, part.b.n_steps) for part in aligned},
            a.side.on_device,
        ),
        same_run=compared.same,
        obstacle=obstacle(same, compared.too_little, (a.missing, b.missing)) or obstacle_of(compared.conditions),
    )
    document = DiffDocument(
        diff_id=diff_id(run_a, run_b, json.dumps(asdict(settings), sort_keys=True)),
        tool=tool,
        settings=asdict(settings),
        a=_side_doc(a, [p.a for p in aligned], [s for st in choice.strata for s in st.a], settings),
        b=_side_doc(b, [p.b for p in aligned], [s for st in choice.strata for s in st.b], settings),
        comparison=Comparison(
            unit=choice.unit if settings.per == Unit.STEP else settings.per,
            units_a=compared.units[0],
            units_b=compared.units[1],
            strata=[
                StratumDoc(p.name, p.a.n_steps, p.b.n_steps, amount(work_time_ns(p.a.tree), work_time_ns(p.b.tree)))
                for p in aligned
            ],
            same_devices=same,
            method=compared.method,
            notes=[*compared.notes, *held_back],
            conditions=compared.conditions,
        ),
        totals=sums,
        coverage=compared.coverage,
        rollups=rollups([region for region in compared.regions if not region.of_host]),
        groups=groups,
        findings=findings,
        regions=docs,
    )
    return DiffResult(document, _tables(document, compared, run_a, run_b))


def _device_sums(compared: Compared) -> dict[str, Amount]:
    """Return all device time per unit, and the part of it that belongs to no step; nothing on a CPU."""
    a, b = compared.a, compared.b
    if not a.side.on_device:
        return {}
    trees = [sum(total_work([tree]).device_ns for tree in side) for side in compared.trees()]
    left = a.unplaced.time_ns, b.unplaced.time_ns
    return {
        "device_ns": amount(trees[0] + left[0], trees[1] + left[1]),
        "left_out_ns": amount(*left),
    }


def coverage_of(regions: list[RawRegion], time_a: float, time_b: float) -> Coverage:
    """Return how much of each side's work time is aligned.

    Args:
        regions: all regions.
        time_a: work time of side A, with that of kernels that belong to no step, ns.
        time_b: the same of side B.
    """
    both = [(r.work_a, r.work_b) for r in regions if r.work_a and r.work_b and not r.coarse]
    coarse = [
        (r.work_a, r.work_b) for r in regions if r.work_a and r.work_b and r.coarse and Evidence.VALUES in r.evidence
    ]
    # Exact sums: the order of the regions must not show when the sides are swapped.
    aligned_a, aligned_b = fsum(a.time_ns for a, _ in both), fsum(b.time_ns for _, b in both)
    same_a, same_b = (fsum(pair[side].time_ns for pair in (*both, *coarse)) for side in (0, 1))
    kinds = [region.kind for region in regions]
    return Coverage(
        a=aligned_a / time_a if time_a else None,
        b=aligned_b / time_b if time_b else None,
        max_share=MAX_ALIGNED_SHARE,
        n_paired=kinds.count(RegionKind.PAIRED),
        n_only_a=kinds.count(RegionKind.ONLY_A),
        n_only_b=kinds.count(RegionKind.ONLY_B),
        n_coarse=sum(region.coarse for region in regions),
        same_a=same_a / time_a if time_a else None,
        same_b=same_b / time_b if time_b else None,
        unmatched_ns_a=max(time_a - aligned_a, 0.0),
        unmatched_ns_b=max(time_b - aligned_b, 0.0),
    )


def _side_doc(compared: ComparedSide, averages: list[Average], used: list[Step], settings: DiffSettings) -> SideDoc:
    side, energy = compared.side, compared.energy
    manifest = side.recording.manifest
    columns = ("code", "count", "message")
    host_time, host_steps = host_docs(averages, used)
    return SideDoc(
        run_id=manifest.run_id,
        label=manifest.label,
        system=manifest.system.name,
        versions=manifest.system.versions,
        devices=devices(side),
        rank=side.rank,
        ranks=side.recording.ranks(),
        on_device=side.on_device,
        incomplete=manifest.incomplete,
        n_steps_recorded=compared.n_usable,
        steps_used=[step.name for step in used],
        step_time=spread(averages),
        inventory={key: float(value) for key, value in asdict(side.inventory).items()},
        outside_steps_ns=side.outside_steps_ns,
        host_time=host_time,
        host_steps=host_steps,
        device_time=device_time(side, used),
        warnings=side.recording.table("warnings", columns).to_pylist(),
        energy=energy.document if energy else None,
        ledgers=ledgers(side.recording, side.rank, [s.row for s in used if s.row]) if settings.energy else [],
        served=served(side.recording, side.rank) if settings.energy else None,
    )


def _tables(document: DiffDocument, compared: Compared, run_a: str, run_b: str) -> dict[str, tuple[Table, pa.Table]]:
    identity, regions = document.diff_id, compared.regions
    names = REGIONS.column_names()
    region_rows = [
        {"diff_id": identity, **{n: getattr(r, n) for n in names if n != "diff_id"}} for r in document.regions
    ]
    match_rows = []
    for doc, raw in zip(document.regions, regions, strict=True):
        match_rows += _match_rows(identity, doc, "a", run_a, raw.a) + _match_rows(identity, doc, "b", run_b, raw.b)
    finding_rows = [
        {
            "diff_id": identity,
            "finding_id": f.finding_id,
            "group_id": f.group_id,
            "verdict": f.verdict,
            "costly_side": f.costly_side,
            "delta_ns": f.delta_ns,
            "reason": f.reason,
        }
        for f in document.findings
    ]
    rows = {"regions": region_rows, "matches": match_rows, "findings": finding_rows}
    made = {
        table.name: (table, pa.Table.from_pylist(rows[table.name], schema=file_schema(table)))
        for table in (REGIONS, MATCHES, FINDINGS)
    }
    return made | {REGION_STEPS.name: (REGION_STEPS, _region_steps(identity, compared))}


def _region_steps(identity: str, compared: Compared) -> pa.Table:
    """Return the time of every region in every step of each side that has it."""
    steps = {
        (part.name, letter): [step.row["step_id"] if step.row else None for step in found]
        for part, stratum in zip(compared.aligned, compared.choice.strata, strict=True)
        for letter, found in (("a", stratum.a), ("b", stratum.b))
    }
    columns: dict[str, list[Any]] = {name: [] for name in REGION_STEPS.column_names()}
    for number, region in enumerate(compared.regions):
        for letter, values in (("a", region.steps_a), ("b", region.steps_b)):
            if values is None:
                continue
            count = values.shape[1]
            columns["region_id"] += [number] * count
            columns["side"] += [letter] * count
            columns["step_number"] += range(count)
            columns["step_id"] += steps[region.stratum, letter]
            columns["time_ns"] += values[0].tolist()
            columns["transfer_ns"] += values[1].tolist()
    columns["diff_id"] = [identity] * len(columns["region_id"])
    return pa.table(columns, schema=file_schema(REGION_STEPS))


def _match_rows(identity: str, doc: Region, side: str, run: str, nodes: list[Node]) -> list[dict[str, Any]]:
    return [
        {
            "diff_id": identity,
            "region_id": doc.region_id,
            "side": side,
            "run_id": run,
            "op_id": member if node.kind == "op" else None,
            "launch_id": member if node.kind == "launch" else None,
        }
        for node in nodes
        for member in node.members
    ]
