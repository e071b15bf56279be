"""Run one side of a pair: its values captured, its labels resolved, what tensors really held, how long operators took."""

from __future__ import annotations

import io
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.matching.flow import Flow, flow_of
from benchmarks.matching.metric import Side
from benchmarks.matching.programs import Factory, Program, call, labelled, modules_of, second_inputs
from benchmarks.matching.raw_values import Array
from magneton.collectors.torch.values_capture import ValuesCapture, capture_values, current

Place = tuple[str, int, int | None]
TIMED_RUNS = 4
DETACH = "aten::detach"
T = TypeVar("T")


class Watched(TorchDispatchMode):  # type: ignore[misc]
    """Keeps a copy of every tensor that an operator reads or writes, with its place among the arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, dict[Place, Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        places: dict[Place, Tensor] = {}
        written: list[Tensor] = []
        for position, argument in enumerate(func._schema.arguments):
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            _keep(places, "input", position, value)
            if argument.alias_info is not None and argument.alias_info.is_write:
                written += [t for t in tree_leaves(value) if isinstance(t, Tensor)]
        out = func(*args, **kwargs)
        results = out if isinstance(out, (tuple, list)) else (out,)
        for position, value in enumerate(results):
            _keep(places, "output", position, value)
        returned = {id(t) for t in tree_leaves(out)}
        # What is written in place and not returned follows what is returned.
        for position, tensor in enumerate(
            [t for t in written if id(t) not in returned], len(results) if out is not None else 0
        ):
            _keep(places, "output", position, tensor)
        self.calls.append((func._schema.name, places))
        return out


def _keep(places: dict[Place, Tensor], direction: str, position: int, value: Any) -> None:
    if isinstance(value, Tensor):
        places[direction, position, None] = _copy(value)
    elif isinstance(value, (list, tuple)):
        for element, item in enumerate(value):
            if isinstance(item, Tensor):
                places[direction, position, element] = _copy(item)


def _copy(x: Tensor) -> Tensor:
    plain = x.layout is torch.strided and not x.is_quantized and x.dtype is not torch.bool
    return x.detach().clone() if plain else x


class Timed(TorchDispatchMode):  # type: ignore[misc]
    """Times every operator call and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, float]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = time.perf_counter()
        out = func(*args, **(kwargs or {}))
        self.calls.append((func._schema.name, time.perf_counter() - start))
        return out


@dataclass
class Captured:
    """Tables of a side as a recorder leaves them, and what the benchmark knows of it besides."""

    ops: pa.Table
    tensors: pa.Table
    uses: pa.Table
    second: pa.Table | None
    side: Side
    seconds: float

    @property
    def flow(self) -> Flow:
        """The dataflow as the metric sees it."""
        return self.side.flow

    @property
    def nbytes(self) -> int:
        """Size of the value table as a file."""
        return parquet_bytes(self.tensors)


def parquet_bytes(table: pa.Table) -> int:
    """Size of a table as a Parquet file, compressed as recordings are."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.tell()


def capture(factory: Factory) -> Captured:
    """Capture one side: on its input, on a second one, and by what the benchmark finds out itself.

    Every run is of a program built anew, so that nothing a step changes is carried over.

    Raises:
        RuntimeError: if the operators of two runs of the program differ.
    """
    program, inputs, labels = factory()
    heard: dict[str, list[int]] = defaultdict(list)

    def hear(name: str, tensor: Any) -> None:
        recorder = current()
        number = None if recorder is None else recorder.tensor_id(tensor)
        if number is not None and number not in heard[name]:
            heard[name].append(number)

    def run() -> Any:
        with labelled(program, labels, hear):
            return call(program, inputs)

    start = time.perf_counter()
    first = _recorded(program, inputs, run)
    seconds = time.perf_counter() - start
    flow = flow_of(first.ops, first.tensors, first.uses)
    known = [_known(factory, False, flow, first.uses)]
    second = _second(factory, first)
    if second is not None:
        known.append(_known(factory, True, flow, first.uses))
    side = Side(flow, dict(heard), known, _times(factory, flow))
    return Captured(first.ops, first.tensors, first.uses, second, side, seconds)


def _recorded(program: Program, inputs: Sequence[Any], run: Callable[[], Any]) -> ValuesCapture:
    captured = capture_values(run, inputs=inputs, parameters=tensors_of(program))
    if captured.error is not None:
        raise captured.error
    return captured


def _second(factory: Factory, first: ValuesCapture) -> pa.Table | None:
    """Values of the same program on another input, or None if it does other things there."""
    program, inputs, _ = factory()
    inputs = second_inputs(inputs)
    again = _recorded(program, inputs, lambda: call(program, inputs))
    same = again.ops.column("name").equals(first.ops.column("name")) and len(again.tensors) == len(first.tensors)
    return again.tensors if same else None


def _known(factory: Factory, second: bool, flow: Flow, uses: pa.Table) -> dict[int, list[Array]]:
    """What every tensor held, in every arrangement in which an operator read or wrote it."""
    program, inputs, _ = factory()
    inputs = second_inputs(inputs) if second else inputs
    with Watched() as watched:
        call(program, inputs)
    numbers: dict[int, list[tuple[Place, int]]] = defaultdict(list)
    for use in uses.select(["op_id", "direction", "position", "element", "tensor_id"]).to_pylist():
        place = (use["direction"], use["position"], use["element"])
        numbers[use["op_id"]].append((place, use["tensor_id"]))
    found: dict[int, list[Array]] = defaultdict(list)
    seen: dict[int, set[object]] = defaultdict(set)
    for op_id, places in zip(_ordinary(flow), _aligned(flow, watched.calls, {}), strict=True):
        for place, number in numbers[op_id]:
            tensor = places.get(place)
            if (
                tensor is None
                or tensor.numel() == 0
                or tensor.dtype is torch.bool
                or tensor.layout is not torch.strided
                or tensor.is_quantized
            ):
                continue
            geometry = tuple((n, s) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1)
            if geometry not in seen[number]:
                seen[number].add(geometry)
                found[number].append(_array(tensor))
    return dict(found)


def _array(x: Tensor) -> Array:
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    return np.ascontiguousarray(x.to(torch.float64).numpy())


def _ordinary(flow: Flow) -> list[int]:
    return [op.op_id for op in flow.ops.values() if "assemble" not in op.flags]


def _aligned(flow: Flow, calls: Sequence[tuple[str, T]], nothing: T) -> list[T]:
    """What another run kept of each operator, in the order of this one's.

    The recorder leaves out what is no operator (marks of the profiler), and PyTorch detaches the result of some factories
    if somebody holds it: such calls may be in one run only.
    """
    found = []
    at = 0
    for op_id in _ordinary(flow):
        name = flow.ops[op_id].name
        ahead = at
        while ahead < len(calls) and calls[ahead][0] != name and _may_be_missing(calls[ahead][0]):
            ahead += 1
        if ahead < len(calls) and calls[ahead][0] == name:
            found.append(calls[ahead][1])
            at = ahead + 1
        elif name == DETACH:
            found.append(nothing)
        else:
            other = calls[ahead][0] if ahead < len(calls) else "the end"
            raise RuntimeError(f"two runs of the program differ: {name} (operator {op_id}), then {other}")
    return found


def _may_be_missing(name: str) -> bool:
    return name == DETACH or not name.startswith("aten::")


def _times(factory: Factory, flow: Flow) -> dict[int, float]:
    """Seconds of each operator: the least of a few plain runs.

    A module runs once before; a step is built anew for each run, since a second step may do other things than the first.
    """
    program, inputs, _ = factory()
    steady = isinstance(program, nn.Module)
    if steady:
        call(program, inputs)
    best: list[float] | None = None
    for _ in range(TIMED_RUNS):
        if not steady:
            program, inputs, _ = factory()
        with Timed() as timed:
            call(program, inputs)
        taken = _aligned(flow, timed.calls, 0.0)
        best = taken if best is None else [min(a, b) for a, b in zip(best, taken, strict=True)]
    return dict(zip(_ordinary(flow), best or [], strict=True))


def tensors_of(program: Program) -> list[Tensor]:
    """Parameters and buffers of a program, through the modules it holds."""
    found = {id(t): t for m in modules_of(program).values() for t in (*m.parameters(), *m.buffers())}
    return list(found.values())
