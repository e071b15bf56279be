"""Windows in which a region ran alone: its time, its energy, and what they must not say."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.cli.test_repeat_command import STEADY, power

from magneton.analysis.energy.repeats.alone import energies_alone, time_alone
from magneton.analysis.energy.repeats.in_place import NO_SENSOR, RepeatedWindow
from magneton.schemas.errors import InsufficientRepeatsError

S = 1_000_000_000


def alone(lengths: tuple[float, ...] = (2.0, 2.0, 2.0), passes: int = 100) -> list[RepeatedWindow]:
    """Windows half a second apart."""
    made, at = [], S
    for length in lengths:
        end = at + round(length * S)
        made.append(RepeatedWindow(at, end, passes, 1))
        at = end + S // 2
    return made


def test_time_is_that_of_a_pass_and_its_interval_that_of_the_windows() -> None:
    found = time_alone(alone((1.0, 2.0, 3.0)))
    assert found.energy_j == pytest.approx(0.02)
    # t(2 degrees of freedom) = 4.303, deviation of the mean 0.01 / sqrt 3.
    assert found.high_j - found.energy_j == pytest.approx(4.303 * 0.01 / 3**0.5, rel=1e-3)
    with pytest.raises(InsufficientRepeatsError, match="1 windows"):
        time_alone(alone((1.0,)))


def test_energy_is_the_power_inside_times_the_time_of_a_pass() -> None:
    found = alone()
    (one,) = energies_alone(found, power(found, series=STEADY | {"power_instant": lambda _: 300}))
    assert one.estimate is not None and one.refusal is None and one.compared == ()
    known = {"clock_sm": 1980, "clock_memory": 3201, "temperature": 50, "power_limit": 700}
    assert dict(one.conditions) == known
    assert one.estimate.energy_j == pytest.approx(300 * 0.02)
    assert one.estimate.label == "replayed" and one.estimate.identified
    # Windows that agree leave the 5 % of a gain that nobody calibrated.
    assert one.estimate.high_j - one.estimate.energy_j == pytest.approx(1.96 * 0.05 * 6.0)


def test_a_counter_leaves_its_updates_at_the_edges_open() -> None:
    found = alone()
    readings = power(found, series={"energy_counter": lambda _: 0})
    # 300 J a second, shown every 100 ms.
    joules = [300.0 * (at // 100_000_000) / 10 for at in readings["ts_ns"].to_pylist()]
    readings = readings.set_column(readings.schema.get_field_index("value"), "value", pa.array(joules))
    readings = readings.set_column(
        readings.schema.get_field_index("unit"), "unit", pa.array(["J"] * len(joules), pa.string())
    )
    (one,) = energies_alone(found, readings)
    assert one.estimate is not None and one.estimate.energy_j == pytest.approx(6.0, rel=0.06)
    # 30 J an update against 570 J in 1.9 s, twice over an edge, a mean of three windows.
    edge = 6.0 * 0.1 / 6**0.5 / 1.9 / 3**0.5
    half = one.estimate.high_j - one.estimate.energy_j
    assert half >= 0.99 * ((4.303 * edge) ** 2 + (1.96 * 0.05 * one.estimate.energy_j) ** 2) ** 0.5


def test_what_a_reading_remembers_of_the_time_before_is_left_out() -> None:
    found = alone()
    readings = power(found, series={"power_instant": lambda _: 300})
    # The first 50 ms of each window still show rest; a series that updates every 100 ms.
    t = readings["ts_ns"].to_pylist()
    values = [
        100.0
        if not any(w.start_ns + 50_000_000 <= at <= w.end_ns for w in found)
        else 300.0 + 1e-3 * (at // 100_000_000 % 2)
        for at in t
    ]
    readings = readings.set_column(readings.schema.get_field_index("value"), "value", pa.array(values))
    (one,) = energies_alone(found, readings)
    assert one.estimate is not None and one.estimate.energy_j == pytest.approx(6.0, rel=1e-3)


def test_a_window_that_an_averaging_reading_does_not_settle_in_is_refused() -> None:
    found = alone((1.5, 1.5))
    (one,) = energies_alone(found, power(found, series={"power_average": lambda _: 300}))
    assert one.estimate is None and one.refusal is not None and "settle after 1.1 s" in str(one.refusal)
    found = alone((4.0, 4.0))
    (one,) = energies_alone(found, power(found, series={"power_average": lambda _: 300}))
    assert one.estimate is not None and one.estimate.energy_j == pytest.approx(12.0)


def test_a_field_that_says_how_long_it_averages_is_believed() -> None:
    found = alone((6.0, 6.0))
    readings = power(found, series={"power_average": lambda _: 300})
    name = pa.array(["power_average_4000ms"] * readings.num_rows, pa.string())
    readings = readings.set_column(readings.schema.get_field_index("name"), "name", name)
    (one,) = energies_alone(found, readings)
    assert one.estimate is None and one.refusal is not None and "settle after 4.1 s" in str(one.refusal)


def test_several_readings_of_a_field_are_told_apart() -> None:
    found = alone()
    readings = power(found, series={"power_instant": lambda _: 300, "temperature": lambda _: 50})
    hot = readings.filter(pa.compute.equal(readings["field"], "temperature"))
    name, value = pa.array(["memory"] * hot.num_rows, pa.string()), pa.array([90.0] * hot.num_rows)
    hot = hot.set_column(hot.schema.get_field_index("name"), "name", name)
    hot = hot.set_column(hot.schema.get_field_index("value"), "value", value)
    (one,) = energies_alone(found, pa.concat_tables([readings, hot]))
    assert dict(one.conditions) == {"temperature memory": 90, "temperature temperature": 50}


def test_without_readings_there_is_no_energy() -> None:
    (one,) = energies_alone(alone(), None)
    assert one.estimate is None and str(one.refusal) == NO_SENSOR
    found = alone()
    late = power(found, series={"power_instant": lambda _: 300})
    late = late.filter(pa.compute.greater(late["ts_ns"], found[1].start_ns))
    (one,) = energies_alone(found, late)
    assert one.estimate is None and "cover" in str(one.refusal)
