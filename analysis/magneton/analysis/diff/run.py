"""The diff of two recordings: choose the steps, align them, sum up, and say what may be concluded."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from fractions import Fraction
from statistics import mean, median, stdev
from typing import Any

import pyarrow as pa

from magneton.analysis.align.average import Average, average_steps
from magneton.analysis.align.comparable import Scale, find_scale
from magneton.analysis.align.matcher import Correspondence, Matcher
from magneton.analysis.align.similarity import Similarity
from magneton.analysis.align.steps import Choice, choose_steps, usable_steps
from magneton.analysis.align.tree import Interner, Node, Work
from magneton.analysis.align.work import Side, load_side, total_work
from magneton.analysis.diff.by_values import MIN_JOINED, correspond, load_values
from magneton.analysis.diff.energy import SideEnergy, energy_notes, side_energy
from magneton.analysis.diff.findings import find
from magneton.analysis.diff.ledger import ledgers
from magneton.analysis.diff.missing import MAX_LOST, Missing, find_missing, mark_missing
from magneton.analysis.diff.regions import MAX_ALIGNED_SHARE, RawRegion, amount, build, energy_amount, region_docs
from magneton.analysis.diff.rollup import rollups
from magneton.analysis.energy.measure.basis import need_same_basis
from magneton.analysis.recording import Recording
from magneton.analysis.values.match import match_values
from magneton.schemas.columns import Table
from magneton.schemas.diff_tables import FINDINGS, MATCHES, REGIONS
from magneton.schemas.diffdoc import (
    Amount,
    Comparison,
    Coverage,
    DiffDocument,
    Note,
    Region,
    SideDoc,
    Spread,
    StratumDoc,
)
from magneton.schemas.errors import NotComparableError, UsageError
from magneton.schemas.ids import diff_id
from magneton.schemas.parquet import file_schema

# With less than this aligned on either side the recordings are hardly of the same program.
MIN_COVERAGE = 0.5
LOW_COVERAGE = "the recordings may not run the same program"


@dataclass(frozen=True)
class DiffSettings:
    """What the user decided.

    Attributes:
        per: ``step``, ``sample`` or ``token``: what times are divided by.
        threshold_percent: difference from which a group of regions is a finding.
        min_share_percent: least difference, in percent of the cheaper side's kernel time, that can be a finding.
        skip_steps: leading steps left out on each side; None judges by time.
        all_steps: leave out no step.
        rank: rank compared on both sides; None takes the lowest that both have.
        energy: divide the energy of recordings with a power log among their kernels.
        min_power_coverage: least share of the device activity's time that power samples must cover.
        idle_power_a: power of a device of side A at rest, W. It is subtracted. None: the energy is all that the device drew.
        idle_power_b: the same of side B.
    """

    per: str = "step"
    threshold_percent: float = 10.0
    min_share_percent: float = 0.5
    skip_steps: int | None = None
    all_steps: bool = False
    rank: int | None = None
    energy: bool = True
    min_power_coverage: float = 0.9
    idle_power_a: float | None = None
    idle_power_b: float | None = None


@dataclass
class DiffResult:
    """The document and the tables that go with it."""

    document: DiffDocument
    tables: dict[str, tuple[Table, pa.Table]]


@dataclass
class _Aligned:
    """One stratum aligned: averages per side (in the user's order) and correspondences."""

    name: str
    a: Average
    b: Average
    found: list[Correspondence]


def diff(a: Recording, b: Recording, settings: DiffSettings, tool: str) -> DiffResult:
    """Compare two normalised recordings by structure.

    Swapping the recordings swaps the sides of the result and changes nothing else.

    Raises:
        NotComparableError: no common work, or a different batch without ``per="sample"``.
    """
    side_a, side_b, energy_a, energy_b = _sides(a, b, settings)
    intern = Interner()
    usable_a, usable_b = usable_steps(side_a, intern), usable_steps(side_b, intern)
    choice = choose_steps(usable_a, usable_b, skip=settings.skip_steps, all_steps=settings.all_steps)
    notes = [Note(code, message) for code, message in choice.notes]
    scale = _check_work(side_a, side_b, choice, settings, notes)
    units = _units(side_a, side_b, choice, scale, settings)
    swapped = b.manifest.run_id < a.manifest.run_id
    aligned = [_align(s.name, s.a, s.b, units, scale, intern, swapped) for s in choice.strata]
    method = _by_values(aligned, side_a, side_b, notes)
    notes += energy_notes(energy_a, energy_b)
    kernel_a = sum(_kernel_ns(part.a.tree) for part in aligned)
    kernel_b = sum(_kernel_ns(part.b.tree) for part in aligned)
    regions = [r for part in aligned for r in build(part.found, part.name, kernel_a, kernel_b)]
    missing = _missing(choice, side_a, side_b, notes)
    mark_missing(regions)
    docs, groups = region_docs(regions)
    _note_variation(aligned, notes)
    same = _same_devices(side_a, side_b)
    coverage = _coverage(regions, kernel_a, kernel_b)
    aligned_share = min(coverage.a or 0.0, coverage.b or 0.0)
    if aligned_share < MIN_COVERAGE:
        notes.append(Note("low_coverage", f"{LOW_COVERAGE}: only {100 * aligned_share:.0f} % of a side is aligned"))
    comparison = Comparison(
        unit=choice.unit if settings.per == "step" else settings.per,
        units_a=units[0],
        units_b=units[1],
        strata=[
            StratumDoc(p.name, p.a.n_steps, p.b.n_steps, amount(_kernel_ns(p.a.tree), _kernel_ns(p.b.tree)))
            for p in aligned
        ],
        same_devices=same,
        method=method,
        notes=notes,
    )
    identity = diff_id(a.manifest.run_id, b.manifest.run_id, json.dumps(asdict(settings), sort_keys=True))
    document = DiffDocument(
        diff_id=identity,
        tool=tool,
        settings=asdict(settings),
        a=_side_doc(
            side_a, [p.a for p in aligned], [s for st in choice.strata for s in st.a], len(usable_a), energy_a, settings
        ),
        b=_side_doc(
            side_b, [p.b for p in aligned], [s for st in choice.strata for s in st.b], len(usable_b), energy_b, settings
        ),
        comparison=comparison,
        totals=_totals(aligned),
        coverage=coverage,
        rollups=rollups(regions),
        groups=groups,
        findings=find(
            groups,
            threshold_percent=settings.threshold_percent,
            min_share_percent=settings.min_share_percent,
            same_run=a.manifest.run_id == b.manifest.run_id,
            obstacle=_obstacle(same, aligned_share, missing),
        ),
        regions=docs,
    )
    return DiffResult(document, _tables(document, regions, a.manifest.run_id, b.manifest.run_id))


def _missing(choice: Choice, a: Side, b: Side, notes: list[Note]) -> tuple[Missing | None, Missing | None]:
    """Find launches of the compared steps whose device records are missing, and say so."""
    for letter, side in (("A", a), ("B", b)):
        empty = [step for step in side.steps if not step.tree.device_ns]
        timeless = [step.name for step in empty if any(w.n_kernels + w.n_transfers for w in _works(step.tree))]
        nothing = [step.name for step in empty if step.name not in timeless]
        if nothing:
            text = f"side {letter}: {', '.join(nothing)} left out, without any device record"
            notes.append(Note("steps_without_records", text))
        if timeless:
            text = f"side {letter}: {', '.join(timeless)} left out, all device records lack a length"
            notes.append(Note("steps_without_lengths", text))
    both = (
        find_missing(a, [step for stratum in choice.strata for step in stratum.a]),
        find_missing(b, [step for stratum in choice.strata for step in stratum.b]),
    )
    for letter, missing in zip("AB", both, strict=True):
        if missing is not None:
            text = f"side {letter}: {missing.describe()}: missing data, not savings; its totals are lower bounds"
            notes.append(Note("gpu_records_missing", text))
    return both


def _obstacle(
    same_devices: bool | None, aligned_share: float, missing: tuple[Missing | None, Missing | None]
) -> str | None:
    """Return why a difference says nothing about the software, if something does."""
    for letter, lost in zip("AB", missing, strict=True):
        if lost is not None and lost.share > MAX_LOST:
            return f"side {letter} has no device record of {100 * lost.share:.0f} % of its kernel launches"
    if aligned_share < MIN_COVERAGE:
        return LOW_COVERAGE
    return "the devices differ, so the difference is not of the software alone" if same_devices is False else None


def _sides(
    a: Recording, b: Recording, settings: DiffSettings
) -> tuple[Side, Side, SideEnergy | None, SideEnergy | None]:
    ranks_a, ranks_b = a.ranks(), b.ranks()
    if settings.rank is not None:
        for recording, ranks in ((a, ranks_a), (b, ranks_b)):
            if settings.rank not in ranks:
                raise UsageError(f"has no rank {settings.rank} (it has {ranks})", path=recording.directory)
        rank_a = rank_b = settings.rank
    else:
        common = sorted(set(ranks_a) & set(ranks_b))
        rank_a, rank_b = (common[0], common[0]) if common else (ranks_a[0], ranks_b[0])
    wanted, least = settings.energy, settings.min_power_coverage
    energy_a, energy_b = (
        side_energy(recording, rank, least, idle) if wanted else None
        for recording, rank, idle in ((a, rank_a, settings.idle_power_a), (b, rank_b, settings.idle_power_b))
    )
    if energy_a is not None and energy_b is not None:
        need_same_basis(energy_a.document, energy_b.document)
    side_a = load_side(a, rank_a, energy_a.by_kernel if energy_a else None)
    side_b = load_side(b, rank_b, energy_b.by_kernel if energy_b else None)
    if side_a.on_device != side_b.on_device:
        on = {True: "device kernels", False: "host operators only"}
        raise NotComparableError(
            f"side A holds {on[side_a.on_device]}, side B {on[side_b.on_device]}",
            remedy="record both on the same kind of device",
        )
    return side_a, side_b, energy_a, energy_b


def _check_work(a: Side, b: Side, choice: Choice, settings: DiffSettings, notes: list[Note]) -> Scale | None:
    """Refuse different batch sizes, unless times are divided by them. Return the factor between the sides."""
    work_a, work_b = a.recording.manifest.workload, b.recording.manifest.workload
    if settings.per == "step":
        for what in ("batch", "input_tokens"):
            left, right = getattr(work_a, what), getattr(work_b, what)
            if left is not None and right is not None and left != right:
                raise NotComparableError(
                    f"the recordings state different work: {what} is {left} on side A and {right} on side B",
                    remedy="record the same work, or compare with --per sample or --per token",
                )
    first = choice.strata[0]
    middle_a, middle_b = first.a[len(first.a) // 2].tree, first.b[len(first.b) // 2].tree
    scale = find_scale(middle_a, middle_b)
    if scale is not None and settings.per == "step":
        raise NotComparableError(
            f"the recordings did different amounts of work: {scale.describe()}",
            remedy="record the same batch, or compare with --per sample or --per token",
        )
    if a.rank != b.rank:
        notes.append(Note("different_ranks", f"rank {a.rank} of side A is compared with rank {b.rank} of side B"))
    for side, recording in (("A", a.recording), ("B", b.recording)):
        if recording.manifest.incomplete:
            notes.append(Note("incomplete", f"side {side} is incomplete: its totals are lower bounds"))
    if _same_devices(a, b) is False:
        notes.append(
            Note("different_devices", "the devices differ, so differences come from hardware and software together")
        )
    elif _same_devices(a, b) is None:
        notes.append(Note("unknown_devices", "a recording does not name its devices: they may differ"))
    return scale


def _units(a: Side, b: Side, choice: Choice, scale: Scale | None, settings: DiffSettings) -> tuple[float, float]:
    """Return the numbers by which the times of one step are divided: samples or tokens of a step on side A and on side B."""
    if settings.per == "step":
        return 1.0, 1.0
    field = "batch" if settings.per == "sample" else "input_tokens"
    stated = [getattr(side.recording.manifest.workload, field) for side in (a, b)]
    if settings.per == "token" and all(
        s.row and s.row["kind"] == "serving_step" for st in choice.strata for s in (*st.a, *st.b)
    ):
        # The totals hold one step of each stratum, and so does what they are divided by.
        counted_a = sum(mean(_tokens(step.row) for step in stratum.a) for stratum in choice.strata)
        counted_b = sum(mean(_tokens(step.row) for step in stratum.b) for stratum in choice.strata)
        if counted_a and counted_b:
            return counted_a, counted_b
    if all(stated):
        return float(stated[0]), float(stated[1])
    if scale is not None:
        return float(scale.a), float(scale.b)
    raise NotComparableError(
        f"the recordings do not say how many {settings.per}s a step has, and their shapes do not differ by one factor",
        remedy=f"state the {field} in the manifest's workload, or compare per step",
    )


def _tokens(row: dict[str, Any] | None) -> float:
    row = row or {}
    return float((row.get("context_tokens") or 0) + (row.get("generation_tokens") or 0))


def _align(
    name: str,
    steps_a: list[Any],
    steps_b: list[Any],
    units: tuple[float, float],
    scale: Scale | None,
    intern: Interner,
    swapped: bool,
) -> _Aligned:
    average_a = average_steps(steps_a, intern, units[0])
    average_b = average_steps(steps_b, intern, units[1])
    factor = scale.factor if scale else Fraction(1)
    # The order of the sides must not matter: the run with the smaller id is always the left one.
    left, right = (average_b, average_a) if swapped else (average_a, average_b)
    found = Matcher(Similarity(1 / factor if swapped else factor)).match(left.tree, right.tree)
    if swapped:
        found = [Correspondence(c.b, c.a, c.score, c.evidence) for c in found]
    return _Aligned(name, average_a, average_b, found)


def _by_values(aligned: list[_Aligned], a: Side, b: Side, notes: list[Note]) -> str:
    """Match by value instead of by structure, where both sides recorded values. Return the method that was used."""
    values_a, values_b = load_values(a.recording, a.rank), load_values(b.recording, b.rank)
    if values_a is None or values_b is None:
        return "structure"
    match = match_values(values_a.graph, values_b.graph)
    if not match.second_input:
        notes.append(
            Note(
                "no_second_input",
                "values were compared on one input only, without a second input; some may agree by accident",
            )
        )
    for part in aligned:
        trees, steps = (part.a.tree, part.b.tree), (part.a.step_id, part.b.step_id)
        result = correspond((values_a, values_b), match, trees, steps, part.found)
        part.found = result.found
        for side, share in (("A", result.joined_a), ("B", result.joined_b)):
            if share < MIN_JOINED:
                text = f"side {side}: only {100 * share:.0f} % of device time belongs to calls that were found in the values capture; the rest is matched by structure"
                notes.append(Note("values_not_joined", text))
    return "values"


def _works(tree: Node) -> list[Work]:
    return [leaf.work for leaf in tree.leaves() if leaf.work]


def _kernel_ns(tree: Node) -> float:
    return total_work([tree]).kernel_ns


def _totals(aligned: list[_Aligned]) -> dict[str, Amount]:
    """Return the totals per unit, summed over the strata (one step of each)."""
    a, b = Work(), Work()
    for part in aligned:
        a.add(total_work([part.a.tree]))
        b.add(total_work([part.b.tree]))
    return {
        "kernel_ns": amount(a.kernel_ns, b.kernel_ns),
        "share_ns": amount(a.share_ns, b.share_ns),
        "transfer_ns": amount(a.transfer_ns, b.transfer_ns),
        "transfer_bytes": amount(a.transfer_bytes, b.transfer_bytes),
        "kernels": amount(a.n_kernels, b.n_kernels),
        "transfers": amount(a.n_transfers, b.n_transfers),
        "ops": amount(a.n_calls, b.n_calls),
        "energy_j": energy_amount(a, b),
        "host_ns": amount(_host_ns([p.a for p in aligned]), _host_ns([p.b for p in aligned])),
    }


def _host_ns(averages: list[Average]) -> float | None:
    if not all(average.step_host_ns for average in averages):
        return None
    return sum(mean(average.step_host_ns) for average in averages)


def _coverage(regions: list[RawRegion], kernel_a: float, kernel_b: float) -> Coverage:
    aligned_a = aligned_b = 0.0
    for region in regions:
        if region.work_a and region.work_b and not region.coarse:
            aligned_a += region.work_a.kernel_ns
            aligned_b += region.work_b.kernel_ns
    kinds = [region.kind for region in regions]
    return Coverage(
        a=aligned_a / kernel_a if kernel_a else None,
        b=aligned_b / kernel_b if kernel_b else None,
        max_share=MAX_ALIGNED_SHARE,
        n_paired=kinds.count("paired"),
        n_only_a=kinds.count("only_a"),
        n_only_b=kinds.count("only_b"),
        n_coarse=sum(region.coarse for region in regions),
    )


def _spread(averages: list[Average]) -> Spread:
    values = [v for average in averages for v in average.step_kernel_ns]
    # Strata differ by design, so the variation is only that of a single one.
    cv = None
    if len(averages) == 1 and len(values) > 1 and mean(values):
        cv = 100.0 * stdev(values) / mean(values)
    return Spread(len(values), mean(values), median(values), cv)


def _note_variation(aligned: list[_Aligned], notes: list[Note]) -> None:
    for side, averages in (("A", [p.a for p in aligned]), ("B", [p.b for p in aligned])):
        spread = _spread(averages)
        if spread.cv_percent is not None and spread.cv_percent > 10.0:
            notes.append(
                Note(
                    "step_variation",
                    f"side {side}: kernel time varies by {spread.cv_percent:.0f} % between its {spread.n_steps} steps "
                    f"(mean {spread.mean_ns / 1e6:.3f} ms, median {spread.median_ns / 1e6:.3f} ms)",
                )
            )


def _devices(side: Side) -> list[str]:
    return sorted({d.name for d in side.recording.manifest.devices if d.name})


def _same_devices(a: Side, b: Side) -> bool | None:
    names_a, names_b = _devices(a), _devices(b)
    return names_a == names_b if names_a and names_b else None


def _side_doc(
    side: Side,
    averages: list[Average],
    used: list[Any],
    n_recorded: int,
    energy: SideEnergy | None,
    settings: DiffSettings,
) -> SideDoc:
    manifest = side.recording.manifest
    columns = ("code", "count", "message")
    return SideDoc(
        run_id=manifest.run_id,
        label=manifest.label,
        system=manifest.system.name,
        versions=manifest.system.versions,
        devices=_devices(side),
        rank=side.rank,
        ranks=side.recording.ranks(),
        on_device=side.on_device,
        incomplete=manifest.incomplete,
        n_steps_recorded=n_recorded,
        steps_used=[step.name for step in used],
        kernel_time=_spread(averages),
        inventory={key: float(value) for key, value in asdict(side.inventory).items()},
        outside_steps_ns=side.outside_steps_ns,
        overhead_ns=sum(average.overhead_ns for average in averages),
        warnings=side.recording.table("warnings", columns).to_pylist(),
        energy=energy.document if energy else None,
        ledgers=ledgers(side.recording, side.rank, [s.row for s in used if s.row]) if settings.energy else [],
    )


def _tables(
    document: DiffDocument, regions: list[RawRegion], run_a: str, run_b: str
) -> dict[str, tuple[Table, pa.Table]]:
    identity = document.diff_id
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
    return {
        table.name: (table, pa.Table.from_pylist(rows[table.name], schema=file_schema(table)))
        for table in (REGIONS, MATCHES, FINDINGS)
    }


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
