"""Traces become a recording; a recording that holds only raw files gets its tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from magneton.flows.extras import ExtraFiles, read_extras
from magneton.schemas.errors import ChecksumError, InputFormatError, InputNotFoundError, UnsafeArchiveError, UsageError
from magneton.schemas.ids import sha256_file
from magneton.schemas.manifest import MANIFEST_NAME, FileEntry, Manifest, System, read_manifest, write_manifest
from magneton.transforms import normalize as transform
from magneton.transforms.job import NormalizeOptions
from magneton.transforms.power.join import ENTRY_KIND, KIND, PowerInput, open_power, options_of
from magneton.transforms.power.registry import find_format
from magneton.transforms.recorded.tables import TABLES, RecordedTable
from magneton.transforms.recorded.values import KIND as VALUES
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

    What the manifest of a recording says (label, system, workload, devices, clock anchors) is carried over, and its raw
    files must have the hashes it states.

    Args:
        inputs: trace files, one per rank, or a folder that holds them; or one recording.
        out: directory to publish; None: a recording is normalised where it lies, and its earlier tables are replaced.
        options: see ``NormalizeOptions``.
        capture_traces: traces taken while GPU graphs were captured, or a folder of them.
        keep_raw: copy the inputs into the recording; stands above ``options``.
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
    raw = [(entry, _raw_file(recording, entry)) for entry in known.files if entry.role != "derived" and entry.path]
    if out.exists() and recording.samefile(out):
        lost = [entry.name for entry, _ in raw if not options.keep_raw or entry.role != "primary"]
        if lost:
            raise UsageError(f"would lose {lost[0]}", path=out, remedy="choose another output")
    kinds = {capture.file: capture.kind for capture in known.captures}
    traces: dict[str, list[Path]] = {"profile": [], "graph_capture": list(capture_traces)}
    values = _values_again(recording, known)
    recorded = _recorded_again(known, raw)
    ours = {path for item in values for path in item.files()} | {item.path for item in recorded}
    power = _power_again(known, [pair for pair in raw if pair[1] not in ours])
    logs = {item.path for item in power}
    others = [path for entry, path in raw if _is_extra(entry) and path not in logs]
    for entry, path in raw:
        kind = kinds.get(entry.name, "profile")
        taken = path in logs or path in others or path in ours
        if entry.role == "primary" and kind in traces and not taken:
            traces[kind].append(path)
    if not traces["profile"] and not (power or values or recorded):
        raise InputFormatError(
            "keeps no trace of its own", path=recording, remedy="normalise the trace it was made from"
        )
    manifest = transform.normalize(
        traces["profile"],
        out,
        dataclasses.replace(options, label=options.label or known.label),
        capture_traces=traces["graph_capture"],
        extra=read_extras(
            extras,
            {
                "power": power,
                "values": values,
                "recorded": recorded,
                "workload": known.workload,
                "files": others,
                "sensors": [s for s in known.sensors if s.get("kind") != ENTRY_KIND],
                "notes": known.notes,
            },
        ),
    )
    _carry_over(known, manifest)
    write_manifest(out, manifest)
    return manifest


def _is_extra(entry: FileEntry) -> bool:
    """Say whether a raw file was given beside the traces."""
    return PurePosixPath(entry.path or "").parts[:2] == ("raw", "extra")


def _power_again(known: Manifest, raw: Sequence[tuple[FileEntry, Path]]) -> list[PowerInput]:
    """Read the power logs of a recording once more, the way they were read."""
    inputs = []
    unread = [(entry, path) for entry, path in raw if entry.role == "primary"]
    for capture in known.captures:
        if capture.kind != KIND:
            continue
        # Files of several ranks or repeats have one name; each lies in the folder of its capture.
        own = (capture.name, f"rank{capture.rank}")
        named = [pair for pair in unread if pair[0].name == capture.file]
        named.sort(key=lambda pair: PurePosixPath(pair[0].path or "").parts[1:3] != own)
        found = next(iter(named), None)
        if found is not None and find_format(found[1]) is not None:
            unread.remove(found)
            recorded = None if _is_extra(found[0]) else capture
            options = options_of(known.sensors, capture.file)
            inputs.append(open_power(found[1], options, capture.anchors, recorded))
    return inputs


def _values_again(recording: Path, known: Manifest) -> list[ValuesInput]:
    """Return the values captures of a recording, as its recorder left them."""
    return [
        ValuesInput(
            recording / "raw" / VALUES / f"rank{capture.rank}" / (capture.input_id or "0"),
            rank=capture.rank,
            input_id=capture.input_id,
            incomplete=capture.incomplete,
        )
        for capture in known.captures
        if capture.kind == VALUES
    ]


def _recorded_again(known: Manifest, raw: Sequence[tuple[FileEntry, Path]]) -> list[RecordedTable]:
    """Return the tables that a recorder left beside its captures, each with the capture whose folder it lies in."""
    found = []
    for entry, path in raw:
        parts = PurePosixPath(entry.path or "").parts
        table = entry.name.removesuffix(".parquet")
        if len(parts) != 4 or parts[0] != "raw" or table not in TABLES or entry.name == table:
            continue
        of = [c for c in known.captures if (c.name, f"rank{c.rank}") == parts[1:3]]
        if of:
            own = next((c for c in of if c.file == entry.name), None)
            found.append(RecordedTable(path, table, own or of[0], known=own is None))
    return found


def _raw_file(recording: Path, entry: FileEntry) -> Path:
    """Return where a file of a recording lies, once it is sure to lie inside and to be the one that is stated."""
    stated = PurePosixPath(entry.path or "")
    path = recording / stated
    if stated.is_absolute() or ".." in stated.parts or not path.resolve().is_relative_to(recording.resolve()):
        raise UnsafeArchiveError(f"names a file outside of itself: {entry.path}", path=recording / MANIFEST_NAME)
    if not path.is_file():
        raise InputNotFoundError("is named by the manifest and not there", path=path)
    if sha256_file(path) != entry.sha256:
        raise ChecksumError(
            "does not have the hash its manifest states", path=path, remedy="copy or unpack the recording again"
        )
    return path


def _carry_over(known: Manifest, manifest: Manifest) -> None:
    """Complete a manifest made from traces by what the recorder knew and traces do not say."""
    manifest.system = System(
        name=known.system.name or manifest.system.name,
        versions=dict(sorted((manifest.system.versions | known.system.versions).items())),
    )
    listed = {(d.kind, d.index) for d in known.devices}
    manifest.devices = known.devices + [d for d in manifest.devices if (d.kind, d.index) not in listed]
    before = {(c.kind, c.rank, c.input_id): c for c in known.captures if c.kind != KIND}
    for capture in manifest.captures:
        earlier = before.get((capture.kind, capture.rank, capture.input_id))
        if earlier is not None:
            capture.anchors = earlier.anchors
            capture.incomplete = capture.incomplete or earlier.incomplete
    manifest.incomplete = manifest.incomplete or known.incomplete
