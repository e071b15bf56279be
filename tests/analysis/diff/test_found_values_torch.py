"""Programs whose diff by value was worse than the diff by structure; the right values came with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed (pip install 'magneton[torch]')")

pytestmark = pytest.mark.torch

from magneton.flows.pairs import compare  # noqa: E402
from magneton.schemas.documents.diff import DiffDocument  # noqa: E402
from magneton.schemas.kinds import Method  # noqa: E402

FOUND = Path(__file__).resolve().parents[2] / "found"


def recorded(out: Path, program: Path, *arguments: str) -> Path:
    """Record a program as a user does."""
    command = [
        sys.executable,
        "-m",
        "magneton.cli",
        "record",
        "--capture",
        "profile",
        "--capture",
        "values",
        "-o",
        str(out),
    ]
    done = subprocess.run([*command, "--", sys.executable, str(program), *arguments], capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return out


def compared(a: Path, b: Path) -> DiffDocument:
    return compare(a, b, a.parent / "diff").document


def test_one_program_twice_with_unseeded_dropout(tmp_path: Path) -> None:
    """By value the random parts differ, structure fills in, and a line says that the program draws random numbers."""
    program = FOUND / "unseeded-dropout" / "program.py"
    document = compared(recorded(tmp_path / "a", program), recorded(tmp_path / "b", program))
    assert document.comparison.method == Method.VALUES
    assert min(document.coverage.a or 0, document.coverage.b or 0) >= 0.98
    assert document.findings == []
    notes = {note.code: note.message for note in document.comparison.notes}
    assert "low_coverage" not in notes
    assert "draws random numbers" in notes["random_numbers"]
    # What comes before the first dropout is the same by value, what comes after it only by structure.
    evidence = [(region.ops_a, "values" in (region.evidence or "")) for region in document.regions]
    assert any(by_value for _, by_value in evidence)
    assert not any(by_value for ops, by_value in evidence if "bernoulli" in (ops or ""))


def test_nan_is_said_of_either_side(tmp_path: Path) -> None:
    """Rows that are masked whole: matched through the softmax, and the diff says where NaN appear first."""
    program = FOUND / "nan-rows" / "program.py"
    document = compared(recorded(tmp_path / "a", program, "a"), recorded(tmp_path / "b", program, "b"))
    said = " ".join(note.message for note in document.comparison.notes if note.code == "nan_values")
    assert "side A" in said
    assert "aten::_softmax" in said
    assert "side B" in said
    assert "aten::sub" in said
    softmax = next(region for region in document.regions if region.ops_a == "aten::_softmax")
    assert "aten::exp" in (softmax.ops_b or "")
    assert "values" in (softmax.evidence or "")
    # The own time of `aten::einsum`, where it has any to speak of, belongs to the product within it.
    assert not any("aten::einsum" in (region.ops_b or "") and not region.ops_a for region in document.regions)
