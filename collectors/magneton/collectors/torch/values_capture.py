"""The capture of values of a PyTorch program: its dataflow with one fingerprint per tensor, in memory or as raw files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from magneton.collectors.torch.dataflow import INPUT, PARAMETER
from magneton.collectors.torch.dispatch import ValueRecorder, current, mark
from magneton.collectors.torch.perturb import perturbed
from magneton.collectors.torch.profile import import_torch
from magneton.collectors.torch.values_tables import tables_of
from magneton.schemas.kinds import CaptureKind

if TYPE_CHECKING:
    import pyarrow as pa

torch: Any = import_torch()

__all__ = ["ValuesCapture", "capture_values", "current", "mark", "perturbed", "record_values"]

_MEMORY = "memory"


@dataclass
class ValuesCapture:
    """One capture of values, as rows of the tables of a run.

    Attributes:
        tables: ``ops``, ``tensors``, ``uses``, ``modules`` and ``frames``.
        input_id: which input it ran on.
        outputs: what the program returned.
        marks: names given with ``mark`` while recording, with the id of the value each was given to.
        boundaries: for the path of each module as its root names it, the ids of what each of its calls returned.
        second: the capture on a second input.
        notes: remarks for the reader.
        error: the exception of the program, if there was one. The tables then end at this point.
    """

    tables: dict[str, pa.Table]
    input_id: str
    outputs: Any = None
    marks: list[tuple[str, int]] = field(default_factory=list)
    boundaries: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    second: ValuesCapture | None = None
    notes: list[str] = field(default_factory=list)
    error: BaseException | None = None

    @property
    def ops(self) -> pa.Table:
        """Rows of ``ops``."""
        return self.tables["ops"]

    @property
    def tensors(self) -> pa.Table:
        """Rows of ``tensors``."""
        return self.tables["tensors"]

    @property
    def uses(self) -> pa.Table:
        """Rows of ``uses``."""
        return self.tables["uses"]

    @property
    def modules(self) -> pa.Table:
        """Rows of ``modules``."""
        return self.tables["modules"]

    @property
    def frames(self) -> pa.Table:
        """Rows of ``frames``."""
        return self.tables["frames"]


def capture_values(
    run: Callable[[], Any],
    *,
    inputs: Any = None,
    parameters: Iterable[Any] = (),
    input_id: str = "0",
    keys: Mapping[str, Any] | None = None,
    values: bool = True,
) -> ValuesCapture:
    """Record the dataflow of one call.

    Args:
        run: called without arguments.
        inputs: tensors (in lists, tuples, dicts) that count as input. None: every tensor that existed before the run and is
            not a parameter counts as input.
        parameters: tensors that count as parameters (buffers too).
        input_id: which input it is.
        keys: run keys of the rows.
        values: read the tensors. Without it there are operators and edges only.

    Returns:
        The capture. When ``run`` raises it holds what was recorded until then, and the exception as ``error``.
    """
    recorder = ValueRecorder(unknown_constant=inputs is not None, values=values)
    leaves = [t for t in torch.utils._pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    recorder.announce(leaves, INPUT)
    recorder.announce(list(parameters), PARAMETER)
    result, failure = None, None
    for tensor in leaves:
        recorder.tensor_id(tensor)
    try:
        with recorder:
            result = run()
        recorder.finish(result)
    except Exception as error:
        failure = error
    row_keys = {"run_id": _MEMORY, "capture": CaptureKind.VALUES, "rank": 0, "repeat": None, "input_id": input_id}
    return ValuesCapture(
        tables=tables_of(recorder, row_keys | dict(keys or {})),
        input_id=input_id,
        outputs=result,
        marks=recorder.marks,
        boundaries=recorder.boundaries,
        notes=notes_of(recorder),
        error=failure,
    )


def notes_of(recorder: ValueRecorder) -> list[str]:
    """Return remarks for the reader of a capture."""
    compiled = sum(call.compiled for call in recorder.calls)
    if not compiled:
        return []
    return [
        f"{compiled} operators of the capture of values lie in regions under torch.compile; they were looked into "
        "eagerly, while the profile times the compiled code."
    ]


def record_values(
    fn: Callable[..., Any],
    inputs: Sequence[Any] | Mapping[str, Any],
    *,
    parameters: Iterable[Any] = (),
    second_inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    values: bool = True,
) -> ValuesCapture:
    """Record the dataflow of ``fn(*inputs)`` with the fingerprint of every value, in memory.

    Before the second input runs, the parameters, their gradients and the random generators are restored to their state before
    the first. After it, they have the state after the first. Other state is not restored, for example that of an optimiser or
    a cache.

    Args:
        fn: what to run, a module or a function. Its results are those of a run that is not recorded.
        inputs: its arguments; a mapping is passed as keywords.
        parameters: tensors that count as parameters; of a module its own are added.
        second_inputs: arguments of a second run, recorded as ``second``.
        values: look at tensors; without it there are operators and edges only.

    Raises:
        Exception: whatever ``fn`` raises.
    """
    known = list(parameters)
    if isinstance(fn, torch.nn.Module):
        known += [*fn.parameters(), *fn.buffers()]
    if second_inputs is None:
        return _raised(capture_call(fn, inputs, known, "0", values=values))
    before = ProgramState(known)
    first = _raised(capture_call(fn, inputs, known, "0", values=values))
    after = ProgramState(known)
    before.restore()
    try:
        first.second = _raised(capture_call(fn, second_inputs, known, "1", values=values))
    finally:
        after.restore()
    return first


def capture_call(
    fn: Callable[..., Any],
    inputs: Any,
    known: Sequence[Any],
    input_id: str,
    *,
    values: bool = True,
    rank: int = 0,
) -> ValuesCapture:
    """Record the dataflow of ``fn(*inputs)``, or of ``fn(**inputs)`` for a mapping; see ``capture_values``."""
    by_name = isinstance(inputs, Mapping)
    return capture_values(
        (lambda: fn(**inputs)) if by_name else (lambda: fn(*inputs)),
        inputs=inputs,
        parameters=known,
        input_id=input_id,
        keys={"rank": rank},
        values=values,
    )


def _raised(capture: ValuesCapture) -> ValuesCapture:
    if capture.error is not None:
        raise capture.error
    return capture


class ProgramState:
    """Parameters, gradients and random generators at one moment."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._kept = []
        for tensor in tensors:
            strided = tensor.layout is torch.strided
            copy = tensor.detach().clone() if strided else None
            gradient = tensor.grad.detach().clone() if tensor.is_leaf and tensor.grad is not None else None
            self._kept.append((tensor, copy, gradient))
        self._random = torch.get_rng_state()
        self._devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None

    def restore(self) -> None:
        """Restore all of it."""
        with torch.no_grad():
            for tensor, copy, gradient in self._kept:
                if copy is not None and not torch.equal(tensor.detach(), copy):
                    tensor.detach().copy_(copy)
                if tensor.is_leaf:
                    tensor.grad = None if gradient is None else gradient.clone()
        torch.set_rng_state(self._random)
        if self._devices is not None:
            torch.cuda.set_rng_state_all(self._devices)
