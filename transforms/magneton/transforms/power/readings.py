"""Many readings in little memory: numbers in arrays, common facts once per series, Arrow tables in batches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from magneton.schemas.clocks import INT64_MIN
from magneton.schemas.kinds import Flag
from magneton.transforms.power.fields import gives_energy

NO_TIME = INT64_MIN
BATCH_ROWS = 1 << 16

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_SHARED = {"name", "source", "device_kind", "device_id", "field", "unit", "labels", "clock"}
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


@dataclass(frozen=True)
class Series:
    """What all readings of one series share. ``labels`` is JSON text, ``flags`` codes that hold for each of them."""

    name: str
    source: str
    device_kind: str | None
    device_id: str | None
    field: str
    unit: str | None
    clock: str | None
    labels: str | None = None
    flags: str | None = None

    @property
    def device(self) -> tuple[str | None, str | None]:
        """Kind and id of the device."""
        return self.device_kind, self.device_id

    @property
    def energetic(self) -> bool:
        """Whether the series gives power or energy."""
        return gives_energy(self.field, self.unit)


def labels_json(labels: Mapping[str, str]) -> str | None:
    """Return labels as a JSON object with sorted keys, or None when there are none."""
    return json.dumps(dict(labels), sort_keys=True, ensure_ascii=False) if labels else None


@dataclass
class Readings:
    """Readings in the order of the file.

    Attributes:
        series: what the readings share.
        row: row of the file each belongs to.
        code: number of its series.
        ts_ns: time, ns; ``NO_TIME`` where there is none.
        value: value; NaN where there is none.
        conflict: another value stands beside it at the same instant.
        reasons: why there is no value, by number of the reading.
    """

    series: list[Series]
    row: npt.NDArray[np.int32]
    code: npt.NDArray[np.int32]
    ts_ns: Ints
    value: Floats
    conflict: Bools
    reasons: dict[int, str]

    def __len__(self) -> int:
        return len(self.code)

    def energetic(self) -> Bools:
        """Return which readings are of power or energy."""
        wanted = [i for i, s in enumerate(self.series) if s.energetic]
        return np.isin(self.code, np.array(wanted, dtype=np.int32))

    def known_times(self) -> Bools:
        """Return which readings have a time."""
        return np.not_equal(self.ts_ns, NO_TIME)

    def groups(self) -> Iterator[tuple[Series, Ints]]:
        """Yield each series, labels aside, with the numbers of its timed readings that have a value, by time and value.

        Series that differ only in labels are one series here. Example: one GPU that was given to another pod.
        """
        plain = [replace(s, labels=None) for s in self.series]
        first = {s: i for i, s in reversed(list(enumerate(plain)))}
        merged = np.array([first[s] for s in plain], dtype=np.int64)[self.code] if len(self) else self.code
        usable = self.known_times() & ~np.isnan(self.value)
        for s, number in first.items():
            at = np.flatnonzero(usable & (merged == number))
            t, v = self.ts_ns[at], self.value[at]
            yield s, at[np.lexsort((v, t))]

    def repeated_rows(self, n_rows: int) -> Ints:
        """Return the rows all of whose readings are already there at the same instant (each but the first written)."""
        again = np.zeros(len(self), dtype=bool)
        for _, order in self.groups():
            t, v = self.ts_ns[order], self.value[order]
            again[order[1:]] = (t[1:] == t[:-1]) & (v[1:] == v[:-1])
        if not again.any():
            return np.empty(0, np.int64)
        n_given = np.bincount(self.row[~np.isnan(self.value)], minlength=n_rows)
        n_again = np.bincount(self.row[again], minlength=n_rows)
        return np.flatnonzero((n_given > 0) & (n_given == n_again)).astype(np.int64)

    def without_rows(self, rows: Ints) -> Readings:
        """Return the readings that do not belong to these rows."""
        if not len(rows):
            return self
        keep = ~np.isin(self.row, rows)
        renumbered = np.cumsum(keep) - 1
        reasons = {int(renumbered[i]): reason for i, reason in self.reasons.items() if keep[i]}
        return Readings(
            series=self.series,
            row=self.row[keep],
            code=self.code[keep],
            ts_ns=self.ts_ns[keep],
            value=self.value[keep],
            conflict=self.conflict[keep],
            reasons=reasons,
        )

    def mark_conflicts(self) -> set[tuple[tuple[str | None, str | None], int]]:
        """Mark readings of power or energy that disagree at one instant; return (device, instant) of each."""
        instants: set[tuple[tuple[str | None, str | None], int]] = set()
        for series, order in self.groups():
            if not series.energetic or len(order) < 2:
                continue
            t, v = self.ts_ns[order], self.value[order]
            differs = (t[1:] == t[:-1]) & (v[1:] != v[:-1])
            if differs.any():
                torn = np.unique(t[1:][differs])
                self.conflict[order[np.isin(t, torn)]] = True
                instants |= {(series.device, instant) for instant in torn.tolist()}
        return instants

    def batches(self, rows: int = BATCH_ROWS) -> Iterator[pa.Table]:
        """Yield the readings as tables of at most ``rows`` rows, at least one table.

        Columns: ``name, ts_ns, source, device_kind, device_id, field, value, unit, labels, clock, flags`` as in the table
        ``power``, with ``ts_ns`` as held here (absolute on its clock when read; NULL where there is none).
        """
        columns = {name: self._column(name) for name in TABLE_SCHEMA.names if name in _SHARED}
        for start in range(0, max(len(self), 1), rows):
            part = slice(start, start + rows)
            index, ts, value = pa.array(self.code[part]), self.ts_ns[part], self.value[part]
            arrays = {name: column.take(index) for name, column in columns.items()}
            arrays["ts_ns"] = pa.array(ts, mask=ts == NO_TIME)
            arrays["value"] = pa.array(value, mask=np.isnan(value))
            arrays["flags"] = self._flags(part, ts == NO_TIME)
            yield pa.Table.from_arrays([arrays[name] for name in TABLE_SCHEMA.names], schema=TABLE_SCHEMA)

    def _column(self, name: str) -> pa.Array:
        return pa.array([getattr(s, name) for s in self.series], pa.string())

    def _flags(self, part: slice, timeless: Bools) -> pa.Array:
        conflict = self.conflict[part]
        flags: list[str | None] = [None] * len(conflict)
        shared = [s.flags for s in self.series]
        always = np.array([f is not None for f in shared], dtype=bool)[self.code[part]]
        marked = np.flatnonzero(conflict | timeless | always | np.isnan(self.value[part])).tolist()
        for i in marked:
            reason = self.reasons.get(part.start + i)
            found = [reason] if reason else []
            found += [Flag.CONFLICTING_INSTANT] if conflict[i] else []
            found += ["ts_missing"] if timeless[i] else []
            code = shared[self.code[part.start + i]]
            found += [code] if code else []
            flags[i] = " ".join(found)
        return pa.array(flags, pa.string())
