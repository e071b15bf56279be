"""A program whose environment holds PyTorch alone, without pyarrow, msgspec and NumPy, is recorded all the same."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.support.bare_environment import bare_environment

from magneton.flows.api import normalize
from magneton.schemas.manifest import read_manifest
from magneton.schemas.tables.parquet import read_table

pytestmark = pytest.mark.torch

PROGRAM = """
    import importlib.util, sys, torch
    for name in ("pyarrow", "msgspec", "duckdb", *sys.argv[1:]):
        assert importlib.util.find_spec(name) is None, name
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).eval()
    with torch.no_grad():
        for step in range(9):
            y = net(torch.ones(8, 16))
    print(float(y.sum()))
"""


def recorded(python: Path | str, tmp_path: Path, name: str, *absent: str) -> tuple[Path, str]:
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, "-m", "magneton.cli", "record", "-o", str(tmp_path / name), "--", str(python)]
    done = subprocess.run([*command, "program.py", *absent], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path / name, done.stdout


def rows(run: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_table(run / "tables" / f"{table}.parquet", table).to_pylist()
    return found


def test_an_environment_with_torch_and_numpy(tmp_path: Path) -> None:
    python = bare_environment(tmp_path / "env", "torch", "numpy")
    run, printed = recorded(python, tmp_path, "bare")
    alone = subprocess.run([python, "program.py"], capture_output=True, text=True, cwd=tmp_path)
    assert printed == alone.stdout * 3, "what the program writes is what it writes by itself"
    manifest = read_manifest(run)
    assert {c.kind for c in manifest.captures} == {"energy", "profile", "values"}
    assert not manifest.incomplete, manifest.notes
    assert not [file.path for file in manifest.files if not file.path.endswith((".parquet", ".gz"))]
    normalize([run], tmp_path / "n")
    assert sum(op["capture"] == "profile" for op in rows(tmp_path / "n", "ops")) >= 10
    values = [op["name"] for op in rows(tmp_path / "n", "ops") if op["capture"] == "values"]
    assert values.count("aten::addmm") == 2
    sketched = [t for t in rows(tmp_path / "n", "tensors") if t["sketches"]]
    assert len(sketched) >= 4 and all(len(entry["buckets"]) == 64 for t in sketched for entry in t["sketches"])


def test_an_environment_with_torch_alone(tmp_path: Path) -> None:
    python = bare_environment(tmp_path / "env", "torch")
    run, _ = recorded(python, tmp_path, "bare", "numpy")
    manifest = read_manifest(run)
    kinds = {c.kind for c in manifest.captures}
    assert kinds == {"energy", "profile"}
    # Values are looked at with NumPy, which PyTorch does not bring. Where it is missing the recording says so, with the remedy.
    assert manifest.incomplete
    assert any("needs NumPy" in note and "pip install numpy" in note for note in manifest.notes), manifest.notes
    normalize([run], tmp_path / "n")
    assert sum(op["capture"] == "profile" for op in rows(tmp_path / "n", "ops")) >= 10
