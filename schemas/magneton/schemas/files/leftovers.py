"""What a killed process leaves beside an output, and how the next one finds it.

A directory is built in ``.magneton-staging-<key>-<random>`` beside its target; ``<key>`` stands for the name of the target.
The process that builds it holds a lock on it. A staging directory that nobody holds belongs to a process that is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

MARK = ".magneton-"
_STAGING, _OLD = "staging", "old"


def _key(target: Path) -> str:
    # The name itself may be too long for a longer name.
    return hashlib.sha256(os.fsencode(target.name)).hexdigest()[:12]


def _new(target: Path, what: str) -> Path:
    return target.with_name(f"{MARK}{what}-{_key(target)}-{secrets.token_hex(6)}")


def _found(target: Path, what: str) -> list[Path]:
    """Return what lies beside ``target``; nothing where there is no such folder, or it cannot be listed."""
    start = f"{MARK}{what}-{_key(target)}-"
    try:
        return sorted(path for path in target.parent.iterdir() if path.name.startswith(start))
    except OSError:
        return []


def old_directory(target: Path) -> Path:
    """Return a free path beside ``target`` to move an earlier output to."""
    return _new(target, _OLD)


@contextlib.contextmanager
def staging_directory(target: Path) -> Iterator[Path]:
    """Make a directory beside ``target`` and hold it until the end of the block; it stays where it is.

    Raises:
        OSError: it cannot be made.
    """
    while True:
        staging = _new(target, _STAGING)
        staging.mkdir()
        lock = _lock(staging)
        # Between the two lines above, another process may have taken it for a leftover.
        if staging.is_dir() and (lock is not None or fcntl is None or not _can_lock(target.parent)):
            break
    try:
        yield staging
    finally:
        if lock is not None:
            os.close(lock)


def _lock(directory: Path) -> int | None:
    """Return an open descriptor that holds the lock of a directory; None where it is held, gone or cannot be locked."""
    if fcntl is None:
        return None
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _can_lock(directory: Path) -> bool:
    """Say whether the file system knows locks at all: some network file systems do not."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def put_back(target: Path, last: str) -> None:
    """Put an output back that was moved aside by a process that was killed before the new one was in its place.

    Args:
        target: where the output was.
        last: name of the file that makes a directory valid.
    """
    for old in _found(target, _OLD):
        if not (target / last).is_file() and (old / last).is_file():
            # Fails where something else lies there by now; nothing is removed then.
            with contextlib.suppress(OSError):
                old.rename(target)


def tidy(target: Path, last: str) -> None:
    """Put back what was moved aside, and remove what killed processes left beside a directory that is to be published."""
    put_back(target, last)
    for old in _found(target, _OLD):
        if (target / last).is_file():
            shutil.rmtree(old, ignore_errors=True)
    for staging in _found(target, _STAGING):
        lock = _lock(staging)
        if lock is not None:
            shutil.rmtree(staging, ignore_errors=True)
            os.close(lock)
