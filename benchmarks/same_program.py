"""How many findings a diff shows between two recordings of one and the same program: there should be none.

Usage, from the root of the project with ``pip install 'magneton[torch]'``::

    python -m benchmarks.same_program
    python -m benchmarks.same_program --pairs 20 --keep out/same --json

Each recording is made in a process of its own by torch.profiler, with default options in every second pair and with shapes in the
others. The two recordings of a pair are made one after the other. Run it on a machine that is busy with something else: what is
measured is how well a diff stands what other programs do to the times.

Exit code 1 if there are more findings in all than one in twenty pairs would give.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from magneton.analysis.diff.settings import DiffSettings
from magneton.flows.pairs import compare

STEPS, WARMUP = 8, 2
MOST_FINDINGS_PER_PAIR = 0.05

Step = Callable[[], object]


def transformer() -> Step:
    """Two encoder layers, inference, ``x``: ``(4, 64, 256)``."""
    layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(4, 64, 256)

    def step() -> object:
        with torch.no_grad():
            return model(x)

    return step


def training() -> Step:
    """One optimiser step of a perceptron with dropout, ``x``: ``(64, 128)``."""
    model = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Dropout(), nn.Linear(512, 128), nn.LayerNorm(128))
    optimizer, x = torch.optim.AdamW(model.parameters()), torch.randn(64, 128)

    def step() -> object:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def convolutions() -> Step:
    """Three convolutions with batch norm, training mode, ``x``: ``(4, 3, 32, 32)``."""
    model = nn.Sequential(
        *(part for a, b in ((3, 16), (16, 32), (32, 32)) for part in (nn.Conv2d(a, b, 3), nn.BatchNorm2d(b), nn.ReLU()))
    )
    x = torch.randn(4, 3, 32, 32)
    return lambda: model(x).mean().backward()


def sampling() -> Step:
    """Logits, sorting and drawing as at the end of a decoding step, ``logits``: ``(8, 8192)``."""
    weight, x = torch.randn(256, 8192), torch.randn(8, 256)

    def step() -> object:
        ordered, _ = torch.sort(x @ weight, dim=-1, descending=True)
        return torch.multinomial(torch.softmax(ordered[:, :50], dim=-1), 1).tolist()

    return step


PROGRAMS = (transformer, training, convolutions, sampling)


def record(program: int, shapes: bool, path: Path) -> None:
    """Record a program and write the trace."""
    torch.manual_seed(0)
    step = PROGRAMS[program]()
    plan = schedule(wait=0, warmup=WARMUP, active=STEPS, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, record_shapes=shapes) as profiler:
        for _ in range(WARMUP + STEPS):
            step()
            profiler.step()
    profiler.export_chrome_trace(str(path))


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the pairs, compare them, and print the findings."""
    parser = argparse.ArgumentParser(description="Findings between two recordings of one program.")
    parser.add_argument("--pairs", type=int, default=100, help="pairs of recordings (default: %(default)s)")
    parser.add_argument("--keep", type=Path, help="directory for recordings and diffs (default: removed at the end)")
    parser.add_argument("--json", action="store_true", help="print a document")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        rows = [
            one(number, (given.keep or Path(temporary)) / f"pair-{number:03d}")
            for number in track(range(given.pairs), console=Console(stderr=True))
        ]
    found = sum(len(row["findings"]) for row in rows)
    load = os.getloadavg()
    if given.json:
        Console().print_json(json.dumps({"pairs": rows, "findings": found, "load": load}))
    else:
        table = Table("pair", "program", "work time B - A", "held back", "findings")
        for row in rows:
            if row["findings"] or given.pairs <= 20:
                table.add_row(*(str(row[name]) for name in ("pair", "program", "delta", "held_back", "findings")))
        Console().print(table)
        Console().print(f"{found} findings in {len(rows)} pairs; load of the machine (1, 5, 15 min) {load}")
    return int(found > MOST_FINDINGS_PER_PAIR * len(rows))


def one(number: int, directory: Path) -> dict[str, object]:
    """Record a pair and return what its diff says."""
    directory.mkdir(parents=True)
    program, shapes = number % len(PROGRAMS), (number // len(PROGRAMS)) % 2 == 1
    traces = []
    for side in "ab":
        traces.append(directory / f"{side}.json")
        child = multiprocessing.get_context("fork").Process(target=record, args=(program, shapes, traces[-1]))
        child.start()
        child.join()
        if child.exitcode:
            raise SystemExit(f"recording {PROGRAMS[program].__name__} ended with exit code {child.exitcode}")
    document = compare(traces[0], traces[1], directory / "diff", DiffSettings()).document
    groups = {group.group_id: group for group in document.groups}
    return {
        "pair": number,
        "program": PROGRAMS[program].__name__,
        "delta": f"{document.totals['median_ns'].delta_percent or 0.0:+.1f} %",
        "held_back": sum(note.code in ("steps_overlap", "equal_operators") for note in document.comparison.notes),
        "findings": [
            f"{groups[f.group_id].ops_a} | {groups[f.group_id].ops_b}: {f.delta_percent or 0.0:+.0f} %, {f.share_percent:.1f} % of all"
            for f in document.findings
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
