"""A system is one file and one line: the example of docs/adding-a-system.md, run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from magneton.flows.api import normalize
from magneton.schemas.manifest import read_manifest
from magneton.schemas.tables.parquet import read_table

pytestmark = pytest.mark.torch

STAGES = ("cli", "collectors", "transforms", "analysis", "schemas")


@pytest.fixture
def extended(root: Path, tmp_path: Path) -> Path:
    """A copy of the product with Nightjar added, and the program that uses it beside it."""
    page = (root / "docs" / "adding-a-system.md").read_text()
    system, program, hooks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    before, added = re.findall(r"^```diff\n(.*?)\n(.*?)\n```", page, re.MULTILINE)[0]
    for stage in STAGES:
        shutil.copytree(root / stage, tmp_path / stage, ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path / "collectors" / "magneton" / "collectors" / "systems"
    assert len(hooks.splitlines()) < 100
    (folder / "nightjar.py").write_text(hooks)
    registry = (folder / "__init__.py").read_text()
    assert registry.count(f"{before[1:]}\n") == 1
    (folder / "__init__.py").write_text(registry.replace(f"{before[1:]}\n", f"{before[1:]}\n{added[1:]}\n"))
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "nightjar.py").write_text(system)
    (tmp_path / "program" / "serve.py").write_text(program)
    return tmp_path


def rows(run: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_table(run / "tables" / f"{table}.parquet", table).to_pylist()
    return found


def test_the_steps_of_the_system_are_those_of_its_engine(extended: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "magneton.cli", "record", "-o", "r", "--steps", "3", "--", sys.executable, "serve.py"],
        cwd=extended / "program",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(extended / stage) for stage in STAGES)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    manifest = read_manifest(extended / "program" / "r")
    assert not manifest.incomplete, manifest.notes
    assert (manifest.system.name, manifest.workload.model) == ("nightjar", "nightjar-tiny")
    assert any("steps of the engine" in note for note in manifest.notes)
    normalize([extended / "program" / "r"], extended / "n")
    bare = [s for s in rows(extended / "n", "steps") if s["kind"] == "bare_step"]
    assert [s["phase"] for s in bare] == ["prefill", "decode", "decode"]
    assert [(s["context_tokens"], s["generation_tokens"]) for s in bare] == [(16, 0), (0, 2), (0, 2)]
    values = [op["name"] for op in rows(extended / "n", "ops") if op["capture"] == "values"]
    assert values.count("aten::embedding") == 1 and values.count("aten::addmm") == 2, "one step: both modules, once"
