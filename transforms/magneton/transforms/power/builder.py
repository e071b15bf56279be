"""Accounting of a power log: every row becomes readings, or is set aside with a reason, or is counted as ignored."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from magneton.schemas.clocks import INT64_MAX, INT64_MIN
from magneton.schemas.errors import InputFormatError
from magneton.schemas.kinds import Flag
from magneton.transforms.power.fields import TOTAL_FIELDS, Cell, gives_total
from magneton.transforms.power.log import DeviceCount, PowerLog, PowerOptions, PowerReport, SeriesCount
from magneton.transforms.power.readings import NO_TIME, Ints, Readings, Series

RAW_LIMIT = 2000
_ABOUT_POWER = re.compile(r"power(?!_?(?:state|mode|management|violation))|energy|watt|joule", re.IGNORECASE)
MALFORMED = (Flag.ROW_MALFORMED, Flag.ROW_CUT)
QUARANTINE_SCHEMA = pa.schema(
    [("reason", pa.string()), ("file", pa.string()), ("position", pa.int64()), ("raw", pa.string())]
)
WARNINGS_SCHEMA = pa.schema([("code", pa.string()), ("count", pa.int64()), ("message", pa.string())])

RawOf = Callable[[set[int]], Mapping[int, str]]


class LogBuilder:
    """Collects readings and what was set aside, then settles duplicates, conflicts and counts."""

    def __init__(self, path: Path, source_format: str, options: PowerOptions) -> None:
        self.report = PowerReport(source_format, path.name, offset_ns=options.offset_ns)
        self.options = options
        self._path = path
        self._series: dict[Series, int] = {}
        self._list: list[Series] = []
        self._devices: dict[tuple[str | None, str | None], DeviceCount] = {}
        self._row, self._code = array("i"), array("i")
        self._ts, self._value = array("q"), array("d")
        self._reasons: dict[int, str] = {}
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

    def kind_of(self, code: int) -> str | None:
        """Return the kind of device of a series by its number."""
        return self._list[code].device_kind

    def warn(self, code: str, message: str, count: int = 1) -> None:
        """Note a warning; counts of the same code add up and the first message stays."""
        before, first = self._warnings.get(code, (0, message))
        self._warnings[code] = (before + count, first)

    def ignore(self, name: str) -> None:
        """Count a row of an unknown metric."""
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
            ts_ns: time on the clock of the series, a reason code, or None where the file has no times at all.
            cells: the readings; an empty list is a malformed row.
            raw: the row as written.
        """
        if ts_ns is None:
            ts_ns = self.options.at_unix_ns
        if isinstance(ts_ns, int) and not INT64_MIN < ts_ns <= INT64_MAX:
            ts_ns = "ts_out_of_range"
        if isinstance(ts_ns, str) or not cells:
            return self.drop(position, ts_ns if isinstance(ts_ns, str) else Flag.ROW_MALFORMED, raw)
        self._count_devices(cells)
        reasons = [reason for _, value, reason in cells if value is None]
        if len(reasons) == len(cells):
            # A wrong value says more than a missing one.
            telling = [r for r in reasons if r and r != Flag.NOT_AVAILABLE]
            return self.drop(position, telling[0] if telling else Flag.NOT_AVAILABLE, raw)
        self.report.n_rows += 1
        row = len(self._positions)
        self._positions.append(position)
        for code, value, reason in cells:
            if value is None:
                self._missing.setdefault(self._list[code].field, Counter())[reason or Flag.NOT_AVAILABLE] += 1
                self._reasons[len(self._row)] = reason or Flag.NOT_AVAILABLE
            self._row.append(row)
            self._code.append(code)
            self._ts.append(NO_TIME if ts_ns is None else ts_ns)
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
                "holds no power or energy reading with a known name",
                path=self._path,
                remedy="see docs/power.md, or convert it to the long CSV form described there",
            )
        n_rows = len(self._positions)
        readings = Readings(
            self._list,
            _take(self._row, np.int32),
            _take(self._code, np.int32),
            _take(self._ts, np.int64),
            _take(self._value, np.float64),
            np.zeros(len(self._code), dtype=bool),
            self._reasons,
        )
        repeats = readings.repeated_rows(n_rows)
        if len(repeats):
            self._set_repeats_aside(readings, repeats, raw_of)
            readings = readings.without_rows(repeats)
        conflicts = readings.mark_conflicts()
        self.report.n_conflicting_instants = len(conflicts)
        if conflicts:
            first = min(instant for _, instant in conflicts)
            self.warn("conflicting_instants", f"first at {first} ns on the clock of the file", len(conflicts))
        self._fill_report(readings, n_rows - len(repeats))
        return PowerLog(readings, self._quarantine(), self._warnings_table(), self.report)

    def _set_repeats_aside(self, readings: Readings, repeats: Ints, raw_of: RawOf) -> None:
        positions = [self._positions[i] for i in repeats.tolist()]
        raw = raw_of(set(positions))
        self._set_aside += [(p, "exact_duplicate", raw.get(p, "")[:RAW_LIMIT]) for p in positions]
        cells = np.flatnonzero(np.isin(readings.row, repeats) & readings.energetic())
        row, code = readings.row, readings.code
        for _, device in {(int(row[i]), self._list[int(code[i])].device) for i in cells.tolist()}:
            self._devices[device].n_valid -= 1

    def _fill_report(self, readings: Readings, n_kept: int) -> None:
        report = self.report
        good = ~np.isnan(readings.value) & readings.energetic()
        report.n_valid = len(np.unique(readings.row[good]))
        report.n_other = n_kept - report.n_valid
        report.n_readings = len(readings)
        report.dropped = dict(sorted(Counter(reason for _, reason, _ in self._set_aside).items()))
        report.n_malformed = sum(report.dropped.get(reason, 0) for reason in MALFORMED)
        report.missing_cells = {field: dict(sorted(n.items())) for field, n in sorted(self._missing.items())}
        report.devices = sorted(self._devices.values(), key=lambda d: (d.device_kind or "", d.device_id or ""))
        report.series = [
            _series_count(s, readings.ts_ns[good & (readings.code == i)])
            for i, s in enumerate(self._list)
            if s.energetic
        ]
        if self._set_aside:
            parts = ", ".join(f"{n} {reason}" for reason, n in report.dropped.items())
            self.warn("power_rows_dropped", parts, len(self._set_aside))
        if report.n_repeated_headers:
            self.warn("repeated_headers", "the writer was restarted", report.n_repeated_headers)
        if report.truncated:
            self.warn("truncated", "the input ends in the middle")
        if any(s.energetic and s.device_id is None for s in self._list):
            self.warn("device_unnamed", "no column or label names the device: taken as one device")
        self._warn_unread()
        timeless = int(np.count_nonzero(~readings.known_times()))
        if timeless:
            self.warn("no_time_stamps", "the file has no time stamps and no time was given for it", timeless)

    def _warn_unread(self) -> None:
        """Say which devices have readings of power or energy, and none that gives their energy; and what was not read."""
        useful = {s.device for s in self._list if gives_total(s.field)}
        for device in sorted({s.device for s in self._list if s.energetic} - useful, key=str):
            names = sorted({f"{s.name} ({s.unit})" for s in self._list if s.energetic and s.device == device})
            self.warn(
                "no_energy_field",
                f"no energy of {device[0] or 'device'} {device[1] or 'without a name'}: {', '.join(names)} "
                f"{'is' if len(names) == 1 else 'are'} not known as its power or counter; fields that are: "
                f"{', '.join(TOTAL_FIELDS)} (docs/power.md)",
            )
        if not any(s.energetic for s in self._list) or not self.report.n_valid:
            parts = ", ".join(f"{n} {reason}" for reason, n in self.report.dropped.items())
            self.warn("no_energy_field", f"no reading of power or energy can be used{f' ({parts})' if parts else ''}")
        unread = sorted(name for name in self.report.ignored if _ABOUT_POWER.search(name))
        if unread:
            self.warn(
                "no_energy_field",
                f"metrics that may be of power were not read, since their unit is not known: {', '.join(unread[:5])}"
                + (f" and {len(unread) - 5} more" if len(unread) > 5 else ""),
                len(unread),
            )

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


def _take(numbers: array[Any], kind: type[Any]) -> npt.NDArray[Any]:
    """Return an array's numbers without copying them (the array is not changed any more)."""
    return np.frombuffer(numbers, kind) if len(numbers) else np.empty(0, kind)


def _series_count(series: Series, ts: npt.NDArray[np.int64]) -> SeriesCount:
    instants = np.unique(ts[ts != NO_TIME])
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
