"""Streaming the elements of a JSON event array without holding the file.

The text is cut into pieces at ``},{`` boundaries. Decoding a piece shows whether the cut was right: a piece that was cut inside a
string or a nested array is not valid JSON. A piece that cannot be decoded (broken UTF-8, ``NaN``, raw control characters, a boundary
inside an argument) goes through a tokeniser, which finds elements by brackets and strings alone. Its elements are called *dirty*.
The caller handles dirty elements one by one.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from magneton.schemas.errors import InputFormatError, LimitExceededError, TruncatedInputError
from magneton.transforms.reading.json_scan import SPACE, ValueEnd, last_boundaries, split_elements

T = TypeVar("T")

PIECE_BYTES = 4 << 20
MAX_EVENT_BYTES = 64 << 20
# What stands outside the events: all of it, how much of one member is decoded, and how many members.
MAX_METADATA_BYTES = 64 << 20
KEPT_METADATA_BYTES = 2 << 20
MAX_MEMBERS = 4096
# Text is taken in small blocks, since what is left of one is copied for each member. The first piece of events is small as
# well, so that a list of other things is refused before much of it was looked at.
_BLOCK_BYTES = 64 << 10
_FIRST_LOOK = 256
MAX_NUMBER = 400
_BOM = b"\xef\xbb\xbf"
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


class NotJsonError(Exception):
    """A text is not JSON, whatever one grants it.

    Attributes:
        reason: what is wrong, in the words of the decoder.
        text: the value as it lies in the file.
        line: line within ``text``, from 1.
        where: which part of the file it is.
    """

    def __init__(self, error: Exception, text: bytes, where: str) -> None:
        super().__init__(str(error))
        self.reason = getattr(error, "msg", str(error))
        self.text = text
        self.line = int(getattr(error, "lineno", 1))
        self.where = where

    def refusal(self, blocks: Iterator[bytes], path: Path) -> InputFormatError:
        """Return the error to raise, with the line of the file; ``blocks`` is the file once more."""
        line = _lines_before(blocks, self.text) + self.line
        return InputFormatError(f"is not JSON {self.where}, in line {line} of the file: {self.reason}", path=path)


def _lines_before(blocks: Iterator[bytes], text: bytes) -> int:
    """Return how many lines end before the first place where ``text`` stands."""
    lines, rest = 0, b""
    for block in blocks:
        rest += block
        at = rest.find(text)
        if at >= 0:
            return lines + rest.count(b"\n", 0, at)
        done = max(0, len(rest) - len(text) + 1)
        lines += rest.count(b"\n", 0, done)
        rest = rest[done:]
    return lines


def _small(blocks: Iterator[bytes]) -> Iterator[bytes]:
    for block in blocks:
        for start in range(0, len(block), _BLOCK_BYTES):
            yield block[start : start + _BLOCK_BYTES]


# Stands for a member that was too large to keep.
LEFT_OUT = object()


class EventArray(Generic[T]):
    """The event array of a Chrome-style trace: ``{"traceEvents": [...], ...}`` or a bare ``[...]``.

    Iterate over it once; the attributes are complete afterwards.

    Attributes:
        metadata: the other members of the top-level object.
        bare: the top level is the array itself.
        unterminated: a bare array without its closing bracket (which the format permits).
        truncated: the text stops in the middle (only with ``allow_truncated``).
        left_out: names of members outside the events that were too large to keep.
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
        self.left_out: list[str] = []
        self._blocks = _small(blocks)
        self._outside = self._kept = self._members_seen = 0
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
            self._buffer = self._buffer.lstrip(SPACE)
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
        """Remove and decode the JSON value at the front: None where the text stops inside it, ``LEFT_OUT`` if too large."""
        text = self._value_text()
        if text is None:
            return LEFT_OUT if not self.truncated else None
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return msgspec.json.decode(text)
        try:
            return finite(tolerant_loads(text))
        except (ValueError, RecursionError) as error:
            raise NotJsonError(error, text, "outside its events") from error

    def _value_text(self) -> bytes | None:
        """Remove the value at the front and return it; None where it is too large to keep, or cut off."""
        scan = ValueEnd()
        parts: list[bytes] | None = []
        size, look = 0, _FIRST_LOOK
        while True:
            # Most values are short: the scan looks further only while it finds no end.
            piece = self._buffer[:look]
            look = min(look * 16, _BLOCK_BYTES)
            end = scan.feed(piece)
            part = self._take(len(piece) if end is None else end)
            size += len(part)
            self._outside += len(part)
            if self._outside > MAX_METADATA_BYTES:
                raise LimitExceededError(
                    f"has more than {MAX_METADATA_BYTES >> 20} MiB outside its {self._key}", path=self._path
                )
            if self._kept + size > KEPT_METADATA_BYTES:
                parts = None  # nothing that a trace says of itself is that large: go on to what follows it
            elif parts is not None:
                parts.append(part)
            if end is not None or not (self._buffer or self._more(1)):
                break
        if end is None and scan.open:
            self._cut_off()
            return None
        if parts is None:
            return None
        self._kept += size
        return b"".join(parts)

    def _fail(self, reason: str) -> InputFormatError:
        return InputFormatError(reason, path=self._path)

    def _cut_off(self) -> None:
        if not self._allow_truncated:
            raise TruncatedInputError(
                "stops in the middle",
                path=self._path,
                remedy="read what is there: magneton normalize --allow-truncated",
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
            self._buffer = self._buffer.lstrip(SPACE + b"\0")
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
            self._members_seen += 1
            if self._members_seen > MAX_MEMBERS:
                raise self._fail(
                    f"has more than {MAX_MEMBERS} members and no {self._key} among them: it is not a trace"
                )
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
            if value is LEFT_OUT or name is LEFT_OUT:
                self.left_out.append("?" if name is LEFT_OUT else name)
            else:
                self.metadata[name] = value
            if not self._skip_space():
                self._cut_off()
                return False
            if self._starts(","):
                self._take(1)
            elif not self._starts("}"):
                raise self._fail("is not JSON: neither , nor } after a member of the top-level object")

    # --- the array -------------------------------------------------------------------------------------------------

    def _elements(self) -> Iterator[Clean[T] | Dirty]:
        if self._skip_space() and self._starts("]"):
            self._take(1)
            return
        tokenised = 0
        first = True
        while True:
            if not first or len(self._buffer) < _BLOCK_BYTES:
                self._more(_BLOCK_BYTES if first else PIECE_BYTES)
            first = False
            if self._buffer[:1] in (b" ", b"\n", b"\r", b"\t", b","):
                self._buffer = self._buffer.lstrip(SPACE).removeprefix(b",").lstrip(SPACE)
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
        if not self._buffer.strip(SPACE + b",") and self.bare:
            self.unterminated = True
        else:
            self._cut_off()


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
