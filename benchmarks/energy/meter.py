"""Reading recordings of a GPU's own sensor beside an external meter (ElmorLabs PMD-USB), as GPU_Power_Benchmark writes them.

A folder holds ``gpudata.csv`` (``nvidia-smi``, local time), ``PMD_data.bin`` (18-byte records), ``PMD_start_ts.txt`` (Unix us) and
``timestamps.csv`` (start and end of every stretch of load, Unix us, each instant twice); each may be gzipped. Decoding
after the authors' description (Yang et al., "Accurate and Convenient Energy Measurements for GPUs"): 16-bit tick of
2933.5 per ms, then four pairs of voltage and current in the upper 12 bits of a 16-bit word.

The three clocks are brought together here: the zone of ``nvidia-smi`` from its offset to the marks (whole hours), the
meter's start and rate from the edges of the load, which both the meter and the marks show.
"""

from __future__ import annotations

import csv
import gzip
import io
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

TICKS_PER_S = 2933.5e3
VOLT, AMPERE = 0.007568, 0.0488
# The author's start stamp is taken once the meter has answered, 50 ms late.
START_LATE_S = 0.05


@dataclass(frozen=True)
class Metered:
    """One recording. Times in s since the first start of load, powers in W.

    Attributes:
        name: name of the folder.
        meter_t: times of the meter's samples, on the host's clock.
        meter_w: power of the whole card.
        poll_t: times of the polls of the sensor.
        fields: power by name of the field, at ``poll_t``; NaN where there was no reading.
        on: stretches of load, shape (n, 2).
        meter_rate: seconds of the host per second of the meter.
        degc: temperature of the GPU at ``poll_t``, degrees Celsius.
    """

    name: str
    meter_t: Array
    meter_w: Array
    poll_t: Array
    fields: dict[str, Array]
    on: Array
    meter_rate: float
    degc: Array

    def energy(self, start: float, end: float) -> float:
        """Return the true energy from ``start`` to ``end``, J (the meter's samples joined by straight lines)."""
        total = np.concatenate([[0.0], np.cumsum(np.diff(self.meter_t) * (self.meter_w[1:] + self.meter_w[:-1]) / 2)])
        fine = np.interp([start, end], self.meter_t, total)
        return float(fine[1] - fine[0])


def _bytes(folder: Path, name: str) -> bytes:
    plain, packed = folder / name, folder / f"{name}.gz"
    return plain.read_bytes() if plain.is_file() else gzip.decompress(packed.read_bytes())


def decode_meter(raw: bytes) -> tuple[Array, Array]:
    """Return time since the first record (s, on the meter's clock) and power (W) of a meter's file."""
    words = np.frombuffer(raw[: len(raw) // 18 * 18], dtype="<u2").reshape(-1, 9)
    ticks = words[:, 0].astype(np.int64)
    t = np.concatenate([[0], np.cumsum(np.diff(ticks) % 65536)]) / TICKS_PER_S
    readings = (words[:, 1:] >> 4).astype(np.int64)
    readings[readings >= 2048] = 0
    power = (readings[:, 0::2] * readings[:, 1::2]).sum(axis=1) * (VOLT * AMPERE)
    return t, power.astype(np.float64)


def read(folder: Path) -> Metered:
    """Read one folder."""
    marks = np.array([int(x) for x in _bytes(folder, "timestamps.csv").split()[1:]], dtype=np.int64)[::2]
    zero_us = int(marks[0])
    edges = (marks - zero_us) / 1e6
    on = np.stack([edges[0 : len(edges) - 1 : 2], edges[1::2]], axis=1)
    t, power = decode_meter(_bytes(folder, "PMD_data.bin"))
    start_us = int(_bytes(folder, "PMD_start_ts.txt").split()[0])
    t = t - START_LATE_S + (start_us - zero_us) / 1e6
    offset, rate = _meter_clock(t, power, on)
    poll_t, fields, degc = _polls(_bytes(folder, "gpudata.csv").decode(), zero_us)
    return Metered(folder.name, offset + rate * t, power, poll_t, fields, on, rate, degc)


def _polls(text: str, zero_us: int) -> tuple[Array, dict[str, Array], Array]:
    rows = list(csv.DictReader(io.StringIO(text), skipinitialspace=True))
    stamps = [datetime.strptime(r["timestamp"], "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=UTC) for r in rows]
    micros = np.array([round(s.timestamp() * 1e6) for s in stamps], dtype=np.int64)
    # The zone is a whole number of hours, and the polls begin a second or two before the load.
    hours = round((int(micros[0]) - zero_us) / 3.6e9)
    t = (micros - zero_us) / 1e6 - 3600.0 * hours
    fields = {
        name.split(" ")[0]: np.array([_number(r[name]) for r in rows], dtype=np.float64)
        for name in rows[0]
        if name.startswith("power.draw")
    }
    degc = np.array([_number(r["temperature.gpu"]) for r in rows], dtype=np.float64)
    return t, fields, degc


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _meter_clock(t: Array, power: Array, on: Array) -> tuple[float, float]:
    """Return offset (s) and rate that turn the meter's times into times of the load's marks.

    An edge is the moment at which the power crosses the middle between its two levels. A line is fitted through the edges and
    their marks. The load begins up to a few ms after its mark, because it must be launched. The offset is the median over rises and
    falls, which includes this delay.
    """
    middle = (np.percentile(power, 5) + np.percentile(power, 95)) / 2
    smooth = np.convolve(power, np.ones(5) / 5, mode="same")
    above = smooth > middle
    marks, seen = [], []
    for at, rising in [(s, True) for s in on[:, 0]] + [(e, False) for e in on[:, 1]]:
        near = np.flatnonzero((np.abs(t[1:] - at) < 0.02) & (above[1:] != above[:-1]) & (above[1:] == rising))
        if len(near):
            marks.append(at)
            seen.append(t[near[np.argmin(np.abs(t[near] - at))] + 1])
    if len(marks) < 2:
        return 0.0, 1.0
    x, y = np.array(seen), np.array(marks)
    if len(marks) < 4:  # two edges of one step: launch delays would pass for a rate
        return float(np.median(y - x)), 1.0
    for _ in range(3):
        rate, offset = np.polyfit(x, y, 1)
        bad = np.abs(y - offset - rate * x)
        keep = bad <= 3 * max(float(np.median(bad)), 1e-4)
        x, y = x[keep], y[keep]
    return float(offset), float(rate)
