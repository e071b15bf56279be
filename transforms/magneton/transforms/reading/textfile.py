"""Reading text files of other tools: compressed or not, UTF-8 or UTF-16, cut off or not."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from magneton.schemas.errors import LimitExceededError
from magneton.transforms.reading.codecs import TraceInput
from magneton.transforms.reading.limits import Limits

MAX_BYTES = 4 << 30
MAX_DOCUMENT_BYTES = 1 << 30
MAX_LINE = 1 << 20


class _Stream(io.RawIOBase):
    """A binary stream over blocks of bytes."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = b""

    def readable(self) -> bool:
        """Say that this stream can be read."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill ``buffer`` with what comes next; 0 at the end."""
        if not self._rest:
            self._rest = next(self._blocks, b"")
        part = self._rest[: len(buffer)]
        self._rest = self._rest[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


class TextFile:
    """A text file, read line by line.

    Attributes:
        encoding: encoding found from the byte order mark, or from the pattern of zero bytes.
        final_newline: whether the last line read ended with a newline (set once the iteration is over).
        truncated: whether a compressed stream ended in the middle (set once the iteration is over).
        garbage: bytes after the end of the compressed stream, left out (set once the iteration is over).
        replaced: lines with bytes that do not belong to the encoding; replaced by U+FFFD.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.encoding = "utf-8-sig"
        self.final_newline = True
        self.truncated = False
        self.garbage = 0
        self.replaced = 0

    def __iter__(self) -> Iterator[str]:
        """Yield the lines without their newline (LF, CR LF or CR).

        Raises:
            InputNotFoundError: the file cannot be opened.
            InputFormatError: compressed data that is damaged.
            LimitExceededError: the file, or one line of it, is larger than the limit.
        """
        self.final_newline, self.replaced = True, 0
        source = TraceInput(self.path, Limits(max_decompressed_bytes=self.max_bytes, allow_truncated=True))
        blocks = source.blocks()
        try:
            buffered = io.BufferedReader(_Stream(blocks), 1 << 16)
            self.encoding = _encoding(buffered.peek(4096)[:4096])
            with io.TextIOWrapper(buffered, encoding=self.encoding, errors="replace") as text:
                while line := text.readline(MAX_LINE):
                    self.final_newline = line.endswith("\n")
                    if not self.final_newline and len(line) >= MAX_LINE:
                        raise LimitExceededError("has a line of more than 1 MiB", path=self.path)
                    self.replaced += "\ufffd" in line
                    yield line[:-1] if self.final_newline else line
        finally:
            blocks.close()  # type: ignore[attr-defined]
            self.truncated, self.garbage = source.truncated, source.garbage


def head(path: Path) -> str:
    """Return the beginning of a text file (64 KiB once decompressed), for telling formats apart.

    Raises:
        InputNotFoundError: the file cannot be opened.
        InputFormatError: compressed data that is damaged.
    """
    start = TraceInput(path, Limits(allow_truncated=True)).head()
    return start.decode(_encoding(start), "replace").replace("\r\n", "\n").replace("\r", "\n")


def read_bytes(path: Path, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Return a whole file, decompressed.

    Raises:
        InputNotFoundError: the file cannot be opened.
        InputFormatError: compressed data that is damaged or cut off.
        LimitExceededError: larger than ``max_bytes`` once decompressed.
    """
    return b"".join(TraceInput(path, Limits(max_decompressed_bytes=max_bytes)).blocks())


def _encoding(start: bytes) -> str:
    """Return the encoding of a file from its first bytes: BOM first, then where the zero bytes of ASCII text lie."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    if len(start) >= 4:
        half = len(start) // 2
        if start[1::2].count(0) > 0.8 * half and start[::2].count(0) == 0:
            return "utf-16-le"
        if start[::2].count(0) > 0.8 * half and start[1::2].count(0) == 0:
            return "utf-16-be"
    return "utf-8-sig"
