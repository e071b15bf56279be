"""Energies of windows as a user gets them, beside the meter: every recording and field, with nothing but the table of known sensors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.energy.meter import Metered, read
from magneton.analysis.energy.sensor_model.calibrate import calibrate
from magneton.analysis.energy.sensor_model.known import KnownSensor, known_sensor
from magneton.analysis.energy.sensor_model.sensor import Calibration, SensorModel
from magneton.analysis.energy.sensor_model.windows import DeviceEnergy

LENGTHS_S = (0.5, 1.0, 2.0, 4.0, 8.0)
KINDS = ("in the load", "on its edge", "across", "random")
# Columns of nvidia-smi, and the fields of the table ``power`` that they become.
FIELDS = {"power.draw": "power", "power.draw.instant": "power_instant", "power.draw.average": "power_average"}


@dataclass(frozen=True)
class WindowCoverage:
    """How the printed intervals of one recording and field hold the meter's energy.

    Attributes:
        what: recording, field, and where gain and offset are from.
        kind: where the windows lie.
        window_s: their length.
        n: number of windows.
        coverage: share of the intervals that hold the meter, percent.
        half_width: median half width, percent of the energy.
        p90: error that nine windows in ten stay below, percent.
        of_half: median error, as a share of the half width: a wrong gain is common to all windows of a recording.
        measured: share of the windows called measured, percent.
    """

    what: str
    kind: str
    window_s: float
    n: int
    coverage: float
    half_width: float
    p90: float
    of_half: float
    measured: float


def overall(rows: Sequence[WindowCoverage]) -> list[tuple[str, float, float]]:
    """Return coverage over all windows of each recording and field, and that of its worst kind, percent."""
    found = []
    for what in dict.fromkeys(row.what for row in rows):
        own = [row for row in rows if row.what == what]
        mean = sum(row.coverage * row.n for row in own) / sum(row.n for row in own)
        worst = min(
            sum(r.coverage * r.n for r in own if r.kind == kind) / sum(r.n for r in own if r.kind == kind)
            for kind in {row.kind for row in own}
        )
        found.append((what, mean, worst))
    return found


def device_name(folder: str) -> str:
    """Return the name of a device by the name of its recording: ``rtx3090_step`` is of an ``RTX 3090``, ``a5000_x`` of an ``RTX A5000``."""
    chip = folder.split("_")[0]
    spaced = re.sub(r"(?i)^(rtx|gtx|titan)[ -]?(?=\w)", lambda match: f"{match.group(1).upper()} ", chip)
    return f"RTX {spaced}" if re.fullmatch(r"(?i)a\d{4}", spaced) else spaced


def recordings(folder: Path) -> list[Metered]:
    """Return the recordings beside a meter under a folder, by name."""
    return [read(path.parent) for path in sorted(folder.rglob("timestamps.csv"))]


def coverage(folder: Path, *, windows: int = 200, seed: int = 20260101) -> list[WindowCoverage]:
    """Return how the intervals of every recording and field hold the meter: by the table, and calibrated from another recording."""
    found: list[WindowCoverage] = []
    every = recordings(folder)
    for metered in every:
        for column, field in FIELDS.items():
            if column not in metered.fields or np.isnan(metered.fields[column]).all():
                continue
            sensor = known_sensor(device_name(metered.name), field)
            name = f"{metered.name} {field}"
            found += _judge(f"{name}, {sensor.family}", metered, column, sensor, None, windows, seed)
            other = next((o for o in every if o is not metered and _same_card(o, metered) and column in o.fields), None)
            if other is not None:
                scale = calibration(other, column, sensor)
                found += _judge(f"{name}, calibrated on {other.name}", metered, column, sensor, scale, windows, seed)
            if sensor.family != "unknown":
                unknown = known_sensor(None, field)
                found += _judge(f"{name}, as of an unknown device", metered, column, unknown, None, windows, seed)
    return found


def _same_card(a: Metered, b: Metered) -> bool:
    return a.name.split("_")[0] == b.name.split("_")[0]


def calibration(metered: Metered, column: str, sensor: KnownSensor) -> Calibration:
    """Return gain and offset of a sensor by a recording beside a meter."""
    from benchmarks.energy.real import MeterActivity

    device = DeviceEnergy(metered.poll_t, metered.fields[column], metered.on, sensor)
    middle = (float(metered.on[0, 0]) + float(metered.on[-1, 1])) / 2
    posterior = device.posterior(middle, middle + 1.0)
    assert posterior is not None
    model = SensorModel(device.updates.period_s or 0.1, posterior.response, posterior.lag_s)
    return calibrate(device.updates, MeterActivity(metered), model).calibration


def _judge(
    what: str, metered: Metered, column: str, sensor: KnownSensor, scale: Calibration | None, windows: int, seed: int
) -> list[WindowCoverage]:
    device = DeviceEnergy(metered.poll_t, metered.fields[column], metered.on, sensor, calibration=scale)
    first, last = max(metered.meter_t[0], metered.poll_t[0]), min(metered.meter_t[-1], metered.poll_t[-1])
    on, off = float(metered.on[0, 0]), float(metered.on[-1, 1])
    rows = []
    for length in LENGTHS_S:
        rng = np.random.default_rng(seed)
        for kind in KINDS:
            starts = [
                s for s in _starts(kind, length, on, off, first, last, windows, rng) if first <= s <= last - length
            ]
            pairs = [(device.window(s, s + length), metered.energy(s, s + length)) for s in starts]
            known = [(made, truth) for made, truth in pairs if made is not None]
            if not known:
                continue
            halves = np.array([(m.high_j - m.low_j) / 2 for m, _ in known])
            errors = np.array([m.energy_j - truth for m, truth in known])
            truths = np.array([truth for _, truth in known])
            rows.append(
                WindowCoverage(
                    what,
                    kind,
                    length,
                    len(known),
                    100 * float(np.mean([m.low_j <= truth <= m.high_j for m, truth in known])),
                    100 * float(np.median(halves / truths)),
                    100 * float(np.percentile(np.abs(errors) / truths, 90)),
                    float(np.median(errors / halves)),
                    100 * float(np.mean([m.label == "measured" for m, _ in known])),
                )
            )
    return rows


def _starts(
    kind: str, length: float, on: float, off: float, first: float, last: float, count: int, rng: np.random.Generator
) -> list[float]:
    if kind == "in the load":
        return rng.uniform(on, max(off - length, on), count).tolist() if off - on >= length else []
    if kind == "on its edge":
        at = np.where(rng.random(count) < 0.5, on, off - length)
        return list((at + rng.uniform(-0.05, 0.05, count)).tolist())
    if kind == "across":
        at = np.where(rng.random(count) < 0.5, on, off)
        return list((at - rng.uniform(0, length, count)).tolist())
    return list(rng.uniform(first, max(last - length, first), count).tolist())
