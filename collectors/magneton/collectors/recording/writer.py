"""Writing a recording: where raw files go, and the manifest that makes the directory a recording. No frameworks here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from magneton.collectors.observed import Capture, Device
from magneton.collectors.raw.tables import make_tables
from magneton.collectors.sensors.discover import split
from magneton.schemas import manifest
from magneton.schemas.errors import UsageError
from magneton.schemas.files.publish import publish_directory
from magneton.schemas.ids import run_id, sha256_file
from magneton.schemas.kinds import CaptureKind, DeviceKind
from magneton.schemas.manifest import (
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    System,
    Workload,
    write_manifest,
)
from magneton.schemas.raw_paths import RAW
from magneton.schemas.versions.tool import tool_name

CAPTURES = (CaptureKind.ENERGY, CaptureKind.PROFILE, CaptureKind.VALUES)


def cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> Device:
    """Return the host processor, with its model name where the kernel gives one."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return Device(name=next(filter(None, names), None), kind=DeviceKind.CPU)


def check_request(captures: Sequence[str], sensors: Sequence[str] | None) -> None:
    """Refuse captures and sensors that do not exist, before anything runs.

    Raises:
        UsageError: one is not known.
    """
    unknown = [name for name in captures if name not in CAPTURES]
    if unknown or not captures:
        wrong = unknown[0][:40] if unknown else "none"
        raise UsageError(f"there is no capture {wrong!r}", remedy=f"give some of {', '.join(CAPTURES)}")
    split(sensors)


class _DiscardedError(Exception):
    """Makes a publication end without publishing."""


class RecordingWriter:
    """Builds one recording under a hidden name and renames it into place.

    The output is checked when the writer is made, before anything runs. So a long run does not fail at its end because the
    directory exists. Call ``publish`` or ``discard`` once.

    Args:
        path: directory of the recording.
        label: free text naming it for people.
        overwrite: replace an earlier recording at ``path``.

    Raises:
        OutputExistsError: ``path`` is taken.
        InputNotFoundError: ``path`` cannot be created.
    """

    def __init__(self, path: Path, *, label: str, overwrite: bool = False) -> None:
        self._label = label
        self._publication = contextlib.ExitStack()
        staging = self._publication.enter_context(publish_directory(path, last=MANIFEST_NAME, overwrite=overwrite))
        # The program may go to another directory while it is recorded.
        self._staging = staging.absolute()

    @property
    def raw_root(self) -> Path:
        """Directory of all raw files, for those who write them from another process."""
        root = self._staging / RAW
        root.mkdir(exist_ok=True)
        return root

    def raw_directory(self, capture: str, rank: int) -> Path:
        """Return (and make) the directory for what a capture leaves on one rank."""
        directory = self._staging / RAW / capture / f"rank{rank}"
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def publish(
        self,
        captures: Sequence[Capture],
        *,
        system: System,
        workload: Workload,
        devices: Sequence[Device],
        sensors: Sequence[dict[str, Any]] = (),
        notes: Sequence[str] = (),
        incomplete: bool = False,
    ) -> Manifest:
        """Hash the files in the raw directories, write the manifest last and put the recording in place.

        The captures name their files as these lie in the raw directories. The manifest names them by their paths in the
        recording. The recording is marked incomplete when one of its captures is, or when ``incomplete`` says so.
        """
        with self._publication:
            make_tables(self._staging / RAW)
            files = [self._entry(file) for file in sorted((self._staging / RAW).rglob("*")) if file.is_file()]
            made = Manifest(
                run_id=run_id(file.sha256 for file in files),
                label=self._label,
                tool=tool_name(),
                created_unix_ns=time.time_ns(),
                system=system,
                workload=workload,
                devices=[msgspec.convert(device, manifest.Device, from_attributes=True) for device in devices],
                sensors=list(sensors),
                captures=[self._named(capture) for capture in captures],
                files=files,
                incomplete=incomplete or any(capture.incomplete for capture in captures),
                notes=list(notes),
            )
            write_manifest(self._staging, made)
        return made

    def discard(self) -> None:
        """Remove everything written so far; an earlier recording at the same place stays as it was."""
        with contextlib.suppress(_DiscardedError), self._publication:
            raise _DiscardedError

    def _named(self, capture: Capture) -> manifest.Capture:
        """Return the entry of a capture, with its file named as in the recording."""
        named = msgspec.convert(capture, manifest.Capture, from_attributes=True)
        if named.file is None:
            return named
        return msgspec.structs.replace(named, file=self._inside(Path(named.file)))

    def _inside(self, file: Path) -> str:
        return file.relative_to(self._staging).as_posix()

    def _entry(self, file: Path) -> FileEntry:
        return FileEntry(
            name=file.name,
            sha256=sha256_file(file),
            size_bytes=file.stat().st_size,
            path=self._inside(file),
        )
