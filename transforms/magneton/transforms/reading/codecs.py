"""Opening input files: codec by first bytes, decompression ahead of the reader, and limits on what may come out."""

from __future__ import annotations

import contextlib
import hashlib
import queue
import re
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import zstandard

from magneton.schemas.errors import (
    InputFormatError,
    InputNotFoundError,
    LimitExceededError,
    TruncatedInputError,
    UnsupportedCompressionError,
)
from magneton.schemas.files.json import refuse_special
from magneton.schemas.ids import sha256_copy, sha256_file
from magneton.transforms.reading.limits import HEAD_BYTES, Limits

BLOCK_BYTES = 1 << 20
_READ_BYTES = 1 << 18
_AHEAD = 4
_ZSTD_READ = 1 << 10

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
_ZIP = b"PK\x03\x04"
_UNSUPPORTED = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x04\x22\x4d\x18": "lz4", b"7z\xbc\xaf": "7-Zip"}


class TraceInput:
    """One input file.

    Attributes:
        path: where it lies.
        size: bytes on disk.
        truncated: the compressed stream stopped in the middle (only with ``allow_truncated``).
        garbage: bytes after the compressed stream that were left out.

    Args:
        path: where it lies.
        limits: what may come out.
        progress: is told how many bytes were read.
        copy: where to leave a copy of the file, as it lies there. The copy is made while the file is read for the first
            time, and later passes read the copy: the file itself is read once.
    """

    def __init__(
        self, path: Path, limits: Limits, progress: Callable[[int], None] | None = None, copy: Path | None = None
    ) -> None:
        self.path = path
        self._limits = limits
        self._progress = progress
        self.truncated = False
        self.garbage = 0
        self._read = 0
        self._digest = hashlib.sha256()
        self._sha256: str | None = None
        self._copy = copy
        self._tee: IO[bytes] | None = None
        self._ended = False
        refuse_special(path)
        try:
            self.size = path.stat().st_size
            with path.open("rb") as stream:
                self._magic = stream.read(8)
        except OSError as error:
            raise InputNotFoundError(f"cannot be opened: {error.strerror}", path=path) from error
        for magic, name in _UNSUPPORTED.items():
            if self._magic.startswith(magic):
                raise UnsupportedCompressionError(
                    f"is compressed with {name}", path=path, remedy="decompress it, or use gzip or zstd"
                )

    def head(self) -> bytes:
        """Return the first 64 KiB of the decompressed content, or what there is of it."""
        head = b""
        try:
            for block in self._decoded():
                head += block
                if len(head) >= HEAD_BYTES:
                    break
        except TruncatedInputError:
            if not head:
                raise
        self._read = 0
        return head[:HEAD_BYTES]

    def blocks(self) -> Iterator[bytes]:
        """Yield the decompressed content; a thread decompresses ahead.

        Raises:
            TruncatedInputError: a compressed stream stops in the middle.
            InputFormatError: a compressed stream is damaged.
            LimitExceededError: more comes out than the limits allow.
        """
        ahead: queue.Queue[bytes | BaseException | None] = queue.Queue(_AHEAD)
        stop = threading.Event()

        def put(item: bytes | BaseException | None) -> bool:
            while not stop.is_set():
                with contextlib.suppress(queue.Full):
                    ahead.put(item, timeout=0.1)
                    return True
            return False

        def work() -> None:
            try:
                for block in self._decoded():
                    if not put(block):
                        return
                put(None)
            except BaseException as error:  # handed to the reader, which raises it
                put(error)

        thread = threading.Thread(target=work, name="magneton-decompress", daemon=True)
        thread.start()
        try:
            while (item := ahead.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                if self._progress:
                    self._progress(self._read)
                yield item
        finally:
            stop.set()
            thread.join()

    def at_hand(self) -> Path:
        """Return a path where the file, as it lies there, can be read in any order: its copy, or itself."""
        if self._copy is None:
            return self.path
        if self._sha256 is None:
            self._sha256 = sha256_copy(self.path, self._copy)
        return self._copy

    def sha256(self) -> str:
        """Return the hash of the file as it lies there; free after all of it was read as a stream."""
        if self._sha256 is None:
            self.at_hand()
        if self._sha256 is None:
            self._sha256 = sha256_file(self.path)
        return self._sha256

    def _decoded(self) -> Iterator[bytes]:
        if self._magic.startswith(_ZIP):
            yield from self._limited(self._zip(self.at_hand()))
            return
        first = self._sha256 is None
        self._read, self._ended = 0, False
        self._digest = hashlib.sha256()
        with contextlib.ExitStack() as stack:
            path = self.path if first or self._copy is None else self._copy
            stream = stack.enter_context(path.open("rb", buffering=0))
            self._tee = stack.enter_context(self._copy.open("wb")) if first and self._copy is not None else None
            if self._magic.startswith(_GZIP):
                blocks = self._gzip(stream)
            elif self._magic.startswith(_ZSTD):
                blocks = self._zstd(stream)
            else:
                blocks = self._plain(stream)
            yield from self._limited(blocks)
        if first and self._ended:
            self._sha256 = self._digest.hexdigest()

    def _limited(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        limits = self._limits
        total = 0
        for block in blocks:
            total += len(block)
            if total > limits.max_decompressed_bytes:
                raise LimitExceededError(
                    f"holds more than {limits.max_decompressed_bytes} bytes after decompression",
                    path=self.path,
                    remedy="if the file can be trusted, raise the limit: magneton normalize --max-decompressed-gib",
                )
            if total > limits.ratio_floor_bytes and total > limits.max_ratio * max(self._read, 1):
                raise LimitExceededError(
                    f"decompresses to more than {limits.max_ratio:g} times its size",
                    path=self.path,
                    remedy="if the file can be trusted, raise the limit: magneton normalize --max-ratio",
                )
            yield block

    def _next(self, stream: IO[bytes], size: int = _READ_BYTES) -> bytes:
        data = stream.read(size)
        self._read += len(data)
        self._ended = not data
        if self._sha256 is None:
            self._digest.update(data)
            if self._tee is not None:
                self._tee.write(data)
        return data

    def _plain(self, stream: IO[bytes]) -> Iterator[bytes]:
        while block := self._next(stream, BLOCK_BYTES):
            yield block

    def _gzip(self, stream: IO[bytes]) -> Iterator[bytes]:
        member = zlib.decompressobj(31)
        data = self._next(stream)
        while True:
            try:
                while data and not member.eof:
                    block = member.decompress(data, BLOCK_BYTES)
                    data = member.unconsumed_tail
                    if block:
                        yield block
            except zlib.error as error:
                raise InputFormatError(f"is damaged: {error}", path=self.path) from error
            if not member.eof:
                data = self._next(stream)
                if not data:
                    if rest := member.flush():
                        yield rest
                    self._cut_off()
                    return
                continue
            rest = member.unused_data
            # Zero padding after a member is allowed; another member may follow it.
            while True:
                rest = rest.lstrip(b"\0")
                if len(rest) >= len(_GZIP):
                    break
                more = self._next(stream)
                if not more:
                    break
                rest += more
            if not rest:
                return
            if not rest.startswith(_GZIP):
                self.garbage += len(rest)
                while more := self._next(stream):
                    self.garbage += len(more)
                return
            member = zlib.decompressobj(31)
            data = rest

    def _zstd(self, stream: IO[bytes]) -> Iterator[bytes]:
        make = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
        frame = make()
        # Small pieces, since what is left of one is copied for each kibibyte of it.
        while data := self._next(stream, 16 * _ZSTD_READ):
            while data:
                try:
                    # One kibibyte in is at most some 32 MiB out.
                    block = frame.decompress(data[:_ZSTD_READ])
                except zstandard.ZstdError as error:
                    raise InputFormatError(f"is damaged: {error}", path=self.path) from error
                data = data[_ZSTD_READ:]
                if frame.eof:
                    data = frame.unused_data + data
                if block:
                    yield block
                if not frame.eof:
                    continue
                while len(data) < len(_ZSTD) and (more := self._next(stream)):
                    data += more
                if data and not (data.startswith(_ZSTD) or _ZSTD_SKIPPABLE.match(data)):
                    self.garbage += len(data)
                    while more := self._next(stream):
                        self.garbage += len(more)
                    return
                if data:
                    frame = make()
        if not frame.eof:
            self._cut_off()

    def _zip(self, path: Path) -> Iterator[bytes]:
        self._read = 0
        try:
            with zipfile.ZipFile(path) as archive:
                members = [m for m in archive.infolist() if not m.is_dir()]
                if len(members) != 1:
                    raise InputFormatError(
                        f"is a zip archive of {len(members)} files", path=self.path, remedy="give the files themselves"
                    )
                if members[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    # zipfile bounds what one read puts out for these two only.
                    raise UnsupportedCompressionError(
                        "is a zip archive packed with neither store nor deflate",
                        path=self.path,
                        remedy="unpack it, or use gzip or zstd",
                    )
                with archive.open(members[0]) as stream:
                    while block := stream.read(BLOCK_BYTES):
                        self._read = members[0].compress_size
                        yield block
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
            raise InputFormatError(f"cannot be unpacked: {error}", path=self.path) from error

    def _cut_off(self) -> None:
        if not self._limits.allow_truncated:
            raise TruncatedInputError(
                "stops in the middle of its compressed stream",
                path=self.path,
                remedy="read what is there: magneton normalize --allow-truncated",
            )
        self.truncated = True
