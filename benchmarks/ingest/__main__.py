"""How fast a trace becomes a recording, and in how much memory, next to tools that only read it.

    python -m benchmarks.ingest [FILE ...] [--copies N] [--events N] [--python NAME=PYTHON ...] [--json] [--only NAME ...]

A generated trace is measured, and each FILE beside it in the same run: ``--copies 5`` puts a real trace five times one after
the other. Every contender runs in a process of its own; times include its imports, peak memory is what the system says of the
process. CPU time is what to compare on a machine that others use. ``magneton`` reads, checks, nests, links and writes; the
others only bring the file into memory. The others are measured where they are installed, here or beside another interpreter
(``--python hta=/path/to/python``): HTA is the package ``HolisticTraceAnalysis``; TraceLens comes from AMD's repository (the
package ``tracelens`` of the registry is another program).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.ingest.copies import repeat
from benchmarks.ingest.kineto_trace import write

_GUNZIP = "import gzip; read = (gzip.open if p.endswith('.gz') else open); data = read(p, 'rb').read()"
CONTENDERS: dict[str, tuple[str, str, str]] = {
    # name: what it does, module it needs, program (sys.argv[1] is the trace, sys.argv[2] an empty directory)
    "magneton": (
        "read, nest, link, write",
        "magneton.transforms.normalize",
        "from pathlib import Path; from magneton.transforms.job import NormalizeOptions; from magneton.transforms.normalize import normalize;"
        "normalize([Path(p)], Path(sys.argv[2]) / 'run', NormalizeOptions(keep_raw=False))",
    ),
    "msgspec-raw": (
        "split into raw events",
        "msgspec",
        f"import msgspec; {_GUNZIP};"
        "T = msgspec.defstruct('T', [('traceEvents', list[msgspec.Raw])]); msgspec.json.decode(data, type=T)",
    ),
    "msgspec": ("decode to dicts", "msgspec", f"import msgspec; {_GUNZIP}; msgspec.json.decode(data)"),
    "orjson": ("decode to dicts", "orjson", f"import orjson; {_GUNZIP}; orjson.loads(data)"),
    "json": ("decode to dicts", "json", f"import json; {_GUNZIP}; json.loads(data)"),
    "hta": (
        "load into a data frame",
        "hta",
        "from hta.common.trace import Trace; Trace(trace_files={0: p}, trace_dir='').parse_traces(use_multiprocessing=False)",
    ),
    "tracelens": (
        "build its tree",
        "TraceLens",
        "from TraceLens import TreePerfAnalyzer; TreePerfAnalyzer.from_file(p)",
    ),
}


@dataclass(frozen=True)
class Result:
    """What one contender took; ``*_ratio`` is its CPU time or its memory over that of ``magneton``."""

    name: str
    what: str
    wall_s: float
    cpu_s: float
    peak_mb: float
    events_per_s: float
    cpu_ratio: float | None = None
    memory_ratio: float | None = None


def measure(name: str, trace: Path, events: int, python: str = sys.executable) -> Result | None:
    """Run one contender in a process of its own; None where it is not installed.

    Raises:
        RuntimeError: it failed.
    """
    what, module, program = CONTENDERS[name]
    if not _installed(python, module.partition(".")[0]):
        return None
    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        code = f"import sys; p = sys.argv[1]; {program}"
        child = subprocess.Popen(
            [python, "-c", code, str(trace), directory], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert child.stderr is not None
        complaint = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{name} failed: {complaint.decode(errors='replace')[-500:]}")
    return Result(
        name,
        what,
        round(wall, 3),
        round(usage.ru_utime + usage.ru_stime, 3),
        round(usage.ru_maxrss * 1024 / 1e6, 1),
        round(events / wall),
    )


def _installed(python: str, module: str) -> bool:
    # The folder is asked for by its exact name: some file systems take `tracelens` for `TraceLens`.
    code = (
        "import importlib.util, os, sys; s = importlib.util.find_spec(sys.argv[1]);"
        "places = list(s.submodule_search_locations or []) if s else [];"
        "sys.exit(s is None or any(sys.argv[1] not in os.listdir(os.path.dirname(p)) for p in places))"
    )
    return subprocess.run([python, "-c", code, module], check=False, capture_output=True).returncode == 0


def compared(found: list[Result]) -> list[Result]:
    """Return the results with their ratios to ``magneton``, where that was measured."""
    own = next((r for r in found if r.name == "magneton"), None)
    if own is None:
        return found
    return [
        replace(r, cpu_ratio=round(r.cpu_s / own.cpu_s, 2), memory_ratio=round(r.peak_mb / own.peak_mb, 2))
        for r in found
    ]


def count_events(trace: Path) -> int:
    """Return the number of events of a trace, from a recording made of it."""
    code = (
        "import sys; from pathlib import Path; from magneton.transforms.job import NormalizeOptions; from magneton.transforms.normalize import normalize;"
        "from magneton.schemas.tables.parquet import read_table; out = Path(sys.argv[2]) / 'run';"
        "normalize([Path(sys.argv[1])], out, NormalizeOptions(keep_raw=False));"
        "sys.stdout.write(str(read_table(out / 'tables/captures.parquet', 'captures')['n_raw'][0].as_py()))"
    )
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-c", code, str(trace), directory]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _inputs(options: argparse.Namespace, directory: Path) -> Iterator[tuple[str, Path, int]]:
    """Yield what each input is, where it lies, and how many events it has."""
    generated = directory / "generated.json"
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        events = pool.submit(write, generated, options.events).result()
    yield f"generated, {options.events:,} events asked for", generated, events
    generated.unlink()
    for file in options.files:
        trace = file
        if options.copies > 1:
            trace = directory / "copies.json"
            # In a process that ends: the system counts the memory of this one as that of the contenders it starts.
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                pool.submit(repeat, file, trace, options.copies).result()
        what = f"{file.name}, {options.copies} copies one after the other" if options.copies > 1 else file.name
        yield what, trace, count_events(trace)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and show the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingest", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="traces to read beside the generated one")
    parser.add_argument("--copies", type=int, default=1, help="how often each FILE is repeated")
    parser.add_argument("--events", type=int, default=1_000_000, help="size of the generated trace")
    parser.add_argument("--python", nargs="+", default=[], metavar="NAME=PYTHON", help="interpreter of a contender")
    parser.add_argument("--json", action="store_true", help="figures as JSON on stdout")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    options = parser.parse_args(arguments)
    pythons = dict(pair.split("=", 1) for pair in options.python)
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        for what, trace, events in _inputs(options, Path(directory)):
            tried = {name: measure(name, trace, events, pythons.get(name, sys.executable)) for name in options.only}
            found = compared([r for r in tried.values() if r is not None])
            size_mb = round(trace.stat().st_size / 1e6, 1)
            missing = [name for name, result in tried.items() if result is None]
            records.append({"input": what, "file_mb": size_mb, "events": events, "not_installed": missing})
            records[-1]["results"] = [asdict(r) for r in found]
            if not options.json:
                _show(records[-1], found)
    if options.json:
        sys.stdout.write(json.dumps(records, indent=2) + "\n")
    return 0


def _show(record: dict[str, Any], found: list[Result]) -> None:
    missing = ", ".join(record["not_installed"])
    table = Table(
        title=f"{record['input']}: {record['events']:,} events, {record['file_mb']:,.0f} MB",
        caption=f"not installed: {missing}" if missing else None,
    )
    headings = ("wall [s]", "cpu [s]", "peak memory [MB]", "events/s", "cpu ratio", "memory ratio")
    for heading in ("contender", "does", *headings):
        table.add_column(heading, justify="right" if heading in headings else "left")
    for r in found:
        ratios = ("" if v is None else f"{v:.2f}" for v in (r.cpu_ratio, r.memory_ratio))
        table.add_row(
            r.name, r.what, f"{r.wall_s:.2f}", f"{r.cpu_s:.2f}", f"{r.peak_mb:,.0f}", f"{r.events_per_s:,}", *ratios
        )
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
