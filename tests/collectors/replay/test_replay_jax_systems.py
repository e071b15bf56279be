"""Replaying equations of a JAX program: which inputs they had, what is computed, what is refused."""

from __future__ import annotations

import importlib
import re
import weakref
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed (pip install 'magneton[jax]')")

pytestmark = pytest.mark.systems

import jax.numpy as jnp  # noqa: E402
from jax.experimental import io_callback  # noqa: E402

from magneton.collectors.replay import jax as replay_jax  # noqa: E402
from magneton.collectors.replay.jax import (  # noqa: E402
    Evaluation,
    alone,
    copy_arrays,
    device_memory,
    import_jax,
    replay_equations,
)
from magneton.collectors.replay.windows import NotRepeatableError, Replay, ReplayedCall  # noqa: E402
from magneton.schemas.errors import MissingDependencyError, UsageError  # noqa: E402

quick = partial(replay_equations, seconds=0.02, rounds=1)


def visited(function: Any, *args: Any) -> tuple[dict[str, tuple[Any, list[Any]]], list[Any]]:
    """Return each visited equation with its operands, by place, and the program's outputs."""
    seen: dict[str, tuple[Any, list[Any]]] = {}

    def visit(equation: Any, values: Any, place: str) -> None:
        assert place not in seen, "places are unique"
        seen[place] = (equation, list(values))

    closed = jax.make_jaxpr(function)(*args)
    return seen, Evaluation(visit).run(closed, jax.tree.leaves(args))


def operands(seen: dict[str, tuple[Any, list[Any]]], place: str) -> list[Any]:
    return [np.asarray(value) for value in seen[place][1]]


def computed(seen: dict[str, tuple[Any, list[Any]]], place: str) -> list[Any]:
    """Return what an equation computes alone, on copies of its inputs."""
    function, arrays = alone(*seen[place])
    return [np.asarray(value) for value in function(*copy_arrays(arrays))]


def captured(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Instead of windows, keep what each call of each replay computes."""
    kept: list[list[Any]] = []

    def instead(operator: str, calls: Any, *, bytes_each: int, cold: bool, **_: Any) -> Replay:
        kept.append([[np.asarray(value) for value in call()] for call in calls])
        return Replay(operator, [], len(calls), bytes_each, cold)

    monkeypatch.setattr(replay_jax, "replay_in_turns", instead)
    return kept


@jax.jit
def mlp(weights: Any, x: Any) -> Any:
    return jax.nn.relu(x @ weights[0]) @ weights[1]


def network() -> tuple[list[Any], Any]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(4, 8)).astype("f4"), rng.normal(size=(8, 2)).astype("f4")], rng.normal(size=(3, 4)).astype(
        "f4"
    )


def test_an_equation_has_the_inputs_it_had_in_the_program_and_computes_what_it_computed_there(monkeypatch):
    weights, x = network()
    kept = captured(monkeypatch)
    found = quick(
        lambda p, *, x: mlp(p["w"], x * 2),
        ({"w": weights},),
        {"x": x},
        select=lambda n, _: n == "dot_general",
        copies=3,
    )
    hidden = np.maximum(2 * x @ weights[0], 0)
    assert [(c.name, c.place, c.inputs, c.refusal) for c in found] == [
        ("dot_general", "jit:mlp#1/dot_general#0", ("float32[3,4]", "float32[4,8]"), None),
        ("dot_general", "jit:mlp#1/dot_general#2", ("float32[3,8]", "float32[8,2]"), None),
    ]
    assert [c.replay.bytes_each for c in found] == [4 * (12 + 32), 4 * (24 + 16)]
    for calls, expected in zip(kept, (2 * x @ weights[0], hidden @ weights[1]), strict=True):
        assert len(calls) == 3
        for (made,) in calls:
            np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)


def test_windows_are_filled():
    (found,) = replay_equations(
        lambda x: jnp.sin(x) + 1, (np.ones(8, "f4"),), select=lambda n, _: n == "sin", seconds=0.03, rounds=2, copies=4
    )
    replay = found.replay
    assert replay is not None and (replay.operator, replay.copies, replay.bytes_each) == ("sin", 4, 32)
    assert len(replay.windows) == 2 and replay.windows[0].end_ns <= replay.windows[1].start_ns
    assert all(w.calls > 10 and 0.03 <= w.duration_s < 3 for w in replay.windows)


def test_calls_branches_and_checkpoints_are_entered():
    @jax.custom_vjp
    def double(x: Any) -> Any:
        return x * 2

    double.defvjp(lambda x: (x * 2, None), lambda _, g: (g,))

    def program(x: Any) -> Any:
        y = jax.checkpoint(jnp.sin)(x)
        y = jax.nn.relu(double(y))
        y = jax.lax.cond(y.sum() > 100, lambda z: z - 1, lambda z: z / 3, y)
        return jax.lax.switch(jnp.int32(2), [jnp.cos, jnp.tan, jnp.exp], y)

    x = np.linspace(-1, 1, 6, dtype="f4")
    seen, outputs = visited(program, x)
    np.testing.assert_allclose(outputs[0], program(x), rtol=1e-6)
    y = np.sin(x)
    np.testing.assert_allclose(operands(seen, "custom_vjp_call#1/mul#0")[0], y, rtol=1e-6)
    np.testing.assert_allclose(operands(seen, "remat2#0/sin#0")[0], x)
    y = np.maximum(2 * y, 0)
    np.testing.assert_allclose(operands(seen, "cond#6/branch0/div#0")[0], y, rtol=1e-6)
    np.testing.assert_allclose(computed(seen, "cond#6/branch0/div#0")[0], y / 3, rtol=1e-6)
    np.testing.assert_allclose(computed(seen, "cond#8")[0], np.exp(y / 3), rtol=1e-6)
    inside = {place for place in seen if "/" in place}
    assert {p for p in inside if p.startswith("cond")} == {"cond#6/branch0/div#0", "cond#8/branch2/exp#0"}


@pytest.mark.parametrize("reverse", [False, True])
def test_of_a_scan_the_first_iteration_is_visited_and_the_whole_computed(reverse):
    step, start = np.float32(0.5), np.array([1, 2], "f4")
    xs = np.arange(1, 9, dtype="f4").reshape(4, 2)

    def program(step: Any, start: Any, xs: Any) -> Any:
        def body(carry: Any, x: Any) -> Any:
            new = carry * x + step
            return new, jnp.exp(-carry)

        return jax.lax.scan(body, start, xs, reverse=reverse)

    seen, outputs = visited(program, step, start, xs)
    for made, expected in zip(outputs, jax.tree.leaves(program(step, start, xs)), strict=True):
        np.testing.assert_allclose(made, expected, rtol=1e-6)
    first = xs[-1] if reverse else xs[0]
    carry, x = operands(seen, "scan#0/mul#0")
    assert np.array_equal(carry, start) and np.array_equal(x, first)
    assert np.array_equal(operands(seen, "scan#0/add#1")[0], start * first)
    whole = computed(seen, "scan#0")
    np.testing.assert_allclose(whole[0], outputs[0], rtol=1e-6)
    np.testing.assert_allclose(whole[1], outputs[1], rtol=1e-6)


def test_a_loop_without_iterations_is_not_entered():
    seen, outputs = visited(lambda c, xs: jax.lax.scan(lambda c, x: (c + x, c), c, xs), 1.0, np.zeros((0,), "f4"))
    assert list(seen) == ["scan#0"] and float(outputs[0]) == 1.0
    seen, outputs = visited(lambda x: jax.lax.while_loop(lambda s: s < 3, lambda s: s + 1, x), 5)
    assert list(seen) == ["while#0", "while#0/cond/lt#0"] and int(outputs[0]) == 5


def test_of_a_while_the_first_condition_and_body_are_visited_and_the_whole_computed():
    def program(limit: Any, step: Any, x: Any) -> Any:
        return jax.lax.while_loop(lambda s: s.sum() < limit, lambda s: s * step, x)

    limit, step, x = np.float32(50), np.float32(3), np.array([1, 2], "f4")
    seen, outputs = visited(program, limit, step, x)
    assert np.array_equal(outputs[0], [27, 54])
    assert [v.tolist() for v in operands(seen, "while#0/cond/lt#1")] == [3, 50]
    assert [v.tolist() for v in operands(seen, "while#0/body/mul#0")] == [[1, 2], 3]
    assert computed(seen, "while#0/body/mul#0")[0].tolist() == [3, 6]
    # Under vmap the condition is an array.
    often = jax.vmap(lambda n: jax.lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 2.0), (0, 1.0))[1])
    seen, outputs = visited(often, np.array([0, 3, 5]))
    assert np.asarray(outputs[0]).tolist() == [1, 8, 32]
    assert any("/body/" in place for place in seen)


def test_gradients_are_programs_too():
    weights, x = network()
    grown = jax.grad(lambda w, x: (mlp(w, x) ** 2).sum())
    seen, outputs = visited(grown, weights, x)
    for made, expected in zip(outputs, grown(weights, x), strict=True):
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)
    assert sum(place.split("/")[-1].startswith("dot_general") for place in seen) == 5


def test_a_container_and_what_is_inside_are_selected_apart():
    weights, x = network()
    asked: list[tuple[str, str]] = []

    def select(name: str, place: str) -> bool:
        asked.append((name, place))
        return place in ("jit:mlp#0", "jit:mlp#0/dot_general#2")

    found = quick(mlp, (weights, x), select=select, copies=2)
    assert [c.place for c in found] == ["jit:mlp#0", "jit:mlp#0/dot_general#2"]
    assert found[0].inputs == ("float32[4,8]", "float32[8,2]", "float32[3,4]")
    assert asked == [
        ("jit", "jit:mlp#0"),
        ("dot_general", "jit:mlp#0/dot_general#0"),
        ("custom_jvp_call", "jit:mlp#0/custom_jvp_call#1"),
        ("jit", "jit:mlp#0/custom_jvp_call#1/jit:relu#0"),
        ("max", "jit:mlp#0/custom_jvp_call#1/jit:relu#0/max#0"),
        ("dot_general", "jit:mlp#0/dot_general#2"),
    ]


def mapped(body: Any, x: Any) -> Any:
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    return jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)(x)


def stateful(x: Any) -> Any:
    held = jax.new_ref(x)
    held[...] = x + 1
    return held[...]


@pytest.mark.parametrize(
    ("function", "name", "why"),
    [
        (lambda x: jax.pure_callback(lambda v: v, x, x), "pure_callback", "calls Python"),
        (lambda x: io_callback(lambda v: v, x, x), "io_callback", "calls Python"),
        (lambda x: jax.debug.callback(lambda v: None, x), "debug_callback", "calls Python"),
        (lambda x: jax.debug.print("{}", x), "debug_print", "calls Python"),
        (jax.jit(lambda x: jax.pure_callback(lambda v: v, x, x)), "jit", r"calls Python \(pure_callback\)"),
        (partial(mapped, lambda v: jax.lax.ppermute(v, "i", [(0, 0)])), "shard_map", "communicates"),
        (partial(mapped, lambda v: v / jax.lax.psum(v, "i")), "shard_map", "communicates"),
        (lambda x: jax.lax.rng_uniform(x[0], 2.0, (3,)), "rng_uniform", "random"),
        (stateful, "swap", "has side effects"),
        (lambda x: jax.device_put(x, jax.devices()[0]), "device_put", "moves"),
    ],
)
def test_side_effects_are_refused(function, name, why):
    (found,) = quick(function, (np.ones(3, "f4"),), select=lambda n, _: n == name)
    assert found.replay is None and found.refusal is not None
    assert found.refusal.startswith(name) and re.search(why, found.refusal)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (jax.vmap(lambda x: x / jax.lax.psum(x, "k"), axis_name="k"), "psum"),
        (partial(mapped, lambda v: v + jax.lax.axis_index("i")), "shard_map"),
        (partial(mapped, lambda v: v * jax.lax.pcast(jnp.float32(2), "i", to="varying")), "shard_map"),
    ],
)
def test_where_no_axis_is_left_or_nothing_is_sent_there_is_no_communication(function, name):
    (found,) = quick(function, (np.ones(3, "f4"),), select=lambda n, _: n == name, copies=2)
    assert found.refusal is None and found.replay is not None


def test_what_a_program_does_beside_computing_happens_once():
    calls: list[float] = []

    def body(carry: Any, x: Any) -> Any:
        jax.debug.callback(lambda v: calls.append(float(v)), x, ordered=True)
        return carry + x, None

    def program(xs: Any) -> Any:
        jax.debug.callback(lambda: calls.append(-1), ordered=True)
        total = jax.lax.scan(body, 0.0, xs)[0]
        return jax.lax.while_loop(lambda s: s < 20, lambda s: body(s, 7.0)[0], total) * 2

    found = quick(program, (np.arange(3, dtype="f4"),), select=lambda n, _: n in ("mul", "add", "scan"), copies=2)
    jax.effects_barrier()
    assert calls == [-1, 0, 1, 2, 7, 7, 7]
    # What is inside these loops is not visited.
    assert [(c.name, c.refusal is None) for c in found] == [("scan", False), ("mul", True)]


def test_a_donated_argument_is_left_alone():
    x = jnp.ones(4)
    found = quick(jax.jit(lambda v: v + 1, donate_argnums=0), (x,), select=lambda n, _: True, copies=2)
    assert [c.name for c in found] == ["jit", "add"] and all(c.replay for c in found)
    assert not x.is_deleted()


def test_keys_are_copied(monkeypatch):
    kept = captured(monkeypatch)
    key = jax.random.key(7)
    (found,) = quick(lambda k: jax.random.bits(k, (5,)), (key,), select=lambda n, _: n == "random_bits", copies=2)
    assert found.inputs == ("key<fry>[]",) and found.replay is not None and found.replay.bytes_each == 8
    assert [made.tolist() for (made,) in kept[0]] == [jax.random.bits(key, (5,)).tolist()] * 2


def test_copies_are_the_same_in_memory_of_their_own():
    x = jnp.arange(100.0)
    one, other, again = copy_arrays([x, x + 1, x])
    assert one is again and one.sharding == x.sharding and one.dtype == x.dtype
    assert np.array_equal(one, x) and np.array_equal(other, x + 1)
    assert len({a.unsafe_buffer_pointer() for a in (x, one, other)}) == 3


def test_what_takes_turns_is_copies(monkeypatch):
    used: list[int] = []

    def instead(operator: str, calls: Any, **_: Any) -> Replay:
        used.extend(call.args[0].unsafe_buffer_pointer() for call in calls)
        return Replay(operator)

    monkeypatch.setattr(replay_jax, "replay_in_turns", instead)
    x = jnp.arange(100.0)
    quick(jnp.sin, (x,), select=lambda n, _: n == "sin", copies=3)
    assert len({x.unsafe_buffer_pointer(), *used}) == 4


def test_an_array_given_twice_counts_once():
    x, y = jnp.ones((4, 4)), jnp.zeros((4, 4))
    product = jax.jit(lambda a, b: a @ b)
    for function, args, size in ((lambda a: a @ a, (x,), 64), (product, (x, x), 64), (product, (x, y), 128)):
        (found,) = quick(function, args, select=lambda n, _: n == "dot_general", copies=2)
        assert found.inputs == ("float32[4,4]", "float32[4,4]")
        assert found.replay is not None and found.replay.bytes_each == size


def test_there_are_enough_copies_that_no_cache_holds_them(monkeypatch):
    captured(monkeypatch)
    x = np.ones(1 << 14, "f4")

    def turns(cache: int | None, free: int, function: Any = jnp.sin, **more: Any) -> ReplayedCall:
        monkeypatch.setattr(replay_jax, "device_memory", lambda device: (cache, free))
        return quick(function, (x,), select=lambda n, _: n in ("sin", "broadcast_in_dim"), **more)[0]

    def counts(found: ReplayedCall) -> tuple[int, bool]:
        assert found.replay is not None
        return found.replay.copies, found.replay.cold

    assert counts(turns(1 << 18, 1 << 40)) == (9, True)
    assert counts(turns(1 << 18, 1 << 40, copies=2)) == (2, False)
    assert counts(turns(None, 1 << 40)) == (256, False)
    # A quarter of 4 MiB holds eight times 64 KiB of inputs and of outputs; then outputs of 15 times their size.
    assert counts(turns(1 << 30, 1 << 22)) == (8, False)
    assert counts(turns(1 << 30, 1 << 24, lambda v: jnp.broadcast_to(v, (15, 1 << 14)))) == (4, False)
    none = turns(1 << 18, 1 << 17)
    assert none.replay is None and none.refusal is not None and "no room" in none.refusal


def test_without_inputs_nothing_takes_turns():
    (found,) = quick(lambda: jnp.arange(1000) + 0, select=lambda n, _: n == "iota")
    assert found.inputs == () and found.replay is not None
    assert (found.replay.copies, found.replay.bytes_each, found.replay.cold) == (1, 0, True)
    (found,) = quick(jnp.sin, (np.zeros((0, 3), "f4"),), select=lambda n, _: n == "sin")
    assert found.inputs == ("float32[0,3]",) and found.replay is not None and found.replay.cold


def test_numbers_in_the_text_are_constants_and_arrays_are_inputs(monkeypatch):
    kept = captured(monkeypatch)
    table = np.arange(4, dtype="f4")
    x = np.ones(4, "f4")

    def forms() -> list[tuple[str, ...]]:
        found = quick(lambda v: jnp.sin(v * 3) + table, (x,), select=lambda n, _: n in ("mul", "add"), copies=1)
        return [c.inputs for c in found]

    expected = [("float32[4]",), ("float32[4]", "float32[4]")]
    assert forms() == expected
    # Then arrays are literals too.
    jax.config.update("jax_use_simplified_jaxpr_constants", True)
    try:
        assert forms() == expected
    finally:
        jax.config.update("jax_use_simplified_jaxpr_constants", False)
    np.testing.assert_allclose(kept[0][0][0], x * 3)
    np.testing.assert_allclose(kept[-1][0][0], np.sin(x * 3) + table, rtol=1e-6)


def test_what_cannot_be_run_alone_is_refused(monkeypatch):
    def broken(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(replay_jax, "copy_arrays", broken)
    (found,) = quick(jnp.sin, (np.ones(3, "f4"),), select=lambda n, _: n == "sin")
    assert found.replay is None and found.refusal == "its trial failed: RuntimeError: out of memory"


def test_values_that_are_no_longer_needed_are_not_held():
    made: dict[str, Any] = {}
    alive: list[list[str]] = []

    def visit(equation: Any, values: Any, place: str) -> None:
        alive.append([p for p, value in made.items() if value() is not None])
        if isinstance(values[0], jax.Array):
            made[place] = weakref.ref(values[0])

    closed = jax.make_jaxpr(lambda x: jnp.exp(jnp.cos(jnp.sin(jnp.tan(x)))))(jnp.ones(3))
    Evaluation(visit).run(closed, [jnp.ones(3)])
    assert list(made) == ["tan#0", "sin#1", "cos#2", "exp#3"]
    # What tan was given is the caller's.
    assert alive[-1] == ["tan#0"]


def test_a_device_says_what_memory_it_has(monkeypatch):
    monkeypatch.setattr(replay_jax, "host_cache_bytes", lambda: 5)
    monkeypatch.setattr(replay_jax, "host_free_bytes", lambda: 7)
    assert device_memory(jax.devices("cpu")[0]) == (5, 7)
    stats = {"bytes_limit": 100, "bytes_in_use": 30}
    assert device_memory(SimpleNamespace(platform="gpu", memory_stats=lambda: stats)) == (None, 70)
    assert device_memory(SimpleNamespace(platform="tpu", memory_stats=lambda: None)) == (None, 7)


def test_senseless_requests_are_refused():
    def never(x: Any) -> Any:
        raise AssertionError("the program is not run")

    for more in ({"seconds": 0.0}, {"seconds": 0.1, "rounds": 0}):
        with pytest.raises(UsageError):
            replay_equations(never, (1.0,), select=lambda n, _: True, **more)
    with pytest.raises(NotRepeatableError, match="nothing was selected"):
        quick(jnp.sin, (1.0,), select=lambda n, _: False)


def test_without_jax_the_remedy_is_said(monkeypatch):
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingDependencyError) as error:
        import_jax()
    assert error.value.remedy == "pip install 'magneton[jax]'"
