"""The benchmark of alignment in small: a made trace of six steps, edited, and aligned with itself as its truth says."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import alignment
from tests.support.kineto import Trace

LAYER = (
    ("aten::native_layer_norm", 4.0, [[4, 64]]),
    ("aten::addmm", 20.0, [[64], [4, 64], [64, 64]]),
    ("aten::bmm", 9.0, [[8, 4, 8], [8, 8, 4]]),
    ("aten::_softmax", 3.0, [[8, 4, 4]]),
    ("aten::mul", 2.0, [[8, 4, 4]]),
    ("aten::gelu", 5.0, [[4, 256]]),
    ("aten::add", 2.0, [[4, 64], [4, 64]]),
)


@pytest.fixture
def bench(tmp_path: Path) -> alignment.Bench:
    made = Trace()
    for step in range(6):
        with made.step(step):
            made.op("aten::embedding", 3.0, [[100, 64], [4]])
            for _ in range(4):
                for name, us, dims in LAYER:
                    made.op(name, us, dims)
            made.op("aten::mm", 30.0, [[4, 64], [64, 100]])
    made.write(tmp_path / "small.json")
    (tmp_path / "work").mkdir()
    return alignment.Bench(tmp_path, tmp_path / "work")


@pytest.mark.parametrize("edit", ["slow class", "drop one", "fuse", "rename kernels", "hold up a step"])
def test_small_edits_are_aligned_as_their_truth_says(bench: alignment.Bench, edit: str) -> None:
    rows = list(bench.rows("small", [edit]))
    assert {row.facts for row in rows} == {alignment.AS_RECORDED, alignment.BARE}
    # Without shapes and modules nothing tells a fused operator from another: where most of a program is fused, little is aligned.
    assert [row.short for row in rows if not (edit == "fuse" and row.facts == alignment.BARE)] == [[]] * (
        2 - (edit == "fuse")
    )
    assert all(row.score is not None and row.score.precision >= alignment.RIGHT for row in rows)


def test_slower_class_is_the_finding(bench: alignment.Bench) -> None:
    for row in bench.rows("small", ["slow class"]):
        assert row.score is not None and row.score.found and row.score.findings == 1
        assert row.score.changed == pytest.approx(1.0, abs=0.001)
