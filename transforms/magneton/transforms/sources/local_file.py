"""A decompressed file on disk, for formats that need random access. An input that is not compressed is used as it is."""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Iterator
from pathlib import Path

from magneton.schemas.errors import InputFormatError, InputNotFoundError
from magneton.schemas.files.output_errors import naming
from magneton.transforms.sources import Input

_COMPARED = 4096


@contextlib.contextmanager
def local_file(source: Input) -> Iterator[Path]:
    """Give the path of a file with the decompressed content; a copy is removed afterwards.

    Raises:
        InputNotFoundError: the input cannot be opened.
        InputFormatError: a compressed stream is damaged or cut off.
        LimitExceededError: more comes out than the limits allow.
    """
    path = source.at_hand()
    if _is_plain(source, path):
        yield path
        return
    with tempfile.NamedTemporaryFile(prefix="magneton-") as copy:
        for block in source.blocks():
            with naming(Path(copy.name)):
                copy.write(block)
        with naming(Path(copy.name)):
            copy.flush()
        yield Path(copy.name)


@contextlib.contextmanager
def mapped(source: Input) -> Iterator[mmap.mmap]:
    """Give the decompressed content as a memory map.

    Raises:
        InputFormatError: it is empty.
    """
    with local_file(source) as path, path.open("rb") as stream:
        try:
            view = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise InputFormatError("is empty", path=source.path) from error
        with contextlib.closing(view):
            yield view


def _is_plain(source: Input, path: Path) -> bool:
    """Tell whether the file (or its copy at ``path``) is not compressed: what comes out of it is what lies in it."""
    first = next(source.blocks(), b"")[:_COMPARED]
    try:
        with path.open("rb") as stream:
            return stream.read(len(first)) == first
    except OSError as error:
        raise InputNotFoundError(f"cannot be opened: {error.strerror}", path=source.path) from error
