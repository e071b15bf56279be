"""What must hold before two recordings are compared, and what must be said of them: refusals and notes."""

from __future__ import annotations

from statistics import mean
from typing import Any

from magneton.analysis.align.comparable import Scale, find_scale
from magneton.analysis.align.steps import Choice
from magneton.analysis.align.tree import Node, Work
from magneton.analysis.align.work import Side
from magneton.analysis.diff.missing import MAX_LOST, Missing, find_missing
from magneton.analysis.diff.settings import DiffSettings
from magneton.analysis.diff.stratum import Aligned, spread
from magneton.analysis.recording import Recording, same_content
from magneton.schemas.documents.diff import Coverage, Note
from magneton.schemas.errors import NotComparableError, UsageError
from magneton.schemas.kinds import StepKind, Unit

# With less than this aligned on either side the recordings are hardly of the same program.
MIN_COVERAGE = 0.5
LOW_COVERAGE = "the recordings may not run the same program"


def common_ranks(a: Recording, b: Recording, wanted: int | None) -> tuple[int, int]:
    """Return the rank of A and the rank of B that are compared: the wanted one, else the lowest that both have.

    Raises:
        UsageError: a side does not have the wanted rank.
    """
    ranks_a, ranks_b = a.ranks(), b.ranks()
    if wanted is not None:
        for recording, ranks in ((a, ranks_a), (b, ranks_b)):
            if wanted not in ranks:
                raise UsageError(f"has no rank {wanted} (it has {ranks})", path=recording.directory)
        return wanted, wanted
    common = sorted(set(ranks_a) & set(ranks_b))
    return (common[0], common[0]) if common else (ranks_a[0], ranks_b[0])


def check_devices(a: Side, b: Side) -> None:
    """Refuse to compare device kernels with host operators.

    Raises:
        NotComparableError: only one side has device activity.
    """
    if a.on_device != b.on_device:
        on = {True: "device kernels", False: "host operators only"}
        raise NotComparableError(
            f"side A holds {on[a.on_device]}, side B {on[b.on_device]}",
            remedy="record both on the same kind of device",
        )


def check_work(a: Side, b: Side, choice: Choice, settings: DiffSettings, notes: list[Note]) -> Scale | None:
    """Refuse different batches unless asked to divide by them; return the factor between the sides."""
    work_a, work_b = a.recording.manifest.workload, b.recording.manifest.workload
    if settings.per == Unit.STEP:
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
    if scale is not None and settings.per == Unit.STEP:
        raise NotComparableError(
            f"the recordings did different amounts of work: {scale.describe()}",
            remedy="record the same batch, or compare with --per sample or --per token",
        )
    _note_rank_counts(a, b, notes)
    if a.rank != b.rank:
        notes.append(Note("different_ranks", f"rank {a.rank} of side A is compared with rank {b.rank} of side B"))
    for side, recording in (("A", a.recording), ("B", b.recording)):
        if recording.manifest.incomplete:
            notes.append(Note("incomplete", f"side {side} is incomplete: its totals are lower bounds"))
    _note_devices(a, b, notes)
    return scale


def same_recording(a: Recording, b: Recording, notes: list[Note]) -> bool:
    """Return whether both sides hold the same events; say so first where they do under two names or in two encodings."""
    if a.manifest.run_id == b.manifest.run_id:
        return True
    # The same events on another number of ranks are another job.
    if any(note.code == "different_rank_counts" for note in notes) or not same_content((a, b)):
        return False
    notes.insert(0, Note("same_content", "both sides hold the same content, under two names or in two encodings"))
    return True


def _note_rank_counts(a: Side, b: Side, notes: list[Note]) -> None:
    """Say before all else where the sides ran on different numbers of ranks: one rank is then another part of the work."""
    counts = [n_ranks(side.recording) for side in (a, b)]
    if counts[0] != counts[1]:
        larger, rank = ("A", a.rank) if counts[0] > counts[1] else ("B", b.rank)
        part = "a part" if min(counts) == 1 else "a smaller part"
        text = f"side A ran on {_ranks_text(counts[0])}, side B on {_ranks_text(counts[1])}"
        notes.insert(0, Note("different_rank_counts", f"{text}: rank {rank} alone is {part} of {larger}'s work"))


def _ranks_text(count: int) -> str:
    return "one rank" if count == 1 else f"{count} ranks"


def n_ranks(recording: Recording) -> int:
    """Return on how many ranks a recording's program ran: those it states, and at least those that are in it."""
    stated = recording.table("captures", ("world_size",))["world_size"].to_pylist()
    return max(len(recording.ranks()), *(size or 1 for size in stated), 1)


def _note_devices(a: Side, b: Side, notes: list[Note]) -> None:
    """Say where the hardware differs, or may differ."""
    names_a, names_b = devices(a), devices(b)
    if not names_a or not names_b:
        notes.append(Note("unknown_devices", "a recording does not name its devices: they may differ"))
    elif names_a == names_b:
        return
    elif a.on_device:
        notes.append(
            Note("different_devices", "the devices differ, so differences come from hardware and software together")
        )
    else:
        text = f"side A ran on {', '.join(names_a)}, side B on {', '.join(names_b)}"
        notes.append(Note("different_processors", f"{text}: differences may be of the processors too"))


def units_of(
    a: Side, b: Side, choice: Choice, scale: Scale | None, settings: DiffSettings, notes: list[Note]
) -> tuple[float, float]:
    """Return the numbers by which the times of one step are divided: samples or tokens of a step on side A and on side B."""
    if settings.per == Unit.STEP:
        return 1.0, 1.0
    field = "batch" if settings.per == Unit.SAMPLE else "input_tokens"
    stated = [getattr(side.recording.manifest.workload, field) for side in (a, b)]
    if settings.per == Unit.TOKEN and all(
        s.row and s.row["kind"] == StepKind.SERVING_STEP for st in choice.strata for s in (*st.a, *st.b)
    ):
        # The totals hold one step of each stratum, and so does what they are divided by.
        counted_a = sum(mean(_tokens(step.row) for step in stratum.a) for stratum in choice.strata)
        counted_b = sum(mean(_tokens(step.row) for step in stratum.b) for stratum in choice.strata)
        if counted_a and counted_b:
            return counted_a, counted_b
    served = [side.recording.manifest.workload for side in (a, b)]
    if any(stated) and any(work.duration_s is not None and work.requests is not None for work in served):
        # A benchmark counts all tokens of its window. A step has a small part of them.
        raise NotComparableError(
            f"the {settings.per}s are the total of a benchmark, not those of a step",
            remedy="compare per step; joules per output token and per request stand beside the ledgers",
        )
    if all(stated):
        return float(stated[0]), float(stated[1])
    counted = None if scale is None else scale.samples if settings.per == Unit.SAMPLE else scale.tokens
    if scale is not None and counted is not None:
        what = "rows" if scale.by_rows else "shapes"
        text = f"the number of {settings.per}s is not stated: by the {what} of the inputs a step has {counted[0]} on side A and {counted[1]} on side B"
        notes.append(Note("units_by_shape", text))
        return float(counted[0]), float(counted[1])
    raise NotComparableError(
        f"the recordings do not say how many {settings.per}s a step has, and their shapes do not tell",
        remedy=f"state the {field} in the manifest's workload, or compare per step",
    )


def _tokens(row: dict[str, Any] | None) -> float:
    row = row or {}
    return float((row.get("context_tokens") or 0) + (row.get("generation_tokens") or 0))


def note_missing(choice: Choice, a: Side, b: Side, notes: list[Note]) -> tuple[Missing | None, Missing | None]:
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


def _works(tree: Node) -> list[Work]:
    return [leaf.work for leaf in tree.leaves() if leaf.work]


def obstacle(same: bool | None, too_little: str | None, missing: tuple[Missing | None, Missing | None]) -> str | None:
    """Return why a difference says nothing about the software, if something does.

    Args:
        same: whether the devices are the same, None where that is unknown.
        too_little: why so little is aligned that nothing can be concluded; None where enough is.
        missing: launches of A and of B whose device records are missing.
    """
    for letter, lost in zip("AB", missing, strict=True):
        if lost is not None and lost.share > MAX_LOST:
            return f"side {letter} has no device record of {100 * lost.share:.0f} % of its kernel launches"
    if too_little is not None:
        return too_little
    return "the devices differ, so the difference is not of the software alone" if same is False else None


def aligned_share(coverage: Coverage) -> float:
    """Return the share of known common work on the side that has less of it, 0 to 1: what is aligned, or coarse and the same by value."""
    return min(coverage.same_a or 0.0, coverage.same_b or 0.0)


def note_coverage(coverage: Coverage, left_ns: tuple[float, float], notes: list[Note]) -> str | None:
    """Say so where too little is aligned, before all else, and return why; None where enough is, or is the same by value.

    Args:
        coverage: how much is aligned.
        left_ns: time of kernels of A and of B that belong to no step, per unit.
        notes: gets what must be said.
    """
    shares = coverage.a or 0.0, coverage.b or 0.0
    if min(shares) >= MIN_COVERAGE:
        return None
    same = aligned_share(coverage)
    if same >= MIN_COVERAGE:
        text = (
            f"values agree for {100 * same:.0f} % of a side or more, but only {100 * min(shares):.0f} % of a side is aligned operator by "
            "operator: a coarse region does the same work on both sides, and where in it the time differs is open"
        )
        notes.append(Note("coarse_by_value", text))
        return None
    why = LOW_COVERAGE
    for letter, share, unmatched, left in zip(
        "AB", shares, (coverage.unmatched_ns_a, coverage.unmatched_ns_b), left_ns, strict=True
    ):
        # Had those kernels a place, enough would be aligned.
        if share == min(shares) and unmatched and left > 0.5 * unmatched:
            part = 100 * left * (1 - share) / unmatched
            why = f"most of the device time of side {letter} ({part:.0f} %) belongs to no step or has no launch in the recording"
    notes.insert(0, Note("low_coverage", f"{why}: only {100 * min(shares):.0f} % of a side is aligned"))
    return why


def note_variation(aligned: list[Aligned], work: str, notes: list[Note]) -> None:
    """Say so where the time of a side's work (``kernel time`` or ``operator time``) varies from step to step."""
    for side, averages in (("A", [p.a for p in aligned]), ("B", [p.b for p in aligned])):
        found = spread(averages)
        if found.cv_percent is not None and found.cv_percent > 10.0:
            notes.append(
                Note(
                    "step_variation",
                    f"side {side}: {work} varies by {found.cv_percent:.0f} % between its {found.n_steps} steps "
                    f"(mean {found.mean_ns / 1e6:.3f} ms, median {found.median_ns / 1e6:.3f} ms)",
                )
            )


def devices(side: Side) -> list[str]:
    """Return the names of the devices that did a side's work, each once: accelerators, or the processor where none did.

    Example: a recording with kernels lists a GPU and the processor beside it. Only the GPU counts.
    """
    named = (d for d in side.recording.manifest.devices if d.name)
    return sorted({str(d.name) for d in named if (d.kind != "cpu") is side.on_device})


def same_devices(a: Side, b: Side) -> bool | None:
    """Return whether both sides ran on devices of the same names.

    None where a side names none, and where the work ran on processors of different names: a name says little of them.
    """
    names_a, names_b = devices(a), devices(b)
    if not names_a or not names_b:
        return None
    return names_a == names_b if a.on_device else (names_a == names_b or None)
