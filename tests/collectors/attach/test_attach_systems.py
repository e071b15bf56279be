"""What attaching to programs of ONNX Runtime, JAX and TensorFlow must not change, and what it must find."""

from __future__ import annotations

import copy
import gc
import importlib
import inspect
import os
import shutil
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from magneton.collectors.attach.request import CaptureReply, CaptureRequest, Region, RepeatRequest, read_replies
from magneton.collectors.attach.system_replays import SystemReplays

pytestmark = pytest.mark.systems

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


class Attached:
    """Replays in this process, of regions by name."""

    def __init__(self, folder: Path, system: str, names: list[str]) -> None:
        self.folder = folder / "replies"
        self.folder.mkdir(exist_ok=True)
        plan = RepeatRequest([Region(n, False, 1, system) for n in names], 0.01, 2, 2, alone=True)
        request = CaptureRequest(
            "repeat", str(folder / "raw"), str(self.folder), warmup_steps=1, steps=None, sensors=[], repeat=plan
        )
        self.request, self.replays = request, SystemReplays(request, system)

    def reply(self) -> CaptureReply:
        self.replays._guarded(self.replays._end)
        (found,) = read_replies(self.request)
        assert found.failure is None
        return found

    def regions(self) -> dict[str, str | None]:
        return {r.region.name: r.reason for r in self.reply().repeats}


Attach = Callable[..., Attached]


@pytest.fixture
def attach(tmp_path: Path) -> Iterator[Attach]:
    """Attach to a module, until the test ends."""
    undo: list[tuple[Any, str, Any]] = []

    def start(system: str, module: Any, *names: str) -> Attached:
        made = Attached(tmp_path, system, list(names))
        patched = {
            "jax": lambda: [(module, "jit")],
            "onnx": lambda: [(module.InferenceSession, "__init__"), (module.InferenceSession, "run")],
            "tensorflow": lambda: [(type(module.function(lambda: None)), "__call__")],
        }[system]()
        undo.extend((owner, name, getattr(owner, name)) for owner, name in patched)
        made.replays.follow(module)
        return made

    yield start
    for owner, name, value in reversed(undo):
        setattr(owner, name, value)


@pytest.fixture
def jax() -> Any:
    return pytest.importorskip("jax", reason="jax is not installed (pip install 'magneton[jax]')")


@pytest.fixture
def ort() -> Any:
    pytest.importorskip("onnx", reason="onnx is not installed (pip install 'magneton[onnx]')")
    return pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install 'magneton[onnx]')")


def test_effects_of_a_jax_program_happen_as_often_as_without(jax: Any, attach: Attach) -> None:
    callbacks = importlib.import_module("jax.experimental")
    calls: list[float] = []
    found = attach("jax", jax, "tanh")

    @jax.jit
    def step(x: Any) -> Any:
        callbacks.io_callback(lambda v: calls.append(float(v)), None, x, ordered=True)
        return jax.numpy.tanh(x)

    for k in range(4):
        step(jax.numpy.float32(k)).block_until_ready()
    jax.effects_barrier()
    assert calls == [0.0, 1.0, 2.0, 3.0]
    (reason,) = found.regions().values()
    assert reason is not None and "effects beside its result" in reason


def test_static_arguments_may_be_given_either_way(jax: Any, attach: Attach) -> None:
    found = attach("jax", jax, "integer_pow", "sin")
    by_name = jax.jit(lambda x, n: x**n, static_argnames=("n",))
    by_number = jax.jit(lambda x, n, mode: jax.numpy.sin(x) * n if mode == "on" else x, static_argnums=(1, 2))
    for _ in range(3):
        assert float(by_name(jax.numpy.float32(2), 3)) == 8.0
        by_number(jax.numpy.float32(2), n=3, mode="on")
    assert set(found.regions().values()) == {None}


def test_calls_inside_others_are_no_programs(jax: Any, attach: Attach) -> None:
    found = attach("jax", jax, "cos", "sin")
    constant = np.float32(0.5)
    inner = jax.jit(lambda: jax.numpy.cos(constant))
    for k in range(4):
        # A new function every time: it is traced, and never called twice.
        jax.jit(lambda x, k=k: x * inner() + k)(jax.numpy.float32(k))
    assert all(reason is not None for reason in found.regions().values())
    assert not found.replays._reasons


def test_a_jitted_function_is_as_it_was(jax: Any, attach: Attach) -> None:
    attach("jax", jax, "tanh")
    bodies: list[int] = []

    class Net:
        @jax.jit
        def shift(self: Any, x: Any) -> Any:
            """Documented."""
            bodies.append(1)
            return x + self

    jax.tree_util.register_pytree_node(Net, lambda n: ((), None), lambda *_: Net())
    Net.__add__ = Net.__radd__ = lambda self, x: x + 1  # type: ignore[attr-defined]
    bound = Net().shift
    assert inspect.ismethod(bound) and bound.__name__ == "shift" and bound.__doc__ == "Documented."
    assert float(bound(jax.numpy.float32(1))) == 2.0
    assert "stablehlo" in bound.lower(Net(), jax.numpy.float32(1)).as_text()
    plain = Net.shift.__wrapped__
    count = len(bodies)
    plain(Net(), jax.numpy.float32(1))
    plain(Net(), jax.numpy.float32(1))
    assert len(bodies) == count + 2
    for made in (copy.copy(Net.shift), copy.deepcopy(Net.shift)):
        assert float(made(Net(), jax.numpy.float32(1))) == 2.0
    with pytest.raises(TypeError):
        jax.jit(None)
    with pytest.raises(TypeError):
        jax.jit(bogus=1)
    late = jax.jit(static_argnums=1)(lambda x, n: x * n)
    assert float(late(jax.numpy.float32(2), 4)) == 8.0


def test_one_program_that_fails_does_not_end_the_others(
    jax: Any, attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("magneton.collectors.replay.jax")
    real, asked = module.replay_equations, []

    def replay(*args: Any, **kwargs: Any) -> Any:
        asked.append(1)
        if len(asked) == 1:
            raise RuntimeError("not this one")
        return real(*args, **kwargs)

    monkeypatch.setattr(module, "replay_equations", replay)
    found = attach("jax", jax, "tanh", "acos")
    one, other = jax.jit(jax.numpy.tanh), jax.jit(lambda x: jax.numpy.tanh(x) * 2)
    for _ in range(3):
        one(jax.numpy.float32(1))
        other(jax.numpy.float32(1))
    regions = found.regions()
    assert regions.pop("tanh at jit:<lambda>#0/tanh#0") is None
    (reason,) = regions.values()
    assert reason is not None and "one could not be replayed: RuntimeError: not this one" in reason


def test_a_call_asked_for_by_name_and_place_stands_once(jax: Any, attach: Attach) -> None:
    found = attach("jax", jax, "tanh", "jit:f#0/tanh#0")

    @jax.jit
    def f(x: Any) -> Any:
        return jax.numpy.tanh(x)

    for _ in range(3):
        f(jax.numpy.float32(1))
    assert list(found.regions().items()) == [("tanh at jit:f#0/tanh#0", None)]


def test_programs_are_let_go(jax: Any, attach: Attach) -> None:
    found = attach("jax", jax, "acos")
    f = jax.jit(lambda x: x + 1)
    for _ in range(3):
        f(jax.numpy.float32(1))
    there = weakref.ref(f)
    del f
    gc.collect()
    assert there() is None and found.reply().steps == 3


def test_nothing_that_goes_wrong_reaches_the_program(jax: Any, attach: Attach) -> None:
    found = attach("jax", jax, "tanh")
    f = jax.jit(jax.numpy.tanh)
    shutil.rmtree(found.folder)
    assert [float(f(jax.numpy.float32(0))) for _ in range(4)] == [0.0] * 4


def model(onnx: Any) -> Any:
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], "mm"), helper.make_node("Add", ["h", "b"], ["y"], "plus")]
    weights = [
        onnx.numpy_helper.from_array(np.ones((3, 2), np.float32), "w"),
        onnx.numpy_helper.from_array(np.ones(2, np.float32), "b"),
    ]
    ends = [helper.make_tensor_value_info(n, kind, [2, size]) for n, size in (("x", 3), ("y", 2))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_the_model_is_optimised_as_far_as_in_the_session(
    ort: Any, attach: Attach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = importlib.import_module("onnx")
    onnx.save(model(onnx), str(tmp_path / "model.onnx"))
    found = attach("onnx", ort, "MatMul", "Add")
    monkeypatch.chdir(tmp_path)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession("model.onnx", options, providers=["CPUExecutionProvider"])
    # Its path was relative.
    monkeypatch.chdir(tmp_path.parent)
    for _ in range(3):
        (y,) = session.run(None, {"x": [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]})
        assert y.tolist() == [[7.0, 7.0], [1.0, 1.0]]
    assert found.regions() == {"MatMul at mm": None, "Add at plus": None}


def test_a_session_from_before_is_told(ort: Any, attach: Attach) -> None:
    onnx = importlib.import_module("onnx")
    session = ort.InferenceSession(model(onnx).SerializeToString(), providers=["CPUExecutionProvider"])
    found = attach("onnx", ort, "MatMul")
    for _ in range(3):
        session.run(None, {"x": np.ones((2, 3), np.float32)})
    (reason,) = found.regions().values()
    assert reason is not None and "before it could be watched" in reason


def test_random_numbers_of_tensorflow_go_on(attach: Attach) -> None:
    tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed (pip install 'magneton[tensorflow]')")

    def program() -> list[float]:
        tf.random.set_seed(7)

        @tf.function
        def noise() -> Any:
            return tf.random.normal([])

        @tf.function
        def step(x: Any) -> Any:
            return tf.tanh(x) + tf.random.normal([])

        return [float(f()) for _ in range(4) for f in (noise, lambda: step(tf.constant(0.0)))]

    plain = program()
    found = attach("tensorflow", tf, "Tanh")
    before = tf.config.optimizer.get_experimental_options()
    assert program() == plain
    assert found.regions() == {"Tanh": None}
    assert tf.config.optimizer.get_experimental_options() == before
