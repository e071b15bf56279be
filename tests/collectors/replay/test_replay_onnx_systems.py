"""Replaying the nodes of an ONNX model: their inputs and outputs are those of the program; what cannot be replayed is said."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (pip install 'magneton[onnx]')")
ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install 'magneton[onnx]')")

pytestmark = pytest.mark.systems

from magneton.collectors.replay import onnxruntime as replay_onnx  # noqa: E402
from magneton.collectors.replay.onnxruntime import bind, one_node_model, optimise, record, replay_nodes  # noqa: E402
from magneton.collectors.replay.windows import NotRepeatableError  # noqa: E402
from magneton.schemas.errors import (  # noqa: E402
    InputFormatError,
    InputNotFoundError,
    MissingDependencyError,
    UsageError,
)

CPU = ("CPUExecutionProvider",)
FLOAT, HALF, BRAIN, INT64, BOOL, STRING = (
    getattr(onnx.TensorProto, name) for name in ("FLOAT", "FLOAT16", "BFLOAT16", "INT64", "BOOL", "STRING")
)
node, tensor = onnx.helper.make_node, onnx.numpy_helper.from_array
RANDOM = np.random.default_rng(7)
IMAGE = RANDOM.normal(size=(1, 16, 16, 16)).astype(np.float32)
W, B = RANDOM.normal(size=(16, 8)).astype(np.float32), RANDOM.normal(size=8).astype(np.float32)
W2 = RANDOM.normal(size=(64, 8)).astype(np.float32)


def given(name: str, kind: int, *shape: int) -> Any:
    return onnx.helper.make_tensor_value_info(name, kind, shape)


def build(nodes: list[Any], inputs: list[Any], outputs: list[str], weights: Sequence[Any] = (), **more: Any) -> Any:
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = onnx.helper.make_graph(nodes, "program", inputs, results, list(weights), **more)
    domains = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    return onnx.helper.make_model(graph, opset_imports=domains, ir_version=9)


def network() -> Any:
    """A convolution that is laid out anew, what is folded and fused, two outputs, an input left out, nodes without names."""
    kernel = RANDOM.normal(size=(16, 16, 3, 3)).astype(np.float32)
    return build(
        [
            node("Conv", ["image", "kernel"], ["convolved"], name="conv", pads=[1, 1, 1, 1]),
            node("Relu", ["convolved"], ["rectified"], name="relu"),
            node("Add", ["one", "one"], ["two"]),
            node("MatMul", ["rectified", "w"], ["product"], name="mm"),
            node("Add", ["product", "b"], ["sum"]),
            node("Mul", ["sum", "two"], ["double"]),
            node("Split", ["double"], ["left", "right"], axis=1, num_outputs=2),
            node("Reshape", ["right", "shape"], ["flat"]),
            node("Gemm", ["flat", "w2", "b"], ["affine"], name="gm"),
            node("Relu", ["affine"], ["y"]),
            node("Clip", ["left", "", "top"], ["clipped"], name="clip"),
            node("Mul", ["clipped", "clipped"], ["square"]),
        ],
        [given("image", FLOAT, 1, 16, 16, 16)],
        ["square", "y"],
        [
            tensor(kernel, "kernel"),
            tensor(np.array([1], np.float32), "one"),
            tensor(W, "w"),
            tensor(B, "b"),
            tensor(np.array([-1, 64]), "shape"),
            tensor(W2, "w2"),
            tensor(np.float32(0.5), "top"),
        ],
    )


def product(x: Any = None) -> Any:
    """y = x w."""
    return build([node("MatMul", ["x", "w"], ["y"], name="mm")], [given("x", FLOAT, 4, 16)], ["y"], [tensor(W, "w")])


X = RANDOM.normal(size=(4, 16)).astype(np.float32)


def load(one: Any) -> Any:
    return ort.InferenceSession(one.SerializeToString(), providers=list(CPU))


def once(program: Any, which: Any, values: dict[str, Any]) -> list[Any]:
    """Run a node alone and return its outputs."""
    session = load(one_node_model(program, which, values))
    return list(bind(session, values)().copy_outputs_to_cpu())


def quick(model: Any, feeds: dict[str, Any], select: Any = lambda name, place: True, **more: Any) -> list[Any]:
    return replay_nodes(model, feeds, select=select, **{"seconds": 0.02, "rounds": 1, "copies": 2, "threads": 1} | more)


def test_every_node_alone_is_given_and_computes_what_it_was_and_did_in_the_program(tmp_path: Path) -> None:
    model = network()
    program = optimise(model, tmp_path, CPU, 1)
    nodes = list(program.model.graph.node)
    assert {n.op_type for n in nodes} >= {"Conv", "ReorderInput", "Gemm", "FusedGemm", "Split", "Reshape", "Clip"}
    assert "two" in program.weights, "folded"
    values = record(program, nodes, {"image": IMAGE})
    # What the program computes when it is not optimised, where names are still the same.
    plain = network()
    plain.CopyFrom(model)
    kept = ["rectified", "sum", "double", "left", "right", "flat", "clipped"]
    plain.graph.output.extend(onnx.ValueInfoProto(name=name) for name in kept)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(plain.SerializeToString(), options, providers=list(CPU))
    truth = dict(zip(["square", "y", *kept], session.run(None, {"image": IMAGE}), strict=True))
    assert np.array_equal(values["image"].numpy(), IMAGE)
    shared = values.keys() & truth.keys()
    assert shared >= {"rectified", "left", "right", "flat", "clipped"}
    for name in shared:
        np.testing.assert_allclose(values[name].numpy(), truth[name], rtol=1e-4, atol=1e-4)
    compared = 0
    for which in nodes:
        session = load(one_node_model(program, which, values))
        assert {given.name for given in session.get_inputs()} == {n for n in which.input if n in values}
        assert not session.get_overridable_initializers(), "weights are constants and can be packed"
        for name, made in zip(which.output, once(program, which, values), strict=True):
            if name in values:
                assert np.array_equal(made, values[name].numpy()), name
            else:
                np.testing.assert_allclose(made, truth[name], rtol=1e-3, atol=1e-3)
            compared += 1
    assert compared == len(nodes) + 1, "one has two outputs"
    flat = values["flat"].numpy()
    fused = next(n for n in nodes if n.op_type == "FusedGemm")
    np.testing.assert_allclose(once(program, fused, values)[0], np.maximum(flat @ W2 + B, 0), rtol=1e-4, atol=1e-4)


def test_names_places_and_forms_are_those_of_the_optimised_model(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []
    wanted = ("FusedGemm", "Clip", "Split", "Mul", "Conv")

    def select(name: str, place: str) -> bool:
        asked.append((name, place))
        return name in wanted

    found = quick(network(), {"image": IMAGE}, select)
    assert all(call.replay is not None and call.refusal is None for call in found)
    assert [(c.name, c.place) for c in found] == [pair for pair in asked if pair[0] in wanted], "order of the program"
    forms = {call.place: call.inputs for call in found}
    assert forms["clip"] == ("float32[1,8,16,8]", "float32[]")
    assert forms["fused gm"] == ("float32[16,64]", "float32[64,8]", "float32[8]")
    assert forms["Split#0"] == ("float32[1,16,16,8]",)
    assert forms["Mul#0"] == ("float32[1,16,16,8]", "float32[1]")
    assert forms["Mul#1"] == ("float32[1,8,16,8]",) * 2
    sizes = {c.place: c.replay.bytes_each for c in found}
    assert sizes["Mul#1"] == 8 * 16 * 8 * 4, "what is given twice is one array"
    assert sizes["fused gm"] == 4 * (16 * 64 + 64 * 8 + 8) and sizes["clip"] == 4 * (8 * 16 * 8 + 1)
    assert [c.replay.operator for c in found] == [c.name for c in found]
    # The profiler's events are named after them.
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    session = ort.InferenceSession(network().SerializeToString(), options, providers=list(CPU))
    session.run(None, {"image": IMAGE})
    events = [e for e in json.loads(Path(session.end_profiling()).read_text()) if e["cat"] == "Node"]
    assert sorted(e["args"]["op_name"] for e in events) == sorted(name for name, _ in asked)
    named = {place for _, place in asked if "#" not in place}
    assert {e["name"].removesuffix("_kernel_time") for e in events} >= named and len(named) > 5


def test_a_repeated_name_is_numbered() -> None:
    nodes = [node("Relu", ["x"], ["x"], name=name) for name in ("a", "", "a", "a#1", "", "Relu#0")]
    replay_onnx._name_nodes(nodes)
    assert [n.name for n in nodes] == ["a", "Relu#0", "a#1", "a#1#1", "Relu#1", "Relu#0#1"]


def settings(session: Any) -> tuple[Any, ...]:
    options = session.get_session_options()
    spin = options.get_session_config_entry("session.intra_op.allow_spinning")
    return options.intra_op_num_threads, spin, options.graph_optimization_level.name


def test_windows_hold_calls_and_copies_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    sessions: list[Any] = []
    real = bind

    def spy(session: Any, values: dict[str, Any]) -> Any:
        call, which = real(session, values), len(sessions)
        sessions.append(session)

        def counted() -> Any:
            made.append(which)
            return call()

        return counted

    monkeypatch.setattr(replay_onnx, "bind", spy)
    monkeypatch.setattr(replay_onnx, "host_cache_bytes", lambda: 1 << 10)
    (call,) = quick(product(), {"x": X}, copies=None, seconds=0.03, rounds=2)
    assert len(call.replay.windows) == 2 and call.replay.windows[0].end_ns <= call.replay.windows[1].start_ns
    assert all(0.03 <= w.duration_s < 3 and w.calls > 1 for w in call.replay.windows)
    # 4 x 16 and 16 x 8 elements; the cache holds one set and a third.
    assert call.replay.bytes_each == 768 and call.replay.copies == 4 and call.replay.cold
    assert len(set(map(id, sessions))) == 4, "each set has weights of its own"
    assert made[:9] == [0, 0, 1, 2, 3, 0, 1, 2, 3], "each has run before a window begins"
    assert len(made) == 5 + sum(2 + w.calls for w in call.replay.windows)
    assert all(settings(session) == (1, "0", "ORT_DISABLE_ALL") for session in sessions)
    sessions.clear()
    (call,) = quick(product(), {"x": X}, copies=2)
    assert call.replay.copies == len(sessions) == 2 and not call.replay.cold
    sessions.clear()
    exp = build([node("Exp", ["x"], ["y"])], [given("x", FLOAT, 4, 16)], ["y"])
    (call,) = quick(exp, {"x": X}, copies=None)
    assert call.replay.copies == 9 == len(sessions) and call.replay.cold and len(set(map(id, sessions))) == 1
    assert settings(sessions[0]) == (1, "1", "ORT_DISABLE_ALL")
    sessions.clear()
    monkeypatch.setattr(replay_onnx, "_MAX_THREADS", 3)
    (call,) = quick(product(), {"x": X}, copies=None)
    assert call.replay.copies == 3 and call.replay.cold, "two other sets still fill the cache"
    monkeypatch.setattr(replay_onnx, "_MAX_THREADS", 2)
    (call,) = quick(product(), {"x": X}, copies=None)
    assert call.replay.copies == 2 and not call.replay.cold


def test_sets_have_memory_of_their_own(tmp_path: Path) -> None:
    program = optimise(build([node("Exp", ["x"], ["y"])], [given("x", FLOAT, 4, 16)], ["y"]), tmp_path, CPU, 1)
    values = record(program, program.model.graph.node, {"x": X.copy()})
    session = load(one_node_model(program, program.model.graph.node[0], values))
    calls = [bind(session, values) for _ in range(2)]
    pointers = [call().get_outputs()[0].data_ptr() for call in calls]
    assert len(set(pointers)) == 2
    values["x"].update_inplace(np.zeros_like(X))
    assert np.allclose(calls[0]().copy_outputs_to_cpu()[0], np.exp(X)), "the inputs are copies"


def test_outputs_need_room_too(monkeypatch: pytest.MonkeyPatch) -> None:
    grow = build(
        [node("Expand", ["x", "shape"], ["y"])],
        [given("x", FLOAT, 4, 16)],
        ["y"],
        [tensor(np.array([63, 4, 16]), "shape")],
    )
    monkeypatch.setattr(replay_onnx, "host_cache_bytes", lambda: None)
    # A quarter of it holds ten sets of 256 + 24 bytes with outputs of 63 times 256.
    monkeypatch.setattr(replay_onnx, "host_free_bytes", lambda: 4 * 10 * (280 + 63 * 256))
    (call,) = quick(grow, {"x": X}, copies=None)
    assert call.replay.copies == 10 and not call.replay.cold
    monkeypatch.setattr(replay_onnx, "host_free_bytes", lambda: 4 * (280 + 63 * 256) - 100)
    (call,) = quick(grow, {"x": X}, copies=None)
    assert call.replay is None and "no room" in call.refusal


def test_a_node_without_inputs_is_one_set(tmp_path: Path) -> None:
    empty = build([node("Exp", ["x"], ["y"])], [given("x", FLOAT, 0, 16)], ["y"])
    (call,) = quick(empty, {"x": X[:0]}, copies=None)
    assert call.inputs == ("float32[0,16]",)
    assert (call.replay.copies, call.replay.bytes_each, call.replay.cold) == (1, 0, True)


def test_the_order_of_memory_and_scalars_are_kept(tmp_path: Path) -> None:
    model = build([node("Sub", ["x", "s"], ["y"])], [given("x", FLOAT, 16, 4), given("s", FLOAT)], ["y"])
    program = optimise(model, tmp_path, CPU, 1)
    which = program.model.graph.node[0]
    values = record(program, [which], {"x": X.T, "s": np.float32(3)})
    assert np.array_equal(values["x"].numpy(), X.T) and values["s"].numpy() == 3
    assert np.array_equal(once(program, which, values)[0], X.T - 3)
    assert [call.inputs for call in quick(model, {"x": X.T, "s": np.float32(3)})] == [("float32[16,4]", "float32[]")]


@pytest.mark.parametrize(("version", "constant"), [(3, True), (9, False)])
def test_an_initialiser_that_is_an_input_too_can_be_replaced(tmp_path: Path, version: int, constant: bool) -> None:
    model = product()
    model.graph.input.append(given("w", FLOAT, 16, 8))
    model.ir_version = version
    model.opset_import[0].version = 8
    program = optimise(model, tmp_path, CPU, 1)
    which = program.model.graph.node[0]
    values = record(program, [which], {"x": X})
    assert set(values) == {"x"} and np.allclose(once(program, which, values)[0], X @ W, atol=1e-5)
    session = load(one_node_model(program, which, values))
    assert [i.name for i in session.get_overridable_initializers()] == ([] if constant else ["w"])
    if not constant:
        other = (W * 2).astype(np.float32)
        values = record(program, [which], {"x": X, "w": other})
        assert np.allclose(once(program, which, values)[0], X @ other, atol=1e-4)
        assert [len(c.inputs) for c in quick(model, {"x": X, "w": other})] == [2]


def test_weights_in_a_file_of_their_own_are_loaded(tmp_path: Path) -> None:
    wide = RANDOM.normal(size=(16, 128)).astype(np.float32)
    model = build([node("MatMul", ["x", "w"], ["y"])], [given("x", FLOAT, 4, 16)], ["y"], [tensor(wide, "w")])
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="data.bin", size_threshold=0)
    assert (tmp_path / "data.bin").stat().st_size >= wide.nbytes
    before = sorted(tmp_path.iterdir())
    (call,) = quick(path, {"x": X})
    assert call.refusal is None and call.replay.bytes_each == X.nbytes + wide.nbytes
    assert sorted(tmp_path.iterdir()) == before, "nothing is written beside the model"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    program = optimise(path, scratch, CPU, 1)
    which = program.model.graph.node[0]
    assert not program.weights["w"].raw_data, "weights are not held for all nodes at once"
    assert np.allclose(once(program, which, record(program, [which], {"x": X}))[0], X @ wide, atol=1e-5)
    (tmp_path / "data.bin").unlink()
    with pytest.raises(InputFormatError, match="cannot load") as caught:
        quick(path, {"x": X})
    assert caught.value.path == str(path)


@pytest.mark.parametrize(("kind", "name"), [(HALF, "float16"), (BRAIN, "bfloat16")])
def test_short_floats_are_copied_bit_by_bit(tmp_path: Path, kind: int, name: str) -> None:
    model = build(
        [
            node("Cast", ["x"], ["short"], to=kind),
            node("Reshape", ["short", "s"], ["r"]),
            node("Cast", ["r"], ["y"], to=1),
        ],
        [given("x", FLOAT, 4, 16)],
        ["y"],
        [tensor(np.array([64]), "s")],
    )
    found = quick(model, {"x": X})
    assert [c.inputs[0] for c in found] == ["float32[4,16]", f"{name}[4,16]", f"{name}[64]"]
    assert all(c.refusal is None for c in found) and found[1].replay.bytes_each == 64 * 2 + 8
    program = optimise(model, tmp_path, CPU, 1)
    last = program.model.graph.node[2]
    short = X.ravel().astype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    assert np.array_equal(once(program, last, record(program, [last], {"x": X}))[0], short.astype(np.float32))


def test_a_bfloat16_array_can_be_fed() -> None:
    model = build([node("Cast", ["x"], ["y"], to=FLOAT)], [given("x", BRAIN, 4, 16)], ["y"])
    (call,) = quick(model, {"x": X.astype(onnx.helper.tensor_dtype_to_np_dtype(BRAIN))})
    assert call.inputs == ("bfloat16[4,16]",) and call.refusal is None


def reason_of(
    nodes: list[Any], weights: Sequence[Any] = (), feeds: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    inputs = [given("x", FLOAT, 4, 16), *more.pop("inputs", [])]
    model = build(nodes, inputs, [nodes[-1].output[0]], weights, **more)
    return {call.name: call for call in quick(model, {"x": X} | (feeds or {}))}


@pytest.mark.parametrize(
    "operation",
    [
        node("RandomNormal", [], ["r"], shape=[4, 16]),
        node("RandomUniform", [], ["r"], shape=[4, 16], seed=1.0),
        node("RandomNormalLike", ["x"], ["r"]),
        node("RandomUniformLike", ["x"], ["r"]),
        node("Multinomial", ["x"], ["r"], sample_size=16, dtype=7),
    ],
    ids=lambda n: n.op_type,
)
def test_random_operations_are_refused_and_the_others_replayed(operation: Any) -> None:
    found = reason_of([operation, node("Cast", ["r"], ["c"], to=11), node("Exp", ["c"], ["y"])])
    assert found[operation.op_type].refusal == "draws random numbers" and found[operation.op_type].replay is None
    assert found["Exp"].refusal is None and found["Exp"].replay is not None


def test_a_dropout_is_refused_while_it_is_training() -> None:
    nodes = [node("Dropout", ["x", "ratio", "training"], ["d"]), node("Exp", ["d"], ["y"])]
    ratio, mode = tensor(np.float32(0.5), "ratio"), given("training", BOOL)
    fixed = reason_of(nodes, [ratio, tensor(np.array(True), "training")])
    assert fixed["Dropout"].refusal == "draws random numbers" and fixed["Exp"].replay
    found = reason_of(nodes, [ratio], {"training": np.array(True)}, inputs=[mode])
    assert found["Dropout"].refusal == "draws random numbers"
    assert found["Dropout"].inputs == ("float32[4,16]", "float32[]", "bool[]")
    found = reason_of(nodes, [ratio], {"training": np.array(False)}, inputs=[mode])
    assert found["Dropout"].refusal is None and found["Dropout"].replay


def test_a_collective_is_refused(tmp_path: Path) -> None:
    program = optimise(product(), tmp_path, CPU, 1)
    assert replay_onnx._refusal(program, node("AllReduce", ["w"], ["y"], domain="com.microsoft"), {}) == "communicates"
    assert replay_onnx._refusal(program, node("Exp", ["w"], ["y"]), {}) is None


def test_what_holds_a_subgraph_is_refused() -> None:
    def branch(operation: str) -> Any:
        return onnx.helper.make_graph([node(operation, ["x"], ["b"])], operation, [], [given("b", FLOAT, 4, 16)])

    choice = node("If", ["c"], ["i"], then_branch=branch("Exp"), else_branch=branch("Neg"))
    found = reason_of([choice, node("Abs", ["i"], ["y"])], [], {"c": np.array(True)}, inputs=[given("c", BOOL)])
    assert found["If"].refusal == "holds a subgraph" and found["If"].inputs == ("bool[]",)
    assert found["Abs"].replay and set(found) == {"If", "Abs"}


def test_what_is_no_array_of_numbers_is_refused() -> None:
    found = reason_of(
        [
            node("SplitToSequence", ["x"], ["q"], axis=0),
            node("ConcatFromSequence", ["q"], ["c"], axis=0),
            node("Optional", ["c"], ["o"]),
            node("OptionalGetElement", ["o"], ["y"]),
            node("Abs", ["y"], ["z"]),
        ]
    )
    assert found["SplitToSequence"].refusal == "an output is of type seq(tensor(float))"
    assert found["ConcatFromSequence"].refusal == "an input is of type seq(tensor(float)), which is not copied"
    assert found["ConcatFromSequence"].inputs == ("seq(tensor(float))",)
    assert found["Optional"].refusal == "an output is of type optional(tensor(float))"
    assert found["OptionalGetElement"].inputs == ("float32[4,16]",), "one that is full is what it holds"
    assert found["Abs"].replay
    kind = onnx.helper.make_tensor_type_proto(FLOAT, [4, 16])
    empty = reason_of(
        [
            node("Optional", [], ["o"], type=kind),
            node("OptionalHasElement", ["o"], ["h"]),
            node("Cast", ["h"], ["c"], to=FLOAT),
            node("Add", ["x", "c"], ["y"]),
        ]
    )
    assert empty["OptionalHasElement"].refusal == "an input is of type empty optional, which is not copied"
    assert empty["Cast"].replay and empty["Add"].replay
    maps = reason_of([node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=list(range(16)))])
    assert maps["ZipMap"].refusal == "an output is of type seq(map(int64,tensor(float)))"


def test_strings_are_refused_and_what_they_lead_to_replayed() -> None:
    words = np.array(["a", "b"], object)
    encode = node("LabelEncoder", ["s"], ["n"], domain="ai.onnx.ml", keys_strings=["a", "b"], values_int64s=[3, 5])
    found = reason_of([encode, node("Neg", ["n"], ["y"])], [], {"s": words}, inputs=[given("s", STRING, 2)])
    assert found["LabelEncoder"].refusal == "an input is of type tensor(string), which is not copied"
    assert found["LabelEncoder"].inputs == ("tensor(string)",)
    assert found["Neg"].inputs == ("int64[2]",) and found["Neg"].replay
    same = node("Equal", ["s", "t"], ["y"])
    model = build([same], [given("s", STRING, 2)], ["y"], [tensor(words, "t")])
    model.opset_import[0].version = 19
    (call,) = quick(model, {"s": words.astype(str)})
    assert "tensor(string)" in call.refusal and call.inputs == ("tensor(string)",) * 2


def test_a_sparse_initialiser_is_refused() -> None:
    sparse = onnx.helper.make_sparse_tensor(tensor(np.ones(2, np.float32), "w"), tensor(np.array([3, 7])), [16, 8])
    found = reason_of([node("MatMul", ["x", "w"], ["p"]), node("Abs", ["p"], ["y"])], sparse_initializer=[sparse])
    assert found["MatMul"].refusal == "an input is of type sparse tensor, which is not copied" and found["Abs"].replay


def test_what_fails_alone_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(session: Any, values: Any) -> Any:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(replay_onnx, "bind", fail)
    (call,) = quick(product(), {"x": X})
    assert call.replay is None and call.refusal == "its trial failed: RuntimeError: no such kernel"


def test_models_that_memory_cannot_hold_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(product(), path)
    monkeypatch.setattr(onnx.checker, "MAXIMUM_PROTOBUF", 400)
    with pytest.raises(UsageError, match="2 GB"):
        quick(product(), {"x": X})
    (call,) = quick(path, {"x": X})
    assert call.replay is None and "2 GB" in call.refusal


def test_values_are_let_go_after_the_last_node_that_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[set[str]] = []
    monkeypatch.setattr(replay_onnx, "_replay", lambda program, which, values, *more: held.append(set(values)))
    nodes = [node("Exp", ["x"], ["a"]), node("Mul", ["a", "x"], ["b"]), node("Neg", ["b"], ["y"])]
    quick(build(nodes, [given("x", FLOAT, 4, 16)], ["y"]), {"x": X})
    assert held == [{"x", "a", "b"}, {"x", "a", "b"}, {"b"}]


def test_a_local_function_is_replayed_as_its_nodes() -> None:
    domains = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("own", 1)]
    body = [node("Exp", ["a"], ["t"]), node("Sin", ["t"], ["b"])]
    model = build([node("Both", ["x"], ["y"], domain="own")], [given("x", FLOAT, 4, 16)], ["y"])
    model.functions.append(onnx.helper.make_function("own", "Both", ["a"], ["b"], body, domains[:1]))
    model.opset_import.append(domains[1])
    assert [(c.name, c.refusal) for c in quick(model, {"x": X})] == [("Exp", None), ("Sin", None)]


def test_the_model_and_the_feeds_are_not_changed() -> None:
    model, x = network(), IMAGE.copy()
    before = model.SerializeToString(deterministic=True)
    quick(model, {"image": x}, lambda name, place: name == "Clip")
    assert model.SerializeToString(deterministic=True) == before and np.array_equal(x, IMAGE)


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    feeds = {"x": X}
    with pytest.raises(NotRepeatableError, match="nothing was selected"):
        quick(product(), feeds, lambda name, place: False)
    for wrong in ({"seconds": 0}, {"rounds": 0}, {"threads": 0}, {"providers": ("NoExecutionProvider",)}):
        with pytest.raises(UsageError):
            quick(product(), feeds, **wrong)
    for wrong_feeds, why in (
        ({}, "x"),
        ({"x": X.astype(np.float64)}, "double"),
        ({"x": X[0]}, "rank"),
        ({"x": X, "z": X}, "z"),
        ({"x": X, "z": np.array(["a"])}, "z"),
        ({"x": np.array(["a"])}, "does not run"),
        ({"x": X.astype("datetime64[s]")}, "does not run"),
    ):
        with pytest.raises(UsageError, match=why):
            quick(product(), wrong_feeds)
    with pytest.raises(InputNotFoundError) as missing:
        quick(tmp_path / "none.onnx", feeds)
    assert missing.value.path == str(tmp_path / "none.onnx")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\x08\x09 no model")
    with pytest.raises(InputFormatError, match="cannot load") as damaged:
        quick(str(broken), feeds)
    assert damaged.value.path == str(broken)
    with pytest.raises(InputFormatError, match="cannot load"):
        quick(build([node("Nothing", ["x"], ["y"])], [given("x", FLOAT, 4, 16)], ["y"]), feeds)


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_provider_that_gives_way_to_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", *CPU])
    if "CUDAExecutionProvider" in ort.get_all_providers() and ort.get_device() == "GPU":
        pytest.skip("this onnxruntime has it")
    with pytest.raises(UsageError, match="CUDAExecutionProvider does not work"):
        quick(product(), {"x": X}, providers=("CUDAExecutionProvider", *CPU))


def test_a_missing_framework_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'magneton\[onnx\]'"):
        quick(product(), {"x": X})
