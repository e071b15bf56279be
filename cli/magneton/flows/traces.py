"""Traces become a recording; a recording that holds only raw files gets its tables."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from magneton.flows.extras import ExtraFiles, read_extras
from magneton.schemas.errors import (
    ClockAlignmentError,
    InputFormatError,
    InputNotFoundError,
    LimitExceededError,
    RankError,
    SchemaVersionError,
    UnsafeArchiveError,
    UsageError,
)
from magneton.schemas.files.leftovers import MARK, put_back
from magneton.schemas.ids import sha256_file
from magneton.schemas.kinds import CaptureKind, FileRole, SensorKind
from magneton.schemas.manifest import MANIFEST_NAME, FileEntry, Manifest, read_manifest
from magneton.schemas.raw_paths import capture_folder, extra_folder
from magneton.transforms import normalize as transform
from magneton.transforms.job import NormalizeOptions
from magneton.transforms.power.join import PowerInput, open_power, options_of
from magneton.transforms.power.registry import find_format
from magneton.transforms.recorded.known import Known, changed
from magneton.transforms.recorded.tables import TABLES, RecordedTable
from magneton.transforms.recorded.values import ValuesInput

__all__ = ["ExtraFiles", "NormalizeOptions", "normalize"]


def normalize(
    inputs: Sequence[Path],
    out: Path | None = None,
    options: NormalizeOptions | None = None,
    *,
    capture_traces: Sequence[Path] = (),
    keep_raw: bool | None = None,
    extras: ExtraFiles | None = None,
) -> Manifest:
    """Turn traces of one job, or the raw files of one recording, into a recording with tables.

    For a recording, its manifest is carried over (label, system, workload, devices, clock anchors). The raw files must have
    the hashes that the manifest states.

    Args:
        inputs: trace files, one per rank, or a folder that holds them; or one recording.
        out: directory to publish; None: a recording is normalised where it lies, and its earlier tables are replaced.
        options: see ``NormalizeOptions``.
        capture_traces: traces taken while GPU graphs were captured, or a folder of them.
        keep_raw: copy the inputs into the recording. It overrides ``options``.
        extras: power logs and benchmark results that join the recording.

    Returns:
        The manifest as written.

    Raises:
        UsageError: no inputs, no output for traces, or a recording among other inputs.
        ChecksumError: a raw file of a recording is not the one its manifest states.
        MagnetonError: an input is refused, or the output may not be replaced.
    """
    options = options or NormalizeOptions()
    extras = extras or ExtraFiles()
    if keep_raw is not None:
        options = dataclasses.replace(options, keep_raw=keep_raw)
    for path in inputs:
        if not path.exists():
            put_back(path, MANIFEST_NAME)
    recorded = [path for path in inputs if (path / MANIFEST_NAME).is_file()]
    if out is None:
        if not recorded:
            raise UsageError("no output was named", remedy="name a directory: magneton normalize TRACE -o RUN")
        out, options = recorded[0], dataclasses.replace(options, overwrite=True)
        _need_nothing_else_in(out)
    if not recorded:
        return transform.normalize(inputs, out, options, capture_traces=capture_traces, extra=read_extras(extras))
    if len(inputs) > 1:
        raise UsageError("a recording is normalised by itself", path=recorded[0], remedy="give it alone")
    return _again(inputs[0], out, options, capture_traces, extras)


def _need_nothing_else_in(recording: Path) -> None:
    """Refuse to replace a recording that somebody keeps files of their own in: they would be gone with the old one."""
    ours = {entry.path for entry in read_manifest(recording).files} | {MANIFEST_NAME}
    for path in sorted(recording.rglob("*")):
        inside = path.relative_to(recording)
        if inside.parts[0].startswith(MARK):
            continue  # left by a process that was killed while it made tables
        if not path.is_dir() and inside.as_posix() not in ours and inside.parts[0] != "tables":
            raise UsageError(
                f"is not part of the recording {recording} and would be lost",
                path=path,
                remedy="move it away, or name another output with --out",
            )


def _again(
    recording: Path, out: Path, options: NormalizeOptions, capture_traces: Sequence[Path], extras: ExtraFiles
) -> Manifest:
    known = read_manifest(recording)
    inputs = [entry for entry in known.files if entry.role == FileRole.PRIMARY]
    for entry in inputs:
        if not entry.kept:
            raise InputFormatError(
                f"keeps no copy of {entry.path}", path=recording, remedy="normalise the trace it was made from"
            )
    raw = {entry.path: (entry, _raw_file(recording, entry)) for entry in inputs}
    if out.exists() and recording.samefile(out):
        lost = [
            e.name
            for e in known.files
            if e.role != FileRole.DERIVED and not (options.keep_raw and e.role == FileRole.PRIMARY)
        ]
        if lost:
            raise UsageError(f"would lose {lost[0]}", path=out, remedy="choose another output")
    entries = {path: entry for entry, path in raw.values()}
    with _refused_when_changed(entries):
        read = _read_again(known, raw)
        traces, captured = _traces(known, raw, read)
        taken = {*traces, *captured, *read.paths()}
        if not traces and not (read.power or read.values or read.recorded):
            raise InputFormatError(
                "keeps no trace of its own", path=recording, remedy="normalise the trace it was made from"
            )
        return transform.normalize(
            traces,
            out,
            dataclasses.replace(options, label=options.label or known.label),
            capture_traces=[*captured, *capture_traces],
            extra=read_extras(
                extras,
                {
                    "power": read.power,
                    "values": read.values,
                    "recorded": read.recorded,
                    "workload": known.workload,
                    # Results of benchmarks, and logs in formats that nothing here reads: they stay in the recording.
                    "files": [path for path in entries if path not in taken],
                    "sensors": [s for s in known.sensors if s.get("kind") != SensorKind.POWER_LOG],
                    "notes": known.notes,
                    "known": Known(known, entries),
                },
            ),
        )


_Raw = Mapping[str, tuple[FileEntry, Path]]


@dataclasses.dataclass(frozen=True)
class _Read:
    """The raw files of a recording that are not traces."""

    power: list[PowerInput]
    values: list[ValuesInput]
    recorded: list[RecordedTable]

    def paths(self) -> set[Path]:
        """Return where the files lie."""
        tables = {path for item in self.values for path in item.files()} | {item.path for item in self.recorded}
        return tables | {log.path for log in self.power}


@contextlib.contextmanager
def _refused_when_changed(entries: Mapping[Path, FileEntry]) -> Iterator[None]:
    """Say of a file that cannot be read that it is not the recorded one, where that is so.

    Files are hashed while they are read. A file that was damaged may be refused before its end is reached.
    """
    try:
        yield
    except (InputFormatError, SchemaVersionError, LimitExceededError, ClockAlignmentError, RankError) as error:
        for path, entry in entries.items():
            if path.is_file() and sha256_file(path) != entry.sha256:
                raise changed(path) from error
        raise


def _traces(known: Manifest, raw: _Raw, read: _Read) -> tuple[list[Path], list[Path]]:
    """Return the traces of a recording, and those taken while GPU graphs were captured.

    A file that is no capture's own, and was not given beside the traces, is an execution trace.
    """
    kinds = {capture.file: capture.kind for capture in known.captures}
    others = read.paths()
    traces: dict[str, list[Path]] = {CaptureKind.PROFILE: [], CaptureKind.GRAPH_CAPTURE: []}
    for entry, path in raw.values():
        kind = kinds.get(entry.path, "other" if _is_extra(entry) else CaptureKind.PROFILE)
        if kind in traces and path not in others:
            traces[kind].append(path)
    return traces[CaptureKind.PROFILE], traces[CaptureKind.GRAPH_CAPTURE]


def _is_extra(entry: FileEntry) -> bool:
    """Say whether a raw file was given beside the traces."""
    return PurePosixPath(entry.path).is_relative_to(extra_folder())


def _read_again(known: Manifest, raw: _Raw) -> _Read:
    """Open power logs the way they were read, and find the tables that recorders left."""
    own = [(capture, *raw[capture.file]) for capture in known.captures if capture.file and capture.file in raw]
    values = [
        ValuesInput(path.parent, capture.rank, capture.input_id, capture.incomplete)
        for capture, _, path in own
        if capture.kind == CaptureKind.VALUES
    ]
    tables = {path for item in values for path in item.files()}
    unlisted = tables - {path for _, path in raw.values()}
    if unlisted:
        raise InputFormatError("is not listed in the manifest of its recording", path=min(unlisted))
    recorded = _recorded_again(known, [pair for pair in raw.values() if pair[1] not in tables])
    tables |= {item.path for item in recorded}
    power = []
    for capture, entry, path in own:
        if capture.kind == CaptureKind.ENERGY and path not in tables and find_format(path) is not None:
            recorder = None if _is_extra(entry) else capture
            power.append(open_power(path, options_of(known.sensors, entry.path), capture.anchors, recorder))
    return _Read(power, values, recorded)


def _recorded_again(known: Manifest, raw: Sequence[tuple[FileEntry, Path]]) -> list[RecordedTable]:
    """Return the tables that a recorder left beside its captures, each with the capture whose folder it lies in."""
    found = []
    for entry, path in raw:
        table = entry.name.removesuffix(".parquet")
        if table not in TABLES or entry.name == table:
            continue
        folder = str(PurePosixPath(entry.path).parent)
        of = [c for c in known.captures if capture_folder(c.name, c.rank) == folder]
        if of:
            own = next((c for c in of if c.file == entry.path), None)
            found.append(RecordedTable(path, table, own or of[0], known=own is None))
    return found


def _raw_file(recording: Path, entry: FileEntry) -> Path:
    """Return where a file of a recording lies, once it is sure to lie inside."""
    stated = PurePosixPath(entry.path)
    path = recording / stated
    if stated.is_absolute() or ".." in stated.parts or not path.resolve().is_relative_to(recording.resolve()):
        raise UnsafeArchiveError(f"names a file outside of itself: {entry.path}", path=recording / MANIFEST_NAME)
    if not path.is_file():
        raise InputNotFoundError("is named by the manifest and not there", path=path)
    return path
