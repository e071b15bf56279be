"""Fault cases of the energy of devices over windows: gaps, which device, which field. One test per expected value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.fault_cases import (
    Case,
    Context,
    capture,
    close,
    equal,
    params,
)
from tests.support.normalized import Normalizer, Run
from tests.support.power_cases import S, of_kernel, over, run_json

from magneton.analysis.energy.measure.devices import DeviceMap, map_devices
from magneton.analysis.energy.measure.result import EnergyResult, need_coverage, sum_results
from magneton.analysis.energy.measure.totals import series_of
from magneton.flows.pairs import DiffSettings, compare
from magneton.flows.traces import ExtraFiles, normalize
from magneton.schemas.errors import ClockAlignmentError, InsufficientPowerDataError

# --- 41 between samples ----------------------------------------------------------------------------------------------------


def _gap(context: Context) -> EnergyResult:
    return of_kernel(context.powered(), context.powered().rows("kernels")[0]["name"])


def _partial(context: Context, value: Any) -> None:
    result = _gap(context)
    assert result.value_j == pytest.approx(500.0)
    assert result.partial
    with pytest.raises(InsufficientPowerDataError, match=r"16\.7%"):
        need_coverage(result)
    assert need_coverage(result, minimum=0.1) == result.value_j


def _diff_refuses(context: Context, value: Any) -> None:
    run = context.powered().path
    with pytest.raises(InsufficientPowerDataError):
        compare(run, run, context.tmp_path / "diff")
    lowered = compare(run, run, context.tmp_path / "diff", DiffSettings(min_power_coverage=0.1)).document
    assert lowered.a.energy is not None
    assert lowered.a.energy.covered_s == pytest.approx(2.0)


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
        "diff_using_this_run": _diff_refuses,
        "forbidden.0": lambda c, v: equal((_gap(c).provenance.label, round(_gap(c).value_j or 0)), ("measured", 500)),
    },
)


# --- 48 which device ---------------------------------------------------------------------------------------------------------


def _span(run: Run) -> tuple[int, int]:
    kernels = run.rows("kernels")
    return min(k["ts_ns"] for k in kernels), max(k["ts_ns"] + k["dur_ns"] for k in kernels)


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


def _diff_warns(context: Context, value: Any) -> None:
    a, b = (context.powered(None, log).path for log in ("both.csv", "average_only.csv"))
    document = compare(a, b, context.tmp_path / "diff", DiffSettings(min_power_coverage=0.0)).document
    assert "sensor_field_mismatch" in {note.code for note in document.comparison.notes}


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
        "diff_between_runs_with_different_fields": _diff_warns,
    },
)

# --- 18 nothing ------------------------------------------------------------------------------------------------------------


def _no_result_of_nothing(context: Context, value: Any) -> None:
    """A trace of nothing has no time for which there could be an energy; power does not join it."""
    empty = context.run("empty_list.json")
    assert (capture(empty)["ts_ns"], capture(empty)["dur_ns"]) == (None, None)
    log = context.tmp_path / "power.csv"
    log.write_text("timestamp_ns,clock,device_kind,device_id,field,value,unit\n0,realtime,gpu,g,power,1,W\n")
    with pytest.raises(ClockAlignmentError):
        normalize([context.file("empty_list.json")], context.tmp_path / "run", extras=ExtraFiles(power=[log]))


NO_EVENTS = Case("18-zero-events", {"forbidden.1": _no_result_of_nothing})

CASES = (GAP, VISIBLE, AVERAGED, NO_EVENTS)


@pytest.mark.parametrize(("case", "path", "value"), params(*CASES))
def test_value(case: Case, path: str, value: Any, normalized: Normalizer, tmp_path: Path) -> None:
    case.check(Context(case.name, normalized, tmp_path), path, value)
