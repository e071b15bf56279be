"""What an event says beyond the columns of its table, as the JSON text of the column ``attributes``.

Texts are kept once each, and most events share a few of them. Numbers that only count events are left out, since each
would be a text of its own. So are texts beyond a budget, with a warning: memory does not grow with the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from magneton.transforms.sources.kineto.events import COUNTING, MORE, REST
from magneton.transforms.staging.stage import NO_TEXT, Stage

MAX_BYTES = 32 << 20


class Attributes:
    """Texts of the attributes of one kind of events."""

    def __init__(self, stage: Stage, type_: type[Struct]) -> None:
        more = [(f.name, f.encode_name) for f in msgspec.structs.fields(type_) if f.name in MORE[type_]]
        self._names = [written for _, written in more]
        self._get = attrgetter(REST, *(name for name, _ in more))
        self._stage = stage
        self._codes: dict[tuple[Any, ...], int] = {}
        self._bytes = 0

    def codes(self, args: Sequence[Any]) -> NDArray[np.int32]:
        """Return the codes of the texts for events with these arguments."""
        known = self._codes
        out = []
        for values in map(self._get, args):
            try:
                code = known.get(values)
            except TypeError:  # a list or an object among them
                out.append(self._code(values))
                continue
            if code is None:
                code = known[values] = self._code(values)
            out.append(code)
        return np.array(out, np.int32)

    def _code(self, values: tuple[Any, ...]) -> int:
        said = {k: v for k, v in zip(self._names, values[1:], strict=True) if v is not None and v != ""}
        rest = values[0] if isinstance(values[0], dict) else {}
        said |= {k: v for k, v in rest.items() if k not in COUNTING and v is not None and v != ""}
        if not said:
            return NO_TEXT
        text = msgspec.json.encode(said, enc_hook=str).decode()
        codes = self._stage.pool.codes
        if text not in codes:
            self._bytes += len(text)
            if self._bytes > MAX_BYTES:
                self._stage.warn(
                    "attributes_left_out", f"more than {MAX_BYTES >> 20} MiB of different attributes: those met later"
                )
                return NO_TEXT
        return codes[text]
