"""Write down which operator call of the H100 trace computes what which call of the MI300X trace computes (Qwen1.5-0.5B).

Standard library only, and nothing of Magneton: the labels judge its matcher, so they must not rest on it. What decides
is the table of the architecture below, written by hand from the Qwen2 model; the traces are only read to look up the
calls that fill it. A module call whose operators are not exactly those of the table is an error, never a guess.

Usage: ``python tests/support/labels/make_qwen_labels.py A.json.gz B.json.gz OUT.json``
"""

from __future__ import annotations

import bisect
import gzip
import json
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

N_LAYERS = 24

# One entry per computation, in the order in which the model's source performs it: what it computes, then the operators
# that may hold its kernels. More than one name means that implementations put helper kernels of their own in there.
Role = tuple[str, frozenset[str]]


def _role(name: str, *ops: str) -> Role:
    return name, frozenset(f"aten::{op}" for op in ops)


RMS_NORM = (
    _role("to float32", "copy_"),
    _role("square", "pow"),
    _role("mean of squares", "mean"),
    _role("add epsilon", "add"),
    _role("rsqrt", "rsqrt"),
    _role("scale by rsqrt", "mul"),
    _role("back to bfloat16", "copy_"),
    _role("multiply by weight", "mul"),
)
LINEAR = (_role("", "mm"),)
LINEAR_WITH_BIAS = (_role("", "addmm"),)
ROPE = (
    _role("x * cos", "mul"),
    _role("rotate half: negate", "neg"),
    _role("rotate half: concatenate", "cat"),
    _role("rotated * sin", "mul"),
    _role("add", "add"),
)
ROPE_QK = tuple((f"rotary {side} / {name}", ops) for side in ("q", "k") for name, ops in ROPE)
ATTENTION = (
    *ROPE_QK,
    _role("q contiguous", "copy_"),
    _role("k contiguous", "copy_"),
    _role("v contiguous", "copy_"),
    # ROCm's implementation zeroes a counter of its own inside the operator; CUDA's does not.
    _role("scaled dot product attention", "_flash_attention_forward", "fill_"),
    _role("output contiguous", "copy_"),
)
ROTARY_TABLES = (
    _role("positions to float32", "copy_"),
    _role("frequencies * positions", "bmm"),
    _role("concatenate", "cat"),
    _role("cos", "cos"),
    _role("sin", "sin"),
    _role("scale cos", "mul"),
    _role("scale sin", "mul"),
    _role("cos to bfloat16", "copy_"),
    _role("sin to bfloat16", "copy_"),
)
MODEL = (
    _role("cache positions", "arange"),
    _role("attention mask == 1", "eq"),
    _role("attention mask all ones", "all"),
)


def _module(table: dict[str, tuple[str, Sequence[Role]]], module: str, label: str, roles: Sequence[Role]) -> None:
    table[module] = (label, roles)


def architecture() -> dict[str, tuple[str, Sequence[Role]]]:
    """Return, per module instance as the profiler numbers it (order of first call), its label and its computations."""
    table: dict[str, tuple[str, Sequence[Role]]] = {}
    _module(table, "Qwen2Model_0", "model", MODEL)
    _module(table, "Embedding_0", "embedding", (_role("", "index_select"),))
    _module(table, "Qwen2RotaryEmbedding_0", "rotary tables", ROTARY_TABLES)
    for n in range(N_LAYERS):
        layer = f"layer {n}"
        residuals = (_role("attention residual", "add"), _role("mlp residual", "add"))
        _module(table, f"Qwen2DecoderLayer_{n}", layer, residuals)
        _module(table, f"Qwen2RMSNorm_{2 * n}", f"{layer} / input norm", RMS_NORM)
        _module(table, f"Qwen2Attention_{n}", f"{layer} / attention", ATTENTION)
        for k, projection in enumerate(("q_proj", "k_proj", "v_proj")):
            _module(table, f"Linear_{7 * n + k}", f"{layer} / attention / {projection}", LINEAR_WITH_BIAS)
        _module(table, f"Linear_{7 * n + 3}", f"{layer} / attention / o_proj", LINEAR)
        _module(table, f"Qwen2RMSNorm_{2 * n + 1}", f"{layer} / post-attention norm", RMS_NORM)
        _module(table, f"Linear_{7 * n + 4}", f"{layer} / mlp / gate_proj", LINEAR)
        _module(table, f"SiLU_{n}", f"{layer} / mlp / silu", (_role("", "silu"),))
        _module(table, f"Linear_{7 * n + 5}", f"{layer} / mlp / up_proj", LINEAR)
        _module(table, f"Qwen2MLP_{n}", f"{layer} / mlp", (_role("gate * up", "mul"),))
        _module(table, f"Linear_{7 * n + 6}", f"{layer} / mlp / down_proj", LINEAR)
    _module(table, f"Qwen2RMSNorm_{2 * N_LAYERS}", "final norm", RMS_NORM)
    return table


class Call(NamedTuple):
    """One operator call that launched kernels: its module instance, name, start (us) and kernel time (us)."""

    module: str
    op: str
    ts: Decimal
    kernel_us: Decimal


class _Innermost:
    """Finds the innermost slice around an instant, among slices that nest."""

    def __init__(self, slices: list[dict[str, Any]]) -> None:
        self.slices = sorted(slices, key=lambda e: (e["ts"], -e["dur"]))
        self.starts = [e["ts"] for e in self.slices]
        self.parents: list[int] = []
        stack: list[int] = []
        for i, e in enumerate(self.slices):
            while stack and self.slices[stack[-1]]["ts"] + self.slices[stack[-1]]["dur"] < e["ts"] + e["dur"]:
                stack.pop()
            self.parents.append(stack[-1] if stack else -1)
            stack.append(i)

    def at(self, ts: Decimal) -> dict[str, Any] | None:
        i = bisect.bisect_right(self.starts, ts) - 1
        while i >= 0 and self.slices[i]["ts"] + self.slices[i]["dur"] < ts:
            i = self.parents[i]
        return self.slices[i] if i >= 0 else None


def read_calls(path: Path) -> list[Call]:
    """Return the operator calls of a trace that launched kernels, in time order.

    Method of the shared FACTS: kernel -> launch with the same correlation -> innermost ``cpu_op`` (and innermost
    ``nn.Module`` frame) around the launch on its thread. Kernels whose launch lies before the recording are left out.
    """
    with gzip.open(path, "rb") as stream:
        events = [e for e in json.load(stream, parse_float=Decimal)["traceEvents"] if e.get("ph") == "X"]
    launches = {
        e["args"]["correlation"]: e
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {})
    }
    thread = {(e["pid"], e["tid"]) for e in events if e.get("cat") == "cpu_op"}
    if len(thread) != 1:
        raise ValueError(f"{path}: operators on {len(thread)} threads, 1 expected")
    ops = _Innermost([e for e in events if e.get("cat") == "cpu_op"])
    modules = _Innermost([e for e in events if e["name"].startswith("nn.Module: ")])
    calls: dict[tuple[str, Decimal], Call] = {}
    for kernel in (e for e in events if e.get("cat") == "kernel"):
        launch = launches.get(kernel["args"]["correlation"])
        if launch is None:
            continue
        op, module = ops.at(launch["ts"]), modules.at(launch["ts"])
        if op is None or module is None:
            raise ValueError(f"{path}: launch at {launch['ts']} outside of operators or modules")
        key = (op["name"], op["ts"])
        name = module["name"].removeprefix("nn.Module: ")
        before = calls[key].kernel_us if key in calls else Decimal(0)
        calls[key] = Call(name, op["name"], op["ts"], before + kernel["dur"])
    return sorted(calls.values(), key=lambda c: c.ts)


def fill(calls: list[Call]) -> dict[str, list[Call]]:
    """Return the calls of one trace under the label of the computation they perform.

    Raises:
        ValueError: the operators of a module call are not those of the architecture.
    """
    by_module: dict[str, list[Call]] = {}
    for call in calls:
        by_module.setdefault(call.module, []).append(call)
    table = architecture()
    if set(by_module) != set(table):
        raise ValueError(f"modules differ from the architecture: {sorted(set(by_module) ^ set(table))}")
    filled: dict[str, list[Call]] = {}
    for module, (label, roles) in table.items():
        rest = by_module[module]
        for role, ops in roles:
            taken: list[Call] = []
            while rest and rest[0].op in ops and rest[0].op not in {c.op for c in taken}:
                taken.append(rest[0])
                rest = rest[1:]
            if not taken:
                raise ValueError(f"{module}: {role or label} expected, {rest[0].op if rest else 'nothing'} found")
            filled[f"{label} / {role}" if role else label] = taken
        if rest:
            raise ValueError(f"{module}: {rest[0].op} is not part of the architecture")
    return filled


def derive(path_a: Path, path_b: Path) -> list[dict[str, Any]]:
    """Return the labels of a pair of traces, in the order of side A's execution."""
    a, b = fill(read_calls(path_a)), fill(read_calls(path_b))

    def side(calls: list[Call]) -> list[dict[str, str]]:
        return [{"op": c.op, "ts_us": str(c.ts)} for c in calls]

    names = sorted(a, key=lambda name: a[name][0].ts)
    return [{"name": name, "a": side(a[name]), "b": side(b[name])} for name in names]


def to_text(labels: list[dict[str, Any]]) -> str:
    """Return the labels as JSON, one label a line, so that a change shows as one line."""
    return "[\n" + ",\n".join(json.dumps(label) for label in labels) + "\n]\n"


if __name__ == "__main__":
    source_a, source_b, target = (Path(argument) for argument in sys.argv[1:])
    target.write_text(to_text(derive(source_a, source_b)))
