"""The documents that commands print with ``--json`` and nobody reads back: recordings, tables, sensors, the GPU check."""

from __future__ import annotations

from typing import Any

import msgspec

from magneton.schemas.manifest import Manifest
from magneton.schemas.versions.registry import SCHEMA_VERSION


class InfoDocument(msgspec.Struct, forbid_unknown_fields=True):
    """What a recording holds: ``magneton info``, and ``normalize`` and ``record`` at their end.

    ``manifest`` is the manifest as written. ``tables`` are the numbers of rows; ``captures`` and ``health`` are the rows of that table
    and of that view. They are NULL for a recording without tables.
    """

    directory: str
    manifest: Manifest
    tables: dict[str, int] | None
    captures: list[dict[str, Any]] | None
    health: list[dict[str, Any]] | None
    schema_version: int = SCHEMA_VERSION


class ColumnDoc(msgspec.Struct, forbid_unknown_fields=True):
    """A column of a table or view: its Arrow type, the unit of its numbers, and what it means."""

    name: str
    type: str
    unit: str | None
    doc: str


class TableDoc(msgspec.Struct, forbid_unknown_fields=True):
    """A table or view (``kind``) that a query can use: what a row is, its columns, and the SQL that makes a view."""

    name: str
    kind: str
    doc: str
    columns: list[ColumnDoc]
    sql: str | None


class CatalogDocument(msgspec.Struct, forbid_unknown_fields=True):
    """The tables and views that a query can use: ``magneton tables``."""

    tables: list[TableDoc]
    schema_version: int = SCHEMA_VERSION


class SeriesDoc(msgspec.Struct, forbid_unknown_fields=True):
    """One reading of one device, and how often it changed while it was watched.

    ``energetic``: energy can be had from it. ``update_ms`` is the median time between changes, NULL with fewer than three.
    """

    device_kind: str
    device_id: str | None
    name: str
    field: str
    unit: str
    energetic: bool
    labels: dict[str, str]
    value: float | None
    why_no_value: str | None
    changes: int
    update_ms: float | None


class SensorRefusalDoc(msgspec.Struct, forbid_unknown_fields=True):
    """A reading, a device or (where both are NULL) a sensor that cannot be read, why, and what helps."""

    device_id: str | None
    name: str | None
    reason: str
    remedy: str | None
    kind: str


class SensorDoc(msgspec.Struct, forbid_unknown_fields=True):
    """A kind of sensor: ``poll_us`` is the median cost of one reading of all its fast series."""

    source: str
    available: bool
    series: list[SeriesDoc]
    refusals: list[SensorRefusalDoc]
    facts: dict[str, Any] = {}
    devices: list[dict[str, Any]] = []
    warnings: list[str] = []
    poll_us: float | None = None


class SensorsDocument(msgspec.Struct, forbid_unknown_fields=True):
    """The sensors of power and energy that can be read here: ``magneton sensors``. ``meters`` are kinds that one may name."""

    sensors: list[SensorDoc]
    meters: list[str]
    watched_s: float
    schema_version: int = SCHEMA_VERSION


class StageDoc(msgspec.Struct, forbid_unknown_fields=True):
    """A stage of the GPU check: its result, or why there is none."""

    ok: bool
    seconds: float
    result: Any = None
    reason: str | None = None


class GpuCheckDocument(msgspec.Struct, forbid_unknown_fields=True):
    """``gpu_check.json`` of ``make gpu-check``: what each stage found. ``simulated``: a rehearsal with a stand-in for sensors."""

    simulated: bool
    budget_s: float
    stages: dict[str, StageDoc]
    removed: list[str] = []
    schema_version: int = SCHEMA_VERSION
