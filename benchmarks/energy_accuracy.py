"""How right the energies are: on real recordings beside a meter, and on simulated sensors, with seeds and coverage.

    python -m benchmarks.energy_accuracy [--power DIR] [--traces DIR] [--seeds N] [--only NAME ...] [--json]

``--power`` is a folder with recordings in the form of GPU_Power_Benchmark. The part ``windows`` takes any of them, and reads the device
off the name of a recording's folder (``rtx3090_step``); the parts ``totals`` and ``replays`` need ``a100_square104ms``, ``a100_step``,
``rtx3090_step`` and ``rtx4090_step``. ``--traces`` a folder with kineto traces whose timelines carry simulated power. What is simulated says so, and
a goal that is missed is shown as missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.energy import cases, real, windows
from benchmarks.energy.bound import bound
from benchmarks.energy.simulate import SENSORS, Template
from magneton.analysis.energy.sensor_model.disaggregate import MAX_HALF_WIDTH

PARTS = ("windows", "totals", "replays", "passive", "controls", "tokens", "repeats", "significance")
# Timelines among the traces, where they are: small models, training, video.
ALL = ", all timelines"
TIMELINES = ("hta_control.json.gz", "timesformer_h100.json.gz", "timesformer_mi300.json.gz")


def trace_templates(folder: Path) -> dict[str, Callable[[np.random.Generator], Template]]:
    """Return the timelines found under a folder, one iteration each."""
    from magneton.schemas.tables.parquet import read_table
    from magneton.transforms.job import NormalizeOptions
    from magneton.transforms.normalize import normalize

    found: dict[str, Callable[[np.random.Generator], Template]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in TIMELINES:
            for path in sorted(folder.rglob(name))[:1]:
                out = Path(scratch) / name
                normalize([path], out, NormalizeOptions(keep_raw=False))
                kernels = read_table(out / "tables" / "kernels.parquet", "kernels")
                template = Template.from_kernels(kernels)
                found[name.split(".")[0]] = lambda rng, t=template: t  # type: ignore[misc]
    return found


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, dict):
        return "; ".join(f"{k} x{v}" for k, v in value.items())
    return str(value)


def show(console: Console, title: str, rows: Iterable[Any]) -> None:
    """Print rows (dataclasses) as a table."""
    records = [asdict(r) | ({"met": r.met} if hasattr(r, "met") else {}) for r in rows]
    if not records:
        return
    table = Table(title=title, title_justify="left")
    for name in records[0]:
        table.add_column(name.replace("_", " "), overflow="fold")
    for record in records:
        table.add_row(*(_cell(v) for v in record.values()))
    console.print(table)


def goals(results: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return every goal with what was reached; one that could not be measured is left out."""
    found: list[dict[str, Any]] = []

    def add(goal: str, reached: str, met: bool) -> None:
        found.append({"goal": goal, "reached": reached, "met": met})

    for row in [*results.get("totals", []), *results.get("replays", [])]:
        if row.met is not None:
            held = "-" if row.coverage is None else f"{row.coverage:.0f} %"
            add(
                f"{row.what}, {row.window_s:g} s: p90 <= {row.goal_p90:g} %, coverage >= 90 %",
                f"{row.p90:.2f} %, {held}",
                bool(row.met),
            )
    for what, coverage, worst in windows.overall(results.get("windows", [])):
        add(
            f"{what}: the 95 % intervals hold the meter in >= 95 % of windows, in the worst kind >= 90 %",
            f"{coverage:.1f} %, {worst:.1f} %",
            coverage >= 95 and worst >= 90,
        )
    for kind, least, most in (("V100 10 s", 60.0, 5.0), ("A100 60 s", 50.0, 3.0)):
        limit = 100 * MAX_HALF_WIDTH
        for row in [r for r in results.get("passive", []) if r.case == kind + ALL and r.within == limit and r.groups]:
            add(
                f"simulated {kind}, classes within {limit:g} %: at least {least:g} % of energy in classes told apart, "
                f"p90 <= {most:g} %, coverage 93-97 %",
                f"{row.single:.0f} %, {row.p90:.1f} %, {row.coverage:.1f} % of {row.groups} groups",
                row.single >= least and row.p90 <= most and 93 <= row.coverage <= 97,
            )
    for part, what in (
        ("controls", "all controls, in which nothing should be"),
        ("hard", "loops hardly longer than a reading"),
    ):
        if results.get(part) is not None:
            total = sum(r.groups for r in results[part])
            bad = sum(r.groups * (r.wrong or 0.0) / 100 for r in results[part])
            rate = 100 * bad / total if total else 0.0
            add(f"wrongly identified <= 1 %: {what}", f"{rate:.2f} % of {total} groups", rate <= 1)
    for row in results.get("tokens", []):
        add(f"J/token, {row.case}: coverage 93-97 %", f"{row.coverage:.1f} % of {row.runs}", 93 <= row.coverage <= 97)
    for row in results.get("repeats", []):
        add(f"in-place repeat, {row.case}: p90 <= 2.5 % at 10 s", f"{row.p90:.2f} %", row.p90 <= 2.5)
    for row in results.get("significance", []):
        if row.difference == 2.0 and row.runs_per_side == 10:
            add(f"2 % found with >= 95 % power, 10 runs, drift {row.drift:g} %", f"{row.welch:.1f} %", row.welch >= 95)
        if row.difference == 0.0:
            add(
                f"false positives <= 5 %, {row.runs_per_side} runs, drift {row.drift:g} %",
                f"{row.welch:.1f} %",
                row.welch <= 5.0,
            )
    return found


def identifications(settings: list[cases.Setting], seeds: range) -> Iterator[cases.Identification]:
    """Yield what was identified of each case, and of each sensor over all of its cases, by the usual and a looser rule."""
    for within in (MAX_HALF_WIDTH, cases.LOOSE):
        by_kind: dict[str, list[cases.Outcome]] = {}
        for setting in settings:
            outcomes = cases.identification(setting, seeds, within)
            by_kind.setdefault(setting.name.split(",")[0], []).extend(outcomes)
            yield cases.summary(setting.name, outcomes, within)
        for kind, outcomes in by_kind.items():
            yield cases.summary(kind + ALL, outcomes, within)


def measure(args: argparse.Namespace) -> dict[str, list[Any]]:
    """Run the parts that were asked for."""
    seeds = range(args.seed, args.seed + args.seeds)
    wanted = set(args.only or PARTS)
    results: dict[str, list[Any]] = {}
    if args.power is not None:
        if "windows" in wanted:
            results["windows"] = windows.coverage(args.power, windows=args.windows, seed=args.seed)
        if "totals" in wanted:
            results["totals"] = real.totals(args.power, seed=args.seed)
        if "replays" in wanted:
            results["replays"] = real.replays(args.power)
    if "passive" in wanted:
        templates = {"generated 160 ms": cases.make(0.16), "generated 465 ms": cases.make(0.465)}
        if args.traces is not None:
            templates |= trace_templates(args.traces)
        settings = [s for s in cases.passive(templates) if args.match in s.name]
        results["passive"] = list(identifications(settings, seeds))
        results["bounds"] = [bound(s, seeds, within) for within in (MAX_HALF_WIDTH, cases.LOOSE) for s in settings]
    if "controls" in wanted:
        for part, settings in (("controls", cases.controls()), ("hard", cases.hard())):
            results[part] = [cases.summary(s.name, cases.identification(s, seeds)) for s in settings]
    if "tokens" in wanted:
        results["tokens"] = cases.tokens(range(args.seed, args.seed + 10 * args.seeds))
    if "repeats" in wanted:
        kinds = [s for s in SENSORS.values() if s.poll_s < 1.0]
        results["repeats"] = [cases.repeats(s, range(args.seed, args.seed + 3 * args.seeds)) for s in kinds]
    if "significance" in wanted:
        results["significance"] = cases.significance(1000 * args.seeds, args.seed)
    return results


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.energy_accuracy", description=__doc__)
    parser.add_argument("--power", type=Path, help="folder of recordings beside a meter")
    parser.add_argument("--traces", type=Path, help="folder of traces to take timelines from")
    parser.add_argument("--seeds", type=int, default=10, help="runs per simulated case (some parts take more)")
    parser.add_argument("--match", default="", help="of the part `passive`, only cases whose name holds this")
    parser.add_argument(
        "--windows", type=int, default=200, help="windows per recording, length and kind (part `windows`)"
    )
    parser.add_argument("--seed", type=int, default=20260101, help="first seed")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="parts to run")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = measure(args)
    reached = goals(results)
    if args.json:
        document = {
            "seed": args.seed,
            "seeds": args.seeds,
            "simulated": sorted(set(results) - {"windows", "totals", "replays"}),
            "goals": reached,
            **{name: [asdict(r) for r in rows] for name, rows in results.items()},
        }
        json.dump(document, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return 0
    console = Console(width=180)
    for name, rows in results.items():
        kind = "real recordings" if name in ("windows", "totals", "replays") else "simulated"
        show(console, f"{name} ({kind}; errors in %, seed {args.seed}, {args.seeds} seeds)", rows)
    table = Table(title="goals", title_justify="left")
    for column in ("goal", "reached", "met"):
        table.add_column(column, overflow="fold")
    for row in reached:
        table.add_row(*(_cell(row[c]) for c in ("goal", "reached", "met")))
    console.print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
