"""Diffs of real recordings against the right values of FACTS.md and against hand-made labels."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from tests.support.facts import NAME_CHARS, parse
from tests.support.normalized import Normalizer

from magneton.analysis.diff.document import DiffResult
from magneton.analysis.diff.pipeline import diff
from magneton.analysis.diff.settings import DiffSettings
from magneton.analysis.recording import Recording
from magneton.schemas.documents.diff import DiffDocument, RollupRow
from magneton.schemas.errors import NotComparableError

H100, MI300 = "torch_infer_h100_mi300/{}_h100.json.gz", "torch_infer_h100_mi300/{}_mi300.json.gz"
PAIRS = {
    "qwen": (H100.format("qwen1.5_0.5b"), MI300.format("qwen1.5_0.5b")),
    "timesformer": (H100.format("timesformer"), MI300.format("timesformer")),
    "bert": (H100.format("bert_small"), MI300.format("bert_small")),
    "hta": ("torch/hta_control.json.gz", "torch/hta_test.json.gz"),
    "flux": ("xdit/flux1_capture.json.gz", "xdit/flux1_aiter_sage_capture.json.gz"),
    "alexnet": ("torch/aa_alexnet_run1.json.gz", "torch/aa_alexnet_run2.json.gz"),
    "unrelated": (H100.format("bert_small"), H100.format("qwen1.5_0.5b")),
}


class Diffs:
    """Diffs of pairs of shared traces, each made once."""

    def __init__(self, shared: Path, normalized: Normalizer) -> None:
        self.shared = shared
        self.normalized = normalized
        self._done: dict[tuple[str, bool], DiffResult] = {}

    def recording(self, name: str) -> Recording:
        """The normalised recording of a trace."""
        return Recording.open(self.normalized(self.shared / "traces" / name).path)

    def __call__(self, pair: str, swapped: bool = False) -> DiffResult:
        if (pair, swapped) not in self._done:
            a, b = (self.recording(name) for name in PAIRS[pair])
            self._done[pair, swapped] = (
                diff(b, a, DiffSettings(), "test") if swapped else diff(a, b, DiffSettings(), "test")
            )
        return self._done[pair, swapped]


@pytest.fixture(scope="module")
def diffs(shared: Path, normalized: Normalizer) -> Diffs:
    return Diffs(shared, normalized)


def printed(ns: float, like: str) -> str:
    """A time in ms with as many decimals as the facts print."""
    return f"{ns / 1e6:.{-Decimal(like).as_tuple().exponent}f}"


@pytest.mark.parametrize("pair", ["qwen", "timesformer", "bert", "flux", "alexnet", "hta"])
def test_totals_are_the_right_ones(diffs: Diffs, pair: str) -> None:
    document = diffs(pair).document
    facts = {f.path: f.values for f in parse(diffs.shared)}
    for side, path in zip((document.a, document.b), PAIRS[pair], strict=True):
        right = facts[path]
        assert printed(side.inventory["time_ns"], right["kern_ms"]) == right["kern_ms"]
        assert printed(side.inventory["device_ns"], right["gpu_ms"]) == right["gpu_ms"]
        assert printed(side.inventory["linked_time_ns"], right["linked_kern_ms"]) == right["linked_kern_ms"]
        assert side.inventory["n_kernels"] == int(right["n_kern"])
        used = document.totals["time_ns"].a if side is document.a else document.totals["time_ns"].b
        assert used is not None
        # Everything linked lies in the steps, all of which are used.
        assert used * side.step_time.n_steps == pytest.approx(side.inventory["linked_time_ns"], rel=1e-9)


@pytest.mark.parametrize("pair", ["qwen", "timesformer", "bert", "flux", "alexnet", "hta"])
def test_operators_cost_what_the_facts_say(diffs: Diffs, pair: str) -> None:
    document = diffs(pair).document
    facts = {f.path: f.op_ms for f in parse(diffs.shared)}
    rows = {row.name_a or row.name_b: row for row in document.rollups["op"]}
    checked = 0
    for side, path in zip("ab", PAIRS[pair], strict=True):
        steps = (document.a if side == "a" else document.b).step_time.n_steps
        for name, (ms, count) in facts[path].items():
            if name.startswith("<") or count == 0:
                continue
            row: RollupRow = next(r for n, r in rows.items() if n and n[:NAME_CHARS] == name[:NAME_CHARS])
            total = sum(getattr(amount, side) or 0.0 for amount in (row.time_ns, row.transfer_ns)) * steps
            assert float(printed(total, ms)) == pytest.approx(
                float(ms), abs=1.5 * 10 ** Decimal(ms).as_tuple().exponent
            ), name
            assert (getattr(row.launches, side) or 0.0) * steps == pytest.approx(count), name
            checked += 1
    assert checked >= 8


@pytest.mark.parametrize(("pair", "least"), [("qwen", 0.95), ("timesformer", 0.95), ("bert", 0.95), ("hta", 0.90)])
def test_coverage(diffs: Diffs, pair: str, least: float) -> None:
    """Of the kernels that have a launch in the recording, so much is aligned; the others count in the whole."""
    document = diffs(pair).document
    for side, aligned in ((document.a, document.coverage.a), (document.b, document.coverage.b)):
        assert aligned is not None
        linked = side.inventory["linked_time_ns"] / side.inventory["time_ns"]
        assert least * linked <= aligned <= linked + 1e-9


def test_flux_is_slower_with_the_other_attention(diffs: Diffs) -> None:
    document = diffs("flux").document
    assert document.totals["time_ns"].delta_percent == pytest.approx(13.8, abs=0.05)
    assert (document.a.step_time.n_steps, document.b.step_time.n_steps) == (1, 1)


def test_alexnet_against_itself_differs_in_transfers_only(diffs: Diffs) -> None:
    document = diffs("alexnet").document
    assert document.totals["time_ns"].delta_percent == pytest.approx(0.34, abs=0.01)
    assert document.totals["transfer_ns"].delta_percent == pytest.approx(-29.6, abs=0.1)
    assert document.findings == []
    assert (document.coverage.n_only_a, document.coverage.n_only_b) == (0, 0)


def test_other_models_align_nowhere(diffs: Diffs) -> None:
    document = diffs("unrelated").document
    assert max(document.coverage.a or 0.0, document.coverage.b or 0.0) < 0.10
    assert {f.verdict for f in document.findings} == {"not comparable"}


def test_other_serving_load_is_refused(diffs: Diffs) -> None:
    a, b = (diffs.recording(f"vllm/{kind}/replay.json.gz") for kind in ("decode_full", "prefilldecode_piecewise"))
    with pytest.raises(NotComparableError, match=r"A ran decode .*; B ran mixed"):
        diff(a, b, DiffSettings(), "test")


@pytest.mark.parametrize("pair", ["qwen", "hta", "flux", "alexnet", "unrelated"])
def test_swapping_the_sides_swaps_the_result(diffs: Diffs, pair: str) -> None:
    one, other = diffs(pair).document, diffs(pair, swapped=True).document
    assert (one.coverage.a, one.coverage.b) == (other.coverage.b, other.coverage.a)

    def rows(document: DiffDocument, left: str, right: str) -> list[tuple[object, ...]]:
        what = ("module", "ops", "n_kernels", "time_ns")
        found = [tuple(str(getattr(r, f"{w}_{s}")) for s in (left, right) for w in what) for r in document.regions]
        return sorted(found)

    assert rows(one, "a", "b") == rows(other, "b", "a")


@pytest.mark.parametrize(
    "name", ["torch/hta_test.json.gz", "torch/mi300x_resnet_act_checkpoint_rank0.json.gz", H100.format("qwen1.5_0.5b")]
)
def test_a_run_against_itself(diffs: Diffs, name: str) -> None:
    recording = diffs.recording(name)
    document = diff(recording, recording, DiffSettings(), "test").document
    assert document.findings == []
    assert {r.delta_ns for r in document.regions} == {0.0}
    assert (document.coverage.n_only_a, document.coverage.n_only_b) == (0, 0)


def test_regions_hold_all_of_the_work(diffs: Diffs) -> None:
    for pair in ("qwen", "hta", "flux"):
        document = diffs(pair).document
        for side in "ab":
            for what in ("time_ns", "transfer_ns", "share_ns"):
                total = getattr(document.totals[what], side)
                assert sum(getattr(r, f"{what}_{side}") or 0.0 for r in document.regions) == pytest.approx(
                    total, rel=1e-9
                )
            for rows in document.rollups.values():
                total = getattr(document.totals["time_ns"], side)
                assert sum(getattr(r.time_ns, side) or 0.0 for r in rows) == pytest.approx(total, rel=1e-9)


def test_labels_of_qwen(diffs: Diffs, root: Path) -> None:
    """At least 95 % of the hand-labelled correspondences are exactly a region, or lie in one that holds nothing else."""
    labels = json.loads((root / "tests" / "support" / "labels" / "qwen15_h100_mi300.json").read_text())
    result = diffs("qwen")
    region_of: dict[tuple[str, int], int] = {}
    for row in result.tables["matches"][1].to_pylist():
        if row["op_id"] is not None:
            region_of[row["side"], row["op_id"]] = row["region_id"]
    regions: dict[int, set[tuple[str, int]]] = {}
    for call, region in region_of.items():
        regions.setdefault(region, set()).add(call)
    calls = {side: _calls(diffs.recording(name)) for side, name in zip("ab", PAIRS["qwen"], strict=True)}
    met = 0
    for label in labels:
        wanted = {
            (side, calls[side][op["op"], int(Decimal(op["ts_us"]) * 1000)]) for side in "ab" for op in label[side]
        }
        found = {region_of[call] for call in wanted}
        met += len(found) == 1 and regions[next(iter(found))] == wanted
    assert len(labels) > 1000
    assert met / len(labels) >= 0.95, met


def _calls(recording: Recording) -> dict[tuple[str, int], int]:
    """Operator calls by name and start in ns, which is the exact text of the trace times 1000."""
    rows = recording.table("ops", ("op_id", "name", "ts_ns")).to_pylist()
    return {(row["name"], row["ts_ns"]): row["op_id"] for row in rows}
