"""What goes to stderr: log lines, progress and notes. Stdout carries data only."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from magneton.schemas.errors import printable

LOG = logging.getLogger("magneton")


class _OneLine(logging.Formatter):
    """Escapes control characters, so that a name from a trace cannot control the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record on one line. A traceback follows unchanged, since it holds no names from traces."""
        line = printable(f"magneton: {record.levelname.lower()}: {record.getMessage()}")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_verbosity(count: int) -> int:
    """Send log records to stderr: warnings; with one ``-v`` also what is being done; with two also every detail."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(count, 2)]
    LOG.handlers[:] = [logging.StreamHandler(sys.stderr)]
    LOG.handlers[0].setFormatter(_OneLine())
    LOG.propagate = False
    if count or LOG.level == logging.NOTSET:
        LOG.setLevel(level)
    return count


SensorNames = Annotated[
    list[str] | None,
    typer.Option(
        "--sensor",
        metavar="NAME",
        help="Sensor to read, see `magneton sensors`; may be repeated (default: all there are).",
        show_default=False,
    ),
]
Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        callback=set_verbosity,
        show_default=False,
        help="Log to stderr what is done; twice for every detail and tracebacks.",
    ),
]


def wants_traceback() -> bool:
    """Return whether to show an error with its traceback."""
    return os.environ.get("MAGNETON_TRACEBACK", "") not in ("", "0") or LOG.level == logging.DEBUG


def stderr_console() -> Console:
    """Return a console on stderr. It uses no colours with ``NO_COLOR`` or if stderr is not a terminal."""
    return Console(stderr=True, highlight=False)


def note(text: str) -> None:
    """Write one line about the output to stderr."""
    sys.stderr.write(printable(text) + "\n")


@contextlib.contextmanager
def working(what: str) -> Iterator[Progress]:
    """Show progress and the elapsed time, if stderr is a terminal."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
    )
    console = stderr_console()
    progress = Progress(*columns, console=console, transient=True)
    progress.add_task(printable(what), total=None)
    # Not started, it shows nothing: where stderr is a file, a bar would only leave its traces there.
    with progress if console.is_terminal else contextlib.nullcontext():
        yield progress
