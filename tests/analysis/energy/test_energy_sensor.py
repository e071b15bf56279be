"""The model of a sensor: lattice, response, fit, calibration; and the real recordings beside a meter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.energy import real
from benchmarks.energy.meter import decode_meter, read
from benchmarks.energy.powers import BOARDS, CLASS_POWERS
from benchmarks.energy.simulate import SENSORS, Repeated, generated, model_of, read_sensor
from hypothesis import given, settings
from hypothesis import strategies as st

from magneton.analysis.energy.measure.integrate import integrate_power, prepare
from magneton.analysis.energy.measure.result import Window
from magneton.analysis.energy.repeats.difference import replay_power
from magneton.analysis.energy.sensor_model.calibrate import calibrate, identify_response
from magneton.analysis.energy.sensor_model.estimate import estimate_total
from magneton.analysis.energy.sensor_model.sensor import (
    Calibration,
    SensorModel,
    Updates,
    boxcar,
    busy_fractions,
    first_order,
    lock,
)
from magneton.analysis.energy.sensor_model.timeline import Timeline, between

KINDS = ("gemm:a", "gemm:b", "attention", "normalization", "copy")


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 3), st.integers(0, 2)), min_size=1, max_size=30))
@settings(max_examples=50, deadline=None)
def test_shares_of_time_add_up_to_the_busy_time(kernels: list[tuple[float, float, int]]) -> None:
    start, length, which = (np.array(x) for x in zip(*kernels, strict=True))
    line = Timeline(start, length, which, ("a", "b", "c"))
    whole = np.array([-1.0, 20.0])
    busy = 0.0
    end = -1.0
    for s, e in sorted(zip(start.tolist(), (start + length).tolist(), strict=True)):
        busy += max(0.0, e - max(s, end)) if e > s else 0.0
        end = max(end, e) if e > s else end
    assert between(line.share(whole)).sum() == pytest.approx(busy, abs=1e-9)
    assert between(line.active(whole)).sum() == pytest.approx(length.sum(), abs=1e-9)


@pytest.mark.parametrize("response", [boxcar(0.05), first_order(0.013)])
def test_a_response_weighs_one_in_all_and_follows_its_shape(response) -> None:  # type: ignore[no-untyped-def]
    line = Timeline(np.array([0.0]), np.array([10.0]), np.array([0]), ("load",))
    t = np.array([-0.01, 0.013, 0.025, 5.0])
    seen = busy_fractions(line, t, response, 0.0)[:, 0]
    assert seen[0] == 0.0 and seen[-1] == pytest.approx(1.0)
    shape = 1 - np.exp(-t[1:3] / 0.013) if response.kind == "first_order" else t[1:3] / 0.05
    assert seen[1:3] == pytest.approx(shape, abs=0.01)


@given(st.floats(0.018, 0.12), st.floats(0, 1), st.floats(0.1, 0.3), st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_the_lattice_is_found(period: float, phase: float, poll: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    updates = np.arange(phase * period, 8.0, period)
    value = np.round(rng.normal(100, 20, len(updates)), 2)
    polls = np.sort(np.arange(0, 8.0, poll * period) + 0.0005 * rng.standard_normal(round(8.0 / (poll * period) + 0.5)))
    at = np.searchsorted(updates, polls, "right") - 1
    found = lock(polls[at >= 0], value[at[at >= 0]])
    assert found.locked and found.period_s == pytest.approx(period, rel=2e-3)
    near = updates[np.clip(np.searchsorted(updates, found.t_s - period / 2), 0, len(updates) - 1)]
    # Polls at a fixed part of the period see every update at one distance: its place between two polls stays unknown.
    assert np.median(np.abs(found.t_s - near)) < max(0.1, poll / 2) * period
    middle = (found.t_s > 0.5) & (found.t_s < 7.5)
    shown = value[np.searchsorted(updates, found.t_s[middle] + period / 2, "right") - 1]
    assert np.mean(shown == found.value[middle]) > 0.97


def test_polls_too_far_apart_are_not_forced_onto_a_lattice() -> None:
    t = np.arange(0.0, 600, 30)
    plain = lock(t, np.arange(20.0))
    assert not plain.locked and plain.period_s is None and np.array_equal(plain.t_s, t)
    dated = lock(t, np.arange(20.0), period_s=0.1)
    assert (
        not dated.locked
        and dated.t_s == pytest.approx(t - 0.05)
        and dated.timing_sd_s == pytest.approx(0.0289, abs=1e-4)
    )


def test_an_unknown_calibration_widens_the_interval() -> None:
    line = Timeline(np.array([1.0, 3.0]), np.array([1.0, 2.0]), np.array([0, 0]), ("load",))
    t = np.arange(0.0, 6.0, 0.1)
    rng = np.random.default_rng(0)
    seen = 60 + 140 * busy_fractions(line, t, boxcar(0.1), 0.0)[:, 0] + rng.normal(0, 0.5, len(t))
    updates = Updates(t, seen, 0.0, 0.1, True)
    widths = []
    for calibration in (Calibration(1.0, 0.0, 0.0, 0.0), Calibration(1.0, 0.0, 0.003, 0.3), Calibration()):
        made = estimate_total(updates, line, (0.5, 5.5), SensorModel(0.1, boxcar(0.1), 0.0, 0.0005, 0.5, calibration))
        assert made is not None and made.energy_j == pytest.approx(60 * 5 + 140 * 3, rel=0.01)
        widths.append(made.high_j - made.low_j)
    assert widths[0] < widths[1] < widths[2]


def test_power_scaled_scales_the_total_and_time_shifted_does_not() -> None:
    line = Timeline(np.array([1.0, 3.0]), np.array([1.0, 2.0]), np.array([0, 0]), ("load",))
    later = Timeline(np.array([11.0, 13.0]), np.array([1.0, 2.0]), np.array([0, 0]), ("load",))
    t = np.arange(0.0, 6.0, 0.1)
    seen = 60 + 140 * busy_fractions(line, t, boxcar(0.1), 0.0)[:, 0]
    model = SensorModel(0.1, boxcar(0.1), 0.0, 0.0005, 0.5)
    one = estimate_total(Updates(t, seen, 0.0, 0.1, True), line, (0.5, 5.5), model)
    two = estimate_total(
        Updates(t, 2 * seen, 0.0, 0.1, True), line, (0.5, 5.5), SensorModel(0.1, boxcar(0.1), 0.0, 0.0005, 1.0)
    )
    moved = estimate_total(Updates(t + 10, seen, 0.0, 0.1, True), later, (10.5, 15.5), model)
    assert one is not None and two is not None and moved is not None
    assert two.energy_j == pytest.approx(2 * one.energy_j, rel=1e-6)
    assert moved.energy_j == pytest.approx(one.energy_j, rel=1e-6)


def test_gain_and_offset_come_back_from_a_meter() -> None:
    line = Timeline(np.array([2.0]), np.array([4.0]), np.array([0]), ("load",))
    t = np.arange(0.05, 9.0, 0.1)
    rng = np.random.default_rng(1)
    truth = 65 + 130 * busy_fractions(line, t, boxcar(0.02), 0.0)[:, 0]
    updates = Updates(t, 0.95 * truth - 2 + rng.normal(0, 0.3, len(t)), 0.0, 0.1, True)

    class Meter:
        classes: tuple[str, ...] = ("power",)
        start_s, end_s = 0.0, 9.0

        def active(self, x: np.ndarray) -> np.ndarray:
            return 65 * x[None, :] + 130 * line.active(x)

        def share(self, x: np.ndarray) -> np.ndarray:
            return x[None, :]

    found = calibrate(updates, Meter(), SensorModel(0.1, boxcar(0.02), 0.0)).calibration
    assert abs(found.gain - 0.95) < 2 * found.gain_sd and abs(found.offset_w + 2) < 2 * found.offset_sd_w


def test_the_response_is_identified_without_a_meter() -> None:
    rng = np.random.default_rng(3)
    sensor = SENSORS["H100 instant"]
    template = generated(rng, span_s=0.26, kinds=("gemm",), calls=6, idle_share=0.5)
    device = Repeated(template, 25.0, rng, board=BOARDS["H100"], call_sd=0.0)
    log = read_sensor(device, sensor, rng, 0.0, device.end_s)
    tries = [boxcar(w) for w in (0.010, 0.020, 0.025, 0.030, 0.050, 0.100)] + [first_order(t) for t in (0.010, 0.014)]
    best = identify_response(lock(log.t_s, log.value), device, responses=tries)[0].response
    assert best.kind == "boxcar" and best.scale_s == pytest.approx(0.025, abs=0.004)


def test_every_power_has_a_source() -> None:
    for row in CLASS_POWERS.values():
        assert row.source.split(":")[0] in {"paper", "vendor", "measured", "derived"} and 0 <= row.low < row.high <= 1
    for board in BOARDS.values():
        assert 0 < board.idle_w < board.limit_w
        assert {board.idle_source.split(":")[0], board.limit_source.split(":")[0]} <= {"vendor", "measured", "derived"}
    assert all(s.source for s in SENSORS.values())


def test_a_meters_file_is_decoded() -> None:
    word = np.zeros((3, 9), dtype="<u2")
    word[:, 0] = [65000, 66, 602]  # the tick wraps once
    word[:, 1], word[:, 2] = 1600 << 4, 100 << 4
    word[2, 3] = 0xFFFF  # negative readings count as none
    t, power = decode_meter(word.tobytes() + b"cut")
    assert t * 2933.5e3 == pytest.approx([0, 602, 1138])
    assert power == pytest.approx(1600 * 100 * 0.007568 * 0.0488)


# --- real recordings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "truth", "naive", "field"),
    [
        ("a100_step", 1580.30, 1491.02, "power.draw"),
        ("a100_square104ms", 1024.72, 1024.96, "power.draw"),
        ("rtx3090_step", 3439.65, 3259.16, "power.draw.instant"),
        ("rtx4090_step", 2748.57, 2622.30, "power.draw"),
    ],
)
def test_meter_and_samples_give_the_known_energies(
    shared: Path, name: str, truth: float, naive: float, field: str
) -> None:
    found = read(shared / "traces" / "power" / name)
    # The known values run from the first to the last mark of the load's file, rests between loads included.
    text = (shared / "traces" / "power" / name / "timestamps.csv").read_text().split()
    end = (int(text[-1]) - int(text[1])) / 1e6
    assert found.energy(0.0, end) == pytest.approx(truth, rel=2e-3)
    samples = prepare(np.round(found.poll_t * 1e9).astype(np.int64), found.fields[field])
    value = integrate_power(samples, Window(0, round(end * 1e9))).value_j
    assert value == pytest.approx(naive, rel=5e-3)


@pytest.mark.slow
def test_totals_on_the_real_square_wave(shared: Path) -> None:
    found = {(r.what, r.window_s): r for r in real.totals(shared / "traces" / "power", windows=100)}
    two = found["A100 timeline + sensor, all readings", 2.0]
    four = found["A100 timeline + sensor, all readings", 4.0]
    assert two.p90 <= 1.0 and (two.coverage or 0) >= 90
    assert four.p90 <= 0.5 and (four.coverage or 0) >= 90
    assert found["A100 samples joined by lines, gain corrected", 2.0].p90 > 15


def test_replays_on_real_recordings(shared: Path) -> None:
    rows = [r for r in real.replays(shared / "traces" / "power") if r.goal_p90 is not None]
    assert len(rows) == 3 and all(r.met for r in rows)


def test_too_short_a_replay_says_nothing() -> None:
    updates = Updates(np.arange(0, 1, 0.1), np.full(10, 100.0), 0.0, 0.1, True)
    model = SensorModel(0.1, boxcar(0.1))
    assert replay_power(updates, 0.31, 0.40, model) is None
    found = replay_power(updates, 0.1, 0.9, model)
    assert found is not None and found.power_w == pytest.approx(100.0)
    assert found.low_w < 100.0 < found.high_w
    assert model_of(SENSORS["V100"]).simulated
