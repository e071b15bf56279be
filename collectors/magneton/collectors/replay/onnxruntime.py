"""Replaying nodes of an ONNX model alone, as ONNX Runtime runs them.

The nodes are those of the optimised model. These nodes run, and the events of the profiler have their names. Their inputs are
recorded in one run of the model. Each node is then replayed as a model of that one node. Nodes inside subgraphs are not seen.

Initialisers stay initialisers, so that weights are packed beforehand, as in the program. Weights must be used in turn as well. So each
set of arguments has a session of its own, with its own weights and inputs. The threads of these sessions sleep while they wait.
Otherwise the threads of the waiting sessions would take processor time from the measured one. If the weights are a very small part of a
set, one session serves all sets, and its threads wait as in the program.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from magneton.collectors.frameworks import import_framework
from magneton.collectors.replay.windows import (
    NOT_SELECTED,
    NotRepeatableError,
    Replay,
    ReplayedCall,
    attempt,
    check_replay,
    host_cache_bytes,
    host_free_bytes,
    replay_in_turns,
    turns_for,
)
from magneton.schemas.errors import InputFormatError, InputNotFoundError, UsageError

_RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
_COMMUNICATION = ("AllGather", "AllReduce", "AllToAll")
_EFFECTS = dict.fromkeys(_RANDOM, "draws random numbers") | dict.fromkeys(_COMMUNICATION, "communicates")
# Up to this share of a set, weights do not take turns.
_FEW_WEIGHTS = 1 / 16
# Each session has its own threads; together they are at most this many.
_MAX_THREADS = 1024


def import_onnx() -> tuple[Any, Any]:
    """Return the modules onnx and onnxruntime.

    Raises:
        MissingDependencyError: one is not installed.
    """
    onnx, ort = (import_framework(n, "replaying nodes", extra="onnx") for n in ("onnx", "onnxruntime"))
    return onnx, ort


@dataclass(frozen=True)
class Program:
    """An optimised model (large initialisers in files of ``directory``), its initialisers by name, and how it runs."""

    model: Any
    weights: Mapping[str, Any]
    sparse: Mapping[str, Any]
    directory: Path
    providers: Sequence[str]
    threads: int | None
    path: str | None
    provider_options: Mapping[str, Any]


def _session(
    model: str | bytes,
    providers: Sequence[str],
    threads: int | None,
    provider_options: Mapping[str, Any],
    *,
    spin: bool = False,
    optimised: Any = None,
    optimisation: Any = None,
) -> Any:
    """Load a model as it is, or optimise it (as far as ``optimisation`` says) and write the result to ``optimised``."""
    _, ort = import_onnx()
    options = ort.SessionOptions()
    options.log_severity_level = 4  # What goes wrong is raised.
    options.intra_op_num_threads = threads or 0
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
    if optimised is None:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    else:
        if optimisation is not None:
            options.graph_optimization_level = optimisation
        options.optimized_model_filepath = str(optimised)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.data")
    chosen = [(name, dict(provider_options.get(name, {}))) for name in providers]
    session = ort.InferenceSession(model, options, providers=chosen)
    failed = sorted(set(providers) - set(session.get_providers()))
    if failed:
        raise UsageError(f"{failed[0]} does not work on this machine")
    return session


def _name_nodes(nodes: Sequence[Any]) -> None:
    """Give each node a name of its own: #n is added to its name or, where it has none, to its operation's."""
    used: set[str] = set()
    for node in nodes:
        base = node.name or node.op_type
        names = (base if node.name and not number else f"{base}#{number}" for number in count())
        node.name = next(name for name in names if name not in used)
        used.add(node.name)


def optimise(
    model: Any,
    directory: Path,
    providers: Sequence[str],
    threads: int | None,
    optimisation: Any = None,
    provider_options: Mapping[str, Any] | None = None,
) -> Program:
    """Return what ONNX Runtime makes of a model: a path or a ModelProto; for what it raises see ``replay_nodes``."""
    onnx, _ = import_onnx()
    path = os.fspath(model) if isinstance(model, str | os.PathLike) else None
    if path is not None and not Path(path).is_file():
        raise InputNotFoundError("there is no such file", path=path)
    if path is None and model.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF:
        raise UsageError("a model in memory is limited to 2 GB", remedy="write it to a file and give its path")
    target = directory / "optimised.onnx"
    try:
        source = model.SerializeToString() if path is None else path
        known = dict(provider_options or {})
        _session(source, providers, threads, known, optimised=target, optimisation=optimisation)
        made = onnx.load(target, load_external_data=False)
    except UsageError:
        raise
    except Exception as error:
        raise InputFormatError(f"ONNX Runtime cannot load and optimise it: {error}", path=path) from error
    _name_nodes(made.graph.node)
    weights = {tensor.name: tensor for tensor in made.graph.initializer}
    sparse = {tensor.values.name: tensor for tensor in made.graph.sparse_initializer}
    return Program(made, weights, sparse, directory, providers, threads, path, known)


def record(program: Program, nodes: Sequence[Any], feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Run a program once and return the OrtValue of each input of its nodes that is no initialiser, by name."""
    onnx, ort = import_onnx()
    model = onnx.ModelProto.FromString(program.model.SerializeToString())
    inputs = {value.name: value for value in model.graph.input}
    try:
        fed = {}
        for name, value in feeds.items():
            # Lists and the like are what the model takes them for, as in a session.
            wanted_kind = None if hasattr(value, "dtype") or name not in inputs else _dtype(onnx, inputs[name])
            array = np.asarray(value, dtype=wanted_kind, order="C")
            if array.dtype.kind in "OSU":
                # An OrtValue cannot be made of strings.
                model.graph.input.remove(inputs[name])
                model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(object), name))
            else:
                kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
                fed[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, kind)
        held = fed.keys() | program.weights.keys() | program.sparse.keys()
        wanted = list(dict.fromkeys(name for node in nodes for name in node.input if name and name not in held))
        outputs = {value.name for value in model.graph.output}
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in outputs)
        target = program.directory / "recorded.onnx"
        target.write_bytes(model.SerializeToString())
        session = _session(str(target), program.providers, program.threads, program.provider_options)
        made = session.run_with_ort_values(wanted, fed)
    except Exception as error:
        raise UsageError(f"it does not run with these inputs: {error}", path=program.path) from error
    return fed | dict(zip(wanted, made, strict=False))


def _dtype(onnx: Any, declared: Any) -> Any:
    """Return the type of the elements that an input is declared with; None where it is no tensor."""
    kind = declared.type.tensor_type.elem_type
    return onnx.helper.tensor_dtype_to_np_dtype(kind) if kind else None


def _is_array(kind: str) -> bool:
    return kind.startswith("tensor(") and kind != "tensor(string)"


def _form(program: Program, name: str, values: Mapping[str, Any]) -> str:
    """Return the form of an input, such as ``float32[8,16]``; of what is no array of numbers, its type."""
    onnx, _ = import_onnx()
    if name in program.sparse:
        return "sparse tensor"
    # An empty one is asked nothing more: the process would end.
    if name in values and not values[name].has_value():
        return "empty optional"
    if name in values and not _is_array(values[name].data_type()):
        return str(values[name].data_type())
    if name in values:
        kind, shape = values[name].element_type(), values[name].shape()
    else:
        kind, shape = program.weights[name].data_type, program.weights[name].dims
    if kind == onnx.TensorProto.STRING:
        return "tensor(string)"
    return f"{onnx.helper.tensor_dtype_to_np_dtype(kind).name}[{','.join(map(str, shape))}]"


def _refusal(program: Program, node: Any, values: Mapping[str, Any]) -> str | None:
    """Return why a node cannot be replayed, or None."""
    onnx, names = import_onnx()[0], [name for name in node.input if name]
    if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
        return "holds a subgraph"
    if node.op_type in _EFFECTS:
        return _EFFECTS[node.op_type]
    forms = [_form(program, name, values) for name in names]
    for form in forms:
        if not form.endswith("]"):
            return f"an input is of type {form}, which is not copied"
    if node.op_type.endswith("Dropout"):
        # Their only boolean input says whether the model is being trained.
        flags = [name for name, form in zip(names, forms, strict=True) if form.startswith("bool[")]
        to_array = onnx.numpy_helper.to_array
        if any((values[n].numpy() if n in values else to_array(program.weights[n])).any() for n in flags):
            return "draws random numbers"
    return None


def one_node_model(program: Program, node: Any, values: Mapping[str, Any]) -> Any:
    """Return a ModelProto of one node: its initialisers are initialisers, what else it is given are inputs."""
    onnx, _ = import_onnx()
    graph = onnx.GraphProto(name="replay", node=[node])
    inputs = {value.name for value in program.model.graph.input}
    for name in dict.fromkeys(filter(None, node.input)):
        if name in values:
            value = values[name]
            graph.input.append(onnx.helper.make_tensor_value_info(name, value.element_type(), value.shape()))
            continue
        weight = graph.initializer.add()
        weight.CopyFrom(program.weights[name])
        if onnx.external_data_helper.uses_external_data(weight):
            onnx.external_data_helper.load_external_data_for_tensor(weight, str(program.directory))
        if name in inputs:
            # An input may replace this initialiser, so ONNX Runtime does not pack it beforehand.
            graph.input.append(onnx.helper.make_tensor_value_info(name, weight.data_type, weight.dims))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
    model = onnx.ModelProto(ir_version=program.model.ir_version, opset_import=program.model.opset_import, graph=graph)
    if model.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF:
        raise NotRepeatableError("its weights are over 2 GB, the limit of a model in memory")
    return model


def bind(session: Any, values: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a call of a session on copies of values, which returns the IO binding that holds its outputs."""
    _, ort = import_onnx()
    binding = session.io_binding()
    for given, memory in zip(session.get_inputs(), session.get_input_memory_infos(), strict=True):
        value, device = values[given.name], memory.name.lower()
        shape, kind = value.shape(), value.element_type()
        copied = ort.OrtValue.ortvalue_from_shape_and_type(shape, kind, device, memory.device_id)
        copied.update_inplace(value)
        binding.bind_ortvalue_input(given.name, copied)
    for made, memory in zip(session.get_outputs(), session.get_output_memory_infos(), strict=True):
        binding.bind_output(made.name, memory.name.lower(), memory.device_id)

    def call() -> Any:
        session.run_with_iobinding(binding)
        return binding

    return call


def _replay(
    program: Program, node: Any, values: Mapping[str, Any], seconds: float, rounds: int, copies: int | None
) -> Replay:
    onnx, _ = import_onnx()
    model = one_node_model(program, node, values)
    weights = sum(len(t.raw_data) or onnx.numpy_helper.to_array(t).nbytes for t in model.graph.initializer)
    size = weights + sum(values[name].tensor_size_in_bytes() for name in set(node.input) & values.keys())
    own = weights > _FEW_WEIGHTS * size
    data = model.SerializeToString()
    load = partial(_session, data, program.providers, program.threads, program.provider_options, spin=not own)
    session = load()
    for made in session.get_outputs():
        if not _is_array(made.type):
            raise NotRepeatableError(f"an output is of type {made.type}")
    calls = [bind(session, values)]
    turns, cold = 1, True
    outputs = sum(value.tensor_size_in_bytes() for value in calls[0]().get_outputs())
    if size:
        # Outputs are used in turn too and need memory, but no call reads them.
        cache, room = host_cache_bytes(), host_free_bytes() * size // (size + outputs)
        turns, cold = turns_for(size, cache, room, copies)
        most = max(_MAX_THREADS // (program.threads or os.cpu_count() or 1), 1)
        if own and turns > most:
            turns, cold = turns_for(size, cache, room, most)
    # Of other devices the cache is not known.
    cold = cold and all(memory.name.lower() == "cpu" for memory in session.get_input_memory_infos())
    calls += [bind(load() if own else session, values) for _ in range(turns - 1)]
    for call in calls:
        call()
    return replay_in_turns(
        node.op_type,
        calls,
        seconds=seconds,
        rounds=rounds,
        synchronize=lambda binding: binding.synchronize_outputs(),
        bytes_each=size,
        cold=cold,
    )


def replay_nodes(
    model: Any,
    feeds: Mapping[str, Any],
    *,
    select: Callable[[str, str], bool],
    seconds: float,
    rounds: int = 2,
    copies: int | None = None,
    providers: Sequence[str] = ("CPUExecutionProvider",),
    provider_options: Mapping[str, Any] | None = None,
    optimisation: Any = None,
    threads: int | None = None,
) -> list[ReplayedCall]:
    """Replay selected nodes of an ONNX model, each alone with the inputs it had in the model.

    Args:
        model: path of a model (its data may be in other files), or a ModelProto; it is not changed.
        feeds: numpy array for each input of the model.
        select: says of a node's operation (``MatMul``, ``FusedGemm``) and its name in the optimised model whether it is
            replayed. Where a name is missing or repeated, #n is added.
        seconds: length of a window; it holds at least one call.
        rounds: windows of each node.
        copies: sets of arguments that take turns (default: so many that none is still in a cache, if there is room).
        providers: execution providers, the preferred first.
        provider_options: options of each, by its name.
        optimisation: how far the model is optimised, an ``onnxruntime.GraphOptimizationLevel`` (default: all there is).
        threads: threads of an operation (default: as many as ONNX Runtime takes).

    Returns:
        The selected nodes, in the order of the optimised model. Refused is what draws random numbers, communicates, holds a
        subgraph, has an input or output that is no array of numbers, or fails alone.

    Raises:
        MissingDependencyError: onnx or onnxruntime is not installed.
        InputNotFoundError: there is no such file.
        InputFormatError: ONNX Runtime cannot load it.
        NotRepeatableError: nothing was selected.
        UsageError: the model does not run with these inputs, is over 2 GB and no file, a time or number is not above 0, or
            an execution provider does not work here.
    """
    check_replay(seconds, rounds)
    if threads is not None and threads < 1:
        raise UsageError(f"cannot run with {threads} threads", remedy="give a number above 0")
    known = import_onnx()[1].get_available_providers()
    unknown = sorted(set(providers) - set(known))
    if unknown:
        raise UsageError(f"this onnxruntime has no {unknown[0]}", remedy=f"it has {', '.join(known)}")
    with tempfile.TemporaryDirectory(prefix="magneton-") as scratch:
        program = optimise(model, Path(scratch), providers, threads, optimisation, provider_options)
        nodes = [node for node in program.model.graph.node if select(node.op_type, node.name)]
        if not nodes:
            raise NotRepeatableError(NOT_SELECTED)
        recorded = record(program, nodes, feeds)
        # A value is released after the last node that needs it.
        last = {name: position for position, node in enumerate(nodes) for name in node.input}
        done = []
        for position, node in enumerate(nodes):
            replay = None
            refusal = _refusal(program, node, recorded)
            if refusal is None:
                replay, refusal = attempt(partial(_replay, program, node, recorded, seconds, rounds, copies))
            forms = tuple(_form(program, name, recorded) for name in node.input if name)
            done.append(ReplayedCall(node.op_type, node.name, forms, replay, refusal))
            for name in {name for name in node.input if last[name] == position}:
                recorded.pop(name, None)
    return done
