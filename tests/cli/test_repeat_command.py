"""``magneton repeat`` without a framework: names, r, and what windows and readings say of time and energy."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from magneton.analysis.energy.repeats.in_place import NO_SENSOR, RepeatedWindow, energies_of, time_of
from magneton.analysis.energy.repeats.regions import DEFAULT_TIMES, MAX_TIMES, RegionTime, find_regions, times_for
from magneton.analysis.recording import Recording
from magneton.cli.app import main
from magneton.collectors.sensors.rapl import POWERCAP_VARIABLE
from magneton.flows.repeat import sensor_of, window_for
from magneton.flows.traces import normalize
from magneton.schemas.errors import InsufficientRepeatsError
from magneton.schemas.tables.run import RUN_TABLES

S = 1_000_000_000
TIMES = 11


def windows(lengths: tuple[float, ...] = (2.0, 1.0, 1.0, 2.0)) -> list[RepeatedWindow]:
    """100 iterations each, in the order r 1 1 r, half a second apart."""
    made, at = [], S
    for number, length in enumerate(lengths):
        end = at + round(length * S)
        made.append(RepeatedWindow(at, end, 100, TIMES if number % 4 in (0, 3) else 1))
        at = end + S // 2
    return made


def power(found: list[RepeatedWindow], *, series: dict[str, Any], flags: str | None = None) -> pa.Table:
    """Return readings every 10 ms; each series is a function of whether the region is repeated then."""
    rows = []
    for ms in range(0, found[-1].end_ns // 1_000_000 + 1000, 10):
        t = ms * 1_000_000
        often = any(w.start_ns <= t <= w.end_ns and w.times > 1 for w in found)
        for field, value in series.items():
            unit = {"power_instant": "W", "power_average": "W", "power_limit": "W", "temperature": "degC"}.get(
                field, "MHz"
            )
            rows.append(
                {
                    "run_id": "r",
                    "capture": "energy",
                    "rank": 0,
                    "ts_ns": t,
                    "source": "nvml",
                    "name": field,
                    "device_kind": "gpu",
                    "device_id": "GPU-1",
                    "field": field,
                    "value": float(value(often)),
                    "unit": unit,
                    "flags": flags,
                }
            )
    return pa.Table.from_pylist(rows, schema=RUN_TABLES["power"].empty().schema)


STEADY = {
    "clock_sm": lambda _: 1980,
    "clock_memory": lambda _: 3201,
    "temperature": lambda often: 50 + often,
    "power_limit": lambda _: 700,
}


def test_the_time_of_a_region_is_the_difference_over_r_less_one():
    found = time_of(windows())
    assert found.energy_j == pytest.approx((0.02 - 0.01) / 10)
    assert found.low_j == pytest.approx(found.high_j) == pytest.approx(found.energy_j)
    with pytest.raises(InsufficientRepeatsError, match="1 windows repeat and 1 do not"):
        time_of(windows()[:2])


def test_the_energy_of_a_region_is_the_difference_over_r_less_one():
    found = windows()
    (one,) = energies_of(found, power(found, series=STEADY | {"power_instant": lambda _: 300}))
    assert one.estimate is not None and one.refusal is None and not one.simulated
    # 300 W for 20 ms and for 10 ms an iteration.
    assert one.estimate.energy_j == pytest.approx((6.0 - 3.0) / 10)
    assert one.estimate.label == "replayed"
    assert one.estimate.low_j < one.estimate.energy_j < one.estimate.high_j
    assert (one.device_kind, one.device_id, one.field) == ("gpu", "GPU-1", "power_instant")
    assert set(one.compared) == {"clock_sm", "clock_memory", "temperature", "power_limit"}


def test_readings_of_a_stand_in_are_flagged():
    found = windows()
    (one,) = energies_of(found, power(found, series={"power_instant": lambda _: 300}, flags="simulated"))
    assert one.simulated and one.compared == ()


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("clock_sm", lambda often: 1980 - 60 * often, "clock_sm was 1920"),
        ("temperature", lambda often: 50 + 8 * often, "temperature was 58"),
        ("power_limit", lambda often: 700 - often, "power_limit was 699"),
    ],
)
def test_other_clocks_temperatures_and_caps_are_refused(field, value, says):
    found = windows()
    (one,) = energies_of(found, power(found, series=STEADY | {"power_instant": lambda _: 300, field: value}))
    assert one.estimate is None and one.refusal is not None
    assert one.refusal.code == "NotComparableError" and says in str(one.refusal)


def test_energy_without_a_sensor_is_refused():
    found = windows()
    for readings in (None, power(found, series=STEADY)):
        (one,) = energies_of(found, readings)
        assert one.estimate is None and str(one.refusal) == NO_SENSOR


def test_windows_that_are_not_covered_or_too_short_for_the_reading_are_refused():
    found = windows()
    late = power(found, series={"power_instant": lambda _: 300})
    late = late.filter(pa.compute.greater(late["ts_ns"], found[1].start_ns))
    assert "cover" in str(energies_of(found, late)[0].refusal)
    short = windows((0.5, 0.5, 0.5, 0.5))
    (one,) = energies_of(short, power(short, series={"power_average": lambda _: 300}))
    assert one.refusal is not None and "averages over 1 s" in str(one.refusal)


def test_r_follows_the_sensor_and_the_share_of_the_step():
    assert times_for(RegionTime("a", False, None, 0.01), 0.1, 0.0)[0] == DEFAULT_TIMES
    # As long as the rest of the step: 9 ms / 1 ms.
    assert times_for(RegionTime("a", False, 0.001, 0.01), None, 0.0)[0] == 9
    # Longer than three updates, which takes fewer.
    assert times_for(RegionTime("a", False, 0.1, 10.0), 0.125, 0.0)[0] == 4
    assert times_for(RegionTime("a", False, 1e-9, 10.0), None, 0.0)[0] == MAX_TIMES


def test_a_window_holds_many_updates_and_outlasts_what_a_reading_averages():
    assert window_for(None, 0.0) == 0.5
    assert window_for(0.02, 0.0) == 1.0
    assert window_for(0.1, 0.0) == pytest.approx(2.0)
    assert window_for(0.02, 1.0) == 5.0


def test_the_slowest_device_and_its_best_reading_count(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks" / "fakes"))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setenv(POWERCAP_VARIABLE, str(tmp_path / "none"))
    gpus = [{"uuid": f"GPU-{ms}", "mig": False, "counter_ms": ms} for ms in (20, 80)]
    monkeypatch.setenv("MAGNETON_FAKE_NVML", json.dumps({"gpus": gpus}))
    period_s, reach_s = sensor_of(["nvml"])
    assert period_s == pytest.approx(0.08, rel=0.3) and reach_s == 0
    monkeypatch.setenv("MAGNETON_FAKE_NVML", json.dumps({"init": "LIBRARY_NOT_FOUND"}))
    assert sensor_of(["nvml"]) == (None, 0.0)


def test_a_field_that_says_how_long_it_averages_sets_the_window(monkeypatch):
    series = {"energetic": True, "device_kind": "gpu", "device_id": "0", "field": "power_average", "update_ms": 100.0}
    found = {"sensors": [{"source": "x", "series": [series | {"name": "power_average_4000ms"}]}]}
    monkeypatch.setattr("magneton.flows.repeat.survey", lambda **_: found)
    assert sensor_of([]) == (0.1, 4.0)
    assert window_for(0.1, 4.0) == 20.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "gpt2"
    normalize([Path(__file__).resolve().parents[2] / "examples" / "recordings" / "gpt2-hf"], out)
    return out


def test_regions_are_looked_up_in_the_tables(run):
    recording = Recording.open(run)
    paths = [p for p in recording.table("modules")["path"].to_pylist() if p.endswith("GPT2MLP_0")]
    addmm, mlp = find_regions(recording, ["aten::addmm", paths[0]])
    assert not addmm.module and mlp.module
    for region in (addmm, mlp):
        assert region.region_s is not None and region.step_s is not None
        assert 0 < region.region_s < region.step_s
    assert [r.name for r in find_regions(recording, ["aten::mul", "aten::mul"])] == ["aten::mul"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--regions", "aten::addm"], "no operator and no module is called 'aten::addm' (did you mean aten::addmm?)"),
        (["--regions", ","], "no region is named"),
        (["--regions", "aten::addmm", "--sensor", "nvmll"], "nvmll"),
        (
            ["--regions", "aten::addmm", "--sensor", "file:x.csv"],
            "a meter cannot be read here",
        ),
        (["--regions", "aten::addmm", "--times", "1"], "times is 1 (give a whole number, at least 2)"),
        (["--regions", "aten::addmm", "--out", "taken"], "already exists"),
        (["--regions", "aten::addmm", "--times", "3", "--alone"], "not repeated in place"),
        (["--regions", "onnx:MatMul"], "operations of onnx are not repeated in place (add --alone)"),
        (["--regions", "onnx:MatMul,jax:tanh", "--alone"], "regions of several systems are named"),
        (["--regions", "onnx:MatMul,aten::addmm", "--alone"], "regions of several systems are named"),
        (["--regions", "onnx::MatMul", "--alone"], "no operator and no module is called 'onnx::MatMul'"),
    ],
)
def test_bad_input_is_one_line_before_anything_runs(run, tmp_path, monkeypatch, capfd, words, says):
    monkeypatch.chdir(tmp_path)
    Path("taken").write_text("mine")
    code = main(["repeat", str(run), *words, "--", sys.executable, "-c", "open('ran', 'w').close()"])
    said = capfd.readouterr()
    assert code == 2 and says in said.err and len(said.err.strip().splitlines()) == 1
    assert said.out == "" and not Path("ran").exists() and Path("taken").read_text() == "mine"
