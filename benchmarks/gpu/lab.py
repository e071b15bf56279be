"""What every stage of the check stands on: sizes, the device, running work in windows, and power inside them."""

from __future__ import annotations

import json
import statistics
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import torch

from magneton.analysis.energy.measure.result import Window
from magneton.analysis.energy.measure.totals import SensorSeries, series_energy, series_of
from magneton.analysis.energy.significance import compare_interleaved, run_order
from magneton.collectors.replay.windows import RepeatWindow, fill_window
from magneton.collectors.sensors import Sampled, sample
from magneton.schemas.tables.parquet import read_table

FIELDS = ("energy_counter", "power_instant", "power", "power_average")
# How long a reading may still show what was before: left out at the beginning of a window.
SETTLE_S = {"energy_counter": 0.15, "power_instant": 0.3, "power": 1.3, "power_average": 1.3}


@dataclass(frozen=True)
class Plan:
    """Sizes of a run: ``full`` for a large GPU, ``small`` to rehearse on a CPU.

    Attributes:
        device: torch's name of the device.
        simulated: power comes from a stand-in, not from a sensor.
        window_s: length of a window of a workload.
        rounds: pairs of windows (A B, B A, ...).
        load_s: how long the known load of the sensor stage lasts.
        matrix: edge of square matrices.
        numel: elements of ``arange``.
        gpt2: layers, heads, width, vocabulary, tokens, batch.
        small_gpt2: the same, for what is recorded and shipped.
        overhead_steps: steps of one timing of the overhead.
    """

    device: str
    simulated: bool
    window_s: float
    rounds: int
    load_s: float
    matrix: int
    numel: int
    gpt2: tuple[int, int, int, int, int, int]
    small_gpt2: tuple[int, int, int, int, int, int]
    overhead_steps: int


FULL = Plan("cuda", False, 2.5, 3, 12.0, 8192, 1 << 26, (12, 12, 768, 50257, 1024, 8), (4, 4, 256, 1024, 256, 4), 400)
SMALL = Plan("cpu", True, 0.2, 1, 1.5, 96, 1 << 12, (2, 2, 32, 64, 16, 2), (2, 2, 32, 64, 16, 2), 10)


@dataclass
class Lab:
    """One check in progress.

    Attributes:
        plan: sizes.
        out: directory for results.
        work: directory for what is not a result.
        kept: facts that later stages need from earlier ones.
    """

    plan: Plan
    out: Path
    work: Path
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """The device under test."""
        return torch.device(self.plan.device)

    def synchronize(self) -> None:
        """Wait until the device has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    @contextmanager
    def sampling(self, name: str, **options: Any) -> Iterator[Sampled]:
        """Sample while a block runs; its result is filled in afterwards."""
        with sample(self.work / "power" / name, ["nvml"], **options) as sampler:
            yield sampler.result

    def keep_power(self, name: str, sampled: Sampled, facts: dict[str, Any]) -> None:
        """Pack readings with what was going on, as a result of the check."""
        about = {"sensors": sampled.sensors, "anchors": msgspec.to_builtins(sampled.anchors)} | facts
        with zipfile.ZipFile(self.out / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{name}/about.json", json.dumps(about, indent=1))
            for file in sampled.files:
                archive.write(file, f"{name}/{file.name}")

    def burn(self, step: Callable[[], Any], seconds: float) -> RepeatWindow:
        """Run a step again and again for about ``seconds``, with the device idle before and after."""
        return fill_window(step, seconds, self.synchronize)


def gpu_series(sampled: Sampled) -> dict[str, SensorSeries]:
    """Return the series of the first GPU by field, on CLOCK_MONOTONIC."""
    files = [f for f in sampled.files if f.suffix == ".parquet"]
    if not files:
        raise RuntimeError("no sensor of the GPU could be read: " + "; ".join(sampled.notes))
    power = read_table(files[0], "power")
    return series_by_field(power)


def series_by_field(power: pa.Table) -> dict[str, SensorSeries]:
    """Return the series of the first GPU in a table ``power`` by field."""
    gpus = [s for s in series_of(power, FIELDS) if s.device_kind == "gpu"]
    first = min((s.device_id or "" for s in gpus), default=None)
    return {s.field: s for s in gpus if (s.device_id or "") == first}


def watts(series: SensorSeries, start_ns: int, end_ns: int) -> float | None:
    """Return mean power inside a window of steady load, or NULL if no reading tells.

    A counter changes less often than it is polled. So its power is taken between its first and its last change inside the window. The
    mean of a power field leaves out the first readings, which may still show the time before the window.
    """
    t, v = series.samples.t_ns, series.samples.values
    start = start_ns + round(min(SETTLE_S[series.field], (end_ns - start_ns) / 4e9) * 1e9)
    inside = (t >= start) & (t <= end_ns)
    t, v = t[inside], v[inside]
    if series.field != "energy_counter":
        return float(v.mean()) if len(v) else None
    changed = np.flatnonzero(np.diff(v) != 0) + 1
    if len(changed) < 2:
        return None
    first, last = changed[0], changed[-1]
    return float((v[last] - v[first]) / ((t[last] - t[first]) / 1e9))


def joules(series: SensorSeries, start_ns: int, end_ns: int) -> float | None:
    """Return the energy of a window by the rules of the analysis: straight lines, nothing extrapolated."""
    return series_energy(series, Window(start_ns, end_ns)).value_j


def compare(lab: Lab, name: str, sides: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Measure two programs in turns (A B B A ...) and return power, time and energy per iteration of each.

    Returns:
        For each side, by field, W and J per iteration (mean and standard deviation over the windows); iterations per second;
        and B against A with its 95 % interval and p.
    """
    names = list(sides)
    order = run_order(lab.plan.rounds)
    windows: list[RepeatWindow] = []
    with lab.sampling(name) as sampled:
        for letter in order:
            windows.append(lab.burn(sides[names["AB".index(letter)]], lab.plan.window_s))
    series = gpu_series(sampled)
    per_iteration: dict[str, list[float | None]] = {
        f: [_per_iteration(series[f], w) for w in windows] for f in FIELDS if f in series
    }
    result: dict[str, Any] = {"order": order, "incomplete": sampled.incomplete}
    for letter, side in zip("AB", names, strict=True):
        at = [i for i, o in enumerate(order) if o == letter]
        result[side] = {
            "iterations_per_s": statistics.mean(windows[i].calls / windows[i].duration_s for i in at),
            "watts": {
                f: mean_sd([watts(series[f], windows[i].start_ns, windows[i].end_ns) for i in at])
                for f in per_iteration
            },
            "joules_per_iteration": {f: mean_sd([values[i] for i in at]) for f, values in per_iteration.items()},
        }
    result["b_against_a"] = {}
    for f, values in per_iteration.items():
        known = [v for v in values if v is not None]
        if len(known) == len(values):
            verdict = compare_interleaved(order, known)
            result["b_against_a"][f] = {k: getattr(verdict, k) for k in ("difference", "low", "high", "p", "reason")}
    lab.kept.setdefault("windows", []).append((name, sampled, windows))
    return result


def _per_iteration(series: SensorSeries, window: RepeatWindow) -> float | None:
    power = watts(series, window.start_ns, window.end_ns)
    return None if power is None else power * window.duration_s / window.calls


def mean_sd(values: Sequence[float | None]) -> dict[str, float | None]:
    """Return mean and standard deviation of what is known."""
    known = [v for v in values if v is not None]
    return {
        "mean": statistics.mean(known) if known else None,
        "sd": statistics.stdev(known) if len(known) > 1 else None,
        "n": len(known),
    }
