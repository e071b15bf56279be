"""Fault cases of sharing energy out: kernels, operators, idle time, phases, tokens, requests. One test per expected value."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.fault_cases import Case, Context, busy_ns, close, equal, params
from tests.support.normalized import Normalizer, Run
from tests.support.power_cases import S, accept_powered, over, run_json

from magneton.analysis.energy.attribute import attribute, idle_power
from magneton.analysis.energy.measure.apportion import EnergyAttribution
from magneton.analysis.energy.measure.basis import DYNAMIC, GROSS, dynamic
from magneton.analysis.energy.measure.power import PowerCurve, power_curve
from magneton.analysis.energy.measure.result import Window, need_coverage
from magneton.analysis.energy.measure.serving import Request, ServingEnergy, Span, serving_energy, span_energies
from magneton.analysis.energy.measure.totals import series_of
from magneton.flows.pairs import DiffSettings, compare
from magneton.schemas.errors import NotComparableError

GPU = {0: "GPU-aaaa"}


def span_of(run: Run) -> tuple[int, int]:
    """First and last instant of the kernels."""
    kernels = run.rows("kernels")
    return min(k["ts_ns"] for k in kernels), max(k["ts_ns"] + k["dur_ns"] for k in kernels)


def shared(run: Run, window: tuple[int, int] | None = None, devices: Any = None, **given: Any) -> EnergyAttribution:
    """The energy of device 0, shared out; the whole time of the kernels unless said otherwise."""
    return every_device(run, window, devices or GPU, **given)[0]


def every_device(
    run: Run, window: tuple[int, int] | None, devices: dict[int, str], **given: Any
) -> dict[int, EnergyAttribution]:
    """The energy of each device, shared out; it adds up in every case."""
    start, end = window or span_of(run)
    found = attribute(run.table("kernels"), run.table("power"), Window(start, end), devices=devices, **given)
    assert all(lost(one) <= 1e-9 for one in found.values())
    return found


def lost(found: EnergyAttribution) -> float:
    """Relative difference between what was shared out and what the device used, by two independent sums."""
    if found.total_j is None:
        return 0.0
    parts = [*(j for j in found.kernels["energy_j"].to_pylist() if j is not None), found.idle_j or 0.0]
    again = (found.attributed_j or 0.0) + (found.unattributed_j or 0.0) + (found.idle_j or 0.0)
    device = found.total.value_j
    return max(abs(device - math.fsum(parts)), abs(device - again)) / device if device else abs(math.fsum(parts))


def by_name(run: Run, found: EnergyAttribution, column: str = "energy_j") -> dict[str, Any]:
    """A column of the kernels by their name; kernels of one name add up."""
    names = {k["kernel_id"]: k["name"] for k in run.rows("kernels")}
    out: dict[str, Any] = {}
    for row in found.kernels.to_pylist():
        name = names[row["kernel_id"]]
        out[name] = row[column] if name not in out else out[name] + row[column]
    return out


def by_op(run: Run, found: EnergyAttribution) -> dict[str | None, float]:
    """Energy by name of the operator."""
    ops = {o["op_id"]: o["name"] for o in run.rows("ops")}
    of = {k["kernel_id"]: ops.get(k["op_id"]) for k in run.rows("kernels")}
    out: Counter[str | None] = Counter()
    for row in found.kernels.to_pylist():
        out[of[row["kernel_id"]]] += row["energy_j"]
    return dict(out)


# --- 23, 24, 25, 72 kernels and operators ------------------------------------------------------------------------------------


def _graph(context: Context, value: float, kernel: str) -> None:
    found = by_name(context.powered(), shared(context.powered()))
    close(sum(found.values()) if kernel == "total_kernels" else found[kernel], value)


GRAPH = Case("23-cuda-graph-replay", {"energy_j.*": _graph})


def _unlaunched(context: Context, value: float, key: str) -> None:
    found = shared(context.powered(), (0, 150_000))
    values = {
        "window_0_150us": found.total_j,
        "op": by_op(context.powered(), found)["op"],
        "unattributed": found.unattributed_j,
        "idle": found.idle_j,
    }
    close(values[key], value)


UNLAUNCHED = Case(
    "24-kernels-without-launch",
    {"energy_j.*": _unlaunched, "forbidden.1": lambda c, v: _unlaunched(c, 0.014, "op")},
)


def _devices(context: Context) -> dict[int, EnergyAttribution]:
    known = {int(n): d for n, d in run_json(context.name)["device_map"].items()}
    return every_device(context.powered(), None, known)


def _names(context: Context) -> dict[str, float]:
    return {n: j for d in _devices(context).values() for n, j in by_name(context.powered(), d).items() if j is not None}


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
        "window_us": lambda c, v: equal([ns / 1000 for ns in span_of(c.powered())], v),
        "busy_ns.*": _busy_on,
        "sum_of_durations_ns.*": lambda c, v, k: equal(sum(r["dur_ns"] for r in _on(c.powered(), k)), v),
        "device_energy_j.*": lambda c, v, k: close(need_coverage(_devices(c)[int(k)].total), v),
        "equal_share.*": lambda c, v, k: close(_names(c)[k], v),
        "idle_j.*": lambda c, v, k: equal(_devices(c)[int(k)].idle_j, pytest.approx(v, abs=1e-12)),
        "conservation_error_max": lambda c, v: equal([lost(d) <= v for d in _devices(c).values()], [True, True]),
        "forbidden.0": lambda c, v: close(_names(c)["A"] + _names(c)["B"], 0.06),
        "forbidden.1": lambda c, v: close(_names(c)["C"], 0.02),
    },
)


def _no_joules_without_records(context: Context, value: Any) -> None:
    assert by_op(context.powered(), shared(context.powered())).keys() == {"op2", "op3", "op4"}


LOST = Case("72-launches-without-kernels", {"forbidden.0": _no_joules_without_records})

# --- 45 between two samples ------------------------------------------------------------------------------------------------------


def _short(context: Context, column: str = "energy_j") -> dict[str, Any]:
    return by_name(context.powered(), shared(context.powered()), column)


def _uncertain(context: Context, value: bool) -> None:
    low, energy, high = (_short(context, c) for c in ("low_j", "energy_j", "high_j"))
    assert all(low[k] <= energy[k] <= high[k] and low[k] < high[k] for k in "abc") is value
    assert (low["after"], high["after"]) == (None, None)


SHORT = Case(
    "45-kernel-shorter-than-sample-period",
    {
        "verdict": lambda c, v: equal("power_edge" in shared(c.powered()).warnings, True),
        "energy_j.*": lambda c, v, k: close(_short(c)[k], v),
        "n_samples_inside.*": lambda c, v, k: equal(_short(c, "n_samples_inside")[k], v),
        "flags.*": lambda c, v, k: equal(v in (_short(c, "flags")[k] or "").split(), True),
        "per_kernel_uncertainty_reported": _uncertain,
        "forbidden.0": lambda c, v: equal([_short(c)[k] > 0 for k in "abc"], [True] * 3),
        "forbidden.1": lambda c, v: equal([j for j in _short(c).values() if j is not None and math.isnan(j)], []),
        "forbidden.2": lambda c, v: equal(_short(c)["after"], None),
    },
)

# --- 47 idle -----------------------------------------------------------------------------------------------------------------------


def _rest(context: Context, log: str) -> tuple[Run, float]:
    """A run, and the power at rest in the window that run.json names."""
    run = context.powered(None, log)
    window = Window(*(round(s * S) for s in run_json(context.name)["idle_window_s"]))
    [series] = series_of(run.table("power"))
    watts = idle_power(series, window)
    assert watts is not None
    return run, watts


def _baseline(context: Context, value: Any, key: str) -> None:
    log, _, what = key.partition(".csv.")
    run, watts = _rest(context, f"{log}.csv")
    found = shared(run, idle_w={0: watts})
    columns = {"gross_j": "energy_j", "idle_share_j": "static_j", "dynamic_j": "dynamic_j"}
    part, _, kernel = what.partition(".")
    if part in columns:
        close(by_name(run, found, columns[part])[kernel], value)
    else:
        warning = next(iter(found.warnings), None)
        state = "accept_with_warning" if warning else "accept"
        assert {"verdict": state, "warning": warning, "idle_w": watts}[what] == value


def _basis(context: Context, value: bool) -> None:
    run, watts = _rest(context, "power.csv")
    gross = over(run, *span_of(run))["GPU-aaaa"]
    assert ((gross.basis, dynamic(gross, watts).basis) == (GROSS, DYNAMIC)) is value


def _negative_is_flagged(context: Context, value: Any) -> None:
    run, watts = _rest(context, "below_idle.csv")
    found = dynamic(over(run, *span_of(run))["GPU-aaaa"], watts)
    close(found.value_j, -20.0)
    assert "below_idle_baseline" in found.warnings


def _one_basis(context: Context, value: str) -> None:
    run, watts = _rest(context, "power.csv")
    out = context.tmp_path / "diff"
    for idle in ((watts, None), (None, watts)):
        with pytest.raises(NotComparableError, match="gross") as refused:
            compare(run.path, run.path, out, DiffSettings(idle_power_a=idle[0], idle_power_b=idle[1]))
    assert value == f"refuse {type(refused.value).__name__}"
    document = compare(run.path, run.path, out, DiffSettings(idle_power_a=watts, idle_power_b=watts)).document
    energy = document.a.energy
    assert energy is not None
    assert energy.basis == DYNAMIC
    close((energy.attributed_j or 0.0) + (energy.unattributed_j or 0.0), 800.0)
    close(energy.total_j, (energy.attributed_j or 0.0) + (energy.idle_j or 0.0) + (energy.unattributed_j or 0.0))


BASELINE = Case(
    "47-idle-power-subtraction",
    {
        "power.csv.*": lambda c, v, k: _baseline(c, v, f"power.csv.{k}"),
        "below_idle.csv.*": lambda c, v, k: _baseline(c, v, f"below_idle.csv.{k}"),
        "basis_always_labelled": _basis,
        "diff_between_gross_and_dynamic": _one_basis,
        "forbidden.0": _negative_is_flagged,
        "forbidden.1": lambda c, v: equal([_rest(c, f"{f}.csv")[1] for f in ("power", "below_idle")], [60.0, 60.0]),
    },
)

# --- 62 steps ----------------------------------------------------------------------------------------------------------------------


def _total(context: Context, value: float, side: str) -> None:
    run = context.powered(f"{side.lower()}.json")
    found = shared(run)
    close(found.attributed_j, value)
    close(busy_ns(run) * 200.0 / S, value)


def _steady(context: Context, value: float, side: str) -> None:
    """Energy by step; the first one of A is warm-up."""
    run = context.powered(f"{side.lower()}.json")
    step = {k["kernel_id"]: k["step_id"] for k in run.rows("kernels")}
    joules: Counter[int] = Counter()
    for row in shared(run).kernels.to_pylist():
        joules[step[row["kernel_id"]]] += row["energy_j"]
    steady = [j for number, j in sorted(joules.items())][1 if side == "A" else 0 :]
    close(steady, [value] * len(steady))


ITERATIONS = Case("62-diff-different-iterations", {"totals_j.*": _total, "per_step_j_steady.*": _steady})

# --- 69 serving --------------------------------------------------------------------------------------------------------------------


def _curve(run: Run) -> PowerCurve:
    [series] = series_of(run.table("power"))
    return power_curve(series)


def _steps(run: Run) -> list[Span]:
    return [
        Span(a["name"], Window(a["ts_ns"], a["ts_ns"] + a["dur_ns"]), a["name"].split()[0])
        for a in run.rows("annotations")
    ]


def _requests(context: Context) -> list[Request]:
    listed = json.loads(context.file("requests.json").read_text())["requests"]
    return [Request(r["id"], r["prompt_tokens"], r["output_tokens"]) for r in listed]


def _served(context: Context) -> ServingEnergy:
    return serving_energy(_steps(context.powered()), _requests(context), _curve(context.powered()))


def _per_request(context: Context, value: float, key: str) -> None:
    request, phase = key.split(".")
    close(_served(context).per_request_j[request][phase], value)


def _conserved(context: Context, value: bool) -> None:
    found = _served(context)
    parts = math.fsum(j for shares in found.per_request_j.values() for j in shares.values())
    assert (parts == pytest.approx(found.total_j, rel=1e-9)) is value
    assert found.total_j == pytest.approx((found.prefill_j or 0.0) + (found.decode_j or 0.0), rel=1e-9)


def _overlapping_requests(context: Context, value: Any) -> None:
    """Both requests last as long as the trace: together they used what the device used, not twice that."""
    run = context.powered()
    window = Window(min(s.window.start_ns for s in _steps(run)), max(s.window.end_ns for s in _steps(run)))
    found = span_energies([Span("r1", window), Span("r2", window)], _curve(run))
    close([*found.energy_j, found.total_j], [16.0, 16.0, 32.0])


SERVING = Case(
    "69-serving-energy-per-token",
    {
        "verdict": lambda c, v: accept_powered(c.powered()),
        "energy_j.*": lambda c, v, k: close(getattr(_served(c), f"{k}_j"), v),
        "j_per_*": lambda c, v, k: close(getattr(_served(c), f"j_per_{k}"), v),
        "tolerance_rel": lambda c, v: close(_served(c).total_j, 32.0, rel=v),
        "energy_basis": lambda c, v: equal(_served(c).energy_basis, v),
        "per_request_j.*": _per_request,
        "conservation": _conserved,
        # both numbers are there, and their names say what is in them
        "forbidden.0": lambda c, v: close(
            [_served(c).j_per_output_token_decode_only, _served(c).j_per_output_token_all], [2.0, 4.0]
        ),
        "forbidden.1": _overlapping_requests,
    },
)

CASES = (GRAPH, UNLAUNCHED, OVERLAP, LOST, SHORT, BASELINE, ITERATIONS, SERVING)


@pytest.mark.parametrize(("case", "path", "value"), params(*CASES))
def test_value(case: Case, path: str, value: Any, normalized: Normalizer, tmp_path: Path) -> None:
    case.check(Context(case.name, normalized, tmp_path), path, value)
