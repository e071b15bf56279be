"""The profile capture with the real torch.profiler."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (pip install 'magneton[torch]')")

pytestmark = pytest.mark.torch

from magneton.collectors import Workload, record  # noqa: E402
from magneton.schemas.manifest import read_manifest  # noqa: E402


@pytest.fixture
def model() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))


def trace_text(recording: Path) -> str:
    (trace,) = (f for f in read_manifest(recording).files if f.name.endswith(".json.gz"))
    return gzip.decompress((recording / trace.path).read_bytes()).decode()


def events(recording: Path, category: str) -> list[dict[str, Any]]:
    return [e for e in json.loads(trace_text(recording))["traceEvents"] if e.get("cat") == category]


def test_only_the_announced_steps_are_recorded(tmp_path: Path, model: Any) -> None:
    with record(tmp_path / "r", workload=Workload(steps=3, warmup_steps=2)) as recorder:
        for _ in range(6):
            model(torch.ones(2, 16))
            recorder.step()
    manifest = read_manifest(tmp_path / "r")
    steps = events(tmp_path / "r", "user_annotation")
    assert [e["name"] for e in steps] == ["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"]
    assert not manifest.incomplete
    assert manifest.system.versions["torch"] == torch.__version__
    ops = events(tmp_path / "r", "cpu_op")
    assert sum(e["name"] == "aten::addmm" for e in ops) == 2 * 3
    assert {tuple(map(tuple, e["args"]["Input Dims"][:3])) for e in ops if e["name"] == "aten::addmm"} == {
        ((32,), (2, 16), (16, 32)),
        ((4,), (2, 32), (32, 4)),
    }
    frames = [e["name"] for e in events(tmp_path / "r", "python_function")]
    assert frames.count("nn.Module: Sequential_0") == 3
    assert frames.count("nn.Module: Linear_1") == 3


def test_a_block_without_steps_is_recorded_whole(tmp_path: Path, model: Any) -> None:
    with record(tmp_path / "r"):
        model(torch.ones(2, 16))
    assert events(tmp_path / "r", "user_annotation") == []
    assert sum(e["name"] == "aten::addmm" for e in events(tmp_path / "r", "cpu_op")) == 2


@pytest.mark.parametrize("crash_in_step", [0, 2])
def test_a_crash_in_warm_up_or_later_leaves_a_trace(tmp_path: Path, model: Any, crash_in_step: int) -> None:
    with (
        pytest.raises(RuntimeError, match="shapes cannot be multiplied"),
        record(tmp_path / "r", workload=Workload(steps=3, warmup_steps=1)) as recorder,
    ):
        for index in range(4):
            model(torch.ones(2, 99 if index == crash_in_step else 16))
            recorder.step()
    manifest = read_manifest(tmp_path / "r")
    assert manifest.incomplete
    assert f"Stopped by RuntimeError after {crash_in_step} whole steps, warm-up included." in manifest.notes
    recorded = sum(e["name"] == "aten::addmm" for e in events(tmp_path / "r", "cpu_op"))
    # The step that fails has called the operator too; warm-up is not in the trace.
    assert recorded == (0 if crash_in_step == 0 else 3)
    with record(tmp_path / "again", workload=Workload(steps=1)) as recorder:
        model(torch.ones(2, 16))
        recorder.step()
    assert not read_manifest(tmp_path / "again").incomplete


def test_the_trace_does_not_name_the_machine(tmp_path: Path, model: Any, root: Path) -> None:
    with record(tmp_path / "r"):
        model(torch.ones(2, 16))
    text = trace_text(tmp_path / "r")
    document = json.loads(text)
    assert document["host_name"] is None
    assert document["traceName"] == "torch.pt.trace.json.gz"
    for private in (str(tmp_path), str(root), str(Path.home()) + "/"):
        assert private not in text
    frames = [e["name"] for e in events(tmp_path / "r", "python_function")]
    assert not [name for name in frames if name.startswith("/")]
    assert any(name.startswith("torch/nn/modules/module.py(") for name in frames)
