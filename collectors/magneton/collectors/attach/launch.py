"""Runs a command once per capture, with the recorder inside, and makes one recording of the results."""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from magneton.collectors.attach.request import (
    VARIABLE,
    CaptureReply,
    CaptureRequest,
    Seen,
    forget,
    read_replies,
    read_seen,
)
from magneton.collectors.observed import Device
from magneton.collectors.recording.recorder import described_workload
from magneton.collectors.recording.writer import CAPTURES, RecordingWriter, check_request, cpu
from magneton.collectors.systems import systems
from magneton.collectors.systems.protocol import StepKind
from magneton.schemas.checks import need_whole
from magneton.schemas.errors import InputNotFoundError, NothingRecordedError, UsageError
from magneton.schemas.kinds import CaptureKind
from magneton.schemas.manifest import System, Workload

LOG = logging.getLogger(__name__)

# A shell adds this to the number of the signal that ended a command.
_SIGNALLED = 128
# Packages that the recorder inside the command imports.
_PACKAGES = ("collectors", "schemas")


@dataclass(frozen=True)
class Launch:
    """How a command is recorded. A value that makes no sense raises ``UsageError``.

    Attributes:
        captures: which captures; the command runs once for each. Several joined by commas, ``energy,profile``, are taken in one
            run, one after the other.
        warmup_steps: steps before those that are recorded.
        steps: steps to record in the energy and profile captures; None: all until the end.
        value_steps: steps to record in the capture of values; None: all until the end.
        sensors: sensors to read; None: all there are.
        stacks: Python stacks in the profile.
        label: free text naming the recording.
        system: name of what runs.
        workload: the work, as its author states it.
        overwrite: replace an earlier recording.
        report: called with a text about the current work.
        output_to_stderr: send what the command writes to stdout to stderr, so that stdout stays free.
    """

    captures: Sequence[str] = CAPTURES
    warmup_steps: int = 2
    steps: int | None = 5
    value_steps: int | None = 1
    sensors: Sequence[str] | None = None
    stacks: bool = True
    label: str | None = None
    system: str | None = None
    workload: Workload | None = None
    overwrite: bool = False
    report: Callable[[str], None] = field(default=lambda _: None)
    output_to_stderr: bool = False

    def __post_init__(self) -> None:
        need_whole("warmup_steps", self.warmup_steps, least=0)
        for name, value in (("steps", self.steps), ("value_steps", self.value_steps)):
            if value is not None:
                need_whole(name, value, least=1)
        for name in ("batch", "input_tokens"):
            value = None if self.workload is None else getattr(self.workload, name)
            if value is not None:
                need_whole(name, value, least=1)


def record_command(command: Sequence[str], out: Path, launch: Launch | None = None) -> int:
    """Record an unmodified program.

    Args:
        command: the program and its arguments, as the user typed them.
        out: directory of the recording.
        launch: how.

    Returns:
        The exit code of the command: of the first run that failed, else 0. What was recorded until a failure is published,
        marked incomplete.

    Raises:
        UsageError: no command, or captures or sensors that do not exist.
        InputNotFoundError: the command cannot be started.
        OutputExistsError: ``out`` is taken (nothing has run then).
        NothingRecordedError: the command succeeded, and no step of it was seen, or no operator in any step.
    """
    launch = launch or Launch()
    if not command:
        raise UsageError("there is no command to record", remedy="give one after --")
    runs = [[name for name in CAPTURES if name in run.split(",")] for run in launch.captures]
    wanted = [name for name in CAPTURES if any(name in run for run in runs)]
    check_request([name for run in launch.captures for name in run.split(",")], launch.sensors)
    # The bare program first, as ever.
    runs.sort(key=lambda run: CAPTURES.index(run[0]))
    writer = RecordingWriter(out, label=launch.label or out.name, overwrite=launch.overwrite)
    replies: list[CaptureReply] = []
    seen: list[Seen] = []
    warmup_steps = launch.warmup_steps
    code = 0
    try:
        with tempfile.TemporaryDirectory(prefix="magneton-") as scratch:
            folder = site_folder(Path(scratch))
            for number, run in enumerate(runs, 1):
                launch.report(f"run {number} of {len(runs)}: {', '.join(run)}")
                requests = [_request(launch, capture, writer, Path(scratch)) for capture in run]
                stdout = sys.stderr.fileno() if launch.output_to_stderr else None
                code = _run(command, requests, warmup_steps, folder, stdout)
                found, seen = _heard(requests)
                if not code and not found and warmup_steps and any(process.prefills for process in seen):
                    # Its only prefill is among the steps that were to warm it up.
                    launch.report(f"run {number} of {len(runs)} again: no prefill follows the warm-up")
                    warmup_steps = 0
                    for request in requests:
                        forget(request)
                    code = _run(command, requests, warmup_steps, folder, stdout)
                    found, seen = _heard(requests)
                LOG.info("captures %s: exit code %d, %d replies", ", ".join(run), code, len(found))
                replies += found
                if code or not _recorded(found):
                    break
        empty = without_operators(replies)
        if not _recorded(replies):
            writer.discard()
            if code:
                return code
            raise _no_operators(empty) if empty else _nothing(replies, seen, launch)
        _publish(writer, replies, launch, warmup_steps, code, wanted, empty)
    except BaseException:
        writer.discard()
        raise
    return code


def _run(
    command: Sequence[str], requests: Sequence[CaptureRequest], warmup_steps: int, folder: str, stdout: int | None
) -> int:
    """Run the command once for one or several captures, and return its exit code."""
    first = dataclasses.replace(requests[0], warmup_steps=warmup_steps, then=list(requests[1:]))
    return run_attached(command, first, folder, stdout)


def _heard(requests: Sequence[CaptureRequest]) -> tuple[list[CaptureReply], list[Seen]]:
    """Return what the processes of a run have replied, and what those have seen that recorded nothing."""
    replies = [reply for request in requests for reply in read_replies(request)]
    return replies, [seen for request in requests for seen in read_seen(request)]


def _recorded(replies: Sequence[CaptureReply]) -> bool:
    return any(reply.captures for reply in replies)


def without_operators(replies: Sequence[CaptureReply]) -> list[str]:
    """Take captures that should hold operators and hold none out of the replies; return their kinds.

    The operators of one rank are enough for all ranks: some may have had nothing to do.
    """
    held: dict[str, int] = {}
    for reply in replies:
        if reply.operators is not None:
            for capture in reply.captures:
                held[capture.kind] = held.get(capture.kind, 0) + reply.operators
    empty = [kind for kind, operators in held.items() if not operators]
    for reply in replies:
        reply.captures = [capture for capture in reply.captures if capture.kind not in empty]
    # Times of steps in which nothing was computed say nothing either.
    if empty and not any(held.values()):
        for reply in replies:
            reply.captures = []
    return empty


def _no_operators(empty: Sequence[str]) -> NothingRecordedError:
    return NothingRecordedError(
        f"the command ran, and the recorded steps hold no operator (captures: {', '.join(empty)})",
        remedy="the work may lie in other steps: try another --warmup or --steps 0, "
        "or mark the steps in the program with magneton.collectors.record",
    )


def _nothing(replies: Sequence[CaptureReply], seen: Sequence[Seen], launch: Launch) -> NothingRecordedError:
    failure = next((reply.failure for reply in replies if reply.failure), None)
    if failure is not None:
        return NothingRecordedError(f"the recorder failed inside the command: {failure}")
    if not seen:
        return NothingRecordedError(
            "the command ran, and no Python process of it imported a framework that can be recorded "
            f"({', '.join(dict.fromkeys(system.FRAMEWORK for system in systems().values()))})",
            remedy="Python must be allowed to read PYTHONPATH: start it without -I, -E and -S",
        )
    counted = [f"{process.steps} {process.kind} ({process.framework})" for process in seen if process.steps]
    return NothingRecordedError(
        f"the command ran, and fewer than {launch.warmup_steps + 1} steps of it were seen: {', '.join(counted) or 'none'}",
        remedy="a step is a call of an outermost torch module or of an optimiser, of generate, of an engine, or of a "
        "compiled program; try --warmup 0, or call magneton.collectors.record.step() at the end of each step",
    )


def _request(launch: Launch, capture: str, writer: RecordingWriter, replies: Path) -> CaptureRequest:
    return CaptureRequest(
        capture=capture,
        raw=str(writer.raw_root),
        replies=str(replies),
        warmup_steps=launch.warmup_steps,
        steps=launch.value_steps if capture == CaptureKind.VALUES else launch.steps,
        stacks=launch.stacks,
        sensors=None if launch.sensors is None else list(launch.sensors),
    )


def site_folder(scratch: Path) -> str:
    """Make the folder for the command's ``PYTHONPATH``. It holds the recorder and nothing else of this environment."""
    folder = scratch / "site"
    (folder / "magneton").mkdir(parents=True)
    for package in _PACKAGES:
        spec = find_spec(f"magneton.{package}")
        if spec is None or spec.origin is None:
            raise RuntimeError(f"magneton.{package} is not where it was imported from")
        (folder / "magneton" / package).symlink_to(Path(spec.origin).resolve().parent, target_is_directory=True)
    custom = Path(__file__).resolve().parent / "site" / "sitecustomize.py"
    (folder / "sitecustomize.py").symlink_to(custom)
    return str(folder)


def run_attached(command: Sequence[str], request: CaptureRequest, folder: str, stdout: int | None) -> int:
    """Run a command with the recorder inside, to its end, and return its exit code as a shell would.

    Args:
        command: the program and its arguments.
        request: what the recorder should do.
        folder: what ``site_folder`` made.
        stdout: where the command's stdout goes; None: to ours.

    Raises:
        InputNotFoundError: the command cannot be started.
    """
    known = os.environ.get("PYTHONPATH", "")
    environment = os.environ | {
        VARIABLE: request.encode(),
        "PYTHONPATH": os.pathsep.join([folder, *([known] if known else [])]),
    }
    sys.stdout.flush()
    try:
        process = subprocess.Popen(list(command), env=environment, stdout=stdout)  # noqa: S603 - the command the user typed
    except OSError as error:
        raise InputNotFoundError(
            f"cannot be started: {error.strerror}", path=command[0], remedy="give a program after --"
        ) from error
    while True:
        try:
            code = process.wait()
            break
        except KeyboardInterrupt:
            # The terminal sent Ctrl-C to the command as well. The command decides how it ends.
            continue
    return _SIGNALLED - code if code < 0 else code


def _times(launch: Launch) -> str:
    n = len(launch.captures)
    return (
        "once for each capture"
        if not any("," in run for run in launch.captures)
        else "once"
        if n == 1
        else f"{n} times"
    )


def _publish(
    writer: RecordingWriter,
    replies: Sequence[CaptureReply],
    launch: Launch,
    warmup_steps: int,
    code: int,
    wanted: Sequence[str],
    empty: Sequence[str],
) -> None:
    captures = [capture for reply in replies for capture in reply.captures]
    notes = list(dict.fromkeys(note for reply in replies for note in reply.notes))
    devices: dict[tuple[str, int | None], Device] = {}
    versions: dict[str, str] = {}
    for reply in replies:
        devices |= {(d.kind, d.index): d for d in reply.devices}
        versions = reply.versions | versions
        if reply.failure:
            notes.append(f"The recorder failed in rank {reply.rank}: {reply.failure}")
    counted = next((a.step_kind for a in replies if a.step_kind), StepKind.CALLS)
    notes.append(f"Recorded from outside: steps are {counted}; the command ran {_times(launch)}.")
    missing = [name for name in wanted if name not in {c.kind for c in captures}]
    if warmup_steps < launch.warmup_steps:
        notes.append(
            "No prefill followed the warm-up: recording began with the first step, which no step had warmed up."
        )
    if empty:
        notes.append(f"Captures that held no operator and were left out: {', '.join(empty)}.")
    if missing:
        notes.append(f"Captures that were wanted and are missing: {', '.join(missing)}.")
    if code:
        notes.append(f"The command ended with exit code {code}.")
        for capture in captures:
            capture.incomplete = capture.incomplete or (not missing and capture.kind == wanted[-1])
    workload = described_workload(launch.workload)
    done = [a for a in replies for c in a.captures if c.kind == CaptureKind.PROFILE]
    workload.steps = done[0].steps if done else workload.steps
    workload.warmup_steps = warmup_steps
    name = launch.system
    for reply in replies:
        name = name or reply.system
        workload.model = workload.model or reply.model
        for field_name, value in reply.workload.items():
            if getattr(workload, field_name) is None:
                setattr(workload, field_name, value)
    writer.publish(
        captures,
        system=System(name=name, versions=versions),
        workload=workload,
        devices=[cpu(), *devices.values()],
        sensors=[sensor for reply in replies for sensor in reply.sensors],
        notes=notes,
        incomplete=bool(missing or code or any(a.failure for a in replies)),
    )
