"""The Makefile hands names on exactly as they were typed, installs once, and explains itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")

HOSTILE = [
    "plain",
    "two words",
    "it's",
    'say "hi"',
    "cash $HOME $$ $(shell touch pwned) ${PATH} `touch pwned`",
    "-rf",
    "--help",
    "glob [1]*?",
    "semi;colon & | > pwned",
    "ünïcödé 数据",
    "back\\slash",
    "hash # mark",
    "per%cent = sign",
    "$(touch pwned)",
]

FAKE_PYTHON = """#!/bin/sh
[ "$1" = -m ] && [ "$2" = pip ] && { echo "$*" >> installs; exit 0; }
printf '%s\\0' "$@" > arguments
env > environment
"""


@pytest.fixture
def project(tmp_path: Path, root: Path) -> Path:
    """A project with the real Makefile and an environment that writes down what it is asked to do."""
    shutil.copy(root / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").write_text(FAKE_PYTHON)
    (binaries / "python").chmod(0o755)
    return tmp_path


def make(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("RUN_A", "RUN_B", "OUT", "MAKEFLAGS", "MAKELEVEL")}
    return subprocess.run(
        ["make", *arguments], cwd=project, env={**kept, **environment}, capture_output=True, text=True, timeout=60
    )


def arguments(project: Path) -> list[str]:
    return (project / "arguments").read_bytes().decode().split("\0")[:-1]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_on_the_command_line_arrive_as_typed(project: Path, name: str) -> None:
    done = make(project, "diff", f"RUN_A={name}", f"RUN_B={name}2", f"OUT={name}3")
    assert done.returncode == 0, done.stderr
    assert arguments(project) == ["-m", "magneton.cli", "diff", "-o", f"{name}3", "--", name, f"{name}2"]
    assert not (project / "pwned").exists()


@pytest.mark.parametrize("name", HOSTILE)
def test_names_in_the_environment_arrive_as_set(project: Path, name: str) -> None:
    done = make(project, "diff", RUN_A=name, RUN_B=f"{name}2")
    assert done.returncode == 0, done.stderr
    assert arguments(project) == ["-m", "magneton.cli", "diff", "--", name, f"{name}2"]
    assert not (project / "pwned").exists()


def test_without_names_the_shipped_recordings_are_compared(project: Path) -> None:
    assert make(project, "diff").returncode == 0
    assert arguments(project)[-2:] == ["examples/recordings/gpt2-hf", "examples/recordings/gpt2-fused"]


def test_nothing_is_installed_twice(project: Path) -> None:
    assert make(project, "diff").returncode == 0
    core = (project / "installs").read_text()
    assert "--editable ." in core
    assert "--group" not in core
    assert make(project, "diff").returncode == 0
    assert (project / "installs").read_text() == core
    assert make(project, "dev").returncode == 0
    dev = (project / "installs").read_text()
    assert "--group dev" in dev
    assert make(project, "dev", "test").returncode == 0
    assert (project / "installs").read_text() == dev
    later = time.time() + 5
    os.utime(project / "pyproject.toml", (later, later))
    assert make(project, "diff").returncode == 0
    assert (project / "installs").read_text() != dev


def test_tests_keep_compiled_modules_and_write_where_the_user_says(project: Path) -> None:
    assert make(project, "test", PYTHONDONTWRITEBYTECODE="1", TMPDIR="/some/where").returncode == 0
    lines = (project / "environment").read_text().splitlines()
    assert "PYTHONDONTWRITEBYTECODE=" in lines and "TMPDIR=/some/where" in lines
    assert make(project, "diff", PYTHONDONTWRITEBYTECODE="1").returncode == 0
    assert "PYTHONDONTWRITEBYTECODE=1" in (project / "environment").read_text().splitlines()


def test_an_interpreter_too_old_is_named(project: Path) -> None:
    old = project / "old"
    old.write_text('#!/bin/sh\necho "Python 3.11 or newer is needed" >&2\nexit 1\n')
    old.chmod(0o755)
    done = make(project, "diff", "PYTHON=./old")
    assert done.returncode == 2
    assert "3.11 or newer" in done.stderr
    assert not (project / "installs").exists()


def test_help_names_every_target(root: Path, project: Path) -> None:
    phony = set(re.findall(r"^\.PHONY: (.+)$", (root / "Makefile").read_text(), re.M))
    shown = make(project).stdout
    assert phony == set(re.findall(r"^  make ([a-z-]+) +\S", shown, re.M)) | {"help"}
    assert {"help", "diff", "dev", "test", "test-slow", "lint", "format", "docs", "clean"} <= phony


def test_ci_runs_what_a_change_must_pass(root: Path) -> None:
    script = root / ".ci" / "run"
    assert os.access(script, os.X_OK)
    text = script.read_text()
    assert "set -euo pipefail" in text
    for target in ("dev", "lint", "test", "test-slow", "diff"):
        assert re.search(rf"^make {target}$", text, re.M)
    assert "http" not in text
