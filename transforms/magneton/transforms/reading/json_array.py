"""Streaming the elements of a JSON event array without holding the file.

The text is cut into pieces at ``},{`` boundaries. Decoding a piece shows whether the cut was right: a piece that was cut inside a
string or a nested array is not valid JSON. A piece that cannot be decoded (broken UTF-8, ``NaN``, raw control characters, a boundary
inside an argument) goes through a tokeniser, which finds elements by brackets and strings alone. Its elements are called *dirty*.
The caller handles dirty elements one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from magneton.schemas.errors import InputFormatError, LimitExceededError, TruncatedInputError

T = TypeVar("T")

PIECE_BYTES = 4 << 20
MAX_EVENT_BYTES = 64 << 20
MAX_METADATA_BYTES = 64 << 20
_CUT_ATTEMPTS = 6
MAX_NUMBER = 400
_SPACE = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
# String (possibly unfinished), bracket, or comma.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[{}\[\],]', re.DOTALL)
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_raw_list = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True)
class Clean(Generic[T]):
    """Elements that decoded at once, and the text of the whole list."""

    items: list[T]
    text: bytes

    def elements(self) -> list[bytes]:
        """Return each element as text."""
        return [bytes(e) for e in _raw_list.decode(self.text)]


@dataclass(frozen=True)
class Dirty:
    """Elements as text, to be looked at one by one."""

    elements: list[bytes]


class EventArray(Generic[T]):
    """The event array of a Chrome-style trace: ``{"traceEvents": [...], ...}`` or a bare ``[...]``.

    Iterate over it once; the attributes are complete afterwards.

    Attributes:
        metadata: the other members of the top-level object.
        bare: the top level is the array itself.
        unterminated: a bare array without its closing bracket (which the format permits).
        truncated: the text stops in the middle (only with ``allow_truncated``).
    """

    def __init__(
        self,
        blocks: Iterator[bytes],
        decode: Callable[[bytes], list[T]],
        *,
        path: Path,
        key: str = "traceEvents",
        allow_truncated: bool = False,
    ) -> None:
        self.metadata: dict[str, Any] = {}
        self.bare = False
        self.unterminated = False
        self.truncated = False
        self._blocks = blocks
        self._decode = decode
        self._path = path
        self._key = key
        self._allow_truncated = allow_truncated
        self._buffer = b""
        self._ended = False

    def __iter__(self) -> Iterator[Clean[T] | Dirty]:
        if not self._find_array():
            return
        yield from self._elements()
        if not self.truncated and not self.unterminated:
            self._tail()

    # --- bytes -----------------------------------------------------------------------------------------------------

    def _more(self, want: int = PIECE_BYTES) -> bool:
        """Read until about ``want`` more bytes are there; False at the end of the file."""
        parts = [self._buffer]
        got = 0
        while got < want:
            block = next(self._blocks, None)
            if block is None:
                self._ended = True
                break
            parts.append(block)
            got += len(block)
        self._buffer = b"".join(parts)
        return got > 0

    def _skip_space(self) -> bool:
        """Drop blanks in front of the next character; False when the file ends first."""
        while True:
            self._buffer = self._buffer.lstrip(_SPACE)
            if self._buffer:
                return True
            if not self._more(1):
                return False

    def _starts(self, character: str) -> bool:
        return self._buffer.startswith(character.encode())

    def _take(self, end: int) -> bytes:
        """Remove and return the first ``end`` bytes."""
        taken, self._buffer = self._buffer[:end], self._buffer[end:]
        return taken

    def _value(self) -> Any:
        """Remove and decode the JSON value at the front; a text that stops inside it is cut off (None)."""
        end = self._value_end()
        if end is None:
            return None
        try:
            return finite(tolerant_loads(self._take(end)))
        except (ValueError, RecursionError) as error:
            raise self._fail(f"is not JSON outside its events: {error}") from error

    def _fail(self, reason: str) -> InputFormatError:
        return InputFormatError(reason, path=self._path)

    def _cut_off(self) -> None:
        if not self._allow_truncated:
            raise TruncatedInputError(
                "stops in the middle", path=self._path, remedy="allow truncated input to read what is there"
            )
        self.truncated = True

    # --- before and after the array --------------------------------------------------------------------------------

    def _find_array(self) -> bool:
        while len(self._buffer) < len(_BOM) and self._more(1):
            pass
        self._buffer = self._buffer.removeprefix(_BOM)
        if not self._skip_space():
            raise self._fail("is empty")
        first = self._take(1)
        if first == b"[":
            self.bare = True
            return True
        if first != b"{":
            raise self._fail("is not JSON: it starts with neither { nor [")
        return self._members(stop_at_array=True)

    def _tail(self) -> None:
        if not self.bare:
            if not self._skip_space():
                self._cut_off()
                return
            separator = self._take(1)
            if separator == b",":
                self._members(stop_at_array=False)
            elif separator != b"}":
                raise self._fail("is not JSON: neither , nor } after the event array")
        while not self.truncated:
            self._buffer = self._buffer.lstrip(_SPACE + b"\0")
            if self._buffer:
                raise self._fail("goes on after the end of its JSON")
            if not self._more(1):
                return

    def _members(self, *, stop_at_array: bool) -> bool:
        """Read members of the top-level object up to the event array (True) or to the closing brace (False)."""
        while True:
            if not self._skip_space():
                self._cut_off()
                return False
            if self._starts("}"):
                self._take(1)
                if stop_at_array:
                    raise self._fail(f"has no {self._key}: it is not a trace")
                return False
            if not self._starts('"'):
                raise self._fail("is not JSON: a member of the top-level object has no name")
            name = self._value()
            if self.truncated or not self._skip_space():
                self._cut_off()
                return False
            if self._take(1) != b":":
                raise self._fail("is not JSON: no : after the name of a member")
            if not self._skip_space():
                self._cut_off()
                return False
            if name == self._key:
                if not stop_at_array:
                    raise self._fail(f"has {self._key} twice")
                if not self._starts("["):
                    raise self._fail(f"has a {self._key} that is not a list")
                self._take(1)
                return True
            value = self._value()
            if self.truncated:
                return False
            self.metadata[name] = value
            if not self._skip_space():
                self._cut_off()
                return False
            if self._starts(","):
                self._take(1)
            elif not self._starts("}"):
                raise self._fail("is not JSON: neither , nor } after a member of the top-level object")

    def _value_end(self) -> int | None:
        """Return where the value at the front ends, reading on as needed; None when the text stops inside it."""
        while True:
            end = value_end(self._buffer, 0)
            if end is not None and (end < len(self._buffer) or self._ended):
                return end
            if len(self._buffer) > MAX_METADATA_BYTES:
                raise LimitExceededError(
                    f"has a member outside its events of more than {MAX_METADATA_BYTES >> 20} MiB", path=self._path
                )
            if not self._more(max(PIECE_BYTES, len(self._buffer))):
                if end is None:
                    self._cut_off()
                return end

    # --- the array -------------------------------------------------------------------------------------------------

    def _elements(self) -> Iterator[Clean[T] | Dirty]:
        if self._skip_space() and self._starts("]"):
            self._take(1)
            return
        tokenised = 0
        while True:
            self._more()
            if self._buffer[:1] in (b" ", b"\n", b"\r", b"\t", b","):
                self._buffer = self._buffer.lstrip(_SPACE).removeprefix(b",").lstrip(_SPACE)
            piece = self._fast_piece()
            if piece is not None:
                yield piece
                tokenised = 0
                continue
            if self._ended or len(self._buffer) >= 2 * tokenised:
                # Tokenising again makes sense only once the text has grown.
                spans, rest, done = split_elements(self._buffer)
                tokenised = len(self._buffer)
                if spans:
                    buffer = self._buffer
                    yield self._piece([buffer[a:b] for a, b in spans])
                    tokenised = 0
                self._buffer = self._buffer[rest:]
                if done:
                    return
            if self._ended:
                self._array_without_end()
                return
            if len(self._buffer) > MAX_EVENT_BYTES:
                raise LimitExceededError(f"has an event of more than {MAX_EVENT_BYTES >> 20} MiB", path=self._path)

    def _fast_piece(self) -> Clean[T] | Dirty | None:
        buffer = self._buffer
        for end, start in last_boundaries(buffer):
            text = b"".join((b"[", memoryview(buffer)[:end], b"]"))
            try:
                piece: Clean[T] | Dirty = Clean(self._decode(text), text)
            except msgspec.ValidationError:
                try:
                    piece = Dirty([bytes(e) for e in _raw_list.decode(text)])
                except msgspec.DecodeError:
                    continue
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            self._buffer = buffer[start:]
            return piece
        return None

    def _piece(self, elements: list[bytes]) -> Clean[T] | Dirty:
        text = b"[%b]" % b",".join(elements)
        try:
            return Clean(self._decode(text), text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Dirty(elements)

    def _array_without_end(self) -> None:
        if not self._buffer.strip(_SPACE + b",") and self.bare:
            self.unterminated = True
        else:
            self._cut_off()


def last_boundaries(buffer: bytes) -> Iterator[tuple[int, int]]:
    """Yield the last few places where one object ends and the next begins: (end of the one, start of the next)."""
    end = len(buffer)
    found = 0
    while found < _CUT_ATTEMPTS:
        start = buffer.rfind(b"{", 0, end)
        if start <= 0:
            return
        i = start - 1
        while i >= 0 and buffer[i] in _SPACE:
            i -= 1
        if i >= 0 and buffer[i] == ord(","):
            i -= 1
            while i >= 0 and buffer[i] in _SPACE:
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
    rest = buffer[start:].strip(_SPACE)
    if rest.startswith(b"{") and value_end(rest, 0) == len(rest):
        _append_stripped(spans, buffer, start, len(buffer))
        start = len(buffer)
    return spans, start, False


def _append_stripped(spans: list[tuple[int, int]], buffer: bytes, start: int, end: int) -> None:
    while start < end and buffer[start] in _SPACE:
        start += 1
    while end > start and buffer[end - 1] in _SPACE:
        end -= 1
    if end > start:
        spans.append((start, end))


# What printf makes of numbers that are not finite, on the platforms there are.
_BARE_WORD = re.compile(
    r'"(?:[^"\\]++|\\.)*+"|-?(?:\bnan(?:\(\w*\))?|\binf(?:inity)?\b|\d\.\#(?:INF|IND|[QS]?NAN)\w*)',
    re.DOTALL | re.IGNORECASE,
)


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class NotFinite:
    """Stands for a NaN or infinity written in place of a number."""


NOT_FINITE = NotFinite()


@dataclass(frozen=True)
class NumberText:
    """A number as written."""

    text: str


def tolerant_loads(raw: bytes, *, keep_numbers: bool = False, notes: set[str] | None = None) -> Any:
    """Decode JSON that may hold invalid UTF-8, control characters, lone surrogates, ``NaN``, ``inf``.

    Bytes that are not UTF-8 and lone surrogates become U+FFFD; numbers that are not finite become ``NOT_FINITE``.

    Args:
        raw: one JSON value.
        keep_numbers: return every number as ``NumberText``.
        notes: gets the warning codes of what was repaired: ``invalid_utf8``, ``lone_surrogate``.

    Raises:
        ValueError: not JSON even so.
        RecursionError: nested too deep.
    """
    notes = set() if notes is None else notes
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "replace")
        notes.add("invalid_utf8")
    text = _BARE_WORD.sub(lambda m: m[0] if m[0].startswith('"') else "NaN", text)
    number: Callable[[str], Any] = NumberText if keep_numbers else _number
    value = json.loads(text, strict=False, parse_constant=lambda _: NOT_FINITE, parse_float=number, parse_int=number)
    if _SURROGATE.search(text):
        return _without_surrogates(value, notes)
    return value


def finite(value: Any) -> Any:
    """Return a decoded value with None for what is not finite."""
    if value is NOT_FINITE:
        return None
    if isinstance(value, list):
        return [finite(v) for v in value]
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    return value


def _number(text: str) -> Any:
    if len(text) > MAX_NUMBER:
        return NOT_FINITE
    if text.lstrip("-").isdigit():
        return int(text)
    value = float(text)
    return value if abs(value) != float("inf") else NOT_FINITE


def _without_surrogates(value: Any, notes: set[str]) -> Any:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            notes.add("lone_surrogate")
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value
    if isinstance(value, list):
        return [_without_surrogates(v, notes) for v in value]
    if isinstance(value, dict):
        return {_without_surrogates(k, notes): _without_surrogates(v, notes) for k, v in value.items()}
    return value
