"""Stages on the sensors themselves: what can be read, how each field follows a known load, what sampling costs."""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.lab import Lab, gpu_series, joules
from magneton.analysis.energy.sensor_model.calibrate import identify_response
from magneton.analysis.energy.sensor_model.sensor import lock
from magneton.analysis.energy.sensor_model.timeline import Timeline
from magneton.collectors.sensors import sample
from magneton.collectors.sensors.survey import survey

_IDENTIFY_S = 20.0


def environment(lab: Lab) -> dict[str, Any]:
    """Versions and the device."""
    import platform
    import sys
    from importlib import metadata

    versions = {"python": sys.version.split()[0]}
    for name in ("torch", "transformers", "jax", "numpy", "pyarrow", "duckdb", "msgspec", "nvidia-ml-py"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    found: dict[str, Any] = {"versions": versions, "machine": platform.machine(), "device": "cpu"}
    if lab.device.type == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found["device"] = {
            "name": properties.name,
            "uuid_as_torch_writes_it": str(getattr(properties, "uuid", None)),
            "l2_bytes": getattr(properties, "L2_cache_size", None),
            "memory_bytes": properties.total_memory,
        }
    return found


def sensors(lab: Lab) -> dict[str, Any]:
    """What can be read, while the device is busy so that values move."""
    step, over = _load(lab), threading.Event()

    def load() -> None:
        while not over.wait(0.04):
            until = time.monotonic() + 0.06
            while time.monotonic() < until:
                step()
                lab.synchronize()

    thread = threading.Thread(target=load)
    thread.start()
    try:
        return survey(seconds=0.5 if lab.plan.simulated else 3.0)
    finally:
        over.set()
        thread.join()


def _load(lab: Lab) -> Any:
    a = torch.randn(lab.plan.matrix, lab.plan.matrix, device=lab.device, dtype=_half(lab))
    b = torch.randn_like(a)
    return lambda: torch.mm(a, b)


def _half(lab: Lab) -> torch.dtype:
    return torch.bfloat16 if lab.device.type == "cuda" else torch.float32


def windows(lab: Lab) -> dict[str, Any]:
    """How each power field follows a load that is switched on and off: period, response, lag; and the counter's steps.

    The load's lengths are drawn between 40 and 700 ms. So the load is switched at every moment between two updates of the sensor.
    """
    step, rng = _load(lab), np.random.default_rng(0)
    busy: list[tuple[int, int]] = []
    with lab.sampling("known-load", period_s=0.003) as sampled:
        time.sleep(0.1 if lab.plan.simulated else 1.5)
        stop = time.monotonic() + lab.plan.load_s
        while time.monotonic() < stop:
            until = time.monotonic() + rng.uniform(0.04, 0.7)
            start = time.monotonic_ns()
            while time.monotonic() < until:
                for _ in range(4):
                    step()
                lab.synchronize()
            busy.append((start, time.monotonic_ns()))
            time.sleep(rng.uniform(0.04, 0.7))
        time.sleep(0.1 if lab.plan.simulated else 1.5)
    lab.keep_power("known-load", sampled, {"busy_monotonic_ns": busy})
    series, began = gpu_series(sampled), time.monotonic()
    zero = busy[0][0]
    starts = np.array([s for s, _ in busy], dtype=np.float64) - zero
    ends = np.array([e for _, e in busy], dtype=np.float64) - zero
    timeline = Timeline(starts / 1e9, (ends - starts) / 1e9, np.zeros(len(busy), dtype=np.int64), ("load",))
    found: dict[str, Any] = {"bursts": len(busy), "cost": sampled.sensors[0]["cost"]}
    for field, one in series.items():
        t = (one.samples.t_ns - zero) / 1e9
        values = one.samples.values
        changes = np.flatnonzero(np.diff(values) != 0)
        steps_ms = np.diff((t[changes] + t[changes + 1]) / 2) * 1e3
        entry: dict[str, Any] = {
            "polls": len(t),
            "changes": len(changes),
            "between_changes_ms": {
                "median": float(np.median(steps_ms)) if len(steps_ms) else None,
                "p10": float(np.percentile(steps_ms, 10)) if len(steps_ms) else None,
                "p90": float(np.percentile(steps_ms, 90)) if len(steps_ms) else None,
            },
        }
        if field != "energy_counter":
            updates = lock(t, values)
            entry |= {
                "period_ms": None if updates.period_s is None else updates.period_s * 1e3,
                "locked": updates.locked,
            }
            # Each takes seconds; what was measured is kept in any case.
            late = time.monotonic() - began > _IDENTIFY_S
            best = [] if late else identify_response(updates, timeline, lag_s=(0.02, 0.03))[:3]
            entry["responses"] = [
                {
                    "kind": c.response.kind,
                    "scale_ms": c.response.scale_s * 1e3,
                    "lag_ms": c.lag_s * 1e3,
                    "noise_w": c.noise_w,
                    "log_evidence": c.log_evidence,
                }
                for c in best
            ]
            entry["watts_lowest_highest"] = [float(values.min()), float(values.max())]
        found[field] = entry
    first, last = zero - 50_000_000, busy[-1][1] + (0 if lab.plan.simulated else 1_200_000_000)
    totals = {field: joules(one, first, last) for field, one in series.items()}
    found["joules_of_the_whole"] = totals
    counter = totals.get("energy_counter")
    if counter:
        found["against_the_counter"] = {f: j / counter - 1 for f, j in totals.items() if j is not None}
    return found


def overhead(lab: Lab) -> dict[str, Any]:
    """Step time of work that waits for the host, with no sampler, one in a process, one in a thread; in turns."""
    x = torch.ones(16, device=lab.device)

    def step() -> None:
        for _ in range(50):
            x.add(1)

    def timed() -> list[float]:
        taken = []
        for _ in range(lab.plan.overhead_steps):
            start = time.perf_counter()
            step()
            lab.synchronize()
            taken.append(time.perf_counter() - start)
        return taken

    timed()
    kinds = ("none", "process", "thread")
    medians: dict[str, list[float]] = {k: [] for k in kinds}
    costs: dict[str, Any] = {}
    for i in range(2 if lab.plan.simulated else 6):
        for kind in kinds if i % 2 == 0 else reversed(kinds):
            if kind == "none":
                medians[kind].append(statistics.median(timed()))
                continue
            with sample(lab.work / "power" / f"overhead-{kind}-{i}", ["nvml"], isolation=kind) as sampler:
                medians[kind].append(statistics.median(timed()))
            costs[kind] = sampler.result.sensors[0].get("cost")
    base = statistics.median(medians["none"])
    return {
        "step_us": {k: statistics.median(v) * 1e6 for k, v in medians.items()},
        "slowdown": {k: statistics.median(v) / base - 1 for k, v in medians.items()},
        "cost": costs,
    }
