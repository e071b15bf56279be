"""Energy of a serving benchmark: joules per output token and per request, over the window whose totals the benchmark states."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.compute as pc

from magneton.analysis.energy.attribute import best_series
from magneton.analysis.energy.machine import line_of, power_of, steps_of, used_gpus
from magneton.analysis.energy.measure.result import EnergyResult, Window, sum_results
from magneton.analysis.energy.measure.totals import SensorSeries, series_of
from magneton.analysis.recording import Recording
from magneton.schemas.documents.diff import ServedDoc
from magneton.schemas.kinds import DeviceKind

_STEP_COLUMNS = ("ts_ns", "dur_ns", "rank", "capture", "kind", "phase")
# The steps of a trace are taken for a benchmark's window if they last as long, up to this share.
_SAME_LENGTH = 0.05
_LEAST_COVERAGE = 0.9


def served(recording: Recording, rank: int) -> ServedDoc | None:
    """Return the energy of the GPUs over the window of a benchmark. None without a benchmark, its window or power over it.

    The energy is that of the GPUs that the program used, idle time included. Prefill and decode stand apart where the steps of
    the trace say which they are; steps that did both are in neither.
    """
    work = recording.manifest.workload
    power = power_of(recording, rank)
    if work.requests is None or work.duration_s is None or not power.num_rows:
        return None
    steps = steps_of(recording, rank, _STEP_COLUMNS)
    steps = steps.filter(pc.and_(pc.is_valid(steps["ts_ns"]), pc.is_valid(steps["dur_ns"])))
    window, basis = _window(recording, rank, steps, work.duration_s)
    used = used_gpus(recording, rank, power)
    gpus = [s for s in series_of(power) if s.device_kind == DeviceKind.GPU and (used is None or s.device_id in used)]
    total = None if window is None else _energy(gpus, window)
    if window is None or total is None or total.value_j is None or (total.coverage or 0.0) < _LEAST_COVERAGE:
        return None
    return ServedDoc(
        basis=basis,
        window_s=window.length_ns / 1e9,
        covered_s=total.covered_s,
        total_j=total.value_j,
        requests=work.requests,
        input_tokens=work.input_tokens,
        output_tokens=work.output_tokens,
        j_per_output_token=_per(total.value_j, work.output_tokens),
        j_per_request=_per(total.value_j, work.requests),
        prefill_j=_phase(gpus, steps, "prefill"),
        decode_j=_phase(gpus, steps, "decode"),
        label=total.provenance.label,
        warnings=list(total.warnings),
    )


def _window(recording: Recording, rank: int, steps: pa.Table, duration_s: float) -> tuple[Window | None, str]:
    given, line = recording.manifest.workload.details.get("window_unix_ns"), line_of(recording, rank)
    if isinstance(given, list) and len(given) == 2 and line is not None:
        return Window(int(given[0]) - line, int(given[1]) - line), "window of the benchmark"
    if not steps.num_rows:
        return None, ""
    span = Window(pc.min(steps["ts_ns"]).as_py(), pc.max(pc.add(steps["ts_ns"], steps["dur_ns"])).as_py())
    if abs(span.length_ns / 1e9 - duration_s) > _SAME_LENGTH * duration_s:
        return None, ""
    return span, "steps of the trace, which last as long as the benchmark"


def _energy(gpus: list[SensorSeries], window: Window) -> EnergyResult | None:
    found = []
    for device in sorted({s.device_id for s in gpus}, key=str):
        best = best_series([s for s in gpus if s.device_id == device], window)
        if best is not None:
            found.append(best[1])
    return sum_results(found) if found else None


def _phase(gpus: list[SensorSeries], steps: pa.Table, phase: str) -> float | None:
    """Return the energy of all steps of a phase, J; None where there are none or one is not covered."""
    mine = steps.filter(pc.equal(steps["phase"], phase))
    joules = []
    for start, length in zip(mine["ts_ns"].to_pylist(), mine["dur_ns"].to_pylist(), strict=True):
        one = _energy(gpus, Window(start, start + length))
        if one is None or one.value_j is None or one.partial:
            return None
        joules.append(one.value_j)
    return math.fsum(joules) if joules else None


def _per(joules: float, count: int | None) -> float | None:
    return joules / count if count else None
