"""SQLite files of profilers: NVIDIA Nsight Systems exports and AMD rocpd databases, told apart by their tables."""

from __future__ import annotations

from pathlib import Path

from magneton.schemas.errors import InputFormatError
from magneton.transforms.reading.limits import Limits
from magneton.transforms.sources import Input
from magneton.transforms.sources.local_file import local_file
from magneton.transforms.sources.rows import Notes, hand_over
from magneton.transforms.sources.sqlite import nsys, rocpd
from magneton.transforms.sources.sqlite.database import MAGIC, open_sqlite
from magneton.transforms.staging.stage import Stage

FORMAT = "sqlite"


def sniff(head: bytes, path: Path) -> bool:
    """Tell whether a file's first bytes are those of SQLite."""
    return head.startswith(MAGIC)


def read(source: Input, stage: Stage, limits: Limits) -> None:
    """Stage the events of a file.

    Raises:
        TruncatedInputError: it is shorter than its header says.
        InputFormatError: it is damaged, or made by neither profiler.
    """
    notes = Notes(max_dur_ns=limits.max_event_dur_ns)
    with local_file(source) as path, open_sqlite(path, source.path) as database:
        for format_ in (nsys, rocpd):
            if format_.recognises(database):
                stage.info.source_format = format_.FORMAT
                hand_over(format_.decode(database, notes), notes, stage)
                return
    raise InputFormatError(
        "is a SQLite file with the tables of neither Nsight Systems nor rocprofv3",
        path=source.path,
        remedy="give `nsys export --type sqlite` or `rocprofv3 --output-format rocpd` files",
    )
