"""Limits for a file: memory, decompressed size, length of events."""

from __future__ import annotations

from dataclasses import dataclass

HEAD_BYTES = 64 << 10


@dataclass(frozen=True)
class Limits:
    """What a file may cost and claim.

    Attributes:
        max_event_dur_ns: longest credible event; longer ones are quarantined.
        max_decompressed_bytes: most bytes a file may decompress to.
        max_ratio: most bytes out per byte in, once ``ratio_floor_bytes`` came out.
        ratio_floor_bytes: see ``max_ratio``.
        allow_truncated: keep what can be read of a file that stops in the middle.
    """

    max_event_dur_ns: int = 7 * 86_400 * 10**9
    max_decompressed_bytes: int = 64 << 30
    max_ratio: float = 200.0
    ratio_floor_bytes: int = 16 << 20
    allow_truncated: bool = False
