"""Writing a recording: where raw files go, and the manifest that makes the directory a recording. No frameworks here."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from magneton.collectors.sensors.discover import split
from magneton.schemas.errors import UsageError
from magneton.schemas.files.publish import publish_directory
from magneton.schemas.ids import run_id, sha256_file
from magneton.schemas.kinds import CaptureKind, DeviceKind
from magneton.schemas.manifest import (
    MANIFEST_NAME,
    Capture,
    Device,
    FileEntry,
    Manifest,
    System,
    Workload,
    write_manifest,
)
from magneton.schemas.raw_paths import RAW
from magneton.schemas.versions.tool import tool_name

CAPTURES = (CaptureKind.ENERGY, CaptureKind.PROFILE, CaptureKind.VALUES)
# Distributions whose version says which program ran, by the module that shows they were used.
_SYSTEMS = {
    "accelerate": "accelerate",
    "diffusers": "diffusers",
    "jax": "jax",
    "megatron.core": "megatron-core",
    "numpy": "numpy",
    "onnxruntime": "onnxruntime",
    "sglang": "sglang",
    "tensorflow": "tensorflow",
    "torch": "torch",
    "transformers": "transformers",
    "triton": "triton",
    "vllm": "vllm",
}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the known systems this process has imported so far."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for module, distribution in _SYSTEMS.items():
        if module in sys.modules:
            try:
                found[distribution] = metadata.version(distribution)
            except metadata.PackageNotFoundError:
                # Of a distribution with another name (tensorflow-cpu), or of none.
                version = getattr(sys.modules[module], "__version__", None)
                if version is not None:
                    found[distribution] = str(version)
    return found


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
            files = [self._entry(file) for file in sorted((self._staging / RAW).rglob("*")) if file.is_file()]
            manifest = Manifest(
                run_id=run_id(file.sha256 for file in files),
                label=self._label,
                tool=tool_name(),
                created_unix_ns=time.time_ns(),
                system=system,
                workload=workload,
                devices=list(devices),
                sensors=list(sensors),
                captures=[self._named(capture) for capture in captures],
                files=files,
                incomplete=incomplete or any(capture.incomplete for capture in captures),
                notes=list(notes),
            )
            write_manifest(self._staging, manifest)
        return manifest

    def discard(self) -> None:
        """Remove everything written so far; an earlier recording at the same place stays as it was."""
        with contextlib.suppress(_DiscardedError), self._publication:
            raise _DiscardedError

    def _named(self, capture: Capture) -> Capture:
        """Return a capture with its file named as in the recording."""
        if capture.file is None:
            return capture
        return msgspec.structs.replace(capture, file=self._inside(Path(capture.file)))

    def _inside(self, file: Path) -> str:
        return file.relative_to(self._staging).as_posix()

    def _entry(self, file: Path) -> FileEntry:
        return FileEntry(
            name=file.name,
            sha256=sha256_file(file),
            size_bytes=file.stat().st_size,
            path=self._inside(file),
        )
