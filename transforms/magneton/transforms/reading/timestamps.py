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
    data = b"".join(texts)
    lengths = np.fromiter(map(len, texts), np.int32, rows)
    if b'"' in data:
        texts = [bytes(t) for t in texts]
        if any(t == b'""' or t.count(b'"') not in (0, 2) for t in texts):
            raise NotPlainError
        texts = [t.strip(b'"') for t in texts]
        data = b"".join(texts)
        lengths = np.fromiter(map(len, texts), np.int32, rows)
    if not data:
        return np.full(rows, NONE, np.int64)
    if int(lengths.max()) > _PLAIN_TEXT or ((b"e" in data or b"E" in data) and not all(map(_plain_exponent, texts))):
        raise NotPlainError
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
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
