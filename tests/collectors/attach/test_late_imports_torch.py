"""Programs that look for torch before they import it, import it late, or bind ``__call__`` early: each gives three captures."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from magneton.flows.api import normalize
from magneton.schemas.manifest import read_manifest
from magneton.schemas.tables.parquet import read_table

pytestmark = pytest.mark.torch

FOUND = Path(__file__).parents[2] / "found" / "late-torch-imports"
NET = """
    import torch
    torch.set_num_threads(1)
    net = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8)) for _ in range(3)))
    net.eval()
    with torch.no_grad():
        for _ in range(9):
            y = net(torch.ones(4, 8))
    print(float(y.sum()))
"""


def record(script: Path, tmp_path: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "magneton.cli", "record", "-o", str(tmp_path / "r"), *options, "--"]
    done = subprocess.run(
        [*command, sys.executable, script.name],
        capture_output=True,
        text=True,
        cwd=script.parent,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    normalize([tmp_path / "r"], tmp_path / "n")
    return tmp_path / "n"


def rows(run: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_table(run / "tables" / f"{table}.parquet", table).to_pylist()
    return found


def check_three_captures(run: Path, root: str | None = None) -> None:
    manifest = read_manifest(run)
    assert {c.kind for c in manifest.captures} == {"energy", "profile", "values"}
    assert not manifest.incomplete, manifest.notes
    for capture in ("profile", "values"):
        assert sum(op["capture"] == capture for op in rows(run, "ops")) >= 10, capture
        paths = [m["path"] for m in rows(run, "modules") if m["capture"] == capture]
        assert paths, capture
        if root is not None:
            assert all(path.partition("/")[0] == root for path in paths), (capture, paths)
    kinds = [s["kind"] for s in rows(run, "steps")]
    assert kinds.count("bare_step") == kinds.count("profiler_step") == 5


@pytest.mark.parametrize(
    ("script", "root"),
    [("hf_first.py", "GPT2LMHeadModel_0"), ("probe.py", "Sequential_0"), ("bound.py", "Sequential_0")],
)
def test_programs_that_were_recorded_empty(tmp_path: Path, script: str, root: str) -> None:
    if script == "hf_first.py":
        pytest.importorskip("transformers")
    check_three_captures(record(FOUND / script, tmp_path), root)


@pytest.mark.parametrize(
    ("bind", "root"),
    [
        ("run = net.__call__", "Sequential_0"),
        ("run = net.compile(backend='eager') or net", "Sequential_0"),
        ("run = torch.nn.Module.__call__.__get__(net)", "Sequential_0"),
        ("class Net(torch.nn.Sequential):\n    __call__ = torch.nn.Module.__call__\nrun = Net(net)", "Net_0"),
    ],
)
def test_calls_that_were_bound_early(tmp_path: Path, bind: str, root: str) -> None:
    script = tmp_path / "program.py"
    text = textwrap.dedent(NET).replace("net.eval()", f"net.eval()\n{bind}").replace("y = net(", "y = run(")
    script.write_text(text)
    run = record(script, tmp_path, "--capture", "values")
    paths = [m["path"] for m in rows(run, "modules")]
    assert {path.partition("/")[0] for path in paths} == {root}


def test_a_call_bound_before_the_recorder_was_there() -> None:
    import torch

    from magneton.collectors.torch.values_capture import record_values

    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    call, bound = torch.nn.Module.__call__, net.__call__
    capture = record_values(bound, (torch.ones(2, 4),))
    assert capture.modules.column("path").to_pylist() == [
        "Sequential_0",
        "Sequential_0/Linear_0",
        "Sequential_0/Linear_1",
    ]
    assert torch.nn.Module.__call__ is call
