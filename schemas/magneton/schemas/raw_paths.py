"""Where the inputs of a recording lie in it: no two at one path, whatever they were called before."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

RAW = "raw"
# A folder is named after a capture, and the name of a capture may come from a manifest that somebody else wrote.
_UNSAFE = re.compile(r"[^\w.+-]+")


def capture_folder(capture: str, rank: int, *below: str) -> str:
    """Return the folder for what a capture left on one rank: ``raw/profile/rank0``."""
    return "/".join([RAW, _part(capture), f"rank{rank}", *map(_part, below)])


def extra_folder() -> str:
    """Return the folder for files that were given beside the traces."""
    return f"{RAW}/extra"


def _part(name: str) -> str:
    """Return a text as the name of one folder."""
    return _UNSAFE.sub("_", name).strip(".") or "_"


class RawPaths:
    """The paths that are taken in one recording, relative to its manifest.

    Args:
        taken: paths that are taken already.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()
        for path in taken:
            self._take(path)

    def place(self, folder: str, name: str) -> str:
        """Take a path for a file.

        The second file of a name gets a folder of its own. Example: ``raw/profile/rank0/rank0.json``, then
        ``raw/profile/rank0/2/rank0.json``. Names that differ in case only count as one, since some file systems take
        them for one.
        """
        name = "_" if name in ("", ".", "..") else name.replace("/", "_")
        path, number = f"{folder}/{name}", 1
        while not self._is_free(path):
            number += 1
            path = f"{folder}/{number}/{name}"
        self._take(path)
        return path

    def keep(self, path: str) -> bool:
        """Take this very path, where it lies below ``raw`` and is free; say whether it was."""
        parts = PurePosixPath(path).parts
        if path != "/".join(parts) or len(parts) < 2 or parts[0] != RAW or ".." in parts or not self._is_free(path):
            return False
        self._take(path)
        return True

    def _is_free(self, path: str) -> bool:
        key = path.casefold()
        above = {str(parent) for parent in PurePosixPath(key).parents}
        return key not in self._files and key not in self._folders and not above & self._files

    def _take(self, path: str) -> None:
        key = path.casefold()
        self._files.add(key)
        self._folders |= {str(parent) for parent in PurePosixPath(key).parents}
