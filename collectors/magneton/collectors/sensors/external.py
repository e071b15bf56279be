"""Meters: a command, or a growing file, that writes readings in the long CSV form of ``docs/power.md``.

The readings are not parsed here. They are kept as they are and read when the recording is normalised. The user gives the command; it
runs without a shell.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from magneton.collectors.sensors.protocol import SensorUnavailableError

_HEADER_BYTES = 1 << 16
_NEEDED = {b"field", b"value", b"unit"}
_FIRST_LINE_S = 5.0
_STOP_S = 2.0


def _header_of(start: bytes) -> bytes | None:
    """Return the header line among the first lines of a file, or None."""
    for line in start.splitlines(keepends=True)[:20]:
        cells = {cell.strip().strip(b'"').lower() for cell in line.split(b",")}
        if cells >= _NEEDED and any(cell.startswith(b"timestamp") for cell in cells):
            return line if line.endswith(b"\n") else None
    return None


def _wait_for_header(read: Path, ended: subprocess.Popen[bytes] | None) -> bool:
    deadline = time.monotonic() + _FIRST_LINE_S
    while time.monotonic() < deadline:
        with read.open("rb") as stream:
            if _header_of(stream.read(_HEADER_BYTES)) is not None:
                return True
        if ended is not None and ended.poll() is not None:
            with read.open("rb") as stream:
                return _header_of(stream.read(_HEADER_BYTES)) is not None
        time.sleep(0.01)
    return False


class CommandMeter:
    """A command whose standard output is the long CSV form; it runs as long as the recording and is then asked to end.

    Args:
        command: its words.
        name: name of the file.
    """

    source = "command"

    def __init__(self, command: Sequence[str], name: str = "meter.csv") -> None:
        self.command = list(command)
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None
        self._stream: IO[bytes] | None = None
        self._path: Path | None = None

    def start(self, directory: Path) -> None:
        """Run it, and wait for its header, so that it measures before the program begins.

        Raises:
            SensorUnavailableError: it cannot be run, ends at once, or does not write the long CSV form.
        """
        what = shlex.join(self.command)[:80]
        self._path = directory / self._name
        self._stream = self._path.open("wb")
        try:
            # A session of its own, so that Ctrl-C for the program does not stop the meter before its last reading.
            self._process = subprocess.Popen(  # noqa: S603 - the user's own command, run without a shell
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=self._stream,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self._discard()
            raise SensorUnavailableError(f"cannot run {what}: {error.strerror}", remedy="check the command") from error
        if not _wait_for_header(self._path, self._process):
            self._end()
            self._discard()
            raise SensorUnavailableError(
                f"{what} wrote no header of the long CSV form within {_FIRST_LINE_S:g} s",
                remedy="its first line must name timestamp_ns,clock,device_kind,device_id,field,value,unit",
            )

    def _end(self) -> int | None:
        process = self._process
        if process is None:
            return None
        early = process.poll()
        if early is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._process = None
        return early

    def _discard(self) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self._stream, self._path = None, None

    def stop(self) -> tuple[Path | None, list[str]]:
        """See ``Meter.stop``."""
        early = self._end()
        if self._stream is not None:
            self._stream.close()
        notes = [] if early is None else [f"the meter ended by itself with exit code {early} before the recording did"]
        path, self._stream, self._path = self._path, None, None
        return path, notes


class FileMeter:
    """A file that something else appends to; what is added between start and stop is kept, below its header.

    Args:
        file: the file.
        name: name of the copy.
    """

    source = "file"

    def __init__(self, file: Path, name: str = "meter.csv") -> None:
        self._file = file
        self._name = name
        self._target: Path | None = None
        self._header = b""
        self._from = 0
        self._inode = 0

    def start(self, directory: Path) -> None:
        """Remember where it ends.

        Raises:
            SensorUnavailableError: it cannot be read, or has no header of the long CSV form.
        """
        try:
            with self._file.open("rb") as stream:
                header = _header_of(stream.read(_HEADER_BYTES))
                status = os.fstat(stream.fileno())
                # The last whole line before the start is kept. Without it the first interval would have no beginning.
                self._from = _last_line(stream, status.st_size)
        except OSError as error:
            raise SensorUnavailableError(f"cannot be read: {error.strerror}", path=self._file) from error
        if header is None:
            raise SensorUnavailableError(
                "has no header of the long CSV form",
                path=self._file,
                remedy="its first line must name timestamp_ns,clock,device_kind,device_id,field,value,unit",
            )
        self._header, self._inode, self._target = header, status.st_ino, directory / self._name

    def stop(self) -> tuple[Path | None, list[str]]:
        """See ``Meter.stop``."""
        target, self._target = self._target, None
        if target is None:
            return None, []
        notes = []
        try:
            with self._file.open("rb") as stream, target.open("wb") as copy:
                status = os.fstat(stream.fileno())
                at = self._from
                if status.st_ino != self._inode or status.st_size < at:
                    notes.append("the meter's file was replaced while it was being read; what the old one held is lost")
                    at = 0
                stream.seek(at)
                if at >= len(self._header):
                    copy.write(self._header)
                shutil.copyfileobj(stream, copy)
        except OSError as error:
            return None, [f"the meter's file could not be read at the end: {error.strerror}"]
        return target, notes


def _last_line(stream: IO[bytes], size: int) -> int:
    """Return where the last whole line begins (0 where the file has only its header)."""
    start = max(size - _HEADER_BYTES, 0)
    stream.seek(start)
    tail = stream.read(size - start)
    end = tail.rfind(b"\n")
    before = tail.rfind(b"\n", 0, max(end, 0))
    return start + before + 1 if before >= 0 else start
