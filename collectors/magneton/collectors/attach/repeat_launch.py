"""Runs a command once with chosen operators repeated in place, and returns the result."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from magneton.collectors.attach.launch import run_attached, site_folder
from magneton.collectors.attach.request import CaptureReply, CaptureRequest, RepeatRequest, read_replies
from magneton.collectors.raw.tables import make_tables
from magneton.collectors.sensors.discover import split
from magneton.collectors.sensors.sampler import POWER_FILE
from magneton.schemas.errors import NothingRecordedError, UsageError
from magneton.schemas.kinds import CaptureKind

STEPS = "a step is a call of an outermost torch module or of an optimiser"
PROGRAMS = "a program is a session of ONNX Runtime, or a function of jax.jit or tf.function"


@dataclass(frozen=True)
class RepeatedRun:
    """A command that ran with regions repeated.

    Attributes:
        code: its exit code, as a shell would give it.
        reply: what was done; None if the command failed before anything was repeated.
        power: file of the table ``power``, on CLOCK_MONOTONIC like the windows; None where no sensor was read.
    """

    code: int
    reply: CaptureReply | None
    power: Path | None


def check_sensors(sensors: Sequence[str] | None) -> None:
    """Refuse names that are not sensors. Meters (``command:``, ``file:``) are refused too: their clock is not that of the windows.

    Raises:
        UsageError: a name that cannot be used here.
    """
    _, meters = split(sensors)
    if meters:
        raise UsageError(
            "a meter cannot be read here, since its clock is not that of the windows",
            remedy="name sensors only, see `magneton sensors`",
        )


def repeat_command(
    command: Sequence[str],
    plan: RepeatRequest,
    scratch: Path,
    *,
    warmup_steps: int = 2,
    sensors: Sequence[str] | None = None,
    output_to_stderr: bool = False,
) -> RepeatedRun:
    """Run an unmodified program once, with regions of it repeated.

    Args:
        command: the program and its arguments, as the user typed them.
        plan: what is repeated, and how.
        scratch: directory for readings. It must exist as long as the result is used.
        warmup_steps: steps before the first that is repeated; at least 1, since a step is from one end to the next.
        sensors: sensors to read; None: all there are.
        output_to_stderr: send what the command writes to stdout to stderr.

    Raises:
        UsageError: no command, or numbers or sensors that are not allowed.
        InputNotFoundError: the command cannot be started.
        NothingRecordedError: the command succeeded, and too few of its steps were seen.
    """
    if not command:
        raise UsageError("there is no command to run", remedy="give one after --")
    repeated = () if plan.alone else plan.regions
    if warmup_steps < 1 or plan.rounds < 1 or not plan.window_s > 0 or any(r.times < 2 for r in repeated):
        raise UsageError(
            "too small a number of steps, rounds or times",
            remedy="give --warmup and --rounds of at least 1, and --times of at least 2",
        )
    check_sensors(sensors)
    request = CaptureRequest(
        capture=CaptureKind.REPEAT,
        raw=str(scratch / "raw"),
        replies=str(scratch),
        warmup_steps=warmup_steps,
        steps=None,
        sensors=None if sensors is None else list(sensors),
        repeat=plan,
    )
    code = run_attached(command, request, site_folder(scratch), sys.stderr.fileno() if output_to_stderr else None)
    replies = read_replies(request)
    make_tables(scratch)
    reply = next((a for a in replies if a.rank == 0 and not a.failure), None)
    if reply is None and not code:
        failure = next((a.failure for a in replies if a.failure), None)
        if failure is not None:
            raise NothingRecordedError(f"the recorder failed inside the command: {failure}")
        system = plan.regions[0].system
        what = "steps of rank 0" if system == "torch" else f"calls of one program of {system}"
        step = STEPS if system == "torch" else PROGRAMS
        raise NothingRecordedError(
            f"the command ran, and fewer than {warmup_steps + 1} {what} were seen", remedy=f"{step}; try --warmup 1"
        )
    power = scratch / "raw" / CaptureKind.REPEAT / "rank0" / POWER_FILE
    return RepeatedRun(code, reply, power if power.is_file() else None)
