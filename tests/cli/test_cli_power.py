"""Power logs and benchmark results beside a trace: ``magneton normalize --power --bench``."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.power_cases import E0, case, expected, window

from magneton.analysis.energy.measure.totals import device_energy
from magneton.cli.app import main
from magneton.flows.extras import parse_offset
from magneton.schemas.errors import UsageError
from magneton.schemas.manifest import read_manifest
from magneton.schemas.tables.parquet import read_table

CLOCKS = case("37-clock-domains")


@pytest.fixture
def run(capfdbinary):
    def call(*words: object) -> tuple[int, bytes, str]:
        code = main([str(w) for w in words])
        sys.stdout.flush()
        sys.stderr.flush()
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return call


def table(recording: Path, name: str) -> list[dict[str, Any]]:
    return read_table(recording / "tables" / f"{name}.parquet", name).to_pylist()


def kernel_energy(recording: Path) -> float | None:
    """Energy of the one kernel's window: power and trace share a time line."""
    (kernel,) = table(recording, "kernels")
    power = read_table(recording / "tables" / "power.parquet", "power")
    over = window(0, kernel["dur_ns"] / 1e9, kernel["ts_ns"])
    (result,) = device_energy(power, over).values()
    return result.value_j


@pytest.mark.parametrize("file", ["power_realtime", "power_boottime", "power_monotonic", "power_boottime_us"])
def test_every_clock_gives_the_same_energy(run, tmp_path, file):
    target = tmp_path / "r"
    log = CLOCKS / f"{file}.csv"
    code, _, err = run(
        "normalize", CLOCKS / "trace.json", "--power", log, "--anchors", CLOCKS / "run.json", "-o", target
    )
    assert code == 0, err
    want = expected("37-clock-domains")
    assert kernel_energy(target) == pytest.approx(want["energy_j_each"], rel=want["tolerance_rel"])
    capture = next(c for c in table(target, "captures") if c["kind"] == "energy")
    assert (capture["n_raw"], capture["n_kept"], capture["clock"]) == (26, 26, "realtime")
    assert json.loads(capture["metadata"])["power"]["n_valid"] == 26
    assert {w["code"] for w in table(target, "warnings") if w["capture"] == "power"} == set()


def test_an_offset_ties_a_clock_too(run, tmp_path):
    log = CLOCKS / "power_boottime.csv"
    offset = 1718000000 - 10000
    code, _, err = run("normalize", CLOCKS / "trace.json", "--power", log, "--offset", offset, "-o", tmp_path / "r")
    assert code == 0 and kernel_energy(tmp_path / "r") == pytest.approx(150.0, rel=1e-9), err
    wrong = ("--offset", f"{offset + 37}s")
    code, _, err = run("normalize", CLOCKS / "trace.json", "--power", log, *wrong, "-o", tmp_path / "w")
    assert code == 0 and kernel_energy(tmp_path / "w") is None
    assert "power_outside_trace" in {w["code"] for w in table(tmp_path / "w", "warnings")}


def test_clocks_that_cannot_meet_are_refused_and_leave_nothing(run, tmp_path):
    for words, reason in (
        (["--power", CLOCKS / "power_boottime.csv"], "ClockAlignmentError|no anchor"),
        (["--power", CLOCKS / "power_boottime.csv", "--clock", "realtime"], "boottime"),
        (["--power", case("52-nvidia-smi-csv") / "smi.csv"], "--tz"),
        (["--power", CLOCKS / "power_realtime.csv", "--offset", "soon"], "not an offset"),
        (["--power", CLOCKS / "power_realtime.csv", "--anchors", CLOCKS / "trace.json"], "anchors"),
        (["--power", CLOCKS / "trace.json"], "not a power log"),
        (["--bench", CLOCKS / "trace.json"], "not a benchmark result"),
        (["--power", tmp_path / "absent.csv"], "no such file"),
    ):
        code, out, err = run("normalize", CLOCKS / "trace.json", *words, "-o", tmp_path / "r")
        assert code == 2 and out == b"" and err.count("\n") == 1, err
        assert any(part in err for part in reason.split("|")), err
        assert not (tmp_path / "r").exists()


def test_dirty_rows_are_visible_in_sql(run, tmp_path):
    target = tmp_path / "r"
    words = ["--power", case("40-power-samples-dirty") / "power.csv", "--power", case("52-nvidia-smi-csv") / "smi.csv"]
    code, _, err = run("normalize", CLOCKS / "trace.json", *words, "--tz", "UTC", "-o", target)
    assert code == 0, err
    query = "SELECT capture, reason, count(*)::INT AS n FROM quarantine GROUP BY ALL ORDER BY ALL"
    code, out, _ = run("sql", target, query, "--json")
    found = {(r["capture"], r["reason"]): r["n"] for r in json.loads(out)}
    assert found == {("power", k): n for k, n in expected("40-power-samples-dirty")["dropped"].items()} | {
        ("power-2", "not_available"): 3,
        ("power-2", "row_cut"): 1,
    }
    codes = {(w["capture"], w["code"]) for w in table(target, "warnings")}
    assert {
        ("power", "conflicting_instants"),
        ("power", "power_rows_dropped"),
        ("power-2", "repeated_headers"),
    } <= codes
    for capture in table(target, "captures"):
        parts = ("n_kept", "n_merged", "n_ignored", "n_quarantined")
        assert capture["n_raw"] == sum(capture[p] for p in parts)
    sensors = read_manifest(target).sensors
    assert [s["file"] for s in sensors] == ["raw/extra/power.csv", "raw/extra/smi.csv"] and sensors[1][
        "time_zone"
    ] == "UTC"
    assert sorted(f.path for f in read_manifest(target).files if "extra" in (f.path or "")) == [
        "raw/extra/power.csv",
        "raw/extra/smi.csv",
    ]


def test_normalised_again_it_stays_what_it_was(run, tmp_path, shared):
    first, second = tmp_path / "a", tmp_path / "b"
    bench = shared / "formats" / "vllm_bench_serve_save_detailed.json"
    (tmp_path / "other").mkdir()
    twin = shutil.copy(CLOCKS / "power_boottime_us.csv", tmp_path / "other" / "power_boottime.csv")
    words = [
        "--power",
        CLOCKS / "power_boottime.csv",
        "--power",
        twin,
        "--anchors",
        CLOCKS / "run.json",
        "--bench",
        bench,
    ]
    code, _, err = run("normalize", CLOCKS / "trace.json", *words, "-o", first)
    assert code == 0, err
    shutil.rmtree(first / "tables")
    code, _, err = run("normalize", first, "-o", second)
    assert code == 0, err
    before, after = read_manifest(first), read_manifest(second)
    assert before.run_id == after.run_id and before.sensors == after.sensors
    assert before.captures == after.captures and before.workload == after.workload
    assert [f for f in before.files if f.role != "derived"] == [f for f in after.files if f.role != "derived"]
    assert kernel_energy(second) == pytest.approx(150.0, rel=1e-9)
    assert len(table(second, "power")) == 52


@pytest.mark.parametrize(
    "name",
    ["vllm_bench_serve_save_result.json", "sglang_bench_serving_output_details.jsonl", "guidellm_benchmarks.json"],
)
def test_a_benchmark_says_what_was_done(run, tmp_path, shared, name):
    code, out, err = run(
        "normalize", CLOCKS / "trace.json", "--bench", shared / "formats" / name, "-o", tmp_path / "r", "--json"
    )
    assert code == 0, err
    work = json.loads(out)["manifest"]["workload"]
    assert (work["requests"], work["input_tokens"], work["output_tokens"]) == (8, 284, 160)
    placed = [E0 + 2 * 10**9, E0 + 6_550_000_000]
    assert work["details"].get("window_unix_ns") == (placed if name.startswith("guidellm") else None)


def test_a_trace_without_absolute_time_has_no_power(run, tmp_path):
    events = {
        "schemaVersion": 1,
        "traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5, "dur": 1}],
    }
    trace = tmp_path / "t.json"
    trace.write_text(json.dumps(events))
    code, _, err = run("normalize", trace, "--power", CLOCKS / "power_realtime.csv", "-o", tmp_path / "r")
    assert code == 2 and "absolute time" in err and not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("text", "ns"), [("1.5", 1500000000), ("-37s", -37 * 10**9), ("250ms", 250000000), ("-3us", -3000), ("7ns", 7)]
)
def test_offsets(text, ns):
    assert parse_offset(text) == ns
    with pytest.raises(UsageError):
        parse_offset("x" + text)
