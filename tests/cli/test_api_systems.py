"""Tables as data frames, where pandas is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.analysis.diff.test_diff import model

pandas = pytest.importorskip("pandas", reason="pandas is not installed (pip install pandas)")

pytestmark = pytest.mark.systems

from magneton.flows import diff, measure, normalize, open_runs  # noqa: E402


def test_every_result_becomes_a_data_frame(tmp_path: Path) -> None:
    """Times stay whole numbers of nanoseconds, and unknown stays unknown."""
    model(10.0, steps=3).write(tmp_path / "a.json")
    model(12.5, steps=3).write(tmp_path / "b.json")
    run = normalize(tmp_path / "a.json", tmp_path / "run")
    kernels = run.df("kernels")
    assert isinstance(kernels, pandas.DataFrame)
    assert len(kernels) == run.table("kernels").num_rows == 18
    assert kernels["dur_ns"].tolist() == run.table("kernels")["dur_ns"].to_pylist()
    assert kernels["dur_ns"].dtype == "int64"
    found = diff(tmp_path / "run", tmp_path / "b.json", out=tmp_path / "out")
    assert found.df("regions")["time_ns_a"].sum() == found.document.totals["time_ns"].a == 36_000
    with open_runs(tmp_path / "run") as runs:
        rows = runs.sql("SELECT name, NULL::DOUBLE AS nothing FROM kernels ORDER BY ts_ns LIMIT 2").df()
        assert list(rows.columns) == ["name", "nothing"]
        assert rows["nothing"].isna().all()
        assert len(runs.df("steps")) == 3
    measured = measure(tmp_path / "run")
    assert len(measured.df("quantities")) == measured.table("quantities").num_rows
