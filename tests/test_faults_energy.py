"""Fault cases of power logs, counters, clocks and devices. One test per expected value.

Energy comes for a device over a window. Where one kernel has a device for itself, that is the energy of its time; sharing
energy out to kernels, operators and phases is not built yet.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.fault_cases import (
    ATTRIBUTION,
    ENERGY_IN_DIFF,
    IDLE,
    Case,
    Context,
    busy_ns,
    capture,
    close,
    equal,
    params,
)
from tests.normalized import Normalizer, Run
from tests.power_cases import S, accept_powered, of_kernel, over, run_json

from magneton.analysis.energy.devices import DeviceMap, map_devices
from magneton.analysis.energy.result import EnergyResult, need_coverage, sum_results
from magneton.analysis.energy.totals import series_of
from magneton.flows.normalize import ExtraFiles, normalize
from magneton.schemas.errors import ClockAlignmentError, InsufficientPowerDataError


def while_busy_j(run: Run) -> float:
    """Energy of the one device while any kernel runs (none overlap here)."""
    assert busy_ns(run) == sum(k["dur_ns"] for k in run.rows("kernels"))
    spans = [(k["ts_ns"], k["ts_ns"] + k["dur_ns"]) for k in run.rows("kernels")]
    return sum(need_coverage(over(run, *span)["GPU-aaaa"]) for span in spans)


# --- 23, 24, 25, 62: energy of devices -----------------------------------------------------------------------------------

GRAPH = Case(
    "23-cuda-graph-replay",
    {"energy_j.total_kernels": lambda c, v: close(while_busy_j(c.powered()), v)},
    later={
        "energy_j.gemm_qkv": ATTRIBUTION,
        "energy_j.softmax": ATTRIBUTION,
        "energy_j.gemm_out": ATTRIBUTION,
    },
)

UNLAUNCHED = Case(
    "24-kernels-without-launch",
    {"energy_j.window_0_150us": lambda c, v: close(need_coverage(over(c.powered(), 0, 150_000)["GPU-aaaa"]), v)},
    later={
        "energy_j.op": ATTRIBUTION,
        "energy_j.unattributed": ATTRIBUTION,
        "energy_j.idle": ATTRIBUTION,
        "forbidden.1": ATTRIBUTION,
    },
)


def _device(context: Context, number: str) -> EnergyResult:
    """Energy of a device over the whole trace, as run.json maps devices to sensors."""
    ids = map_devices([], explicit={int(n): d for n, d in run_json(context.name)["device_map"].items()}).ids
    start, end = _span(context.powered())
    return over(context.powered(), start, end)[ids[int(number)]]


def _span(run: Run) -> tuple[int, int]:
    kernels = run.rows("kernels")
    return min(k["ts_ns"] for k in kernels), max(k["ts_ns"] + k["dur_ns"] for k in kernels)


def _on(run: Run, device: str) -> list[dict[str, Any]]:
    return [k for k in run.rows("kernels") if k["device"] == int(device)]


def _busy_on(context: Context, value: int, device: str) -> None:
    kernels = _on(context.powered(), device)
    instants = {ns for k in kernels for ns in range(k["ts_ns"], k["ts_ns"] + k["dur_ns"], 1000)}
    assert len(instants) * 1000 == value


OVERLAP = Case(
    "25-overlapping-streams-energy",
    {
        "verdict": lambda c, v: accept_powered(c.powered()),
        "window_us": lambda c, v: equal([ns / 1000 for ns in _span(c.powered())], v),
        "busy_ns.*": _busy_on,
        "sum_of_durations_ns.*": lambda c, v, k: equal(sum(r["dur_ns"] for r in _on(c.powered(), k)), v),
        "device_energy_j.*": lambda c, v, k: close(need_coverage(_device(c, k)), v),
    },
    later={
        "equal_share.*": ATTRIBUTION,
        "idle_j.*": ATTRIBUTION,
        "conservation_error_max": ATTRIBUTION,
        "forbidden.*": ATTRIBUTION,
    },
)

ITERATIONS = Case(
    "62-diff-different-iterations",
    {"totals_j.*": lambda c, v, k: close(while_busy_j(c.powered(f"{k.lower()}.json")), v)},
    later={"per_step_j_steady.*": ATTRIBUTION},
)

# --- 41, 45 between samples -------------------------------------------------------------------------------------------------


def _gap(context: Context) -> EnergyResult:
    return of_kernel(context.powered(), context.powered().rows("kernels")[0]["name"])


def _partial(context: Context, value: Any) -> None:
    result = _gap(context)
    assert result.value_j == pytest.approx(500.0)
    assert result.partial
    with pytest.raises(InsufficientPowerDataError, match=r"16\.7%"):
        need_coverage(result)
    assert need_coverage(result, minimum=0.1) == result.value_j


GAP = Case(
    "41-power-sample-gap",
    {
        "verdict": lambda c, v: equal(_gap(c).warnings, ("power_gap",)),
        "window_s": lambda c, v: equal(_gap(c).window_s, v),
        "covered_s": lambda c, v: equal(_gap(c).covered_s, v),
        "coverage": lambda c, v: close(_gap(c).coverage, v),
        "gap_s": lambda c, v: equal([[end / S for end in gap] for gap in _gap(c).gaps], [v]),
        "energy_j.measured": lambda c, v: close(_gap(c).value_j, v),
        "energy_j.estimated_if_bridged": lambda c, v: close(_gap(c).bridged_j, v),
        "measured_energy_of_kernel": _partial,
        "forbidden.0": lambda c, v: equal((_gap(c).provenance.label, round(_gap(c).value_j or 0)), ("measured", 500)),
    },
    later={"diff_using_this_run": ENERGY_IN_DIFF},
)


def _flagged(context: Context, value: str, kernel: str) -> None:
    assert value in of_kernel(context.powered(), kernel).warnings


def _finite(context: Context, value: Any) -> None:
    found = [of_kernel(context.powered(), k).value_j for k in ("a", "b", "c", "after")]
    assert all(j is None or (math.isfinite(j) and j > 0) for j in found)


SHORT = Case(
    "45-kernel-shorter-than-sample-period",
    {
        "verdict": lambda c, v: equal(of_kernel(c.powered(), "after").warnings, ("no_power_data", "power_edge")),
        # no two kernels share the device, so the energy of each is the device's over its time
        "energy_j.*": lambda c, v, k: close(of_kernel(c.powered(), k).value_j, v),
        "n_samples_inside.*": lambda c, v, k: equal(of_kernel(c.powered(), k).n_samples_inside, v),
        "flags.*": _flagged,
        "forbidden.0": lambda c, v: equal([of_kernel(c.powered(), k).value_j == 0 for k in "abc"], [False] * 3),
        "forbidden.1": _finite,
        "forbidden.2": lambda c, v: equal(of_kernel(c.powered(), "after").value_j, None),
    },
    later={"per_kernel_uncertainty_reported": ATTRIBUTION},
)

# --- 47 idle ---------------------------------------------------------------------------------------------------------------


def _idle_w(context: Context, value: float) -> None:
    start, end = (round(s * S) for s in run_json(context.name)["idle_window_s"])
    result = over(context.powered(), start, end)["GPU-aaaa"]
    assert need_coverage(result) / (result.window_s or 0.0) == pytest.approx(value)


BASELINE = Case(
    "47-idle-power-subtraction",
    {
        "power.csv.verdict": lambda c, v: accept_powered(c.powered()),
        "power.csv.idle_w": _idle_w,
        # one kernel after the other on one device: gross energy is the device's over the time of each
        "power.csv.gross_j.*": lambda c, v, k: close(need_coverage(of_kernel(c.powered(), k)), v),
        "below_idle.csv.gross_j.*": lambda c, v, k: close(
            need_coverage(of_kernel(c.powered(None, "below_idle.csv"), k)), v
        ),
    },
    later={
        "power.csv.idle_share_j.*": IDLE,
        "power.csv.dynamic_j.*": IDLE,
        "below_idle.csv.verdict": IDLE,
        "below_idle.csv.warning": IDLE,
        "below_idle.csv.dynamic_j.*": IDLE,
        "basis_always_labelled": IDLE,
        "diff_between_gross_and_dynamic": ENERGY_IN_DIFF,
        "forbidden.*": IDLE,
    },
)

# --- 48 which device ---------------------------------------------------------------------------------------------------------


def _mapped(context: Context, file: str | None) -> tuple[DeviceMap, dict[str | None, EnergyResult]]:
    run = context.powered()
    result = over(run, *_span(run))
    used = sorted({k["device"] for k in run.rows("kernels")})
    if file is None:
        return map_devices(result, used=used), result
    known = run_json(context.name, file)
    physical = [(d["index"], d["uuid"]) for d in known["nvml"]]
    return map_devices(result, used=used, physical=physical, env=known["env"]), result


def _joules(context: Context, value: Any, key: str) -> None:
    """``<file>.<what>`` of one run.json."""
    file, _, what = key.partition(".json.")
    mapped, result = _mapped(context, f"{file}.json")
    parts = {str(n): result[device] for n, device in mapped.ids.items()}
    found: dict[str, Any] = {f"energy_j.{n}": r.value_j for n, r in parts.items()}
    found["energy_j.total"] = sum_results(parts.values()).value_j
    found["excluded"] = list(mapped.excluded)
    found["warning"] = next(iter(mapped.warnings), None)
    found["verdict"] = "accept_with_warning" if mapped.warnings else "accept"
    assert found[what] == pytest.approx(value) if isinstance(value, float) else found[what] == value


def _bad_entry(context: Context, value: Any) -> None:
    mapped, result = _mapped(context, "run_bad.json")
    assert {n: result[d].value_j for n, d in mapped.ids.items()} == pytest.approx({0: 300.0, 1: 100.0})
    assert "visible_devices_invalid" in mapped.warnings


def _unknown_map(context: Context, value: Any) -> None:
    with pytest.raises(InsufficientPowerDataError, match="device mapping unknown"):
        _mapped(context, None)


def _never(*wrong: float) -> Any:
    def check(context: Context, value: Any) -> None:
        for file in ("run_index.json", "run_uuid.json", "run_order_unknown.json", "run_bad.json"):
            mapped, result = _mapped(context, file)
            parts = [result[d] for d in mapped.ids.values()]
            assert not {p.value_j for p in [*parts[:1], sum_results(parts)]} & set(wrong)

    return check


VISIBLE = Case(
    "48-visible-devices-remap",
    {
        "run_bad.json.verdict": _bad_entry,
        "run_bad.json.note": _bad_entry,
        "run_*": lambda c, v, k: _joules(c, v, f"run_{k}"),
        "no_run_json.*": _unknown_map,
        "forbidden.0": _never(100.0, 150.0),
        "forbidden.1": _never(450.0),
    },
)

# --- 50 averaged power -------------------------------------------------------------------------------------------------------


def _burst(context: Context, log: str) -> EnergyResult:
    return of_kernel(context.powered(None, log), "burst")


def _one_field(context: Context, value: Any) -> None:
    series = series_of(context.powered(None, "both.csv").table("power"))
    assert {s.field: len(s.samples.t_ns) for s in series} == {"power_instant": 61, "power_average": 61}
    used = _burst(context, "both.csv").provenance
    assert used.field == "power_instant"
    assert [other.split()[0] for other in used.fields_not_used] == ["power_average"]


AVERAGED = Case(
    "50-averaged-versus-instant-power",
    {
        "both.csv.verdict": lambda c, v: equal(_burst(c, "both.csv").warnings, ()),
        "both.csv.field_used": lambda c, v: equal(_burst(c, "both.csv").provenance.field, v),
        "both.csv.energy_j.burst": lambda c, v: close(need_coverage(_burst(c, "both.csv")), v),
        "average_only.csv.verdict": lambda c, v: equal(len(_burst(c, "average_only.csv").warnings), 1),
        "average_only.csv.warning": lambda c, v: equal(_burst(c, "average_only.csv").warnings, (v,)),
        "average_only.csv.naive_energy_j": lambda c, v: close(_burst(c, "average_only.csv").value_j, v),
        "average_only.csv.min_window_for_trust_s": lambda c, v: equal(
            _burst(c, "average_only.csv").min_window_for_trust_s, v
        ),
        "forbidden.0": _one_field,
        "forbidden.1": lambda c, v: equal("averaged_power_field" in _burst(c, "average_only.csv").warnings, True),
    },
    later={"diff_between_runs_with_different_fields": ENERGY_IN_DIFF},
)

# --- 18, 65, 69, 72 what only attribution gives ------------------------------------------------------------------------------


def _no_result_of_nothing(context: Context, value: Any) -> None:
    """A trace of nothing has no time for which there could be an energy; power does not join it."""
    empty = context.run("empty_list.json")
    assert (capture(empty)["ts_ns"], capture(empty)["dur_ns"]) == (None, None)
    log = context.tmp_path / "power.csv"
    log.write_text("timestamp_ns,clock,device_kind,device_id,field,value,unit\n0,realtime,gpu,g,power,1,W\n")
    with pytest.raises(ClockAlignmentError):
        normalize([context.file("empty_list.json")], context.tmp_path / "run", extras=ExtraFiles(power=[log]))


NO_EVENTS = Case("18-zero-events", {"forbidden.1": _no_result_of_nothing})

LOST = Case("72-launches-without-kernels", {}, later={"forbidden.0": ATTRIBUTION})


def _serving_total(context: Context, value: float) -> None:
    run = context.powered()
    spans = [(a["ts_ns"], a["ts_ns"] + a["dur_ns"]) for a in run.rows("annotations")]
    window = min(start for start, _ in spans), max(end for _, end in spans)
    assert need_coverage(over(run, *window)["GPU-aaaa"]) == pytest.approx(value, rel=1e-3)


SERVING = Case(
    "69-serving-energy-per-token",
    {
        "verdict": lambda c, v: accept_powered(c.powered()),
        "energy_j.total": _serving_total,
    },
    later={
        "energy_j.prefill": ATTRIBUTION,
        "energy_j.decode": ATTRIBUTION,
        "j_per_*": ATTRIBUTION,
        "tolerance_rel": ATTRIBUTION,
        "energy_basis": ATTRIBUTION,
        "per_request_j.*": ATTRIBUTION,
        "conservation": ATTRIBUTION,
        "forbidden.*": ATTRIBUTION,
    },
)

CASES = (GRAPH, UNLAUNCHED, OVERLAP, ITERATIONS, GAP, SHORT, BASELINE, VISIBLE, AVERAGED, NO_EVENTS, LOST, SERVING)


@pytest.mark.parametrize(("case", "path", "value"), params(*CASES))
def test_value(case: Case, path: str, value: Any, normalized: Normalizer, tmp_path: Path) -> None:
    case.check(Context(case.name, normalized, tmp_path), path, value)
