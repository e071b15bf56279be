"""Turning trace files into a recording: copy, stage, nest, link, write, publish.

``normalize`` is the one entry. It reads one or more files of one job (one per rank), and optionally traces taken while
GPU graphs were captured, and publishes a directory with the raw files, every table of ``RUN_TABLES`` and the manifest.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from magneton.schemas.errors import InputFormatError, UsageError
from magneton.schemas.files import publish_directory
from magneton.schemas.ids import run_id, sha256_file
from magneton.schemas.manifest import (
    MANIFEST_NAME,
    Capture,
    Device,
    FileEntry,
    Manifest,
    System,
    Workload,
    write_manifest,
)
from magneton.schemas.run_tables import RUN_TABLES
from magneton.transforms.cuda_graphs.rewrite import place_replays_in
from magneton.transforms.execution_traces import join_execution_traces
from magneton.transforms.job import GRAPH_CAPTURE, PROFILE, CaptureFile, Extra, NormalizeOptions
from magneton.transforms.linking.capture_tables import EVENTS, write_capture
from magneton.transforms.linking.host import NextIds
from magneton.transforms.linking.serial import clip_overruns
from magneton.transforms.power.join import TraceSpan, time_line, write_power
from magneton.transforms.ranks import assign_ranks
from magneton.transforms.reading.codecs import TraceInput
from magneton.transforms.reading.limits import Limits
from magneton.transforms.recorded.tables import first_instant, write_recorded
from magneton.transforms.recorded.values import write_values
from magneton.transforms.sources import find_source
from magneton.transforms.staging.stage import Pool, Stage
from magneton.transforms.staging.writer import RunWriter

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
        extra: rows and facts from other files.

    Returns:
        The manifest as written.

    Raises:
        UsageError: no inputs.
        InputFormatError, TruncatedInputError, LimitExceededError, UnsupportedCompressionError: a file is refused.
        RankError: the files contradict one another on ranks.
        OutputExistsError: ``out`` exists and ``overwrite`` is off.
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
    files = _find(inputs, PROFILE, limits, notes) + _find(capture_traces, GRAPH_CAPTURE, limits, notes)
    if not any(f.kind == PROFILE for f in files) and not (extra.power or extra.values or extra.recorded):
        raise UsageError("no trace files were given", remedy="name at least one trace file or a folder of them")
    with publish_directory(out, last=MANIFEST_NAME, overwrite=options.overwrite) as directory:
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
                _read(file, Stage(connection, index, pool, file.source.FORMAT, file.path.name), limits, options)
            of_several = len(inputs) > 1 or any(p.is_dir() for p in inputs)
            joined = join_execution_traces(files)
            assign_ranks([f for f in files if f.stage is not None], of_several=of_several)
            for file, trace in joined:
                file.name, file.rank = trace.name, trace.rank
            others = extra.all_files()
            hashes = [f.sha256 for f in files] + [sha256_file(path) for path, _ in others]
            run = run_id(hashes)
            manifest = Manifest(
                run_id=run,
                label=options.label or _label(inputs[0] if inputs else out),
                tool=f"magneton {_version()}",
                created_unix_ns=time.time_ns(),
                workload=extra.workload or Workload(),
                sensors=[*extra.sensors, *(item.sensor() for item in extra.power)],
                notes=notes,
            )
            # Each thread of the engine takes memory of its own, and from here on other threads compute and write.
            connection.execute("SET threads = 1")
            more = _write_tables(directory / "tables", files, extra, run, options)
        finally:
            connection.close()
            shutil.rmtree(work, ignore_errors=True)
        _describe(manifest, files)
        manifest.captures += more
        manifest.incomplete = manifest.incomplete or any(c.incomplete for c in more)
        manifest.files = _keep(directory, files, others, hashes, options)
        write_manifest(directory, manifest)
    return manifest


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
            raise InputFormatError("holds no trace files in a format we read", path=path)
        found += _without_copies(members, notes)
    return found


def _folder(path: Path) -> Path:
    """Return the folder whose files are meant: a TensorBoard log keeps each profile in `plugins/profile/<time>`."""
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
    """Leave out JSON that JAX writes beside an ``xplane.pb``: it is made of it, and says less."""
    if not any(m.source.FORMAT == "xplane" for m in members):
        return list(members)
    for member in members:
        if member.source.FORMAT == "jax_trace":
            notes.append(f"left out {member.path.name}: made from the xplane.pb beside it")
    return [m for m in members if m.source.FORMAT != "jax_trace"]


def _read(file: CaptureFile, stage: Stage, limits: Limits, options: NormalizeOptions) -> None:
    report = options.progress
    source = TraceInput(file.path, limits)
    if report is not None:
        size = source.size
        source = TraceInput(file.path, limits, lambda done: report(f"read {file.path.name}", done, size))
    file.source.read(source, stage, limits)
    if source.garbage:
        stage.warn("trailing_garbage", f"{source.garbage} bytes after the compressed stream were left out")
    stage.flush()
    clip_overruns(stage)
    file.stage = stage
    file.sha256 = source.sha256()


def _write_tables(
    directory: Path, files: Sequence[CaptureFile], extra: Extra, run: str, options: NormalizeOptions
) -> list[Capture]:
    """Write all tables; return the captures that are not traces."""
    next_ids = NextIds()
    ordered = sorted(files, key=lambda f: (f.kind != PROFILE, f.name, f.rank))
    timed = extra.power or extra.recorded
    spans = [_span(f.stage) for f in ordered if f.stage is not None and f.kind == PROFILE] if timed else []
    with RunWriter(directory, run) as writer:
        for done, file in enumerate(ordered):
            if options.progress is not None:
                options.progress("link and write", done, len(ordered))
            if file.stage is not None:
                keys = {"capture": file.name, "rank": file.rank, "repeat": None, "input_id": None}
                write_capture(file.stage, writer, keys, next_ids, file.kind)
        more = write_power(extra.power, spans, writer) + write_values(extra.values, writer, next_ids)
        base = time_line(extra.power, spans)
        if base is None and not spans:
            base = first_instant(extra.recorded)
        more += write_recorded(extra.recorded, base, writer, next_ids)
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
                file=file.path.name,
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


def _keep(
    directory: Path,
    files: Sequence[CaptureFile],
    others: Sequence[tuple[Path, Path]],
    hashes: Sequence[str],
    options: NormalizeOptions,
) -> list[FileEntry]:
    """Copy the inputs if wanted, and list all files of the recording."""
    places = [(f.path, Path("raw") / f.name / f"rank{f.rank}") for f in files] + list(others)
    entries = []
    for (path, folder), digest in zip(places, hashes, strict=True):
        kept = None
        if options.keep_raw:
            (directory / folder).mkdir(parents=True, exist_ok=True)
            kept = folder / path.name
            shutil.copyfile(path, directory / kept)
        entries.append(
            FileEntry(
                name=path.name,
                sha256=digest,
                size_bytes=path.stat().st_size,
                path=None if kept is None else kept.as_posix(),
            )
        )
    for table in sorted((directory / "tables").iterdir()):
        entries.append(
            FileEntry(
                name=table.name,
                sha256=sha256_file(table),
                size_bytes=table.stat().st_size,
                role="derived",
                path=f"tables/{table.name}",
            )
        )
    return entries


def _label(path: Path) -> str:
    name = path.resolve().name
    while True:
        shorter = next((name[: -len(s)] for s in _SUFFIXES if name.lower().endswith(s) and len(name) > len(s)), name)
        if shorter == name:
            return name or "run"
        name = shorter


def _version() -> str:
    try:
        return importlib.metadata.version("magneton")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
