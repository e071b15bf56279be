"""A dispatch-level hook that records each operator, the values it reads and defines, and where it was called."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from magneton.collectors.torch.call_stack import Frames, ModuleCall, ModuleStack
from magneton.collectors.torch.dataflow import OUTPUT, UNINITIALIZED, Dataflow, Value, coarsest
from magneton.collectors.torch.operators import Operator, describe, described, tensors_in
from magneton.collectors.torch.profile import import_torch
from magneton.schemas.kinds import OpFlag

torch: Any = import_torch()
TorchDispatchMode: Any = torch.utils._python_dispatch.TorchDispatchMode

ASSEMBLE = "magneton::_assemble"
_MAX_SEQUENCE = 1 << 62


@dataclass(slots=True)
class Edge:
    """One tensor that a call reads or defines: a row of ``uses`` in the making."""

    output: bool
    position: int
    element: int | None
    value: Value
    dims: tuple[int, ...] | None
    strides: tuple[int, ...] | None = None
    offset: int | None = None
    itemsize: int | None = None
    device: str | None = None

    @classmethod
    def of(cls, tensor: Any, value: Value, *, output: bool, position: int, element: int | None) -> Edge:
        """Return the edge of a tensor, as it is shaped and lies in memory."""
        if tensor.is_nested:
            return cls(output, position, element, value, None, device=str(tensor.device))
        dims = tuple(tensor.shape)
        strided = tensor.layout is torch.strided
        return cls(
            output,
            position,
            element,
            value,
            dims,
            tuple(tensor.stride()) if strided else None,
            tensor.storage_offset() if strided else None,
            tensor.itemsize,
            str(tensor.device),
        )


@dataclass(slots=True)
class Call:
    """One call of an operator: a row of ``ops`` in the making."""

    number: int
    name: str
    overload: str
    dims: str | None
    types: str | None
    flags: list[str]
    frame: int | None
    module: int | None
    module_path: str | None
    compiled: bool
    sequence: int | None = None
    forward: int | None = None
    edges: list[Edge] = field(default_factory=list)


class ValueRecorder:
    """Records the dataflow of the operators that run while it is entered. Every tensor is read, so never take times meanwhile.

    The program's results are not changed: its operators run as they are, and nothing draws random numbers.

    Args:
        unknown_constant: whether memory that was there before, and was not announced, counts as constant.
        values: look at tensors; without it only operators and edges are recorded.
    """

    def __init__(self, *, unknown_constant: bool = True, values: bool = True) -> None:
        self.calls: list[Call] = []
        self.marks: list[tuple[str, int]] = []
        self.boundaries: dict[str, list[tuple[int, ...]]] = {}
        self.dataflow = Dataflow(self._assemble, unknown_constant=unknown_constant, values=values)
        self.modules = ModuleStack(self._returned)
        self.frames = Frames()
        self._operators: dict[Any, Operator] = {}
        self._forward: dict[int, int] = {}
        self._lock = threading.RLock()
        self._mode = _Mode(self)

    def __enter__(self) -> Self:
        # Compiled regions would hide their operators; they run eagerly instead.
        self._stance = torch.compiler.set_stance("force_eager")
        self._stance.__enter__()
        self.modules.__enter__()
        self._mode.__enter__()
        _ACTIVE.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _ACTIVE.remove(self)
        self._mode.__exit__(kind, error, trace)
        self.modules.__exit__(kind, error, trace)
        self._stance.__exit__(kind, error, trace)

    # -- what the program and its author say

    def announce(self, tensors: Sequence[Any], role: str) -> None:
        """Set the role of tensors (``input`` or ``parameter``) before the program runs."""
        for tensor in tensors:
            self.dataflow.announce(tensor, role)

    def tensor_id(self, tensor: Any) -> int:
        """Return the id of the value a tensor shows now. Valid while recording."""
        with self._lock, torch.utils._python_dispatch._disable_current_modes():
            return self.dataflow.read(tensor).number

    def mark(self, name: str, tensor: Any) -> None:
        """Give the value a tensor shows now a name, kept in ``marks``."""
        self.marks.append((name, self.tensor_id(tensor)))

    def finish(self, result: Any) -> None:
        """Give the values that the program returned the role ``output``."""
        with torch.utils._python_dispatch._disable_current_modes():
            for tensor in torch.utils._pytree.tree_leaves(result):
                if isinstance(tensor, torch.Tensor):
                    value = self.dataflow.read(tensor)
                    value.role = value.role or OUTPUT

    def _returned(self, module: ModuleCall, result: Any) -> None:
        if module.attribute_path is None or not self._recording():
            return
        with self._lock:
            found = []
            for tensor in torch.utils._pytree.tree_leaves(result):
                value = self.dataflow.peek(tensor) if isinstance(tensor, torch.Tensor) else None
                if value is not None:
                    found.append(value.number)
            self.boundaries.setdefault(module.attribute_path, []).append(tuple(found))

    def _recording(self) -> bool:
        return self in _ACTIVE

    # -- operators

    def call(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator and record it."""
        operator = self._operators.get(function)
        if operator is None:
            operator = self._operators[function] = describe(function)
        if operator.mark:
            return function(*args, **kwargs)
        if operator.composite:
            # In inference mode composite operators arrive whole: take them apart, as autograd does elsewhere.
            # The kernel itself is called: what Python registers for tracing may do other things (dropout copies).
            with self._mode:
                return function._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        values = operator.bound(args, kwargs) if operator.arguments else [*args, *kwargs.values()]
        writes = operator.writes(values) if operator.arguments else [False] * len(values)
        with self._lock:
            call = self._begin(operator, values)
            inputs, deferred = self._inputs(operator, values, writes, call)
        result = function(*args, **kwargs)
        with self._lock:
            if deferred:
                self._views(deferred, result, call)
            else:
                self._outputs(operator, values, writes, inputs, result, call)
        return result

    def _begin(self, operator: Operator, values: Sequence[Any]) -> Call:
        frame, optimizer, compiled = self.frames.here()
        module = self.modules.innermost
        shapes = [described(v) for v in values]
        call = Call(
            number=-1,
            name=operator.name,
            overload=operator.overload,
            dims=json.dumps([s for s, _ in shapes], separators=(",", ":")),
            types=json.dumps([t for _, t in shapes], separators=(",", ":")),
            flags=[],
            frame=frame,
            module=None if module is None else module.number,
            module_path=None if module is None else module.attribute_path,
            compiled=compiled,
        )
        if optimizer:
            call.flags.append("optimizer")
        if compiled:
            call.flags.append(OpFlag.COMPILED)
        node = torch._C._current_autograd_node()
        if node is not None:
            call.flags.append("backward")
            sequence = node._sequence_nr()
            if sequence < _MAX_SEQUENCE:
                call.sequence = sequence
                call.forward = self._forward.get(sequence)
                if call.forward is not None:
                    forward = self.calls[call.forward]
                    call.module, call.module_path = forward.module, forward.module_path
        elif torch.is_grad_enabled():
            call.sequence = torch.autograd._get_sequence_nr() - 1
        return call

    def _inputs(
        self, operator: Operator, values: Sequence[Any], writes: Sequence[bool], call: Call
    ) -> tuple[list[tuple[Value, bool]], list[tuple[int, int | None, Any]]]:
        """Record what a call reads; return the values, and which are written to, and what a view leaves unread."""
        found: list[tuple[Value, bool]] = []
        deferred = []
        for position, (value, written) in enumerate(zip(values, writes, strict=True)):
            for element, tensor in tensors_in(value):
                argument = operator.arguments[position] if operator.arguments else None
                if argument is not None and (argument.handle or (written and not argument.read)):
                    continue
                if operator.view and self.dataflow.stale(tensor):
                    deferred.append((position, element, tensor))
                    continue
                read = self.dataflow.read(tensor)
                found.append((read, written))
                call.edges.append(Edge.of(tensor, read, output=False, position=position, element=element))
        # An assembled value is recorded before what reads it.
        if not deferred:
            self._number(call)
        return found, deferred

    def _number(self, call: Call) -> None:
        call.number = len(self.calls)
        self.calls.append(call)
        if (
            call.sequence is not None
            and "backward" not in call.flags
            and self._forward.setdefault(call.sequence, call.number) != call.number
        ):
            call.sequence = None  # an operator without a gradient of its own, after the one the number belongs to

    def _views(self, deferred: Sequence[tuple[int, int | None, Any]], result: Any, call: Call) -> None:
        """Record a view of memory that was written to meanwhile: it reads what it shows, not all of the memory."""
        self._number(call)
        at = deferred[0][0]
        found: dict[int, Value] = {}
        outputs = []
        for position, tensor, element in _results(result):
            sources, value = self.dataflow.show(tensor)
            found.update({source.number: source for source in sources or [value]})
            outputs.append(Edge.of(tensor, value, output=True, position=position, element=element))
        call.edges += [Edge(False, at, element, value, value.dims) for element, value in enumerate(found.values())]
        call.edges += outputs
        call.flags += ["view", "move"] + ["constant"] * all(value.constant for value in found.values())

    def _outputs(
        self,
        operator: Operator,
        values: Sequence[Any],
        writes: Sequence[bool],
        inputs: Sequence[tuple[Value, bool]],
        result: Any,
        call: Call,
    ) -> None:
        read = [value for value, _ in inputs]
        random = operator.draws(values)
        constant = all(v.constant for v in read) and not random
        precision = coarsest(*(v.precision for v in read))
        if operator.product:
            precision = coarsest(precision, _product_precision(precision, values))
        written = [
            tensor
            for value, is_written in zip(values, writes, strict=True)
            if is_written
            for _, tensor in tensors_in(value)
        ]
        # Memory that was never filled stays unknown where a view shows it or an operator changes part of it in place.
        unclear = any(v.fingerprint.why == UNINITIALIZED for v, is_written in inputs if is_written or not written)
        why = UNINITIALIZED if operator.empty else None
        why_shared = UNINITIALIZED if operator.empty or unclear else None
        defined = self.dataflow.written(written, constant, precision, why_shared if written else why)
        new = dict(zip(map(id, written), defined, strict=True))
        storages = {v.storage for v in read}
        all_share, position = True, -1
        for position, tensor, element in _results(result):
            value = new.pop(id(tensor), None)
            if value is None:
                value, shares = self.dataflow.made(tensor, storages, constant, precision, (why, why_shared))
                all_share = all_share and shares
            call.edges.append(Edge.of(tensor, value, output=True, position=position, element=element))
        view = all_share and position >= 0 and not written
        for tensor in written:
            value = new.pop(id(tensor), None)
            if value is not None:
                position += 1
                call.edges.append(Edge.of(tensor, value, output=True, position=position, element=None))
        if random:
            call.flags.append(OpFlag.RANDOM)
        self._flag(operator, call, constant=constant, written=bool(written), view=view)

    def _flag(self, operator: Operator, call: Call, *, constant: bool, written: bool, view: bool) -> None:
        inputs = [e.value for e in call.edges if not e.output]
        outputs = [e.value for e in call.edges if e.output]
        flags = call.flags
        if view:
            flags.append("view")
        if operator.move or view:
            flags.append("move")
        if operator.copy and inputs and outputs and _same_elements(inputs[-1 if written else 0], outputs[0]):
            flags.append("copy")
        if written:
            flags.append("inplace")
        if constant:
            flags.append("constant")

    def _assemble(self, sources: Sequence[Value], value: Value) -> None:
        frame, optimizer, compiled = self.frames.here()
        module = self.modules.innermost
        call = Call(
            number=len(self.calls),
            name=ASSEMBLE,
            overload="",
            dims=None,
            types=None,
            flags=["move", "assemble"] + ["constant"] * value.constant + ["optimizer"] * optimizer,
            frame=frame,
            module=None if module is None else module.number,
            module_path=None if module is None else module.attribute_path,
            compiled=compiled,
        )
        if torch._C._current_autograd_node() is not None:
            call.flags.append("backward")
        call.edges = [Edge(False, 0, element, source, source.dims) for element, source in enumerate(sources)]
        call.edges.append(Edge(True, 0, None, value, value.dims))
        self.calls.append(call)


def _results(result: Any) -> Iterator[tuple[int, Any, int | None]]:
    """Yield the tensors an operator returned, with their position and number within a list."""
    for position, item in enumerate(result if isinstance(result, (tuple, list)) else (result,)):
        for element, tensor in tensors_in(item):
            yield position, tensor, element


def _same_elements(one: Value, other: Value) -> bool:
    """Tell whether a copy from one value to the other keeps every element, up to rounding."""
    both_real = one.precision is not None and other.precision is not None
    return one.numel == other.numel and (
        one.dtype == other.dtype or (both_real and _is_float(one) and _is_float(other))
    )


def _is_float(value: Value) -> bool:
    return value.dtype.startswith(("float", "bfloat"))


def _product_precision(precision: str | None, values: Sequence[Any]) -> str | None:
    """Return the type that settings let float32 products be computed in; None where that is float32 itself."""
    if precision != "float32":
        return None
    try:
        setting = torch.get_float32_matmul_precision()
    except RuntimeError:  # the program uses the settings per backend, which this one cannot express
        return None
    on_host = any(tensor.device.type == "cpu" for value in values for _, tensor in tensors_in(value))
    return {"high": "tfloat32", "medium": "bfloat16" if on_host else "tfloat32"}.get(setting)


class _Mode(TorchDispatchMode):  # type: ignore[misc]
    """A dispatch mode that passes every operator to the recorder."""

    supports_higher_order_operators = True

    def __init__(self, recorder: ValueRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self._recorder.call(function, args, kwargs or {})


_ACTIVE: list[ValueRecorder] = []


def current() -> ValueRecorder | None:
    """Return the recorder that is recording now, or None."""
    return _ACTIVE[-1] if _ACTIVE else None


def mark(name: str, tensor: Any) -> Any:
    """Name the value a tensor shows, if something is recording; return the tensor."""
    recorder = current()
    if recorder is not None:
        recorder.mark(name, tensor)
    return tensor
