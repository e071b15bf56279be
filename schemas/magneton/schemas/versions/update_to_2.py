"""From schema version 1 to 2: a file is named by its path in the recording, no longer by its bare name.

Version 1 named the file of a capture ``rank0.json``. Version 2 names it ``raw/profile/rank0/rank0.json``. Two files of one
name are then two things. Version 1 could even keep two inputs at one path: the later one replaced the earlier one. The
earlier one is then listed as not kept, at a path of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from magneton.schemas.raw_paths import RawPaths, capture_folder, extra_folder

_KEYS = ("rank", "repeat", "input_id")


class _File(msgspec.Struct):
    name: str
    path: str | None = None
    role: str = "primary"


class _Capture(msgspec.Struct):
    name: str
    rank: int = 0
    repeat: int | None = None
    input_id: str | None = None
    file: str | None = None

    def folders(self) -> tuple[str, ...]:
        """Return the folders in which version 1 kept the files of the capture."""
        own = capture_folder(self.name, self.rank)
        return own, f"{own}/{self.input_id or '0'}"


class _Manifest(msgspec.Struct):
    files: list[_File] = []
    captures: list[_Capture] = []
    sensors: list[dict[str, Any]] = []


def update_manifest(document: dict[str, Any]) -> dict[str, Any]:
    """Name files by their paths in ``files``, ``captures`` and the power logs of ``sensors``.

    Raises:
        msgspec.ValidationError: the document is no manifest.
    """
    known = msgspec.convert(document, _Manifest)
    places, kept = _places(known)
    files = [
        {**entry, "path": place} | ({} if is_kept else {"kept": False})
        for entry, place, is_kept in zip(document.get("files", []), places, kept, strict=True)
    ]
    of_captures = _files_of_captures(known, places)
    captures = [
        {**entry, "file": file} if file is not None else entry
        for entry, file in zip(document.get("captures", []), of_captures, strict=True)
    ]
    # Power logs were listed in the order of their captures.
    free = list(of_captures)
    sensors = []
    for sensor in known.sensors:
        found = None
        if sensor.get("kind") == "power_log":
            found = next((f for f in free if f is not None and PurePosixPath(f).name == sensor.get("file")), None)
        if found is not None:
            free.remove(found)
        sensors.append(sensor if found is None else {**sensor, "file": found})
    return {**document, "files": files, "captures": captures, "sensors": sensors}


def _places(known: _Manifest) -> tuple[list[str], list[bool]]:
    """Return the path of each file, and whether a file of the recording lies there."""
    last: dict[str, int] = {file.path: number for number, file in enumerate(known.files) if file.path is not None}
    kept = [file.path is not None and last[file.path] == number for number, file in enumerate(known.files)]
    paths = RawPaths(last)
    free = [c for c in known.captures if c.file is not None]
    places = []
    for file, is_kept in zip(known.files, kept, strict=True):
        if is_kept:
            places.append(str(file.path))
            continue
        of = next((c for c in free if c.file == file.name), None)
        if of is not None:
            free.remove(of)
        folder = str(PurePosixPath(file.path).parent) if file.path is not None else None
        folder = folder or (capture_folder(of.name, of.rank) if of is not None else extra_folder())
        places.append(paths.place(folder, PurePosixPath(file.name).name))
    return places, kept


def _files_of_captures(known: _Manifest, places: list[str]) -> list[str | None]:
    """Return the path of the file of each capture: one in the folder of the capture first, then any of its name."""
    found: list[str | None] = [None] * len(known.captures)
    free = [(file, place) for file, place in zip(known.files, places, strict=True) if file.role != "derived"]
    for anywhere in (False, True):
        for number, capture in enumerate(known.captures):
            if capture.file is None or found[number] is not None:
                continue
            fits = (
                pair
                for pair in free
                if pair[0].name == capture.file
                and (anywhere or str(PurePosixPath(pair[0].path or pair[1]).parent) in capture.folders())
            )
            pair = next(fits, None)
            if pair is not None:
                free.remove(pair)
                found[number] = pair[1]
    for number, capture in enumerate(known.captures):
        if found[number] is None and capture.file is not None:
            found[number] = f"{capture.folders()[0]}/{PurePosixPath(capture.file).name}"
    return found


def _update_files(key: str) -> Callable[[Any, Path], Any]:
    """Return the step of a table with a column ``file`` and the name of the capture in the column ``key``."""

    def step(table: Any, path: Path) -> Any:
        import pyarrow as pa

        missing = [None] * table.num_rows
        columns = [table[n].to_pylist() if n in table.column_names else missing for n in (key, *_KEYS, "file")]
        of_captures = _recorded_files(path)
        files = []
        for name, rank, repeat, input_id, file in zip(*columns, strict=True):
            stated = of_captures.get((name, rank or 0, repeat, input_id))
            if file is not None and (stated is None or PurePosixPath(stated).name != file):
                stated = f"{capture_folder(str(name), rank or 0)}/{PurePosixPath(file).name}"
            files.append(None if file is None else stated)
        if "file" not in table.column_names:
            return table
        return table.set_column(table.column_names.index("file"), "file", pa.array(files, pa.string()))

    return step


def _recorded_files(table: Path) -> Mapping[tuple[Any, ...], str]:
    """Return the files of the captures of a recording, from the manifest beside one of its tables."""
    try:
        document = msgspec.json.decode((table.parent.parent / "manifest.json").read_bytes())
        updated = update_manifest(document) if document["schema_version"] == 1 else document
        known = msgspec.convert(updated, _Manifest)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, TypeError, KeyError):
        # Tables are read without a manifest too; the names then say where version 1 kept its files.
        return {}
    return {(c.name, c.rank, c.repeat, c.input_id): c.file for c in known.captures if c.file is not None}


TABLES: Mapping[str, Callable[[Any, Path], Any]] = {
    "captures": _update_files("name"),
    "quarantine": _update_files("capture"),
}
