"""Run a block of code under a profiler and leave a recording, also when the block fails."""

from __future__ import annotations

import copy
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from magneton.collectors import marks
from magneton.collectors.observed import Capture, Device
from magneton.collectors.recording.remarks import SCRUBBED
from magneton.collectors.recording.versions import versions
from magneton.collectors.recording.writer import RecordingWriter, cpu
from magneton.collectors.sensors import anchors_now
from magneton.schemas.errors import NothingRecordedError, UsageError
from magneton.schemas.kinds import CaptureKind
from magneton.schemas.manifest import System, Workload


def described_workload(workload: Workload | None) -> Workload:
    """Return a workload of the recorder's own, saying who stated it."""
    own = copy.deepcopy(workload) if workload is not None else Workload()
    if workload is not None and own.source is None:
        own.source = "record"
    return own


def no_operators(*captures: str) -> NothingRecordedError:
    """Return the error about a block in which nothing was computed."""
    return NothingRecordedError(
        f"the recorded steps hold no operator (captures: {', '.join(captures)})",
        remedy="run the work inside the block, and call step() at the end of each step",
    )


class Profile(Protocol):
    """What a recorder needs of a profiler.

    Attributes:
        source_format: format of the file.
        operators: number of operators in the file; None where that is unknown.
    """

    source_format: str
    operators: int | None

    def start(self) -> None:
        """Begin the first step."""

    def step(self) -> None:
        """End a step and begin the next."""

    def stop(self) -> None:
        """End the last step."""

    def export(self, directory: Path) -> Path:
        """Write what was recorded into a directory and return the file."""

    def rank(self) -> int:
        """Return the rank of this process."""

    def devices(self) -> list[Device]:
        """Return the accelerators in use."""


class Recorder:
    """Records what runs in its ``with`` block; ``record.record`` makes one.

    Args:
        path: directory of the recording.
        profile: profiler to run.
        label: free text naming the recording (default: the directory's name).
        system: name of what runs.
        workload: the work, as its author states it.
        overwrite: replace an earlier recording at ``path``.
        settings: record the settings that were in force at the end of the block.

    Raises:
        OutputExistsError: ``path`` is taken (raised on entering the block, before anything runs).
    """

    def __init__(
        self,
        path: str | PathLike[str],
        profile: Profile,
        *,
        label: str | None = None,
        system: str | None = None,
        workload: Workload | None = None,
        overwrite: bool = False,
        settings: bool = False,
    ) -> None:
        self.path = Path(path)
        self._settings = settings
        self._profile = profile
        self._label = label or self.path.name
        self._system = system
        self._workload = described_workload(workload)
        self._overwrite = overwrite
        self._steps = 0

    @property
    def _announced(self) -> int | None:
        if self._workload.steps is None:
            return None
        return self._workload.steps + (self._workload.warmup_steps or 0)

    def __enter__(self) -> Self:
        self._writer = RecordingWriter(self.path, label=self._label, overwrite=self._overwrite)
        try:
            self._anchors = anchors_now()
            self._profile.start()
        except BaseException:
            self._writer.discard()
            raise
        marks.enter(self)
        return self

    def step(self) -> None:
        """Say that a step has ended (warm-up steps count). Steps beyond those announced are not recorded.

        Raises:
            UsageError: the number of steps was not announced.
        """
        if self._announced is None:
            raise UsageError("the recorder was not told how many steps to expect", remedy="give Workload(steps=...)")
        self._steps += 1
        self._profile.step()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        marks.leave(self)
        try:
            self._finish(error)
        except BaseException as failure:
            self._writer.discard()
            if error is None:
                raise
            # What the program raised is what its author needs to see first.
            error.add_note(f"magneton: nothing was recorded: {failure}")

    def _finish(self, error: BaseException | None) -> None:
        self._profile.stop()
        self._anchors += anchors_now()
        rank = self._profile.rank()
        file = self._profile.export(self._writer.raw_directory(CaptureKind.PROFILE, rank))
        if error is None and self._profile.operators == 0:
            raise no_operators(CaptureKind.PROFILE)
        if self._settings:
            from magneton.collectors.recording.knobs import FILE, write_knobs

            write_knobs(
                self._writer.raw_directory(CaptureKind.PROFILE, rank) / FILE,
                (),
                {"capture": CaptureKind.PROFILE, "rank": rank},
            )
        notes = [SCRUBBED]
        if error is not None:
            notes.append(f"Stopped by {type(error).__name__} after {self._steps} whole steps, warm-up included.")
        elif self._announced is not None and self._steps < self._announced:
            notes.append(f"Ended after {self._steps} of {self._announced} steps, warm-up included.")
        capture = Capture(
            name=CaptureKind.PROFILE,
            kind=CaptureKind.PROFILE,
            rank=rank,
            source_format=self._profile.source_format,
            file=str(file),
            incomplete=len(notes) > 1,
            anchors=self._anchors,
        )
        self._writer.publish(
            [capture],
            system=System(name=self._system, versions=versions()),
            workload=self._workload,
            devices=[cpu(), *self._profile.devices()],
            notes=notes,
        )
