"""How well the matcher aligns labelled pairs of programs, beside the published algorithm and itself without its parts.

Usage, from the root of the project with ``pip install 'magneton[examples]'``::

    python -m benchmarks.match_quality
    python -m benchmarks.match_quality --pairs package.module:PAIRS --tolerance 1e-4 --json

``PAIRS`` is a dict ``{name: (factory_a, factory_b)}`` in any importable module. A factory takes nothing and returns
``(module, inputs, labels)``: what to run, its arguments, and ``labels`` from paths of modules to the canonical names of what
they return. ``benchmarks.matching.marks.mark(name, tensor)`` names tensors inside modules. A callable may stand for the module (a
training step); modules it holds are found. A pair whose sides share no name is a negative control.

Exit code 1 if the matcher misses what it must reach on a pair (F1 below 0.99, a wrong pair, a region that is too coarse).
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.matching.capture import capture
from benchmarks.matching.methods import DEFAULT_TOLERANCE, Result, apply, methods
from benchmarks.matching.metric import Truth, as_json
from benchmarks.matching.programs import Factory

DEFAULT_PAIRS = "benchmarks.matching.pairs:PAIRS"
TOLERANCES = (1e-5, DEFAULT_TOLERANCE, 1e-3, 2e-2)
WANTED_F1, WANTED_COVERAGE, WANTED_MEDIAN = 0.99, 0.95, 4

OURS = "magneton"


def load_pairs(name: str) -> dict[str, tuple[Factory, Factory]]:
    """Import ``package.module:NAME``.

    Raises:
        SystemExit: with the reason, if there is no such thing.
    """
    module, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute or "PAIRS")
    except (ImportError, AttributeError) as error:
        raise SystemExit(f"{name}: {error}; give --pairs as package.module:NAME, importable from here") from error
    if not isinstance(found, dict):
        raise SystemExit(f"{name}: is no dict of pairs")
    return found


def measure(name: str, pair: tuple[Factory, Factory], tolerances: Sequence[float], everything: bool) -> list[Result]:
    """Capture both sides once and match them in every way asked for."""
    a, b = (capture(factory) for factory in pair)
    truth = Truth(a.side, b.side)
    return [apply(name, a, b, truth, method) for method in methods(tolerances, everything)]


def failures(result: Result) -> list[str]:
    """What a row of the matcher falls short of."""
    score, found = result.score, []
    if score.f1 < WANTED_F1:
        found.append(f"F1 {score.f1:.3f}")
    if score.wrong:
        found.append(f"{len(score.wrong)} wrong")
    if score.missing:
        found.append(f"{len(score.missing)} missing")
    if score.coarse:
        found.append(f"{len(score.coarse)} coarse")
    if not score.control and min(score.coverage) < WANTED_COVERAGE:
        found.append(f"coverage {min(score.coverage):.0%}")
    return found


COLUMNS = (
    "pair",
    "method",
    "tolerance",
    "ops",
    "regions",
    "mean",
    "median",
    "largest",
    "share",
    "labels",
    "found",
    "wrong",
    "missing",
    "F1",
    "coverage",
    "irreducible",
    "ms",
    "kB",
)


def cells(result: Result) -> list[str]:
    """A row of the table."""
    score = result.score
    return [
        result.pair,
        result.method,
        f"{result.tolerance:g}",
        f"{score.ops[0]}/{score.ops[1]}",
        str(score.regions),
        f"{score.mean_region:.1f}",
        "-" if score.median_region is None else f"{score.median_region:g}",
        str(score.largest_region),
        f"{score.largest_share:.0%}",
        "control" if score.control else str(score.labels),
        str(len(score.found)),
        str(len(score.wrong) + score.beyond_inputs),
        str(len(score.missing)),
        f"{score.f1:.3f}",
        f"{min(score.coverage):.0%}",
        str(len(score.irreducible)),
        f"{1e3 * result.seconds:.0f}",
        f"{result.nbytes / 1e3:.0f}",
    ]


def totals(results: Iterable[Result]) -> list[dict[str, Any]]:
    """One row per method and tolerance over all pairs."""
    groups: dict[tuple[str, float], list[Result]] = {}
    for result in results:
        groups.setdefault((result.method, result.tolerance), []).append(result)
    rows = []
    for (method, tolerance), group in groups.items():
        scores = [r.score for r in group]
        found, wrong, missing = (sum(len(getattr(s, field)) for s in scores) for field in ("found", "wrong", "missing"))
        several = [n for s in scores for n in s.several]
        # A control matches nothing: what it does lies in no paired region, and need not.
        related = [s for s in scores if not s.control]
        rows.append(
            {
                "pair": f"all {len(group)}",
                "method": method,
                "tolerance": tolerance,
                "ops_a": sum(s.ops[0] for s in scores),
                "ops_b": sum(s.ops[1] for s in scores),
                "regions": sum(s.regions for s in scores),
                "mean_region_ops": statistics.fmean(s.mean_region for s in scores),
                "median_region_ops": statistics.median(several) if several else None,
                "largest_region_ops": max((s.largest_region for s in related), default=None),
                "largest_share": max((s.largest_share for s in related), default=None),
                "labels": sum(s.labels for s in scores),
                "found": found,
                "wrong": wrong,
                "missing": missing,
                "f1": 2 * found / (2 * found + wrong + missing) if found + wrong + missing else 1.0,
                "least_f1": min(s.f1 for s in scores),
                "coverage": min((min(s.coverage) for s in related), default=None),
                "coarse": sum(len(s.coarse) for s in scores),
                "irreducible": sum(len(s.irreducible) for s in scores),
                "controls_failed": sum(s.control and s.f1 < 1 for s in scores),
                "seconds": sum(r.seconds for r in group),
                "bytes": sum(r.nbytes for r in group),
            }
        )
    return rows


def _or_dash(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)


def total_cells(row: dict[str, Any]) -> list[str]:
    """A row of totals as cells of the same table."""
    return [
        row["pair"],
        row["method"],
        f"{row['tolerance']:g}",
        f"{row['ops_a']}/{row['ops_b']}",
        str(row["regions"]),
        f"{row['mean_region_ops']:.1f}",
        "-" if row["median_region_ops"] is None else f"{row['median_region_ops']:g}",
        _or_dash(row["largest_region_ops"], "d"),
        _or_dash(row["largest_share"], ".0%"),
        str(row["labels"]),
        str(row["found"]),
        str(row["wrong"]),
        str(row["missing"]),
        f"{row['f1']:.3f}",
        _or_dash(row["coverage"], ".0%"),
        str(row["irreducible"]),
        f"{1e3 * row['seconds']:.0f}",
        f"{row['bytes'] / 1e3:.0f}",
    ]


def print_table(console: Console, results: list[Result], every_row: bool) -> None:
    """Print the rows of the matcher (or all), the totals of every method, and what falls short."""
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for column in table.columns:
        column.no_wrap = True
    for result in results:
        if every_row or result.method == OURS:
            table.add_row(*cells(result))
    table.add_section()
    for row in totals(results):
        table.add_row(*total_cells(row))
    console.print(table)
    for result in results:
        short = failures(result) if result.method == OURS else []
        if short:
            console.print(f"short of the goal: {result.pair} at {result.tolerance:g}: {', '.join(short)}", markup=False)
            for kind in ("wrong", "missing", "coarse"):
                for text in getattr(result.score, kind)[:8]:
                    console.print(f"    {kind}: {text}", markup=False)
    listed = {(r.pair, text.split(": ", 1)[1]) for r in results if r.method == OURS for text in r.score.irreducible}
    for pair, text in sorted(listed):
        console.print(f"irreducible (nothing inside agrees): {pair}: {text}", markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pairs", default=DEFAULT_PAIRS, help="package.module:NAME of a dict of pairs")
    parser.add_argument("--only", default="", help="run the pairs whose name contains this")
    parser.add_argument("--tolerance", type=float, nargs="+", default=TOLERANCES, help="of values in single precision")
    parser.add_argument("--plain", action="store_true", help="the matcher alone: no ablations, no published algorithm")
    parser.add_argument("--every-row", action="store_true", help="print ablations and baselines per pair too")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", category=UserWarning)
    torch.set_num_threads(1)
    console, progress = Console(width=220, soft_wrap=True), Console(stderr=True)
    pairs = {name: pair for name, pair in load_pairs(options.pairs).items() if options.only in name}
    results: list[Result] = []
    errors: dict[str, str] = {}
    start = time.perf_counter()
    for name in track(pairs, description="matching", console=progress, transient=True):
        try:
            results += measure(name, pairs[name], options.tolerance, not options.plain)
        except Exception as error:
            # A program of somebody else's may fail in any way: the other pairs are still worth measuring.
            errors[name] = f"{type(error).__name__}: {error}"
    if options.json:
        rows = [
            {"pair": r.pair, "method": r.method, "tolerance": r.tolerance, **as_json(r.score)}
            | {"seconds": r.seconds, "bytes": r.nbytes}
            for r in results
        ]
        document = {"rows": rows, "totals": totals(results), "errors": errors, "seconds": time.perf_counter() - start}
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        print_table(console, results, options.every_row)
        for name, reason in errors.items():
            console.print(f"not measured: {name}: {reason}", markup=False)
        console.print(f"{len(pairs)} pairs in {time.perf_counter() - start:.0f} s")
    return int(bool(errors) or any(failures(r) for r in results if r.method == OURS))


if __name__ == "__main__":
    sys.exit(main())
