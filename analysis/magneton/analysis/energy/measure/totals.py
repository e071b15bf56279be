"""Energy of devices over windows, from the table ``power``: which sensor field is used, and which were not."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from magneton.analysis.energy.measure.counters import energies_differ, fold_updates
from magneton.analysis.energy.measure.integrate import (
    MAX_POWER_W,
    Samples,
    Times,
    integrate_counter,
    integrate_power,
    prepare,
)
from magneton.analysis.energy.measure.result import EnergyResult, Provenance, Window
from magneton.analysis.energy.measure.scopes import scope_of
from magneton.schemas.kinds import DeviceKind, EnergyLabel, PowerField

# Best first. A counter misses nothing between readings. A plain power field may be instant or an average.
PREFERENCE = (PowerField.ENERGY_COUNTER, PowerField.POWER_INSTANT, PowerField.POWER, PowerField.POWER_AVERAGE)
# A field is passed over if it covers less than this share of the time that the best-covering field covers.
MIN_RELATIVE_COVERAGE = 0.95
# The averaging fields of NVIDIA GPUs average over about a second.
AVERAGE_WINDOW_S = 1.0
_WINDOW_IN_NAME = re.compile(r"_(\d{1,6})(ms|s)")
# Device kinds whose counters wrap (RAPL zones).
WRAPPING_KINDS = frozenset(
    {
        DeviceKind.CPU,
        DeviceKind.CPU_PACKAGE,
        DeviceKind.PACKAGE,
        DeviceKind.DRAM,
        DeviceKind.CORE,
        DeviceKind.UNCORE,
        DeviceKind.PSYS,
    }
)

# A counter of one device that jumps by more than this power, W, is broken; meters and nodes may stand for a rack.
_MOST_W = 5e3
_OF_MANY = frozenset({None, DeviceKind.NODE, DeviceKind.WALL, DeviceKind.METER, DeviceKind.OTHER})

Device = tuple[str | None, str | None]


def most_power_w(device_kind: str | None) -> float:
    """Return more power than a device of this kind can draw, W; infinity where that is not known."""
    return math.inf if device_kind in _OF_MANY else _MOST_W


@dataclass(frozen=True)
class SensorSeries:
    """One series of one device: the same source, name and field throughout.

    Attributes:
        source: who read the sensor.
        name: what the source calls the reading.
        device_kind: what it is of (``scopes.scope_of``).
        device_id: its name.
        field: what is read.
        samples: the readings.
        capture: the log it comes from.
        warnings: what was found wrong with it when it was compared with the device's other series.
        aside: it is not used while the device has another series.
        against: the series that contradicts it: energy of this one and of the other over the time both cover, J, and what it is.
    """

    source: str | None
    name: str | None
    device_kind: str | None
    device_id: str | None
    field: str
    samples: Samples
    capture: str | None = None
    warnings: tuple[str, ...] = ()
    aside: bool = False
    against: tuple[float, float, str] | None = None

    @property
    def device(self) -> Device:
        """Kind and id of the device."""
        return self.device_kind, self.device_id


def series_of(power: pa.Table, fields: Sequence[str] = PREFERENCE) -> list[SensorSeries]:
    """Split a table ``power`` into series.

    Args:
        power: columns ``source, name, device_kind, device_id, field, value, ts_ns`` (others are left alone), on one
            time line. Rows without a time are left out.
        fields: fields wanted.
    """
    if power.num_rows == 0:
        return []
    wanted = pc.and_(pc.is_in(power["field"], pa.array(list(fields), pa.string())), pc.is_valid(power["ts_ns"]))
    rows = power.filter(wanted)
    keys = ["source", "name", "device_kind", "device_id", "field"]
    groups: dict[tuple[str | None, ...], list[int]] = {}
    columns = [rows[key].to_pylist() for key in keys]
    columns.append(rows["capture"].to_pylist() if "capture" in rows.column_names else [None] * rows.num_rows)
    for i, key in enumerate(zip(*columns, strict=True)):
        groups.setdefault(key, []).append(i)
    t = rows["ts_ns"].to_numpy().astype(np.int64)
    values = np.array(rows["value"].combine_chunks().fill_null(float("nan")), dtype=np.float64)
    result = []
    for key, indexes in _joined(groups, t).items():
        source, name, kind, device_id, field, capture = key
        at = np.array(indexes, dtype=np.int64)
        samples = prepare(t[at], values[at], counter=field == PowerField.ENERGY_COUNTER)
        if field == PowerField.ENERGY_COUNTER:
            samples = fold_updates(samples)
        result.append(SensorSeries(source, name, scope_of(kind, device_id), device_id, field or "", samples, capture))
    shared = shared_devices(power)
    return [replace(s, warnings=("device_shared",)) if s.device in shared else s for s in _judged(result)]


def _joined(groups: dict[tuple[str | None, ...], list[int]], t: Times) -> dict[tuple[str | None, ...], list[int]]:
    """Join logs that follow one another, as a logger that was restarted leaves them; two logs of the same time stay apart."""
    found: dict[tuple[str | None, ...], list[int]] = {}
    spans: dict[tuple[str | None, ...], tuple[int, int]] = {}
    ordered = sorted(groups, key=lambda k: (tuple(p or "" for p in k[:5]), int(t[groups[k]].min()), k[5] or ""))
    last: tuple[str | None, ...] | None = None
    for key in ordered:
        first, end = int(t[groups[key]].min()), int(t[groups[key]].max())
        if last is not None and last[:5] == key[:5] and first >= spans[last][1]:
            found[last] = found[last] + groups[key]
            spans[last] = (spans[last][0], end)
            continue
        found[key], spans[key], last = groups[key], (first, end), key
    return found


def _judged(found: list[SensorSeries]) -> list[SensorSeries]:
    """Compare the series of each device: a counter that contradicts the power is set aside, two logs that disagree are said."""
    result = list(found)
    for i, one in enumerate(found):
        others = [o for o in found if o.device == one.device and o is not one]
        if one.field == PowerField.ENERGY_COUNTER:
            powers = [o for o in others if o.field != PowerField.ENERGY_COUNTER and len(o.samples.t_ns) > 1]
            power = min(powers, key=lambda o: PREFERENCE.index(o.field), default=None)
            if power is None:
                continue
            still = len(one.samples.values) > 1 and not np.ptp(one.samples.values)
            clash = (0.0, math.nan) if still else _clash(one, power)
            if clash is not None:
                result[i] = replace(
                    one, aside=True, warnings=("counter_disagrees_with_power",), against=(*clash, _title(power))
                )
            continue
        for other in others:
            if other.capture == one.capture or other.field == PowerField.ENERGY_COUNTER:
                continue
            if (clash := _clash(one, other)) is not None:
                result[i] = replace(one, warnings=("power_logs_disagree",), against=(*clash, _title(other)))
                break
    return result


def _clash(a: SensorSeries, b: SensorSeries) -> tuple[float, float] | None:
    averaging = [0.0 if s.field == PowerField.POWER_INSTANT else averaging_s(s.name) * 1e9 for s in (a, b)]
    counters = [s.field == PowerField.ENERGY_COUNTER for s in (a, b)]
    return energies_differ(
        a.samples, b.samples, counter_a=counters[0], counter_b=counters[1], averaging_ns=max(averaging)
    )


def _title(series: SensorSeries) -> str:
    where = f" in {series.capture}" if series.capture else ""
    return f"{series.field} ({series.source}: {series.name}{where})"


def shared_devices(power: pa.Table) -> set[Device]:
    """Return the devices whose power is also that of others: boards divided by MIG, GPUs that several pods had at one time."""
    if power.num_rows == 0 or "labels" not in power.column_names:
        return set()
    keys = ["device_kind", "device_id", "labels"]
    spans = power.select([*keys, "ts_ns"]).group_by(keys).aggregate([("ts_ns", "min"), ("ts_ns", "max")]).to_pylist()
    found: set[Device] = set()
    pods: dict[Device, dict[str, tuple[int, int]]] = {}
    for row in spans:
        if not row["labels"]:
            continue
        try:
            labels = json.loads(row["labels"])
        except ValueError:
            continue
        device = (row["device_kind"], row["device_id"])
        if labels.get("mig") or labels.get("GPU_I_ID"):
            found.add(device)
        pod = labels.get("exported_pod") or labels.get("pod")
        if pod and row["ts_ns_min"] is not None:
            known = pods.setdefault(device, {}).get(pod, (row["ts_ns_min"], row["ts_ns_max"]))
            pods[device][pod] = (min(known[0], row["ts_ns_min"]), max(known[1], row["ts_ns_max"]))
    for device, by_pod in pods.items():
        ordered = sorted(by_pod.values())
        if any(a[1] > b[0] for a, b in pairwise(ordered)):
            found.add(device)
    return found


def series_energy(
    series: SensorSeries,
    window: Window,
    *,
    max_gap_s: float | None = None,
    range_j: float | None = None,
    max_power_w: float = MAX_POWER_W,
) -> EnergyResult:
    """Return the energy of one series over a window, with the warnings that belong to its field."""
    origin = Provenance(
        source=series.source,
        name=series.name,
        device_kind=series.device_kind,
        device_id=series.device_id,
        field=series.field,
    )
    if series.field == PowerField.ENERGY_COUNTER:
        found = integrate_counter(
            series.samples,
            window,
            range_j=range_j,
            max_power_w=max_power_w,
            may_wrap=(series.device_kind or "") in WRAPPING_KINDS,
            most_w=most_power_w(series.device_kind),
        )
        return _labelled(replace(found, provenance=origin))
    gap = None if max_gap_s is None else max_gap_s * 1e9
    found = _labelled(replace(integrate_power(series.samples, window, max_gap_ns=gap), provenance=origin))
    if series.field == PowerField.POWER_INSTANT:
        return found
    code = "averaged_power_field" if series.field == PowerField.POWER_AVERAGE else "power_window_unknown"
    return replace(found.with_warnings([code]), min_window_for_trust_s=averaging_s(series.name))


def _labelled(found: EnergyResult) -> EnergyResult:
    """Do not call measured what is shorter than the time between two readings: the energy is a share of theirs."""
    long = found.cadence_s is None or (found.window_s or 0.0) >= 0.99 * found.cadence_s
    if (found.n_samples_inside and long) or found.value_j is None or not found.window_s:
        return found
    return replace(found, provenance=replace(found.provenance, label=EnergyLabel.APPORTIONED))


def averaging_s(name: str | None) -> float:
    """Return over what time a field averages, s: as its name says (``power_average_500ms``), else 1 s, as GPUs usually do."""
    match = _WINDOW_IN_NAME.search(name or "")
    return int(match.group(1)) / (1000 if match.group(2) == "ms" else 1) if match else AVERAGE_WINDOW_S


def device_energy(
    power: pa.Table,
    window: Window,
    *,
    fields: Sequence[str] = PREFERENCE,
    max_gap_s: float | None = None,
    counter_ranges_j: Mapping[Device, float] | None = None,
    max_power_w: float = MAX_POWER_W,
) -> dict[Device, EnergyResult]:
    """Return the energy of every device in a table ``power`` over a window.

    One series is used for each device: the first field of ``fields`` that covers nearly as much of the window as the
    best-covering one (``MIN_RELATIVE_COVERAGE``). Fields are never mixed. The result names the fields that were not used.

    Args:
        power: see ``series_of``.
        window: ns, on the time line of ``power``.
        fields: fields that may be used, best first.
        max_gap_s: longest interval between power samples that is bridged, s.
        counter_ranges_j: values at which counters start again at 0, J. They are added to the ranges that the readings state.
        max_power_w: more than a device can draw.
    """
    candidates: dict[Device, list[tuple[SensorSeries, EnergyResult]]] = {}
    for kind, device_id in _devices(power):
        candidates[kind, device_id] = []
    ranges = counter_ranges(power) | dict(counter_ranges_j or {})
    for series in series_of(power, fields):
        range_j = ranges.get(series.device)
        found = series_energy(series, window, max_gap_s=max_gap_s, range_j=range_j, max_power_w=max_power_w)
        candidates.setdefault(series.device, []).append((series, found))
    return {
        device: _choose(device, window, found, fields) for device, found in sorted(candidates.items(), key=_by_name)
    }


def counter_ranges(power: pa.Table) -> dict[Device, float]:
    """Return where counters start again at 0, J, by device: the label ``range_j`` that our own recorder writes."""
    if "labels" not in power.column_names:
        return {}
    told = power.filter(pc.match_substring(pc.fill_null(power["labels"].cast(pa.string()), ""), '"range_j"'))
    keys = ["device_kind", "device_id", "labels"]
    ranges: dict[Device, float] = {}
    for row in told.select(keys).group_by(keys).aggregate([]).to_pylist():
        try:
            value = float(json.loads(row["labels"])["range_j"])
        except (ValueError, TypeError, KeyError):
            continue
        if value > 0:
            ranges[scope_of(row["device_kind"], row["device_id"]), row["device_id"]] = value
    return ranges


def _by_name(item: tuple[Device, object]) -> tuple[str, str]:
    return item[0][0] or "", item[0][1] or ""


def _devices(power: pa.Table) -> set[Device]:
    """Return the devices whose power or energy was read, also if no reading has a value."""
    if power.num_rows == 0:
        return set()
    asked = power.filter(pc.is_in(power["unit"], pa.array(["W", "J"])))
    pairs = set(zip(asked["device_kind"].to_pylist(), asked["device_id"].to_pylist(), strict=True))
    return {(scope_of(kind, device_id), device_id) for kind, device_id in pairs}


def _choose(
    device: Device, window: Window, found: list[tuple[SensorSeries, EnergyResult]], fields: Sequence[str]
) -> EnergyResult:
    if not found:
        return EnergyResult(
            value_j=None,
            window_s=window.length_ns / 1e9,
            covered_s=0.0,
            gaps=((window.start_ns, window.end_ns),) if window.length_ns else (),
            warnings=("no_power_data",),
            provenance=Provenance(device_kind=device[0], device_id=device[1]),
        )
    return preferred(found, fields)[1]


def preferred(
    found: Sequence[tuple[SensorSeries, EnergyResult]], fields: Sequence[str] = PREFERENCE
) -> tuple[SensorSeries, EnergyResult]:
    """Return the series of a device to use, and its energy.

    Series that contradict the device's power, or that cover clearly less than the best-covering one, are passed over. Of the
    others, the first field of ``fields`` is taken; of two logs of one field, the one with more readings. The result says
    what was found wrong, and names the series that were not used.
    """
    sound = [pair for pair in found if not pair[0].aside] or list(found)
    best = max(result.covered_s or 0.0 for _, result in sound)
    near = [pair for pair in sound if (pair[1].covered_s or 0.0) >= MIN_RELATIVE_COVERAGE * best]
    order = {field: i for i, field in enumerate(fields)}
    series, result = min(
        near,
        key=lambda p: (
            order[p[0].field],
            -len(p[0].samples.t_ns),
            p[0].source or "",
            p[0].name or "",
            p[0].capture or "",
        ),
    )
    several = len({s.capture for s, _ in found}) > 1
    others = sorted({_title(s if several else replace(s, capture=None)) for s, _ in found if s is not series})
    codes = {code for s, _ in found if s.aside for code in s.warnings} | set(series.warnings)
    result = replace(result, provenance=replace(result.provenance, fields_not_used=tuple(others)))
    return series, result.with_warnings(codes)


def snapshot_energy(first: pa.Table, last: pa.Table) -> dict[Device, EnergyResult]:
    """Return the energy between two snapshots of counters that carry no time (``amd-smi metric``, a scrape).

    Args:
        first: table ``power`` of the earlier snapshot.
        last: table ``power`` of the later one.

    Returns:
        For each device with a counter in either: the difference, without window or coverage. A counter that went back
        was reset: the energy is unknown, and at least what the later snapshot shows.
    """
    before, after = _counters(first), _counters(last)
    result: dict[Device, EnergyResult] = {}
    for device in sorted({*before, *after}, key=lambda d: (d[0] or "", d[1] or "")):
        origin = Provenance(device_kind=device[0], device_id=device[1], field=PowerField.ENERGY_COUNTER)
        start, end = before.get(device), after.get(device)
        codes: tuple[str, ...] = ()
        value, lower = None, None
        if start is None or end is None:
            codes = ("no_power_data",)
        elif end < start:
            lower, codes = end, ("counter_reset",)
        else:
            value = lower = end - start
        result[device] = EnergyResult(value, None, None, lower_bound_j=lower, warnings=codes, provenance=origin)
    return result


def _counters(power: pa.Table) -> dict[Device, float | None]:
    """Return the one counter reading of each device; None where there is none or several disagree."""
    rows = power.filter(pc.equal(power["field"], PowerField.ENERGY_COUNTER))
    found: dict[Device, set[float]] = {}
    for kind, device_id, value in zip(
        rows["device_kind"].to_pylist(), rows["device_id"].to_pylist(), rows["value"].to_pylist(), strict=True
    ):
        values = found.setdefault((kind, device_id), set())
        if value is not None:
            values.add(value)
    return {device: values.pop() if len(values) == 1 else None for device, values in found.items()}
