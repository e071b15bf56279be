"""Runs the normaliser again and again and kills it, each time one step later: ``killed.py CASE FOLDER``.

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

from magneton.flows.extras import ExtraFiles
from magneton.flows.traces import normalize
from magneton.schemas.files import publish as files
from magneton.schemas.ids import sha256_file
from magneton.schemas.manifest import Manifest, read_manifest
from magneton.schemas.tables import parquet
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


def run(folder: Path, case: str, last: int | None) -> None:
    """Normalise, and be killed at a step."""
    steps = Steps(folder, last)
    for name in ("__init__", "write", "close"):
        steps.around(parquet.TableWriter, name)
    steps.around(os, "fsync")
    if case == "in place, no exchange":
        files.exchange = lambda one, other: False  # type: ignore[assignment]
    else:
        steps.around(files, "exchange")
    sys.addaudithook(steps.audit)
    out = folder / "run"
    if case == "new":
        normalize([folder / "traces"], out, extras=ExtraFiles(power=[folder / "power.csv"]))
    else:
        normalize([out], out, NormalizeOptions(overwrite=True))
    (folder.parent / "steps").write_text(str(steps.done))


def state(out: Path) -> str:
    """Return what a reader finds: ``nothing``, the tool and time of a whole recording, or what is wrong with one."""
    if not out.exists():
        return "nothing"
    manifest: Manifest = read_manifest(out)
    for entry in manifest.files:
        if entry.kept and (not (out / entry.path).is_file() or sha256_file(out / entry.path) != entry.sha256):
            return f"{entry.path} is not there, or another file"
    profiles = [capture for capture in manifest.captures if capture.kind == "profile"]
    known = manifest.system.versions and all(capture.anchors for capture in profiles)
    return (
        f"whole: {manifest.label}, {'known' if known else 'bare'}, {'old' if manifest.created_unix_ns == 1 else 'new'}"
    )


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
