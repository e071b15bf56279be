"""Recordings and traces as they are: what has no tables gets them on the way, and they are kept.

Tables of a recording are put beside it, into its folder ``tables``; the manifest stays as it was written. Where that
folder cannot be written, and for bare traces, tables are kept in a cache directory. They appear there by one rename, whole
or not at all. Processes that make the same tables at the same time do not disturb each other: the first one's stay.

Tables that were made on the way by another version of the program are made again. Those that ``normalize`` made stay: its
options are the user's.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil
from collections.abc import Callable, Iterator
from importlib import util
from pathlib import Path

from magneton.flows.cache import cache_directory, limit_bytes, make_room, used
from magneton.flows.traces import normalize
from magneton.schemas.documents.diff import DIFF_NAME
from magneton.schemas.errors import InputNotFoundError, MagnetonError, OutputFailedError, UsageError
from magneton.schemas.files import leftovers
from magneton.schemas.files.output_errors import speaking_of
from magneton.schemas.ids import sha256_file
from magneton.schemas.kinds import FileRole
from magneton.schemas.manifest import MANIFEST_NAME, read_manifest
from magneton.schemas.tables.parquet import made_by
from magneton.schemas.versions.registry import SCHEMA_VERSION
from magneton.schemas.versions.tool import tool_name
from magneton.transforms.normalize import trace_files

__all__ = ["Report", "cache_directory", "has_tables", "with_tables"]

LOG = logging.getLogger("magneton")
TABLES = "tables"
# Written like the other tables, and never without rows.
_SIGN = "captures.parquet"
Report = Callable[[str], None]
# Packages whose code decides what the tables hold.
_MAKERS = ("transforms", "schemas")


def has_tables(path: Path) -> bool:
    """Say whether a path is a recording with tables."""
    return (path / MANIFEST_NAME).is_file() and (path / TABLES / _SIGN).is_file()


def _outdated(recording: Path) -> bool:
    """Say whether tables in a recording were made on the way, by another version of the program."""
    try:
        maker = made_by(recording / TABLES / _SIGN)
        # Whatever makes tables for good writes them into the manifest.
        on_the_way = all(entry.role != FileRole.DERIVED for entry in read_manifest(recording).files)
    except MagnetonError:
        # Whoever reads the tables says what is wrong with them.
        return False
    return on_the_way and maker not in (None, tool_name())


def _ready(path: Path) -> bool:
    return has_tables(path) and not _outdated(path)


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
    if _ready(path):
        # A process may have been killed after it put the tables there, and before it removed what it had worked in.
        leftovers.tidy(path / TABLES, _SIGN)
        return path
    if not path.exists():
        raise InputNotFoundError("no such file or directory", path=path)
    if (path / DIFF_NAME).is_file():
        raise UsageError("is a diff, not a recording", path=path, remedy="name one of the recordings it compares")
    say = report or LOG.info
    recorded = (path / MANIFEST_NAME).is_file()
    lack = f"{path} had tables of another version" if recorded and has_tables(path) else f"{path} had no tables"
    if recorded and _beside(path):
        say(f"{lack}: made them and kept them in {path / TABLES}")
        return path
    kept = cache_directory() / (_recording_key(path) if recorded else _trace_key(path))
    if not has_tables(kept):
        limit_bytes()  # what is wrong with it is said before the work, not after it
        with _scratch(kept) as scratch, speaking_of(kept, scratch / "run"):
            normalize([path], scratch / "run", keep_raw=False)
            _publish(scratch / "run", kept, lambda: has_tables(kept))
        say(f"{lack}: made them and kept them in {kept}")
        make_room(kept)
    used(kept)
    return kept


def _beside(recording: Path) -> bool:
    """Make the tables of a recording and put them into it; return False where nothing can be written there."""
    place = recording / TABLES
    with contextlib.ExitStack() as stack:
        try:
            scratch = stack.enter_context(_staging(place))
        except OSError:
            return False
        try:
            with speaking_of(recording, scratch / "run"):
                made = normalize([recording], scratch / "run", keep_raw=False)
        except OutputFailedError:
            # The cache may have room.
            return False
        if made.run_id != read_manifest(recording).run_id:
            # Its rows would name another run than its manifest does; in the cache they have a manifest of their own.
            return False
        _publish(scratch / "run" / TABLES, place, lambda: _ready(recording))
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
def _scratch(kept: Path) -> Iterator[Path]:
    """Yield a directory to work in, on the file system of the cache; it is removed afterwards."""
    root = kept.parent
    with contextlib.ExitStack() as stack:
        try:
            root.mkdir(parents=True, exist_ok=True)
            scratch = stack.enter_context(_staging(kept))
        except OSError as error:
            raise InputNotFoundError(
                f"cannot keep tables in it: {error.strerror}",
                path=root,
                remedy="set XDG_CACHE_HOME to a directory that can be written, or name one: magneton normalize TRACE -o RUN",
            ) from error
        yield scratch


@contextlib.contextmanager
def _staging(place: Path) -> Iterator[Path]:
    """Yield a directory beside ``place``, removed afterwards; those of killed processes are removed before.

    Raises:
        OSError: it cannot be made.
    """
    leftovers.tidy(place, _SIGN)
    with leftovers.staging_directory(place) as scratch:
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
    makers = [("magneton", tool_name()), ("schema", str(SCHEMA_VERSION)), ("code", _code_stamp())]
    text = "\n".join(f"{len(name)} {name} {value}" for name, value in [*makers, *parts])
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


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
