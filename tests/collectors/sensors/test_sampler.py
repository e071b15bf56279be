"""Sampling while a program runs: what is left, what it costs, and what happens when something breaks."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.powercap import powercap

from magneton.collectors.sensors import SensorUnavailableError, anchors_now, sample
from magneton.collectors.sensors.rapl import POWERCAP_VARIABLE
from magneton.schemas.clocks import clock_map
from magneton.schemas.errors import UsageError
from magneton.schemas.tables.parquet import read_table

FAKES = Path(__file__).resolve().parents[3] / "benchmarks" / "fakes"
HEADER = "timestamp_ns,clock,device_kind,device_id,field,value,unit"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One GPU of 100 W, no other sensor."""
    monkeypatch.syspath_prepend(str(FAKES))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    gpus = [{"uuid": "GPU-1", "mig": False, "idle_w": 100, "busy_w": 100}]
    monkeypatch.setenv("MAGNETON_FAKE_NVML", json.dumps({"gpus": gpus}))
    monkeypatch.setenv("MAGNETON_FAKE_AMDSMI", "{}")
    monkeypatch.setenv(POWERCAP_VARIABLE, str(tmp_path / "none"))


def rows(file: Path, field: str) -> list[dict[str, Any]]:
    return [r for r in read_table(file, "power").to_pylist() if r["field"] == field]


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_the_whole_block_lies_between_readings(tmp_path, isolation):
    with sample(tmp_path / "o", ["nvml"], period_s=0.02, isolation=isolation, rank=3) as sampler:
        begin = time.monotonic_ns()
        time.sleep(0.3)
        end = time.monotonic_ns()
    result = sampler.result
    (file,) = result.files
    counter = rows(file, "energy_counter")
    times = [r["ts_ns"] for r in counter]
    assert times[0] < begin and times[-1] > end and times == sorted(times)
    assert {(r["clock"], r["rank"], r["capture"], r["run_id"], r["dur_ns"]) for r in counter} == {
        ("monotonic", 3, "energy", None, None)
    }
    watts = (counter[-1]["value"] - counter[0]["value"]) / ((times[-1] - times[0]) / 1e9)
    assert watts == pytest.approx(100, rel=0.15)
    assert len(counter) >= 8, "polls that find the same value are kept"
    assert result.measured and not result.incomplete and result.notes == []
    (entry,) = result.sensors
    assert entry["isolation"] == isolation and entry["facts"]["driver"] == "580.0-fake"
    assert entry["cost"]["polls"] == len(counter)
    (capture,) = sampler.captures()
    assert (capture.kind, capture.rank, capture.file) == ("energy", 3, str(sampler.result.files[0]))
    assert {a.clock for a in capture.anchors} == {"monotonic", "boottime"}
    assert abs(clock_map(capture.anchors, "monotonic").convert(end) - time.time_ns()) < 10**9


def test_polling_costs_little(tmp_path):
    with sample(tmp_path / "o", ["nvml"]) as sampler:
        time.sleep(0.5)
    cost = sampler.result.sensors[0]["cost"]
    assert 0 < cost["cpu_share"] < 0.25
    assert cost["poll_ns_median"] < 5_000_000


def test_no_sensor_is_said_and_energy_stays_unknown(tmp_path, monkeypatch):
    monkeypatch.setenv("MAGNETON_FAKE_NVML", json.dumps({"init": "DRIVER_NOT_LOADED"}))
    with sample(tmp_path / "o") as sampler:
        pass
    result = sampler.result
    assert result.files == [] and not result.measured and sampler.captures() == []
    assert any("NULL" in note for note in result.notes)
    refused = {s["source"]: s["refused"]["reason"] for s in result.sensors}
    assert refused["nvml"] == "NVML says DRIVER_NOT_LOADED"
    assert set(refused) == {"nvml", "amd-smi", "rapl"}
    assert not result.incomplete


def test_rapl_is_read_beside_the_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv(POWERCAP_VARIABLE, str(powercap(tmp_path / "powercap")))
    with sample(tmp_path / "o", period_s=0.02) as sampler:
        time.sleep(0.05)
    kinds = {(r["source"], r["device_kind"]) for r in rows(sampler.result.files[0], "energy_counter")}
    assert kinds == {("nvml", "gpu"), ("rapl", "cpu"), ("rapl", "dram"), ("rapl", "psys")}


def test_a_gpu_lost_on_the_way_marks_the_recording_incomplete(tmp_path, monkeypatch):
    gpus = [{"uuid": "GPU-1", "mig": False, "lost_after_s": 0.3}]
    monkeypatch.setenv("MAGNETON_FAKE_NVML", json.dumps({"gpus": gpus}))
    with sample(tmp_path / "o", ["nvml"], period_s=0.02) as sampler:
        time.sleep(0.6)
    counter = rows(sampler.result.files[0], "energy_counter")
    assert [r["value"] is None for r in counter].count(True) == 1
    assert (counter[-1]["value"], counter[-1]["flags"]) == (None, "not_available simulated")
    assert sampler.result.incomplete and "lost" in sampler.result.notes[0]


def test_when_the_polling_process_dies_what_it_read_stays(tmp_path):
    with sample(tmp_path / "o", ["nvml"], period_s=0.01) as sampler:
        time.sleep(0.2)
        os.kill(sampler.pid, signal.SIGKILL)
        time.sleep(0.05)
    assert sampler.result.incomplete and "ended early" in sampler.result.notes[0]
    assert len(rows(sampler.result.files[0], "energy_counter")) > 5


def test_the_polling_process_ends_with_the_program(tmp_path):
    code = (
        "import os, sys, time\nfrom magneton.collectors.sensors import sample\n"
        f"s = sample({str(tmp_path / 'o')!r}, ['nvml']).__enter__()\n"
        "sys.stdout.write(str(s.pid)); sys.stdout.flush()\nos._exit(1)\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    pid = int(done.stdout)
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    pytest.fail("it still runs")


def test_an_exception_of_the_program_goes_through(tmp_path):
    with pytest.raises(ZeroDivisionError), sample(tmp_path / "o", ["nvml"]) as sampler:
        raise ZeroDivisionError
    assert sampler.result.measured


def test_a_command_writes_its_own_readings(tmp_path):
    script = tmp_path / "meter.py"
    script.write_text(
        f"import sys, time\nsys.stdout.write({HEADER!r} + chr(10))\n"
        "while True:\n"
        "    sys.stdout.write(f'{time.time_ns()},realtime,wall,plug,power,55.5,W' + chr(10))\n"
        "    sys.stdout.flush()\n    time.sleep(0.02)\n"
    )
    with sample(tmp_path / "o", [f"command:{shlex.join([sys.executable, str(script)])}"]) as sampler:
        time.sleep(0.1)
    (file,) = sampler.result.files
    lines = file.read_text().splitlines()
    assert lines[0] == HEADER and len(lines) > 3
    assert sampler.result.measured and not sampler.result.incomplete
    assert sampler.captures()[0].source_format == "csv"


@pytest.mark.parametrize("words", ["false", "no-such-meter", "echo hello"])
def test_a_command_that_is_no_meter_is_refused_before_the_program_runs(tmp_path, words):
    with pytest.raises(SensorUnavailableError), sample(tmp_path / "o", [f"command:{words}"]):
        pytest.fail("the block ran")
    assert list((tmp_path / "o").iterdir()) == []


def test_a_meter_that_ends_early_marks_the_recording_incomplete(tmp_path):
    with sample(tmp_path / "o", [f"command:echo {HEADER}"]) as sampler:
        time.sleep(0.1)
    assert sampler.result.incomplete and "exit code 0" in sampler.result.notes[0]


def test_of_a_growing_file_the_part_of_the_recording_is_kept(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text(f"{HEADER}\n1,realtime,wall,w,power,1,W\n2,realtime,wall,w,power,2,W\n")
    with sample(tmp_path / "o", [f"file:{log}"]) as sampler, log.open("a") as stream:
        stream.write("3,realtime,wall,w,power,3,W\n")
    lines = sampler.result.files[0].read_text().splitlines()
    assert lines == [HEADER, "2,realtime,wall,w,power,2,W", "3,realtime,wall,w,power,3,W"]
    with pytest.raises(SensorUnavailableError), sample(tmp_path / "p", [f"file:{tmp_path / 'none.csv'}"]):
        pass


@pytest.mark.parametrize("sensors", [["thermometer"], ["command:"], ["file:"]])
def test_an_unknown_sensor_is_refused(tmp_path, sensors):
    with pytest.raises(UsageError):
        sample(tmp_path, sensors)


def test_anchors_are_tight():
    first, second = anchors_now(), anchors_now()
    offsets = [{a.clock: a.unix_ns - a.clock_ns for a in anchors} for anchors in (first, second)]
    assert abs(offsets[0]["monotonic"] - offsets[1]["monotonic"]) < 1_000_000


def test_polls_that_come_late_leave_a_gap_and_no_burst(tmp_path):
    with sample(tmp_path / "o", ["nvml"], period_s=0.01) as sampler:
        time.sleep(0.1)
        os.kill(sampler.pid, signal.SIGSTOP)
        time.sleep(0.6)
        os.kill(sampler.pid, signal.SIGCONT)
        time.sleep(0.1)
    steps = np.diff([r["ts_ns"] for r in rows(sampler.result.files[0], "energy_counter")])
    assert steps.max() > 150_000_000
    assert sampler.result.sensors[0]["cost"]["missed_polls"] >= 10
    assert np.sort(steps[:-1])[:3].min() > 500_000, "no burst of polls makes up for those that were missed"


def test_the_polling_process_stays_small(tmp_path):
    """It shares the machine with the program: no framework and no engine is loaded in it."""
    code = "import sys, magneton.collectors.sensors.worker; sys.stdout.write(' '.join(sys.modules))"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    loaded = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True).stdout.split()
    assert "magneton.collectors.sensors.worker" in loaded
    assert not {"torch", "numpy", "pyarrow", "duckdb", "jax"} & set(loaded)


def test_a_process_the_program_forked_does_not_hold_the_sensors_up(tmp_path):
    with sample(tmp_path / "o", ["nvml"]) as sampler:
        forked = os.fork()
        if forked == 0:
            time.sleep(20)
            os._exit(0)
        time.sleep(0.1)
        before = time.monotonic()
    os.kill(forked, signal.SIGKILL)
    os.waitpid(forked, 0)
    assert time.monotonic() - before < 5
    assert not sampler.result.incomplete


def test_where_no_process_can_be_started_the_program_runs_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    ran = False
    with sample(tmp_path / "o", ["nvml"]) as sampler:
        ran = True
    assert ran and sampler.result.incomplete and not sampler.result.measured
    assert "could not be started" in sampler.result.notes[0] and sampler.captures() == []
