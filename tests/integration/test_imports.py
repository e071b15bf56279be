"""What is imported when: the command line starts light, and nothing in the core imports a graph library."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"duckdb", "networkx", "numpy", "pyarrow", "scipy", "torch"}


def imported(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after some code."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*{{m.partition('.')[0] for m in sys.modules}})"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["diff", "--help"]])
def test_help_and_version_load_nothing_heavy(words: list[str]) -> None:
    assert not imported(f"from magneton.cli.app import main\nmain({words})") & HEAVY


def test_a_diff_loads_no_graph_library() -> None:
    code = "import magneton.flows.pairs, pkgutil, importlib, magneton.analysis as a\n"
    code += "for m in pkgutil.walk_packages(a.__path__, 'magneton.analysis.'): importlib.import_module(m.name)"
    assert not imported(code) & {"networkx", "scipy", "torch"}
