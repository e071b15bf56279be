"""What a reader of power logs is told, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from magneton.schemas.checks import need_one_of, need_whole
from magneton.schemas.clocks import CLOCKS, REALTIME
from magneton.schemas.errors import UsageError
from magneton.transforms.power.readings import Readings
from magneton.transforms.reading.localtime import DATE_ORDERS, parse_zone


@dataclass(frozen=True)
class PowerOptions:
    """What the user says about a power log. A value that makes no sense raises ``UsageError``.

    Attributes:
        clock: clock of the time stamps, where the file does not say (``realtime``, ``monotonic``, ``boottime``).
        tz: zone of local times.
        offset_ns: nanoseconds to add to a time stamp to get Unix time: the correction of a wall clock, or what ties
            another clock to it. Applied when the log joins a recording (``registry.rebase``).
        at_unix_ns: Unix time of a snapshot that has no time stamps of its own.
        date_order: ``mdy`` or ``dmy`` for dates that may be either.
    """

    clock: str | None = None
    tz: str | None = None
    offset_ns: int | None = None
    at_unix_ns: int | None = None
    date_order: str | None = None

    def __post_init__(self) -> None:
        if self.clock is not None:
            need_one_of("clock", self.clock, CLOCKS)
        if self.tz is not None:
            parse_zone(self.tz)
        if self.date_order is not None:
            need_one_of("date_order", self.date_order, DATE_ORDERS)
        for name, value in (("offset_ns", self.offset_ns), ("at_unix_ns", self.at_unix_ns)):
            if value is not None:
                need_whole(name, value)


class DeviceCount(msgspec.Struct):
    """Rows of one device: with a power or energy reading, and without one."""

    device_kind: str | None
    device_id: str | None
    n_valid: int = 0
    n_missing: int = 0
    labels: dict[str, str] = {}


class SeriesCount(msgspec.Struct):
    """One series of power or energy: how many readings, from when to when (ns on its own clock), how often."""

    name: str
    device_kind: str | None
    device_id: str | None
    field: str
    clock: str | None
    n: int
    first_ns: int | None
    last_ns: int | None
    cadence_ns: int | None


class PowerReport(msgspec.Struct):
    """The books of one power log. ``n_rows = n_valid + n_other + n_ignored + sum(dropped.values())``.

    A row is a data line of a CSV or a sample of a metric. It is valid when it gives a power or an energy, other when it
    gives only other readings, ignored when we do not know its metric, and dropped (quarantined) when nothing can be
    used. ``n_malformed`` is the part of ``dropped`` that is broken text; repeated headers are not rows.
    """

    format: str
    file: str
    n_rows: int = 0
    n_valid: int = 0
    n_other: int = 0
    n_ignored: int = 0
    dropped: dict[str, int] = {}
    n_malformed: int = 0
    n_repeated_headers: int = 0
    n_conflicting_instants: int = 0
    n_readings: int = 0
    missing_cells: dict[str, dict[str, int]] = {}
    ignored: dict[str, int] = {}
    devices: list[DeviceCount] = []
    series: list[SeriesCount] = []
    time_zone: str | None = None
    time_zone_source: str | None = None
    date_order: str | None = None
    date_order_source: str | None = None
    offset_ns: int | None = None
    encoding: str | None = None
    truncated: bool = False
    notes: list[str] = []


@dataclass
class PowerLog:
    """A power log, read.

    Attributes:
        readings: the readings, compact; ``table`` and ``readings.batches`` give them as Arrow tables.
        quarantine: rows set aside: ``reason, file, position, raw`` as in the table ``quarantine``.
        warnings: ``code, count, message`` as in the table ``warnings``.
        report: the counts.
    """

    readings: Readings
    quarantine: pa.Table
    warnings: pa.Table
    report: PowerReport

    @property
    def table(self) -> pa.Table:
        """All readings in one table: see ``Readings.batches``."""
        return pa.concat_tables(self.readings.batches())


def realtime_only(options: PowerOptions, path: Path) -> str:
    """Return the clock of formats that are always stamped by the wall clock.

    Raises:
        UsageError: the user says otherwise.
    """
    if options.clock not in (None, REALTIME):
        raise UsageError(
            f"is stamped by the wall clock, not by {options.clock}", path=path, remedy="leave --clock away"
        )
    return REALTIME
