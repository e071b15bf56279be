"""Energy by span, phase, token and request."""

from __future__ import annotations

import numpy as np
import pytest

from magneton.analysis.energy.measure.integrate import prepare
from magneton.analysis.energy.measure.power import power_curve
from magneton.analysis.energy.measure.result import Window
from magneton.analysis.energy.measure.serving import Request, Span, serving_energy, share_by_weight, span_energies
from magneton.analysis.energy.measure.totals import SensorSeries

MS = 1_000_000


def flat(watts: float, end_ms: int = 1000):  # type: ignore[no-untyped-def]
    t = np.arange(0, end_ms + 1, 10, dtype=np.int64) * MS
    samples = prepare(t, np.full(len(t), watts))
    return power_curve(SensorSeries("s", "n", "gpu", "0", "power_instant", samples))


def span(name: str, start: int, end: int, phase: str | None = None) -> Span:
    return Span(name, Window(start * MS, end * MS), phase)


def test_spans_that_overlap_share_and_do_not_count_twice() -> None:
    found = span_energies([span("a", 0, 80), span("b", 0, 80)], flat(400.0))
    assert found.energy_j == pytest.approx((16.0, 16.0))
    assert found.total_j == pytest.approx(32.0)
    nested = span_energies([span("outer", 0, 100), span("inner", 40, 60)], flat(100.0))
    assert nested.energy_j == pytest.approx((9.0, 1.0))


def test_a_span_without_power_is_unknown() -> None:
    found = span_energies([span("a", 0, 100), span("late", 2000, 2100)], flat(100.0))
    assert found.energy_j == (pytest.approx(10.0), None)
    assert found.covered == pytest.approx((1.0, 0.0))
    assert span_energies([], flat(1.0)).total_j is None


def test_phases_tokens_and_requests() -> None:
    steps = [span("p", 0, 40, "prefill"), *(span(f"d{i}", 40 + 10 * i, 50 + 10 * i, "decode") for i in range(4))]
    found = serving_energy(steps, [Request("r1", 156, 4), Request("r2", 100, 4)], flat(400.0))
    assert (found.prefill_j, found.decode_j, found.total_j) == pytest.approx((16.0, 16.0, 32.0))
    assert found.j_per_prompt_token == pytest.approx(0.0625)
    assert found.j_per_output_token_decode_only == pytest.approx(2.0)
    assert found.j_per_output_token_all == pytest.approx(4.0)
    assert found.per_request_j["r1"] == pytest.approx({"prefill": 9.75, "decode": 8.0})
    total = sum(v for r in found.per_request_j.values() for v in r.values())
    assert total == pytest.approx(found.total_j)


def test_mixed_steps_are_not_divided() -> None:
    steps = [span("p", 0, 10, "prefill"), span("m", 10, 20, "mixed"), span("d", 20, 30, "decode"), span("x", 0, 900)]
    found = serving_energy(steps, [Request("r", 3, 1)], flat(100.0))
    assert found.mixed_j == pytest.approx(1.0) and found.total_j == pytest.approx(3.0)
    assert found.j_per_prompt_token is None and found.j_per_output_token_decode_only is None
    assert found.j_per_output_token_all == pytest.approx(3.0)


def test_one_unknown_step_makes_its_phase_unknown() -> None:
    steps = [span("d0", 0, 10, "decode"), span("d1", 5000, 5010, "decode")]
    found = serving_energy(steps, [Request("r", 1, 2)], flat(100.0))
    assert found.decode_j is None and found.total_j is None and found.j_per_output_token_all is None


def test_nothing_is_shared_by_no_weight() -> None:
    assert share_by_weight(5.0, {"a": 0, "b": 0}) == {}
