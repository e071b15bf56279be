"""Turning trace files into a recording: copy, stage, nest, link, write, publish.

``normalize`` is the one entry. It reads one or more files of one job (one per rank), and optionally traces taken while
GPU graphs were captured, and publishes a directory with the raw files, every table of ``RUN_TABLES`` and the manifest.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from magneton.schemas.errors import InputFormatError, UsageError
from magneton.schemas.files.publish import publish_directory
from magneton.schemas.ids import run_id
from magneton.schemas.kinds import CaptureKind
from magneton.schemas.manifest import (
    MANIFEST_NAME,
    Capture,
    Device,
    Manifest,
    System,
    Workload,
    write_manifest,
)
from magneton.schemas.raw_paths import capture_folder
from magneton.schemas.tables.run import RUN_TABLES
from magneton.transforms.cuda_graphs.rewrite import place_replays_in
from magneton.transforms.execution_traces import join_execution_traces
from magneton.transforms.inputs import RawFile, give_places, keep, tables_of
from magneton.transforms.job import CaptureFile, Extra, NormalizeOptions
from magneton.transforms.linking.capture_tables import EVENTS, write_capture
from magneton.transforms.linking.host import NextIds
from magneton.transforms.linking.serial import clip_overruns
from magneton.transforms.power.join import TraceSpan, time_line, write_power
from magneton.transforms.processes import processes_apart
from magneton.transforms.ranks import assign_ranks
from magneton.transforms.reading.codecs import TraceInput
from magneton.transforms.reading.limits import Limits
from magneton.transforms.recorded.tables import first_instant, write_recorded
from magneton.transforms.recorded.values import write_values
from magneton.transforms.sources import find_source
from magneton.transforms.staging.engine import room
from magneton.transforms.staging.stage import Pool, Stage
from magneton.transforms.staging.writer import RunWriter

LOG = logging.getLogger(__name__)

_THREADS = 2
_SUFFIXES = (".gz", ".zst", ".zip", ".json", ".trace", ".pt", ".pb", ".sqlite", ".db", ".xplane", ".chakra")


def normalize(
    inputs: Sequence[Path],
    out: Path,
    options: NormalizeOptions | None = None,
    *,
    capture_traces: Sequence[Path] = (),
    extra: Extra | None = None,
) -> Manifest:
    """Turn traces of one job into a recording.

    Args:
        inputs: trace files, one per rank, or a folder that holds them.
        out: directory to publish.
        options: see ``NormalizeOptions``.
        capture_traces: traces taken while GPU graphs were captured, or a folder of them.
        extra: rows and facts from power logs, benchmark results and recorders.

    Returns:
        The manifest as written.

    Raises:
        UsageError: no inputs.
        InputFormatError, TruncatedInputError, LimitExceededError, UnsupportedCompressionError: a file is refused.
        RankError: the files contradict one another on ranks.
        OutputExistsError: ``out`` exists and ``overwrite`` is off.
        ChecksumError: a file of a recording that is normalised again is not the one that its manifest states.
    """
    options = options or NormalizeOptions()
    extra = extra or Extra()
    limits = Limits(
        max_event_dur_ns=options.max_event_dur_ns,
        max_decompressed_bytes=options.max_decompressed_bytes,
        max_ratio=options.max_ratio,
        ratio_floor_bytes=options.ratio_floor_bytes,
        allow_truncated=options.allow_truncated,
    )
    notes = list(extra.notes)
    files = _find(inputs, CaptureKind.PROFILE, limits, notes) + _find(
        capture_traces, CaptureKind.GRAPH_CAPTURE, limits, notes
    )
    if not any(f.kind == CaptureKind.PROFILE for f in files) and not (extra.power or extra.values or extra.recorded):
        raise UsageError("no trace files were given", remedy="name at least one trace file or a folder of them")
    with publish_directory(out, last=MANIFEST_NAME, overwrite=options.overwrite) as directory, room(directory):
        work = directory / ".work"
        work.mkdir()
        connection = duckdb.connect(
            ":memory:",
            config={
                "temp_directory": str(work),
                "memory_limit": f"{options.memory_limit_mb}MB",
                "threads": _THREADS,
                "preserve_insertion_order": True,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            },
        )
        try:
            pool = Pool()
            for index, file in enumerate(files):
                file.copy = work / f"raw-{index}" if options.keep_raw else None
                _read(file, Stage(connection, index, pool, file.source.FORMAT, file.path.name), limits, options)
                if extra.known is not None:
                    extra.known.check(file.path, file.sha256)
            of_several = len(inputs) > 1 or any(p.is_dir() for p in inputs)
            joined = join_execution_traces(files)
            captures = processes_apart(files)
            assign_ranks([f for f in captures if f.stage is not None], of_several=of_several)
            for file, trace in joined:
                file.name, file.rank = trace.name, trace.rank
            traces = [RawFile(f.path, capture_folder(f.name, f.rank), f.sha256, f.copy) for f in files]
            others = extra.all_files()
            give_places([*traces, *others], extra.known)
            place_of = {raw.path: raw.place for raw in traces}
            for file in captures:
                _name(file, place_of[file.path])
            entries = keep([*traces, *others], directory, extra.known, copies=options.keep_raw)
            run = run_id(entry.sha256 for entry in entries)
            places = {raw.path: raw.place for raw in others}
            manifest = Manifest(
                run_id=run,
                label=options.label or _label(inputs[0] if inputs else out),
                tool=f"magneton {_version()}",
                created_unix_ns=time.time_ns(),
                workload=extra.workload or Workload(),
                sensors=[*extra.sensors, *(item.sensor(places[item.path]) for item in extra.power)],
                files=entries,
                notes=notes,
            )
            # Each thread of the engine takes memory of its own, and from here on other threads compute and write.
            connection.execute("SET threads = 1")
            more = _write_tables(directory / "tables", captures, extra, places, run, options)
        finally:
            connection.close()
            shutil.rmtree(work, ignore_errors=True)
        _describe(manifest, captures)
        manifest.captures += more
        manifest.incomplete = manifest.incomplete or any(c.incomplete for c in more)
        manifest.files += tables_of(directory)
        if extra.known is not None:
            paths = ((raw.place, extra.known.path_of(raw.path)) for raw in [*traces, *others])
            extra.known.carry_over(manifest, {place: path for place, path in paths if path is not None})
        write_manifest(directory, manifest)
    return manifest


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files that ``normalize`` would read for these inputs.

    Raises:
        InputNotFoundError, InputFormatError: an input is not there, or no trace in a format we read.
    """
    return [file.path for file in _find(paths, CaptureKind.PROFILE, Limits(), [])]


def _find(paths: Sequence[Path], kind: str, limits: Limits, notes: list[str]) -> list[CaptureFile]:
    """Return the files to read; in folders, files of no known format are left out and noted."""
    found = []
    for path in paths:
        if not path.is_dir():
            found.append(CaptureFile(path, kind, find_source(TraceInput(path, limits).head(), path)))
            continue
        members = []
        for member in sorted(p for p in _folder(path).iterdir() if p.is_file() and not p.name.startswith(".")):
            try:
                members.append(CaptureFile(member, kind, find_source(TraceInput(member, limits).head(), member)))
            except InputFormatError:
                notes.append(f"left out {member.name}: not a trace in a format we read")
        if not members:
            raise InputFormatError("holds no trace files in a known format", path=path)
        found += _without_copies(members, notes)
    return found


def _folder(path: Path) -> Path:
    """Return the folder that holds the files. A TensorBoard log keeps each profile in `plugins/profile/<time>`."""
    profiles = path / "plugins" / "profile"
    if not profiles.is_dir():
        return path
    runs = sorted(p for p in profiles.iterdir() if p.is_dir())
    if len(runs) != 1:
        raise InputFormatError(
            f"is a TensorBoard log of {len(runs)} profiles",
            path=path,
            remedy="name one of the folders in plugins/profile",
        )
    return runs[0]


def _without_copies(members: Sequence[CaptureFile], notes: list[str]) -> list[CaptureFile]:
    """Leave out the JSON that JAX writes beside an ``xplane.pb``. It is made from the ``xplane.pb`` and holds less."""
    if not any(m.source.FORMAT == "xplane" for m in members):
        return list(members)
    for member in members:
        if member.source.FORMAT == "jax_trace":
            notes.append(f"left out {member.path.name}: made from the xplane.pb beside it")
    return [m for m in members if m.source.FORMAT != "jax_trace"]


def _read(file: CaptureFile, stage: Stage, limits: Limits, options: NormalizeOptions) -> None:
    report = options.progress
    source = TraceInput(file.path, limits, copy=file.copy)
    if report is not None:
        size = source.size
        told = partial(report, f"read {file.path.name}")
        source = TraceInput(file.path, limits, lambda done: told(done, size), file.copy)
    file.source.read(source, stage, limits)
    if source.garbage:
        stage.warn("trailing_garbage", f"{source.garbage} bytes after the compressed stream were left out")
    stage.flush()
    clip_overruns(stage)
    rows = {kind: count for kind, count in stage.n_rows.items() if count}
    LOG.info("%s: read as %s, %d events of %s", file.path, file.source.FORMAT, sum(rows.values()), file.kind)
    LOG.debug("%s: staged %s", file.path, rows)
    file.stage = stage
    file.sha256 = source.sha256()


def _name(file: CaptureFile, place: str) -> None:
    """Let everything that is written of a file name it by its path in the recording."""
    file.place = place
    if file.stage is not None:
        file.stage.file = place
    if file.said is not None:
        file.said["file"] = place


def _write_tables(
    directory: Path,
    files: Sequence[CaptureFile],
    extra: Extra,
    places: Mapping[Path, str],
    run: str,
    options: NormalizeOptions,
) -> list[Capture]:
    """Write all tables; return the captures that are not traces."""
    next_ids = NextIds()
    ordered = sorted(files, key=lambda f: (f.kind != CaptureKind.PROFILE, f.name, f.rank))
    timed = extra.power or extra.recorded
    spans = [_span(f.stage) for f in ordered if f.stage is not None and f.kind == CaptureKind.PROFILE] if timed else []
    with RunWriter(directory, run) as writer:
        for done, file in enumerate(ordered):
            if options.progress is not None:
                options.progress("link and write", done, len(ordered))
            if file.stage is not None:
                keys = {"capture": file.name, "rank": file.rank, "repeat": None, "input_id": None}
                write_capture(file.stage, writer, keys, next_ids, file.kind)
        more = write_power(extra.power, spans, places, writer)
        more += write_values(extra.values, places, writer, next_ids)
        base = time_line(extra.power, spans)
        if base is None and not spans:
            base = first_instant(extra.recorded)
        more += write_recorded(extra.recorded, base, places, writer, next_ids)
        for name, table in extra.tables.items():
            if name not in RUN_TABLES:
                raise KeyError(f"there is no table {name}")
            writer.write_table(name, table.append_column("run_id", pa.repeat(run, table.num_rows)))
    place_replays_in(directory)
    return more


def _span(stage: Stage) -> TraceSpan:
    return TraceSpan(stage.info.base_unix_ns, *stage.span(EVENTS))


def _describe(manifest: Manifest, files: Sequence[CaptureFile]) -> None:
    """Fill in what the captures say of system, devices and completeness."""
    versions: dict[str, str] = {}
    devices: dict[tuple[Any, Any, Any], Device] = {}
    for file in files:
        if file.stage is None:
            continue
        info = file.stage.info
        manifest.system.name = manifest.system.name or info.framework
        versions = info.versions | versions
        manifest.incomplete = manifest.incomplete or info.incomplete
        manifest.captures.append(
            Capture(
                name=file.name,
                kind=file.kind,
                rank=file.rank,
                source_format=info.source_format,
                file=file.place,
                incomplete=info.incomplete,
            )
        )
        for properties in info.devices:
            device = _device(properties)
            devices.setdefault((device.index, device.name, device.uuid), device)
    manifest.system = System(name=manifest.system.name, versions=dict(sorted(versions.items())))
    manifest.devices = list(devices.values())


def _device(properties: Mapping[str, Any]) -> Device:
    index, name, uuid = properties.get("id"), properties.get("name"), properties.get("uuid")
    return Device(
        index=index if isinstance(index, int) and not isinstance(index, bool) else None,
        name=name if isinstance(name, str) and name else None,
        uuid=uuid if isinstance(uuid, str) and uuid else None,
    )


def _label(path: Path) -> str:
    name = path.resolve().name
    while True:
        shorter = next((name[: -len(s)] for s in _SUFFIXES if name.lower().endswith(s) and len(name) > len(s)), name)
        if shorter == name:
            return name or "run"
        name = shorter


@functools.cache
def _version() -> str:
    try:
        return importlib.metadata.version("magneton")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
