"""Recordings and traces as they are: what has no tables gets them on the way, and they are kept.

Tables of a recording are put beside it, into its folder ``tables``; the manifest stays as it was written. Where that
folder cannot be written, and for bare traces, tables are kept in a cache directory. They appear there by one rename, whole
or not at all. Processes that make the same tables at the same time do not disturb each other: the first one's stay.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata, util
from pathlib import Path

from magneton.flows.traces import normalize
from magneton.schemas.documents.diff import DIFF_NAME
from magneton.schemas.errors import InputNotFoundError, OutputFailedError, UsageError
from magneton.schemas.files.output_errors import speaking_of
from magneton.schemas.ids import sha256_file
from magneton.schemas.manifest import MANIFEST_NAME, read_manifest
from magneton.schemas.versions.registry import SCHEMA_VERSION
from magneton.transforms.normalize import trace_files

__all__ = ["Report", "cache_directory", "has_tables", "with_tables"]

LOG = logging.getLogger("magneton")
TABLES = "tables"
Report = Callable[[str], None]
# Packages whose code decides what the tables hold.
_MAKERS = ("transforms", "schemas")


def has_tables(path: Path) -> bool:
    """Say whether a path is a recording with tables."""
    return (path / MANIFEST_NAME).is_file() and (path / TABLES / "captures.parquet").is_file()


def with_tables(path: Path, report: Report | None = None) -> Path:
    """Return a recording with tables for a recording or a trace; make the tables where there are none.

    Args:
        path: recording; trace file; or folder with one trace per rank.
        report: told in one sentence what was done (default: the log ``magneton``).

    Returns:
        ``path`` itself for a recording whose tables lie in it, else a directory of the cache.

    Raises:
        InputNotFoundError: there is nothing at ``path``.
        UsageError: it is a diff.
        MagnetonError: it cannot be normalised.
    """
    if has_tables(path):
        return path
    if not path.exists():
        raise InputNotFoundError("no such file or directory", path=path)
    if (path / DIFF_NAME).is_file():
        raise UsageError("is a diff, not a recording", path=path, remedy="name one of the recordings it compares")
    say = report or LOG.info
    recorded = (path / MANIFEST_NAME).is_file()
    if recorded and _beside(path):
        say(f"{path} had no tables: made them and kept them in {path / TABLES}")
        return path
    kept = cache_directory() / (_recording_key(path) if recorded else _trace_key(path))
    if not has_tables(kept):
        with _scratch(kept.parent) as scratch, speaking_of(kept, scratch / "run"):
            normalize([path], scratch / "run", keep_raw=False)
            _publish(scratch / "run", kept, lambda: has_tables(kept))
        say(f"{path} had no tables: made them and kept them in {kept}")
    return kept


def cache_directory() -> Path:
    """Return where tables are kept that cannot lie beside what they were made from: ``$XDG_CACHE_HOME/magneton/recordings``.

    Without that variable it is ``~/.cache/magneton/recordings``. Whatever lies there may be deleted at any time.

    Raises:
        UsageError: nothing says where the user's files are.
    """
    stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        # The XDG specification has relative paths ignored.
        base = stated if stated.is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:
        raise UsageError("there is no directory to keep tables in", remedy="set XDG_CACHE_HOME") from error
    return base / "magneton" / "recordings"


def _beside(recording: Path) -> bool:
    """Make the tables of a recording and put them into it; return False where nothing can be written there."""
    try:
        scratch = Path(tempfile.mkdtemp(prefix=".magneton-", dir=recording))
    except OSError:
        return False
    try:
        try:
            with speaking_of(recording, scratch / "run"):
                made = normalize([recording], scratch / "run", keep_raw=False)
        except OutputFailedError:
            # The cache may have room.
            return False
        if made.run_id != read_manifest(recording).run_id:
            # Its rows would name another run than its manifest does; in the cache they have a manifest of their own.
            return False
        _publish(scratch / "run" / TABLES, recording / TABLES, lambda: has_tables(recording))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return True


def _publish(made: Path, place: Path, there: Callable[[], bool]) -> None:
    """Move a directory into place, unless another process has put its own there meanwhile."""
    if place.exists() and not there():
        # Left over from a deletion that stopped half-way.
        place.rename(made.with_name("old"))
    try:
        # A rename onto a directory that holds something fails, so the first one stays, whoever reads it.
        made.rename(place)
    except OSError:
        if not there():
            raise


@contextlib.contextmanager
def _scratch(root: Path) -> Iterator[Path]:
    """Yield a directory to work in, on the file system of the cache; it is removed afterwards."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".making-", dir=root))
    except OSError as error:
        raise InputNotFoundError(
            f"cannot keep tables in it: {error.strerror}",
            path=root,
            remedy="set XDG_CACHE_HOME to a directory that can be written, or name one: magneton normalize TRACE -o RUN",
        ) from error
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _recording_key(path: Path) -> str:
    # The manifest states the hash of every file, and the files are held against it when they are read.
    return _key([("recording", sha256_file(path / MANIFEST_NAME))])


def _trace_key(path: Path) -> str:
    # Names enter because they name the run and, where nothing else does, the ranks.
    files = [(file.name, sha256_file(file)) for file in sorted(trace_files([path]))]
    return _key([("trace", path.resolve().name), *files])


def _key(parts: list[tuple[str, str]]) -> str:
    makers = [("magneton", _version()), ("schema", str(SCHEMA_VERSION)), ("code", _code_stamp())]
    text = "\n".join(f"{len(name)} {name} {value}" for name, value in [*makers, *parts])
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _version() -> str:
    try:
        return metadata.version("magneton")
    except metadata.PackageNotFoundError:
        return "unknown"


def _code_stamp() -> str:
    """Return a hash that changes with the code of the readers: a version stays the same while someone works on it."""
    digest = hashlib.sha256()
    for package in _MAKERS:
        spec = util.find_spec(f"magneton.{package}")
        root = Path(spec.origin).parent if spec is not None and spec.origin is not None else None
        for file in sorted(root.rglob("*.py")) if root is not None else ():
            state = file.stat()
            digest.update(f"{file.relative_to(root or file)} {state.st_size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()
