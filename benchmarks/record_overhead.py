"""What recording costs: a step of GPT-2 bare and under each capture, and how much of the values joins the profile.

    python -m benchmarks.record_overhead [--json] [--layers N] [--rounds N] [--threads N]

The model is a randomly initialised Transformers GPT-2 (width 768, 12 layers unless told otherwise, eager attention, batch
8 x 128 tokens, no gradients). Each round runs one step of every variant, so that a busy machine slows all alike. Shown are
the fastest and the median step; ratios are taken within each round, and their median and range are shown. Processor time is that
of this process, all threads; it does not see the sensors' process, and other programs do not change it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel

from magneton.analysis.values.join import join_calls
from magneton.collectors import Workload, record
from magneton.collectors.sensors import sample
from magneton.collectors.torch.profile import TorchProfile
from magneton.collectors.torch.values_capture import capture_values
from magneton.flows.traces import normalize
from magneton.schemas.parquet import read_table

BATCH, TOKENS = 8, 128
# The goals the project has set itself, as ratios to the bare step.
GOALS = {"energy": 1.01, "profile": 1.05, "values": 3.0}
JOINED_GOAL = 0.98


class Nothing(TorchDispatchMode):
    """The least a dispatch hook can do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Profiled:
    """A step under the profiler; what happens to the trace afterwards is not part of the step."""

    def __init__(self, *, stacks: bool) -> None:
        self._profile = TorchProfile(stacks=stacks)

    def __enter__(self) -> None:
        self._profile.start()

    def __exit__(self, *_: object) -> None:
        self._profile.stop()


@dataclass
class Timed:
    """One variant: steps in seconds, and the processor time of each."""

    name: str
    wall_s: list[float]
    cpu_s: list[float]


@dataclass(frozen=True)
class Joined:
    """How much of a values capture was found in the profile of the same program."""

    operators: int
    joined: int
    share_of_operators: float
    share_of_time: float
    values_bytes: int


def program(layers: int) -> tuple[Any, tuple[Any, ...]]:
    """Return the step and its inputs."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers, attn_implementation="eager")).eval()
    return model, (torch.randint(0, model.config.vocab_size, (BATCH, TOKENS)),)


def measure(
    step: Callable[[], Any], inputs: tuple[Any, ...], parameters: list[Any], rounds: int, scratch: Path
) -> list[Timed]:
    """Run every variant once per round, after one round that does not count."""

    def values(*, look: bool) -> Callable[[], Any]:
        return lambda: capture_values(step, inputs=inputs, parameters=parameters, values=look)

    def sensors() -> AbstractContextManager[Any]:
        return sample(scratch / f"energy-{time.monotonic_ns()}")

    variants: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Callable[[], Any]]] = {
        "bare": (nullcontext, step),
        "energy": (sensors, step),
        "profile": (lambda: Profiled(stacks=False), step),
        "profile with stacks": (lambda: Profiled(stacks=True), step),
        "dispatch hook alone": (Nothing, step),
        "values, tensors not looked at": (nullcontext, values(look=False)),
        "values": (nullcontext, values(look=True)),
    }
    found = {name: Timed(name, [], []) for name in variants}
    for number in range(rounds + 1):
        for name, (context, run) in variants.items():
            with context():
                wall, cpu = time.perf_counter(), time.process_time()
                run()
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if number:
                found[name].wall_s.append(wall)
                found[name].cpu_s.append(cpu)
    return list(found.values())


def join(model: Any, inputs: tuple[Any, ...], scratch: Path) -> Joined:
    """Record both captures and join them."""
    with record(
        scratch / "r", captures=("profile", "values"), stacks=False, workload=Workload(steps=1, warmup_steps=1)
    ) as rec:
        rec.run(model, inputs, second_inputs=None)
    size = (scratch / "r" / "raw" / "values" / "rank0" / "0" / "tensors.parquet").stat().st_size
    normalize([scratch / "r"], scratch / "n")
    columns = ["op_id", "parent_id", "name", "input_dims", "flags", "capture", "step_id", "ts_ns", "dur_ns"]
    ops = read_table(scratch / "n" / "tables" / "ops.parquet", "ops", columns=columns).to_pylist()
    values = [op for op in ops if op["capture"] == "values" and "assemble" not in (op["flags"] or "").split()]
    profile = sorted(
        (op for op in ops if op["capture"] == "profile" and op["step_id"] is not None),
        key=lambda op: (op["ts_ns"], op["op_id"]),
    )
    joined = join_calls(values, profile)
    rows = {op["op_id"]: op for op in profile}
    own = {op["op_id"]: op["dur_ns"] for op in profile}
    for op in profile:
        if op["parent_id"] in own:
            own[op["parent_id"]] -= op["dur_ns"]
    total = covered = 0
    for number, time_ns in own.items():
        at: int | None = number
        while at is not None and at in rows and at not in joined:
            at = rows[at]["parent_id"]
        total += time_ns
        covered += time_ns if at in joined else 0
    return Joined(len(values), len(joined), len(joined) / len(values), covered / total, size)


def ratios(bare: Timed, other: Timed) -> tuple[list[float], list[float]]:
    """Return the ratios of wall time and of processor time within rounds, smallest first."""
    walls = [b / a for a, b in zip(bare.wall_s, other.wall_s, strict=True)]
    cpus = [b / a for a, b in zip(bare.cpu_s, other.cpu_s, strict=True)]
    return sorted(walls), sorted(cpus)


def spread(found: list[float]) -> str:
    """Return the median of ratios, and between what they lie."""
    return f"{statistics.median(found):.3f} ({found[0]:.2f} to {found[-1]:.2f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--layers", type=int, default=12, help="layers of the model")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch (0: as it likes)")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    model, inputs = program(options.layers)
    parameters = [*model.parameters(), *model.buffers()]
    with torch.no_grad(), tempfile.TemporaryDirectory(prefix="magneton-") as scratch:
        timed = measure(lambda: model(*inputs), inputs, parameters, options.rounds, Path(scratch))
        joined = join(model, inputs, Path(scratch))
    bare = timed[0]
    lines = [(t, *ratios(bare, t), GOALS.get(t.name)) for t in timed]
    if options.json:
        document = {
            "layers": options.layers,
            "threads": torch.get_num_threads(),
            "variants": [asdict(t) | {"wall_ratios": w, "cpu_ratios": c, "goal": g} for t, w, c, g in lines],
            "joined": asdict(joined) | {"goal": JOINED_GOAL},
        }
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return
    table = Table(title=f"GPT-2, {options.layers} layers, {BATCH} x {TOKENS} tokens, {torch.get_num_threads()} threads")
    for column in ("", "fastest s", "median s", "of bare", "processor s", "of bare", "goal"):
        table.add_column(column, justify="left" if not column else "right")
    for t, wall, cpu, goal in lines:
        table.add_row(
            t.name,
            f"{min(t.wall_s):.3f}",
            f"{statistics.median(t.wall_s):.3f}",
            spread(wall),
            f"{statistics.median(t.cpu_s):.3f}",
            spread(cpu),
            "" if goal is None else f"{goal:.2f}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"joined: {joined.joined} of {joined.operators} operators ({joined.share_of_operators:.1%}, goal "
        f"{JOINED_GOAL:.0%}), {joined.share_of_time:.1%} of operator time; value table {joined.values_bytes:,} bytes"
    )


if __name__ == "__main__":
    main()
