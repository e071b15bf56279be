"""Energies of windows: what the table knows of a sensor, estimates beside a true power, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.energy.meter import Metered, read
from benchmarks.energy.windows import device_name
from typer.testing import CliRunner

from magneton.analysis.energy.sensor_model.known import family_of, known_sensor
from magneton.analysis.energy.sensor_model.sensor import Calibration
from magneton.analysis.energy.sensor_model.windows import DeviceEnergy, sum_windows
from magneton.cli.app import app
from magneton.flows import energy_of
from magneton.flows.extras import ExtraFiles
from magneton.flows.traces import normalize
from magneton.schemas.errors import InputFormatError, InsufficientPowerDataError

NAMES = {
    "NVIDIA A100-PCIE-40GB": "GA100",
    "NVIDIA A30": "GA100",
    "NVIDIA H100 80GB HBM3": "GH100",
    "NVIDIA H200": "GH100",
    "NVIDIA GeForce RTX 3090": "GA10x",
    "NVIDIA RTX A5000": "GA10x",
    "NVIDIA A40": "GA10x",
    "NVIDIA GeForce RTX 4090": "AD10x",
    "NVIDIA L4": "AD10x",
    "Tesla V100-SXM2-16GB": "GV100",
    "Tesla T4": "TU10x",
    "Tesla K40m": "GK",
    "AMD Instinct MI300X": "MI300",
    "AMD Instinct MI250X": "MI200",
    "Test GPU": "unknown",
    "": "unknown",
}


@pytest.mark.parametrize(("name", "family"), NAMES.items())
def test_families(name: str, family: str) -> None:
    assert family_of(name) == family


def test_every_entry_names_sources_and_never_claims_more_than_a_meter_could_tell() -> None:
    for name in NAMES:
        for field in ("power_instant", "power", "power_average", "energy_counter"):
            sensor = known_sensor(name, field)
            assert sensor.sources
            assert sensor.gain_sd >= 0.025
            assert bool(sensor.responses) is (field != "energy_counter")


def square(period_s: float, low: float, high: float, end_s: float = 10.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Busy stretches of a square wave, and its power on a fine grid."""
    starts = np.arange(1.0, end_s - 1.0, period_s)
    busy = np.stack([starts, starts + period_s / 2], axis=1)
    t = np.arange(0.0, end_s, 1e-4)
    on = np.zeros(len(t), dtype=bool)
    for a, b in busy:
        on |= (t >= a) & (t < b)
    return busy, t, np.where(on, high, low)


def polled(t: np.ndarray, power: np.ndarray, width_s: float, period_s: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """What a boxcar sensor shows when polled every 10 ms."""
    total = np.concatenate([[0.0], np.cumsum(power[:-1] * np.diff(t))])
    updates = np.arange(width_s + 0.03, t[-1], period_s)
    shown = (np.interp(updates, t, total) - np.interp(updates - width_s, t, total)) / width_s
    at = np.arange(updates[0], t[-1], 0.01)
    return at, shown[np.searchsorted(updates, at, side="right") - 1]


@pytest.mark.parametrize("loop_s", [0.107, 0.5, 3.0])
def test_the_interval_holds_the_true_energy(loop_s: float) -> None:
    """A perfect boxcar sensor of 100 ms, whose gain of 1 lies within what is known of a gain."""
    busy, t, power = square(loop_s, 100.0, 300.0)
    total = np.concatenate([[0.0], np.cumsum(power[:-1] * np.diff(t))])
    device = DeviceEnergy(*polled(t, power, 0.1), busy, known_sensor("RTX 3090", "power_instant"))
    exact = DeviceEnergy(
        *polled(t, power, 0.1),
        busy,
        known_sensor("RTX 3090", "power_instant"),
        calibration=Calibration(1.0, 0.0, 0.001, 0.1),
    )
    for start, end in ((2.0, 4.0), (0.8, 1.9), (3.3, 7.7)):
        truth = float(np.interp(end, t, total) - np.interp(start, t, total))
        for one in (device, exact):
            found = one.window(start, end)
            assert found is not None
            if one is exact:
                assert found.low_j <= truth <= found.high_j
                assert found.energy_j == pytest.approx(truth, rel=0.03)
            assert found.label == "measured"


def test_windows_of_a_recording_add_up() -> None:
    busy, t, power = square(0.5, 100.0, 300.0)
    device = DeviceEnergy(*polled(t, power, 0.1), busy, known_sensor("RTX 3090", "power_instant"))
    parts = [device.window(2.0, 3.3), device.window(3.3, 5.0)]
    whole = device.window(2.0, 5.0)
    assert whole is not None
    assert sum(p.energy_j for p in parts if p) == pytest.approx(whole.energy_j, rel=1e-9)
    summed = sum_windows([p for p in parts if p])
    assert summed.scale_sd_j == pytest.approx(whole.scale_sd_j, rel=1e-2)


def test_what_is_less_than_measured_says_why() -> None:
    busy, t, power = square(0.5, 100.0, 300.0)
    log = polled(t, power, 0.1)
    short = DeviceEnergy(*log, busy, known_sensor("RTX 3090", "power_instant")).window(3.0, 3.05)
    assert short is not None
    assert (short.label, short.warnings) == ("apportioned", ("window_shorter_than_sensor",))
    steps = np.array([[1.0, 9.0]])
    blind = DeviceEnergy(*log, steps, known_sensor("A100", "power_instant"), timeline_known=False).window(3.0, 5.0)
    assert blind is not None
    assert "unseen_time" in blind.warnings
    unknown = DeviceEnergy(*log, busy, known_sensor("Test GPU", "power_instant")).window(3.0, 5.0)
    assert unknown is not None
    assert "unknown_sensor" in unknown.warnings
    # Readings of a sensor that does something else than the table says.
    wrong = DeviceEnergy(*polled(t, power, 0.02), busy, known_sensor("RTX 4090", "power_instant")).window(3.0, 5.0)
    assert wrong is not None
    assert "sensor_misfit" in wrong.warnings
    gap = np.abs(log[0] - 5.0) > 1.0
    holed = DeviceEnergy(log[0][gap], log[1][gap], busy, known_sensor("RTX 3090", "power_instant")).window(3.0, 7.0)
    assert holed is not None
    assert "power_gap" in holed.warnings


def test_beyond_the_log_nothing_is_known() -> None:
    busy, t, power = square(0.5, 100.0, 300.0)
    device = DeviceEnergy(*polled(t, power, 0.1), busy, known_sensor("RTX 3090", "power_instant"))
    assert device.window(30.0, 31.0) is None
    with pytest.raises(ValueError, match="2 readings"):
        DeviceEnergy(np.array([0.0, 1.0]), np.array([1.0, 2.0]), np.zeros((0, 2)), known_sensor(None, "power"))


# Recordings beside a meter, through normalize and energy.

RECORDED = {
    "a100_square104ms": "NVIDIA A100-PCIE-40GB",
    "a100_step": "NVIDIA A100-PCIE-40GB",
    "rtx3090_step": "NVIDIA GeForce RTX 3090",
    "rtx4090_step": "NVIDIA GeForce RTX 4090",
}
BASE_NS = 1_718_000_000_000_000_000


def as_recording(metered: Metered, name: str, tmp_path: Path) -> Path:
    """The loads as one kernel and one step each, and the sensor's readings as a power log."""
    events = []
    for number, (start, end) in enumerate(metered.on.tolist()):
        at, length = (start + 100) * 1e6, (end - start) * 1e6
        events.append({"ph": "X", "cat": "kernel", "name": "load", "pid": 0, "tid": 7, "ts": at, "dur": length})
        events[-1]["args"] = {"device": 0, "stream": 7, "correlation": number}
    span = {"ts": (metered.on[0, 0] + 100) * 1e6, "dur": (metered.on[-1, 1] - metered.on[0, 0]) * 1e6}
    events.append({"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0", "pid": 1, "tid": 1, **span})
    document = {"deviceProperties": [{"id": 0, "name": name}], "baseTimeNanoseconds": BASE_NS, "traceEvents": events}
    (tmp_path / "trace.json").write_text(json.dumps(document))
    field = "power.draw.instant" if "power.draw.instant" in metered.fields else "power.draw"
    lines = ["timestamp_ns,clock,device_kind,device_id,field,value,unit"]
    kind = {"power.draw.instant": "power_instant", "power.draw": "power"}[field]
    for at, watts in zip(metered.poll_t.tolist(), metered.fields[field].tolist(), strict=True):
        if not np.isnan(watts):
            lines.append(f"{BASE_NS + round((at + 100) * 1e9)},realtime,gpu,0,{kind},{watts},W")
    (tmp_path / "power.csv").write_text("\n".join(lines) + "\n")
    out = tmp_path / "run"
    normalize([tmp_path / "trace.json"], out, extras=ExtraFiles(power=(tmp_path / "power.csv",)))
    return out


@pytest.mark.parametrize("name", RECORDED)
def test_printed_intervals_hold_the_meter(name: str, shared: Path, tmp_path: Path) -> None:
    metered = read(shared / "traces" / "power" / name)
    found = energy_of(as_recording(metered, RECORDED[name], tmp_path)).document
    [row] = [one for one in found.rows if one.what == "run"]
    truth = metered.energy(float(metered.on[0, 0]), float(metered.on[-1, 1]))
    assert row.low_j is not None and row.high_j is not None and row.energy_j is not None
    assert row.low_j <= truth <= row.high_j
    assert row.energy_j == pytest.approx(truth, rel=0.06)
    assert (row.high_j - row.low_j) / 2 / truth < 0.085
    assert found.sensors[0].family == family_of(RECORDED[name])
    assert found.sensors[0].sources


def test_the_command(shared: Path, tmp_path: Path) -> None:
    run = as_recording(read(shared / "traces" / "power" / "rtx3090_step"), "NVIDIA GeForce RTX 3090", tmp_path)
    shown = CliRunner().invoke(app, ["energy", str(run)])
    assert shown.exit_code == 0
    assert "measured" in shown.stdout
    assert "GA10x (measured)" in shown.stdout
    document = json.loads(CliRunner().invoke(app, ["energy", str(run), "--json"]).stdout)
    assert {row["what"] for row in document["rows"]} == {"run", "step", "rest"}
    scale = tmp_path / "cal.json"
    scale.write_text(
        json.dumps(
            {
                "gain": 0.95,
                "gain_sd": 0.004,
                "offset_w": -0.8,
                "offset_sd_w": 0.5,
                "correlation": -0.5,
                "source": "a meter",
            }
        )
    )
    narrow = energy_of(run, calibration=scale).document
    assert narrow.sensors[0].scale_from == "a meter"
    widths = [(r.high_j or 0) - (r.low_j or 0) for r in narrow.rows if r.what == "run"]
    assert widths[0] < 0.2 * (document["rows"][0]["high_j"] - document["rows"][0]["low_j"])
    other = json.loads(scale.read_text()) | {"device_name": "NVIDIA A100-PCIE-40GB"}
    scale.write_text(json.dumps(other))
    unused = energy_of(run, calibration=scale).document
    assert unused.sensors[0].scale_from == "table"
    assert "calibration_not_used" in {note.code for note in unused.notes}
    scale.write_text('{"gain": 0}')
    with pytest.raises(InputFormatError, match="is not a calibration"):
        energy_of(run, calibration=scale)


def test_without_power_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(
        json.dumps(
            {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]}
        )
    )
    with pytest.raises(InsufficientPowerDataError, match="no power of a GPU"):
        energy_of(tmp_path / "trace.json")


def test_names_of_recordings_become_names_of_devices() -> None:
    assert [device_name(n) for n in ("rtx3090_step", "a100_step", "a5000_step", "k40m_step")] == [
        "RTX 3090",
        "a100",
        "RTX a5000",
        "k40m",
    ]
