"""What a step of one recording takes: the right values by hand, intervals, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.analysis.diff.test_diff import model, powered
from tests.analysis.diff.test_diff_bare_energy import bare
from tests.support.small_recording import write_recording

from magneton.analysis.diff.joules.ledger import ledgers_by_step
from magneton.analysis.recording import Recording
from magneton.flows import MagnetonError, Measurement, measure
from magneton.schemas.documents.measure import Quantity
from magneton.schemas.errors import InsufficientPowerDataError, UsageError

S = 1_000_000_000


def of(found: Measurement, quantity: str) -> Quantity:
    return next(q for q in found.document.quantities if q.quantity == quantity)


def test_time_of_a_step_with_its_interval(tmp_path: Path) -> None:
    """Three layers of a 10 us and a 2 us kernel; all steps are alike."""
    found = measure(model(10.0, steps=4).write(tmp_path / "a.json"))
    time = of(found, "time")
    assert (time.value, time.low, time.high, time.unit, time.n_steps) == (36_000.0, 36_000.0, 36_000.0, "ns", 4)
    assert found.document.unit == "step"
    assert found.document.energy is None
    assert [q for q in found.document.quantities if q.quantity == "energy"] == []
    assert "no_power" in {note.code for note in found.document.notes}


def test_two_steps_have_no_interval(tmp_path: Path) -> None:
    time = of(measure(model(10.0, steps=2).write(tmp_path / "a.json")), "time")
    assert (time.value, time.low, time.high) == (36_000.0, None, None)


def test_energy_of_a_bare_step(tmp_path: Path) -> None:
    """200 W for 200 us a step; a step is far shorter than what the sensor can tell apart."""
    energy = of(measure(bare(tmp_path, 200, n=4)), "energy")
    assert energy.value == pytest.approx(200 * 200e-6, rel=1e-9)
    assert (energy.device_kind, energy.label, energy.coverage, energy.n_steps) == ("gpu", "apportioned", 1.0, 4)
    assert energy.fields == ["power_instant"]


def test_the_energies_are_those_of_a_diff(tmp_path: Path) -> None:
    from magneton.flows import diff

    [run] = powered(tmp_path, "62-diff-different-iterations", "b")
    side = diff(run, run, out=tmp_path / "out").document.a
    found = measure(run).document
    assert found.energy == side.energy
    assert [q.value for q in found.quantities if q.quantity == "energy"] == [one.per_step_j for one in side.ledgers]
    assert found.steps_used == side.steps_used


def test_a_gap_in_the_power_log_is_refused(tmp_path: Path) -> None:
    [run] = powered(tmp_path, "41-power-sample-gap", "trace")
    with pytest.raises(InsufficientPowerDataError):
        measure(run)
    assert measure(run, min_power_coverage=0.1).document.energy is not None


def test_settings_are_checked(tmp_path: Path) -> None:
    trace = model(steps=3).write(tmp_path / "a.json")
    assert len(measure(trace, skip_steps=1).document.steps_used) == 2
    with pytest.raises(UsageError, match="skip_steps is -2"):
        measure(trace, skip_steps=-2)
    with pytest.raises(UsageError, match="has no rank 3"):
        measure(trace, rank=3)
    with pytest.raises(MagnetonError, match="there is no setting 'skip'"):
        measure(trace, skip=1)


def seconds(tmp_path: Path, watts: list[float], field: str = "power_instant", name: str = "power") -> Recording:
    """Steps of 1 s, one after the other, each with its power, sampled every 100 ms."""
    steps = [
        {"step_id": k, "name": f"ProfilerStep#{k}", "kind": "profiler_step", "index": k, "ts_ns": k * S, "dur_ns": S}
        for k in range(len(watts))
    ]
    power = [
        {"source": "nvml", "name": name, "device_kind": "gpu", "device_id": "GPU-a", "field": field, "unit": "W"}
        | {"value": watts[min(i // 10, len(watts) - 1)], "ts_ns": i * S // 10}
        for i in range(10 * len(watts) + 1)
    ]
    return Recording.open(write_recording(tmp_path / "run", {"steps": steps, "power": power}))


def test_steps_that_the_sensor_tells_apart(tmp_path: Path) -> None:
    """100 W throughout: 100 J a step."""
    [(ledger, joules)] = ledgers_by_step(seconds(tmp_path, [100.0] * 4), 0, [])
    assert joules == pytest.approx([100.0] * 4, rel=1e-9)
    assert ledger.per_step_j == pytest.approx(100.0, rel=1e-9)


def test_a_reading_that_looks_back_further_than_a_step_tells_none_apart(tmp_path: Path) -> None:
    steady = seconds(tmp_path, [100.0] * 4, name="power_average_5s", field="power_average")
    [(ledger, joules)] = ledgers_by_step(steady, 0, [])
    assert ledger.per_step_j == pytest.approx(100.0, rel=1e-9)
    assert joules is None
