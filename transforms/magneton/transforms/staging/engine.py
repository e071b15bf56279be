"""The engine that holds staged events: what it says when memory or disk run out, in words for a user."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa

from magneton.schemas.errors import LimitExceededError, MagnetonError, OutputFailedError

# Set by the engine to the space that is free, so that what meets it has met a full disk.
_DISK = ("max_temp_directory_size", "No space left on device")
_MEMORY = "Out of Memory Error"


@contextlib.contextmanager
def room(directory: Path) -> Iterator[None]:
    """Let an engine without room for the events end with an error that a user can mend.

    Args:
        directory: output that is made; the engine spills into it.

    Raises:
        OutputFailedError: the disk is full.
        LimitExceededError: the events need more memory than the engine may use.
    """
    try:
        yield
    # Arrow hands on errors of the engine that it reads from, as text.
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        told = _told(str(error), directory)
        if told is None:
            raise
        raise told from error


def _told(text: str, directory: Path) -> MagnetonError | None:
    if _MEMORY not in text and "IO Error" not in text:
        return None
    if any(sign in text for sign in _DISK):
        return OutputFailedError(
            "cannot be written: no space left for the events, which are spilled to disk",
            path=directory,
            remedy="free some space, choose another output, or give more memory: magneton normalize --memory-limit-mib",
        )
    if _MEMORY in text:
        return LimitExceededError(
            "the events need more memory than they may use",
            path=directory,
            remedy="give more memory: magneton normalize --memory-limit-mib",
        )
    return None
