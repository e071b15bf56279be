"""Survey of the sensors of this machine: what can be read, how often values change, and the cost of reading."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from magneton.collectors.sensors.discover import METERS, SENSORS, Opened, open_sensors
from magneton.collectors.sensors.protocol import ENERGETIC, Reading, Refusal, Sensor, SensorError, SensorInfo
from magneton.schemas.versions.registry import SCHEMA_VERSION

_SLOW_EVERY = 20


class _Watch:
    """Values of one series as they were polled: when they changed, and how long that took to see."""

    def __init__(self) -> None:
        self.value: float | None = None
        self.why: str | None = None
        self.changes_ns: list[float] = []
        self._last_ns: int | None = None

    def add(self, at_ns: int, value: float | None, why: str | None) -> None:
        if value is not None and self.value is not None and value != self.value and self._last_ns is not None:
            # It changed somewhere between the last poll that showed the old value and this one.
            self.changes_ns.append((self._last_ns + at_ns) / 2)
        self.value = value if value is not None else self.value
        self.why, self._last_ns = why, at_ns

    def period_ms(self) -> float | None:
        """Median time between changes, ms; None with fewer than three changes."""
        if len(self.changes_ns) < 3:
            return None
        steps = [b - a for a, b in zip(self.changes_ns, self.changes_ns[1:], strict=False)]
        return statistics.median(steps) / 1e6


def survey(
    names: Sequence[str] | None = None, *, seconds: float = 1.0, period_s: float = 0.002, opened: Opened | None = None
) -> dict[str, Any]:
    """Return what can be read here, as a JSON-able document: ``documents.commands.SensorsDocument``.

    Args:
        names: sensors to look for (default: all).
        seconds: how long to watch values change; 0 reads them once.
        period_s: time between polls while watching.
        opened: sensors that are open already (they are closed afterwards).

    Returns:
        ``sensors``: for each its ``source``, whether it is ``available``, ``facts``, ``devices``, ``warnings``, ``refusals``
        (``device_id, name, reason, remedy, kind``), ``poll_us`` (median cost of reading all its fast series) and ``series``:
        ``device_kind, device_id, name, field, unit, energetic, labels, value, why_no_value``, ``changes`` seen, and ``update_ms``, the
        median time between changes (None if there were fewer than three; an idle device shows fewer than it could);
        ``meters``: kinds of meters that may be named; ``watched_s``.
    """
    opened = opened or open_sensors(SENSORS if names is None else names)
    began = time.monotonic()
    try:
        watched = [_Watched(sensor, info) for sensor, info in opened.sensors]
        polls = 0
        while True:
            due = time.monotonic() + period_s
            for one in watched:
                one.poll(slow=polls % _SLOW_EVERY == 0)
            polls += 1
            if time.monotonic() - began >= seconds:
                break
            time.sleep(max(due - time.monotonic(), 0))
        took = time.monotonic() - began
        found = [one.describe() for one in watched]
    finally:
        opened.close()
    for source, refusal in opened.refusals.items():
        found.append({"source": source, "available": False, "series": [], "refusals": [asdict(refusal)]})
    order = list(SENSORS)
    found.sort(key=lambda s: order.index(s["source"]) if s["source"] in order else len(order))
    return {"schema_version": SCHEMA_VERSION, "sensors": found, "meters": list(METERS), "watched_s": took}


class _Watched:
    """One open sensor and what its series showed."""

    def __init__(self, sensor: Sensor, info: SensorInfo) -> None:
        self._sensor, self._info = sensor, info
        self._series = [_Watch() for _ in info.series]
        self._costs: list[int] = []
        self._lost: Refusal | None = None

    def poll(self, *, slow: bool) -> None:
        if self._lost is not None:
            return
        before = time.monotonic_ns()
        readings: Sequence[Reading]
        try:
            readings = self._sensor.poll(slow=slow)
        except SensorError as error:
            self._lost = Refusal(None, None, error.reason, error.remedy, "error")
            return
        if not slow:
            self._costs.append(time.monotonic_ns() - before)
        for number, at, value, why in readings:
            self._series[number].add(at, value, why)

    def describe(self) -> dict[str, Any]:
        info = self._info
        series = [
            {
                "device_kind": s.device_kind,
                "device_id": s.device_id,
                "name": s.name,
                "field": s.field,
                "unit": s.unit,
                "energetic": s.field in ENERGETIC,
                "labels": dict(s.labels),
                "value": w.value,
                "why_no_value": w.why if w.value is None else None,
                "changes": len(w.changes_ns),
                "update_ms": w.period_ms(),
            }
            for s, w in zip(info.series, self._series, strict=True)
        ]
        refusals = [*info.refusals, *([self._lost] if self._lost else [])]
        return {
            "source": info.source,
            "available": self._lost is None,
            "facts": info.facts,
            "devices": info.devices,
            "warnings": info.warnings,
            "series": series,
            "refusals": [asdict(r) for r in refusals],
            "poll_us": statistics.median(self._costs) / 1e3 if self._costs else None,
        }
