"""Energy by class of kernels: what adds up, what is found, and above all what must be refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from benchmarks.energy import cases
from benchmarks.energy.bound import bound
from benchmarks.energy.powers import BOARDS
from benchmarks.energy.simulate import SENSORS, Repeated, Sensor, generated, model_of, read_sensor

from magneton.analysis.energy.attribute import attribute
from magneton.analysis.energy.measure.result import Window
from magneton.analysis.energy.sensor_model.disaggregate import Disaggregation, disaggregate
from magneton.analysis.energy.sensor_model.fit import _log_volume, _whitened
from magneton.analysis.energy.sensor_model.sensor import Updates, lock

KINDS = ("gemm:a", "gemm:b", "attention", "elementwise", "normalization", "copy")
V100 = SENSORS["V100"]


def simulated(seed: int, sensor: Sensor = V100, length: float = 10.0, span: float = 0.3) -> tuple[Repeated, Updates]:
    rng = np.random.default_rng(seed)
    template = generated(rng, span_s=span, kinds=KINDS, calls=50)
    device = Repeated(template, length + 3, rng, board=BOARDS[sensor.board])
    log = read_sensor(device, sensor, rng, 0.0, device.end_s)
    return device, lock(log.t_s, log.value)


def run(device: Repeated, updates: Updates, **more: object) -> Disaggregation:
    found = disaggregate(updates, device, (1.5, 11.5), model_of(V100), iterations_s=device.iterations_s, **more)  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(3))
def test_classes_are_found_and_add_up(seed: int) -> None:
    device, updates = simulated(seed)
    found = run(device, updates)
    by_class, _, total = device.truth(1.5, 11.5)
    parts = math.fsum(g.energy_j for g in found.groups) + found.idle_j
    assert parts == pytest.approx(found.total_j, rel=1e-9)
    assert found.total_j == pytest.approx(total, rel=0.02) and found.simulated
    assert sum(len(g.classes) for g in found.groups) == len(KINDS)
    for group in found.identified:
        truth = sum(by_class[device.classes.index(c)] for c in group.classes)
        assert group.energy_j == pytest.approx(truth, rel=0.05)
        assert group.static_j + group.dynamic_j == pytest.approx(group.energy_j, rel=1e-9)
        assert group.high_j - group.low_j <= 0.2 * group.energy_j * 1.0001
    assert sum(len(g.classes) == 1 for g in found.identified) >= 4


def test_a_better_total_is_met_exactly() -> None:
    device, updates = simulated(1)
    found = run(device, updates, total_j=(2000.0, 1.0))
    assert math.fsum(g.energy_j for g in found.groups) + found.idle_j == pytest.approx(2000.0, rel=1e-9)
    assert found.total_j == pytest.approx(2000.0, rel=1e-12)


def test_scaled_power_scales_every_class_and_shifted_time_none() -> None:
    device, updates = simulated(2)
    plain = run(device, updates)
    doubled = disaggregate(
        replace(updates, value=2 * updates.value),
        device,
        (1.5, 11.5),
        replace(model_of(V100), noise_w=2.0, calibration=replace(model_of(V100).calibration, offset_sd_w=0.6)),
    )
    assert doubled is not None
    assert doubled.by_class == pytest.approx(2 * plain.by_class, rel=1e-6)


def test_two_readings_say_nothing() -> None:
    device, updates = simulated(0)
    few = Updates(updates.t_s[100:102], updates.value[100:102], 0.0, 0.02, True)
    assert disaggregate(few, device, (1.5, 11.5), model_of(V100)) is None


def test_little_is_told_apart_of_decode_on_a_slow_sensor_but_its_total_is_known() -> None:
    sensor = SENSORS["A100 instant"]
    device, updates = simulated(4, sensor, span=0.0107)
    found = disaggregate(updates, device, (1.5, 11.5), model_of(sensor), iterations_s=device.iterations_s)
    assert found is not None
    by_class, _, total = device.truth(1.5, 11.5)
    assert sum(len(g.classes) == 1 for g in found.identified) <= 2
    for group in found.identified:
        truth = sum(by_class[device.classes.index(c)] for c in group.classes)
        assert abs(group.energy_j - truth) <= group.high_j - group.low_j
    assert found.total_low_j <= total <= found.total_high_j and (found.total_high_j - found.total_low_j) < 0.05 * total


@pytest.mark.parametrize("setting", cases.controls(), ids=lambda s: s.name)
def test_controls_are_refused(setting: cases.Setting) -> None:
    found = cases.identification(replace(setting, length_s=12.0), [11])
    assert [o.identified for o in found] == [0.0]


@pytest.mark.parametrize("setting", cases.hard(), ids=lambda s: s.name)
def test_what_is_told_apart_of_fast_loops_is_right(setting: cases.Setting) -> None:
    found = cases.summary(setting.name, cases.identification(setting, [11]))
    assert not found.wrong and found.total_p90 < 2.0


def test_a_narrower_limit_gives_coarser_groups() -> None:
    device, updates = simulated(2, span=0.02)
    usual, strict = run(device, updates), run(device, updates, within=0.015)
    assert len(strict.groups) < len(usual.groups)
    assert all(g.high_j - g.energy_j <= 0.015 * g.energy_j for g in strict.identified)
    assert math.fsum(g.energy_j for g in strict.groups) == pytest.approx(math.fsum(g.energy_j for g in usual.groups))


def test_whitening_takes_the_correlation_out_of_neighbours() -> None:
    rho, count, rng = 0.6, 20_000, np.random.default_rng(3)
    noise = rng.standard_normal(count)
    for k in range(1, count):
        noise[k] = rho * noise[k - 1] + (1 - rho**2) ** 0.5 * noise[k]
    var = rng.uniform(1.0, 9.0, count)
    ones = np.ones((count, 1))
    _, white = _whitened(ones, noise * np.sqrt(var), var, rho)
    assert white.std() == pytest.approx(1.0, abs=0.02)
    assert abs(np.corrcoef(white[1:], white[:-1])[0, 1]) < 0.03
    # A constant is known as by (1 - rho) / (1 + rho) as many readings; what alternates is known better.
    flat, _ = _whitened(np.column_stack([ones, np.tile([1.0, -1.0], count // 2)]), noise, np.ones(count), rho)
    information = (flat**2).sum(axis=0) / count
    assert information == pytest.approx([(1 - rho) / (1 + rho), (1 + rho) / (1 - rho)], rel=0.01)
    # As the density of the errors with their whole covariance has it.
    some, sd = noise[:9] * np.sqrt(var[:9]), np.sqrt(var[:9])
    cov = rho ** np.abs(np.subtract.outer(np.arange(9), np.arange(9))) * np.outer(sd, sd)
    whole = -0.5 * (some @ np.linalg.solve(cov, some) + np.linalg.slogdet(cov)[1])
    _, z = _whitened(ones[:9], some, var[:9], rho)
    assert -0.5 * float(z @ z) - _log_volume(var[:9], rho) == pytest.approx(whole, rel=1e-9)
    plain, same = _whitened(ones, noise, var, 0.0)
    assert plain[:, 0] == pytest.approx(1 / np.sqrt(var)) and same == pytest.approx(noise / np.sqrt(var))


@pytest.mark.slow
def test_intervals_cover_and_nothing_is_wrongly_identified() -> None:
    seeds = range(30)
    rows = [
        cases.summary(s.name, cases.identification(s, seeds))
        for s in (
            cases.Setting("V100", "V100", 10.0, cases.make(0.16)),
            cases.Setting("A100", "A100 instant", 30.0, cases.make(0.3)),
        )
    ]
    for row in rows:
        assert row.identified >= 50 and row.p90 is not None and row.p90 <= 5
        assert row.coverage is not None and row.coverage >= 92
        assert row.wrong is not None and row.wrong <= 1


@pytest.mark.slow
def test_no_estimate_is_closer_than_the_bound() -> None:
    setting = cases.Setting("A100", "A100 instant", 20.0, cases.make(0.3))
    best = bound(setting, range(12))
    row = cases.summary(setting.name, cases.identification(setting, range(12)))
    assert row.p90 is not None and best.p90 <= 1.2 * row.p90 and best.single >= row.single - 5


@pytest.mark.slow
def test_tokens_and_repeats() -> None:
    for row in cases.tokens(range(40)):
        assert row.p90 < 2 and row.coverage >= 88
    for sensor in SENSORS.values():
        if sensor.poll_s < 1:
            assert cases.repeats(sensor, range(10)).p90 <= 2.5


def kernels_of(device: Repeated) -> pa.Table:
    """The device's kernels as rows of table ``kernels``."""
    start, length, name = device.kernels()
    count = len(start)
    return pa.table(
        {
            "kernel_id": pa.array(range(count), pa.int64()),
            "name": pa.array(name),
            "kernel_class": pa.array([n.split(":")[0] for n in name]),
            "ts_ns": pa.array(np.round(start * 1e9).astype(np.int64)),
            "dur_ns": pa.array(np.round(length * 1e9).astype(np.int64)),
            "device": pa.array([0] * count, pa.int64()),
            "launch_id": pa.array([None if i % 50 == 0 else i for i in range(count)], pa.int64()),
            "op_id": pa.nulls(count, pa.int64()),
        }
    )


def test_kernels_get_what_their_classes_used() -> None:
    rng = np.random.default_rng(7)
    device = Repeated(generated(rng, span_s=0.3, kinds=KINDS, calls=50), 12.0, rng, board=BOARDS["V100"])
    log = read_sensor(device, V100, rng, 0.0, device.end_s)
    kernels = kernels_of(device)
    window = Window(10**9, 11 * 10**9)
    plain = attribute(kernels, log.table(), window)[0]
    found = attribute(kernels, log.table(), window, models={0: model_of(V100)})[0]
    assert plain.label == "apportioned" and plain.low_j is None and plain.simulated
    assert found.simulated and found.low_j is not None and found.high_j is not None
    truth = device.truth(1.0, 11.0)
    assert found.low_j <= truth[2] <= found.high_j
    for one in (plain, found):
        parts = (one.attributed_j or 0) + (one.idle_j or 0) + (one.unattributed_j or 0)
        assert parts == pytest.approx(one.total_j, rel=1e-9) and one.unattributed_j
    joules = dict.fromkeys(KINDS, 0.0)
    for name, value in zip(kernels["name"].to_pylist(), found.kernels["energy_j"].to_pylist(), strict=True):
        joules[name] += value or 0.0
    for name, true in zip(KINDS, truth[0], strict=True):
        assert joules[name] == pytest.approx(true, rel=0.05)
    assert "disaggregated" in found.kernels["label"].to_pylist()


def test_a_sensor_that_does_not_fit_leaves_equal_shares_and_says_why() -> None:
    rng = np.random.default_rng(8)
    device = Repeated(generated(rng, span_s=0.16, kinds=KINDS, calls=50), 12.0, rng, board=BOARDS["H100"])
    log = read_sensor(device, SENSORS["H100 instant"], rng, 0.0, device.end_s, logarithmic=True)
    found = attribute(
        kernels_of(device), log.table(), Window(10**9, 11 * 10**9), models={0: model_of(SENSORS["H100 instant"])}
    )[0]
    assert found.label == "apportioned" and found.refusals and found.low_j is None
