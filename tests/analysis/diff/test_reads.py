"""How often a diff reads its tables: each once per side, whatever the parts of the diff want of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.analysis.diff.test_diff import powered
from tests.support.kineto import Trace
from tests.support.normalized import Normalizer

from magneton.analysis.diff.pipeline import diff
from magneton.analysis.diff.settings import DiffSettings
from magneton.analysis.recording import Recording
from magneton.schemas.tables import parquet


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts of Parquet reads by file, of any code that reads with pyarrow."""
    counts: Counter[str] = Counter()

    class Counted(pq.ParquetFile):  # type: ignore[misc]
        def __init__(self, source: object, *given: object, **named: object) -> None:
            super().__init__(source, *given, **named)
            self._what = str(source)

        def read(self, *given: object, **named: object) -> object:
            counts[self._what] += 1
            return super().read(*given, **named)

    def whole(source: object, *given: object, **named: object) -> object:
        counts[str(source)] += 1
        return unwatched(source, *given, **named)

    unwatched = pq.read_table
    monkeypatch.setattr(parquet.pq, "ParquetFile", Counted)
    monkeypatch.setattr(pq, "read_table", whole)
    yield counts


@pytest.mark.parametrize("pair", [("gpt2-hf", "gpt2-fused"), ("llama-hf", "llama-fused")])
def test_shipped_pairs_read_each_table_once(
    root: Path, normalized: Normalizer, reads: Counter[str], pair: tuple[str, str]
) -> None:
    runs = [normalized(root / "examples" / "recordings" / name).path for name in pair]
    reads.clear()
    document = diff(Recording.open(runs[0]), Recording.open(runs[1]), DiffSettings(), "test").document
    assert document.comparison.method == "values"
    assert {Path(path).stem for path in reads} >= {"ops", "captures", "tensors", "uses"}
    assert max(reads.values()) == 1, reads


def test_a_pair_with_power_reads_each_table_once(tmp_path: Path, reads: Counter[str]) -> None:
    runs = powered(tmp_path, "62-diff-different-iterations", "a", "b")
    reads.clear()
    document = diff(Recording.open(runs[0]), Recording.open(runs[1]), DiffSettings(), "test").document
    assert document.a.energy is not None
    assert {Path(path).stem for path in reads} >= {"ops", "kernels", "steps", "power"}
    assert max(reads.values()) == 1, reads


def test_a_table_is_read_once_though_more_is_asked_for_later(
    tmp_path: Path, normalized: Normalizer, reads: Counter[str]
) -> None:
    trace = Trace()
    with trace.step(0):
        trace.op("aten::mm", 5, [[2, 2], [2, 2]])
    recording = Recording.open(normalized(trace.write(tmp_path / "t.json")).path)
    reads.clear()
    recording.expect({"ops": ("name", "rank")}, {"ops": ("op_id", "rank"), "steps": None})
    assert recording.table("ops", ("rank",)).column_names == ["rank"]
    assert recording.table("ops", ("op_id", "name")).column_names == ["op_id", "name"]
    assert recording.of_rank("steps", 0).num_rows == 1
    assert sorted(reads.values()) == [1, 1]
    # What nobody expected is read then, and only that.
    assert recording.table("ops", ("name", "ts_ns")).to_pylist()[0]["name"] == "aten::mm"
    assert recording.table("ops").column_names[:1] == ["run_id"]
    assert recording.table("power", ("value",)).num_rows == 0
