"""Ledgers: the energy that each kind of device used over the steps of a recording.

A ledger does not say which kernel used the energy. Processors, memory, GPUs and meters are never added up, because a meter at
the wall includes the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from magneton.analysis.energy.attribute import best_series, is_simulated
from magneton.analysis.energy.measure.result import Window, sum_results
from magneton.analysis.energy.measure.totals import SensorSeries, series_of
from magneton.analysis.recording import Needs, Recording
from magneton.schemas.diffdoc import LedgerDoc
from magneton.schemas.kinds import StepKind

_STEP_COLUMNS = ("ts_ns", "dur_ns", "rank", "kind")
# What ``ledgers`` asks of a recording.
NEEDS: Needs = {"steps": _STEP_COLUMNS, "power": None}


def ledgers(recording: Recording, rank: int, used: Sequence[dict[str, Any]]) -> list[LedgerDoc]:
    """Return a ledger for each kind of device whose power or energy was read while steps of the rank ran.

    If the bare program was measured, its steps count. Otherwise the steps of the profile count, from the first step that is
    compared to the last.

    Args:
        recording: the recording.
        rank: rank whose steps count.
        used: rows of ``steps`` that are compared.
    """
    power = recording.table("power")
    steps = recording.of_rank("steps", rank, _STEP_COLUMNS)
    steps = steps.filter(pc.and_(pc.is_valid(steps["ts_ns"]), pc.is_valid(steps["dur_ns"])))
    if not power.num_rows or not steps.num_rows:
        return []
    bare = steps.filter(pc.equal(steps["kind"], StepKind.BARE_STEP))
    profiled = steps.filter(pc.not_equal(pc.fill_null(steps["kind"], ""), StepKind.BARE_STEP))
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
                found.append(one)
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
