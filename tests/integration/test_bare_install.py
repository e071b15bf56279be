"""What a user gets who has nothing but Python: install the project into an empty environment and compare two recordings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_the_command_of_make_diff_runs_in_a_bare_environment(root: Path, tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS")}

    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done

    run(sys.executable, "-m", "venv", "bare")
    python = tmp_path / "bare" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", root)
    where = run(python, "-c", "import magneton.cli; print(magneton.cli.__file__)").stdout
    assert where.startswith(str(tmp_path)), "the installed package runs, not the checkout"
    recordings = root / "examples" / "recordings"
    command = [python, "-m", "magneton.cli", "diff", "--", recordings / "gpt2-hf", recordings / "gpt2-fused"]
    shown = run(*command).stdout
    assert "Per step" in shown and "FusedAttention" in shown
    written = tmp_path / "out" / "gpt2-hf-vs-gpt2-fused"
    assert json.loads((written / "diff.json").read_text())["a"]["label"]
    assert {"report.md", "regions.parquet"} <= {path.name for path in written.iterdir()}
    assert (python.parent / "magneton").is_file()
