"""The protocol-buffer wire format, read in place: tags, varints and lengths, with no message classes.

A profile is one message that holds lists of lists of messages. It is walked over a buffer (bytes or a memory map) by
start and end offsets, so that nothing is copied that is not wanted. Format: the protocol buffers encoding guide.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator

Buffer = bytes | mmap.mmap

VARINT = 0
FIXED64 = 1
LENGTH = 2
FIXED32 = 5

_MAX_VARINT = 10
_TOP_BIT = 1 << 63
_RANGE = 1 << 64


class WireError(ValueError):
    """The bytes are not a message. ``cut_off`` tells that they end in the middle of the outermost one."""

    def __init__(self, reason: str, *, cut_off: bool = False) -> None:
        super().__init__(reason)
        self.cut_off = cut_off


def read_varint(data: Buffer, position: int, stop: int) -> tuple[int, int]:
    """Return an unsigned varint (64 bits) and the position after it.

    Raises:
        WireError: it does not end before ``stop``, or is longer than 10 bytes.
    """
    value = shift = 0
    limit = min(stop, position + _MAX_VARINT)
    while position < limit:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (_RANGE - 1), position
        shift += 7
    raise WireError("a number does not end", cut_off=position >= stop)


def fields(data: Buffer, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of the message in ``data[start:stop]`` as ``(number, wire_type, a, b)``.

    For a varint ``a`` is its unsigned value. For every other type ``data[a:b]`` is the payload.

    Raises:
        WireError: a field runs past ``stop``, its number is 0, or its wire type is none of the four in use.
    """
    position = start
    while position < stop:
        # Most tags, lengths and values are one byte: the general way costs three times as much.
        tag = data[position]
        position += 1
        if tag >= 0x80:
            tag, position = read_varint(data, position - 1, stop)
        wire = tag & 7
        if tag < 8:
            raise WireError("field number 0")
        if wire in (VARINT, LENGTH):
            if position >= stop:
                raise WireError("a number does not end", cut_off=True)
            size = data[position]
            position += 1
            if size >= 0x80:
                size, position = read_varint(data, position - 1, stop)
            if wire == VARINT:
                yield tag >> 3, VARINT, size, position
                continue
        elif wire == FIXED64:
            size = 8
        elif wire == FIXED32:
            size = 4
        else:
            raise WireError(f"wire type {wire}")
        end = position + size
        if end > stop:
            raise WireError("a field runs past the end", cut_off=True)
        yield tag >> 3, wire, position, end
        position = end


def signed(value: int) -> int:
    """Return an unsigned 64-bit value as the ``int64`` it encodes."""
    return value - _RANGE if value & _TOP_BIT else value


def text(data: Buffer, start: int, stop: int) -> str:
    """Return a string field; bytes that are not UTF-8 become U+FFFD."""
    return data[start:stop].decode("utf-8", "replace")


def double(data: Buffer, start: int) -> float:
    """Return a ``double`` field."""
    value: float = struct.unpack_from("<d", data, start)[0]
    return value


def varints(data: Buffer, wire: int, start: int, stop: int) -> list[int]:
    """Return one occurrence of a repeated ``int64`` field, packed or not."""
    if wire == VARINT:
        return [signed(start)]
    found = []
    while start < stop:
        value, start = read_varint(data, start, stop)
        found.append(signed(value))
    return found
