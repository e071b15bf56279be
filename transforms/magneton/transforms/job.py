"""One job of the normaliser: its options, its input files on their way, and what joins it from other readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from magneton.schemas.checks import need_number, need_whole
from magneton.schemas.manifest import Workload
from magneton.schemas.raw_paths import capture_folder, extra_folder
from magneton.transforms.inputs import RawFile
from magneton.transforms.power.join import PowerInput
from magneton.transforms.reading.limits import Limits
from magneton.transforms.recorded.known import Known
from magneton.transforms.recorded.tables import RecordedTable
from magneton.transforms.recorded.values import KIND as VALUES
from magneton.transforms.recorded.values import ValuesInput
from magneton.transforms.sources import Source
from magneton.transforms.staging.stage import Stage

PROFILE = "profile"
GRAPH_CAPTURE = "graph_capture"
DEFAULT_MEMORY_MB, MIN_MEMORY_MB = 128, 64

Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class NormalizeOptions:
    """How to normalise. A value that makes no sense raises ``UsageError``.

    Attributes:
        label: name of the run for people; default: the name of the first input.
        keep_raw: copy the inputs into the recording.
        overwrite: replace an earlier recording at the output.
        allow_truncated: keep what can be read of a file that stops in the middle.
        max_event_dur_ns: longest credible event; longer ones are quarantined.
        max_decompressed_bytes: most bytes one file may decompress to.
        max_ratio: most bytes out per byte in, past ``ratio_floor_bytes``.
        ratio_floor_bytes: see ``max_ratio``.
        memory_limit_mb: room for staged events in memory; more is spilled to disk beside the output.
        progress: called with what is being done, how much is done, and of how much (None: unknown).
    """

    label: str | None = None
    keep_raw: bool = True
    overwrite: bool = False
    allow_truncated: bool = False
    max_event_dur_ns: int = Limits.max_event_dur_ns
    max_decompressed_bytes: int = Limits.max_decompressed_bytes
    max_ratio: float = Limits.max_ratio
    ratio_floor_bytes: int = Limits.ratio_floor_bytes
    memory_limit_mb: int = DEFAULT_MEMORY_MB
    progress: Progress | None = None

    def __post_init__(self) -> None:
        need_whole("max_event_dur_ns", self.max_event_dur_ns, least=0)
        need_whole("max_decompressed_bytes", self.max_decompressed_bytes, least=0)
        need_number("max_ratio", self.max_ratio, least=1)
        need_whole("ratio_floor_bytes", self.ratio_floor_bytes, least=0)
        need_whole("memory_limit_mb", self.memory_limit_mb, least=MIN_MEMORY_MB)


@dataclass(frozen=True)
class Extra:
    """What other readers add to a run: power logs, results of a serving benchmark.

    Attributes:
        tables: rows by table, without ``run_id`` (it is filled in); other missing columns are NULL.
        power: power logs; each becomes a capture. Their files need not be listed again.
        values: values captures, with the directories of their files.
        recorded: tables that our recorder left beside its captures.
        workload: what is known of the work done; replaces the manifest's.
        files: files it came from; they enter the run id and are kept, those from elsewhere below ``raw/extra``.
        sensors: descriptions of sensors for the manifest.
        notes: remarks for the manifest.
        known: the recording that is normalised again.
    """

    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    power: Sequence[PowerInput] = ()
    values: Sequence[ValuesInput] = ()
    recorded: Sequence[RecordedTable] = ()
    workload: Workload | None = None
    files: Sequence[Path] = ()
    sensors: Sequence[dict[str, Any]] = ()
    notes: Sequence[str] = ()
    known: Known | None = None

    def all_files(self) -> list[RawFile]:
        """Return every file that is not a trace, with the folder of the recording it belongs in."""
        files = [RawFile(item.path, extra_folder()) for item in self.power if item.capture is None]
        files += [RawFile(path, extra_folder()) for path in self.files]
        for log in self.power:
            if log.capture is not None:
                files.append(RawFile(log.path, capture_folder(log.capture.name, log.capture.rank)))
        for item in self.values:
            folder = capture_folder(VALUES, item.rank, item.input_id or "0")
            files += [RawFile(path, folder) for path in item.files()]
        return files + [RawFile(item.path, item.folder()) for item in self.recorded]


@dataclass
class CaptureFile:
    """One input file on its way.

    Attributes:
        path: where it lies.
        kind: kind of capture.
        source: format that reads it.
        sha256: hash of the file as it lies there.
        name: name of the capture, once known.
        rank: rank, once known.
        stage: its events, once read.
        copy: a copy that was made while it was read.
        place: path in the recording, once known.
        said: what the metadata of a trace says of this execution trace, once it has joined the trace.
    """

    path: Path
    kind: str
    source: Source
    sha256: str = ""
    name: str = ""
    rank: int = 0
    stage: Stage | None = None
    copy: Path | None = None
    place: str = ""
    said: dict[str, Any] | None = None
