"""Replaying operations of TensorFlow graphs: which they are, what they are given, what they compute, what is refused."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed (pip install 'magneton[tensorflow]')")

pytestmark = pytest.mark.systems

from magneton.collectors.replay import tensorflow as replay_tensorflow  # noqa: E402
from magneton.collectors.replay import windows as replays  # noqa: E402
from magneton.collectors.replay.tensorflow import replay_operations  # noqa: E402
from magneton.collectors.replay.windows import NotRepeatableError, Replay, ReplayedCall  # noqa: E402
from magneton.schemas.errors import MissingDependencyError, UsageError  # noqa: E402

NOTHING = {"Const", "Identity", "NoOp"}


class Watched:
    """What each replay was made of: the operation, its sets of inputs, and what the first set gave."""

    def __init__(self) -> None:
        self.sets: dict[str, list[list[Any]]] = {}
        self.outputs: dict[str, list[Any]] = {}
        self.grappler_off: list[bool] = []

    def __call__(self, operator: str, calls: Sequence[Any], **how: Any) -> Replay:
        self.sets[operator] = [list(call.args) for call in calls]
        self.outputs[operator] = [output.numpy() for output in calls[0]()]
        options = tf.config.optimizer.get_experimental_options()
        self.grappler_off.append(options["disable_meta_optimizer"])
        return Replay(operator, [], len(calls), how["bytes_each"], how["cold"])

    def inputs(self, operator: str) -> list[np.ndarray]:
        return [tensor.numpy() for tensor in self.sets[operator][0]]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    made = Watched()
    monkeypatch.setattr(replays, "replay_in_turns", made)
    return made


@pytest.fixture(autouse=True)
def same_settings() -> Iterator[None]:
    def settings() -> Any:
        return (
            tf.config.optimizer.get_experimental_options(),
            tf.config.functions_run_eagerly(),
            tf.config.threading.get_inter_op_parallelism_threads(),
            tf.executing_eagerly(),
        )

    before = settings()
    yield
    assert settings() == before


def calls_of(function: Any, *args: Any, select: Any = None, **kwargs: Any) -> list[ReplayedCall]:
    """Replay all that computes something, once for a moment, without copies that take turns."""
    chosen = select or (lambda name, place: name not in NOTHING)
    return replay_operations(function, args, kwargs, select=chosen, seconds=0.002, rounds=1, copies=1)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def address(tensor: Any) -> int:
    return np.asarray(memoryview(tensor)).__array_interface__["data"][0]


def test_operations_are_given_what_they_had_and_compute_what_they_did(watched: Watched) -> None:
    weights, large, x, y = tf.Variable(numbers(8, 4)), numbers(20, 20), numbers(2, 8), numbers(2, 4)
    held = tf.constant(large)

    @tf.function
    def program(x: Any, more: Any) -> Any:
        tf.sin(x)
        product = tf.matmul(x, weights)
        left, right = tf.split(product + more["bias"][0], [1, 3], axis=1)
        return tf.nn.relu(right) * left, tf.reduce_sum(held, axis=1)

    found = calls_of(program, x, {"bias": [tf.constant(y)]})
    assert [(call.name, call.place) for call in found] == [
        ("ReadVariableOp", "MatMul/ReadVariableOp"),
        ("MatMul", "MatMul"),
        ("AddV2", "add"),
        ("SplitV", "split"),
        ("Relu", "Relu"),
        ("Mul", "mul"),
        ("Sum", "Sum"),
    ], "in the order of the program, and without what nothing needs"
    forms = {call.name: call.inputs for call in found}
    assert forms["MatMul"] == ("float32[2,8]", "float32[8,4]")
    assert forms["SplitV"] == ("float32[2,4]", "int32[2]", "int32[]")
    product = (x @ weights.numpy()) + 0
    np.testing.assert_array_equal(watched.inputs("MatMul")[0], x)
    np.testing.assert_array_equal(watched.inputs("MatMul")[1], weights.numpy())
    np.testing.assert_allclose(watched.inputs("AddV2")[0], product, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(watched.inputs("AddV2")[1], y)
    np.testing.assert_array_equal(watched.inputs("Sum")[0], large)
    summed = product + y
    for made, expected in [
        (watched.outputs["MatMul"], [product]),
        (watched.outputs["SplitV"], [summed[:, :1], summed[:, 1:]]),
        (watched.outputs["Mul"], [np.maximum(summed[:, 1:], 0) * summed[:, :1]]),
        (watched.outputs["Sum"], [large.sum(axis=1)]),
    ]:
        assert len(made) == len(expected)
        for one, other in zip(made, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_attributes_are_kept(watched: Watched) -> None:
    x, image, kernel = numbers(3, 5), numbers(1, 6, 6, 2), numbers(3, 3, 2, 4)

    def program(x: Any, image: Any) -> Any:
        unique = tf.unique(tf.cast(x[0] > 0, tf.int64), out_idx=tf.int64)
        return tf.matmul(x, x, transpose_b=True), tf.nn.conv2d(image, kernel, 2, "VALID"), unique

    found = {call.name: call for call in calls_of(program, x, image)}
    np.testing.assert_allclose(watched.outputs["MatMul"][0], x @ x.T, rtol=1e-5, atol=1e-6)
    assert watched.outputs["Conv2D"][0].shape == (1, 2, 2, 4)
    np.testing.assert_allclose(
        watched.outputs["Conv2D"][0][0, 1, 0],
        np.tensordot(image[0, 2:5, :3], kernel, 3),
        rtol=1e-4,
        atol=1e-5,
    )
    assert found["Unique"].inputs == ("int64[5]",)
    values, places = watched.outputs["Unique"]
    assert places.dtype == np.int64 and (values[places] == (x[0] > 0)).all()


def test_functions_that_are_called_are_gone_into(watched: Watched) -> None:
    scale = tf.Variable(3.0)

    @tf.function
    def inner(a: Any) -> Any:
        return tf.nn.relu(a) * scale, a - 1

    @tf.function
    def middle(a: Any) -> Any:
        doubled, less = inner(a + a)
        return less / doubled

    @tf.function
    def program(a: Any) -> Any:
        return tf.exp(middle(a))

    x = numbers(7)
    found = [call for call in calls_of(program, x) if call.name != "ReadVariableOp"]
    outer = "StatefulPartitionedCall"
    assert [(call.name, call.place) for call in found] == [
        ("AddV2", f"{outer}/add"),
        ("Relu", f"{outer}/{outer}/Relu"),
        ("Mul", f"{outer}/{outer}/mul"),
        ("Sub", f"{outer}/{outer}/sub"),
        ("RealDiv", f"{outer}/truediv"),
        ("Exp", "Exp"),
    ]
    np.testing.assert_array_equal(watched.inputs("RealDiv")[0], 2 * x - 1)
    np.testing.assert_array_equal(watched.inputs("RealDiv")[1], np.maximum(2 * x, 0) * 3)
    assert watched.inputs("Mul")[1] == 3


def test_what_xla_compiles_is_one_operation(watched: Watched) -> None:
    @tf.function(jit_compile=True)
    def compiled(a: Any) -> Any:
        return tf.nn.relu(a) * 2 + 1

    def program(a: Any) -> Any:
        return compiled(a)

    x = numbers(9)
    for function in (compiled, program):
        found = calls_of(function, x)
        assert [(call.name, call.place, call.inputs) for call in found] == [
            ("PartitionedCall", "PartitionedCall", ("float32[9]",))
        ]
        np.testing.assert_allclose(watched.outputs["PartitionedCall"][0], np.maximum(x, 0) * 2 + 1, rtol=1e-6)


def test_stateless_loops_and_branches_are_replayed_as_a_whole(watched: Watched) -> None:
    def program(x: Any) -> Any:
        for _ in tf.range(3):
            x = x * 2.0
        x = tf.py_function(lambda t: t, [x], tf.float32)
        return -x if tf.reduce_sum(x) > 0 else x + 1.0

    def select(name: str, place: str) -> bool:
        # What was traced is still there, though nobody else holds it.
        gc.collect()
        return name in ("StatelessWhile", "StatelessIf")

    x = np.ones(4, np.float32)
    found = {call.name: call for call in calls_of(program, x, select=select)}
    assert found["StatelessWhile"].refusal is None and found["StatelessIf"].refusal is None
    assert any((output == 8).all() and output.shape == (4,) for output in watched.outputs["StatelessWhile"])
    np.testing.assert_array_equal(watched.outputs["StatelessIf"][0], -8 * x)


@pytest.mark.parametrize("kind", ["function", "tf.function", "signature", "concrete"])
def test_every_kind_of_function_takes_its_arguments(watched: Watched, kind: str) -> None:
    def program(a: Any, b: Any) -> Any:
        return tf.subtract(a, b)

    specs = [tf.TensorSpec([3]), tf.TensorSpec([])]
    function = {
        "function": program,
        "tf.function": tf.function(program),
        "signature": tf.function(program, input_signature=specs),
        "concrete": tf.function(program).get_concrete_function(*specs),
    }[kind]
    x = numbers(3)
    found = calls_of(function, x, b=tf.constant(2.5) if kind == "concrete" else 2.5)
    assert [(call.name, call.place, call.inputs) for call in found] == [("Sub", "Sub", ("float32[3]", "float32[]"))]
    np.testing.assert_array_equal(watched.inputs("Sub")[0], x)
    assert watched.inputs("Sub")[1] == 2.5


def test_layers_and_models_of_keras(watched: Watched) -> None:
    x = numbers(5, 3)
    layer = tf.keras.layers.Dense(4, activation="relu")
    found = calls_of(layer, x)
    assert [call.name for call in found if call.refusal is None] == ["MatMul", "BiasAdd", "Relu"]
    kernel = layer.get_weights()[0]
    np.testing.assert_array_equal(watched.inputs("MatMul")[1], kernel)
    np.testing.assert_allclose(watched.outputs["MatMul"][0], x @ kernel, rtol=1e-5, atol=1e-6)

    inputs = {"a": tf.keras.Input((3,), name="a"), "b": tf.keras.Input((3,), name="b")}
    joined = tf.keras.layers.Multiply()([inputs["a"], inputs["b"]])
    model = tf.keras.Model(inputs, [tf.keras.layers.Dense(2)(joined), joined])
    found = calls_of(model, {"b": x + 1, "a": x}, training=False)
    assert [call.name for call in found if call.refusal is None] == ["Mul", "MatMul", "BiasAdd"]
    np.testing.assert_array_equal(watched.inputs("Mul")[0], x)
    np.testing.assert_array_equal(watched.inputs("Mul")[1], x + 1)
    np.testing.assert_allclose(watched.inputs("MatMul")[0], x * (x + 1), rtol=1e-6)


def test_ragged_and_sparse_arguments_are_taken_apart(watched: Watched) -> None:
    sparse = tf.sparse.from_dense([[1.0, 0.0], [0.0, 2.0]])
    found = calls_of(lambda pair: tf.sparse.sparse_dense_matmul(pair[0], pair[1]), (sparse, numbers(2, 3)))
    assert [call.name for call in found] == ["SparseTensorDenseMatMul"]
    np.testing.assert_array_equal(watched.inputs("SparseTensorDenseMatMul")[1], [1.0, 2.0])


def test_a_program_runs_once_with_its_effects(watched: Watched) -> None:
    weights, steps = tf.Variable([1.0, 2.0]), tf.Variable(0)

    @tf.function
    def train(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x * weights) ** 2)
        gradient = tape.gradient(loss, weights)
        before = weights.read_value() * 10.0
        weights.assign_sub(gradient)
        steps.assign_add(1)
        return before, tf.sqrt(weights * weights)

    x = tf.constant([1.0, 0.25])
    calls_of(train, x)
    assert steps.numpy() == 1
    np.testing.assert_allclose(weights.numpy(), [-1.0, 1.75])
    # What is read after the variable was written to is the new value.
    np.testing.assert_allclose(watched.inputs("Sqrt")[0], [1.0, 1.75**2])

    def no_result(x: Any) -> None:
        steps.assign_add(2)

    assert [call.name for call in calls_of(no_result, x)] == ["AssignAddVariableOp"]
    assert steps.numpy() == 3


def test_what_it_writes_to_variables_can_be_undone(watched: Watched) -> None:
    weight, count = tf.Variable([[1.0, 2.0]]), tf.Variable(0)

    @tf.function
    def inner(x: Any) -> Any:
        count.assign_add(1)
        return tf.matmul(x, weight)

    @tf.function
    def step(x: Any) -> Any:
        y = inner(x)
        weight.assign(y + tf.random.normal([1, 2]))
        return y

    (call,) = replay_operations(
        step, [tf.constant([[3.0]])], select=lambda name, _: name == "MatMul", seconds=0.01, undo=True
    )
    assert call.refusal is None and watched.outputs["MatMul"][0].tolist() == [[3.0, 6.0]]
    assert weight.numpy().tolist() == [[1.0, 2.0]] and count.numpy() == 0
    replay_operations(step, [tf.constant([[3.0]])], select=lambda name, _: name == "MatMul", seconds=0.01)
    assert weight.numpy().tolist() != [[1.0, 2.0]] and count.numpy() == 1


def test_what_cannot_be_undone_is_refused_before_anything_runs(watched: Watched) -> None:
    ran: list[float] = []
    batches = iter(tf.data.Dataset.range(4))

    @tf.function
    def python(x: Any) -> Any:
        tf.py_function(lambda value: ran.append(float(value)), [x], [])
        return tf.tanh(x)

    @tf.function
    def reading(x: Any) -> Any:
        return tf.tanh(x + tf.cast(next(batches), tf.float32))

    for program, names in ((python, "EagerPyFunc"), (reading, "IteratorGetNext")):
        with pytest.raises(NotRepeatableError, match=names):
            replay_operations(
                program, [tf.constant(1.0)], select=lambda name, _: name == "Tanh", seconds=0.01, undo=True
            )
    assert ran == [] and int(next(batches)) == 0 and not watched.sets


def test_values_are_let_go_after_their_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    alive = []

    def count(operator: str, calls: Sequence[Any], **how: Any) -> Replay:
        tensors = [x for x in gc.get_objects() if type(x).__name__ == "EagerTensor"]
        alive.append(sum(x.shape == (3, 77) for x in tensors))
        return Replay(operator)

    def program(x: Any) -> Any:
        for _ in range(6):
            x = tf.sin(x)
        return x

    monkeypatch.setattr(replays, "replay_in_turns", count)
    calls_of(program, tf.constant(numbers(3, 77)))
    assert len(alive) == 6 and alive[5] == alive[2]


def test_what_cannot_be_made_again_is_refused() -> None:
    counter, table = tf.Variable(0.0), tf.Variable(numbers(4, 2))

    @tf.function
    def program(x: Any) -> Any:
        counter.assign_add(1.0)
        drawn = tf.random.normal([3])
        seen = tf.py_function(lambda t: t + 1, [drawn], tf.float32)
        text = tf.strings.as_string(x)
        array = tf.map_fn(lambda t: t * 2, x)
        row = tf.gather(table, [1])
        for _ in tf.range(2):
            x = x + counter
        return seen, text, array, row, x, counter.read_value()

    found = calls_of(program, tf.ones([3]), select=lambda name, place: True)
    reasons = {call.name: call.refusal for call in found}
    for name, why in {
        "AssignAddVariableOp": "resource",
        "ReadVariableOp": "resource",
        "ResourceGather": "resource",
        "RandomStandardNormal": "stateful",
        "EagerPyFunc": "stateful",
        "AsString": "string",
        "TensorListFromTensor": "variant",
        "StatelessWhile": "variant",
        "While": "resource",
        "Const": "computes nothing",
        "NoOp": "computes nothing",
    }.items():
        assert why in (reasons[name] or ""), name
    assert all((call.replay is None) == (call.refusal is not None) for call in found)
    assert counter.numpy() == 1


def test_a_stateful_branch_and_a_collective_are_refused() -> None:
    def program(x: Any) -> Any:
        tf.debugging.assert_positive(x)
        return tf.raw_ops.CollectiveReduce(
            input=x, group_size=1, group_key=1, instance_key=1, merge_op="Add", final_op="Id", subdiv_offsets=[0]
        )

    reasons = {call.name: call.refusal for call in calls_of(program, tf.ones([3]))}
    assert "holds a function and is stateful" in (reasons["If"] or "")
    assert "communicates" in (reasons["CollectiveReduce"] or "")
    assert reasons["Less"] is None


def test_sets_are_copies_that_take_turns(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "host_cache_bytes", lambda: 1 << 16)
    monkeypatch.setattr(replays, "host_free_bytes", lambda: 1 << 30)
    a, b = tf.constant(numbers(64, 64)), tf.constant(numbers(64))

    def program(a: Any, b: Any) -> Any:
        return tf.matmul(a, a), tf.add(b, tf.zeros([0, 64])), tf.multiply(a, b)

    def replay(**how: Any) -> dict[str, Any]:
        found = replay_operations(program, (a, b), select=lambda name, _: name not in NOTHING, seconds=0.002, **how)
        return {call.name: call.replay or call.refusal for call in found}

    done = replay()
    assert (done["MatMul"].bytes_each, done["MatMul"].copies, done["MatMul"].cold) == (1 << 14, 9, True)
    assert (done["Mul"].bytes_each, done["Mul"].copies) == ((1 << 14) + 256, 9)
    sets = watched.sets["MatMul"]
    assert all(left is right for left, right in sets), "a tensor that is given twice is copied once"
    places = {address(left) for left, _ in sets} | {address(a)}
    assert len(places) == 10, "in memory of their own"
    assert all((left.numpy() == a.numpy()).all() and left.device == a.device for left, _ in sets)

    done = replay(copies=3)
    assert (done["MatMul"].copies, done["MatMul"].cold) == (3, False)
    monkeypatch.setattr(replays, "host_free_bytes", lambda: 1 << 15)
    done = replay()
    assert "no room" in done["MatMul"] and (done["AddV2"].copies, done["AddV2"].cold) == (32, False)


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (RuntimeError("no such kernel"), "its trial failed: RuntimeError: no such kernel"),
        (
            tf.errors.ResourceExhaustedError(None, None, "out of memory"),
            "there is no room in memory for copies of its inputs and outputs",
        ),
    ],
)
def test_a_call_that_fails_is_refused_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, error: Exception, refusal: str
) -> None:
    turns = replay_tensorflow._turns

    def fails_once(given: Sequence[Any], *rest: Any) -> Any:
        if len(given) == 2 and given[1].shape.rank == 2:
            raise error
        return turns(given, *rest)

    monkeypatch.setattr(replay_tensorflow, "_turns", fails_once)
    found = calls_of(lambda x, w: tf.exp(tf.matmul(x, w)), numbers(4, 4), numbers(4, 4))
    known = {call.name: (call.replay is not None, call.refusal) for call in found}
    assert known["MatMul"] == (False, refusal)
    assert known["Exp"] == (True, None)


def test_what_is_given_nothing_has_one_cold_set(watched: Watched) -> None:
    found = calls_of(tf.exp, np.zeros((0, 3), np.float32))
    assert [call.inputs for call in found] == [("float32[0,3]",)]
    done = found[0].replay
    assert done is not None and (done.copies, done.bytes_each, done.cold) == (1, 0, True)


def test_settings_are_only_changed_meanwhile(watched: Watched) -> None:
    @tf.function
    def inner(x: Any) -> Any:
        return tf.nn.relu(x)

    @tf.function
    def program(x: Any) -> Any:
        return inner(x) + 1.0

    tf.config.run_functions_eagerly(True)
    try:
        found = calls_of(program, numbers(3))
        assert tf.config.functions_run_eagerly()
    finally:
        tf.config.run_functions_eagerly(False)
    assert [call.place for call in found] == ["PartitionedCall/Relu", "add"] and watched.grappler_off == [True, True]
    node = program.get_concrete_function(tf.TensorSpec([3])).graph.get_operation_by_name("PartitionedCall")
    fresh = tf.function(lambda x: -inner(x)).get_concrete_function(tf.TensorSpec([3]))
    other = fresh.graph.get_operation_by_name("PartitionedCall")
    assert node.get_attr("config_proto") == other.get_attr("config_proto"), "the program is left as it would be"


def test_windows_are_filled_with_the_operation() -> None:
    large, small = tf.constant(numbers(256, 256)), tf.constant(numbers(4, 4))
    found = replay_operations(
        lambda a, b: (tf.matmul(a, a), tf.nn.relu(b)),
        (large, small),
        select=lambda name, place: place in ("MatMul", "Relu"),
        seconds=0.03,
        copies=2,
    )
    assert [call.name for call in found] == ["MatMul", "Relu"]
    for call in found:
        done = call.replay
        assert done is not None and done.operator == call.name and done.copies == 2
        assert len(done.windows) == 2 and done.windows[0].end_ns <= done.windows[1].start_ns
        assert all(window.duration_s >= 0.03 and window.calls >= 1 for window in done.windows)


def test_nothing_selected_senseless_numbers_and_no_eager_execution() -> None:
    ran = tf.Variable(0)

    def program(x: Any) -> Any:
        ran.assign_add(1)
        return x + 1

    with pytest.raises(NotRepeatableError, match="nothing was selected"):
        calls_of(program, tf.ones([2]), select=lambda name, place: False)
    for how in ({"seconds": 0.0}, {"seconds": 0.01, "rounds": 0}):
        with pytest.raises(UsageError):
            replay_operations(program, (tf.ones([2]),), select=lambda name, place: True, **how)
    with tf.Graph().as_default(), pytest.raises(UsageError, match="eager"):
        calls_of(program, 1.0)
    assert ran.numpy() == 0, "refused before it ran"


def test_a_variable_for_a_tensor_and_old_control_flow_are_refused() -> None:
    function = tf.function(lambda x: x * 2, input_signature=[tf.TensorSpec([2])])
    with pytest.raises(UsageError, match="give tensors"):
        calls_of(function, tf.Variable([1.0, 2.0]))
    with pytest.raises(NotRepeatableError, match="TensorFlow 1"):
        calls_of(lambda x: tf.raw_ops.Switch(data=x, pred=True)[1], tf.ones([2]))


def test_without_tensorflow_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(MissingDependencyError, match=r"pip install 'magneton\[tensorflow\]'"):
        calls_of(lambda x: x, 1.0)
