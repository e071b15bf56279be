"""Dependencies: lowest versions, extras, which tests need a framework, and the workflow of the hosted machines."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

FRAMEWORKS = {
    "torch": "torch",
    "transformers": "torch",
    "jax": "systems",
    "onnx": "systems",
    "onnxruntime": "systems",
    "tensorflow": "systems",
}


def pyproject(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text())


# --- the lowest versions ---------------------------------------------------------------------------------------------


def lowest(root: Path, file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / ".ci" / "lowest.py"), str(file)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_lowest_versions_are_the_bounds_of_pyproject(root: Path) -> None:
    pins = dict(line.split("==") for line in lowest(root, root / "pyproject.toml").stdout.splitlines())
    stated = dict(re.split(">=", d.split(",")[0]) for d in pyproject(root)["project"]["dependencies"])
    assert pins == stated and pins["pyarrow"] == "20"


def test_a_dependency_without_a_lower_bound_is_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["numpy>=1.26", "rich<16"]\n')
    done = lowest(root, tmp_path / "pyproject.toml")
    assert done.returncode == 1 and "'rich<16' has no lower bound" in done.stderr


def test_no_second_list_of_lowest_versions(root: Path) -> None:
    """The environment of ``make test-lowest`` takes its versions from the script and nothing else."""
    rule = (root / "Makefile").read_text().split("$(VENV)-lowest/.ready:")[1].split("\n\n")[0]
    assert ".ci/lowest.py pyproject.toml > $(VENV)-lowest/constraints.txt" in rule
    assert "--constraint $(VENV)-lowest/constraints.txt" in rule
    assert "==" not in rule


# --- extras ----------------------------------------------------------------------------------------------------------


def test_every_framework_and_vendor_has_an_extra(root: Path) -> None:
    extras = pyproject(root)["project"]["optional-dependencies"]
    assert set(extras) == {"torch", "jax", "onnx", "tensorflow", "nvidia", "amd", "examples"}
    assert all(">=" in requirement for extra in extras.values() for requirement in extra)


def test_every_extra_that_is_named_exists(root: Path) -> None:
    extras = set(pyproject(root)["project"]["optional-dependencies"])
    named: dict[str, set[str]] = {}
    files = [p for folder in ("collectors", "cli", "tests", "docs", "examples") for p in (root / folder).rglob("*.*")]
    for path in [*files, root / "README.md", root / "CONTRIBUTING.md"]:
        if path.suffix in {".py", ".md"} and "cases" not in path.parts:
            for extra in re.findall(r"magneton\[([a-z]+)\]|\bextra=\"([a-z]+)\"", path.read_text()):
                named.setdefault("".join(extra), set()).add(path.name)
    assert set(named) <= extras, named
    # Where a framework is missing, the error says which extra brings it.
    assert {"torch", "jax", "onnx", "tensorflow", "nvidia", "amd"} <= set(named)


# --- which tests need a framework ------------------------------------------------------------------------------------


def frameworks_of(path: Path) -> Iterator[str]:
    """Yield the frameworks that a file imports, or skips its tests without."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and "importorskip" in ast.unparse(node.func) and node.args:
            names = [str(ast.literal_eval(node.args[0]))]
        yield from (top for name in names if (top := name.partition(".")[0]) in FRAMEWORKS)


def supports_of(path: Path) -> Iterator[str]:
    """Yield the modules of ``tests/support`` that a file imports."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests.support."):
            yield str(node.module).removeprefix("tests.support.")


def test_a_test_file_that_needs_a_framework_is_marked(root: Path) -> None:
    """The core's tests run without any framework: what needs one is chosen by its marker, not by its name."""
    tests = root / "tests"
    support = {p.stem: set(frameworks_of(p)) for p in (tests / "support").glob("*.py")}
    unmarked = {}
    for path in sorted(tests.rglob("test_*.py")):
        needed = set(frameworks_of(path)).union(*(support.get(name, set()) for name in supports_of(path)))
        wanted = {FRAMEWORKS[name] for name in needed}
        marked = set(re.findall(r"^pytestmark = .*?\bmark\.(torch|systems)\b", path.read_text(), re.M))
        if wanted - marked:
            unmarked[str(path.relative_to(root))] = wanted - marked
    assert unmarked == {}


# --- the workflow of the hosted machines -----------------------------------------------------------------------------


@pytest.fixture
def jobs(root: Path) -> dict[str, Any]:
    workflow = yaml.safe_load((root / ".github" / "workflows" / "ci.yml").read_text())
    found: dict[str, Any] = workflow["jobs"]
    return found


def commands(job: dict[str, Any]) -> list[str]:
    return [line for step in job["steps"] for line in step.get("run", "").splitlines()]


def test_the_workflow_runs_targets_that_exist(root: Path, jobs: dict[str, Any]) -> None:
    targets = set(re.findall(r"^\.PHONY: (.+)$", (root / "Makefile").read_text(), re.M))
    for job in jobs.values():
        assert job["runs-on"] and job["timeout-minutes"]
        for command in commands(job):
            make, target = shlex.split(command)
            assert make == "make" and target in targets


def test_the_workflow_checks_every_python_and_the_lowest_versions(root: Path, jobs: dict[str, Any]) -> None:
    assert jobs["core"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert [c.split()[1] for c in commands(jobs["core"])] == ["dev", "lint", "test", "diff"]
    assert commands(jobs["lowest"]) == ["make test-lowest"]
    lowest_python = pyproject(root)["project"]["requires-python"].removeprefix(">=")
    setup = next(s for s in jobs["lowest"]["steps"] if "setup-python" in s.get("uses", ""))
    assert setup["with"]["python-version"] == lowest_python == jobs["core"]["strategy"]["matrix"]["python"][0]
