"""What is said of an output that cannot be written: the file the user asked for, and why, never a temporary name.

An output is built under a temporary name beside its place. By the time an error is shown, nothing is left of it there.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from magneton.schemas.errors import MagnetonError, OutputFailedError

_ROOM = "free some space, or choose another output"
_PLACE = "choose another output"
_REMEDIES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "close other programs: the machine has too many files open",
    errno.EROFS: _PLACE,
    errno.EACCES: _PLACE,
    errno.EPERM: _PLACE,
}
# An error that names no file is one of writing where reading cannot have it.
OF_WRITING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})


def failed(error: OSError, path: str | os.PathLike[str]) -> OutputFailedError:
    """Return the error to raise where a file or directory cannot be written."""
    reason = os.strerror(error.errno) if error.errno else error.strerror or str(error)
    return OutputFailedError(f"cannot be written: {reason}", path=path, remedy=_REMEDIES.get(error.errno or 0))


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of writing that name no file, such as those of Arrow, name the file that is written.

    Raises:
        OSError: as in the body, with the file.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise


@contextlib.contextmanager
def speaking_of(target: Path, temporary: Path) -> Iterator[None]:
    """Let errors speak of the output that a user knows, not of the temporary name under which it is built.

    Args:
        target: the output.
        temporary: where it is built.

    Raises:
        OutputFailedError: an error of writing in the body.
        MagnetonError: as in the body, with ``target`` wherever ``temporary`` stood.
    """
    try:
        yield
    except MagnetonError as error:
        rename(error, temporary, target)
        raise
    except OSError as error:
        named = error.filename
        if isinstance(named, str | bytes):
            inner = renamed(os.fsdecode(named), temporary, target)
            if inner is not None:
                raise failed(error, inner) from error
        elif error.errno in OF_WRITING:
            raise failed(error, target) from error
        raise


def renamed(path: str, old: Path, new: Path) -> str | None:
    """Return a path with ``new`` in place of the directory or file ``old`` it begins with; None where it does not."""
    for start in (str(old), os.path.abspath(old)):  # noqa: PTH100 - links stay links
        if path == start or path.startswith(start + os.sep):
            return str(new) + path[len(start) :]
    return None


def rename(error: MagnetonError, old: Path, new: Path) -> None:
    """Let an error name ``new`` wherever it names ``old``, in its path as well as in its words."""
    if error.path is not None:
        error.path = renamed(error.path, old, new) or error.path
    for start in (os.path.abspath(old), str(old)):  # noqa: PTH100 - links stay links
        error.reason = error.reason.replace(start, str(new))
    error.args = (error.reason,)
