"""A source, a power format, a sensor, a command and a report are one file and one line each: the examples of CONTRIBUTING.md, run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

STAGES = ("cli", "collectors", "transforms", "analysis", "schemas")
_EXAMPLE = re.compile(
    r"^`(?P<file>[\w/]+\.py)`:\n\n```python\n(?P<code>.*?)^```\n\n`(?P<registry>[\w/]+\.py)`.*?\n\n```diff\n(?P<change>.*?)^```\n",
    re.MULTILINE | re.DOTALL,
)
TRACE = "op-lines\n" + "".join(
    f"{1_000_000_000 + i * 1000} 900 1 aten::{n}\n" for i, n in enumerate(["mm", "relu", "mm"])
)


def add(project: Path, example: dict[str, str]) -> None:
    """Put one new file and one new line into a project."""
    (project / example["file"]).write_text(example["code"])
    before, added = example["change"].splitlines()
    assert before[0] == " " and added[0] == "+"
    registry = project / example["registry"]
    lines = registry.read_text().splitlines()
    assert lines.count(before[1:]) == 1, f"{example['registry']} has no line {before}"
    lines.insert(lines.index(before[1:]) + 1, added[1:])
    registry.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def extended(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the product with every example of CONTRIBUTING.md added."""
    project = tmp_path_factory.mktemp("extended")
    for stage in STAGES:
        shutil.copytree(root / stage, project / stage, ignore=shutil.ignore_patterns("__pycache__"))
    examples = [match.groupdict() for match in _EXAMPLE.finditer((root / "CONTRIBUTING.md").read_text())]
    rooms = [Path(example["file"]).parent.name for example in examples]
    assert rooms == ["sources", "power", "sensors", "commands", "report"]
    for example in examples:
        add(project, example)
    return project


def magneton(project: Path, *words: str | Path) -> Any:
    """Run a command of the extended product and return the JSON document that it writes."""
    done = subprocess.run(
        [sys.executable, "-m", "magneton.cli", *words, "--json"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(project / stage) for stage in STAGES)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def recording(extended: Path) -> Path:
    """A recording made by the new source, with readings of the new power format."""
    (extended / "a.txt").write_text(TRACE + "no operator\n")
    (extended / "a.watts").write_text("watt-lines\n0.5 40\n1.5 60\n")
    magneton(extended, "normalize", "a.txt", "--power", "a.watts", "--out", "a")
    return extended / "a"


def test_a_source(extended: Path, recording: Path) -> None:
    query = "SELECT c.source_format, o.name, o.ts_ns, o.dur_ns FROM ops o JOIN captures c USING (run, capture) ORDER BY o.ts_ns"
    rows = magneton(extended, "sql", recording, query)
    assert {row["source_format"] for row in rows} == {"op_lines"}
    assert [(row["name"], row["dur_ns"]) for row in rows] == [("aten::mm", 900), ("aten::relu", 900), ("aten::mm", 900)]
    assert magneton(extended, "sql", recording, "SELECT reason, raw FROM quarantine") == [
        {"reason": "row_malformed", "raw": "no operator"}
    ]


def test_a_power_format(extended: Path, recording: Path) -> None:
    rows = magneton(extended, "sql", recording, "SELECT source, value, unit FROM power ORDER BY ts_ns")
    assert rows == [{"source": "watt-lines", "value": v, "unit": "W"} for v in (40.0, 60.0)]


def test_a_sensor(extended: Path) -> None:
    found = {sensor["source"]: sensor for sensor in magneton(extended, "sensors", "--watch", "0")["sensors"]}
    assert list(found)[-1] == "lamp"
    (series,) = found["lamp"]["series"]
    assert (series["value"], series["unit"], series["energetic"]) == (40.0, "W", True)


def test_a_command(extended: Path, recording: Path) -> None:
    sizes = magneton(extended, "size", recording)
    assert sizes["manifest.json"] == (recording / "manifest.json").stat().st_size


def test_a_report(extended: Path, recording: Path) -> None:
    (extended / "b.txt").write_text(TRACE.replace(" 900 ", " 500 "))
    magneton(extended, "diff", recording, "b.txt", "--all-steps", "--out", "diff")
    lines = (extended / "diff" / "report.txt").read_text().splitlines()
    assert lines[0].startswith("Aligned: 100.0 %")
    assert (extended / "diff" / "report.md").is_file()
