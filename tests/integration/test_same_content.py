"""One content under two names, or in two encodings, is said to be one."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
from tests.analysis.diff.test_diff import model
from typer.testing import CliRunner

from magneton.cli.app import app
from magneton.flows import diff, open_runs

FOUND = Path(__file__).resolve().parents[1] / "found" / "pretty-printed"


@pytest.fixture
def copies(tmp_path: Path) -> list[Path]:
    """The three of ../found: as written, pretty-printed, packed."""
    return [Path(shutil.copy(FOUND / name, tmp_path / name)) for name in ("a.json", "b.json", "c.json.gz")]


def test_a_diff_says_so_and_finds_nothing(copies: list[Path], tmp_path: Path) -> None:
    for other in copies[1:]:
        found = diff(copies[0], other, out=tmp_path / f"out-{other.name}").document
        assert found.comparison.notes[0].code == "same_content"
        assert found.findings == []
        assert {region.delta_ns for region in found.regions} == {0.0}


def test_sql_over_both_says_so(copies: list[Path]) -> None:
    said: list[str] = []
    with open_runs(*copies, report=said.append):
        pass
    assert sum("holds the same content as" in line for line in said) == 2
    result = CliRunner().invoke(app, ["sql", *map(str, copies[:2]), "SELECT count(*) AS n FROM kernels"])
    assert "holds the same content as" in result.stderr


def test_two_runs_of_one_program_are_two(tmp_path: Path) -> None:
    """The same names and numbers of calls, other times."""
    a, b = (model(us).write(tmp_path / f"{us}.json") for us in (10.0, 10.5))
    assert "same_content" not in {note.code for note in diff(a, b, out=tmp_path / "out").document.comparison.notes}
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(a.read_bytes()))
    assert "same_content" in {note.code for note in diff(a, packed, out=tmp_path / "out2").document.comparison.notes}
