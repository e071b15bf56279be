"""Reading JSON documents that a user, or another program, hands over: whatever is wrong with one is an error in one line."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import msgspec

from magneton.schemas.errors import InputFormatError, InputNotFoundError, LimitExceededError

# What we write is nested about ten levels deep. Code that walks a document calls itself once a level.
MAX_DEPTH = 100


def refuse_special(path: Path) -> None:
    """Refuse a path that is there and neither a file nor a directory: opening a pipe waits for a writer, perhaps for ever.

    Raises:
        InputNotFoundError: it is a pipe, a device or a socket.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        # Opening it says what is wrong.
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputNotFoundError(
            "is a pipe or a device, not a file", path=path, remedy="write its content to a file and name that"
        )


def read_json(path: Path) -> Any:
    """Return the JSON document in a file.

    Raises:
        InputNotFoundError: there is no such file, or it cannot be opened.
        InputFormatError: it is not JSON.
        LimitExceededError: it is nested deeper than ``MAX_DEPTH``.
    """
    refuse_special(path)
    try:
        document = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise InputNotFoundError(f"cannot be opened: {error.strerror}", path=path) from error
    except RecursionError as error:
        raise _too_deep(path) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputFormatError(f"is not JSON: {error}", path=path) from error
    if _is_deeper(document, MAX_DEPTH):
        raise _too_deep(path)
    return document


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        InputFormatError: it is JSON and not an object.
        MagnetonError: as ``read_json``.
    """
    document = read_json(path)
    if not isinstance(document, dict):
        raise InputFormatError("is not a JSON object", path=path)
    return document


def _too_deep(path: Path) -> LimitExceededError:
    return LimitExceededError(f"is JSON nested deeper than {MAX_DEPTH} levels", path=path)


def _is_deeper(document: Any, depth: int) -> bool:
    """Say whether lists and objects stand in one another more than ``depth`` times."""
    level = [document]
    for _ in range(depth + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
