"""Finding where JSON values begin and end, by strings and brackets alone: nothing is decoded."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

SPACE = b" \t\r\n"
_CUT_ATTEMPTS = 6
# String (possibly unfinished), bracket, or comma.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[{}\[\],]', re.DOTALL)
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_AFTER_SCALAR = re.compile(rb"[,\]}\s]")
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
# What each byte is to the scan: 1 opens, -1 closes, 2 is a quote, 0 says nothing.
_KIND = np.zeros(256, np.int8)
_KIND[[ord(c) for c in "{["]] = 1
_KIND[[ord(c) for c in "}]"]] = -1
_KIND[_QUOTE] = 2


class ValueEnd:
    """Finds the end of one JSON value that comes in blocks, at some hundred megabytes a second.

    Feed it the text from the value's first byte on.
    """

    def __init__(self) -> None:
        self._first: int | None = None
        self._depth = 0
        self._inside = False
        self._backslashes = 0

    @property
    def open(self) -> bool:
        """Whether the value cannot end where the text ends: a bracket or a quote is missing."""
        return self._first is None or self._first in b'{["'

    def feed(self, block: bytes) -> int | None:
        """Return where in ``block`` the value ends; None: not in it."""
        if not block:
            return None
        begins = self._first is None
        if self._first is None:
            self._first = block[0]
        if self._first in b'{["':
            return self._nested(block)
        found = _AFTER_SCALAR.search(block, 1 if begins else 0)
        return found.start() if found else None

    def _nested(self, block: bytes) -> int | None:
        codes = np.frombuffer(block, np.uint8)
        kind = _KIND[codes]
        at = np.flatnonzero(kind)
        kind = kind[at]
        quote = kind == 2
        if self._backslashes or b"\\" in block:
            escaped = self._escaped(codes, at)
            at, kind, quote = at[~escaped | ~quote], kind[~escaped | ~quote], quote[~escaped | ~quote]
        inside = (np.cumsum(quote, dtype=np.int64) + self._inside) & 1
        depth = self._depth + np.cumsum(np.where((inside == 0) & ~quote, kind, 0), dtype=np.int64)
        over = np.flatnonzero((depth == 0) & (inside == 0))
        if len(over):
            return int(at[over[0]]) + 1
        if len(at):
            self._inside, self._depth = bool(inside[-1]), int(depth[-1])
        trailing = len(block) - len(block.rstrip(b"\\"))
        self._backslashes = trailing + (self._backslashes if trailing == len(block) else 0)
        return None

    def _escaped(self, codes: NDArray[np.uint8], at: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which positions follow an odd number of backslashes."""
        others = np.flatnonzero(codes != _BACKSLASH)
        before = np.searchsorted(others, at) - 1
        run = np.where(before >= 0, at - 1 - others[np.maximum(before, 0)], at + self._backslashes)
        odd: NDArray[np.bool_] = (run & 1) == 1
        return odd


def last_boundaries(buffer: bytes) -> Iterator[tuple[int, int]]:
    """Yield the last few places where one object ends and the next begins: (end of the one, start of the next)."""
    end = len(buffer)
    found = 0
    while found < _CUT_ATTEMPTS:
        start = buffer.rfind(b"{", 0, end)
        if start <= 0:
            return
        i = start - 1
        while i >= 0 and buffer[i] in SPACE:
            i -= 1
        if i >= 0 and buffer[i] == ord(","):
            i -= 1
            while i >= 0 and buffer[i] in SPACE:
                i -= 1
            if i >= 0 and buffer[i] == ord("}"):
                found += 1
                yield i + 1, start
        end = start


def value_end(buffer: bytes, position: int) -> int | None:
    """Return where the JSON value at ``position`` ends, by strings and brackets alone; None if it is unfinished."""
    if position >= len(buffer):
        return None
    first = buffer[position]
    if first == ord('"'):
        found = _STRING.match(buffer, position)
        return found.end() if found else None
    if first not in b"{[":
        found = re.compile(rb"[^,\]}\s]*").match(buffer, position)
        return found.end() if found else None
    depth = 0
    for token in _TOKEN.finditer(buffer, position):
        kind = token[0][0]
        if kind in b"{[":
            depth += 1
        elif kind in b"}]":
            depth -= 1
            if depth == 0:
                return token.end()
        elif kind == ord('"') and (token.end() - token.start() < 2 or buffer[token.end() - 1] != ord('"')):
            return None
    return None


def split_elements(buffer: bytes) -> tuple[list[tuple[int, int]], int, bool]:
    """Find the complete elements of an array whose opening bracket is already behind.

    Returns:
        Spans of the elements; where to go on (after the last element's comma, or after the closing bracket); and
        whether the closing bracket was found.
    """
    spans: list[tuple[int, int]] = []
    start = 0
    depth = 0
    for token in _TOKEN.finditer(buffer):
        kind = token[0][0]
        if kind in b"{[":
            depth += 1
        elif kind in b"}]":
            if depth == 0:
                _append_stripped(spans, buffer, start, token.start())
                return spans, token.end(), True
            depth -= 1
        elif kind == ord(","):
            if depth == 0:
                _append_stripped(spans, buffer, start, token.start())
                start = token.end()
        elif token.end() - token.start() < 2 or buffer[token.end() - 1] != ord('"'):
            break
    # A bare array may end without its bracket: an object that is closed is whole even then.
    rest = buffer[start:].strip(SPACE)
    if rest.startswith(b"{") and value_end(rest, 0) == len(rest):
        _append_stripped(spans, buffer, start, len(buffer))
        start = len(buffer)
    return spans, start, False


def _append_stripped(spans: list[tuple[int, int]], buffer: bytes, start: int, end: int) -> None:
    while start < end and buffer[start] in SPACE:
        start += 1
    while end > start and buffer[end - 1] in SPACE:
        end -= 1
    if end > start:
        spans.append((start, end))
