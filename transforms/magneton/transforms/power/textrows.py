"""Iterating over the rows of a text log with their positions, knowing the last one."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

from magneton.transforms.power.builder import LogBuilder
from magneton.transforms.power.csvrows import raw_lines
from magneton.transforms.reading.textfile import TextFile


class TextRows:
    """Yields (position, line, is last) for every line that is not blank, and finds lines again for the quarantine.

    Positions count rows from 0; a line for which nothing is entered in the builder (a header) takes none. A caller that
    meets a header again calls ``repeated_header``.
    """

    def __init__(self, path: Path, builder: LogBuilder) -> None:
        self._path = path
        self._text = TextFile(path)
        self._builder = builder
        self._numbers = array("q")

    @property
    def final_newline(self) -> bool:
        """Whether the line last read ended with a newline."""
        return self._text.final_newline

    def repeated_header(self) -> None:
        """Count a header that came again."""
        self._builder.report.n_repeated_headers += 1

    def __iter__(self) -> Iterator[tuple[int, str, bool]]:
        """Yield the rows."""
        report = self._builder.report
        held: tuple[int, str] | None = None
        for number, line in enumerate(self._text):
            if line.strip(" \t\0\ufeff"):
                if held is not None:
                    yield from self._one(*held, last=False)
                held = (number, line)
        if held is not None:
            yield from self._one(*held, last=True)
        report.encoding = self._text.encoding.removesuffix("-sig")
        report.truncated = report.truncated or self._text.truncated
        if self._text.garbage:
            self._builder.warn("trailing_garbage", "bytes after the end of the compressed stream", self._text.garbage)
        if self._text.replaced:
            self._builder.warn("invalid_utf8", "lines with bytes that are not text", self._text.replaced)

    def _one(self, number: int, line: str, *, last: bool) -> Iterator[tuple[int, str, bool]]:
        # Every row is counted exactly once, so the count is the position of the next row.
        position = self._builder.report.n_rows
        yield position, line, last
        if self._builder.report.n_rows > position:
            self._numbers.append(number)

    def raw(self, positions: set[int]) -> dict[int, str]:
        """Return rows as written, for positions."""
        return raw_lines(self._path, {p: self._numbers[p] for p in positions}, positions)
