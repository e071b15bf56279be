"""One recording by itself: what a step of it takes, by the steps and energies that a diff would use of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from magneton.analysis.align.steps import choose_steps, usable_steps
from magneton.analysis.align.tree import Interner
from magneton.analysis.align.work import Step, load_side, total_work
from magneton.analysis.diff.joules.energy import side_energy
from magneton.analysis.diff.joules.ledger import ledgers_by_step
from magneton.analysis.diff.settings import DiffSettings
from magneton.analysis.energy.t_distribution import t_quantile
from magneton.analysis.recording import Recording
from magneton.schemas.checks import need_number
from magneton.schemas.documents.diff import LedgerDoc, Note
from magneton.schemas.documents.measure import MeasureDocument, Quantity
from magneton.schemas.errors import UsageError

_LEAST_STEPS = 3


@dataclass(frozen=True)
class MeasureSettings:
    """What the user decided; the names are those of ``DiffSettings``. A value that makes no sense raises ``UsageError``.

    Attributes:
        skip_steps: leading steps left out; None judges by time.
        all_steps: leave out no step.
        rank: rank that is measured; None takes the lowest.
        min_power_coverage: least share of the time that power samples must cover, 0 to 1.
        idle_power: power of a device at rest, W, taken off the joules of kernels; None counts everything.
    """

    skip_steps: int | None = None
    all_steps: bool = False
    rank: int | None = None
    min_power_coverage: float = 0.9
    idle_power: float | None = None

    def __post_init__(self) -> None:
        DiffSettings(
            skip_steps=self.skip_steps,
            all_steps=self.all_steps,
            rank=self.rank,
            min_power_coverage=self.min_power_coverage,
        )
        if self.idle_power is not None:
            need_number("idle_power", self.idle_power, least=0)


def measure(recording: Recording, settings: MeasureSettings, tool: str) -> MeasureDocument:
    """Return what a step of a recording takes.

    Raises:
        UsageError: the recording has no such rank, or fewer steps than are to be left out.
        NotComparableError: it has no operator or device activity.
        InsufficientPowerDataError: its power samples cover less of the kernels' time than they must.
    """
    ranks = recording.ranks()
    rank = ranks[0] if settings.rank is None else settings.rank
    if rank not in ranks:
        raise UsageError(f"has no rank {rank} (it has {ranks})", path=recording.directory, remedy="give one it has")
    kernels = side_energy(recording, rank, settings.min_power_coverage, settings.idle_power)
    side = load_side(recording, rank, None)
    steps = usable_steps(side, Interner())
    # Of one recording both sides are the same: the choice is that of a diff with itself.
    choice = choose_steps(steps, steps, skip=settings.skip_steps, all_steps=settings.all_steps)
    used = list({id(step): step for stratum in choice.strata for step in stratum.a}.values())
    notes = [Note(code, text.removeprefix("side A: ")) for code, text in choice.notes if not text.startswith("side B:")]
    quantities = _times(used)
    for ledger, joules in ledgers_by_step(recording, rank, [step.row for step in used if step.row]):
        quantities.append(_energy(ledger, joules, settings.min_power_coverage, notes))
    if not recording.table("power", ("run_id",)).num_rows:
        notes.append(Note("no_power", "no power was recorded: the energy is unknown"))
    return MeasureDocument(
        run_id=recording.manifest.run_id,
        label=recording.manifest.label,
        tool=tool,
        rank=rank,
        unit=choice.unit,
        on_device=side.on_device,
        incomplete=recording.manifest.incomplete,
        n_steps_recorded=len(steps),
        steps_used=[step.name for step in used],
        quantities=quantities,
        energy=kernels.document if kernels else None,
        notes=notes,
    )


def _times(used: Sequence[Step]) -> list[Quantity]:
    times = [total_work([step.tree]).time_ns for step in used]
    host = [step.host_ns for step in used if step.host_ns]
    found = [Quantity("time", "ns", mean(times), *_interval(times), n_steps=len(times))]
    if len(host) == len(used):
        found.append(Quantity("host_time", "ns", mean(host), *_interval(host), n_steps=len(host)))
    return found


def _energy(ledger: LedgerDoc, joules: Sequence[float] | None, least: float, notes: list[Note]) -> Quantity:
    coverage = None if ledger.covered_s is None or not ledger.window_s else ledger.covered_s / ledger.window_s
    value = ledger.per_step_j
    if coverage is not None and coverage < least:
        text = f"{ledger.device_kind}: power is known for {coverage:.1%} of the time, {least:.0%} is needed"
        notes.append(Note("power_coverage", text))
        value, joules = None, None
    low, high = _interval(joules or ())
    return Quantity(
        "energy",
        "J",
        value,
        low,
        high,
        n_steps=ledger.n_steps,
        device_kind=ledger.device_kind,
        label=ledger.label,
        fields=ledger.fields,
        coverage=coverage,
        simulated=ledger.simulated,
        warnings=ledger.warnings,
    )


def _interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the 95 % interval of the mean of values that scatter as they please; NULL where they are too few."""
    if len(values) < _LEAST_STEPS:
        return None, None
    half = t_quantile(0.05, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean(values) - half, mean(values) + half
