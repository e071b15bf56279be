"""How right an alignment is whose truth is known: precision, recall and false differences, weighted by time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from magneton.analysis.diff.document import DiffResult
from magneton.analysis.recording import Recording
from magneton.schemas.kinds import Verdict

_COLUMNS = ("op_id", "launch_id", "dur_ns", "category", "registers_per_thread", "rank")


@dataclass(frozen=True)
class Placed:
    """A kernel of one side: the region that holds its operator, and its time per step of that region's stratum, ns."""

    region: int
    time_ns: float


@dataclass
class Outcome:
    """What a diff says about numbered kernels.

    Attributes:
        a: kernels of side A by number.
        b: the same of side B.
        paired: regions that count as aligned.
        operators: operators per step of each region on side A and B.
        delta_ns: difference of each region, B minus A.
        coverage: aligned share of side A and of side B, by the diff.
        findings: number of findings.
        found: regions in groups that are findings.
        notes: codes of the notes, in order.
    """

    a: dict[int, Placed]
    b: dict[int, Placed]
    paired: set[int]
    operators: dict[int, tuple[int, int]]
    delta_ns: dict[int, float]
    coverage: tuple[float, float]
    findings: int
    found: set[int]
    notes: list[str]
    steps: tuple[int, int] = (1, 1)

    def signature(self, *, swapped: bool = False) -> object:
        """Return all that must stay the same when order, blanks or names of a file change."""
        sides = (self.b, self.a) if swapped else (self.a, self.b)
        rows: dict[int, tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
        for index, side in enumerate(sides):
            for number, placed in side.items():
                rows[placed.region][index].add(number)
        sign = -1.0 if swapped else 1.0
        regions = sorted(
            (sorted(left), sorted(right), r in self.paired, round(sign * self.delta_ns[r], 3), r in self.found)
            for r, (left, right) in rows.items()
        )
        return regions, self.findings


@dataclass
class Score:
    """Measures of one diff; shares are of time, 0 to 1.

    Attributes:
        precision: share of the time in aligned regions that lies beside its true partner.
        recall: share of the time with a true partner that lies beside it in an aligned region.
        aligned: share of side A and of side B that the diff calls aligned.
        false: summed differences that regions show and that are not there, over side A's time.
        changed: difference shown of what was changed over the true one; None where nothing was.
        dropped: share of side A that side B does not have.
        findings: number of findings.
        found: whether what was changed is a finding; None where nothing was, or where there are too few steps for any.
    """

    precision: float
    recall: float
    aligned: tuple[float, float]
    false: float
    changed: float | None
    dropped: float
    findings: int
    found: bool | None
    notes: list[str] = field(default_factory=list)


def outcome(a: Recording, b: Recording, result: DiffResult) -> Outcome:
    """Read where each numbered kernel of two recordings stands in their diff."""
    document = result.document
    steps = {s.name: (s.n_steps_a, s.n_steps_b) for s in document.comparison.strata}
    stratum = {r.region_id: r.stratum for r in document.regions}
    places: dict[tuple[str, str, int], int] = {}
    held: dict[int, tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
    for row in result.tables["matches"][1].to_pylist():
        kind, ident = ("op_id", row["op_id"]) if row["op_id"] is not None else ("launch_id", row["launch_id"])
        places[row["side"], kind, ident] = row["region_id"]
        held[row["region_id"]][row["side"] == "b"].add(ident)

    def side(recording: Recording, letter: str, rank: int) -> dict[int, Placed]:
        found = {}
        for row in _kernels(recording, rank).to_pylist():
            kind = "op_id" if row["op_id"] is not None else "launch_id"
            region = places.get((letter, kind, row[kind]))
            if region is not None and row["category"] == "kernel" and row["registers_per_thread"] is not None:
                count = steps[stratum[region]][letter == "b"]
                found[row["registers_per_thread"]] = Placed(region, float(row["dur_ns"] or 0) / count)
        return found

    regions = document.regions
    # What is not comparable is listed with the reason; it claims nothing.
    findings = [f for f in document.findings if f.verdict != Verdict.NOT_COMPARABLE]
    groups = {f.group_id for f in findings}
    return Outcome(
        side(a, "a", document.a.rank),
        side(b, "b", document.b.rank),
        {r.region_id for r in regions if r.kind == "paired" and not r.coarse},
        {r: (round(len(x) / steps[stratum[r]][0]), round(len(y) / steps[stratum[r]][1])) for r, (x, y) in held.items()},
        {r.region_id: (r.time_ns_b or 0.0) - (r.time_ns_a or 0.0) for r in regions},
        (document.coverage.a or 0.0, document.coverage.b or 0.0),
        len(findings),
        {r.region_id for r in regions if r.group_id in groups},
        [note.code for note in document.comparison.notes],
        min(steps.values(), key=min),
    )


def _kernels(recording: Recording, rank: int) -> pa.Table:
    return recording.of_rank("kernels", rank, _COLUMNS)


def score(
    found: Outcome, truth: Mapping[int, list[int]], changed: Collection[int] = (), dropped: Collection[int] = ()
) -> Score:
    """Compare what a diff says with the truth of an edit.

    A kernel counts in full where its region holds its true partner and one side of the region is a single operator. Where it
    holds several on both sides, it counts one over the smaller number: the region does not tell which of them belong together.

    Args:
        found: what the diff says.
        truth: numbers of A by the number of B that does their work, where these differ.
        changed: numbers whose time was changed.
        dropped: numbers that side B lacks.
    """
    a, b = found.a, found.b
    to_a = {number: truth.get(number, [number]) for number in b}
    to_b = {number: own for own, numbers in to_a.items() for number in numbers}
    right = shown = there = 0.0
    for side, other, partners in ((a, b, {n: [m] for n, m in to_b.items()}), (b, a, to_a)):
        for number, placed in side.items():
            true = [other[m].region for m in partners.get(number, []) if m in other]
            paired = placed.region in found.paired
            credit = 0.0
            if paired and placed.region in true:
                credit = placed.time_ns / max(1, min(found.operators[placed.region]))
            right += credit
            shown += placed.time_ns if paired else 0.0
            there += placed.time_ns if true else 0.0
    total = sum(placed.time_ns for placed in a.values()) or 1.0
    share: dict[int, float] = {}
    for number, numbers in to_a.items():
        whole = sum(a[m].time_ns for m in numbers if m in a)
        for m in numbers:
            if m in a:
                share[m] = b[number].time_ns * a[m].time_ns / whole if whole else 0.0
    true_delta: dict[int, float] = defaultdict(float)
    for number, placed in a.items():
        true_delta[placed.region] += share.get(number, 0.0) - placed.time_ns
    for number, placed in b.items():
        if not any(m in a for m in to_a[number]):
            true_delta[placed.region] += placed.time_ns
    false = sum(abs(delta - true_delta[region]) for region, delta in found.delta_ns.items()) / total
    touched = {a[n].region for n in changed if n in a}
    truly = sum(share.get(n, 0.0) - a[n].time_ns for n in changed if n in a)
    # Work that one side lost to a cut is no region of its own; regions of many operators show what was changed beside the rest.
    shown_delta = sum(found.delta_ns[region] for region in touched)
    enough = min(found.steps) >= 5
    return Score(
        precision=right / shown if shown else 1.0,
        recall=right / there if there else 1.0,
        aligned=found.coverage,
        false=false,
        changed=shown_delta / truly if truly else None,
        dropped=sum(a[n].time_ns for n in dropped if n in a) / total,
        findings=found.findings,
        found=bool(touched & found.found) if changed and enough else None,
        notes=found.notes,
    )
