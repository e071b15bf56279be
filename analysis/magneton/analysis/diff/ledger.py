"""Ledgers: what each kind of device used over the steps of a recording, whether or not it can be told what for.

Processors, memory, GPUs and meters are counted apart and never added up: a meter at the wall holds the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from magneton.analysis.diff.bare_energy import BARE_STEP
from magneton.analysis.energy.attribute import best_series, is_simulated
from magneton.analysis.energy.measure.result import EnergyResult, Window, sum_results
from magneton.analysis.energy.measure.totals import SensorSeries, series_of
from magneton.analysis.recording import Needs, Recording
from magneton.schemas.diffdoc import LedgerDoc

_STEP_COLUMNS = ("ts_ns", "dur_ns", "rank", "kind")
# What ``ledgers`` asks of a recording.
NEEDS: Needs = {"steps": _STEP_COLUMNS, "power": None}
# A step with fewer readings in it has an energy that is mostly its neighbours'.
_LEAST_READINGS = 3


def ledgers(recording: Recording, rank: int, used: Sequence[dict[str, Any]]) -> list[LedgerDoc]:
    """Return a ledger for each kind of device whose power or energy was read while steps of the rank ran.

    The steps are those of the bare program where it was measured by itself, else those of the profile from the first
    that is compared to the last.

    Args:
        recording: the recording.
        rank: rank whose steps count.
        used: rows of ``steps`` that are compared.
    """
    return [ledger for ledger, _, _ in _found(recording, rank, used)]


def ledgers_by_step(
    recording: Recording, rank: int, used: Sequence[dict[str, Any]]
) -> list[tuple[LedgerDoc, list[float] | None]]:
    """Return each of the ``ledgers`` with the energy from the begin of every step to that of the next, J.

    The energies are NULL where the sensor is too slow to tell the steps apart.
    """
    return [(ledger, _by_step(series, steps)) for ledger, series, steps in _found(recording, rank, used)]


def _found(
    recording: Recording, rank: int, used: Sequence[dict[str, Any]]
) -> list[tuple[LedgerDoc, list[SensorSeries], pa.Table]]:
    """Return each ledger with the readings and the steps it is made of."""
    power = recording.table("power")
    steps = recording.of_rank("steps", rank, _STEP_COLUMNS)
    steps = steps.filter(pc.and_(pc.is_valid(steps["ts_ns"]), pc.is_valid(steps["dur_ns"])))
    if not power.num_rows or not steps.num_rows:
        return []
    bare = steps.filter(pc.equal(steps["kind"], BARE_STEP))
    profiled = steps.filter(pc.not_equal(pc.fill_null(steps["kind"], ""), BARE_STEP))
    starts = [row["ts_ns"] for row in used if row["ts_ns"] is not None]
    if starts:
        inside = pc.and_(
            pc.greater_equal(profiled["ts_ns"], min(starts)), pc.less_equal(profiled["ts_ns"], max(starts))
        )
        profiled = profiled.filter(inside)
    by_kind: dict[str, list[SensorSeries]] = {}
    for series in series_of(power):
        by_kind.setdefault(series.device_kind or "unknown", []).append(series)
    found = []
    for kind in sorted(by_kind):
        simulated = is_simulated(power.filter(pc.equal(pc.fill_null(power["device_kind"], "unknown"), kind)))
        for chosen in (bare, profiled):
            one = _ledger(kind, by_kind[kind], chosen, simulated) if chosen.num_rows else None
            if one is not None:
                found.append((one, by_kind[kind], chosen))
                break
    return found


def _ledger(kind: str, series: list[SensorSeries], steps: pa.Table, simulated: bool) -> LedgerDoc | None:
    window = Window(pc.min(steps["ts_ns"]).as_py(), pc.max(pc.add(steps["ts_ns"], steps["dur_ns"])).as_py())
    results = []
    for device in sorted({s.device_id for s in series}, key=lambda name: name or ""):
        best = best_series([s for s in series if s.device_id == device], window)
        if best is None or not best[1].covered_s:
            return None
        results.append(best[1])
    total = sum_results(results)
    fields = {r.provenance.field for r in results if r.provenance.field is not None}
    per_step = None if total.value_j is None else total.value_j / steps.num_rows
    return LedgerDoc(
        device_kind=kind,
        n_devices=len(results),
        fields=sorted(fields),
        n_steps=steps.num_rows,
        window_s=window.length_ns / 1e9,
        covered_s=total.covered_s,
        total_j=total.value_j,
        per_step_j=per_step,
        label=total.provenance.label,
        simulated=simulated,
        warnings=sorted(total.warnings),
    )


def _by_step(series: list[SensorSeries], steps: pa.Table) -> list[float] | None:
    """Return the energy of each step up to the next, J; NULL where one is not covered or holds too few readings."""
    rows = sorted(zip(steps["ts_ns"].to_pylist(), steps["dur_ns"].to_pylist(), strict=True))
    edges = [start for start, _ in rows] + [max(start + length for start, length in rows)]
    energies = []
    for start, end in pairwise(edges):
        window = Window(start, end)
        joules = 0.0
        for device in {s.device_id for s in series}:
            best = best_series([s for s in series if s.device_id == device], window)
            if best is None or not _resolved(best[1]):
                return None
            joules += best[1].value_j or 0.0
        energies.append(joules)
    return energies


def _resolved(found: EnergyResult) -> bool:
    """Say whether a window is long enough for what its readings look back on, and holds enough of them."""
    trusted = found.min_window_for_trust_s is None or (found.window_s or 0.0) >= found.min_window_for_trust_s
    return found.value_j is not None and not found.partial and trusted and found.n_samples_inside >= _LEAST_READINGS
