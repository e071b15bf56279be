"""The command line. This module alone turns an error into one line on stderr and an exit code."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from magneton.cli.commands import load
from magneton.cli.console import LOG, Verbose, note, set_verbosity, wants_traceback
from magneton.schemas.errors import (
    EXIT_BAD_INPUT,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_PIPE_CLOSED,
    MagnetonError,
)
from magneton.schemas.files.output_errors import OF_WRITING


class _PipeClosedError(Exception):
    """The reader of the output has closed the pipe. A class of its own, because typer would turn a broken pipe into exit code 1."""


class _Group(TyperGroup):
    """Commands whose broken pipes are reported as ``_PipeClosedError``."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _PipeClosedError from error

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Read the words of the command line; help and version are written here."""
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError as error:
            raise _PipeClosedError from error


app = typer.Typer(
    name="magneton",
    cls=_Group,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"magneton {version('magneton')}\n")
        raise typer.Exit


@app.callback()
def magneton(
    context: typer.Context,
    verbose: Verbose = 0,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Compare two recordings of machine-learning systems and show where one of them spends more.

    Data goes to stdout, everything else to stderr. Exit codes: 0 success, 2 bad input or usage, 70 internal error,
    130 interrupted, 141 the reader of the output closed the pipe.
    """
    if context.invoked_subcommand is None:
        sys.stderr.write(context.get_help() + "\n")
        raise typer.Exit(EXIT_BAD_INPUT)


for _command in load():
    app.command()(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: words after the program's name (default: those of this process).
    """
    _prepare_streams()
    LOG.setLevel(logging.NOTSET)
    set_verbosity(0)
    try:
        with _Interrupts() as interrupts:
            code = _run(arguments, interrupts)
    except (BrokenPipeError, _PipeClosedError):
        _discard_stdout()
        return EXIT_PIPE_CLOSED
    return code


def _prepare_streams() -> None:
    """Let there be a stdin, stdout and stderr that take whatever is written to them.

    Started with one of them closed (``>&-``), Python has None in its place. An encoding that lacks a letter of a name is no
    reason to stop.
    """
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: PTH123, SIM115 - it is used until the process ends
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: PTH123, SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


class _Interrupts(contextlib.AbstractContextManager["_Interrupts"]):
    """Remembers that Ctrl-C was pressed: an engine that is interrupted ends with an error of its own.

    Attributes:
        pressed: whether it was.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._before: Any = None

    def _press(self, number: int, frame: Any) -> None:
        self.pressed = True
        signal.default_int_handler(number, frame)

    def __enter__(self) -> _Interrupts:
        # What a shell starts in the background ignores Ctrl-C, and goes on doing so.
        known = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(known):
            self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)


def _run(arguments: Sequence[str] | None, interrupts: _Interrupts) -> int:
    """Run a command and return its exit code; every error but a closed pipe has been reported then."""
    try:
        try:
            code = typer.main.get_command(app).main(args=arguments, prog_name="magneton", standalone_mode=False)
            sys.stdout.flush()
        except (BrokenPipeError, _PipeClosedError, typer.Abort):
            raise
        except Exception as error:
            if interrupts.pressed:
                raise KeyboardInterrupt from error
            raise
    except (BrokenPipeError, _PipeClosedError):
        raise
    except MagnetonError as error:
        return _report(f"error: {error}", error.exit_code)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        where = f" (see {context.command_path} --help)" if context is not None else ""
        return _report(f"error: {error.format_message()}{where}", EXIT_BAD_INPUT)
    except (KeyboardInterrupt, typer.Abort):
        return _report("interrupted", EXIT_INTERRUPTED)
    except OSError as error:
        return _report(f"error: {_said(error)}", EXIT_BAD_INPUT)
    except Exception as error:
        advice = "this is a bug; run again with MAGNETON_TRACEBACK=1 to see where"
        return _report(f"internal error: {type(error).__name__}: {error} ({advice})", EXIT_INTERNAL)
    if code == EXIT_INTERRUPTED:
        note("magneton: interrupted")
    return code if isinstance(code, int) else EXIT_OK


def _said(error: OSError) -> str:
    """Return an error of the operating system in words, with the file it is about."""
    what = error.strerror or str(error)
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {what}"
    if error.errno in OF_WRITING:
        # Whatever else is written is named where it is written.
        _discard_stdout()
        return f"stdout: cannot be written: {what}"
    return what


def _discard_stdout() -> None:
    """Let what is still buffered go nowhere; without this the interpreter complains about it at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(text: str, code: int) -> int:
    if wants_traceback():
        traceback.print_exc(file=sys.stderr)
    note(f"magneton: {text}")
    return code
