"""What a machine with a GPU shows of sensors, energy and recordings, in one run of at most ten minutes.

    python -m benchmarks.gpu_check --out DIR [--budget SECONDS] [--wheels DIR] [--only STAGE ...] [--rehearse]

Every stage has a time of its own and fails softly: its reason stands in the result and the next one runs. What is known so far
is written after each. ``DIR`` receives at most 8 files of at most 16 MiB: ``gpu_check.json`` and packed recordings.

``--rehearse`` runs everything in small on a CPU with a stand-in for NVML; its figures are marked as simulated. ``--wheels``
names a directory of wheels for what the machine lacks (duckdb, msgspec, zstandard); they are unpacked beside the results of
this run only.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FAKES = Path(__file__).resolve().parent / "fakes"
MAX_FILES, MAX_FILE_BYTES = 8, 16 << 20
RESULT = "gpu_check.json"
DEFAULT_BUDGET_S = 540.0
# name, module and function, most seconds it may take
STAGES: tuple[tuple[str, str, float], ...] = (
    ("environment", "benchmarks.gpu.sensing:environment", 30),
    ("sensors", "benchmarks.gpu.sensing:sensors", 30),
    ("windows", "benchmarks.gpu.sensing:windows", 60),
    ("overhead", "benchmarks.gpu.sensing:overhead", 60),
    ("gpt2", "benchmarks.gpu.work:gpt2_pair", 60),
    ("tf32", "benchmarks.gpu.work:tf32_pair", 45),
    ("addmm", "benchmarks.gpu.work:addmm_pair", 45),
    ("layer-norm", "benchmarks.gpu.work:layer_norm_pairs", 75),
    ("self", "benchmarks.gpu.work:repeatability", 45),
    ("recordings", "benchmarks.gpu.records:recordings", 60),
    ("replay", "benchmarks.gpu.work:replays", 90),
    ("graphs", "benchmarks.gpu.work:graphs", 45),
    ("values", "benchmarks.gpu.records:values", 30),
    ("normalised", "benchmarks.gpu.records:normalised", 45),
    ("jax", "benchmarks.gpu.work:jax_product", 60),
    ("conservation", "benchmarks.gpu.records:conservation", 20),
)


class StageTimeoutError(Exception):
    """A stage took longer than it may."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise ``StageTimeoutError`` in the block once ``seconds`` are over (as soon as Python runs again)."""

    def over(signum: int, frame: Any) -> None:
        raise StageTimeoutError(f"took longer than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_stage(function: Callable[[], Any], seconds: float) -> dict[str, Any]:
    """Run a stage and return its result, or why there is none."""
    started = time.monotonic()
    try:
        with limited(seconds):
            outcome: dict[str, Any] = {"ok": True, "result": function()}
    except Exception as error:
        outcome = {"ok": False, "reason": f"{type(error).__name__}: {error}"}
    return outcome | {"seconds": time.monotonic() - started}


def _function(where: str, lab: Any) -> Callable[[], Any]:
    module, name = where.split(":")

    def call() -> Any:
        return getattr(importlib.import_module(module), name)(lab)

    return call


def write(path: Path, document: dict[str, Any]) -> None:
    """Write JSON so that it is whole or not there; NaN and infinity become null."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(k): plain(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [plain(v) for v in value]
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            return None
        return value

    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(plain(document), indent=1, default=str))
    beside.replace(path)


def keep_within_limits(out: Path) -> list[str]:
    """Remove files that are too large or too many (the largest first); return what was removed and why."""
    removed = []
    files = sorted((p for p in out.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    while files and (files[-1].stat().st_size > MAX_FILE_BYTES or len(files) > MAX_FILES):
        largest = files.pop()
        removed.append(f"{largest.name}: {largest.stat().st_size} bytes, {len(files) + 1} files")
        largest.unlink()
    return removed


def unpack_wheels(wheels: Path, target: Path) -> None:
    """Make the packages of a directory of wheels importable, here and in the processes started from here."""
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
    # Last, so that what the machine has itself comes first.
    sys.path.append(str(target))


def rehearse() -> None:
    """Put a stand-in in the place of NVML: a GPU of 100 W at rest and 400 W under a square wave."""
    sys.path.insert(0, str(FAKES))
    gpu = {"uuid": "GPU-simulated", "name": "simulated H200", "mig": False, "idle_w": 100.0, "busy_w": 400.0}
    gpu |= {"period_s": 0.05, "duty": 0.5, "update_ms": 20, "counter_ms": 10, "average_ms": 100}
    os.environ["MAGNETON_FAKE_NVML"] = json.dumps({"gpus": [gpu]})


def check(out: Path, *, budget_s: float, only: Sequence[str] = (), small: bool = False) -> dict[str, Any]:
    """Run the stages one after the other and return what they found; it is written as it grows.

    Args:
        out: directory for the results.
        budget_s: most seconds for all of them.
        only: names of the stages to run (default: all).
        small: sizes for a rehearsal.
    """
    import torch

    from benchmarks.gpu.lab import FULL, SMALL, Lab
    from magneton.schemas.versions.registry import SCHEMA_VERSION

    if small:
        torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "simulated": small,
        "budget_s": budget_s,
        "stages": {},
    }
    stop = time.monotonic() + budget_s
    with tempfile.TemporaryDirectory(prefix="magneton-") as work:
        lab = Lab(SMALL if small else FULL, out, Path(work))
        for name, where, seconds in STAGES:
            if only and name not in only:
                continue
            left = stop - time.monotonic()
            if left < 3:
                document["stages"][name] = {"ok": False, "reason": "no time was left", "seconds": 0.0}
                continue
            document["stages"][name] = run_stage(_function(where, lab), min(seconds, left))
            write(out / RESULT, document)
    document["removed"] = keep_within_limits(out)
    write(out / RESULT, document)
    return document


def rows(document: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return a line per stage: name, outcome, seconds, and its main figure."""
    return [
        (
            name,
            "ok" if s["ok"] else "failed",
            f"{s['seconds']:.1f}",
            _main_figure(s["result"]) if s["ok"] else s["reason"],
        )
        for name, s in document["stages"].items()
    ]


def _main_figure(result: dict[str, Any]) -> str:
    parts = []
    for key, value in result.items():
        if key == "b_against_a" and isinstance(value, dict):
            parts += [f"{f} {100 * v['difference']:+.1f} %" for f, v in value.items() if v["difference"] is not None]
        elif isinstance(value, dict) and "b_against_a" in value:
            parts.append(f"{key}: {_main_figure(value)}")
        elif key == "sensors":
            parts += [f"{s['source']}: {len(s['series'])} readings" for s in value if s["available"]]
        elif key in ("device", "versions") and isinstance(value, dict):
            parts.append(_short(value))
        elif key in ("slowdown", "against_the_counter", "worst_relative_error", "captures", "output_l2"):
            parts.append(f"{key} {_short(value)}")
        elif isinstance(value, dict) and "period_ms" in value:
            best = value["responses"][0] if value["responses"] else None
            shape = f", {best['kind']} {best['scale_ms']:.0f} ms, lag {best['lag_ms']:.0f} ms" if best else ""
            parts.append(f"{key}: every {_short(value['period_ms'])} ms{shape}")
        elif isinstance(value, dict):
            errors = {f: v["replay_error"] for f, v in value.items() if isinstance(v, dict) and "replay_error" in v}
            parts += [f"{key} replay error {_short(errors)}"] if errors else []
    return "; ".join(parts)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, dict):
        return ", ".join(f"{k} {_short(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(_short, value))
    return str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns 0 when every stage that can work here did."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or "out/gpu-check"))
    parser.add_argument("--budget", type=float, default=DEFAULT_BUDGET_S, help="most seconds for everything")
    parser.add_argument("--wheels", type=Path, help="directory of wheels for what this machine lacks")
    parser.add_argument("--only", nargs="*", default=(), choices=[n for n, _, _ in STAGES], help="stages to run")
    parser.add_argument("--rehearse", action="store_true", help="small, on a CPU, with a stand-in for NVML")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="magneton-wheels-") as unpacked:
        if options.wheels is not None:
            unpack_wheels(options.wheels, Path(unpacked))
        if options.rehearse:
            rehearse()
        document = check(options.out, budget_s=options.budget, only=options.only, small=options.rehearse)
    from rich.console import Console
    from rich.table import Table

    title = "GPU check" + (", rehearsed: everything is simulated" if options.rehearse else "")
    table = Table("stage", "outcome", "seconds", "found", title=title)
    for row in rows(document):
        table.add_row(*row)
    Console().print(table)
    return 0 if all(s["ok"] for s in document["stages"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
