"""The diff of two recordings, step by step: choose the steps, align them, sum up, and say what may be concluded."""

from __future__ import annotations

import logging

from magneton.analysis.align import work
from magneton.analysis.align.steps import choose_steps, same_loop, usable_steps
from magneton.analysis.align.tree import Interner
from magneton.analysis.align.work import Side, host_names, load_side
from magneton.analysis.device import lost
from magneton.analysis.diff import by_values
from magneton.analysis.diff.accounts.device_time import unplaced
from magneton.analysis.diff.accounts.host_rows import host_rows
from magneton.analysis.diff.by_values import MIN_JOINED, correspond, load_values
from magneton.analysis.diff.checks import (
    check_devices,
    check_work,
    common_ranks,
    note_coverage,
    note_missing,
    note_variation,
    same_recording,
    units_of,
)
from magneton.analysis.diff.document import Compared, ComparedSide, DiffResult, build_result, coverage_of
from magneton.analysis.diff.joules import energy, ledger
from magneton.analysis.diff.joules.conditions import condition_notes, conditions
from magneton.analysis.diff.joules.energy import SideEnergy, energy_notes, side_energy
from magneton.analysis.diff.missing import mark_missing
from magneton.analysis.diff.regions import build
from magneton.analysis.diff.settings import DiffSettings
from magneton.analysis.diff.stratum import Aligned, align, work_time_ns
from magneton.analysis.energy.measure.basis import need_same_basis
from magneton.analysis.host import timeline
from magneton.analysis.recording import Recording
from magneton.analysis.values.match import match_values
from magneton.analysis.values.notes import value_notes
from magneton.schemas.documents.diff import Note, work_name
from magneton.schemas.kinds import CaptureKind, Method, Unit

LOG = logging.getLogger(__name__)


def diff(a: Recording, b: Recording, settings: DiffSettings, tool: str) -> DiffResult:
    """Compare two normalised recordings.

    Swapping the recordings swaps the sides of the result and changes nothing else.

    Args:
        a: recording of side A.
        b: recording of side B.
        settings: what the user decided.
        tool: name and version of the program, for the document.

    Raises:
        NotComparableError: no common work, or a different batch without ``per="sample"``.
        UsageError: the settings ask for a rank or for steps that a side does not have.
    """
    side_a, side_b, energy_a, energy_b = _sides(a, b, settings)
    intern = Interner()
    usable_a, usable_b = usable_steps(side_a, intern), usable_steps(side_b, intern)
    loop = same_loop(usable_a, usable_b, intern)
    if loop is not None:
        usable_a, usable_b = loop[:2]
    choice = choose_steps(usable_a, usable_b, skip=settings.skip_steps, all_steps=settings.all_steps)
    if loop is not None:
        choice.unit = choice.strata[0].name = Unit.REPETITION
    notes = [Note(code, message) for code, message in (*([loop[2]] if loop else []), *choice.notes)]
    scale = check_work(side_a, side_b, choice, settings, notes)
    units = units_of(side_a, side_b, choice, scale, settings, notes)
    aligned = [align(stratum, units, scale, intern) for stratum in choice.strata]
    method = _by_values(aligned, side_a, side_b, notes)
    notes += energy_notes(energy_a, energy_b)
    ran = conditions(a, b, side_a.rank, side_b.rank) if settings.energy else []
    notes += condition_notes(ran)
    time_a = sum(work_time_ns(part.a.tree) for part in aligned)
    time_b = sum(work_time_ns(part.b.tree) for part in aligned)
    regions = [r for part in aligned for r in build(part.found, part.name, time_a, time_b)]
    missing_a, missing_b = note_missing(choice, side_a, side_b, notes)
    mark_missing(regions)
    note_variation(aligned, work_name(side_a.on_device), notes)
    for part in aligned:
        LOG.info("%s: %d steps of A, %d of B compared", part.name, part.a.n_steps, part.b.n_steps)
    LOG.info("aligned by %s: %d regions", method, len(regions))
    left_a = unplaced(side_a, choice, len(usable_a), units[0])
    left_b = unplaced(side_b, choice, len(usable_b), units[1])
    coverage = coverage_of(regions, time_a + left_a.kernel_ns, time_b + left_b.kernel_ns)
    why = note_coverage(coverage, (left_a.kernel_ns, left_b.kernel_ns), notes)
    if not side_a.on_device:
        regions += host_rows(aligned)
    compared = Compared(
        a=ComparedSide(side_a, len(usable_a), energy_a, missing_a, left_a),
        b=ComparedSide(side_b, len(usable_b), energy_b, missing_b, left_b),
        choice=choice,
        units=units,
        aligned=aligned,
        method=method,
        regions=regions,
        coverage=coverage,
        too_little=why,
        notes=notes,
        same=same_recording(a, b, notes),
        conditions=ran,
    )
    return build_result(compared, settings, tool)


def _sides(
    a: Recording, b: Recording, settings: DiffSettings
) -> tuple[Side, Side, SideEnergy | None, SideEnergy | None]:
    """Return the trees of work and the energy of the rank of each side that is compared."""
    _expect(a, b, settings)
    rank_a, rank_b = common_ranks(a, b, settings.rank)
    wanted, least = settings.energy, settings.min_power_coverage
    energy_a, energy_b = (
        side_energy(recording, rank, least, idle) if wanted else None
        for recording, rank, idle in ((a, rank_a, settings.idle_power_a), (b, rank_b, settings.idle_power_b))
    )
    if energy_a is not None and energy_b is not None:
        need_same_basis(energy_a.document, energy_b.document)
    # What computes on one side computes on the other: a time that crosses a limit must not become all or nothing.
    names = [host_names(recording, rank) for recording, rank in ((a, rank_a), (b, rank_b))]
    computing = None if None in names else frozenset().union(*(n for n in names if n is not None))
    side_a = load_side(a, rank_a, energy_a.by_kernel if energy_a else None, computing)
    side_b = load_side(b, rank_b, energy_b.by_kernel if energy_b else None, computing)
    check_devices(side_a, side_b)
    return side_a, side_b, energy_a, energy_b


def _expect(a: Recording, b: Recording, settings: DiffSettings) -> None:
    """Tell the recordings what all parts of the diff will ask of them, so that each table is read once."""
    needs = [work.NEEDS, lost.NEEDS, timeline.NEEDS]
    if settings.energy:
        needs += [energy.NEEDS, ledger.NEEDS]
    if all(any(row["kind"] == CaptureKind.VALUES for row in side.table("captures").to_pylist()) for side in (a, b)):
        needs.append(by_values.NEEDS)
    for side in (a, b):
        side.expect(*needs)


def _by_values(aligned: list[Aligned], a: Side, b: Side, notes: list[Note]) -> str:
    """Replace what structure says by what values say, where both sides recorded them; return the method used."""
    captures = load_values(a.recording, a.rank, b.recording, b.rank)
    if not captures:
        return Method.STRUCTURE
    matched = [(sides, match_values(sides[0].graph, sides[1].graph)) for sides in captures]
    for sides, match in matched:
        notes += [note for note in value_notes(sides, match) if note not in notes]
    for part in aligned:
        trees, steps = (part.a.tree, part.b.tree), (part.a.step_id, part.b.step_id)
        # Of several phases, the one that this kind of step ran is the one that its calls are found in.
        result = max(
            (correspond(sides, match, trees, steps, part.found) for sides, match in matched),
            key=lambda result: result.joined_a + result.joined_b,
        )
        part.found = result.found
        for side, share in (("A", result.joined_a), ("B", result.joined_b)):
            if share < MIN_JOINED:
                text = f"side {side}: only {100 * share:.0f} % of device time belongs to calls that were found in the capture of values; the rest is matched by structure"
                notes.append(Note("values_not_joined", text))
    return Method.VALUES
