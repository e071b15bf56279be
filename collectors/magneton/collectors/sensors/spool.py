"""Readings on their way from the process that polls to the file of the recording: fixed-size records, appended.

If the writer ends in the middle of a record, this record is left out and everything before it is kept. The module uses only the
standard library, so that the process that polls stays small.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from magneton.collectors.sensors.protocol import REASONS, Reading, Series

# Number of the series, time (ns), value, number of the reason (-1: none).
RECORD = struct.Struct("<iqdi")

# Files that stand beside the file of power until it is made: records, and what they are of.
RECORDS, ABOUT = ".records", ".about"


def keep(spooled: Path, power: Path, series: Sequence[tuple[str, Series]], keys: Mapping[str, Any]) -> None:
    """Keep all that the file of power is made from.

    Args:
        spooled: the records.
        power: the file to be made.
        series: source and description of each series, by its number.
        keys: capture, rank and repeat of its rows.
    """
    shutil.copyfile(spooled, f"{power}{RECORDS}")
    about = {"keys": dict(keys), "series": [[source, dataclasses.asdict(s)] for source, s in series]}
    Path(f"{power}{ABOUT}").write_text(json.dumps(about), encoding="utf-8")


def n_records(power: Path) -> int:
    """Return the number of whole records that are kept for a file of power."""
    return Path(f"{power}{RECORDS}").stat().st_size // RECORD.size


def pack(offset: int, readings: Sequence[Reading]) -> bytes:
    """Return records of one sensor's readings; ``offset`` is the number of its first series."""
    out = bytearray()
    for number, at, value, why in readings:
        reason = -1 if why is None else REASONS.index(why)
        out += RECORD.pack(offset + number, at, float("nan") if value is None else value, reason)
    return bytes(out)
