"""Compare two recordings or traces and publish the result."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from magneton.analysis.diff.pipeline import diff
from magneton.analysis.diff.settings import DiffSettings
from magneton.analysis.recording import Recording
from magneton.analysis.report.markdown import render
from magneton.flows.prepared import Report, with_tables
from magneton.schemas.diffdoc import DIFF_NAME, DiffDocument
from magneton.schemas.errors import InputNotFoundError
from magneton.schemas.files import publish_directory
from magneton.schemas.manifest import encode_json
from magneton.schemas.parquet import write_table

__all__ = ["DiffSettings", "Published", "compare", "default_output"]

_UNSAFE = re.compile(r"[^\w.+-]+", re.UNICODE)


@dataclass(frozen=True)
class Published:
    """A diff on disk: its directory and the document in it."""

    directory: Path
    document: DiffDocument


def default_output(a: Path, b: Path) -> Path:
    """Return ``out/<a>-vs-<b>`` for two inputs, from their names without what a file name should not hold."""
    return Path("out") / f"{_slug(a)}-vs-{_slug(b)}"


def _slug(path: Path) -> str:
    name = path.resolve().name
    for ending in (".gz", ".zst", ".json", ".trace", ".pt"):
        name = name.removesuffix(ending)
    return _UNSAFE.sub("_", name).strip("._-")[:80] or "run"


def compare(
    a: Path,
    b: Path,
    out: Path | None = None,
    settings: DiffSettings | None = None,
    *,
    progress: Callable[[str], None] | None = None,
    report: Report | None = None,
) -> Published:
    """Compare two inputs and write ``diff.json``, its tables and a report.

    A recording without tables, or a bare trace (or a folder with one trace per rank), gets its tables on the way: see
    ``magneton.flows.prepared``. An earlier diff in the same place is replaced once the new one is complete.

    Args:
        a: recording directory or trace of side A.
        b: the same of side B.
        out: output directory (default: ``default_output``).
        settings: what to compare and how.
        progress: is told what is going on.
        report: is told in one sentence of each input that got tables on the way.

    Raises:
        MagnetonError: an input cannot be read, or the two are not comparable.
    """
    for path in (a, b):
        if not path.exists():
            raise InputNotFoundError("no such file or directory", path=path)
    target = default_output(a, b) if out is None else out
    say = progress or (lambda text: None)
    with publish_directory(target, last=DIFF_NAME, overwrite=True) as staging:
        sides = []
        for path in (a, b):
            say(f"reading {path}")
            sides.append(with_tables(path, report))
        say("aligning")
        tool = f"magneton {version('magneton')}"
        result = diff(Recording.open(sides[0]), Recording.open(sides[1]), settings or DiffSettings(), tool)
        for name, (table, data) in result.tables.items():
            write_table(staging / f"{name}.parquet", table, data)
        (staging / "report.md").write_text(render(result.document), encoding="utf-8")
        (staging / DIFF_NAME).write_bytes(encode_json(result.document))
    return Published(target, result.document)
