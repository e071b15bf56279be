"""The diff as a user gets it: from traces to a published directory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.kineto import Trace

from magneton.analysis.align.matcher import Correspondence
from magneton.analysis.align.tree import Node, Work
from magneton.analysis.diff.regions import build
from magneton.flows.extras import ExtraFiles
from magneton.flows.pairs import DiffSettings, Published, compare
from magneton.flows.traces import normalize
from magneton.schemas.documents.diff import DiffDocument, read_diff
from magneton.schemas.errors import (
    InputFormatError,
    InputNotFoundError,
    InsufficientPowerDataError,
    MagnetonError,
    NotComparableError,
    OutputExistsError,
    UsageError,
)

FAULTS = Path(__file__).resolve().parents[2] / "faults" / "cases"
X, W = [8, 64], [64, 64]


def block(trace: Trace, number: int, us: float = 10.0) -> None:
    """A layer of a model."""
    with trace.module(f"Block_{number}"):
        with trace.module(f"Linear_{number}"):
            trace.op("aten::addmm", us, [[64], X, W])
        with trace.module(f"Act_{number}"):
            trace.op("aten::relu", 2, [X])


def model(us: float = 10.0, layers: int = 3, steps: int = 1) -> Trace:
    """A model of some layers, run for some steps."""
    trace = Trace()
    for step in range(steps):
        with trace.step(step), trace.module("Model_0"):
            for number in range(layers):
                block(trace, number, us)
    return trace


def run(
    tmp_path: Path, a: Trace | Path, b: Trace | Path, settings: DiffSettings | None = None, out: str = "out"
) -> Published:
    paths = [t if isinstance(t, Path) else t.write(tmp_path / f"{n}.json") for n, t in (("a", a), ("b", b))]
    return compare(paths[0], paths[1], tmp_path / out, settings or DiffSettings())


def adds_up(document: DiffDocument) -> None:
    """Regions, groups and every roll-up hold the same work as the totals."""
    for side in "ab":
        for what in ("time_ns", "transfer_ns"):
            total = getattr(document.totals[what], side)
            assert sum(getattr(r, f"{what}_{side}") or 0 for r in document.regions) == pytest.approx(total, rel=1e-9)
            assert sum(getattr(getattr(g, what), side) or 0 for g in document.groups) == pytest.approx(total, rel=1e-9)
            for rows in document.rollups.values():
                assert sum(getattr(getattr(r, what), side) or 0 for r in rows) == pytest.approx(total, rel=1e-9)


def test_a_run_against_itself_shows_nothing(tmp_path: Path) -> None:
    document = run(tmp_path, model(steps=3), model(steps=3)).document
    assert document.a.run_id == document.b.run_id
    assert {r.delta_ns for r in document.regions} == {0.0}
    assert (document.coverage.n_only_a, document.coverage.n_only_b, document.findings) == (0, 0, [])
    assert (document.coverage.a, document.coverage.b) == (1.0, 1.0)
    adds_up(document)


def test_totals_are_per_step_and_exact(tmp_path: Path) -> None:
    """3 layers of a 10 us and a 2 us kernel, against 12.5 us ones in a run of other length."""
    document = run(tmp_path, model(10.0, steps=5), model(12.5, steps=7)).document
    assert document.totals["time_ns"].a == 36_000.0
    assert document.totals["time_ns"].b == 43_500.0
    assert document.comparison.unit == "step"
    assert [len(s.steps_used) for s in (document.a, document.b)] == [5, 7]
    [group] = [g for g in document.groups if g.time_ns.delta]
    assert (group.module_a, group.ops_a, group.n_regions, group.time_ns.delta) == (
        "Model/Block/Linear",
        "aten::addmm",
        3,
        7500.0,
    )
    [finding] = document.findings
    assert (finding.verdict, finding.costly_side, finding.delta_percent) == ("inconclusive", "b", 25.0)
    adds_up(document)


def test_swapping_the_sides_swaps_the_result(tmp_path: Path) -> None:
    a, b = model(10.0), model(30.0, layers=4)
    b.op("aten::copy_", 5.0, [X, X])
    one = run(tmp_path, a, b, out="one").document
    other = run(tmp_path, tmp_path / "b.json", tmp_path / "a.json", out="other").document
    assert one.coverage.a == other.coverage.b
    assert one.totals["time_ns"].delta == -(other.totals["time_ns"].delta or 0)

    def regions(document: DiffDocument, left: str, right: str) -> set[tuple[object, ...]]:
        return {
            tuple(getattr(r, f"{what}_{side}") for side in (left, right) for what in ("module", "ops", "time_ns"))
            for r in document.regions
        }

    assert regions(one, "a", "b") == regions(other, "b", "a")


def test_transfers_are_kept_apart(tmp_path: Path) -> None:
    a, b = model(), model()
    a.copy("aten::copy_", 500.0, 4096)
    b.copy("aten::copy_", 100.0, 4096)
    document = run(tmp_path, a, b, DiffSettings(all_steps=True)).document
    # Outside the step: nothing of it is compared, and that is said.
    assert (document.a.outside_steps_ns, document.b.outside_steps_ns) == (500_000.0, 100_000.0)
    a, b = Trace(), Trace()
    for trace, us in ((a, 500.0), (b, 100.0)):
        block(trace, 0)
        trace.copy("aten::copy_", us, 4096)
        block(trace, 1)
    document = run(tmp_path, a, b).document
    assert document.totals["time_ns"].delta == 0
    assert document.totals["transfer_ns"].delta == -400_000.0
    assert document.findings == []
    adds_up(document)


def test_overlapping_kernels_share_the_time(tmp_path: Path) -> None:
    trace = model()
    kernels = [e for e in trace.events if e["cat"] == "kernel"]
    kernels[1].update(ts=kernels[0]["ts"] + 5.0, dur=7.0, tid=8)
    document = run(tmp_path, trace, model()).document
    assert document.totals["time_ns"].a == 41_000.0
    assert document.totals["share_ns"].a == 41_000.0 - 5_000.0


def test_more_layers_stay_whole(tmp_path: Path) -> None:
    document = run(tmp_path, model(layers=3), model(layers=4)).document
    alone = {r.module_b for r in document.regions if r.kind == "only_b"}
    assert len({str(m).split("/")[1] for m in alone}) == 1
    assert document.coverage.a == 1.0


def test_unrelated_programs_do_not_align(tmp_path: Path) -> None:
    other = Trace()
    with other.step(0), other.module("Net_0"):
        for number in range(6):
            with other.module(f"Linear_{number}"):
                other.op("aten::addmm", 10, [[96], [7, 32], [32, 96]])
                other.op("aten::relu", 3, [[7, 96]])
    document = run(tmp_path, model(), other).document
    assert (document.coverage.a, document.coverage.b) == (0.0, 0.0)
    assert {f.verdict for f in document.findings} == {"not comparable"}
    assert "low_coverage" in {n.code for n in document.comparison.notes}


def test_other_devices_are_not_comparable(tmp_path: Path) -> None:
    b = model(20.0)
    b.device = "Other GPU"
    document = run(tmp_path, model(10.0), b).document
    assert document.comparison.same_devices is False
    assert {f.verdict for f in document.findings} == {"not comparable"}


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.sampled_from(["mm", "relu", "add", "tanh"]), min_size=1, max_size=8),
    st.lists(st.sampled_from(["mm", "relu", "add", "tanh"]), min_size=1, max_size=8),
)
def test_work_is_never_lost(tmp_path_factory: pytest.TempPathFactory, left: list[str], right: list[str]) -> None:
    tmp_path = tmp_path_factory.mktemp("diff")
    traces = []
    for names in (left, right):
        trace = Trace()
        for index, name in enumerate(names):
            with trace.module(f"Layer_{index // 2}"):
                trace.op(f"aten::{name}", 3.0 + index, [X, W] if name == "mm" else [X])
        traces.append(trace)
    document = run(tmp_path, *traces).document
    adds_up(document)
    assert document.totals["time_ns"].a == sum(3000.0 + 1000 * i for i in range(len(left)))


# Fault cases whose values belong to the diff.


def test_different_numbers_of_steps(tmp_path: Path) -> None:
    """Case 62: three steps with a warm-up against four steady ones."""
    case = FAULTS / "62-diff-different-iterations"
    document = run(tmp_path, case / "a.json", case / "b.json").document
    assert document.totals["time_ns"].delta_percent == 0.0
    assert document.findings == []
    assert document.comparison.unit == "step"
    assert "warmup_dropped" in {n.code for n in document.comparison.notes}
    assert (document.a.n_steps_recorded, document.b.n_steps_recorded) == (3, 4)
    every = run(tmp_path, case / "a.json", case / "b.json", DiffSettings(all_steps=True)).document
    assert every.a.step_time.mean_ns == 200_000.0
    assert every.a.step_time.median_ns == 100_000.0
    assert "step_variation" in {n.code for n in every.comparison.notes}
    assert all(f.verdict == "inconclusive" for f in every.findings)
    skipped = run(tmp_path, case / "a.json", case / "b.json", DiffSettings(skip_steps=1)).document
    assert skipped.totals["time_ns"].delta == 0.0


def test_different_batch(tmp_path: Path) -> None:
    """Case 63: refused by name, compared per sample on request."""
    case = FAULTS / "63-diff-different-batch"
    with pytest.raises(NotComparableError, match=r"aten::mm ran on \[\[8, 1024\], .*\[\[16, 1024\]"):
        run(tmp_path, case / "a.json", case / "b.json")
    document = run(tmp_path, case / "a.json", case / "b.json", DiffSettings(per="sample")).document
    assert (document.totals["time_ns"].a, document.totals["time_ns"].b) == (12_500.0, 10_000.0)
    assert document.totals["time_ns"].delta_percent == pytest.approx(-20.0)
    assert (document.comparison.units_a, document.comparison.units_b) == (8.0, 16.0)
    assert document.coverage.a == 1.0


def serving(decodes: int) -> Trace:
    """One prefill of 1000 tokens and a number of decodes of 10."""
    trace = Trace()
    marks = ["execute_context_1(1000)_generation_0(0)"] + ["execute_context_0(0)_generation_10(10)"] * decodes
    for number, mark in enumerate(marks):
        with trace.span("user_annotation", mark), trace.module("Model_0"):
            block(trace, 0, 500.0 if number == 0 else 10.0)
    return trace


def test_tokens_of_more_decodes_are_no_difference(tmp_path: Path) -> None:
    document = run(tmp_path, serving(20), serving(4), DiffSettings(per="token", all_steps=True)).document
    assert document.totals["time_ns"].a == pytest.approx(document.totals["time_ns"].b)
    assert document.totals["time_ns"].a == pytest.approx((502_000 + 12_000) / 1010)


@pytest.mark.parametrize("unit", [1.0, 32.0])
def test_what_is_too_coarse_does_not_depend_on_the_unit(unit: float) -> None:
    def calls(name: str) -> list[Node]:
        work = [Work(n_calls=1, time_ns=100, n_kernels=2).divided(unit) for _ in range(5)]
        return [Node("op", name, n, (n, 0), work=w) for n, w in enumerate(work)]

    pair = Correspondence(calls("aten::mul"), calls("aten::add"), 0.5, frozenset({"order"}))
    assert [region.coarse for region in build([pair], "step", 500 / unit, 500 / unit)] == [True]


def test_fusion_many_to_one(tmp_path: Path) -> None:
    """Case 65: three operators against one fused kernel of the same module are one region."""
    case = FAULTS / "65-diff-fusion-many-to-one"
    document = run(tmp_path, case / "a.json", case / "b.json").document
    [region] = document.regions
    assert (region.module_a, region.module_b) == ("Act_0", "Act_0")
    assert (region.time_ns_a, region.time_ns_b) == (30_000.0, 12_000.0)
    assert (region.n_kernels_a, region.n_kernels_b) == (3, 1)
    assert document.totals["time_ns"].delta_percent == pytest.approx(-60.0)


def test_shuffled_self(tmp_path: Path) -> None:
    """Case 66: other process and thread ids, shifted times, shuffled events: no difference."""
    case = FAULTS / "66-diff-self-shuffled"
    document = run(tmp_path, case / "a.json", case / "b.json").document
    assert {r.delta_ns for r in document.regions} == {0.0}
    assert document.findings == []
    assert (document.coverage.n_only_a, document.coverage.n_only_b) == (0, 0)


@pytest.mark.parametrize("name", ["empty_list.json", "empty_array.json"])
def test_empty_runs_are_not_comparable(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotComparableError):
        run(tmp_path, FAULTS / "18-zero-events" / name, model())
    with pytest.raises(NotComparableError):
        run(tmp_path, model(), FAULTS / "18-zero-events" / name)


def test_missing_kernels_are_no_savings(tmp_path: Path) -> None:
    """Case 72: launches whose kernels were lost are said, not compared as free."""
    case = FAULTS / "72-launches-without-kernels"
    document = run(tmp_path, case / "trace.json", case / "trace.json").document
    assert "gpu_records_missing" in {w["code"] for w in document.a.warnings}


# Joules: recordings whose power log lies on the time line of the trace.


def powered(tmp_path: Path, case: str, *names: str, power: str = "power.csv") -> list[Path]:
    """Normalise traces of a case with its power log."""
    runs = []
    for name in names:
        out = tmp_path / f"run-{name}"
        normalize([FAULTS / case / f"{name}.json"], out, extras=ExtraFiles(power=[FAULTS / case / power]))
        runs.append(out)
    return runs


@pytest.mark.parametrize(
    ("case", "per", "right"),
    [
        ("62-diff-different-iterations", "step", (0.02, 0.02)),
        ("63-diff-different-batch", "sample", (0.0025, 0.002)),
        ("65-diff-fusion-many-to-one", "step", (0.006, 0.0024)),
    ],
)
def test_joules_per_unit(tmp_path: Path, case: str, per: str, right: tuple[float, float]) -> None:
    document = run(tmp_path, *powered(tmp_path, case, "a", "b"), DiffSettings(per=per)).document
    total = document.totals["energy_j"]
    assert (total.a, total.b) == pytest.approx(right, rel=1e-9)
    assert total.delta_percent == pytest.approx(100 * (right[1] / right[0] - 1), abs=1e-6)
    for side, doc in (("a", document.a), ("b", document.b)):
        energy = doc.energy
        assert energy is not None and energy.total_j is not None
        parts = (energy.attributed_j, energy.idle_j, energy.unattributed_j)
        assert sum(p or 0.0 for p in parts) == pytest.approx(energy.total_j, rel=1e-9)
        assert energy.label == "apportioned"
        assert sum(getattr(r, f"energy_j_{side}") or 0.0 for r in document.regions) == pytest.approx(
            getattr(total, side), rel=1e-9
        )
        for region in document.regions:
            low, value, high = (getattr(region, f"energy{w}_j_{side}") for w in ("_low", "", "_high"))
            assert low <= value * (1 + 1e-9) and value <= high * (1 + 1e-9)
    # Joules by busy time are shown and never judged.
    assert {f.verdict for f in document.findings} <= {"inconclusive"}


def test_totals_of_case_62_in_joules(tmp_path: Path) -> None:
    document = run(tmp_path, *powered(tmp_path, "62-diff-different-iterations", "a", "b")).document
    assert document.a.energy is not None and document.b.energy is not None
    assert (document.a.energy.attributed_j, document.b.energy.attributed_j) == pytest.approx((0.12, 0.08), rel=1e-9)


def test_a_gap_in_the_power_log_is_refused(tmp_path: Path) -> None:
    """Case 41: ten seconds of a kernel without a sample."""
    [one] = powered(tmp_path, "41-power-sample-gap", "trace")
    with pytest.raises(InsufficientPowerDataError):
        run(tmp_path, one, one)
    document = run(tmp_path, one, one, DiffSettings(min_power_coverage=0.1)).document
    assert document.a.energy is not None
    assert document.a.energy.covered_s == pytest.approx(2.0)
    assert run(tmp_path, one, one, DiffSettings(energy=False)).document.a.energy is None


def test_without_power_there_are_no_joules(tmp_path: Path) -> None:
    document = run(tmp_path, model(), model(20.0)).document
    assert document.a.energy is None
    assert {r.energy_j_a for r in document.regions} == {None}
    assert document.totals["energy_j"].a is None


# What lies on disk.


def test_what_is_written(tmp_path: Path) -> None:
    published = run(tmp_path, model(10.0), model(20.0))
    names = sorted(p.name for p in published.directory.iterdir())
    assert names == [
        "diff.json",
        "findings.parquet",
        "matches.parquet",
        "region_steps.parquet",
        "regions.parquet",
        "report.md",
    ]
    assert read_diff(published.directory) == published.document
    regions = pq.read_table(published.directory / "regions.parquet")
    assert regions.num_rows == len(published.document.regions)
    assert regions.schema.field("time_ns_a").metadata[b"magneton.unit"] == b"ns"
    report = (published.directory / "report.md").read_text()
    assert "Where they differ" in report
    assert "Model/Block/Linear" in report.replace("\\", "") or "Block/Linear" in report


def test_the_same_diff_twice_is_the_same_file(tmp_path: Path) -> None:
    first = run(tmp_path, model(10.0), model(20.0)).directory / "diff.json"
    content = first.read_bytes()
    again = run(tmp_path, tmp_path / "a.json", tmp_path / "b.json").directory / "diff.json"
    assert again.read_bytes() == content


def test_a_failure_keeps_the_earlier_diff(tmp_path: Path) -> None:
    published = run(tmp_path, model(10.0), model(20.0))
    before = (published.directory / "diff.json").read_bytes()
    (tmp_path / "broken.json").write_text('{"traceEvents": [{"ph": "X", "na')
    with pytest.raises(InputFormatError):
        compare(tmp_path / "a.json", tmp_path / "broken.json", tmp_path / "out")
    assert (published.directory / "diff.json").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "b.json", "broken.json", "out"]


def test_a_directory_that_is_not_a_diff_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(OutputExistsError):
        run(tmp_path, model(), model())
    assert (tmp_path / "out" / "thesis.txt").read_text() == "mine"


def test_bad_arguments(tmp_path: Path) -> None:
    trace = model().write(tmp_path / "a.json")
    with pytest.raises(InputNotFoundError):
        compare(trace, tmp_path / "absent.json", tmp_path / "out")
    with pytest.raises(UsageError):
        compare(trace, trace, tmp_path / "out", DiffSettings(skip_steps=1))
    with pytest.raises(MagnetonError):
        compare(trace, trace, tmp_path / "out", DiffSettings(rank=7))


def test_hostile_names_reach_no_markup(tmp_path: Path) -> None:
    """Case 60: names in the report are shown, not run."""
    trace = FAULTS / "60-report-injection" / "trace.json"
    published = run(tmp_path, trace, trace, DiffSettings())
    report = (published.directory / "report.md").read_text()
    assert "<script" not in report
    assert "\x1b" not in report
    for line in report.splitlines():
        if line.startswith("| ") and line.endswith(" |"):
            assert line.count("|") in (6, 7, 8, 9, 11)


def test_the_command(tmp_path: Path) -> None:
    model(10.0).write(tmp_path / "run 'a' $x.json")
    model(20.0).write(tmp_path / "-b ü.json")
    command = [
        sys.executable,
        "-m",
        "magneton.cli",
        "diff",
        "--json",
        "-o",
        "out",
        "--",
        "run 'a' $x.json",
        "-b ü.json",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["totals"]["time_ns"]["delta"] == 30_000.0
    done = subprocess.run(
        [*command[:4], "run 'a' $x.json", "absent"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
