"""How fast a trace becomes a recording, and in how much memory, next to tools that only read it.

    python -m benchmarks.ingest [--events N | FILE] [--json] [--only NAME ...]

Every contender runs in a process of its own; wall time includes its imports, peak memory is what the system says of the
process. ``magneton`` reads, checks, nests, links and writes; the others only bring the file into memory. HTA (``pip install
traceinsight``) and orjson are measured where they are installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

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
        "from hta.trace_analysis import TraceAnalysis; TraceAnalysis(trace_files={0: p})",
    ),
}


@dataclass(frozen=True)
class Result:
    """What one contender took."""

    name: str
    what: str
    wall_s: float
    cpu_s: float
    peak_mb: float
    events_per_s: float


def measure(name: str, trace: Path, events: int) -> Result | None:
    """Run one contender in a process of its own; None where it is not installed.

    Raises:
        RuntimeError: it failed.
    """
    what, module, program = CONTENDERS[name]
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        return None
    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        code = f"import sys; p = sys.argv[1]; {program}"
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(trace), directory], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
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


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and show the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingest", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="trace to read (default: a generated one)")
    parser.add_argument("--events", type=int, default=1_000_000, help="size of the generated trace")
    parser.add_argument("--json", action="store_true", help="figures as JSON on stdout")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        trace, events = options.file, 0
        if trace is None:
            trace = Path(directory) / "trace.json"
            events = write(trace, options.events)
        else:
            events = count_events(trace)
        found = [r for name in options.only if (r := measure(name, trace, events)) is not None]
        size_mb = trace.stat().st_size / 1e6
    if options.json:
        record = {"file_mb": round(size_mb, 1), "events": events, "results": [asdict(r) for r in found]}
        sys.stdout.write(json.dumps(record, indent=2) + "\n")
        return 0
    table = Table(title=f"{events:,} events, {size_mb:,.0f} MB")
    for heading in ("contender", "does", "wall [s]", "cpu [s]", "peak memory [MB]", "events/s"):
        table.add_column(heading, justify="left" if heading in ("contender", "does") else "right")
    for r in found:
        table.add_row(r.name, r.what, f"{r.wall_s:.2f}", f"{r.cpu_s:.2f}", f"{r.peak_mb:,.0f}", f"{r.events_per_s:,}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
