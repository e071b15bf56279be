"""Tests between runs: the distributions behind them, false positives, power, and repeats in place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magneton.analysis.energy.repeats.difference import from_repeats, times_needed
from magneton.analysis.energy.significance import compare_interleaved, holm, run_order, welch
from magneton.analysis.energy.t_distribution import chi2_above, t_quantile, t_two_sided


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (2, 4.30265), (5, 2.57058), (10, 2.22814), (30, 2.04227), (1000, 1.96234)]
)
def test_student(freedom: float, quantile: float) -> None:
    assert t_quantile(0.05, freedom) == pytest.approx(quantile, rel=1e-5)
    assert t_two_sided(quantile, freedom) == pytest.approx(0.05, rel=1e-4)


@pytest.mark.parametrize(("value", "freedom"), [(18.307, 10), (124.342, 100), (43.773, 30)])
def test_chi_square(value: float, freedom: float) -> None:
    assert chi2_above(value, freedom) == pytest.approx(0.05, abs=0.001)


def runs(rng: np.random.Generator, pairs: int, difference: float, drift: float) -> tuple[str, list[float]]:
    order = run_order(pairs)
    at = np.arange(len(order))
    side = np.array([c == "B" for c in order])
    warm = drift * (1 - np.exp(-at / (len(order) / 3)))
    return order, (100 * (1 + difference / 100 * side) + warm + 0.5 * rng.standard_normal(len(order))).tolist()


def found_share(pairs: int, difference: float, drift: float, trials: int = 400) -> tuple[float, float]:
    rng = np.random.default_rng(5)
    plain = lined = 0
    for _ in range(trials):
        order, y = runs(rng, pairs, difference, drift)
        a, b = ([v for v, c in zip(y, order, strict=True) if c == s] for s in "AB")
        plain += welch(a, b).significant
        lined += compare_interleaved(order, y).significant
    return plain / trials, lined / trials


def test_a_against_a_is_no_difference() -> None:
    for drift in (0.0, 1.5):
        plain, lined = found_share(10, 0.0, drift)
        assert plain <= 0.05
        assert lined <= 0.08  # exactly 5 % by design; 400 trials


def test_two_percent_is_found() -> None:
    for drift in (0.0, 1.5):
        assert min(found_share(10, 2.0, drift, trials=200)) >= 0.95


def test_fewer_than_five_runs_are_never_significant() -> None:
    verdict = welch([1.0, 1.01, 0.99, 1.0], [2.0, 2.01, 1.99, 2.0])
    assert verdict.p is not None and verdict.p < 0.001
    assert not verdict.significant and verdict.reason is not None
    assert welch([1.0], [2.0]).difference is None


def test_a_threshold_asks_for_more_than_a_difference() -> None:
    a, b = [100.0, 101, 99, 100, 100.5], [105.0, 106, 104, 105, 105.5]
    assert welch(a, b).significant
    assert not welch(a, b, threshold=0.10).significant
    assert welch(a, [120.0, 121, 119, 120, 120.5], threshold=0.10).significant


@pytest.mark.parametrize("ratio", [1.0, 3.0])
def test_the_interval_of_a_ratio_covers_it(ratio: float) -> None:
    rng = np.random.default_rng(1)
    covered = [0, 0]
    order = run_order(6)
    side = np.array([c == "B" for c in order])
    for _ in range(1000):
        y = np.where(side, ratio, 1.0) * 100 + 5 * rng.standard_normal(12) * np.where(side, ratio, 1.0)
        apart = welch(y[~side].tolist(), y[side].tolist())
        even = np.where(side, ratio, 1.0) * 100 + 5 * rng.standard_normal(12)
        for number, found in enumerate((apart, compare_interleaved(order, even.tolist()))):
            assert found.low is not None and found.high is not None
            covered[number] += found.low <= ratio - 1 <= found.high
    assert min(covered) >= 930


def test_every_run_has_a_side() -> None:
    with pytest.raises(ValueError, match="3 sides for 2 runs"):
        compare_interleaved("ABB", [1.0, 2.0])


def test_order_interleaves() -> None:
    assert run_order(4) == "ABBAABBA"
    order = run_order(10)
    at = np.arange(len(order))
    assert np.mean(at[[c == "A" for c in order]]) == np.mean(at[[c == "B" for c in order]])


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=12))
def test_holm_rejects_no_more_than_each_alone(p: list[float | None]) -> None:
    rejected = holm(p)
    assert all(not r or (v is not None and v <= 0.05) for v, r in zip(p, rejected, strict=True))
    assert sum(rejected) >= sum(1 for v in p if v is not None and v <= 0.05 / max(len(p), 1) * 0.999)


def test_repeats_take_everything_else_out() -> None:
    found = from_repeats([(10.0 + 19 * 0.5, 0.01)], [(10.0, 0.01)], 20)
    assert found.energy_j == pytest.approx(0.5) and found.identified and found.label == "replayed"
    assert found.low_j < 0.5 < found.high_j
    assert not from_repeats([(10.1, 0.5)], [(10.0, 0.5)], 2).identified
    with pytest.raises(ValueError, match="twice"):
        from_repeats([(1.0, 0.1)], [(1.0, 0.1)], 1)


def test_how_often_to_repeat() -> None:
    assert times_needed(0.1, 0.025, 0.010, 0.0001) == 99
    assert times_needed(0.1, 0.025, 0.010, 0.009) == 2
    assert times_needed(0.02, 0.01, 10.0, 0.001) == 70
