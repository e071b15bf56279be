"""The examples of README and docs, and a directory in which they can be typed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("cli", "collectors", "transforms", "analysis", "schemas")
# What docs/adding-a-system.md builds is built and run by tests/integration/test_adding_a_system.py.
_OTHERS = {"formats.md", "adding-a-system.md"}
PAGES = ["README.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md") if p.name not in _OTHERS)]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)

TORCH = "PyTorch"
ONNX = "ONNX Runtime"
# What an example needs beyond the core, by a word in it. The first word that is found decides.
NEEDS = {
    "<this repository>": "a clone from a server",
    "pip install": "a package registry",
    "onnx:": ONNX,
    "replay_nodes": ONNX,
    "magneton record": TORCH,
    "magneton repeat": TORCH,
    "from magneton.collectors import Workload": TORCH,
}
# Shapes of a command, for reading: words in capitals or brackets stand for others.
_SHAPE = re.compile(r"\[OPTIONS\]|TRACE\.\.\.")


def _blocks(language: str) -> list[tuple[str, str]]:
    """Pages and their blocks of a language."""
    return [
        (page, text)
        for page in PAGES
        for name, text in _BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
        if name == language
    ]


def needed(text: str) -> str | None:
    """Return what an example needs beyond the core, or None."""
    return next((what for word, what in NEEDS.items() if word in text), None)


def commands(needs: str | None) -> list[tuple[str, str]]:
    """Return the commands ``magneton ...`` with the page of each, of those that need this beyond the core.

    In the README every line that begins so is a command. On other pages it is one in a block that begins with a command.
    """
    found = [
        (page, line)
        for page, text in _blocks("")
        if page == "README.md" or text.startswith("magneton ")
        for line in text.splitlines()
        if line.startswith("magneton ") and not _SHAPE.search(line)
    ]
    return [pair for pair in found if needed(pair[1]) == needs]


def programs(needs: str | None) -> list[tuple[str, str]]:
    """Return the blocks of Python with the page of each, of those that need this beyond the core."""
    return [pair for pair in _blocks("python") if needed(pair[1]) == needs]


def furnish(folder: Path) -> Path:
    """Put the recordings that examples name into a folder, and the commands ``magneton`` and ``python``; return the folder."""
    recordings = ROOT / "examples" / "recordings"
    for name, source in {"a": "gpt2-hf", "b": "gpt2-fused", "mine": "gpt2-hf", "other": "gpt2-fused"}.items():
        shutil.copytree(recordings / source, folder / "runs" / name)
    (folder / "bin").mkdir()
    for name, words in {"magneton": ' -m magneton.cli "$@"', "python": ' "$@"'}.items():
        command = folder / "bin" / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}"{words}\n')
        command.chmod(0o755)
    return folder


def _environment(folder: Path) -> dict[str, str]:
    return os.environ | {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(str(ROOT / stage) for stage in STAGES),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }


def typed(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line as if it were typed into a shell that stands in the folder."""
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=_environment(folder), capture_output=True, text=True, timeout=500
    )


def saved(text: str, folder: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run a block of Python as a script in the folder.

    Args:
        text: the block.
        folder: where the script stands.
        before: what the block takes for granted, for example ``model``.
    """
    (folder / "example.py").write_text(before + text, encoding="utf-8")
    return typed("python example.py", folder)
