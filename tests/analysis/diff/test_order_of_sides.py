"""The result of a diff does not depend on which side is A, nor on names, blanks and ids of the recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.normalized import Normalizer

from magneton.analysis.diff.pipeline import diff
from magneton.analysis.diff.settings import DiffSettings
from magneton.analysis.recording import Recording
from magneton.flows.pairs import compare
from magneton.schemas.documents.diff import DiffDocument

FOUND = Path(__file__).resolve().parents[2] / "found"
ENERGY = ("energy_j", "energy_low_j", "energy_high_j")
VALUES = (
    *("module", "ops", "n_ops", "n_kernels", "time_ns", "share_ns", "transfer_ns", "bytes", "launches"),
    *("kernel_class", *ENERGY),
)


def document(tmp_path: Path, a: Path, b: Path) -> DiffDocument:
    return compare(a, b, tmp_path / f"{a.stem}-{b.stem}").document


def regions(found: DiffDocument, left: str = "a", right: str = "b") -> list[str]:
    """Regions without their numbers; with ``left="b", right="a"`` as they are from the other side."""
    other = {"paired": "paired", f"only_{left}": "only_a", f"only_{right}": "only_b"}
    rows = []
    for region in found.regions:
        values = [getattr(region, f"{value}_{side}") for side in (left, right) for value in VALUES]
        delta = region.delta_ns if left == "a" else -region.delta_ns
        rows.append(
            str(
                (other[region.kind], region.stratum, *values, region.score, region.evidence, region.coarse, delta + 0.0)
            )
        )
    return sorted(rows)


def groups(found: DiffDocument, left: str = "a", right: str = "b") -> list[str]:
    return sorted(
        str((getattr(g.time_ns, left), getattr(g.time_ns, right), g.n_regions, g.evidence, g.score))
        for g in found.groups
    )


def mirrored(one: DiffDocument, other: DiffDocument) -> None:
    """Check that a diff and that of the swapped sides say the same."""
    assert regions(one) == regions(other, "b", "a")
    assert groups(one) == groups(other, "b", "a")
    assert (one.coverage.a, one.coverage.b) == (other.coverage.b, other.coverage.a)
    assert sorted(f.verdict for f in one.findings) == sorted(f.verdict for f in other.findings)
    assert [n.code for n in one.comparison.notes] == [n.code for n in other.comparison.notes]


def without_names(found: DiffDocument) -> dict[str, Any]:
    """The document without what names the recordings."""
    kept = msgspec.to_builtins(found)
    del kept["diff_id"]
    for side in "ab":
        del kept[side]["run_id"], kept[side]["label"]
    return kept  # type: ignore[no-any-return]


def test_blanks_at_the_end_of_a_trace_change_nothing(tmp_path: Path) -> None:
    case = FOUND / "hash-decides"
    first, *others = [document(tmp_path, case / f"{name}.json", case / "b.json") for name in ("a0", "a2", "a3")]
    for other in others:
        assert without_names(other) == without_names(first)
    assert {(r.kind, r.delta_ns) for r in first.regions} == {("paired", 0.0)}
    assert sorted((r.ops_a, r.ops_b, r.time_ns_a, r.time_ns_b) for r in first.regions) == [
        ("aten::bmm", "aten::bmm", 30e3, 30e3),
        ("aten::bmm", "aten::bmm", 50e3, 50e3),
        ("aten::softmax", "aten::softmax", 5e3, 5e3),
    ]
    assert (first.coverage.a, first.coverage.b, first.findings) == (1.0, 1.0, [])
    plain, spaced = [document(tmp_path, case / "a.json", case / f"{name}.json") for name in ("b_space", "b_space2")]
    assert without_names(plain) == without_names(spaced)


@pytest.mark.parametrize(
    ("case", "times"),
    [
        ("swapped-with-shapes", {(30e3, 30e3), (50e3, 50e3)}),
        ("swapped-and-slower", {(30e3, 60e3), (50e3, 50e3)}),
    ],
)
def test_siblings_that_run_in_the_other_order(tmp_path: Path, case: str, times: set[tuple[float, float]]) -> None:
    a, b = FOUND / case / "a.json", FOUND / case / "b.json"
    one, other = document(tmp_path, a, b), document(tmp_path, b, a)
    assert {(r.time_ns_a, r.time_ns_b) for r in one.regions} == times
    mirrored(one, other)


def test_found_pairs_are_mirrored(tmp_path: Path) -> None:
    case = FOUND / "hash-decides"
    for a in ("a", "a0", "a2", "a3"):
        for b in ("b", "b_space"):
            paths = case / f"{a}.json", case / f"{b}.json"
            mirrored(document(tmp_path, *paths), document(tmp_path, *reversed(paths)))


@pytest.mark.parametrize("pair", [("gpt2-hf", "gpt2-fused"), ("llama-hf", "llama-fused"), ("gpt2-hf", "llama-hf")])
def test_shipped_pairs_are_mirrored(root: Path, normalized: Normalizer, pair: tuple[str, str]) -> None:
    a, b = [Recording.open(normalized(root / "examples" / "recordings" / name).path) for name in pair]
    settings = DiffSettings(per="sample")
    mirrored(diff(a, b, settings, "test").document, diff(b, a, settings, "test").document)
