"""Inputs from tries and public reports that were aligned wrongly once; the right values came with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.normalized import Normalizer

from magneton.analysis.diff.document import DiffResult
from magneton.analysis.diff.pipeline import diff
from magneton.analysis.diff.settings import DiffSettings
from magneton.analysis.recording import Recording

FOUND = Path(__file__).resolve().parents[2] / "found"


@pytest.fixture
def compared(normalized: Normalizer):  # type: ignore[no-untyped-def]
    def between(a: str, b: str) -> DiffResult:
        sides = [Recording.open(normalized(FOUND / name).path) for name in (a, b)]
        return diff(sides[0], sides[1], DiffSettings(), "test")

    return between


def test_the_profilers_defaults_align(compared) -> None:  # type: ignore[no-untyped-def]
    """Neither shapes nor stacks: everything but attention aligns by order and name, attention is several against one."""
    document = compared("default-profile/eager.json.gz", "default-profile/fused.json.gz").document
    assert min(document.coverage.a, document.coverage.b) >= 0.99
    fused = [r for r in document.regions if r.ops_b == "aten::_scaled_dot_product_flash_attention_for_cpu"]
    assert len(fused) == 12
    assert all("aten::bmm x2" in (r.ops_a or "") and "aten::_softmax" in (r.ops_a or "") for r in fused)
    others = [r for r in document.regions if r.ops_b != "aten::_scaled_dot_product_flash_attention_for_cpu"]
    assert all(r.ops_a == r.ops_b for r in others)


def test_hashes_are_no_part_of_a_kernels_name(compared) -> None:  # type: ignore[no-untyped-def]
    document = compared("hash-in-kernel-names/a.json", "hash-in-kernel-names/b.json").document
    assert (document.coverage.a, document.coverage.b) == (1.0, 1.0)
    changed = [group for group in document.groups if group.time_ns.a != group.time_ns.b]
    assert [(g.time_ns.a, g.time_ns.b) for g in changed] == [(400_000.0, 320_000.0)]
    assert len(document.rollups["op"]) == 3


@pytest.mark.parametrize(("a", "b"), [("run0", "run1"), ("run0_annot", "run1_annot"), ("run0", "run1_samehash")])
def test_hashes_are_no_part_of_a_compiled_regions_name(compared, a: str, b: str) -> None:  # type: ignore[no-untyped-def]
    document = compared(f"compiled-hash-names/{a}.json", f"compiled-hash-names/{b}.json").document
    assert (document.coverage.a, document.coverage.b) == (1.0, 1.0)
    assert document.findings == []


@pytest.mark.parametrize(
    ("a", "b", "right"), [("slow", "fast", -200_000), ("fast", "faster", -300_000), ("slow", "faster", -500_000)]
)
def test_the_own_time_of_an_operator_that_calls_others_counts(compared, a: str, b: str, right: int) -> None:  # type: ignore[no-untyped-def]
    """A compiled region works by itself and calls a matrix product: its own time is a row, on both sides."""
    document = compared(f"cpu-own-time-of-parent/{a}.json", f"cpu-own-time-of-parent/{b}.json").document
    assert document.totals["time_ns"].delta == right
    (changed,) = [g for g in document.groups if g.time_ns.delta and g.kernel_class_a == "cpu"]
    assert changed.kind == "paired" and changed.time_ns.delta == right
