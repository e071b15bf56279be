"""Replaying single operations of a TensorFlow graph.

The operations are those of the graph of a ``tf.function`` before grappler, TensorFlow's graph optimiser, rewrites it. So operations
that grappler would fuse are replayed separately. Operations that no result and no effect needs are left out. Called functions are
entered, unless XLA compiles them. The program runs once, one operation after the other, and a tensor is released when it is no longer
needed. Each chosen operation is replayed before it runs.

A replay calls a compiled function that consists of the one operation with its attributes. All inputs are arguments of unknown shape,
all outputs are returned, and grappler is off, so that the operation is not folded. A call from Python takes 50 to 150 us. This time is
part of each window, so results for shorter operations say little. ``tf.test.experimental.sync_devices`` waits for the devices; it
copies nothing.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from graphlib import TopologicalSorter
from heapq import heappop, heappush
from typing import Any

from magneton.collectors.frameworks import import_framework
from magneton.collectors.replay import windows as replays
from magneton.collectors.replay.windows import NotRepeatableError, Replay, ReplayedCall
from magneton.schemas.errors import UsageError

__all__ = ["import_tensorflow", "replay_operations"]

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
# Control flow of TensorFlow 1: what runs is decided by what arrives, not by the order of the graph.
_OLD_CONTROL_FLOW = frozenset({"Enter", "RefEnter", "Switch", "RefSwitch", "Merge", "RefMerge"})
_COMMUNICATION = re.compile(r"Collective|Nccl|CrossReplica|AllReduce|AllGather|AllToAll|ReduceScatter")
# The runtime takes Identity out of a graph; the kernel of a constant holds its value.
_NOTHING = frozenset({"Const", "Identity", "NoOp"})
# Stateful operations that change variables only, or what their own kernel keeps; those with functions are what these do.
_UNDONE = re.compile(
    r"(Read|Assign\w*|Destroy|Is)?Variable\w*|VarHandleOp|VarIsInitializedOp|Resource\w+|RngReadAndSkip|Stateful\w+|Random\w+"
    r"|\w*TruncatedNormal|Multinomial|Assert|If|While|Case"
)
_NOT_COPIED = frozenset({"resource", "variant", "string"})

# Which step made a value, and which of its outputs it is (``product:0``).
_Key = tuple[int, str]


@dataclass(frozen=True)
class _Step:
    """An operation of the program: its node, its place, and what it is given."""

    node: Any
    place: str
    inputs: tuple[_Key, ...]


@dataclass(frozen=True)
class _Alone:
    """An operation as a function of its own: the operation in that function's graph, and the names of its outputs."""

    function: Any
    operation: Any
    outputs: tuple[str, ...]


def import_tensorflow() -> Any:
    """Return the tensorflow module.

    Raises:
        MissingDependencyError: it is not installed.
    """
    return import_framework("tensorflow", "replaying a TensorFlow program", extra="tensorflow")


@contextmanager
def _switched(switch: Callable[[bool], Any], before: bool, during: bool) -> Iterator[None]:
    """Change a setting of the process for a while."""
    switch(during)
    try:
        yield
    finally:
        switch(before)


@contextmanager
def _grappler_off() -> Iterator[None]:
    """Switch grappler off for a while.

    Setting the options back in public is not the same as never having set them: every function of the process would be
    made anew, and what its kernels keep (the state of random numbers) begin again.
    """
    context = importlib.import_module("tensorflow.python.eager.context").context()
    held = context._optimizer_experimental_options
    before = dict(held)
    import_tensorflow().config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        held.clear()
        held.update(before)
        context._thread_local_data.function_call_options = None


@contextmanager
def _undone(variables: Sequence[Any], bodies: Mapping[str, Any]) -> Iterator[None]:
    """Restore the content of variables afterwards.

    Raises:
        NotRepeatableError: the functions do something else that lasts.
    """
    # Which operations are stateful is not told in public.
    registry = importlib.import_module("tensorflow.python.framework.op_def_registry")
    names = {node.op for body in bodies.values() for node in body.node_def}
    stateful = {name for name in names if (found := registry.get(name)) is not None and found.is_stateful}
    lasting = sorted(name for name in stateful if not _UNDONE.fullmatch(name))
    if lasting:
        raise NotRepeatableError(f"a second run would have effects that cannot be undone ({', '.join(lasting)})")
    before = [variable.read_value() for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


def _trace(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, list[Any], dict[str, Any], Sequence[Any]]:
    """Return the operation that calls a program's graph, what it is given, all functions called, by name, and its variables.

    The functions are there as long as that operation is held.

    Raises:
        UsageError: an argument is a variable where the signature has a tensor.
    """
    import numpy as np

    tf = import_tensorflow()
    types = tf.types.experimental
    graphs = (types.GenericFunction, types.ConcreteFunction)
    program = function if isinstance(function, graphs) else tf.function(function)
    structure = (list(args), dict(kwargs))
    leaves = tf.nest.flatten(structure, expand_composites=True)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, tf.Tensor | np.ndarray | np.generic)]
    values = [tf.convert_to_tensor(leaves[i]) for i in places]

    def call(*tensors: Any) -> None:
        given = dict(enumerate(leaves)) | dict(zip(places, tensors, strict=True))
        call_args, call_kwargs = tf.nest.pack_sequence_as(structure, list(given.values()), expand_composites=True)
        program(*call_args, **call_kwargs)

    specs = [tf.TensorSpec(value.shape, value.dtype) for value in values]
    with _switched(tf.config.run_functions_eagerly, tf.config.functions_run_eagerly(), False):
        traced = tf.function(call, autograph=False).get_concrete_function(*specs)
    operation = next(op for op in traced.graph.get_operations() if op.type in _CALLS)
    known = dict(zip((t.name for t in traced.inputs), [*values, *traced.captured_inputs], strict=True))
    for tensor in operation.inputs:
        if tensor.name not in known:
            # A signature makes a constant of a number.
            value = tf.get_static_value(tensor)
            if value is None:
                raise UsageError(f"the call makes {tensor.name} of an argument", remedy="give tensors, not variables")
            known[tensor.name] = tf.constant(value, tensor.dtype)
    given = [known[tensor.name] for tensor in operation.inputs]
    bodies = {body.signature.name: body for body in traced.graph.as_graph_def().library.function}
    return operation, given, bodies, traced.variables


def _ordered(body: Any) -> list[Any]:
    """Return the nodes that a function's results or effects need, each after what it needs, else as they were made."""
    nodes = {node.name: node for node in body.node_def}
    position = {name: i for i, name in enumerate(nodes)}
    needs: dict[str, list[str]] = {}
    wanted = [ref.partition(":")[0] for ref in body.ret.values()] + list(body.control_ret.values())
    while wanted:
        name = wanted.pop()
        if name in nodes and name not in needs:
            sources = [ref.removeprefix("^").partition(":")[0] for ref in nodes[name].input]
            needs[name] = [source for source in sources if source in nodes]
            wanted += needs[name]
    sorter, ready, order = TopologicalSorter(needs), list[tuple[int, str]](), []
    sorter.prepare()
    while sorter.is_active():
        for name in sorter.get_ready():
            heappush(ready, (position[name], name))
        name = heappop(ready)[1]
        order.append(nodes[name])
        sorter.done(name)
    return order


def _expand(
    node: Any, inputs: Sequence[_Key], place: str, bodies: Mapping[str, Any], steps: list[_Step]
) -> list[_Key] | int:
    """Append the steps that a node stands for; return the number of the step or, of a call gone into, its outputs."""
    if node.op not in _CALLS or node.attr["_XlaMustCompile"].b:
        steps.append(_Step(node, place, tuple(inputs)))
        return len(steps) - 1
    body = bodies[node.attr["f"].func.name]
    given: dict[str, _Key] = dict(zip((arg.name for arg in body.signature.input_arg), inputs, strict=True))
    made: dict[str, list[_Key] | int] = {}

    def find(ref: str) -> _Key:
        name, _, output = ref.partition(":")
        if not output:
            return given[name]
        source = made[name]
        return (source, output) if isinstance(source, int) else source[int(output.partition(":")[2])]

    if any(inner.op in _OLD_CONTROL_FLOW for inner in body.node_def):
        raise NotRepeatableError(f"{body.signature.name} holds control flow of TensorFlow 1")
    for inner in _ordered(body):
        refs = [find(ref) for ref in inner.input if not ref.startswith("^")]
        made[inner.name] = _expand(inner, refs, f"{place}/{inner.name}" if place else inner.name, bodies, steps)
    return [find(body.ret[arg.name]) for arg in body.signature.output_arg]


def _alone(node: Any, types: Sequence[Any]) -> _Alone:
    """Return a node as a function of inputs of given types and unknown shapes."""
    tf = import_tensorflow()
    definition = tf.compat.v1.GraphDef()
    copied = definition.node.add()
    copied.CopyFrom(node)
    copied.name = "operation"
    copied.input[:] = [f"input{i}" for i in range(len(types))]
    # It may name operations that are not here.
    copied.attr.pop("_class", None)
    found: list[Any] = []

    def call(*tensors: Any) -> Any:
        given = {f"input{i}": tensor for i, tensor in enumerate(tensors)}
        tf.graph_util.import_graph_def(definition, input_map=given, name="alone")
        found.append(tf.compat.v1.get_default_graph().get_operation_by_name("alone/operation"))
        return list(found[-1].outputs)

    specs = [tf.TensorSpec(None, dtype) for dtype in types]
    function = tf.function(call, autograph=False).get_concrete_function(*specs)
    operation = found[-1]
    names = []
    for arg in operation.op_def.output_arg:
        types_made = operation.get_attr(arg.type_list_attr) if arg.type_list_attr else [arg.type]
        count = operation.get_attr(arg.number_attr) if arg.number_attr else len(types_made)
        names += [f"{arg.name}:{i}" for i in range(count)]
    return _Alone(function, operation, tuple(names))


def _refusal(operation: Any) -> str | None:
    """Return why an operation cannot be made again, or None."""
    name = operation.type
    if _COMMUNICATION.search(name):
        return f"{name} communicates with other processes"
    for kind, tensors in (("an input", operation.inputs), ("an output", operation.outputs)):
        for tensor in tensors:
            if tensor.dtype.name in _NOT_COPIED:
                return f"{name} has {kind} of type {tensor.dtype.name}"
    if operation.op_def.is_stateful:
        attributes = operation.node_def.attr.values()
        held = "holds a function and " if any(one.HasField("func") or one.list.func for one in attributes) else ""
        return f"{name} {held}is stateful: it draws random numbers, keeps something or acts on something outside"
    if name in _NOTHING:
        return f"{name} computes nothing"
    return None


def _copy(tensor: Any) -> Any:
    """Return a tensor in memory of its own on the same device."""
    tf = import_tensorflow()
    with tf.device("CPU:0"):
        made = tf.raw_ops.DeepCopy(x=tensor)
    with tf.device(tensor.backing_device):
        return tf.identity(made)


def _turns(given: Sequence[Any], made: Sequence[Any], copies: int | None) -> tuple[list[tuple[Any, ...]], int, bool]:
    """Return sets of copies of what an operation is given, the bytes of one, and whether they are cold.

    A tensor given twice is copied once; each set has outputs, which need room too. TensorFlow does not tell the free memory
    of a GPU: the host's stands for it.

    Raises:
        NotRepeatableError: there is no room for them.
    """
    tf = import_tensorflow()
    distinct = {id(tensor): tensor for tensor in given}
    size = sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in distinct.values())
    if not size:
        return [tuple(given)], 0, True
    on_host = all(tf.DeviceSpec.from_string(tensor.backing_device).device_type == "CPU" for tensor in distinct.values())
    cache = replays.host_cache_bytes() if on_host else None
    written = sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in made)
    count, cold = replays.turns_for(size, cache, replays.host_free_bytes() * size // (size + written), copies)
    sets = [{key: _copy(tensor) for key, tensor in distinct.items()} for _ in range(count)]
    return [tuple(made[id(tensor)] for tensor in given) for made in sets], size, cold


def _run(
    steps: Sequence[_Step], chosen: Sequence[bool], alive: dict[_Key, Any]
) -> Iterator[tuple[_Step, _Alone, list[Any]]]:
    """Run the steps in order; give each chosen one, and its inputs, before it runs. Values are let go once used."""
    uses = Counter(key for step in steps for key in step.inputs)
    known: dict[bytes, _Alone] = {}
    for number, (step, is_chosen) in enumerate(zip(steps, chosen, strict=True)):
        given = [alive[key] for key in step.inputs]
        bare = type(step.node)(op=step.node.op, device=step.node.device, attr=step.node.attr)
        form = bare.SerializeToString(deterministic=True) + b"%d" % len(given)
        if form not in known:
            known[form] = _alone(step.node, [tensor.dtype for tensor in given])
        alone = known[form]
        if is_chosen:
            yield step, alone, given
        made = alone.function(*given)
        alive |= {(number, name): tensor for name, tensor in zip(alone.outputs, made, strict=True)}
        uses.subtract(step.inputs)
        for key in {*step.inputs, *((number, name) for name in alone.outputs)}:
            if not uses[key]:
                del alive[key]


def replay_operations(
    function: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    select: Callable[[str, str], bool],
    seconds: float,
    rounds: int = 2,
    copies: int | None = None,
    undo: bool = False,
) -> list[ReplayedCall]:
    """Run a TensorFlow program once and replay operations of its graph with the inputs they had.

    What it does besides computing, such as writing to variables, happens once, as in a call, unless it is undone. A loop
    or branch is one operation, replayed as a whole where it is stateless.

    Args:
        function: a ``tf.function``, a concrete function, a Keras layer or model, or a Python function of tensors.
        args: its arguments: tensors, arrays and nested structures of them; all else is part of the program.
        kwargs: its keyword arguments.
        select: is given the type of an operation (``MatMul``) and its name in the graph, behind the names of the calls
            it is in (``PartitionedCall/dense/MatMul``), and says whether it is replayed.
        seconds: length of each window.
        rounds: windows of each operation.
        copies: sets of inputs that take turns (default: as many as drive one another out of the cache).
        undo: restore the content of variables afterwards. A program with other lasting effects (Python code, iterators,
            tables) is refused.

    Returns:
        the selected operations in the order of the program. Refused are those that are stateful (random numbers,
        variables, queues, Python code), that communicate, whose inputs or outputs are resources, variants or strings,
        for whose copies there is no room, and that compute nothing (``Identity``, ``Const``, ``NoOp``).

    Raises:
        MissingDependencyError: TensorFlow is not installed.
        NotRepeatableError: nothing was selected, the graph holds control flow of TensorFlow 1, or what it does cannot be
            undone.
        UsageError: a time or number that is not above 0, eager execution is off, or an argument is a variable where the
            signature has a tensor.
    """
    replays.check_replay(seconds, rounds)
    tf = import_tensorflow()
    if not tf.executing_eagerly():
        raise UsageError("cannot replay without eager execution", remedy="call it outside of graphs and tf.functions")
    operation, values, bodies, variables = _trace(function, args, kwargs or {})
    steps: list[_Step] = []
    place = operation.name if operation.node_def.attr["_XlaMustCompile"].b else ""
    inputs = [(-1, str(i)) for i in range(len(values))]
    _expand(operation.node_def, inputs, place, bodies, steps)
    chosen = [select(step.node.op, step.place) for step in steps]
    if not any(chosen):
        raise NotRepeatableError(replays.NOT_SELECTED)
    wait = tf.test.experimental.sync_devices
    windows = partial(replays.replay_in_turns, seconds=seconds, rounds=rounds, synchronize=lambda _: wait())

    def replayed(step: _Step, alone: _Alone, given: Sequence[Any]) -> ReplayedCall:
        forms = tuple(f"{tensor.dtype.name}[{','.join(map(str, tensor.shape))}]" for tensor in given)

        def alone_in_windows() -> Replay:
            sets, size, cold = _turns(given, alone.function(*given), copies)
            calls = [partial(alone.function, *tensors) for tensors in sets]
            return windows(step.node.op, calls, bytes_each=size, cold=cold)

        refusal, done = _refusal(alone.operation), None
        if refusal is None:
            done, refusal = replays.attempt(alone_in_windows)
        return ReplayedCall(step.node.op, step.place, forms, done, refusal)

    # Not before: calls in a graph keep the setting that they were traced with.
    with _undone(variables, bodies) if undo else nullcontext(), _grappler_off():
        return [replayed(*one) for one in _run(steps, chosen, dict(zip(inputs, values, strict=True)))]
