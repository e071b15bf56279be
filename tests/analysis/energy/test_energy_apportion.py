"""Sharing energy out equally: what it must conserve and what must not change it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magneton.analysis.energy.attribute import attribute, idle_power
from magneton.analysis.energy.measure.apportion import EnergyAttribution
from magneton.analysis.energy.measure.basis import dynamic, need_same_basis
from magneton.analysis.energy.measure.result import Window
from magneton.analysis.energy.measure.totals import device_energy, series_of
from magneton.schemas.errors import NotComparableError
from magneton.schemas.tables.run import POWER

Kernel = tuple[int, int, int]  # start ns, length ns, stream
MS = 1_000_000


def kernel_table(kernels: list[Kernel], *, launched: bool = True, shift: int = 0) -> pa.Table:
    count = len(kernels)
    return pa.table(
        {
            "kernel_id": pa.array(range(count), pa.int64()),
            "name": pa.array([f"k{i % 3}" for i in range(count)]),
            "kernel_class": pa.array(["gemm" if i % 2 else "collective" for i in range(count)]),
            "ts_ns": pa.array([k[0] + shift for k in kernels], pa.int64()),
            "dur_ns": pa.array([k[1] for k in kernels], pa.int64()),
            "stream": pa.array([k[2] for k in kernels], pa.int64()),
            "device": pa.array([0] * count, pa.int64()),
            "launch_id": pa.array([i if launched else None for i in range(count)], pa.int64()),
            "op_id": pa.nulls(count, pa.int64()),
        }
    )


def power_table(samples: list[tuple[int, float]], *, shift: int = 0, field: str = "power_instant") -> pa.Table:
    rows: dict[str, Any] = {
        name: pa.nulls(len(samples), POWER.arrow_schema().field(name).type) for name in POWER.column_names()
    }
    for name, value in (("device_kind", "gpu"), ("device_id", "0"), ("field", field), ("source", "test")):
        rows[name] = pa.array([value] * len(samples), pa.string())
    rows["unit"] = pa.array(["J" if field == "energy_counter" else "W"] * len(samples), pa.string())
    rows["ts_ns"] = pa.array([t + shift for t, _ in samples], pa.int64())
    rows["value"] = pa.array([w for _, w in samples], pa.float64())
    return pa.table(rows, schema=POWER.arrow_schema())


def share(kernels: pa.Table, power: pa.Table, start: int, end: int, **more: Any) -> EnergyAttribution:
    return attribute(kernels, power, Window(start, end), **more)[0]


def energies(found: EnergyAttribution) -> list[float | None]:
    values: list[float | None] = found.kernels["energy_j"].to_pylist()
    return values


WINDOW = 1000 * MS
kernels_of = st.lists(
    st.tuples(st.integers(0, WINDOW - 1), st.integers(0, WINDOW // 3), st.integers(0, 3)), min_size=1, max_size=25
)
samples_of = st.lists(st.floats(10, 700, allow_nan=False), min_size=3, max_size=12).map(
    lambda ws: [(round(i * WINDOW / (len(ws) - 1)), w) for i, w in enumerate(ws)]
)


def idle_by_hand(kernels: list[Kernel], samples: list[tuple[int, float]], end: int) -> float:
    """Energy while nothing runs, by walking from edge to edge without any of the code under test."""
    edges = sorted({0, end, *(t for t, _ in samples), *(e for s, d, _ in kernels for e in (s, s + d))})
    edges = [e for e in edges if 0 <= e <= end]
    total = 0.0
    for a, b in itertools.pairwise(edges):
        if not any(s <= a and b <= s + d for s, d, _ in kernels if d):
            middle = (a + b) / 2
            (t0, w0), (t1, w1) = next(p for p in itertools.pairwise(samples) if p[0][0] <= middle <= p[1][0])
            total += (w0 + (w1 - w0) * (middle - t0) / (t1 - t0)) * (b - a) / 1e9
    return total


@settings(max_examples=40, deadline=None)
@given(kernels_of, samples_of)
def test_everything_adds_up_with_idle_found_another_way(
    kernels: list[Kernel], samples: list[tuple[int, float]]
) -> None:
    found = share(kernel_table(kernels), power_table(samples), 0, WINDOW)
    total = device_energy(power_table(samples), Window(0, WINDOW))["gpu", "0"].value_j
    assert total is not None and found.total_j == pytest.approx(total, rel=1e-12)
    idle = idle_by_hand(kernels, samples, WINDOW)
    assert found.idle_j == pytest.approx(idle, rel=1e-9, abs=1e-9 * total)
    given_out = math.fsum(v for v in energies(found) if v is not None)
    assert given_out + idle == pytest.approx(total, rel=1e-9)
    assert found.attributed_j is not None and found.unattributed_j == 0
    assert math.fsum(found.by_class().values()) == pytest.approx(found.attributed_j, rel=1e-9, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(kernels_of, samples_of, st.integers(1, WINDOW - 1))
def test_two_windows_make_one(kernels: list[Kernel], samples: list[tuple[int, float]], middle: int) -> None:
    table, power = kernel_table(kernels), power_table(samples)
    parts = [share(table, power, 0, middle), share(table, power, middle, WINDOW)]
    whole = share(table, power, 0, WINDOW)
    assert sum(p.total_j or 0 for p in parts) == pytest.approx(whole.total_j, rel=1e-9)
    for a, b, both in zip(energies(parts[0]), energies(parts[1]), energies(whole), strict=True):
        assert (a or 0.0) + (b or 0.0) == pytest.approx(both or 0.0, rel=1e-9, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(kernels_of, samples_of, st.integers(-(10**15), 10**15), st.randoms(use_true_random=False))
def test_shift_order_and_streams_change_nothing(
    kernels: list[Kernel], samples: list[tuple[int, float]], shift: int, random: Any
) -> None:
    plain = energies(share(kernel_table(kernels), power_table(samples), 0, WINDOW))
    order = list(range(len(kernels)))
    random.shuffle(order)
    mixed = [(kernels[i][0], kernels[i][1], 9 - kernels[i][2]) for i in order]
    polls = samples[:]
    random.shuffle(polls)
    table, power = kernel_table(mixed, shift=shift), power_table(polls, shift=shift)
    moved = energies(share(table, power, shift, WINDOW + shift))
    for at, value in zip(order, moved, strict=True):
        assert (value is None) == (plain[at] is None)
        assert (value or 0) == pytest.approx(plain[at] or 0, rel=1e-9, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(kernels_of, samples_of, st.floats(0.1, 0.9), st.floats(0.01, 100))
def test_splitting_and_scaling(
    kernels: list[Kernel], samples: list[tuple[int, float]], part: float, factor: float
) -> None:
    plain = share(kernel_table(kernels), power_table(samples), 0, WINDOW)
    (start, length, stream), rest = kernels[0], kernels[1:]
    cut = int(length * part)
    halves = [(start, cut, stream), (start + cut, length - cut, stream), *rest]
    split = energies(share(kernel_table(halves), power_table(samples), 0, WINDOW))
    first = energies(plain)
    assert (split[0] or 0) + (split[1] or 0) == pytest.approx(first[0] or 0, rel=1e-9, abs=1e-12)
    assert [v or 0 for v in split[2:]] == pytest.approx([v or 0 for v in first[1:]], rel=1e-9, abs=1e-12)
    (t0, w0), (t1, w1) = samples[0], samples[1]
    between = (t0 + (t1 - t0) // 2, w0 + (w1 - w0) * ((t1 - t0) // 2) / (t1 - t0))
    polled = share(kernel_table(kernels), power_table([*samples, between]), 0, WINDOW)
    assert [v or 0 for v in energies(polled)] == pytest.approx([v or 0 for v in first], rel=1e-6, abs=1e-9)
    more = share(kernel_table(kernels), power_table([(t, w * factor) for t, w in samples]), 0, WINDOW)
    assert [v or 0 for v in energies(more)] == pytest.approx([(v or 0) * factor for v in first], rel=1e-9, abs=1e-12)


def test_a_gap_and_an_end_of_the_log_are_unknown_and_not_zero() -> None:
    samples = [(t * 100 * MS, 200.0) for t in range(5)]
    kernels = [(50 * MS, 100 * MS, 0), (350 * MS, 100 * MS, 0), (900 * MS, 50 * MS, 0)]
    found = share(kernel_table(kernels), power_table(samples), 0, WINDOW)
    assert energies(found) == [pytest.approx(20.0), pytest.approx(10.0), None]
    assert found.kernels["flags"].to_pylist()[2] == "no_power_data"
    assert found.total_j == pytest.approx(80.0) and found.total.partial
    assert found.low_j is None and found.label == "apportioned"


def test_bounds_enclose_what_a_sample_interval_may_hide() -> None:
    samples = [(t * 100 * MS, 100.0) for t in range(11)]
    found = share(kernel_table([(120 * MS, 10 * MS, 0), (300 * MS, 400 * MS, 0)]), power_table(samples), 0, WINDOW)
    short, long = found.kernels.to_pylist()
    assert (short["low_j"], short["energy_j"], short["high_j"]) == pytest.approx((0.0, 1.0, 10.0))
    assert (long["low_j"], long["energy_j"], long["high_j"]) == pytest.approx((40.0, 40.0, 40.0))
    assert short["flags"] == "interpolated" and long["flags"] is None


def test_kernels_that_nothing_launched_are_nobodys() -> None:
    samples = [(0, 100.0), (WINDOW, 100.0)]
    found = share(kernel_table([(0, 500 * MS, 0)], launched=False), power_table(samples), 0, WINDOW)
    assert (found.unattributed_j, found.attributed_j, found.idle_j) == pytest.approx((50.0, 0.0, 50.0))


def test_a_counter_is_shared_out_like_power() -> None:
    readings = [(t * 250 * MS, 75.0 * t * 0.25) for t in range(5)]
    found = share(kernel_table([(100 * MS, 400 * MS, 0)]), power_table(readings, field="energy_counter"), 0, WINDOW)
    assert found.total_j == pytest.approx(75.0)
    assert energies(found) == [pytest.approx(30.0)]


def test_no_power_at_all_is_null_everywhere() -> None:
    found = share(kernel_table([(0, 500 * MS, 0)]), POWER.empty(), 0, WINDOW)
    assert found.total_j is None and found.idle_j is None and found.attributed_j is None
    assert energies(found) == [None]
    assert "no_power_data" in found.warnings


def test_static_and_dynamic_add_up_and_below_rest_is_said() -> None:
    power = power_table([(0, 60.0), (WINDOW, 60.0), (WINDOW + MS, 260.0), (3 * WINDOW, 260.0)])
    series = series_of(power)[0]
    rest = idle_power(series, Window(0, WINDOW))
    assert rest == pytest.approx(60.0)
    table = kernel_table([(2 * WINDOW, 500 * MS, 0)])
    found = share(table, power, 2 * WINDOW, 3 * WINDOW, idle_w={0: rest}, max_gap_s=5)
    row = found.kernels.to_pylist()[0]
    assert (row["energy_j"], row["static_j"], row["dynamic_j"]) == pytest.approx((130.0, 30.0, 100.0))
    low = share(table, power, 2 * WINDOW, 3 * WINDOW, idle_w={0: 300.0}, max_gap_s=5)
    assert "below_idle_baseline" in low.warnings and low.kernels["dynamic_j"].to_pylist()[0] < 0


def test_bases_are_not_mixed() -> None:
    gross = device_energy(power_table([(0, 100.0), (WINDOW, 100.0)]), Window(0, WINDOW))["gpu", "0"]
    above = dynamic(gross, 60.0)
    assert (above.value_j, above.basis) == (pytest.approx(40.0), "dynamic")
    assert "below_idle_baseline" in dynamic(gross, 120.0).warnings
    need_same_basis(above, above)
    with pytest.raises(NotComparableError):
        need_same_basis(gross, above)
    with pytest.raises(NotComparableError):
        dynamic(above, 1.0)


@settings(max_examples=20, deadline=None)
@given(st.integers(100, 3000))
def test_many_kernels_conserve(count: int) -> None:
    rng = np.random.default_rng(count)
    kernels = [(int(s), int(d), 0) for s, d in zip(rng.integers(0, WINDOW, count), rng.integers(1, 5 * MS, count))]  # noqa: B905
    samples = [(t * 10 * MS, float(w)) for t, w in enumerate(rng.uniform(50, 700, 101))]
    found = share(kernel_table(kernels), power_table(samples), 0, WINDOW)
    parts = (found.attributed_j or 0) + (found.idle_j or 0) + (found.unattributed_j or 0)
    assert parts == pytest.approx(found.total_j, rel=1e-9)
