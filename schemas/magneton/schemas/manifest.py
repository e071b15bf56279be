"""The manifest of a recording: what was run, on what, by whom it was recorded, and which files belong to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from magneton.schemas.errors import SchemaVersionError
from magneton.schemas.files.json import read_object
from magneton.schemas.files.publish import atomic_write
from magneton.schemas.kinds import DeviceKind, FileRole
from magneton.schemas.versions.registry import MANIFEST_STEPS, SCHEMA_VERSION, upgrade_document

MANIFEST_NAME = "manifest.json"


class FileEntry(msgspec.Struct, omit_defaults=True):
    """A file of the recording.

    ``path`` says which: relative to the manifest, and no two files have one path. Example:
    ``raw/profile/rank0/trace.json.gz``. ``name`` is what the file was called where it came from. ``role`` is ``primary``
    (enters the run id), ``auxiliary`` or ``derived`` (tables, may be rebuilt). ``kept`` is FALSE for an input that was read
    where it lay; ``path`` is then where a copy would lie.
    """

    name: str
    sha256: str
    size_bytes: int
    path: str
    role: str = FileRole.PRIMARY
    kept: bool = True


class ClockAnchor(msgspec.Struct, omit_defaults=True):
    """One instant read on two clocks at once, in nanoseconds."""

    unix_ns: int
    clock: str
    clock_ns: int


class Capture(msgspec.Struct, omit_defaults=True):
    """One execution of the system, observed in one way, on one rank. ``file`` is the ``path`` of the file that was read for it."""

    name: str
    kind: str
    rank: int = 0
    repeat: int | None = None
    input_id: str | None = None
    source_format: str | None = None
    file: str | None = None
    incomplete: bool = False
    anchors: list[ClockAnchor] = []


class System(msgspec.Struct, omit_defaults=True):
    """The system that ran: its name, its version and the versions of its libraries."""

    name: str | None = None
    versions: dict[str, str] = {}


class Workload(msgspec.Struct, omit_defaults=True):
    """The work that was done; null where it is unknown. ``source`` names where the numbers come from."""

    model: str | None = None
    batch: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    requests: int | None = None
    steps: int | None = None
    warmup_steps: int | None = None
    duration_s: float | None = None
    source: str | None = None
    details: dict[str, Any] = {}


class Device(msgspec.Struct, omit_defaults=True):
    """A device as the recorded system saw it."""

    index: int | None = None
    name: str | None = None
    uuid: str | None = None
    kind: str = DeviceKind.GPU


class Manifest(msgspec.Struct, omit_defaults=True):
    """``manifest.json``. Written last: its presence makes the directory a recording."""

    run_id: str
    label: str
    # A factory, so that ``omit_defaults`` never leaves out the version that makes the document readable.
    schema_version: int = msgspec.field(default_factory=lambda: SCHEMA_VERSION)
    tool: str | None = None
    created_unix_ns: int | None = None
    system: System = msgspec.field(default_factory=System)
    workload: Workload = msgspec.field(default_factory=Workload)
    devices: list[Device] = []
    sensors: list[dict[str, Any]] = []
    captures: list[Capture] = []
    files: list[FileEntry] = []
    incomplete: bool = False
    notes: list[str] = []


def encode_json(document: Any) -> bytes:
    """Return a struct as indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write ``manifest.json`` into a recording (do this last)."""
    manifest.schema_version = SCHEMA_VERSION
    atomic_write(directory / MANIFEST_NAME, encode_json(manifest))


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a recording, of this schema version or an older one.

    Raises:
        InputNotFoundError: no manifest there.
        InputFormatError: not JSON or not a manifest.
        SchemaVersionError: no version, or one this release does not read.
    """
    path = directory / MANIFEST_NAME
    document = read_object(path)
    try:
        return msgspec.convert(upgrade_document(document, MANIFEST_STEPS, path), Manifest)
    except msgspec.ValidationError as error:
        raise SchemaVersionError(f"is not a manifest: {error}", path=path) from error
