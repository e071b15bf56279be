"""Ledgers: the energy that each kind of device used over the steps of a recording.

A ledger does not say which kernel used the energy. Processors, memory, GPUs and meters are never added up, because a meter at
the wall includes the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from magneton.analysis.energy import machine
from magneton.analysis.energy.attribute import best_series, is_simulated
from magneton.analysis.energy.machine import power_of, steps_of, used_gpus
from magneton.analysis.energy.measure.result import EnergyResult, Window, sum_results
from magneton.analysis.energy.measure.scopes import holders
from magneton.analysis.energy.measure.totals import SensorSeries, series_of
from magneton.analysis.recording import Needs, Recording
from magneton.schemas.documents.diff import LedgerDoc
from magneton.schemas.kinds import DeviceKind, EnergyLabel, Flag, StepKind

_STEP_COLUMNS = ("ts_ns", "dur_ns", "rank", "kind", "capture")
# What ``ledgers`` asks of a recording.
NEEDS: Needs = {"steps": _STEP_COLUMNS, **machine.NEEDS}
# A step with fewer readings in it has an energy that is mostly its neighbours'.
_LEAST_READINGS = 3


def ledgers(recording: Recording, rank: int, used: Sequence[dict[str, Any]]) -> list[LedgerDoc]:
    """Return a ledger for each kind of device whose power or energy was read while steps of the rank ran.

    If the bare program was measured, its steps count. Otherwise the steps of the profile count, from the first step that is
    compared to the last.

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
    power = power_of(recording, rank)
    steps = steps_of(recording, rank, _STEP_COLUMNS)
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
    by_kind: dict[tuple[str, bool], list[SensorSeries]] = {}
    names = used_gpus(recording, rank, power)
    for one in series_of(power):
        mine = one.device_kind != DeviceKind.GPU or names is None or one.device_id in names
        by_kind.setdefault((one.device_kind or "unknown", not mine), []).append(one)
    found = []
    for kind, other in sorted(by_kind):
        series = by_kind[kind, other]
        ids = pa.array({s.device_id for s in series}, pa.string())
        simulated = is_simulated(power.filter(pc.is_in(power["device_id"], value_set=ids)))
        for chosen in (bare, profiled):
            ledger = _ledger(kind, series, chosen, simulated) if chosen.num_rows else None
            if ledger is not None:
                ledger.used = not other
                found.append((ledger, series, chosen))
                break
    kinds = {ledger.device_kind for ledger, _, _ in found}
    for ledger, _, _ in found:
        ledger.part_of = holders(ledger.device_kind, kinds)
    return found


def _ledger(kind: str, series: list[SensorSeries], steps: pa.Table, simulated: bool) -> LedgerDoc | None:
    window = Window(pc.min(steps["ts_ns"]).as_py(), pc.max(pc.add(steps["ts_ns"], steps["dur_ns"])).as_py())
    results, read, unread = [], [], []
    for device in sorted({s.device_id for s in series}, key=lambda name: name or ""):
        best = best_series([s for s in series if s.device_id == device], window)
        if best is None:
            continue
        if not best[1].covered_s:
            unread.append((device, best[1]))
            continue
        read.append(device or "unnamed")
        results.append(best[1])
    if not results:
        return _unknown(kind, unread, steps, window, simulated)
    total = sum_results(results)
    codes = {*total.warnings, *({Flag.DEVICE_UNREAD} if unread else ())}
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
        warnings=sorted(codes),
        devices=read,
        unread=[device or "unnamed" for device, _ in unread],
    )


def _unknown(
    kind: str, unread: list[tuple[str | None, EnergyResult]], steps: pa.Table, window: Window, simulated: bool
) -> LedgerDoc | None:
    """Return the ledger of devices whose readings lie in the window and give no energy (a counter that stands still)."""
    codes = {code for _, result in unread for code in result.warnings if result.n_samples_inside}
    if not codes:
        return None
    return LedgerDoc(
        device_kind=kind,
        n_devices=len(unread),
        fields=sorted({r.provenance.field for _, r in unread if r.provenance.field is not None}),
        n_steps=steps.num_rows,
        window_s=window.length_ns / 1e9,
        covered_s=0.0,
        total_j=None,
        per_step_j=None,
        label=EnergyLabel.NOT_IDENTIFIABLE,
        simulated=simulated,
        warnings=sorted(codes),
        unread=[device or "unnamed" for device, _ in unread],
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
