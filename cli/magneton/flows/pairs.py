"""Compare two recordings or traces and publish the result."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from magneton.analysis.diff.pipeline import diff
from magneton.analysis.diff.settings import DiffSettings
from magneton.analysis.recording import Recording
from magneton.analysis.report.registry import rendered
from magneton.flows.prepared import Report, with_tables
from magneton.schemas.documents.diff import DIFF_NAME, DiffDocument, read_diff
from magneton.schemas.errors import InputNotFoundError, MagnetonError
from magneton.schemas.files.publish import publish_directory
from magneton.schemas.manifest import encode_json
from magneton.schemas.tables.parquet import write_table

__all__ = ["DiffSettings", "Published", "compare", "default_output"]

_UNSAFE = re.compile(r"[^\w.+-]+", re.UNICODE)


@dataclass(frozen=True)
class Published:
    """A diff on disk: its directory and the document in it."""

    directory: Path
    document: DiffDocument


def default_output(a: Path, b: Path) -> Path:
    """Return ``out/<a>-vs-<b>`` for two inputs. Characters that a file name should not contain are replaced."""
    return Path("out") / f"{_slug(a)}-vs-{_slug(b)}"


def _slug(path: Path) -> str:
    name = path.resolve().name
    for ending in (".gz", ".zst", ".json", ".trace", ".pt"):
        name = name.removesuffix(ending)
    return _UNSAFE.sub("_", name).strip("._-")[:80] or "run"


def _of_this_pair(target: Path, sides: Sequence[Recording]) -> Path:
    """Return the directory, or one with a number after its name where it holds a diff of other recordings.

    Example: ``x/rank0.json`` against ``y/rank0.json`` goes to ``out/rank0-vs-rank0``, another pair of those names to
    ``out/rank0-vs-rank0-2``.
    """
    number, place = 1, target
    while (place / DIFF_NAME).is_file():
        # What cannot be read may be of any pair: it is kept.
        with contextlib.suppress(MagnetonError):
            earlier = read_diff(place)
            if [earlier.a.run_id, earlier.b.run_id] == [side.manifest.run_id for side in sides]:
                break
        number += 1
        place = target.with_name(f"{target.name}-{number}")
    return place


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
        out: output directory (default: ``default_output``, with a number where that holds a diff of other recordings).
        settings: what to compare and how.
        progress: called with a text about the current work.
        report: called with one sentence for each input that got tables on the way.

    Raises:
        MagnetonError: an input cannot be read, or the two are not comparable.
    """
    for path in (a, b):
        if not path.exists():
            raise InputNotFoundError("no such file or directory", path=path)
    say = progress or (lambda text: None)
    sides = []
    for path in (a, b):
        say(f"reading {path}")
        sides.append(Recording.open(with_tables(path, report)))
    target = _of_this_pair(default_output(a, b), sides) if out is None else out
    with publish_directory(target, last=DIFF_NAME, overwrite=True) as staging:
        say("aligning")
        tool = f"magneton {version('magneton')}"
        result = diff(sides[0], sides[1], settings or DiffSettings(), tool)
        for name, (table, data) in result.tables.items():
            write_table(staging / f"{name}.parquet", table, data)
        for name, text in rendered(result.document):
            (staging / name).write_text(text, encoding="utf-8")
        (staging / DIFF_NAME).write_bytes(encode_json(result.document))
    return Published(target, result.document)
