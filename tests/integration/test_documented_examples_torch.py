"""The examples of README and docs that need PyTorch run as printed, typed the way a user would type them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from tests.support.documented import TORCH, commands, furnish, programs, saved, typed

pytest.importorskip("torch", reason="torch is not installed (pip install 'magneton[torch]')")
pytest.importorskip("transformers", reason="transformers is not installed (pip install 'magneton[examples]')")

pytestmark = pytest.mark.torch

MODEL = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
torch.set_num_threads(1)
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=32)).eval()
ids = torch.arange(16).reshape(1, 16)
"""
# What the blocks of Python take for granted.
GIVEN = """
import torch

model = torch.nn.Sequential(torch.nn.Embedding(64, 32), torch.nn.Linear(32, 64))
ids = torch.arange(16).reshape(1, 16)
batches = [ids.repeat(4, 1) for _ in range(7)]
"""
# A server that answers one request after another, for some seconds.
SERVE = f"""{MODEL}
import time

end = time.monotonic() + 6
while time.monotonic() < end:
    with torch.no_grad():
        model(ids)
"""
RECORD = [pair for pair in commands(TORCH) if "magneton record" in pair[1]]
REPEAT = [pair for pair in commands(TORCH) if "magneton repeat" in pair[1]]


def out_of(line: str) -> str:
    """Return what a command is told to write."""
    found = re.search(r" -o (\S+)", line)
    assert found is not None, line
    return found[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a program to record, in which nothing is recorded yet but the other side of a comparison."""
    folder = furnish(tmp_path_factory.mktemp("server"))
    (folder / "serve.py").write_text(SERVE)
    for name in ("a", "mine"):
        shutil.rmtree(folder / "runs" / name)
    return folder


@pytest.fixture(scope="module")
def recorded(server: Path) -> Path:
    """The directory after the example that records ``runs/a``."""
    line = next(line for page, line in RECORD if page == "docs/power.md")
    done = typed(line, server)
    assert done.returncode == 0, done.stderr
    return server


def test_record_runs_as_printed(recorded: Path) -> None:
    """What another example records is recorded too; a line that is printed twice is typed once."""
    for line in dict.fromkeys(line.split("#")[0].strip() for _, line in RECORD):
        if not (recorded / out_of(line)).exists():
            done = typed(line, recorded)
            assert done.returncode == 0, f"{line}: {done.stderr}"
        shown = typed(f"magneton info {out_of(line)} --json", recorded)
        assert shown.returncode == 0, shown.stderr
        assert json.loads(shown.stdout)["tables"]["ops"] > 0
    assert {out_of(line) for _, line in RECORD} == {"runs/a", "runs/mine"}


def test_what_follows_a_recording_runs_as_printed(recorded: Path) -> None:
    """docs/recording.md prints what one does next, in this order."""
    block = [line for page, line in commands(None) if page == "docs/recording.md"]
    assert [line.split()[1] for line in block] == ["diff", "normalize"]
    if not (recorded / "runs" / "mine").exists():
        shutil.copytree(recorded / "runs" / "a", recorded / "runs" / "mine")
    for line in block:
        done = typed(line, recorded)
        assert done.returncode == 0, f"{line}: {done.stderr}"


@pytest.mark.parametrize("line", [line for _, line in REPEAT])
def test_repeat_runs_as_printed(line: str, recorded: Path) -> None:
    done = typed(line.replace("magneton repeat", "magneton repeat --json", 1), recorded)
    assert done.returncode == 0, done.stderr
    regions = json.loads(done.stdout)["regions"]
    assert regions and all(region["refusal"] is None and region["time"]["value_s"] > 0 for region in regions)
    assert ("-o" not in line.split()) or (recorded / out_of(line)).is_file()


@pytest.mark.parametrize(("page", "text"), programs(TORCH))
def test_python_runs_as_printed(page: str, text: str, server: Path) -> None:
    folder = server / "from-python"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "runs").mkdir(parents=True)
    (folder / "bin").symlink_to(server / "bin")
    done = saved(text, folder, GIVEN)
    assert done.returncode == 0, f"{page}: {done.stderr}"
    shown = typed("magneton info runs/mine --json", folder)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["tables"]["ops"] > 0
