"""Stages that leave recordings, and that hold energies to conservation."""

from __future__ import annotations

import itertools
import shutil
import time
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from benchmarks.gpu.lab import Lab, gpu_series
from benchmarks.gpu.work import gpt2
from magneton.analysis.energy.measure.result import Window
from magneton.analysis.energy.measure.totals import series_energy
from magneton.collectors import Workload
from magneton.collectors.recording.program import CAPTURES, ProgramRecorder
from magneton.schemas.manifest import read_manifest
from magneton.schemas.parquet import read_table

MAX_FILE_BYTES = 16 << 20
# Steps of a few ms: enough of them that the sensor sees some.
_WARMUP, _STEPS, _SMALL_STEPS = 2, 60, 5
# The oldest time a zip can hold: archives of equal content are equal.
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


def pack(directory: Path, target: Path) -> int:
    """Write a recording into a zip, in order of names; return its size, bytes."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(p for p in directory.rglob("*") if p.is_file()):
            entry = zipfile.ZipInfo(f"{directory.name}/{file.relative_to(directory).as_posix()}", _ZIP_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, file.read_bytes())
    return target.stat().st_size


def recordings(lab: Lab) -> dict[str, Any]:
    """Record GPT-2 both ways (energy, profile, values on two inputs), and pack what was recorded."""
    layers, heads, width, _, tokens, batch = lab.plan.small_gpt2
    found: dict[str, Any] = {"captures": list(CAPTURES)}
    for side in ("eager", "fused"):
        model, ids = gpt2(lab, lab.plan.small_gpt2, fused=side == "fused")
        workload = Workload(model="gpt2 (random weights)", batch=batch, input_tokens=batch * tokens)
        workload.steps, workload.warmup_steps = (_SMALL_STEPS if lab.plan.simulated else _STEPS), _WARMUP
        workload.details = {"layers": layers, "heads": heads, "width": width, "simulated": lab.plan.simulated}
        path = lab.work / "runs" / f"gpt2-{side}"
        started = time.perf_counter()
        with (
            torch.inference_mode(),
            ProgramRecorder(path, CAPTURES, system="transformers", workload=workload, overwrite=True) as recorder,
        ):
            recorder.run(model, (ids,))
        taken = time.perf_counter() - started
        found[side] = {
            "seconds": taken,
            "packed_bytes": pack(path, lab.out / f"{path.name}.zip"),
            "files": _files(path),
            "notes": read_manifest(path).notes,
        }
        lab.kept.setdefault("recordings", []).append(path)
    return found


def _files(path: Path) -> dict[str, int]:
    return {p.relative_to(path).as_posix(): p.stat().st_size for p in sorted(path.rglob("*")) if p.is_file()}


def values(lab: Lab) -> dict[str, Any]:
    """Fingerprint every value of GPT-2 both ways: how many there are, and how long it takes."""
    from magneton.collectors.torch.values_capture import record_values

    found: dict[str, Any] = {}
    for side in ("eager", "fused"):
        model, ids = gpt2(lab, lab.plan.small_gpt2, fused=side == "fused")
        with torch.inference_mode():
            model(ids)
            lab.synchronize()
            started = time.perf_counter()
            model(ids)
            lab.synchronize()
            plain = time.perf_counter() - started
            started = time.perf_counter()
            captured = record_values(model, (ids,))
            lab.synchronize()
            taken = time.perf_counter() - started
        found[side] = {"ops": captured.ops.num_rows, "tensors": captured.tensors.num_rows, "slower": taken / plain}
    return found


def normalised(lab: Lab) -> dict[str, Any]:
    """Normalise what was recorded and diff it: what kernels there are, and that energies add up."""
    from magneton.analysis.energy.attribute import attribute
    from magneton.flows.traces import normalize

    found: dict[str, Any] = {}
    for path in lab.kept.get("recordings", ()):
        target = lab.work / "normalised" / path.name
        shutil.rmtree(target, ignore_errors=True)
        normalize([path], target)
        kernels = read_table(target / "tables" / "kernels.parquet", "kernels")
        power = read_table(target / "tables" / "power.parquet", "power")
        entry: dict[str, Any] = {"kernels": kernels.num_rows, "power_rows": power.num_rows}
        if kernels.num_rows and power.num_rows:
            entry["attribution"] = _attributed(attribute, kernels, power)
        found[path.name] = entry
    if not found:
        raise RuntimeError("nothing was recorded")
    return found


def _attributed(attribute: Any, kernels: pa.Table, power: pa.Table) -> dict[str, Any]:
    starts, lengths = kernels["ts_ns"].to_pylist(), kernels["dur_ns"].to_pylist()
    window = Window(min(starts), max(s + (d or 0) for s, d in zip(starts, lengths, strict=True)))
    result = {}
    for device, found in attribute(kernels, power, window).items():
        parts = [found.attributed_j, found.idle_j, found.unattributed_j]
        known = None if found.total_j is None else sum(p or 0.0 for p in parts)
        result[str(device)] = {
            "total_j": found.total_j,
            "sum_of_parts_j": known,
            "off_by": None if not found.total_j or known is None else known / found.total_j - 1,
            "label": found.label,
        }
    return result


def conservation(lab: Lab) -> dict[str, Any]:
    """Energies of the parts of a stretch of time add up to that of the whole; the fields agree with the counter."""
    found: dict[str, Any] = {}
    worst = 0.0
    for name, sampled, windows in lab.kept.get("windows", ()):
        first, last = windows[0].start_ns, windows[-1].end_ns
        edges = [first, *(w.end_ns for w in windows[:-1]), last]
        totals: dict[str, float] = {}
        for field, series in gpu_series(sampled).items():
            whole = series_energy(series, Window(first, last)).value_j
            parts = [series_energy(series, Window(a, b)).value_j for a, b in itertools.pairwise(edges)]
            if whole and all(p is not None for p in parts):
                worst = max(worst, abs(sum(p for p in parts if p is not None) / whole - 1))
                totals[field] = whole
        counter = totals.get("energy_counter")
        found[name] = {
            "joules": totals,
            "against_the_counter": {f: j / counter - 1 for f, j in totals.items()} if counter else None,
        }
    if not found:
        raise RuntimeError("nothing was measured")
    if worst > 1e-9:
        raise RuntimeError(f"parts differ from the whole by {worst:.2g}")
    return {"worst_relative_error": worst, "programs": found}
