"""Every example of README and docs runs as printed, typed the way a user would type it.

Examples that need a framework are in ``test_documented_examples_torch.py`` and ``test_documented_examples_systems.py``.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest
from tests.support.documented import NEEDS, ONNX, ROOT, TORCH, commands, furnish, programs, saved, typed


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A directory with the files that the examples name, and a shell in which ``magneton`` is a command."""
    furnish(tmp_path)
    shutil.copy(tmp_path / "runs" / "a" / "raw/profile/rank0/torch.pt.trace.json.gz", tmp_path / "trace.json.gz")
    (tmp_path / "question.sql").write_text("SELECT count(*) AS n FROM regions")
    return tmp_path


def given_files(line: str, workplace: Path) -> None:
    """Make what one example needs before it can be typed."""
    if re.search(r"-o runs/a\b", line) and "normalize" in line:
        shutil.rmtree(workplace / "runs" / "a")
    if "--power" in line or "magneton energy" in line:
        case = ROOT / "tests" / "faults" / "cases" / "37-clock-domains"
        (workplace / "trace.json.gz").write_bytes(gzip.compress((case / "trace.json").read_bytes()))
        shutil.copy(case / "power_boottime.csv", workplace / "log.csv")
        shutil.copy(case / "run.json", workplace / "run.json")
        # The trace begins at 06:13:20 UTC, which is 07:13:20 in London in June.
        rows = [f"2024/06/10 07:13:{20 + tenth / 10:06.3f}, 0, GPU, 100.00 W" for tenth in range(31)]
        (workplace / "smi.csv").write_text("timestamp, index, name, power.draw [W]\n" + "\n".join(rows) + "\n")
        counts = {"completed": 1, "total_input_tokens": 4, "total_output_tokens": 4, "duration": 1.0}
        (workplace / "result.json").write_text(json.dumps({"model_id": "model", **counts}))
    if "magneton energy" in line:
        shutil.rmtree(workplace / "runs" / "a")
        typed("magneton normalize trace.json.gz --power smi.csv --tz Europe/London -o runs/a", workplace)
        scale = {"gain": 0.96, "gain_sd": 0.004, "offset_w": -2.4, "offset_sd_w": 0.5, "correlation": -0.4}
        (workplace / "cal.json").write_text(json.dumps({**scale, "source": "a meter"}))
    if "out/a-vs-b" in line:
        typed("magneton diff runs/a runs/b -o out/a-vs-b", workplace)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "line"), commands(None))
def test_a_command_runs_as_printed(page: str, line: str, workplace: Path) -> None:
    given_files(line, workplace)
    done = typed(line, workplace)
    assert done.returncode == 0, f"{page}: {done.stderr}"
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("page", "text"), programs(None))
def test_python_runs_as_printed(page: str, text: str, workplace: Path) -> None:
    before = "import time\nwork = lambda: time.sleep(0.2)\n" if "work()" in text else ""
    if "for batch in batches" in text:
        before = "batches, update = range(3), str\n"
    done = saved(text, workplace, before)
    assert done.returncode == 0, f"{page}: {done.stderr}"


def test_there_are_examples() -> None:
    assert len(commands(None)) >= 13 and len(programs(None)) >= 8


def test_every_example_runs_somewhere() -> None:
    """Only what needs a server is left out, and no example of ``magneton`` needs one."""
    for needs in set(NEEDS.values()) - {TORCH, ONNX}:
        assert commands(needs) == [] and programs(needs) == []
    assert {needs: (len(commands(needs)) > 0, len(programs(needs)) > 0) for needs in (TORCH, ONNX)} == {
        TORCH: (True, True),
        ONNX: (True, True),
    }
