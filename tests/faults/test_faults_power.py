"""Fault cases of power logs by themselves: clocks, dirty rows, counters. One test per expected value."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.support.fault_cases import Case, Context, close, equal, params
from tests.support.normalized import Normalizer, Run
from tests.support.power_cases import S, accept_powered, books_balance, codes, energies, of_kernel, run_json

from magneton.analysis.energy.measure.integrate import counter_deltas
from magneton.analysis.energy.measure.result import EnergyResult, Window, need_coverage
from magneton.analysis.energy.measure.totals import device_energy, series_of
from magneton.flows.traces import ExtraFiles, NormalizeOptions, normalize
from magneton.schemas.errors import ClockAlignmentError
from magneton.transforms.power.log import PowerLog, PowerOptions
from magneton.transforms.power.registry import read_power

# --- 37 clocks -------------------------------------------------------------------------------------------------------------

CLOCKED = ("power_realtime.csv", "power_boottime.csv", "power_monotonic.csv", "power_boottime_us.csv")


def _each_clock(context: Context) -> dict[str, Run]:
    return {log: context.powered(None, log, anchors="run.json") for log in CLOCKED}


def _clocks_accepted(context: Context, value: Any) -> None:
    for run in _each_clock(context).values():
        accept_powered(run)


def _kernel_window(context: Context, value: list[int]) -> None:
    for run in _each_clock(context).values():
        (kernel,) = run.rows("kernels")
        base = next(c["base_unix_ns"] for c in run.rows("captures") if c["kind"] == "profile")
        start = base + kernel["ts_ns"]
        assert [start, start + kernel["dur_ns"]] == value


def _clock_energies(context: Context) -> list[float]:
    runs = _each_clock(context).values()
    return [need_coverage(of_kernel(run, run.rows("kernels")[0]["name"])) for run in runs]


def _no_clock_is_guessed(context: Context, value: Any) -> None:
    """Stamps of 1970 do not count as wall-clock times that happen not to overlap: without an anchor there is no run."""
    for log in CLOCKED[1:]:
        with pytest.raises(ClockAlignmentError):
            context.powered(None, log)


def _first_samples(context: Context, value: Any) -> None:
    """The samples keep their distance to the trace: the first one comes when it was taken, not with the first event."""
    for run in _each_clock(context).values():
        first = min(run.rows("power"), key=lambda r: r["ts_ns"])
        assert run.rows("kernels")[0]["ts_ns"] - first["ts_ns"] == S


CLOCKS = Case(
    "37-clock-domains",
    {
        "verdict": _clocks_accepted,
        "kernel_window_realtime_ns": _kernel_window,
        "energy_j_each": lambda c, v: close(_clock_energies(c), [v] * 4),
        "tolerance_rel": lambda c, v: close(_clock_energies(c), [150.0] * 4, rel=v),
        "forbidden.0": _no_clock_is_guessed,
        "forbidden.1": lambda c, v: close(_clock_energies(c), [150.0] * 4),
        "forbidden.2": _first_samples,
    },
)

# --- 40, 52 rows of power logs ---------------------------------------------------------------------------------------------


def log_of(context: Context, file: str = "power.csv", **options: Any) -> PowerLog:
    """Read one power log of the case."""
    log = read_power(context.file(file), PowerOptions(**options))
    assert books_balance(log)
    return log


def _dirty(context: Context, **given: Any) -> EnergyResult:
    return energies(log_of(context).table, Window(0, 5 * S), **given)["GPU-aaaa"]


def _unread_is_null(context: Context, value: Any) -> None:
    table = log_of(context).table
    assert {r["value"] for r in table.to_pylist() if r["unit"] == "W"} <= {100.0, 200.0, 300.0}
    reasons = [(r["position"], r["reason"]) for r in log_of(context).quarantine.to_pylist()]
    assert [at for at, reason in reasons if reason == "not_available"] == [2, 10, 12]


def _every_log_joins(context: Context, value: Any) -> None:
    """The whole command, with the log that no float() can read."""
    trace = context.tmp_path / "trace.json"
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 0, "dur": 5_000_000}
    trace.write_text(json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": 0, "traceEvents": [kernel]}))
    extras = ExtraFiles(power=[context.file("power.csv")])
    out = context.tmp_path / "run"
    run = Run(out, normalize([trace], out, NormalizeOptions(keep_raw=False), extras=extras))
    assert {"conflicting_instants", "power_rows_dropped"} <= run.warnings().keys()
    assert of_kernel(run, "k").value_j == pytest.approx(800.0)


DIRTY = Case(
    "40-power-samples-dirty",
    {
        "verdict": lambda c, v: equal(codes(log_of(c)), {"conflicting_instants", "power_rows_dropped"}),
        "n_rows": lambda c, v: equal(log_of(c).report.n_rows, v),
        "n_valid": lambda c, v: equal(log_of(c).report.n_valid, v),
        "dropped.*": lambda c, v, k: equal(log_of(c).report.dropped[k], v),
        "conflicting_instants": lambda c, v: equal(log_of(c).report.n_conflicting_instants, v),
        "energy_j.0..5 s": lambda c, v: close(need_coverage(_dirty(c)), v),
        "max_gap_s": lambda c, v: close(need_coverage(_dirty(c, max_gap_s=v)), 800.0),
        "forbidden.0": _unread_is_null,
        "forbidden.1": _every_log_joins,
        # 2 s to 2.5 s to 3 s: the step back in the file costs nothing and gives nothing
        "forbidden.2": lambda c, v: close(
            energies(log_of(c).table, Window(2_500_000_000, 3 * S))["GPU-aaaa"].value_j, 100.0
        ),
    },
)

SMI = ("smi.csv", "smi_nounits.csv", "smi_utf16.csv")


def _smi_logs(context: Context) -> list[PowerLog]:
    return [log_of(context, file, tz="UTC") for file in SMI]


def _by_device(context: Context, value: int, device: str, what: str) -> None:
    for log in _smi_logs(context):
        assert {d.device_id: getattr(d, what) for d in log.report.devices}[device] == value


def _smi_energy(context: Context, device: str, **given: Any) -> list[float | None]:
    """Energy by each log; None as well for a device without any reading, of which only the report tells."""
    window = Window(1718000000 * S, 1718000004 * S)
    found = [energies(log.table, window, **given).get(device) for log in _smi_logs(context)]
    return [None if result is None else result.value_j for result in found]


def _zone(context: Context, value: Any) -> None:
    for file in SMI:
        with pytest.raises(ClockAlignmentError, match="--tz"):
            log_of(context, file)
    for log in _smi_logs(context):
        assert (log.report.time_zone, log.report.time_zone_source) == ("UTC", "given")
    east = log_of(context, "smi.csv", tz="Asia/Tokyo")
    assert east.table["ts_ns"][0].as_py() == _smi_logs(context)[0].table["ts_ns"][0].as_py() - 9 * 3600 * S


def _headers_are_no_samples(context: Context, value: Any) -> None:
    for log in _smi_logs(context):
        assert log.report.n_rows == 8
        assert not any("timestamp" in (r["raw"] or "") for r in log.quarantine.to_pylist())


NVIDIA_SMI = Case(
    "52-nvidia-smi-csv",
    {
        "verdict": lambda c, v: equal(
            [{"power_rows_dropped", "repeated_headers"} <= codes(log) for log in _smi_logs(c)], [True] * 3
        ),
        "n_rows_valid.*": lambda c, v, k: _by_device(c, v, k, "n_valid"),
        "n_missing.*": lambda c, v, k: _by_device(c, v, k, "n_missing"),
        "n_malformed": lambda c, v: equal([log.report.n_malformed for log in _smi_logs(c)], [v] * 3),
        "n_repeated_headers": lambda c, v: equal([log.report.n_repeated_headers for log in _smi_logs(c)], [v] * 3),
        "energy_j.*": lambda c, v, k: equal(_smi_energy(c, k, max_gap_s=2), [v] * 3),
        # a gap of 1 s, the default, would not reach across the bad reading
        "max_gap_s": lambda c, v: equal(
            (_smi_energy(c, "0", max_gap_s=v), _smi_energy(c, "0", max_gap_s=v / 2)), ([1200.0] * 3, [600.0] * 3)
        ),
        "time_zone": _zone,
        "forbidden.0": lambda c, v: equal(_smi_energy(c, "1"), [None] * 3),
        "forbidden.1": lambda c, v: equal(_smi_energy(c, "0", max_gap_s=2), [1200.0] * 3),
        "forbidden.2": _headers_are_no_samples,
    },
)

# --- 42, 43 counters ---------------------------------------------------------------------------------------------------------


def _reset(context: Context) -> EnergyResult:
    return energies(log_of(context).table, Window(0, 3 * S))["GPU-aaaa"]


RESET = Case(
    "42-gpu-energy-counter-reset",
    {
        "verdict": lambda c, v: equal(len(_reset(c).warnings), 1),
        "warnings": lambda c, v: equal(list(_reset(c).warnings), v),
        "n_resets": lambda c, v: equal(_reset(c).n_resets, v),
        "energy_j.measured": lambda c, v: close(_reset(c).value_j, v),
        "energy_j.lower_bound_including_reset_interval": lambda c, v: close(_reset(c).lower_bound_j, v),
        "covered_s": lambda c, v: equal(_reset(c).covered_s, v),
        "uncovered_s": lambda c, v: equal(sum(end - start for start, end in _reset(c).gaps), v * S),
        "forbidden.0": lambda c, v: equal((_reset(c).value_j or 0) > 0, True),
        "forbidden.1": lambda c, v: equal(_reset(c).n_wraps, 0),
        "forbidden.2": lambda c, v: close(_reset(c).value_j, 120.0),
    },
)


def _rapl(context: Context, file: str) -> EnergyResult:
    """Energy between the first and last reading, with the counter's range as far as it is known."""
    table = log_of(context, file).table
    t = series_of(table)[0].samples.t_ns
    known = _range_j(context, file)
    ranges = {} if known is None else {("cpu", "package-0"): known}
    return device_energy(table, Window(int(t[0]), int(t[-1])), counter_ranges_j=ranges)["cpu", "package-0"]


def _range_j(context: Context, file: str) -> float | None:
    range_uj = run_json(context.name)["rapl"][file]["max_energy_range_uj"]
    return None if range_uj is None else range_uj / 1e6


def _deltas(context: Context, file: str) -> list[float | None]:
    samples = series_of(log_of(context, file).table)[0].samples
    found = counter_deltas(samples, range_j=_range_j(context, file)).delta_j
    return [None if math.isnan(d) else round(d, 6) for d in found]


WRAPS = Case(
    "43-rapl-wraparound",
    {
        "package-0.csv.verdict": lambda c, v: equal(
            (_rapl(c, "package-0.csv").warnings, _rapl(c, "package-0.csv").coverage), ((), 1.0)
        ),
        "package-0.csv.delta_j": lambda c, v: equal(_deltas(c, "package-0.csv"), v),
        "package-0.csv.energy_j": lambda c, v: close(need_coverage(_rapl(c, "package-0.csv")), v),
        "package-0.csv.n_wraps": lambda c, v: equal(_rapl(c, "package-0.csv").n_wraps, v),
        "no_range.csv.verdict": lambda c, v: equal(_rapl(c, "no_range.csv").warnings, ("counter_range_unknown",)),
        "no_range.csv.delta_j": lambda c, v: equal(_deltas(c, "no_range.csv"), v),
        "no_range.csv.energy_j_measured": lambda c, v: close(_rapl(c, "no_range.csv").value_j, v),
        "no_range.csv.covered_s": lambda c, v: equal(_rapl(c, "no_range.csv").covered_s, v),
        "too_slow.csv.verdict": lambda c, v: equal(_rapl(c, "too_slow.csv").value_j, None),
        "too_slow.csv.warning": lambda c, v: equal(_rapl(c, "too_slow.csv").warnings, (v,)),
        "too_slow.csv.energy_j": lambda c, v: equal(f"lower bound {_rapl(c, 'too_slow.csv').lower_bound_j}", v),
        "forbidden.0": lambda c, v: equal(
            min(d for f in ("package-0.csv", "no_range.csv") for d in _deltas(c, f) if d is not None), 100.0
        ),
        "forbidden.1": lambda c, v: equal(_deltas(c, "no_range.csv")[1], None),
        "forbidden.2": lambda c, v: equal(261900.0 in _deltas(c, "package-0.csv"), False),
    },
)

CASES = (CLOCKS, DIRTY, NVIDIA_SMI, RESET, WRAPS)


@pytest.mark.parametrize(("case", "path", "value"), params(*CASES))
def test_value(case: Case, path: str, value: Any, normalized: Normalizer, tmp_path: Path) -> None:
    case.check(Context(case.name, normalized, tmp_path), path, value)
