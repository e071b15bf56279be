"""A recording that is normalised again: what its manifest knows, and which of its raw files is which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from magneton.schemas.errors import ChecksumError
from magneton.schemas.kinds import CaptureKind
from magneton.schemas.manifest import Capture, FileEntry, Manifest, System


def changed(path: Path) -> ChecksumError:
    """Return the error for a raw file that is not the one its manifest states."""
    return ChecksumError(
        "does not have the hash its manifest states", path=path, remedy="copy or unpack the recording again"
    )


@dataclass(frozen=True)
class Known:
    """What is known before anything is read.

    Attributes:
        manifest: manifest of the recording.
        entries: the entry of each raw file, by where the file lies.
    """

    manifest: Manifest
    entries: Mapping[Path, FileEntry] = field(default_factory=dict)

    def check(self, path: Path, sha256: str) -> None:
        """Compare the hash of a file that was read to the one that the manifest states.

        Raises:
            ChecksumError: it is another file.
        """
        entry = self.entries.get(path)
        if entry is not None and entry.sha256 != sha256:
            raise changed(path)

    def path_of(self, path: Path) -> str | None:
        """Return the path that a file has in the recording; None for a file from elsewhere."""
        entry = self.entries.get(path)
        return None if entry is None else entry.path

    def carry_over(self, manifest: Manifest, paths: Mapping[str, str]) -> None:
        """Complete a manifest made from traces by what the recorder knew and traces do not say.

        Args:
            manifest: the new manifest.
            paths: path of each raw file in this recording, by its path in the new one.
        """
        before = self.manifest
        manifest.system = System(
            name=before.system.name or manifest.system.name,
            versions=dict(sorted((manifest.system.versions | before.system.versions).items())),
        )
        listed = {(d.kind, d.index) for d in before.devices}
        manifest.devices = before.devices + [d for d in manifest.devices if (d.kind, d.index) not in listed]
        captures = {capture.file: capture for capture in before.captures if capture.file is not None}
        for capture in manifest.captures:
            earlier = captures.get(paths.get(capture.file or "", ""))
            if earlier is not None and earlier.kind == capture.kind:
                _complete(capture, earlier)
        manifest.incomplete = manifest.incomplete or before.incomplete


def _complete(capture: Capture, earlier: Capture) -> None:
    # Power logs were read with their anchors.
    if capture.kind != CaptureKind.ENERGY:
        capture.anchors = earlier.anchors
        capture.incomplete = capture.incomplete or earlier.incomplete
