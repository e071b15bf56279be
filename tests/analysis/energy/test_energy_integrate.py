"""Energy over windows: the fault cases' values, and the laws any right integration obeys."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.support.power_cases import case, energies, expected, run_json, window

from magneton.analysis.energy.measure.devices import map_devices
from magneton.analysis.energy.measure.integrate import (
    counter_deltas,
    default_max_gap_ns,
    integrate_counter,
    integrate_power,
    prepare,
)
from magneton.analysis.energy.measure.result import (
    EnergyResult,
    Provenance,
    Window,
    need_coverage,
    need_same_field,
    sum_results,
)
from magneton.analysis.energy.measure.totals import device_energy, series_energy, series_of, snapshot_energy
from magneton.schemas import codes as all_codes
from magneton.schemas.clocks import clock_map
from magneton.schemas.errors import InsufficientPowerDataError, NotComparableError
from magneton.schemas.manifest import ClockAnchor
from magneton.transforms.power.registry import read_power

S = 10**9
BASE = 1718000000 * S


def series(points, *, counter=False):
    t, v = zip(*points, strict=True) if points else ((), ())
    return prepare(np.array(t, np.int64), np.array(v, np.float64), counter=counter)


def power_table(rows):
    """Table `power` from (device id, field, ts ns, value)."""
    unit = {"energy_counter": "J"}
    return pa.table(
        {
            "source": ["test"] * len(rows),
            "name": [r[1] for r in rows],
            "device_kind": ["gpu"] * len(rows),
            "device_id": [r[0] for r in rows],
            "field": [r[1] for r in rows],
            "unit": [unit.get(r[1], "W") for r in rows],
            "ts_ns": pa.array([r[2] for r in rows], pa.int64()),
            "value": pa.array([r[3] for r in rows], pa.float64()),
        }
    )


# ---- fault cases ---------------------------------------------------------------------------------------------------


def test_41_power_sample_gap():
    want = expected("41-power-sample-gap")
    log = read_power(case("41-power-sample-gap") / "power.csv")
    result = energies(log.table, window(1, 13, BASE))["GPU-aaaa"]
    assert result.window_s == want["window_s"] and result.covered_s == want["covered_s"]
    assert result.coverage == pytest.approx(want["coverage"])
    assert [(g - BASE) / S for g in result.gaps[0]] == want["gap_s"] and len(result.gaps) == 1
    assert result.value_j == pytest.approx(want["energy_j"]["measured"]) and result.partial
    assert result.bridged_j == pytest.approx(want["energy_j"]["estimated_if_bridged"])
    assert result.warnings == ("power_gap",)
    with pytest.raises(InsufficientPowerDataError, match=r"16\.7%"):
        need_coverage(result)
    assert need_coverage(result, minimum=0.1) == result.value_j


def test_42_gpu_energy_counter_reset():
    want = expected("42-gpu-energy-counter-reset")
    log = read_power(case("42-gpu-energy-counter-reset") / "power.csv")
    result = energies(log.table, window(0, 3, 0))["GPU-aaaa"]
    assert list(result.warnings) == want["warnings"] and result.n_resets == want["n_resets"]
    assert result.value_j == pytest.approx(want["energy_j"]["measured"])
    assert result.lower_bound_j == pytest.approx(want["energy_j"]["lower_bound_including_reset_interval"])
    assert result.covered_s == want["covered_s"] and result.window_s - result.covered_s == want["uncovered_s"]


@pytest.mark.parametrize("file", ["package-0.csv", "no_range.csv", "too_slow.csv"])
def test_43_rapl_wraparound(file):
    want = expected("43-rapl-wraparound")[file]
    range_uj = run_json("43-rapl-wraparound")["rapl"][file]["max_energy_range_uj"]
    range_j = None if range_uj is None else range_uj / 1e6
    log = read_power(case("43-rapl-wraparound") / file)
    found = series_of(log.table)[0]
    over = Window(int(found.samples.t_ns[0]), int(found.samples.t_ns[-1]))
    ranges = {} if range_j is None else {("cpu", "package-0"): range_j}
    result = device_energy(log.table, over, counter_ranges_j=ranges)["cpu", "package-0"]
    deltas = counter_deltas(found.samples, range_j=range_j).delta_j
    if "delta_j" in want:
        assert [None if math.isnan(d) else pytest.approx(d, abs=1e-6) for d in deltas] == want["delta_j"]
    if file == "package-0.csv":
        assert result.value_j == pytest.approx(want["energy_j"], abs=1e-6) and result.n_wraps == want["n_wraps"]
        assert result.coverage == 1 and result.warnings == ()
    elif file == "no_range.csv":
        assert result.value_j == pytest.approx(want["energy_j_measured"]) and result.covered_s == want["covered_s"]
        assert result.warnings == ("counter_range_unknown",) and result.lower_bound_j == pytest.approx(400.0)
    else:
        assert result.value_j is None and f"lower bound {result.lower_bound_j}" == want["energy_j"]
        assert want["warning"] in result.warnings


def test_45_kernel_shorter_than_sample_period():
    want = expected("45-kernel-shorter-than-sample-period")
    log = read_power(case("45-kernel-shorter-than-sample-period") / "power.csv")
    for name, start_us in (("a", 20000), ("b", 30000), ("c", 40000), ("after", 900000)):
        over = Window(BASE + start_us * 1000, BASE + (start_us + 200) * 1000)
        result = energies(log.table, over)["GPU-aaaa"]
        assert result.value_j == (None if want["energy_j"][name] is None else pytest.approx(want["energy_j"][name]))
        assert result.n_samples_inside == want["n_samples_inside"][name]
        if name in want["flags"]:
            assert want["flags"][name] in result.warnings


@pytest.mark.parametrize(
    "file", ["run_index.json", "run_uuid.json", "run_order_unknown.json", "run_bad.json", "no_run_json"]
)
def test_48_visible_devices_remap(file):
    want = expected("48-visible-devices-remap")[file]
    log = read_power(case("48-visible-devices-remap") / "power.csv")
    result = energies(log.table, window(0.5, 1.5, BASE))
    if file == "no_run_json":
        with pytest.raises(InsufficientPowerDataError, match=want["error"]):
            map_devices(result, used=[0, 1])
        return
    run = run_json("48-visible-devices-remap", file)
    physical = [(d["index"], d["uuid"]) for d in run["nvml"]]
    mapped = map_devices(result, used=[0, 1], physical=physical, env=run["env"])
    joules = {str(n): result[device].value_j for n, device in mapped.ids.items()}
    assert joules == pytest.approx({"0": 300.0, "1": 100.0})
    total = sum_results(result[d] for d in mapped.ids.values())
    assert total.value_j == pytest.approx(400.0) and mapped.excluded == ("GPU-bbbb",)
    codes = {
        "run_order_unknown.json": {"device_order_assumed"},
        "run_bad.json": {"device_order_assumed", "visible_devices_invalid"},
    }
    assert set(mapped.warnings) == codes.get(file, set())
    assert want.get("energy_j", {}).get("total", 400.0) == total.value_j


def test_50_averaged_versus_instant_power():
    want = expected("50-averaged-versus-instant-power")
    over = window(1, 1.2, BASE)
    both = energies(read_power(case("50-averaged-versus-instant-power") / "both.csv").table, over)["GPU-aaaa"]
    assert both.provenance.field == want["both.csv"]["field_used"] and both.warnings == ()
    assert both.value_j == pytest.approx(want["both.csv"]["energy_j"]["burst"])
    alone = energies(read_power(case("50-averaged-versus-instant-power") / "average_only.csv").table, over)["GPU-aaaa"]
    assert alone.warnings == (want["average_only.csv"]["warning"],)
    assert alone.value_j == pytest.approx(want["average_only.csv"]["naive_energy_j"])
    assert alone.min_window_for_trust_s == want["average_only.csv"]["min_window_for_trust_s"]
    with pytest.raises(NotComparableError, match="power_instant"):
        need_same_field(both, alone)


# ---- laws ----------------------------------------------------------------------------------------------------------

watts = st.floats(0, 1000, allow_nan=False).map(lambda x: round(x, 3))
instants = st.lists(st.integers(0, 10**10), min_size=2, max_size=30, unique=True).map(sorted)


@st.composite
def power_points(draw):
    t = draw(instants)
    return [(x, draw(watts)) for x in t]


@st.composite
def counter_points(draw):
    t = draw(instants)
    steps = draw(st.lists(watts, min_size=len(t), max_size=len(t)))
    values = np.cumsum(steps) % draw(st.sampled_from([1e12, 1e12, 2000.0]))  # now and then it starts again
    return list(zip(t, values.tolist(), strict=True))


edges = st.lists(st.integers(-(10**9), 11 * 10**9), min_size=3, max_size=3).map(sorted)
gaps = st.sampled_from([1e8, 1e9, 1e11])


def covered(result: EnergyResult) -> float:
    return 0.0 if result.value_j is None else result.value_j


def close(value):
    return pytest.approx(value, rel=1e-9, abs=1e-9)


def both_ways(points, counters, edges, gap):
    """The integration of power and of a counter, as functions of a window."""
    p, c = series(points), series(counters, counter=True)
    a, b, d = edges
    yield lambda w: integrate_power(p, w, max_gap_ns=gap), (a, b, d)
    yield lambda w: integrate_counter(c, w), (a, b, d)


@given(power_points(), counter_points(), edges, gaps)
def test_windows_add_up(points, counters, edges, gap):
    for energy, (a, b, c) in both_ways(points, counters, edges, gap):
        whole, parts = energy(Window(a, c)), [energy(Window(a, b)), energy(Window(b, c))]
        assert sum(covered(p) for p in parts) == close(covered(whole))
        assert sum(p.covered_s for p in parts) == close(whole.covered_s)
        assert sum(end - start for p in parts for start, end in p.gaps) == sum(e - s for s, e in whole.gaps)
        assert whole.covered_s + sum(e - s for s, e in whole.gaps) / S == close(whole.window_s)
        assert set(whole.warnings) <= all_codes.WARNING_CODES.keys()


@given(power_points(), counter_points(), edges, gaps, st.integers(-(2**61), 2**61))
def test_shifting_time_changes_nothing(points, counters, edges, gap, shift):
    moved = [[(t + shift, v) for t, v in s] for s in (points, counters)]
    here = both_ways(points, counters, edges, gap)
    there = both_ways(*moved, [e + shift for e in edges], gap)
    for (energy, (a, _, c)), (later, (d, _, f)) in zip(here, there, strict=True):
        one, other = energy(Window(a, c)), later(Window(d, f))
        assert one.value_j == other.value_j and one.covered_s == other.covered_s
        assert [(s + shift, e + shift) for s, e in one.gaps] == list(other.gaps)


@given(power_points(), counter_points(), edges, gaps, st.floats(0.001, 1000))
def test_scaling_power_scales_energy(points, counters, edges, gap, factor):
    scaled = [[(t, v * factor) for t, v in s] for s in (points, counters)]
    for (energy, (a, _, c)), (other, _) in zip(
        both_ways(points, counters, edges, gap), both_ways(*scaled, edges, gap), strict=True
    ):
        assert covered(other(Window(a, c))) == pytest.approx(covered(energy(Window(a, c))) * factor, rel=1e-9, abs=1e-6)


@given(power_points(), st.randoms(use_true_random=False), edges, st.booleans())
def test_the_order_of_samples_does_not_matter(points, random, edges, counter):
    points = points + points[: len(points) // 2] + [(points[0][0], points[0][1] + 1)]
    shuffled = random.sample(points, len(points))
    one, other = series(points, counter=counter), series(shuffled, counter=counter)
    assert one.t_ns.tolist() == other.t_ns.tolist() and one.values.tolist() == other.values.tolist()
    assert one.conflicts.tolist() == other.conflicts.tolist() == [points[0][0]]


@given(power_points(), st.data(), edges)
def test_splitting_an_interval_by_an_interpolated_sample_changes_nothing(points, data, edges):
    at = data.draw(st.integers(0, len(points) - 2))
    (t0, v0), (t1, v1) = points[at], points[at + 1]
    assume(t1 - t0 > 1)
    t = data.draw(st.integers(t0 + 1, t1 - 1))
    v = v0 + (v1 - v0) * (t - t0) / (t1 - t0)
    over = Window(edges[0], edges[2])
    gap = 1e12  # a limit taken from the samples would itself change
    one = integrate_power(series(points), over, max_gap_ns=gap)
    other = integrate_power(series([*points, (t, v)]), over, max_gap_ns=gap)
    assert covered(other) == pytest.approx(covered(one), rel=1e-9, abs=1e-9) and one.covered_s == other.covered_s
    counter = [(x, i * 10.0) for i, (x, _) in enumerate(points)]
    middle = (t, at * 10.0 + 10.0 * (t - t0) / (t1 - t0))
    one = integrate_counter(series(counter, counter=True), over)
    other = integrate_counter(series([*counter, middle], counter=True), over)
    assert covered(other) == pytest.approx(covered(one), rel=1e-9, abs=1e-9) and one.covered_s == other.covered_s


@given(power_points(), edges)
def test_a_counter_that_sums_the_power_agrees_with_it(points, edges):
    t = np.array([p[0] for p in points])
    v = np.array([p[1] for p in points])
    total = np.concatenate([[0.0], np.cumsum((v[1:] + v[:-1]) / 2 * np.diff(t) / 1e9)])
    assume(total[-1] > 0)  # a counter that never moves has no energy, which is not 0
    counter = series(list(zip(t.tolist(), total.tolist(), strict=True)), counter=True)
    over = Window(int(t[0]), int(t[-1]))
    power = integrate_power(series(points), over, max_gap_ns=1e12)
    assert integrate_counter(counter, over).value_j == pytest.approx(power.value_j, rel=1e-9, abs=1e-9)


@given(counter_points(), edges)
def test_a_counter_never_gives_less_than_nothing(counters, edges):
    for range_j in (None, 2000.0):
        result = integrate_counter(series(counters, counter=True), Window(edges[0], edges[2]), range_j=range_j)
        assert result.value_j is None or result.value_j >= 0
        assert result.lower_bound_j is None or result.lower_bound_j >= covered(result) - 1e-9
        assert result.covered_s <= result.window_s


@given(st.lists(st.tuples(st.integers(1, 10), st.floats(1, 50)), min_size=2, max_size=20), st.floats(0, 999))
def test_wraps_of_a_known_range_are_undone(steps, start):
    """At 50 W at most, a 1 kJ counter read every 10 s or faster cannot hide a wrap."""
    t, true = [0], [start]
    for seconds, power in steps:
        t.append(t[-1] + seconds * S)
        true.append(true[-1] + seconds * power)
    shown = [x % 1000.0 for x in true]
    points = list(zip(t, shown, strict=True))
    result = integrate_counter(series(points, counter=True), Window(0, t[-1]), range_j=1000.0, max_power_w=51.0)
    assert result.value_j == pytest.approx(true[-1] - start, abs=1e-6)
    assert result.n_wraps == sum(b < a for a, b in itertools.pairwise(shown)) and result.n_resets == 0


# ---- edges of the rules --------------------------------------------------------------------------------------------


def test_nothing_is_extrapolated():
    flat = series([(0, 100.0), (S, 100.0)])
    for over, joules, code in (
        (Window(-S, 2 * S), 100.0, "power_edge"),
        (Window(2 * S, 3 * S), None, "no_power_data"),
        (Window(-2 * S, -S), None, "no_power_data"),
        (Window(S, 2 * S), None, "no_power_data"),
    ):
        result = integrate_power(flat, over)
        assert result.value_j == joules and code in result.warnings
    assert integrate_power(flat, Window(5, 5)).value_j == 0.0
    assert integrate_power(flat, Window(2 * S, 2 * S)).value_j is None
    for empty in (series([]), series([(0, 100.0)])):
        assert integrate_power(empty, Window(0, S)).value_j is None
        assert integrate_counter(empty, Window(0, S)).value_j is None


def test_the_allowed_gap_follows_the_cadence():
    assert default_max_gap_ns(series([(i * 30 * S, 1.0) for i in range(10)])) == 90 * S
    assert default_max_gap_ns(series([(i * S // 100, 1.0) for i in range(10)])) == S
    assert default_max_gap_ns(series([(0, 1.0), (10 * S, 1.0)])) == S  # two samples show no cadence
    scrapes = series([(i * 30 * S, 100.0) for i in range(20) if i != 7])
    over = Window(0, 570 * S)
    assert integrate_power(scrapes, over).value_j == 57000.0  # one missed scrape is bridged
    hung = series([(i * 30 * S, 100.0) for i in range(20) if not 5 < i < 10])
    assert integrate_power(hung, over).gaps == ((150 * S, 300 * S),)


def test_a_counter_may_be_read_rarely():
    assert integrate_counter(series([(0, 5.0), (3600 * S, 105.0)], counter=True), Window(0, 1800 * S)).value_j == 50.0


def test_a_reset_with_a_known_range_is_no_wrap_when_it_would_need_too_much_power():
    points = [(0, 5000.0), (S, 5060.0), (2 * S, 12.0), (3 * S, 72.0)]
    result = integrate_counter(series(points, counter=True), Window(0, 3 * S), range_j=262143.32885)
    assert result.warnings == ("counter_reset",) and result.value_j == 120.0 and result.lower_bound_j == 132.0


def test_conflicting_counter_readings_are_left_out():
    result = integrate_counter(series([(0, 0.0), (S, 10.0), (S, 99.0), (2 * S, 20.0)], counter=True), Window(0, 2 * S))
    assert result.value_j == 20.0 and result.warnings == ("conflicting_instants",)


def test_the_field_follows_coverage_then_preference():
    rows = [("g", "power", t * S, 100.0) for t in range(11)] + [("g", "power_average", t * S, 90.0) for t in range(11)]
    late = [("g", "power_instant", t * S, 110.0) for t in range(4, 11)]
    counter = [("g", "energy_counter", t * S, 120.0 * t) for t in range(11)]

    def used(table, *over):
        result = device_energy(table, Window(*over))["gpu", "g"]
        return result.provenance.field, result.value_j

    assert used(power_table(rows + late + counter), 0, 10 * S) == ("energy_counter", 1200.0)
    assert used(power_table(rows + late), 0, 10 * S) == ("power", 1000.0)
    assert used(power_table(rows + late), 4 * S, 10 * S) == ("power_instant", 660.0)
    assert used(power_table(rows), 0, 10 * S) == ("power", 1000.0)
    assert used(power_table(rows[11:]), 0, 10 * S) == ("power_average", 900.0)
    assert used(power_table(rows + counter[:1]), 0, 10 * S) == ("power", 1000.0)
    assert device_energy(power_table([("g", "power_limit", 0, 1.0)]), Window(0, S))["gpu", "g"].value_j is None
    assert device_energy(power_table([]), Window(0, S)) == {}


def test_two_readers_of_one_device_are_not_mixed():
    table = power_table([("g", "power", t * S, 100.0) for t in range(5)])
    other = table.set_column(0, "source", pa.array(["other"] * 5)).slice(1)
    result = device_energy(pa.concat_tables([table, other]), Window(0, 4 * S))["gpu", "g"]
    assert result.value_j == 400.0 and result.provenance.source == "test"
    assert result.provenance.fields_not_used == ("power (other: power)",)
    assert [len(s.samples.t_ns) for s in series_of(pa.concat_tables([table, other]))] == [4, 5]
    assert series_energy(series_of(other)[0], Window(0, 4 * S)).covered_s == 3.0


def test_snapshots_without_times(shared):
    first, last = (read_power(shared / "formats" / f"amd_smi_metric_{x}.csv").table for x in ("start", "end"))
    result = snapshot_energy(first, last)
    assert {d: r.value_j for d, r in result.items()} == {("gpu", "0"): 3400.0, ("gpu", "1"): 3470.0}
    back = snapshot_energy(last, first)["gpu", "0"]
    assert back.value_j is None and back.warnings == ("counter_reset",) and back.lower_bound_j == 5e6


def test_sums_keep_the_unknown_and_the_weakest_label():
    one = EnergyResult(1.0, 2.0, 2.0, lower_bound_j=1.0, provenance=Provenance(field="power"))
    weak = EnergyResult(2.0, 2.0, 1.0, lower_bound_j=2.0, provenance=Provenance("modelled", field="power_instant"))
    none = EnergyResult(None, 2.0, 0.0, warnings=("no_power_data",))
    total = sum_results([one, weak])
    assert (total.value_j, total.covered_s, total.provenance.label) == (3.0, 1.0, "modelled")
    assert total.warnings == ("sensor_field_mismatch",)
    assert sum_results([one, none]).value_j is None and sum_results([one, none]).lower_bound_j == 1.0
    for wrong in ([], [one, EnergyResult(1.0, 3.0, 3.0)]):
        with pytest.raises(ValueError, match=r"nothing to sum|different length"):
            sum_results(wrong)


@settings(max_examples=30)
@given(power_points(), st.integers(1, 4))
def test_energy_is_the_same_on_any_clock_of_a_machine(points, factor):
    """A clock that is only shifted gives the same energy to the last bit."""
    shift = factor * 37 * S
    anchors = [ClockAnchor(unix_ns=shift, clock="boottime", clock_ns=0)]
    t = clock_map(anchors, "boottime").convert_array(np.array([p[0] for p in points], np.int64))
    moved = prepare(t, np.array([p[1] for p in points]))
    over = (points[0][0], points[-1][0])
    one = integrate_power(series(points), Window(*over))
    assert one.value_j == integrate_power(moved, Window(over[0] + shift, over[1] + shift)).value_j
