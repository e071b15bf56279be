"""What the recorder's sensors leave, read back: ``power.parquet`` joins the time line of a trace, and stands alone too."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.power_cases import books_balance
from tests.support.powercap import RANGE_UJ, powercap

from magneton.analysis.energy.measure.result import Window
from magneton.analysis.energy.measure.totals import device_energy
from magneton.collectors.raw.tables import make_tables
from magneton.collectors.recording import step_times
from magneton.collectors.recording.writer import RecordingWriter
from magneton.collectors.sensors import anchors_now, sample
from magneton.collectors.sensors.rapl import POWERCAP_VARIABLE
from magneton.flows.traces import normalize
from magneton.schemas.errors import SchemaVersionError
from magneton.schemas.kinds import OwnFormat
from magneton.schemas.manifest import Capture, System, Workload, read_manifest
from magneton.schemas.tables.parquet import read_table, write_table
from magneton.schemas.tables.run import COUNTERS, POWER
from magneton.transforms.power.registry import find_format, read_power

FAKES = Path(__file__).resolve().parents[3] / "benchmarks" / "fakes"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FAKES))
    gpus = [{"uuid": "GPU-1", "mig": False, "idle_w": 100, "busy_w": 100, "counter_ms": 1}]
    monkeypatch.setenv("MAGNETON_FAKE_NVML", json.dumps({"gpus": gpus}))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)


def row(**values: Any) -> dict[str, Any]:
    return {
        "name": "power_instant",
        "ts_ns": 10,
        "source": "nvml",
        "device_kind": "gpu",
        "device_id": "GPU-1",
        "field": "power_instant",
        "value": 1.0,
        "unit": "W",
        "clock": "monotonic",
    } | values


def file(path: Path, *rows: dict[str, Any]) -> Path:
    schema = POWER.arrow_schema()
    columns = {n: pa.array([r.get(n) for r in rows], schema.field(n).type) for n in schema.names}
    write_table(path, POWER, pa.table(columns))
    return path


def test_rows_are_kept_flagged_or_set_aside_and_add_up(tmp_path):
    path = file(
        tmp_path / "power.parquet",
        row(),
        row(ts_ns=20),
        row(ts_ns=20),
        row(ts_ns=30, value=None, flags="not_available"),
        row(ts_ns=40, value=-1.0),
        row(ts_ns=50, clock="wall"),
        row(ts_ns=None),
        row(ts_ns=60, name="temperature", field="temperature", unit="degC"),
    )
    log = read_power(path)
    assert log.report.format == "magneton_power" and books_balance(log)
    assert log.table.num_rows == 3
    reasons = sorted(log.quarantine["reason"].to_pylist())
    assert reasons == ["clock_unknown", "exact_duplicate", "negative_power", "not_available", "ts_missing"]
    assert log.table["source"].to_pylist()[0] == "nvml"


def test_another_table_is_refused(tmp_path):
    path = tmp_path / "counters.parquet"
    write_table(path, COUNTERS, COUNTERS.empty())
    assert find_format(path) is not None
    with pytest.raises(SchemaVersionError, match="counters"):
        read_power(path)


def recorded(path: Path, *repeats: int | None) -> tuple[int, int]:
    """Record energy alone, once for each repeat; return when it was, in Unix ns."""
    writer = RecordingWriter(path, label="energy alone")
    captures, sensors = [], []
    begin = time.time_ns()
    for repeat in repeats:
        name = "energy" if repeat is None else f"energy-r{repeat}"
        with sample(writer.raw_directory(name, 0), ["nvml"], capture=name, repeat=repeat) as sampler:
            time.sleep(0.3)
        captures += sampler.captures()
        sensors += sampler.result.sensors
    end = time.time_ns()
    manifest = writer.publish(captures, system=System(), workload=Workload(), devices=[], sensors=sensors)
    assert len(manifest.captures) == len(repeats)
    return begin, end


def test_a_recording_of_energy_alone_normalises_and_keeps_its_captures(tmp_path):
    begin, _ = recorded(tmp_path / "raw", 0, 1)
    for source, target in (("raw", "once"), ("once", "again")):
        normalize([tmp_path / source], tmp_path / target)
        manifest = read_manifest(tmp_path / target)
        assert [(c.name, c.kind, c.repeat) for c in manifest.captures] == [
            ("energy-r0", "energy", 0),
            ("energy-r1", "energy", 1),
        ]
        assert {f.path for f in manifest.files if f.role == "primary"} == {
            "raw/energy-r0/rank0/power.parquet",
            "raw/energy-r1/rank0/power.parquet",
        }
        assert [s["source"] for s in manifest.sensors if s["kind"] == "sensor"] == ["nvml", "nvml"]
        captures = read_table(tmp_path / target / "tables" / "captures.parquet", "captures").to_pylist()
        assert all(c["n_raw"] == c["n_kept"] > 0 for c in captures)
        assert begin <= captures[0]["base_unix_ns"] + captures[0]["ts_ns"] < begin + 60 * 10**9
        power = read_table(tmp_path / target / "tables" / "power.parquet", "power")
        assert set(power["repeat"].to_pylist()) == {0, 1}
        times = [r["ts_ns"] for r in power.to_pylist() if r["repeat"] == 0]
        over = Window(min(times) + 50_000_000, min(times) + 250_000_000)
        assert set(power["flags"].to_pylist()) == {"simulated"}, "a stand-in says that it is one"
        (energy,) = device_energy(power, over).values()
        assert energy.value_j == pytest.approx(20, rel=0.05)


def test_readings_share_the_time_line_of_the_trace_of_another_execution(tmp_path):
    now = time.time_ns()
    trace = tmp_path / "trace.json"
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": now / 1000, "dur": 200_000}
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    anchors = anchors_now()
    writer = RecordingWriter(tmp_path / "raw", label="both")
    with sample(writer.raw_directory("energy", 0), ["nvml"]) as sampler:
        time.sleep(0.3)
    left = writer.raw_directory("profile", 0) / "torch.pt.trace.json"
    left.write_bytes(trace.read_bytes())
    profile = Capture(name="profile", kind="profile", source_format="kineto", file=str(left), anchors=anchors)
    writer.publish([profile, *sampler.captures()], system=System(), workload=Workload(), devices=[])
    normalize([tmp_path / "raw"], tmp_path / "run")
    tables = tmp_path / "run" / "tables"
    (op,) = read_table(tables / "ops.parquet", "ops").to_pylist()
    power = read_table(tables / "power.parquet", "power")
    assert set(power["capture"].to_pylist()) == {"energy"}
    times = power["ts_ns"].to_pylist()
    assert abs(min(times) - op["ts_ns"]) < 5 * 10**9
    warnings = read_table(tables / "warnings.parquet", "warnings").to_pylist()
    assert not [w for w in warnings if w["capture"] == "energy"]


def test_times_of_steps_are_a_capture_where_there_is_no_sensor(tmp_path):
    writer = RecordingWriter(tmp_path / "raw", label="no sensor")
    anchors = anchors_now()
    times = writer.raw_directory("energy", 0) / step_times.FILE
    begin = time.monotonic_ns()
    step_times.write_steps(times, [(begin, begin + 10), (begin + 10, begin + 30)], {"capture": "energy", "rank": 0})
    make_tables(times.parent)
    capture = Capture("energy", "energy", source_format=OwnFormat.STEPS, file=str(times), anchors=anchors)
    writer.publish([capture], system=System(), workload=Workload(), devices=[])
    for source, target in (("raw", "once"), ("once", "again")):
        normalize([tmp_path / source], tmp_path / target)
        (found,) = read_manifest(tmp_path / target).captures
        assert found.file == "raw/energy/rank0/steps.parquet"
        assert [(a.unix_ns, a.clock, a.clock_ns) for a in found.anchors] == [
            (a.unix_ns, a.clock, a.clock_ns) for a in anchors
        ]
        steps = read_table(tmp_path / target / "tables" / "steps.parquet", "steps").to_pylist()
        assert [row["dur_ns"] for row in steps] == [10, 20]


def test_a_counter_that_wrapped_is_undone_by_the_range_it_was_recorded_with(tmp_path, monkeypatch):
    root = powercap(tmp_path / "powercap")
    monkeypatch.setenv(POWERCAP_VARIABLE, str(root))
    zone = root / "intel-rapl:0" / "energy_uj"
    zone.write_text(str(RANGE_UJ - 4_000_000))
    with sample(tmp_path / "o", ["rapl"], period_s=0.01) as sampler:
        time.sleep(0.1)
        zone.write_text("6000000")
        time.sleep(0.1)
    log = read_power(sampler.result.files[0])
    times = log.table["ts_ns"].to_pylist()
    energies = device_energy(log.table, Window(min(times), max(times)), max_power_w=1e6)
    assert energies["cpu", "package-0"].value_j == pytest.approx(10.0)
    # A counter that shows one value throughout has no energy, which is not 0.
    assert energies["cpu", "package-1"].value_j is None
    assert "counter_stands_still" in energies["cpu", "package-1"].warnings


def test_a_meter_of_its_own_is_a_capture_beside_the_sensors(tmp_path):
    script = tmp_path / "meter.py"
    script.write_text(
        "import sys, time\n"
        "sys.stdout.write('timestamp_ns,clock,device_kind,device_id,field,value,unit' + chr(10))\n"
        "while True:\n"
        "    sys.stdout.write(f'{time.monotonic_ns()},monotonic,wall,plug,power,55.5,W' + chr(10))\n"
        "    sys.stdout.flush()\n    time.sleep(0.01)\n"
    )
    writer = RecordingWriter(tmp_path / "raw", label="metered")
    sensors = ["nvml", f"command:{shlex.join([sys.executable, str(script)])}"]
    with sample(writer.raw_directory("energy", 0), sensors) as sampler:
        time.sleep(0.3)
    writer.publish(sampler.captures(), system=System(), workload=Workload(), devices=[], sensors=sampler.result.sensors)
    for source, target in (("raw", "once"), ("once", "again")):
        normalize([tmp_path / source], tmp_path / target)
        captures = read_manifest(tmp_path / target).captures
        assert [(c.name, c.file) for c in captures] == [
            ("energy", "raw/energy/rank0/power.parquet"),
            ("energy-2", "raw/energy/rank0/meter.csv"),
        ]
        power = read_table(tmp_path / target / "tables" / "power.parquet", "power")
        times = [r["ts_ns"] for r in power.to_pylist() if r["device_kind"] == "gpu"]
        over = Window(min(times) + 50_000_000, min(times) + 250_000_000)
        found = device_energy(power, over)
        assert found["wall", "plug"].value_j == pytest.approx(11.1, rel=1e-6)
        assert found["gpu", "GPU-1"].value_j == pytest.approx(20, rel=0.05)
