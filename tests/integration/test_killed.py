"""A process that is killed leaves the old output or the new one, whole, and the next run works all the same."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.diff.test_diff import model

from magneton.flows.extras import ExtraFiles
from magneton.flows.pairs import DiffSettings, compare
from magneton.flows.traces import normalize
from magneton.schemas.kinds import FileRole
from magneton.schemas.manifest import ClockAnchor, System, read_manifest, write_manifest

ROOT = Path(__file__).resolve().parents[2]
LOG = ROOT / "tests" / "faults" / "cases" / "37-clock-domains" / "power_realtime.csv"
BASE_NS = 1718000000000000000


def inputs(folder: Path) -> None:
    (folder / "traces").mkdir(parents=True)
    for rank in (0, 1):
        args = {"External id": 1, "correlation": 5, "device": 0, "stream": 7}
        times = {"pid": 1, "tid": 1, "args": args}
        events = [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 10, "dur": 50, **times},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 20, "dur": 5, **times},
            {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 40, "dur": 30, **times},
        ]
        top = {"baseTimeNanoseconds": BASE_NS, "distributedInfo": {"rank": rank, "world_size": 2}}
        document = json.dumps({"schemaVersion": 1, **top, "traceEvents": events})
        (folder / "traces" / f"rank{rank}.json").write_text(document)
    (folder / "power.csv").write_bytes(LOG.read_bytes())


def recording(folder: Path) -> None:
    """A recording with what a recorder knows and traces do not say."""
    normalize([folder / "traces"], folder / "run", extras=ExtraFiles(power=[folder / "power.csv"]))
    manifest = read_manifest(folder / "run")
    manifest.system, manifest.label, manifest.created_unix_ns = System("a system", {"torch": "2.13.0"}), "mine", 1
    for capture in manifest.captures:
        capture.anchors = [ClockAnchor(BASE_NS, "monotonic", 7)] if capture.kind == "profile" else []
    write_manifest(folder / "run", manifest)


def traces_to_compare(folder: Path) -> None:
    """Two recordings of a model, of which B's operators take three times as long."""
    folder.mkdir()
    for name, us in (("a", 10.0), ("b", 30.0)):
        normalize([model(us, steps=3).write(folder / f"{name}.json")], folder / name)


PROGRAM = """
from pathlib import Path
from magneton.collectors.attach.request import CaptureReply, CaptureRequest
from magneton.collectors.observed import Capture

request = CaptureRequest.from_environment()
file = request.directory(0) / "fake.pt.trace.json"
file.write_text(
    '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]}'
)
capture = Capture(name="profile", kind="profile", rank=0, source_format="kineto", file=str(file))
CaptureReply(rank=0, captures=[capture], steps=5, step_kind="calls of an outermost module").write(request)
"""


def kill_at_each_step(case: str, folder: Path, least: int = 50) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "tests" / "support" / "killed.py"), case, str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, cwd=ROOT, timeout=600)
    found: dict[str, Any] = json.loads(done.stdout)
    assert len(found["points"]) > least, "points"
    *killed, last = found["points"]
    assert {ended for ended, _ in killed} == {-signal.SIGKILL}
    assert last[0] == 0, "the run after the last kill ends well, whatever was left beside it"
    return found


@pytest.mark.slow
def test_a_new_recording_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    inputs(folder)
    found = kill_at_each_step("new", folder)
    states = [state for _, state in found["points"]]
    assert set(states[:-1]) == {"nothing"}
    assert states[-1] == "whole: traces, bare, new"
    assert found["beside"] == ["power.csv", "run", "traces"], "what killed processes left is gone"


@pytest.mark.slow
@pytest.mark.parametrize("case", ["in place", "in place, no exchange"])
def test_a_recording_is_replaced_by_a_whole_one_that_knows_as_much(tmp_path: Path, case: str) -> None:
    folder = tmp_path / "work"
    inputs(folder)
    recording(folder)
    found = kill_at_each_step(case, folder)
    states = [state for _, state in found["points"]]
    whole = {"whole: mine, known, old", "whole: mine, known, new"}
    assert states[0] == "whole: mine, known, old"
    assert states[-1] == "whole: mine, known, new"
    # Without an exchange there is a moment between two renames. The next run puts the old recording back.
    gaps = [n for n, state in enumerate(states) if state == "nothing"]
    assert set(states) - {"nothing"} == whole
    assert bool(gaps) == (case != "in place")
    assert all(state in whole for state in states[max(gaps, default=0) + 1 :])
    assert found["beside"] == ["power.csv", "run", "traces"]


@pytest.mark.slow
def test_a_diff_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    traces_to_compare(folder)
    found = kill_at_each_step("diff", folder, least=20)
    states = [state for _, state in found["points"]]
    assert set(states[:-1]) <= {"nothing", "whole: 20 %"}
    assert states == sorted(states), "once it is there, it stays"
    assert states[-1] == "whole: 20 %"
    assert found["beside"] == ["a", "a.json", "b", "b.json", "run"], "what killed processes left is gone"


@pytest.mark.slow
def test_a_diff_is_replaced_by_a_whole_one(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    traces_to_compare(folder)
    compare(folder / "a", folder / "b", folder / "run", DiffSettings(threshold_percent=50))
    found = kill_at_each_step("diff", folder, least=20)
    states = [state for _, state in found["points"]]
    assert states[0] == "whole: 50 %" and states[-1] == "whole: 20 %"
    assert set(states) == {"whole: 50 %", "whole: 20 %"}
    assert found["beside"] == ["a", "a.json", "b", "b.json", "run"]


@pytest.mark.slow
def test_tables_made_on_the_way_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    inputs(folder)
    recording(folder)
    # As a recorder leaves it.
    shutil.rmtree(folder / "run" / "tables")
    manifest = read_manifest(folder / "run")
    manifest.files = [entry for entry in manifest.files if entry.role != FileRole.DERIVED]
    write_manifest(folder / "run", manifest)
    found = kill_at_each_step("tables", folder)
    states = [state for _, state in found["points"]]
    whole = "whole: mine, known, old"
    assert states[0] == f"{whole}, no tables" and states[-1] == whole
    assert set(states) == {whole, f"{whole}, no tables"}
    assert sorted(p.name for p in (folder / "run").iterdir()) == ["manifest.json", "raw", "tables"]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["recorder", "record"])
def test_what_is_recorded_appears_whole_or_not_at_all(case: str, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM)
    found = kill_at_each_step(case, folder, least=8)
    states = [state for _, state in found["points"]]
    # With a rename there is a moment in which the recording is there, and the process is not at its end.
    there = [state for state in states if state != "nothing"]
    assert states == ["nothing"] * (len(states) - len(there)) + there
    assert there and all(state.startswith("whole: run, ") and state.endswith(", new, no tables") for state in there)
    assert found["beside"] == ["program.py", "run"], "what killed processes left is gone"
