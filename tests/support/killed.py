"""Runs a part of the product again and again and kills it, each time one step later: ``killed.py CASE FOLDER``.

The cases are those of ``CASES``: the normaliser, a diff, tables made on the way, and two recorders.

A step is a call that changes a file or a folder below FOLDER: opening a file for writing, making, renaming or removing one,
a table that is opened, written to or closed, and the exchange of two directories. The process is killed before the step and,
where Python does the step itself, after it. What a killed process left is never cleaned up between two runs. This process
starts no threads, so that it can fork.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from magneton.analysis.report.registry import REPORTS
from magneton.collectors import Recorder, Workload
from magneton.collectors.attach.launch import Launch, record_command
from magneton.collectors.observed import Device
from magneton.flows.extras import ExtraFiles
from magneton.flows.pairs import DiffSettings, compare
from magneton.flows.prepared import with_tables
from magneton.flows.traces import normalize
from magneton.schemas.documents.diff import DIFF_NAME, read_diff
from magneton.schemas.files import publish as files
from magneton.schemas.ids import sha256_file
from magneton.schemas.manifest import Manifest, read_manifest
from magneton.schemas.tables import parquet
from magneton.schemas.tables.diff import DIFF_TABLES
from magneton.schemas.tables.run import RUN_TABLES
from magneton.transforms.job import NormalizeOptions

_EVENTS = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.truncate"}


class Steps:
    """Counts steps and kills the process at one of them."""

    def __init__(self, folder: Path, last: int | None) -> None:
        self.done = 0
        self._below = os.fsencode(folder)
        self._last = last

    def step(self) -> None:
        """Count a step."""
        if self.done == self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.done += 1

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """Count what the interpreter tells of."""
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if not writes and event not in _EVENTS:
            return
        if isinstance(args[0], str | bytes | os.PathLike) and self._below in os.fsencode(args[0]):
            self.step()

    def around(self, owner: Any, name: str) -> None:
        """Count a step before and after each call of a function."""
        function: Callable[..., Any] = getattr(owner, name)

        def counted(*args: Any, **named: Any) -> Any:
            self.step()
            result = function(*args, **named)
            self.step()
            return result

        setattr(owner, name, counted)


def normalize_new(folder: Path) -> None:
    """Traces become a recording."""
    normalize([folder / "traces"], folder / "run", extras=ExtraFiles(power=[folder / "power.csv"]))


def normalize_in_place(folder: Path) -> None:
    """A recording is replaced by itself."""
    normalize([folder / "run"], folder / "run", NormalizeOptions(overwrite=True))


def compare_two(folder: Path) -> None:
    """Two recordings are compared, with another threshold than the diff that may be there."""
    compare(folder / "a", folder / "b", folder / "run", DiffSettings(threshold_percent=20))


def make_tables(folder: Path) -> None:
    """A recording gets tables on the way."""
    with_tables(folder / "run")


class _Profile:
    """A profiler for a recorder: it writes one file."""

    source_format = "kineto"
    operators = 1

    def start(self) -> None:
        """Do nothing."""

    step = stop = start

    def export(self, directory: Path) -> Path:
        """Write the file."""
        file = directory / "fake.pt.trace.json"
        file.write_text(
            '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]}'
        )
        return file

    def rank(self) -> int:
        """Return the rank."""
        return 0

    def devices(self) -> list[Device]:
        """Return no device."""
        return []


def record_here(folder: Path) -> None:
    """A program records itself."""
    with Recorder(folder / "run", _Profile(), workload=Workload(steps=1)) as recorder:
        recorder.step()


def record_another(folder: Path) -> None:
    """A program is recorded from outside; ``program.py`` says that it has recorded a file."""
    command = [sys.executable, str(folder / "program.py")]
    if record_command(command, folder / "run", Launch(captures=("profile",), sensors=())):
        raise RuntimeError("the program failed")


CASES: dict[str, Callable[[Path], None]] = {
    "new": normalize_new,
    "in place": normalize_in_place,
    "in place, no exchange": normalize_in_place,
    "diff": compare_two,
    "tables": make_tables,
    "recorder": record_here,
    "record": record_another,
}


def run(folder: Path, case: str, last: int | None) -> None:
    """Run a case, and be killed at a step."""
    steps = Steps(folder, last)
    for name in ("__init__", "write", "close"):
        steps.around(parquet.TableWriter, name)
    steps.around(os, "fsync")
    if case == "in place, no exchange":
        files.exchange = lambda one, other: False  # type: ignore[assignment]
    else:
        steps.around(files, "exchange")
    sys.addaudithook(steps.audit)
    CASES[case](folder)
    (folder.parent / "steps").write_text(str(steps.done))


def state(out: Path) -> str:
    """Return what a reader finds: ``nothing``, words for something whole, or what is wrong with it."""
    if not out.exists():
        return "nothing"
    if (out / DIFF_NAME).is_file():
        return _diff_state(out)
    manifest: Manifest = read_manifest(out)
    for entry in manifest.files:
        if entry.kept and (not (out / entry.path).is_file() or sha256_file(out / entry.path) != entry.sha256):
            return f"{entry.path} is not there, or another file"
    profiles = [capture for capture in manifest.captures if capture.kind == "profile"]
    known = manifest.system.versions and all(capture.anchors for capture in profiles)
    tables = "" if (out / "tables").exists() else ", no tables"
    torn = sorted(name for name in RUN_TABLES if not tables and not _is_whole(out / "tables" / f"{name}.parquet"))
    if torn:
        return f"torn tables: {', '.join(torn)}"
    return (
        f"whole: {manifest.label}, {'known' if known else 'bare'}, {'old' if manifest.created_unix_ns == 1 else 'new'}"
        f"{tables}"
    )


def _diff_state(out: Path) -> str:
    document = read_diff(out)
    wanted = {DIFF_NAME, *REPORTS, *(f"{name}.parquet" for name in DIFF_TABLES)}
    found = {path.name for path in out.iterdir()}
    torn = sorted(p.name for p in out.glob("*.parquet") if not _is_whole(p))
    if torn or wanted - found:
        return f"torn: {torn}, missing: {sorted(wanted - found)}"
    return f"whole: {document.settings['threshold_percent']:g} %"


def _is_whole(path: Path) -> bool:
    """Say whether a Parquet file has a beginning and an end. Arrow would start threads to read it."""
    return path.is_file() and (content := path.read_bytes())[:4] == content[-4:] == b"PAR1"


def main(case: str, folder: Path) -> None:
    """Print, for each point, how the process ended and what was there afterwards."""
    found = []
    point: int | None = 0
    for point in range(1000):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run(folder, case, point)
                code = 0
            finally:
                os._exit(code)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        found.append([ended, state(folder / "run")])
        if ended != -signal.SIGKILL:
            break
    beside = sorted(path.name for path in folder.iterdir())
    sys.stdout.write(json.dumps({"points": found, "beside": beside}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
