"""The cache: tables that cannot lie beside what they were made from. What was used longest ago goes first."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import time
from pathlib import Path

from magneton.schemas.errors import UsageError
from magneton.schemas.files.leftovers import MARK

LOG = logging.getLogger("magneton")
LIMIT = "MAGNETON_CACHE_GIB"
_DEFAULT_GIB = 5.0
# Another program may read what was used this recently.
_IN_USE_S = 3600
_FORGOTTEN_S = 86_400


def cache_directory() -> Path:
    """Return where tables are kept that cannot lie beside what they were made from: ``$XDG_CACHE_HOME/magneton/recordings``.

    Without that variable it is ``~/.cache/magneton/recordings``. Whatever lies there may be deleted at any time.

    Raises:
        UsageError: nothing says where the user's files are.
    """
    stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        # The XDG specification has relative paths ignored.
        base = stated if stated.is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:
        raise UsageError("there is no directory to keep tables in", remedy="set XDG_CACHE_HOME") from error
    return base / "magneton" / "recordings"


def limit_bytes() -> int:
    """Return how much the cache may hold: ``$MAGNETON_CACHE_GIB``, else 5 GiB.

    Raises:
        UsageError: the variable holds no number, or a negative one.
    """
    stated = os.environ.get(LIMIT, "").strip()
    try:
        gib = float(stated) if stated else _DEFAULT_GIB
    except ValueError:
        gib = math.nan
    if not 0 <= gib < math.inf:
        raise UsageError(f"{LIMIT} is {stated[:40]!r}, which is no size", remedy=f"give GiB, for example {LIMIT}=2.5")
    return int(gib * 2**30)


def used(entry: Path) -> None:
    """Note that a directory of the cache is used now."""
    with contextlib.suppress(OSError):
        os.utime(entry)


def make_room(entry: Path) -> None:
    """Remove from the cache what was used longest ago, until it holds no more than it may.

    ``entry`` itself stays, and so does what was used within the last hour: another program may read it. What killed programs
    left in the cache is removed after a day.

    Args:
        entry: directory of the cache that was just made.

    Raises:
        UsageError: see ``limit_bytes``.
    """
    limit, now = limit_bytes(), time.time()
    found: list[tuple[float, int, Path]] = []
    for path in _listed(entry.parent):
        with contextlib.suppress(OSError):
            age_s = now - path.stat().st_mtime
            if not path.name.startswith(MARK):
                found.append((age_s, _bytes(path), path))
            elif age_s > _FORGOTTEN_S:
                shutil.rmtree(path, ignore_errors=True)
    held = sum(size for _, size, _ in found)
    for age_s, size, path in sorted(found, reverse=True):
        if held <= limit or age_s < _IN_USE_S:
            return
        if path != entry:
            _remove(path)
            LOG.info("%s: removed from the cache, last used %.0f hours ago", path, age_s / 3600)
            held -= size


def _listed(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _bytes(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        # Another program may remove it meanwhile.
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def _remove(path: Path) -> None:
    """Remove a directory so that nobody finds half of it."""
    gone = path.with_name(f"{MARK}gone-{path.name}")
    with contextlib.suppress(OSError):
        path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
