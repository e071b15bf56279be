"""``record`` of the Python API, on a real program of PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed (pip install 'magneton[torch]')")

pytestmark = pytest.mark.torch

from magneton.flows import Run, diff, open_runs, record  # noqa: E402
from magneton.schemas.errors import OutputExistsError  # noqa: E402

PROGRAM = """
import torch

torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
with torch.no_grad():
    for _ in range(10):
        net(torch.ones(2, 16))
"""


def test_a_program_is_recorded_and_its_tables_are_there(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py")]
    run = record(command, tmp_path / "run", captures=("profile",), steps=3, label="toy", system="torch")
    assert isinstance(run, Run)
    manifest = run.manifest
    assert (manifest.label, manifest.system.name, manifest.workload.steps, manifest.incomplete) == (
        "toy",
        "torch",
        3,
        False,
    )
    assert "torch" in manifest.system.versions
    # Two linear layers and one activation, in each of three steps.
    with open_runs(tmp_path / "run") as runs:
        rows = runs.sql(
            "SELECT name, count(*)::BIGINT AS n FROM ops WHERE name IN ('aten::addmm', 'aten::gelu') GROUP BY name"
        )
        assert {row["name"]: row["n"] for row in rows.to_dict()} == {"aten::addmm": 6, "aten::gelu": 3}
    assert run.table("steps").num_rows == 3
    assert diff(tmp_path / "run", tmp_path / "run", out=tmp_path / "out").document.findings == []
    with pytest.raises(OutputExistsError):
        record(command, tmp_path / "run")
