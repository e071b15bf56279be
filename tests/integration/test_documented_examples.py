"""Every example of README and docs runs as printed, typed the way a user would type it."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow

PAGES = ["README.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md") if p.name != "formats.md")]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)

# What an example needs beyond the core, by a word in it. The tests of that part run the same commands.
NEEDS = {
    "<this repository>": "a clone from a server",
    "pip install": "a package registry",
    "magneton record": "PyTorch",
    "magneton repeat": "PyTorch or ONNX Runtime",
    "replay_nodes": "ONNX Runtime",
    "from magneton.collectors import Workload": "PyTorch",
}
# Shapes of a command, for reading: words in capitals or brackets stand for others.
_SHAPE = re.compile(r"\[OPTIONS\]|TRACE\.\.\.")


def examples(language: str) -> list[tuple[str, str]]:
    """Pages and their blocks of a language; of shell blocks those that call ``magneton``."""
    found = []
    for page in PAGES:
        for name, text in _BLOCK.findall((ROOT / page).read_text()):
            if name == language and (language or text.startswith("magneton ")):
                found.append((page, text))
    return found


def needed(text: str) -> str | None:
    return next((what for word, what in NEEDS.items() if word in text), None)


SHELL = [(page, line) for page, text in examples("") for line in text.splitlines() if line.startswith("magneton ") and not _SHAPE.search(line)]  # fmt: skip
README_LINES = [
    ("README.md", line)
    for name, text in _BLOCK.findall((ROOT / "README.md").read_text())
    for line in text.splitlines()
    if line.startswith("magneton ") and ("README.md", line) not in SHELL
]
PYTHON = examples("python")


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A directory with the files that the examples name, and a shell in which ``magneton`` is a command."""
    recordings = ROOT / "examples" / "recordings"
    for name, source in {"a": "gpt2-hf", "b": "gpt2-fused", "mine": "gpt2-hf", "other": "gpt2-fused"}.items():
        shutil.copytree(recordings / source, tmp_path / "runs" / name)
    shutil.copy(recordings / "gpt2-hf" / "raw/profile/rank0/torch.pt.trace.json.gz", tmp_path / "trace.json.gz")
    (tmp_path / "question.sql").write_text("SELECT count(*) AS n FROM regions")
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "magneton"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m magneton.cli "$@"\n')
    command.chmod(0o755)
    return tmp_path


def environment(workplace: Path) -> dict[str, str]:
    paths = [str(ROOT / stage) for stage in ("cli", "collectors", "transforms", "analysis", "schemas")]
    return os.environ | {
        "PATH": f"{workplace / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(paths),
        "XDG_CACHE_HOME": str(workplace / "cache"),
    }


def given_files(line: str, workplace: Path) -> None:
    """Make what one example needs before it can be typed."""
    if re.search(r"-o runs/a\b", line) and "normalize" in line:
        shutil.rmtree(workplace / "runs" / "a")
    if "--power" in line:
        case = ROOT / "tests" / "faults" / "cases" / "37-clock-domains"
        (workplace / "trace.json.gz").write_bytes(gzip.compress((case / "trace.json").read_bytes()))
        shutil.copy(case / "power_boottime.csv", workplace / "log.csv")
        shutil.copy(case / "run.json", workplace / "run.json")
        # The trace begins at 06:13:20 UTC, which is 07:13:20 in London in June.
        rows = [f"2024/06/10 07:13:{20 + tenth / 10:06.3f}, 0, GPU, 100.00 W" for tenth in range(31)]
        (workplace / "smi.csv").write_text("timestamp, index, name, power.draw [W]\n" + "\n".join(rows) + "\n")
        counts = {"completed": 1, "total_input_tokens": 4, "total_output_tokens": 4, "duration": 1.0}
        (workplace / "result.json").write_text(json.dumps({"model_id": "model", **counts}))
    if "out/a-vs-b" in line:
        call("magneton diff runs/a runs/b -o out/a-vs-b", workplace)


def call(line: str, workplace: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line], cwd=workplace, env=environment(workplace), capture_output=True, text=True
    )


@pytest.mark.parametrize(("page", "line"), [pair for pair in [*README_LINES, *SHELL] if needed(pair[1]) is None])
def test_a_command_runs_as_printed(page: str, line: str, workplace: Path) -> None:
    given_files(line, workplace)
    done = call(line, workplace)
    assert done.returncode == 0, f"{page}: {done.stderr}"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("page", "text"), [pair for pair in PYTHON if needed(pair[1]) is None])
def test_python_runs_as_printed(page: str, text: str, workplace: Path) -> None:
    before = "import time\nwork = lambda: time.sleep(0.2)\n" if "work()" in text else ""
    (workplace / "example.py").write_text(before + text)
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=workplace, env=environment(workplace), capture_output=True, text=True
    )
    assert done.returncode == 0, f"{page}: {done.stderr}"


def test_there_are_examples() -> None:
    assert len(SHELL) >= 8 and len(PYTHON) >= 8 and len(README_LINES) >= 5
