"""What a reader of power logs returns, and the builder that keeps its books."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from magneton.schemas.clocks import CLOCKS, INT64_MAX, INT64_MIN, REALTIME
from magneton.schemas.errors import InputFormatError, UsageError
from magneton.transforms.power.fields import Cell, gives_energy

RAW_LIMIT = 2000
_NO_TIME = INT64_MIN
MALFORMED = ("row_malformed", "row_cut")


@dataclass(frozen=True)
class PowerOptions:
    """What the user says about a power log.

    Attributes:
        clock: clock of the time stamps, where the file does not say (``realtime``, ``monotonic``, ``boottime``).
        tz: zone of local times.
        offset_ns: nanoseconds added to every time stamp.
        at_unix_ns: Unix time of a snapshot that has no time stamps of its own.
        date_order: ``mdy`` or ``dmy`` for dates that may be either.
    """

    clock: str | None = None
    tz: str | None = None
    offset_ns: int = 0
    at_unix_ns: int | None = None
    date_order: str | None = None

    def __post_init__(self) -> None:
        if self.clock is not None and self.clock not in CLOCKS:
            raise UsageError(f"unknown clock {self.clock[:40]!r}", remedy=f"give one of {', '.join(CLOCKS)}")


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
    offset_ns: int = 0
    encoding: str | None = None
    truncated: bool = False
    notes: list[str] = []


@dataclass
class PowerLog:
    """A power log, read.

    Attributes:
        table: one row per reading: ``name, ts_ns, source, device_kind, device_id, field, value, unit, labels, clock,
            flags`` as in the table ``power``, with ``ts_ns`` absolute on its clock (NULL where there is none).
        quarantine: rows set aside: ``reason, file, position, raw`` as in the table ``quarantine``.
        warnings: ``code, count, message`` as in the table ``warnings``.
        report: the counts.
    """

    table: pa.Table
    quarantine: pa.Table
    warnings: pa.Table
    report: PowerReport


TABLE_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("ts_ns", pa.int64()),
        ("source", pa.string()),
        ("device_kind", pa.string()),
        ("device_id", pa.string()),
        ("field", pa.string()),
        ("value", pa.float64()),
        ("unit", pa.string()),
        ("labels", pa.string()),
        ("clock", pa.string()),
        ("flags", pa.string()),
    ]
)
QUARANTINE_SCHEMA = pa.schema(
    [("reason", pa.string()), ("file", pa.string()), ("position", pa.int64()), ("raw", pa.string())]
)
WARNINGS_SCHEMA = pa.schema([("code", pa.string()), ("count", pa.int64()), ("message", pa.string())])


@dataclass(frozen=True)
class Series:
    """What all readings of one series share. ``labels`` is JSON text."""

    name: str
    source: str
    device_kind: str | None
    device_id: str | None
    field: str
    unit: str | None
    clock: str | None
    labels: str | None = None

    @property
    def device(self) -> tuple[str | None, str | None]:
        """Kind and id of the device."""
        return self.device_kind, self.device_id

    @property
    def energetic(self) -> bool:
        """Whether the series gives power or energy."""
        return gives_energy(self.field, self.unit)


RawOf = Callable[[set[int]], Mapping[int, str]]


def labels_json(labels: Mapping[str, str]) -> str | None:
    """Return labels as a JSON object with sorted keys, or NULL when there are none."""
    return json.dumps(dict(labels), sort_keys=True, ensure_ascii=False) if labels else None


class LogBuilder:
    """Collects readings and what was set aside, then settles duplicates, conflicts and counts."""

    def __init__(self, path: Path, source_format: str, options: PowerOptions) -> None:
        self.report = PowerReport(source_format, path.name, offset_ns=options.offset_ns)
        self.options = options
        self._path = path
        self._series: dict[Series, int] = {}
        self._list: list[Series] = []
        self._devices: dict[tuple[str | None, str | None], DeviceCount] = {}
        self._row, self._code = array("q"), array("q")
        self._ts, self._value = array("q"), array("d")
        self._flags: dict[int, str] = {}
        self._positions = array("q")
        self._set_aside: list[tuple[int, str, str]] = []
        self._missing: dict[str, Counter[str]] = {}
        self._warnings: dict[str, tuple[int, str]] = {}

    def series(self, series: Series, labels: Mapping[str, str] | None = None) -> int:
        """Return the number of a series, entering it (and its device, with what is known of it) when new."""
        code = self._series.get(series)
        if code is None:
            code = self._series[series] = len(self._list)
            self._list.append(series)
            device = self._devices.setdefault(series.device, DeviceCount(*series.device, labels={}))
            device.labels.update(labels or {})
        return code

    def unit_of(self, code: int) -> str | None:
        """Return the base unit of a series by its number."""
        return self._list[code].unit

    def warn(self, code: str, message: str, count: int = 1) -> None:
        """Note a warning; counts of the same code add up and the first message stays."""
        before, first = self._warnings.get(code, (0, message))
        self._warnings[code] = (before + count, first)

    def ignore(self, name: str) -> None:
        """Count a row of a metric we do not know."""
        self.report.n_rows += 1
        self.report.n_ignored += 1
        self.report.ignored[name] = self.report.ignored.get(name, 0) + 1

    def drop(self, position: int, reason: str, raw: str) -> None:
        """Set a row aside."""
        self.report.n_rows += 1
        self._set_aside.append((position, reason, raw[:RAW_LIMIT]))

    def row(self, position: int, ts_ns: int | str | None, cells: list[Cell], raw: str) -> None:
        """Enter a row with its cells, or set it aside when nothing in it can be used.

        Args:
            position: 0-based position among the rows of the file.
            ts_ns: time on the clock of the series, a reason code, or NULL where the file has no times at all.
            cells: the readings; an empty list is a malformed row.
            raw: the row as written.
        """
        if ts_ns is None:
            ts_ns = self.options.at_unix_ns
        if isinstance(ts_ns, int):
            ts_ns += self.options.offset_ns
            if not INT64_MIN < ts_ns <= INT64_MAX:
                ts_ns = "ts_out_of_range"
        if isinstance(ts_ns, str) or not cells:
            return self.drop(position, ts_ns if isinstance(ts_ns, str) else "row_malformed", raw)
        self._count_devices(cells)
        reasons = [reason for _, value, reason in cells if value is None]
        if len(reasons) == len(cells):
            # A wrong value says more than a missing one.
            telling = [r for r in reasons if r and r != "not_available"]
            return self.drop(position, telling[0] if telling else "not_available", raw)
        self.report.n_rows += 1
        row = len(self._positions)
        self._positions.append(position)
        for code, value, reason in cells:
            if value is None:
                self._missing.setdefault(self._list[code].field, Counter())[reason or "not_available"] += 1
                self._flags[len(self._row)] = reason or "not_available"
            self._row.append(row)
            self._code.append(code)
            self._ts.append(_NO_TIME if ts_ns is None else ts_ns)
            self._value.append(float("nan") if value is None else value)
        return None

    def _count_devices(self, cells: list[Cell]) -> None:
        seen: dict[tuple[str | None, str | None], bool] = {}
        for code, value, _ in cells:
            if self._list[code].energetic:
                device = self._list[code].device
                seen[device] = seen.get(device, False) or value is not None
        for device, valid in seen.items():
            if valid:
                self._devices[device].n_valid += 1
            else:
                self._devices[device].n_missing += 1

    def finish(self, raw_of: RawOf) -> PowerLog:
        """Settle duplicates and conflicts and return the log.

        Args:
            raw_of: returns the rows as written for a set of positions (used for duplicates).

        Raises:
            InputFormatError: the file holds nothing that measures power or energy.
        """
        if self.report.n_rows and not any(s.energetic for s in self._list) and not self._set_aside:
            raise InputFormatError(
                "holds no power or energy reading that we know",
                path=self._path,
                remedy="see docs/power.md, or convert it to the long CSV form described there",
            )
        row, code = np.array(self._row, np.int64), np.array(self._code, np.int64)
        ts, value = np.array(self._ts, np.int64), np.array(self._value, np.float64)
        energetic = np.array([s.energetic for s in self._list], dtype=bool)
        # The same reading under other labels (a pod that moved in) is the same reading.
        same = {s: i for i, s in reversed(list(enumerate(replace(s, labels=None) for s in self._list)))}
        group = np.array([same[replace(s, labels=None)] for s in self._list], dtype=np.int64)
        merged = group[code] if len(code) else code
        repeats = _repeated_rows(row, merged, ts, value, len(self._positions))
        if len(repeats):
            positions = [self._positions[i] for i in repeats.tolist()]
            raw = raw_of(set(positions))
            self._set_aside += [(p, "exact_duplicate", raw.get(p, "")[:RAW_LIMIT]) for p in positions]
            cells = np.flatnonzero(np.isin(row, repeats) & energetic[code])
            for _, device in {(int(row[i]), self._list[int(code[i])].device) for i in cells.tolist()}:
                self._devices[device].n_valid -= 1
        keep = ~np.isin(row, repeats)
        original = np.flatnonzero(keep)
        row, code, ts, value = row[keep], code[keep], ts[keep], value[keep]
        conflicts = self._conflicts(merged[keep], ts, value, energetic)
        self._fill_report(row, code, ts, value, energetic, len(repeats))
        table = self._table(original, code, ts, value, conflicts)
        return PowerLog(table, self._quarantine(), self._warnings_table(), self.report)

    def _conflicts(
        self,
        code: npt.NDArray[np.int64],
        ts: npt.NDArray[np.int64],
        value: npt.NDArray[np.float64],
        energetic: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.bool_]:
        """Return which readings of power or energy have another value beside them at the same instant."""
        marked = np.zeros(len(code), dtype=bool)
        usable = np.flatnonzero((ts != _NO_TIME) & ~np.isnan(value) & (energetic[code] if len(code) else False))
        if len(usable) == 0:
            return marked
        order = usable[np.lexsort((value[usable], ts[usable], code[usable]))]
        c, t, v = code[order], ts[order], value[order]
        same = (c[1:] == c[:-1]) & (t[1:] == t[:-1])
        group = np.concatenate([[0], np.cumsum(~same)])
        differs = np.zeros(int(group[-1]) + 1, dtype=bool)
        np.logical_or.at(differs, group[1:], same & (v[1:] != v[:-1]))
        marked[order] = differs[group]
        instants = {(self._list[int(c[i])].device, int(t[i])) for i in np.flatnonzero(differs[group]).tolist()}
        self.report.n_conflicting_instants = len(instants)
        if instants:
            first = min(t for _, t in instants)
            self.warn("conflicting_instants", f"first at {first} ns on the clock of the file", len(instants))
        return marked

    def _fill_report(
        self,
        row: npt.NDArray[np.int64],
        code: npt.NDArray[np.int64],
        ts: npt.NDArray[np.int64],
        value: npt.NDArray[np.float64],
        energetic: npt.NDArray[np.bool_],
        n_repeats: int,
    ) -> None:
        report = self.report
        good = ~np.isnan(value) & (energetic[code] if len(code) else False)
        report.n_valid = len(np.unique(row[good]))
        report.n_other = len(self._positions) - n_repeats - report.n_valid
        report.n_readings = len(row)
        report.dropped = dict(sorted(Counter(reason for _, reason, _ in self._set_aside).items()))
        report.n_malformed = sum(report.dropped.get(reason, 0) for reason in MALFORMED)
        report.missing_cells = {field: dict(sorted(n.items())) for field, n in sorted(self._missing.items())}
        report.devices = sorted(self._devices.values(), key=lambda d: (d.device_kind or "", d.device_id or ""))
        report.series = [_series_count(s, ts[good & (code == i)]) for i, s in enumerate(self._list) if energetic[i]]
        if self._set_aside:
            parts = ", ".join(f"{n} {reason}" for reason, n in report.dropped.items())
            self.warn("power_rows_dropped", parts, len(self._set_aside))
        if report.n_repeated_headers:
            self.warn("repeated_headers", "the writer was restarted", report.n_repeated_headers)
        if report.truncated:
            self.warn("truncated", "the compressed stream ends in the middle")
        if any(s.energetic and s.device_id is None for s in self._list):
            self.warn("device_unnamed", "no column or label names the device: taken as one device")
        timeless = int(np.count_nonzero(ts == _NO_TIME))
        if timeless:
            self.warn("no_time_stamps", "the file has no time stamps and no time was given for it", timeless)

    def _table(
        self,
        original: npt.NDArray[np.int64],
        code: npt.NDArray[np.int64],
        ts: npt.NDArray[np.int64],
        value: npt.NDArray[np.float64],
        conflicts: npt.NDArray[np.bool_],
    ) -> pa.Table:
        timeless = ts == _NO_TIME
        flags: list[str | None] = [None] * len(code)
        flagged = np.isin(original, list(self._flags)) if self._flags else np.zeros(len(code), dtype=bool)
        for i in np.flatnonzero(flagged | conflicts | timeless).tolist():
            found = [self._flags[int(original[i])]] if flagged[i] else []
            found += ["conflicting_instant"] if conflicts[i] else []
            found += ["ts_missing"] if timeless[i] else []
            flags[i] = " ".join(found)
        index = pa.array(code)

        def column(get: Callable[[Series], str | None]) -> pa.Array:
            values = pa.array([get(s) for s in self._list], pa.string())
            return values.take(index) if len(values) else pa.array([], pa.string())

        arrays = [
            column(lambda s: s.name),
            pa.array(ts, mask=timeless),
            column(lambda s: s.source),
            column(lambda s: s.device_kind),
            column(lambda s: s.device_id),
            column(lambda s: s.field),
            pa.array(value, mask=np.isnan(value)),
            column(lambda s: s.unit),
            column(lambda s: s.labels),
            column(lambda s: s.clock),
            pa.array(flags, pa.string()),
        ]
        return pa.Table.from_arrays(arrays, schema=TABLE_SCHEMA)

    def _quarantine(self) -> pa.Table:
        rows = sorted(self._set_aside)
        return pa.table(
            {
                "reason": [reason for _, reason, _ in rows],
                "file": [self.report.file] * len(rows),
                "position": [position for position, _, _ in rows],
                "raw": [raw.encode("utf-8", "replace").decode() for _, _, raw in rows],
            },
            schema=QUARANTINE_SCHEMA,
        )

    def _warnings_table(self) -> pa.Table:
        rows = sorted(self._warnings.items())
        return pa.table(
            {
                "code": [code for code, _ in rows],
                "count": [count for _, (count, _) in rows],
                "message": [f"{self.report.file}: {message}" for _, (_, message) in rows],
            },
            schema=WARNINGS_SCHEMA,
        )


def _repeated_rows(
    row: npt.NDArray[np.int64],
    code: npt.NDArray[np.int64],
    ts: npt.NDArray[np.int64],
    value: npt.NDArray[np.float64],
    n_rows: int,
) -> npt.NDArray[np.int64]:
    """Return the rows all of whose readings are already there at the same instant (each but the first)."""
    usable = np.flatnonzero((ts != _NO_TIME) & ~np.isnan(value))
    if len(usable) < 2:
        return np.empty(0, np.int64)
    order = usable[np.lexsort((value[usable], ts[usable], code[usable]))]  # stable: the first written comes first
    c, t, v = code[order], ts[order], value[order]
    again = np.zeros(len(row), dtype=bool)
    again[order[1:]] = (c[1:] == c[:-1]) & (t[1:] == t[:-1]) & (v[1:] == v[:-1])
    n_given = np.bincount(row[~np.isnan(value)], minlength=n_rows)
    n_again = np.bincount(row[again], minlength=n_rows)
    return np.flatnonzero((n_given > 0) & (n_given == n_again)).astype(np.int64)


def _series_count(series: Series, ts: npt.NDArray[np.int64]) -> SeriesCount:
    instants = np.unique(ts[ts != _NO_TIME])
    cadence = int(np.median(np.diff(instants))) if len(instants) > 1 else None
    return SeriesCount(
        series.name,
        series.device_kind,
        series.device_id,
        series.field,
        series.clock,
        len(ts),
        int(instants[0]) if len(instants) else None,
        int(instants[-1]) if len(instants) else None,
        cadence,
    )


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
