"""A rehearsal of the GPU check: every stage on a CPU, in small, with a stand-in for NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed (pip install 'magneton[torch]')")
pytest.importorskip("transformers", reason="transformers is not installed (pip install 'magneton[examples]')")

pytestmark = pytest.mark.torch

# What a machine without a GPU and without JAX cannot show.
CANNOT = {"graphs", "jax"}


def rehearsed(root: Path, out: Path, *words: str) -> dict[str, Any]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check", "--rehearse", "--out", str(out), *words],
        cwd=root,
        env=env,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode in (0, 1), done.stderr
    assert "simulated" in done.stdout
    found: dict[str, Any] = json.loads((out / "gpu_check.json").read_text())
    return found


def test_the_sensors_of_a_rehearsal(root, tmp_path):
    document = rehearsed(root, tmp_path / "out", "--only", "environment", "sensors", "addmm", "conservation")
    stages = document["stages"]
    assert document["simulated"]
    assert {name: s.get("reason") for name, s in stages.items() if not s["ok"]} == {}
    (nvml,) = [s for s in stages["sensors"]["result"]["sensors"] if s["source"] == "nvml"]
    assert nvml["available"]
    assert stages["addmm"]["result"]["output_l2"] < 1e-5
    assert stages["addmm"]["result"]["mm+add"]["watts"]["energy_counter"]["mean"] == pytest.approx(250, rel=0.2)
    assert stages["conservation"]["result"]["worst_relative_error"] < 1e-9


@pytest.mark.slow
def test_a_whole_rehearsal(root, tmp_path):
    document = rehearsed(root, tmp_path / "out", "--budget", "300")
    failed = {name: s["reason"] for name, s in document["stages"].items() if not s["ok"]}
    assert failed.keys() <= CANNOT, failed
    files = [p for p in (tmp_path / "out").rglob("*") if p.is_file()]
    assert len(files) <= 8 and all(p.stat().st_size <= 16 << 20 for p in files)
    assert {"gpt2-eager.zip", "gpt2-fused.zip", "known-load.zip"} <= {p.name for p in files}
    recorded = document["stages"]["recordings"]["result"]
    assert recorded["captures"] == ["energy", "profile", "values"]
    assert "raw/energy/rank0/power.parquet" in recorded["eager"]["files"]
    normalised = document["stages"]["normalised"]["result"]
    assert all(normalised[f"gpt2-{side}"]["power_rows"] > 0 for side in ("eager", "fused"))
    replay = document["stages"]["replay"]["result"]
    assert set(replay) == {"arange", "contiguous", "linear"}
    assert all(r["repeated"] for r in replay.values())
