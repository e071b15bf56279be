"""Fault cases of comparing: other steps, other batches, fused work, missing records. One test per expected value.

The diff compares time; joules come from the power log beside the traces.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.diff.test_diff import model
from tests.support.fault_cases import (
    CAUSES,
    Case,
    Context,
    busy_ns,
    close,
    equal,
    params,
)
from tests.support.kineto import Trace
from tests.support.normalized import Normalizer

from magneton.flows.extras import ExtraFiles
from magneton.flows.pairs import DiffSettings, Published, compare
from magneton.flows.traces import normalize
from magneton.schemas.documents.diff import Amount, DiffDocument
from magneton.schemas.errors import EXIT_BAD_INPUT, NotComparableError

Of = Callable[[DiffDocument], Any]


def published(context: Context, a: Path, b: Path, given: DiffSettings | None = None) -> Published:
    """Compare two inputs."""
    return compare(a, b, context.tmp_path / "diff", given)


def diffed(context: Context, given: DiffSettings | None = None, *, swapped: bool = False) -> DiffDocument:
    """Compare the two traces of a case, normalised once."""
    a, b = context.run("a.json").path, context.run("b.json").path
    return published(context, *((b, a) if swapped else (a, b)), given).document


def powered(context: Context, given: DiffSettings | None = None) -> DiffDocument:
    """Compare the two traces of a case, each with the power log beside them."""
    runs = []
    for name in ("a", "b"):
        run = context.tmp_path / f"powered-{name}"
        if not run.exists():
            normalize([context.file(f"{name}.json")], run, extras=ExtraFiles(power=[context.file("power.csv")]))
        runs.append(run)
    return published(context, *runs, given).document


def notes(document: DiffDocument) -> dict[str, str]:
    """What is said beside the numbers, by code."""
    return {note.code: note.message for note in document.comparison.notes}


def refused(context: Context, a: Path, b: Path, given: DiffSettings | None = None) -> NotComparableError:
    """Return why two inputs are not compared; nothing is left behind."""
    with pytest.raises(NotComparableError) as caught:
        published(context, a, b, given)
    assert caught.value.exit_code == EXIT_BAD_INPUT
    assert "\n" not in str(caught.value)
    assert not (context.tmp_path / "diff").exists()
    return caught.value


def side(amount: Amount, key: str) -> float | None:
    """One side of an amount by its letter."""
    return amount.a if key == "A" else amount.b


# --- 07, 18, 19 inputs with little in them ---------------------------------------------------------------------------------


def _incomplete_is_said(context: Context, value: Any) -> None:
    salvaged = context.run(allow_truncated=True).path
    whole = context.tmp_path / "whole.json"
    document = json.loads(context.file().read_text().rsplit(", {", 1)[0].rstrip().rstrip(",") + "]}")
    whole.write_text(json.dumps(document))
    for a, b, letter in ((salvaged, whole, "A"), (whole, salvaged, "B")):
        result = published(context, a, b)
        assert f"side {letter} is incomplete" in notes(result.document)["incomplete"]
        assert "is incomplete" in (result.directory / "report.md").read_text()


TRUNCATED = Case("07-truncated-json-object", {"forbidden.2": _incomplete_is_said})


def _nothing_to_compare(context: Context, *files: Path) -> None:
    other = model().write(context.tmp_path / "other.json")
    for file in files:
        refused(context, file, other)
        refused(context, other, file)
        refused(context, file, file)


NO_EVENTS = Case(
    "18-zero-events",
    {
        "diff_of_an_empty_run_with_any_run": lambda c, v: _nothing_to_compare(
            c, c.file("empty_list.json"), c.file("empty_array.json")
        )
    },
)
METADATA_ONLY = Case("19-metadata-only", {"analysis": lambda c, v: _nothing_to_compare(c, c.file())})

# --- 62 steps ----------------------------------------------------------------------------------------------------------------

SKIP, ALL = DiffSettings(skip_steps=1), DiffSettings(all_steps=True)


def _no_claim(context: Context, value: Any) -> None:
    """At 200 W, 200 us are 0.04 J and 100 us are 0.02 J."""
    document = diffed(context, ALL)
    assert (document.a.step_time.mean_ns, document.a.step_time.median_ns) == (200_000.0, 100_000.0)
    assert notes(document)["step_variation"].startswith("side A")
    assert {f.verdict for f in document.findings} <= {"inconclusive"}


def _never_33_percent(context: Context, value: Any) -> None:
    for given_ in (None, SKIP, ALL):
        document = diffed(context, given_)
        assert document.comparison.unit == "step"
        percents = [a.delta_percent for a in document.totals.values()]
        assert not any(p is not None and -34 < p < -33 for p in percents)


STEPS = Case(
    "62-diff-different-iterations",
    {
        "verdict_when_first_step_of_A_skipped.delta_percent": lambda c, v: equal(
            [diffed(c, s).totals["time_ns"].delta_percent for s in (None, SKIP)], [v, v]
        ),
        "verdict_when_first_step_of_A_skipped.findings": lambda c, v: equal(
            [len(diffed(c, s).findings) for s in (None, SKIP)], [v, v]
        ),
        "verdict_without_skip": _no_claim,
        "comparison_basis": lambda c, v: equal(f"per {diffed(c).comparison.unit}", v),
        "steps.A": lambda c, v: equal(diffed(c).a.n_steps_recorded, v),
        "steps.B": lambda c, v: equal(diffed(c).b.n_steps_recorded, v),
        "forbidden.*": _never_33_percent,
    },
)

# --- 63 batch ------------------------------------------------------------------------------------------------------------------

SAMPLE = DiffSettings(per="sample")


def _batch_refused(context: Context) -> NotComparableError:
    return refused(context, context.file("a.json"), context.file("b.json"))


def _names_both(context: Context, value: Any) -> None:
    for part in ("aten::mm", "[8, 1024]", "[16, 1024]"):
        assert part in str(_batch_refused(context))


BATCH = Case(
    "63-diff-different-batch",
    {
        "default.verdict": lambda c, v: equal(_batch_refused(c).exit_code, EXIT_BAD_INPUT),
        "default.error": lambda c, v: equal(_batch_refused(c).code, v),
        "default.message": _names_both,
        "with_per_sample_normalisation.verdict": lambda c, v: equal(
            (diffed(c, SAMPLE).comparison.units_a, diffed(c, SAMPLE).comparison.units_b), (8.0, 16.0)
        ),
        "with_per_sample_normalisation.delta_percent": lambda c, v: close(
            diffed(c, SAMPLE).totals["time_ns"].delta_percent, v
        ),
        "with_per_sample_normalisation.mj_per_sample.A": lambda c, v: close(
            1e3 * (powered(c, SAMPLE).totals["energy_j"].a or 0.0), v
        ),
        "with_per_sample_normalisation.mj_per_sample.B": lambda c, v: close(
            1e3 * (powered(c, SAMPLE).totals["energy_j"].b or 0.0), v
        ),
        "raw_delta_percent": lambda c, v: close(100.0 * (busy_ns(c.run("b.json")) / busy_ns(c.run("a.json")) - 1.0), v),
        "forbidden.0": lambda c, v: equal("60" in str(_batch_refused(c)), False),
    },
)

# --- 65 fusion -----------------------------------------------------------------------------------------------------------------


def _joined(context: Context, value: Any) -> None:
    document = diffed(context)
    assert (document.coverage.n_paired, document.coverage.n_only_a, document.coverage.n_only_b) == (1, 0, 0)


FUSION = Case(
    "65-diff-fusion-many-to-one",
    {
        "energy_j.A": lambda c, v: close(powered(c).regions[0].energy_j_a, v),
        "energy_j.B": lambda c, v: close(powered(c).regions[0].energy_j_b, v),
        "verdict": _joined,
        "region": lambda c, v: equal([f"nn.Module: {r.module_a}" for r in diffed(c).regions], [v]),
        "ns.A": lambda c, v: equal([r.time_ns_a for r in diffed(c).regions], [v]),
        "ns.B": lambda c, v: equal([r.time_ns_b for r in diffed(c).regions], [v]),
        "delta_percent": lambda c, v: close([g.time_ns.delta_percent for g in diffed(c).groups], [v]),
        "kernels.A": lambda c, v: equal([r.n_kernels_a for r in diffed(c).regions], [v]),
        "kernels.B": lambda c, v: equal([r.n_kernels_b for r in diffed(c).regions], [v]),
        "forbidden.0": _joined,
    },
    later={"cause_class": CAUSES},
)

# --- 66 the same, shuffled -------------------------------------------------------------------------------------------------------


def _both_ways(context: Context) -> list[DiffDocument]:
    return [diffed(context), diffed(context, swapped=True)]


def _deltas(document: DiffDocument) -> set[float | None]:
    amounts = [*document.totals.values(), *(g.time_ns for g in document.groups)]
    amounts += [row.time_ns for rows in document.rollups.values() for row in rows]
    return {a.delta for a in amounts if a.a is not None} | {r.delta_ns for r in document.regions}


def _symmetric(context: Context, value: bool) -> None:
    """Every number of one direction is the number of the other with its sides and sign swapped."""
    one, other = _both_ways(context)

    def regions(document: DiffDocument, letters: str) -> list[tuple[Any, ...]]:
        columns = ("module", "ops", "n_ops", "n_kernels", "time_ns", "share_ns", "kernel_class")
        return sorted(tuple(getattr(r, f"{c}_{s}") for s in letters for c in columns) for r in document.regions)

    def totals(document: DiffDocument, letters: str) -> dict[str, list[float | None]]:
        return {name: [getattr(a, s) for s in letters] for name, a in document.totals.items()}

    same = regions(one, "ab") == regions(other, "ba") and totals(one, "ab") == totals(other, "ba")
    assert same is value
    assert (one.a.run_id, one.b.run_id) == (other.b.run_id, other.a.run_id)


SHUFFLED = Case(
    "66-diff-self-shuffled",
    {
        "verdict": lambda c, v: equal([d.coverage.a for d in _both_ways(c)], [1.0, 1.0]),
        "delta_all": lambda c, v: equal([_deltas(d) for d in _both_ways(c)], [{v}, {v}]),
        "findings": lambda c, v: equal([len(d.findings) for d in _both_ways(c)], [v, v]),
        "unmatched.A": lambda c, v: equal([d.coverage.n_only_a for d in _both_ways(c)], [v, v]),
        "unmatched.B": lambda c, v: equal([d.coverage.n_only_b for d in _both_ways(c)], [v, v]),
        "diff_symmetric": _symmetric,
    },
)

# --- 72 missing device records ---------------------------------------------------------------------------------------------------


def _complete(context: Context) -> Path:
    """The case with the records that its profiler lost."""
    document = json.loads(context.file().read_text())
    for number in (0, 1):
        event = {
            "ph": "X",
            "cat": "kernel",
            "name": f"k{number}",
            "pid": 0,
            "tid": 7,
            "ts": 60 + 100 * number,
            "dur": 20,
        }
        document["traceEvents"].append(event | {"args": {"device": 0, "stream": 7, "correlation": 200 + number}})
    path = context.tmp_path / "complete.json"
    path.write_text(json.dumps(document))
    return path


def _no_savings(context: Context, value: Any) -> None:
    complete = _complete(context)
    for a, b, letter in ((context.file(), complete, "A"), (complete, context.file(), "B")):
        result = published(context, a, b)
        document = result.document
        said = notes(document)["gpu_records_missing"]
        assert all(part in said for part in (f"side {letter}", "2 of 5", "(op0, op1)", "missing data, not savings"))
        assert said in (result.directory / "report.md").read_text()
        assert {f.verdict for f in document.findings} == {"not comparable"}
        marked = {r.ops_a for r in document.regions if r.missing_records == letter.lower()}
        assert marked == {"op0", "op1"}
        unknown = [getattr(r, f"time_ns_{letter.lower()}") for r in document.regions if r.missing_records]
        assert unknown == [None, None]
        rows = {r.name_a: side(r.time_ns, letter) for r in document.rollups["op"]}
        assert rows == {"op0": None, "op1": None, "op2": 20_000.0, "op3": 20_000.0, "op4": 20_000.0}


LOST = Case("72-launches-without-kernels", {"diff_against_a_complete_run": _no_savings})

# --- 41, 47, 50 are claimed by test_faults_energy: what they ask of a diff waits for energy in it ----------------------------------

CASES = (TRUNCATED, NO_EVENTS, METADATA_ONLY, STEPS, BATCH, FUSION, SHUFFLED, LOST)


@pytest.mark.parametrize(("case", "path", "value"), params(*CASES))
def test_value(case: Case, path: str, value: Any, normalized: Normalizer, tmp_path: Path) -> None:
    case.check(Context(case.name, normalized, tmp_path), path, value)


# --- the whole kind --------------------------------------------------------------------------------------------------------------


def without(trace: Trace, lost: set[int], *, length_only: bool = False) -> Trace:
    """A trace whose kernels of some numbers were lost, or lost their length."""
    kernels = [e for e in trace.events if e["cat"] == "kernel"]
    gone = [kernels[number] for number in sorted(lost)]
    if length_only:
        for event in gone:
            del event["dur"]
    else:
        trace.events = [e for e in trace.events if not any(e is g for g in gone)]
    return trace


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of three steps that lost nothing."""
    tmp_path = tmp_path_factory.mktemp("whole")
    out = tmp_path / "run"
    normalize([model(10.0, steps=3).write(tmp_path / "c.json")], out, keep_raw=False)
    return out


@settings(max_examples=12, deadline=None)
@given(
    lost=st.sets(st.integers(0, 17), min_size=1), slower=st.booleans(), length_only=st.booleans(), swap=st.booleans()
)
def test_lost_records_never_make_a_side_look_cheap(
    tmp_path_factory: pytest.TempPathFactory, whole: Path, lost: set[int], slower: bool, length_only: bool, swap: bool
) -> None:
    """Whatever is lost of three steps of three layers: the side that lost it wins nowhere.

    A step of which nothing is left is not compared.
    """
    tmp_path = tmp_path_factory.mktemp("lost")
    partial = without(model(30.0 if slower else 10.0, steps=3), lost, length_only=length_only).write(
        tmp_path / "p.json"
    )
    a, b = (whole, partial) if swap else (partial, whole)
    letter = "b" if swap else "a"
    settings_ = DiffSettings(all_steps=True)
    if len(lost) == 18:
        with pytest.raises(NotComparableError):
            compare(a, b, tmp_path / "out", settings_)
        return
    document = compare(a, b, tmp_path / "out", settings_).document
    by_step = Counter(number // 6 for number in lost)
    assert ("steps_without_records" in notes(document)) == (6 in by_step.values() and not length_only)
    compared = sum(count for count in by_step.values() if count < 6)
    assert notes(document).get("gpu_records_missing", "side X: 0 of").split()[2] == str(compared)
    groups = {g.group_id: g for g in document.groups}
    for finding in document.findings:
        if finding.verdict == "inconclusive":
            group = groups[finding.group_id]
            assert finding.costly_side == letter or letter not in (group.missing_records or "")
            assert slower or finding.costly_side == letter
    for region in document.regions:
        time = getattr(region, f"time_ns_{letter}")
        assert time is None or time > 0 or not region.missing_records


def test_records_lost_in_a_step_that_is_not_compared_do_not_matter(tmp_path: Path) -> None:
    partial = without(model(10.0, steps=3), {0, 1}).write(tmp_path / "p.json")
    document = compare(partial, model(10.0, steps=3).write(tmp_path / "c.json"), tmp_path / "out").document
    assert "gpu_records_missing" in notes(document)
    document = compare(partial, tmp_path / "c.json", tmp_path / "out", SKIP).document
    assert "gpu_records_missing" not in notes(document)
    assert document.totals["time_ns"].delta == 0.0


def test_host_time_is_no_stand_in_for_kernels_that_were_lost(tmp_path: Path) -> None:
    sides = [without(model(us), set(range(6))).write(tmp_path / f"{us}.json") for us in (10.0, 20.0)]
    document = compare(*sides, tmp_path / "out").document
    assert "6 of 6" in notes(document)["gpu_records_missing"]
    assert {f.verdict for f in document.findings} <= {"not comparable"}


def test_work_lost_under_another_structure_is_found_by_its_name(tmp_path: Path) -> None:
    """A few operators of many, on the side that has no modules for them to be aligned by."""
    sides = []
    for name, drop in (("a", True), ("b", False)):
        trace = Trace()
        for step in range(5):
            with trace.step(step):
                for number in range(20):
                    trace.op(f"aten::op{number}", 10.0, [[8, number + 2]])
                if drop:
                    trace.op("aten::unrelated", 5.0, [[3, 3]])
        if drop:
            trace.events = [e for e in trace.events if e["name"] != "aten_op7_kernel"]
        sides.append(trace.write(tmp_path / f"{name}.json"))
    document = compare(*sides, tmp_path / "out").document
    [found] = [g for g in document.groups if "op7" in str(g.ops_b)]
    assert found.missing_records == "a"
    assert {f.verdict for f in document.findings if f.group_id == found.group_id} == {"not comparable"}
    assert {f.verdict for f in document.findings if f.group_id != found.group_id} == {"inconclusive"}
