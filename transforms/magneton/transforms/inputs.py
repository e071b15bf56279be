"""The inputs of a recording: each gets a path of its own in it, a hash, and a copy where one is wanted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from magneton.schemas.ids import sha256_copy, sha256_file
from magneton.schemas.kinds import FileRole
from magneton.schemas.manifest import FileEntry
from magneton.schemas.raw_paths import RawPaths
from magneton.transforms.recorded.known import Known


@dataclass
class RawFile:
    """One input.

    Attributes:
        path: where it lies.
        folder: folder of the recording in which a copy belongs.
        sha256: hash, where it was read already.
        copy: a copy that was made while it was read.
        place: its path in the recording, once given; unique there.
    """

    path: Path
    folder: str
    sha256: str | None = None
    copy: Path | None = None
    place: str = ""


def give_places(files: Sequence[RawFile], known: Known | None) -> None:
    """Give each file its path in the recording.

    Files of a recording that is normalised again keep theirs. The others get ``<folder>/<name>``, or a folder of their own
    below it where that is taken.
    """
    paths = RawPaths()
    for file in files:
        stated = None if known is None else known.path_of(file.path)
        if stated is not None and paths.keep(stated):
            file.place = stated
    for file in files:
        if not file.place:
            file.place = paths.place(file.folder, file.path.name)


def keep(files: Iterable[RawFile], directory: Path, known: Known | None, *, copies: bool) -> list[FileEntry]:
    """Hash the files that were not read yet, put copies in place, and return the entries for the manifest.

    Args:
        files: the inputs, with their places.
        directory: directory of the recording.
        known: the recording that is normalised again.
        copies: keep copies.

    Raises:
        ChecksumError: a file of a recording is not the one that its manifest states.
    """
    entries = []
    for file in files:
        kept = directory / file.place
        if copies:
            kept.parent.mkdir(parents=True, exist_ok=True)
        if file.sha256 is None:
            file.sha256 = sha256_copy(file.path, kept) if copies else sha256_file(file.path)
        elif copies and file.copy is not None:
            file.copy.rename(kept)
        if known is not None:
            known.check(file.path, file.sha256)
        size = (kept if copies else file.path).stat().st_size
        entries.append(FileEntry(file.path.name, file.sha256, size, file.place, kept=copies))
    return entries


def tables_of(directory: Path) -> list[FileEntry]:
    """Return the entries of the tables of a recording."""
    return [
        FileEntry(
            name=table.name,
            sha256=sha256_file(table),
            size_bytes=table.stat().st_size,
            path=f"tables/{table.name}",
            role=FileRole.DERIVED,
        )
        for table in sorted((directory / "tables").iterdir())
    ]
