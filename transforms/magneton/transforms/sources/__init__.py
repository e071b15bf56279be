"""Input formats, one file each, behind one small interface.

A source is a module (or object) with

* ``FORMAT``: the name written to ``captures.source_format``;
* ``sniff(head: bytes, path: Path) -> bool``: does the file have this format? ``head`` is the first 64 KiB of the file *after*
  decompression (gzip and zstd are recognised by their first bytes), whatever the file is called;
* ``read(source: Input, stage: Stage, limits: Limits) -> None``: stage every event (see ``magneton.transforms.staging.stage``
  for the columns and the rules) and fill ``stage.info``. ``source.blocks()`` yields decompressed bytes in blocks within
  the limits; ``source.at_hand()`` gives a path for formats that need random access (SQLite). ``source.path`` names the file in
  messages.

To add a format: write ``sources/<format>.py`` (or ``sources/<format>/source.py``, where it takes several files) with these
three and append its name to ``SOURCES`` below, more specific ones
first; the first that sniffs true reads the file. Sources never write tables, compute ids or nest anything: the shared
steps in ``linking`` do. They raise the typed errors of ``magneton.schemas.errors`` for files
they must refuse, and quarantine events they cannot use. Names and arguments are data: bound, interned, never executed.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

from magneton.schemas.errors import InputFormatError
from magneton.transforms.reading.limits import Limits
from magneton.transforms.staging.stage import Stage

# Modules of this package that are sources, in the order in which they are asked.
SOURCES: list[str] = [
    "xla.xplane",
    "sqlite.source",
    "rocprof_json",
    "onnxruntime",
    "proton",
    "ascend",
    "chakra",
    "jax_trace",
    "tensorflow_timeline",
    "kineto.source",
    "chakra_protobuf",
]


class Input(Protocol):
    """An input file, decompressed on the way."""

    path: Path

    def blocks(self) -> Iterator[bytes]:
        """Yield the decompressed content in blocks of about a mebibyte."""
        ...

    def at_hand(self) -> Path:
        """Return a path where the file, as it was given, can be read in any order."""
        ...


class Source(Protocol):
    """See the module's docstring."""

    FORMAT: str

    def sniff(self, head: bytes, path: Path) -> bool:
        """Tell whether the file is of this format."""
        ...

    def read(self, source: Input, stage: Stage, limits: Limits) -> None:
        """Stage the events of the file."""
        ...


def find_source(head: bytes, path: Path) -> Source:
    """Return the source that reads a file.

    Raises:
        InputFormatError: none does.
    """
    importlib.import_module(f"{__name__}.refused").refuse(head, path)
    for name in SOURCES:
        source = cast("Source", importlib.import_module(f"{__name__}.{name}"))
        if source.sniff(head, path):
            return source
    raise InputFormatError(
        "is empty" if not head.strip() else "is not in a known trace format",
        path=path,
        remedy="give a trace file: docs/traces.md lists what can be read",
    )
