"""Several captures in one run of the program, and steps that the program marks."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from magneton.flows.api import normalize
from magneton.schemas.manifest import read_manifest
from magneton.schemas.tables.parquet import read_table

pytestmark = pytest.mark.torch


def record(tmp_path: Path, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(textwrap.dedent(script))
    command = [sys.executable, "-m", "magneton.cli", "record", "-o", "r", *options, "--", sys.executable, "program.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    normalize([tmp_path / "r"], tmp_path / "n")
    return done


def rows(tmp_path: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_table(tmp_path / "n" / "tables" / f"{table}.parquet", table).to_pylist()
    return found


def test_captures_joined_by_a_comma_share_a_run(tmp_path: Path) -> None:
    script = """
        import torch
        net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
        with torch.no_grad():
            for _ in range(20):
                net(torch.ones(4, 8))
        print("ran")
    """
    done = record(tmp_path, script, "--captures", "energy,profile,values", "--steps", "4")
    assert done.stdout == "ran\n"
    manifest = read_manifest(tmp_path / "r")
    assert {c.kind for c in manifest.captures} == {"energy", "profile", "values"} and not manifest.incomplete
    assert any("the command ran once." in note for note in manifest.notes)
    kinds = [s["kind"] for s in rows(tmp_path, "steps")]
    assert kinds.count("bare_step") == kinds.count("profiler_step") == 4
    values = [op["name"] for op in rows(tmp_path, "ops") if op["capture"] == "values"]
    assert values.count("aten::gelu") == 1


def test_a_program_without_modules_marks_its_steps(tmp_path: Path) -> None:
    script = """
        import torch
        from magneton.collectors import record
        x = torch.ones(8, 8)
        for _ in range(12):
            for _ in range(3):
                x = torch.tanh(x @ x)
            record.step()
    """
    record(tmp_path, script, "--capture", "profile", "--capture", "values")
    assert any("steps that the program marks" in note for note in read_manifest(tmp_path / "r").notes)
    values = [op["name"] for op in rows(tmp_path, "ops") if op["capture"] == "values"]
    assert values.count("aten::mm") == values.count("aten::tanh") == 3
    assert len([s for s in rows(tmp_path, "steps") if s["kind"] == "profiler_step"]) == 5
