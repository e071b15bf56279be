"""Taking a machine's identity out of a profiler's trace while it is written: host name, output path, directories.

Traces are shared with others, so they should not show the directories of a machine. Only text inside JSON strings is replaced. Every
number keeps its digits, since a time stamp in microseconds since 1970 would lose digits as a float64. The changes:

* ``host_name`` becomes null and ``traceName`` the bare file name;
* a Python frame ``/dir/file.py(12): f`` keeps the part of its path below ``site-packages``, else below an entry of
  ``sys.path`` or the working directory, else the file name alone;
* the home directory, wherever else it is written, becomes ``~``.
"""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Sequence
from pathlib import Path

_STRING = rb'"(?:[^"\\]|\\.)*"'
_HOST = re.compile(rb'("host_name"\s*:\s*)' + _STRING)
_TRACE_NAME = re.compile(rb'("traceName"\s*:\s*)' + _STRING)
# A frame starts a string, or follows `;` in a `Call stack`; file names hold neither.
_FRAME = re.compile(rb'(?<=[";])/(?:[^";\\]|\\.)*?(?=\(\d+\): )')
_PACKAGES = re.compile(rb".*/(?:site|dist)-packages/")


class Scrubber:
    """Rewrites lines of a trace.

    Args:
        roots: directories whose files are named relative to them (default: ``sys.path`` and the working directory).
        home: home directory (default: this user's).
    """

    def __init__(self, roots: Sequence[str | Path] | None = None, home: Path | None = None) -> None:
        given: Sequence[str | Path] = [*sys.path, Path.cwd()] if roots is None else roots
        absolute = {str(Path(root).absolute()).rstrip("/").encode() + b"/" for root in given if str(root)}
        self._roots = sorted(absolute - {b"/"}, key=len, reverse=True)
        where = str(Path.home() if home is None else home).rstrip("/").encode()
        self._home = re.compile(re.escape(where) + rb'(?=[/"\s:;,)])') if where else None

    def path(self, path: str) -> str:
        """Return the part of a source file's path that may be shared."""
        return self._path(path.encode("utf-8", "surrogateescape")).decode("utf-8", "replace")

    def text(self, text: str) -> str:
        """Return a text with the home directory, wherever it is written, as ``~``."""
        if self._home is None:
            return text
        # A path at the very end counts too.
        raw = text.encode("utf-8", "surrogateescape") + b" "
        return self._home.sub(b"~", raw)[:-1].decode("utf-8", "replace")

    def _frame(self, match: re.Match[bytes]) -> bytes:
        return self._path(match.group())

    def _path(self, path: bytes) -> bytes:
        packages = _PACKAGES.match(path)
        if packages:
            return path[packages.end() :]
        for root in self._roots:
            if path.startswith(root):
                return path[len(root) :]
        return path.rpartition(b"/")[2]

    def line(self, line: bytes, trace_name: str) -> bytes:
        """Return one line of a trace without what identifies the machine."""
        if b"/" in line:
            line = _FRAME.sub(self._frame, line)
            if b'"traceName"' in line:
                line = _TRACE_NAME.sub(lambda m: m.group(1) + b'"' + trace_name.encode() + b'"', line)
            if self._home is not None:
                line = self._home.sub(b"~", line)
        if b'"host_name"' in line:
            line = _HOST.sub(rb"\1null", line)
        return line


def compress_scrubbed(source: Path, target: Path, scrubber: Scrubber, count: re.Pattern[bytes] | None = None) -> int:
    """Write a scrubbed, gzipped copy of a trace, line by line.

    The gzip header carries neither name nor time, so that the same trace gives the same bytes.

    Args:
        source: the trace as the profiler wrote it.
        target: the copy.
        scrubber: takes out what identifies the machine.
        count: what to count.

    Returns:
        Number of lines that ``count`` is found in.
    """
    found = 0
    with (
        source.open("rb") as lines,
        target.open("xb") as raw,
        gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=raw, mtime=0) as packed,
    ):
        for line in lines:
            packed.write(scrubber.line(line, target.name))
            found += count is not None and count.search(line) is not None
    return found
