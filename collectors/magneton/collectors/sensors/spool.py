"""Readings on their way from the process that polls to the file of the recording: fixed-size records, appended.

If the writer ends in the middle of a record, this record is left out and everything before it is kept. The module uses only the
standard library, so that the process that polls stays small.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from magneton.collectors.sensors.protocol import REASONS, Reading

# Number of the series, time (ns), value, number of the reason (-1: none).
RECORD = struct.Struct("<iqdi")


def pack(offset: int, readings: Sequence[Reading]) -> bytes:
    """Return records of one sensor's readings; ``offset`` is the number of its first series."""
    out = bytearray()
    for number, at, value, why in readings:
        reason = -1 if why is None else REASONS.index(why)
        out += RECORD.pack(offset + number, at, float("nan") if value is None else value, reason)
    return bytes(out)
