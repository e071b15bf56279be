"""A recording without operators or without steps is an error that names the remedy."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from magneton.collectors import Workload, record
from magneton.schemas.errors import NothingRecordedError

pytestmark = pytest.mark.torch

IDLE = """
    import time, torch
    net, x = torch.nn.Identity(), torch.ones(3)
    for _ in range(9):
        net(x)
        time.sleep(0.001)
"""


def run(script: str, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(textwrap.dedent(script))
    command = [sys.executable, "-m", "magneton.cli", "record", "-o", str(tmp_path / "r"), *options, "--"]
    return subprocess.run([*command, sys.executable, "program.py"], capture_output=True, text=True, cwd=tmp_path)


@pytest.mark.parametrize("captures", [(), ("values",), ("profile",)])
def test_steps_without_operators_are_an_error(tmp_path: Path, captures: tuple[str, ...]) -> None:
    done = run(IDLE, tmp_path, *(word for capture in captures for word in ("--capture", capture)))
    assert done.returncode == 2, done.stderr
    assert "hold no operator" in done.stderr and "--warmup" in done.stderr
    assert not (tmp_path / "r").exists()


def test_a_block_in_which_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(NothingRecordedError, match="no operator"), record(tmp_path / "a"):
        pass
    workload = Workload(steps=2, warmup_steps=1)
    with pytest.raises(NothingRecordedError, match=r"step\(\)"), record(tmp_path / "b", workload=workload):
        pass
    captures = ("energy", "profile", "values")
    with pytest.raises(NothingRecordedError), record(tmp_path / "c", captures=captures) as recorder:
        recorder.run(lambda: None)
    assert list(tmp_path.iterdir()) == []
