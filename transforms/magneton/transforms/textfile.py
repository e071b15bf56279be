"""Reading text files as they come from the field: compressed or not, UTF-8 or UTF-16, cut off or not."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import zstandard

from magneton.schemas.errors import InputFormatError, InputNotFoundError, LimitExceededError

MAX_BYTES = 4 << 30
MAX_LINE = 1 << 20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class _Counted(io.RawIOBase):
    """A decompressed stream that ends quietly where a compressed one was cut, and stops at a limit."""

    def __init__(self, stream: IO[bytes], path: Path, limit: int) -> None:
        self._stream = stream
        self._path = path
        self._left = limit
        self.truncated = False
        self.any = False

    def readable(self) -> bool:
        """Say that this stream can be read."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill ``buffer`` with what comes next; 0 at the end."""
        if self.truncated:
            return 0
        try:
            data = self._stream.read1(len(buffer))  # type: ignore[attr-defined]
        except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
            if not self.any:
                raise InputFormatError(f"cannot be decompressed: {error}", path=self._path) from error
            self.truncated = True
            return 0
        self.any = self.any or bool(data)
        self._left -= len(data)
        if self._left < 0:
            raise LimitExceededError("is larger than the limit for a text file", path=self._path)
        buffer[: len(data)] = data
        return len(data)


class TextFile:
    """A text file, read line by line.

    Attributes:
        encoding: encoding found from the byte order mark, or from the pattern of zero bytes.
        final_newline: whether the last line read ended with a newline (set once the iteration is over).
        truncated: whether a compressed stream ended in the middle (set once the iteration is over).
        replaced: lines with bytes that do not belong to the encoding; replaced by U+FFFD.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.encoding = "utf-8-sig"
        self.final_newline = True
        self.truncated = False
        self.replaced = 0

    def __iter__(self) -> Iterator[str]:
        """Yield the lines without their newline (LF, CR LF or CR).

        Raises:
            InputNotFoundError: the file cannot be opened.
            InputFormatError: compressed data cannot be read at all.
            LimitExceededError: the file, or one line of it, is larger than the limit.
        """
        self.final_newline, self.replaced = True, 0
        try:
            with self.path.open("rb") as raw, _decompressed(raw) as stream:
                counted = _Counted(stream, self.path, self.max_bytes)
                buffered = io.BufferedReader(counted, 1 << 16)
                self.encoding = _encoding(buffered.peek(4096)[:4096])
                with io.TextIOWrapper(buffered, encoding=self.encoding, errors="replace") as text:
                    while line := text.readline(MAX_LINE):
                        self.final_newline = line.endswith("\n")
                        if not self.final_newline and len(line) >= MAX_LINE:
                            raise LimitExceededError("has a line of more than 1 MiB", path=self.path)
                        self.replaced += "\ufffd" in line
                        yield line[:-1] if self.final_newline else line
                self.truncated = counted.truncated
        except OSError as error:
            raise InputNotFoundError(f"cannot be read: {error.strerror or error}", path=self.path) from error


def head(path: Path, size: int = 1 << 16) -> str:
    """Return the beginning of a text file (``size`` bytes once decompressed), for telling formats apart.

    Raises:
        InputNotFoundError: the file cannot be opened.
        InputFormatError: compressed data cannot be read at all.
    """
    try:
        with path.open("rb") as raw, _decompressed(raw) as stream:
            start = io.BufferedReader(_Counted(stream, path, MAX_BYTES), size).read(size)
    except OSError as error:
        raise InputNotFoundError(f"cannot be read: {error.strerror or error}", path=path) from error
    text = start.decode(_encoding(start), "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_bytes(path: Path, *, max_bytes: int = 1 << 30) -> bytes:
    """Return a whole file, decompressed.

    Raises:
        InputNotFoundError: the file cannot be opened.
        InputFormatError: compressed data that cannot be read, or is cut off.
        LimitExceededError: larger than ``max_bytes`` once decompressed.
    """
    try:
        with path.open("rb") as raw, _decompressed(raw) as stream:
            counted = _Counted(stream, path, max_bytes)
            data = io.BufferedReader(counted, 1 << 20).read()
    except OSError as error:
        raise InputNotFoundError(f"cannot be read: {error.strerror or error}", path=path) from error
    if counted.truncated:
        raise InputFormatError("is compressed and cut off", path=path)
    return data


def _decompressed(raw: IO[bytes]) -> IO[bytes]:
    magic = raw.read(4)
    raw.seek(0)
    if magic.startswith(_GZIP):
        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    if magic.startswith(_ZSTD):
        return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
    return raw


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
