"""Atomic publication: a reader sees the old output or the new one, never half of either."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from magneton.schemas.errors import OutputExistsError
from magneton.schemas.files import leftovers
from magneton.schemas.files.exchange import exchange
from magneton.schemas.files.interrupts import uninterrupted
from magneton.schemas.files.output_errors import failed, speaking_of

LOG = logging.getLogger(__name__)


def _sibling(path: Path, what: str) -> Path:
    return path.with_name(f"{leftovers.MARK}{what}-{secrets.token_hex(6)}")


def atomic_write(path: Path, data: bytes | str) -> None:
    """Write a file so that it appears whole or not at all (temporary sibling, fsync, rename)."""
    raw = data.encode() if isinstance(data, str) else data
    temporary = _sibling(path, "tmp")
    with speaking_of(path, temporary):
        try:
            with temporary.open("xb") as stream:
                stream.write(raw)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        except BaseException:
            with uninterrupted():
                temporary.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def publish_file(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Build a file under a hidden name and rename it into place, for files that are too large for ``atomic_write``.

    The body writes to the yielded temporary path, which lies beside ``path``. On an exception it is removed and an earlier
    ``path`` stays as it was.

    Raises:
        OutputExistsError: ``path`` exists and may not be replaced, or is not a regular file.
        OutputFailedError: it cannot be written: no such directory, no permission, no space.
    """
    there = path.exists() or path.is_symlink()
    if there and not path.is_file():
        raise OutputExistsError("exists and is not a file", path=path, remedy="choose another output")
    if there and not overwrite:
        raise OutputExistsError("already exists", path=path, remedy="choose another output or pass --force")
    temporary = _sibling(path, "tmp")
    try:
        temporary.touch(exist_ok=False)
    except OSError as error:
        raise failed(error, path) from error
    with speaking_of(path, temporary):
        try:
            yield temporary
            with temporary.open("rb") as stream:
                os.fsync(stream.fileno())
            temporary.replace(path)
        except BaseException:
            with uninterrupted():
                temporary.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def publish_directory(target: Path, *, last: str, overwrite: bool = False) -> Iterator[Path]:
    """Build a directory under a hidden name and rename it into place.

    The body fills the yielded staging directory, which lies beside ``target`` on the same file system. On a normal
    exit the file called ``last`` (the manifest) must exist in it; the staging directory then takes the place of
    ``target``. On an exception it is removed and an earlier ``target`` stays as it was.

    A process that is killed leaves its staging directory. The next publication to the same ``target`` removes it. Where the
    file system cannot exchange two directories in one step, a kill may also leave the earlier output moved aside; the next
    publication then puts it back first.

    Args:
        target: directory to publish.
        last: name of the file that makes the directory valid.
        overwrite: replace an existing ``target`` that itself holds ``last`` (nothing else is ever deleted).

    Raises:
        OutputExistsError: ``target`` exists and may not be replaced.
        OutputFailedError: ``target`` cannot be written: no permission, no space, too many open files.
    """
    leftovers.tidy(target, last)
    _refuse_occupied(target, last, overwrite=overwrite)
    staging: Path | None = None
    with contextlib.ExitStack() as stack:
        try:
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                # Once it exists its name is known here, so that whatever comes next removes it.
                with uninterrupted():
                    staging = stack.enter_context(leftovers.staging_directory(target))
            except OSError as error:
                raise failed(error, target) from error
            stack.enter_context(speaking_of(target, staging))
            LOG.debug("%s: built beside it, under another name", target)
            yield staging
            if not (staging / last).is_file():
                raise RuntimeError(f"{last} was not written")
            # Another program may have written to the same place while this one ran.
            _refuse_occupied(target, last, overwrite=overwrite)
            with uninterrupted():
                _put_in_place(staging, target)
            LOG.info("%s: published", target)
        except BaseException:
            if staging is not None:
                with uninterrupted():
                    shutil.rmtree(staging, ignore_errors=True)
            raise


def _refuse_occupied(target: Path, last: str, *, overwrite: bool) -> None:
    """Raise ``OutputExistsError`` where something lies that may not be replaced."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise OutputExistsError("exists and is not a directory", path=target, remedy="choose another output")
    occupied = target.is_dir() and any(target.iterdir())
    if occupied and not overwrite:
        raise OutputExistsError("already exists", path=target, remedy="choose another output or pass --force")
    if occupied and not (target / last).is_file():
        raise OutputExistsError(
            f"exists and is not ours (no {last} in it)", path=target, remedy="choose another output or remove it"
        )


def _put_in_place(staging: Path, target: Path) -> None:
    """Let a complete directory take the place of ``target``; what was there before is removed."""
    if not target.exists():
        staging.rename(target)
    elif exchange(staging, target):
        # The earlier output lies at the staging path now.
        shutil.rmtree(staging, ignore_errors=True)
    else:
        old = leftovers.old_directory(target)
        target.rename(old)
        try:
            staging.rename(target)
        except BaseException:
            # It is back already where a reader found it moved aside.
            with contextlib.suppress(FileNotFoundError):
                old.rename(target)
            raise
        shutil.rmtree(old, ignore_errors=True)
