"""Times of single steps: medians and ranges, what a finding needs, repetitions of a loop, waiting, units."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.analysis.diff.test_diff import block, model, run
from tests.support.kineto import Trace
from tests.support.normalized import Normalizer

from magneton.analysis.diff.document import DiffResult
from magneton.analysis.diff.pipeline import diff
from magneton.analysis.diff.settings import DiffSettings
from magneton.analysis.recording import Recording
from magneton.analysis.report.markdown import render
from magneton.flows.pairs import compare
from magneton.flows.traces import normalize
from magneton.schemas.documents.diff import DiffDocument
from magneton.schemas.errors import NotComparableError
from magneton.schemas.kinds import Unit

FOUND = Path(__file__).resolve().parents[2] / "found"


def codes(document: DiffDocument) -> list[str]:
    return [note.code for note in document.comparison.notes]


def steps(times: list[float], layers: int = 3) -> Trace:
    """One step per time, in us of the linear layer's kernel."""
    trace = Trace()
    for number, us in enumerate(times):
        with trace.step(number), trace.module("Model_0"):
            for layer in range(layers):
                block(trace, layer, us)
    return trace


# Medians and ranges.


def test_one_preempted_step_is_no_finding(tmp_path: Path) -> None:
    """Five steps of 10 us; on side B the third took 400 us."""
    document = run(tmp_path, steps([10.0] * 5), steps([10.0, 10.0, 400.0, 10.0, 10.0])).document
    assert document.findings == []
    assert document.totals["median_ns"].delta == 0.0
    assert document.totals["time_ns"].delta == 3 * 390_000.0 / 5
    [group] = [g for g in document.groups if g.ops_a == "aten::addmm"]
    assert (group.median_ns.a, group.median_ns.b) == (30_000.0, 30_000.0)
    assert group.steps_b is not None
    assert (group.steps_b.low_ns, group.steps_b.high_ns) == (30_000.0, 1_200_000.0)


def test_the_range_of_many_steps_leaves_out_a_tenth_at_each_end(tmp_path: Path) -> None:
    """Of twenty steps, two that were interrupted do not hide what all others show."""
    slow, fast = [20.0] * 18 + [900.0, 1.0], [10.0] * 18 + [800.0, 950.0]
    document = run(tmp_path, steps(slow), steps(fast), DiffSettings(all_steps=True)).document
    [finding] = document.findings
    group = document.groups[finding.group_id]
    assert group.steps_a is not None and group.steps_b is not None
    assert (group.steps_a.low_ns, group.steps_a.high_ns, group.steps_b.high_ns) == (60_000.0, 60_000.0, 30_000.0)
    assert (finding.delta_ns, finding.delta_percent, finding.costly_side) == (-30_000.0, -50.0, "a")


def test_overlapping_ranges_are_marked_and_are_no_findings(tmp_path: Path) -> None:
    document = run(tmp_path, steps([10.0, 11.0, 12.0, 13.0, 14.0]), steps([13.9, 14.5, 15.0, 15.5, 16.0])).document
    assert document.findings == []
    assert "steps_overlap" in codes(document)
    [group] = [g for g in document.groups if g.ops_a == "aten::addmm"]
    assert group.overlap
    assert "steps overlap" in render(document)
    apart = run(tmp_path, steps([10.0, 11.0, 12.0, 13.0, 13.8]), steps([13.9, 14.5, 15.0, 15.5, 16.0]), out="apart")
    assert len(apart.document.findings) == 1


@pytest.mark.parametrize(("few", "many"), [(1, 1), (4, 4), (4, 8), (5, 5)])
def test_a_finding_needs_five_steps_a_side(tmp_path: Path, few: int, many: int) -> None:
    document = run(tmp_path, steps([10.0] * few), steps([20.0] * many)).document
    assert len(document.findings) == (1 if few >= 5 else 0)
    said = [note.message for note in document.comparison.notes if note.code == "too_few_steps"]
    assert bool(said) is (few < 5)
    if said:
        assert f"there are {few} of A and {many} of B" in said[0]


def test_in_every_step_the_regions_add_up_to_the_step(tmp_path: Path) -> None:
    """To the nanosecond, on both sides, with steps that differ."""
    times_a, times_b = [10.0, 11.5, 9.25, 12.0, 10.5], [20.0, 19.0, 21.125, 20.5, 22.0]
    published = run(tmp_path, steps(times_a), steps(times_b))
    table = pq.read_table(published.directory / "region_steps.parquet").to_pylist()
    sums: dict[tuple[str, int], float] = defaultdict(float)
    for row in table:
        sums[row["side"], row["step_number"]] += row["time_ns"]
    for side, times in (("a", times_a), ("b", times_b)):
        assert [sums[side, number] for number in range(5)] == [3 * (1000 * us + 2000) for us in times]
    assert {row["step_id"] for row in table if row["side"] == "a"} == set(range(5))


def test_medians_of_roll_ups_are_of_the_sums_of_each_step(tmp_path: Path) -> None:
    """Two operators that change places: each has a median of 10 us a layer, and so has neither of the sums."""
    trace = Trace()
    for number, us in enumerate([5.0, 10.0, 100.0, 10.0, 5.0]):
        with trace.step(number), trace.module("Model_0"):
            trace.op("aten::addmm", us, [[64], [8, 64], [64, 64]])
            trace.op("aten::addmm", 105.0 - us, [[64], [8, 64], [64, 32]])
    document = run(tmp_path, trace, trace).document
    [row] = document.rollups["op"]
    assert row.median_ns.a == document.totals["median_ns"].a == 105_000.0


# Names of kernels and shapes.


def test_rows_name_kernels_and_shapes(tmp_path: Path) -> None:
    published = run(tmp_path, model(10.0), model(20.0))
    [region] = [r for r in published.document.regions if r.module_a == "Model_0/Block_0/Linear_0"]
    assert (region.kernels_a, region.shapes_a) == ("aten_addmm_kernel", "[64] [8, 64] [64, 64]")
    report = (published.directory / "report.md").read_text().replace("\\", "")
    assert "aten_addmm_kernel" in report
    assert "[8, 64]" in report


def test_other_shapes_are_another_row(tmp_path: Path) -> None:
    """The two products of attention are one operator with other shapes."""
    trace = Trace()
    with trace.step(0), trace.module("Attention_0"):
        for _ in range(3):
            trace.op("aten::bmm", 10.0, [[4, 128, 64], [4, 64, 128]])
            trace.op("aten::bmm", 5.0, [[4, 128, 128], [4, 128, 64]])
    document = run(tmp_path, trace, trace).document
    assert sorted((g.shapes_a, g.n_regions, g.time_ns.a) for g in document.groups) == [
        ("[4, 128, 128] [4, 128, 64]", 3, 15_000.0),
        ("[4, 128, 64] [4, 64, 128]", 3, 30_000.0),
    ]


# Repetitions of a loop without step marks.

BODY = ["native_layer_norm", "addmm", "mul", "add", "mm", "_softmax", "copy_", "gelu", "addmm", "copy_", "add"]


def window(first: int, last: int, slower: float = 1.0) -> Trace:
    """Calls ``first`` to ``last`` of a loop without end."""
    trace = Trace()
    for at in range(first, last):
        place = at % len(BODY)
        us = 20.0 + 3 * place
        trace.op(f"aten::{BODY[place]}", us * slower if BODY[place] == "gelu" else us, [[64, 64], [64, 64]])
    return trace


@pytest.mark.parametrize(("first", "last"), [(31, 660), (0, 600), (5, 649), (33, 657)])
def test_windows_of_one_loop_are_compared_by_repetition(tmp_path: Path, first: int, last: int) -> None:
    document = run(tmp_path, window(0, 660), window(first, last)).document
    assert document.comparison.unit == Unit.REPETITION
    assert "repetitions_compared" in codes(document)
    assert document.findings == []
    assert {region.delta_ns for region in document.regions} == {0.0}
    assert (document.coverage.a, document.coverage.b) == (1.0, 1.0)
    swapped = run(tmp_path, window(first, last), window(0, 660), out="swapped").document
    assert [r.ops_a for r in swapped.regions] == [r.ops_b for r in document.regions]


def test_a_slower_operator_of_a_loop_is_found_whatever_the_window(tmp_path: Path) -> None:
    document = run(tmp_path, window(0, 660), window(31, 600, slower=1.2)).document
    [finding] = document.findings
    assert (document.groups[finding.group_id].ops_b, finding.delta_percent) == ("aten::gelu", pytest.approx(20.0))


def test_work_outside_a_loop_is_not_lost(tmp_path: Path) -> None:
    """Other numbers of layers between an embedding and a head: the captures are compared whole."""
    sides = []
    for repetitions in (6, 8):
        trace = Trace()
        trace.op("aten::embedding", 50.0, [[100, 64], [8]])
        for _ in range(repetitions):
            for name in BODY[:4]:
                trace.op(f"aten::{name}", 10.0, [[64, 64]])
        trace.op("aten::mm", 80.0, [[64, 64], [64, 1000]])
        sides.append(trace)
    document = run(tmp_path, *sides).document
    assert document.comparison.unit == Unit.CAPTURE
    assert (document.totals["time_ns"].a, document.totals["time_ns"].b) == (370_000.0, 450_000.0)


# Waiting in collectives.


def rank(number: int, waits: float, us: float = 10.0) -> Trace:
    """A rank of two, whose all-reduce takes 100 us and what it waits for the other."""
    trace = Trace()
    for step in range(5):
        with trace.step(step):
            trace.op("aten::mm", us, [[64, 64], [64, 64]])
            trace.op("c10d::allreduce_", 100.0 + waits, [[64, 64]], kernel="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    return trace


def job(tmp_path: Path, name: str, waits: tuple[float, float]) -> Recording:
    (tmp_path / name).mkdir()
    traces = [rank(n, w).write(tmp_path / name / f"rank{n}.json") for n, w in enumerate(waits)]
    out = tmp_path / f"run-{name}"
    normalize(traces, out)
    return Recording.open(out)


def test_waiting_for_other_ranks_is_a_class_of_its_own_and_no_finding(tmp_path: Path) -> None:
    """Rank 0 waits 50 us on side A and 400 us on side B: the transfer of 100 us is the same."""
    a, b = job(tmp_path, "a", (50.0, 0.0)), job(tmp_path, "b", (400.0, 0.0))
    document = diff(a, b, DiffSettings(), "test").document
    classes = {row.name_a: (row.time_ns.a, row.time_ns.b) for row in document.rollups["kernel_class"]}
    assert classes["collective"] == (100_000.0, 100_000.0)
    assert classes["collective_wait"] == (50_000.0, 400_000.0)
    assert document.findings == []
    assert "collective_time" in codes(document)


def test_of_one_rank_the_waiting_is_unknown_and_no_finding_either(tmp_path: Path) -> None:
    document = run(tmp_path, rank(0, 50.0), rank(0, 400.0)).document
    assert document.findings == []
    assert "collective_time" in codes(document)
    assert "collective_wait" not in {row.name_a for row in document.rollups["kernel_class"]}


# Units.


@pytest.fixture
def sequences(normalized: Normalizer) -> list[Recording]:
    names = [FOUND / "sequence-lengths" / f"seq{length}.json.gz" for length in (128, 256)]
    return [Recording.open(normalized(name).path) for name in names]


def between(sides: list[Recording], per: str) -> DiffResult:
    return diff(sides[0], sides[1], DiffSettings(per=per), "test")


def test_a_longer_sequence_is_no_larger_batch(sequences: list[Recording]) -> None:
    """Two samples of 128 tokens against two samples of 256."""
    with pytest.raises(NotComparableError, match="different amounts of work"):
        between(sequences, Unit.STEP)
    document = between(sequences, Unit.SAMPLE).document
    assert (document.comparison.units_a, document.comparison.units_b) == (2.0, 2.0)
    assert document.totals["time_ns"].delta_percent == pytest.approx(44, abs=0.5)
    document = between(sequences, Unit.TOKEN).document
    assert (document.comparison.units_a, document.comparison.units_b) == (256.0, 512.0)
    assert "units_by_shape" in codes(document)


def batches(tmp_path: Path, *shapes: list[list[int]]) -> tuple[Path, Path]:
    paths = []
    for name, dims in zip("ab", shapes, strict=True):
        trace = Trace()
        with trace.step(0):
            trace.op("aten::conv2d", 10.0, [dims, [8, 3, 3, 3]])
            trace.op("aten::relu", 10.0, [dims])
        paths.append(trace.write(tmp_path / f"{name}.json"))
    return paths[0], paths[1]


def test_images_of_a_batch_are_samples(tmp_path: Path) -> None:
    a, b = batches(tmp_path, [4, 3, 32, 32], [16, 3, 32, 32])
    document = compare(a, b, tmp_path / "out", DiffSettings(per="sample")).document
    assert (document.comparison.units_a, document.comparison.units_b) == (4.0, 16.0)
    with pytest.raises(NotComparableError, match="how many tokens"):
        compare(a, b, tmp_path / "out2", DiffSettings(per="token"))


def test_larger_images_are_as_many_samples(tmp_path: Path) -> None:
    a, b = batches(tmp_path, [4, 3, 32, 32], [4, 3, 64, 32])
    document = compare(a, b, tmp_path / "out", DiffSettings(per="sample")).document
    assert (document.comparison.units_a, document.comparison.units_b) == (4.0, 4.0)
