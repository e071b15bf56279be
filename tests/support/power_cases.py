"""Fault cases that concern power logs, and small logs of our own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.support.normalized import Run

from magneton.analysis.energy.measure.result import EnergyResult, Window
from magneton.analysis.energy.measure.totals import PREFERENCE, device_energy
from magneton.transforms.power.log import PowerLog

S = 10**9
FAULTS = Path(__file__).resolve().parents[1] / "faults" / "cases"
E0 = 1767225600 * 10**9  # the invented run of the format samples begins here: 2026-01-01T00:00:00Z


def case(name: str) -> Path:
    return FAULTS / name


def expected(name: str) -> dict[str, Any]:
    """The JSON block of a case's expected.md."""
    text = (case(name) / "expected.md").read_text()
    found: dict[str, Any] = json.loads(text.split("```json", 1)[1].split("```", 1)[0])
    return found


def run_json(name: str, file: str = "run.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((case(name) / file).read_text())
    return found


def window(start_s: float, end_s: float, base_ns: int = E0) -> Window:
    return Window(base_ns + round(start_s * 1e9), base_ns + round(end_s * 1e9))


def energies(
    table: pa.Table, over: Window, *, fields: Sequence[str] = PREFERENCE, max_gap_s: float | None = None
) -> dict[str | None, EnergyResult]:
    """Energy by device id alone (the logs here have one kind each, or distinct ids)."""
    return {d[1]: r for d, r in device_energy(table, over, fields=fields, max_gap_s=max_gap_s).items()}


def over(run: Run, start_ns: int, end_ns: int, **given: Any) -> dict[str | None, EnergyResult]:
    """Energy by device over a window on the time line of a recording."""
    return energies(run.table("power"), Window(start_ns, end_ns), **given)


def of_kernel(run: Run, name: str, device: str = "GPU-aaaa") -> EnergyResult:
    """Energy of a device while a kernel runs."""
    kernel = run.by_name("kernels")[name]
    return over(run, kernel["ts_ns"], kernel["ts_ns"] + kernel["dur_ns"])[device]


def accept_powered(run: Run) -> None:
    """Nothing was set aside, of the trace or of the log; no warning beyond those that kernels without a launch give."""
    assert run.warnings().keys() <= {"kernel_without_launch"}
    assert run.rows("quarantine") == []
    assert {c["kind"] for c in run.rows("captures")} == {"profile", "energy"}


def books_balance(log: PowerLog) -> bool:
    r = log.report
    return (
        r.n_rows == r.n_valid + r.n_other + r.n_ignored + sum(r.dropped.values())
        and sum(r.dropped.values()) == log.quarantine.num_rows
        and r.n_readings == log.table.num_rows
    )


def codes(log: PowerLog) -> set[str]:
    return set(log.warnings["code"].to_pylist())


def write(tmp_path: Path, text: str | bytes, name: str = "p.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def spl(date: str, time: str = "00:00:00.000", watts: str = "100.0", tail: str = "") -> str:
    return f"Time,{date} {time},Watts,{watts},Volts,230.1,Amps,0.8,PF,0.98,Mark,m{tail}\n"
