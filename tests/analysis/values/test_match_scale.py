"""The synthetic value tables of the scale benchmark: right answers are known, small sizes are quick."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.match_scale import Case, exponent, measure, print_rows
from benchmarks.matching.curve import plot


@pytest.mark.parametrize("close", [False, True])
def test_common_values_are_matched_with_their_like(close: bool) -> None:
    row = measure(Case("small", 3, 4, close))
    assert row["right"] == 1
    assert row["wrong"] == 0
    assert row["ops_a"] > row["ops_b"] > 200
    assert row["peak_bytes"] >= row["tables_bytes"] > 0


def test_the_exponent_is_the_slope() -> None:
    rows = [{"ops_a": n, "ops_b": n, "match_seconds": n**1.5} for n in (10, 100, 1000)]
    assert exponent(rows) == pytest.approx(1.5)


def test_the_curve_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [measure(Case(str(n), 2, n)) for n in (2, 3, 4)]
    print_rows(rows)
    printed = capsys.readouterr().out
    assert "to the power of" in printed
    assert "100.0%" in printed


def test_the_curve_is_drawn() -> None:
    rows = [
        {"case": f"{n}{c}", "ops_a": n, "ops_b": n, "match_seconds": n / 2e4}
        for n in (1e3, 1e5)
        for c in ("", " close")
    ]
    picture = ElementTree.fromstring(plot(rows))  # noqa: S314
    lines = picture.findall("{*}polyline")
    assert len(lines) == 2
    first, last = (tuple(map(float, point.split(","))) for point in lines[0].attrib["points"].split())
    assert first[0] < last[0] and first[1] > last[1]


@pytest.mark.slow
def test_cases_run_in_processes_of_their_own(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.match_scale", "--only", "1,000", "--json"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    rows = {row["case"]: row for row in json.loads(done.stdout)}
    assert rows["1,000"]["right"] == 1
    assert rows["1,000 close"]["wrong"] == 0
