"""Makes a longer trace of a real one: copies one after the other, with times and ids of their own."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

# What names an event or a time. Other numbers (sizes, devices, streams) stay what they are.
_TIME = re.compile(rb'"ts": (\d+)')
_ID = rb"External id|Record function id|Python id|Python parent id|correlation|Ev Idx|id|Sequence number"
_SHIFTED = re.compile(rb'"(ts|%b)": ([1-9]\d*)(?=[.,\s}])' % _ID)
_ARRAY = b'"traceEvents": ['
# A pause between the copies, so that no event of one reaches into the next.
_PAUSE_US = 1000
# Times below this belong to metadata.
_FIRST_US = 10**9


def repeat(source: Path, target: Path, copies: int) -> None:
    """Write a kineto trace that holds ``source`` several times, laid out as kineto laid it out.

    Args:
        source: a trace as kineto writes it, plain or gzip.
        target: the file to write, plain.
        copies: how often.

    Raises:
        ValueError: the file is not laid out as kineto lays it out.
    """
    data = (gzip.decompress if source.suffix == ".gz" else bytes)(source.read_bytes())
    begin, end = data.find(_ARRAY) + len(_ARRAY), data.rfind(b"]")
    body = data[begin:end].strip()
    times = [t for t in map(int, _TIME.findall(body)) if t > _FIRST_US]
    if begin < len(_ARRAY) or not times:
        raise ValueError(f"{source} is not laid out as kineto writes its traces")
    span = max(times) - min(times) + _PAUSE_US
    ids = 1 + max(int(number) for key, number in _SHIFTED.findall(body) if key != b"ts")
    with target.open("wb") as out:
        out.write(data[:begin])
        for copy in range(copies):

            def shift(found: re.Match[bytes], copy: int = copy) -> bytes:
                step = span if found[1] == b"ts" else ids
                return b'"%b": %d' % (found[1], int(found[2]) + copy * step)

            out.write((b",\n" if copy else b"\n") + (_SHIFTED.sub(shift, body) if copy else body))
        out.write(b"\n" + data[end:])
