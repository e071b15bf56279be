"""Time stamps in microseconds, as text, to integer nanoseconds: exactly, for many at once.

A float64 near 1.7e15 us has a step of 0.25 us, so the numbers never pass through one: the text is read as a decimal.
Digits below 1 ns round half to even.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from magneton.schemas.clocks import MAX_EVENT_TIME_NS
from magneton.transforms.staging.stage import NONE

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,17})?", re.ASCII)
_CONTEXT = decimal.Context(prec=400, rounding=decimal.ROUND_HALF_EVEN)
_MAX_TEXT = 200
# What Arrow may be given: it reads beyond its tables for large exponents.
_PLAIN_TEXT = 40
_PLAIN_EXPONENT = re.compile(rb"[eE][+-]?\d{1,2}$|^[^eE]*$")


class NotPlainError(ValueError):
    """At least one of the numbers needs to be looked at by itself."""


def to_ns(texts: Sequence[bytes]) -> NDArray[np.int64]:
    """Return microseconds, given as JSON text (``123.456`` or ``"123.456"``), in nanoseconds; ``NONE`` where empty.

    Raises:
        NotPlainError: one of them is not a decimal number of a sensible size (``null``, ``true``, NaN ...).
    """
    rows = len(texts)
    data, lengths = _joined(texts)
    if b'"' in data:
        texts = [bytes(t) for t in texts]
        if any(t == b'""' or t.count(b'"') not in (0, 2) for t in texts):
            raise NotPlainError
        texts = [t.strip(b'"') for t in texts]
        data, lengths = _joined(texts)
    if not data:
        return np.full(rows, NONE, np.int64)
    if int(lengths.max()) > _PLAIN_TEXT or ((b"e" in data or b"E" in data) and not all(map(_plain_exponent, texts))):
        raise NotPlainError
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    if (whole := _thousandths(data, offsets)) is not None:
        return whole
    missing = lengths == 0
    validity = pa.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None
    try:
        text = pa.Array.from_buffers(pa.string(), rows, [validity, pa.py_buffer(offsets), pa.py_buffer(data)])
        try:
            exact = text.cast(pa.decimal128(38, 3))
        except pa.ArrowInvalid:
            fine = text.cast(pa.decimal128(38, 12))
            exact = pc.round(fine, ndigits=3, round_mode="half_to_even").cast(pa.decimal128(38, 3))
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise NotPlainError from error
    words = np.frombuffer(exact.buffers()[1], np.int64, 2 * rows)
    low, high = words[::2], words[1::2]
    ns = np.where(missing, NONE, low)
    if not missing.all() and (np.where(missing, 0, high) != np.where(missing, 0, low >> 63)).any():
        raise NotPlainError
    if (~missing & ((ns > MAX_EVENT_TIME_NS) | (ns < -MAX_EVENT_TIME_NS))).any():
        raise NotPlainError
    return ns


def _thousandths(data: bytes, offsets: NDArray[np.int32]) -> NDArray[np.int64] | None:
    """Return numbers that all have three digits behind the point, as kineto writes them, in thousandths; else None."""
    rows = len(offsets) - 1
    points = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("."))
    if len(points) != rows or (offsets[1:] - points != 4).any() or b"x" in data or b"X" in data:
        return None
    digits = pa.py_buffer(data.translate(None, b"."))
    starts = pa.py_buffer(offsets - np.arange(rows + 1, dtype=np.int32))
    try:
        numbers = pa.Array.from_buffers(pa.string(), rows, [None, starts, digits]).cast(pa.int64())
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    ns = np.frombuffer(numbers.buffers()[1], np.int64, rows)
    # What is out of range is told by the careful way.
    return ns if abs(int(ns.max())) <= MAX_EVENT_TIME_NS and abs(int(ns.min())) <= MAX_EVENT_TIME_NS else None


def _joined(texts: Sequence[bytes]) -> tuple[bytes, NDArray[np.int32]]:
    """Return texts one after another, and the length of each.

    Lengths come from where commas between the texts lie: asking each text takes as long as reading it.

    Raises:
        NotPlainError: one of them has a comma of its own, as lists have.
    """
    data = b",".join(texts)
    commas = np.flatnonzero(np.frombuffer(data, np.uint8) == ord(","))
    if len(commas) != max(len(texts) - 1, 0):
        raise NotPlainError
    edges = np.concatenate([[-1], commas, [len(data)]]) if texts else np.zeros(1, np.int64)
    return data.translate(None, b","), (np.diff(edges) - 1).astype(np.int32)


def _plain_exponent(text: bytes) -> bool:
    return _PLAIN_EXPONENT.search(text) is not None


def text_to_ns(text: str) -> int | str:
    """Return one time stamp in nanoseconds, or the reason why it is none (see ``QUARANTINE_REASONS``)."""
    lowered = text.strip().lower().lstrip("+-")
    if lowered in ("nan", "inf", "infinity"):
        return "ts_not_finite"
    if len(text) > _MAX_TEXT or not _NUMBER.fullmatch(text):
        return "ts_not_numeric"
    value = decimal.Decimal(text)
    if value and value.adjusted() > 20:
        return "ts_out_of_range"
    ns = int(value.scaleb(3, _CONTEXT).to_integral_value(context=_CONTEXT))
    return ns if abs(ns) <= MAX_EVENT_TIME_NS else "ts_out_of_range"
