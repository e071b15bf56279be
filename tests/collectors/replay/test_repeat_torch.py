"""Repeating one operation: what is refused, what the copies are, and that a program computes what it always did."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (pip install 'magneton[torch]')")

pytestmark = pytest.mark.torch

from magneton.collectors.replay.copies import copy_call, copy_tensor, rotate  # noqa: E402
from magneton.collectors.replay.torch import (  # noqa: E402
    NotRepeatableError,
    _Chosen,
    _replay_calls,
    check_repeatable,
    repeat_in_place,
    replay,
)
from magneton.collectors.replay.windows import host_cache_bytes  # noqa: E402
from magneton.schemas.errors import UsageError  # noqa: E402

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def arrangements() -> dict[str, Any]:
    base = torch.randn(6, 8)
    return {
        "plain": base.clone(),
        "transposed": base.t(),
        "slice": base[1:4, 2:7:2],
        "expanded": torch.randn(8).expand(6, 8),
        "unaligned": torch.randn(49)[1:].view(6, 8),
        "scalar": torch.tensor(3.0),
        "empty": torch.empty(0, 8),
        "windows": torch.randn(20).unfold(0, 8, 2),
        "half": base.half(),
        "integers": torch.arange(10),
        "grown": base.clone().requires_grad_(True),
    }


@pytest.mark.parametrize("name", arrangements())
def test_a_copy_has_values_shape_strides_and_alignment_and_its_own_memory(name):
    tensor = arrangements()[name]
    copied = copy_tensor(tensor)
    assert torch.equal(copied, tensor) and copied.dtype == tensor.dtype and copied.shape == tensor.shape
    assert copied.requires_grad == tensor.requires_grad
    if tensor.numel():
        assert copied.stride() == tensor.stride()
        assert copied.data_ptr() % 64 == tensor.data_ptr() % 64
        assert copied.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


def test_a_tensor_given_twice_is_copied_once():
    x = torch.randn(3, 3)
    (a, (b, c)), kwargs = copy_call((x, [x, x.t()]), {"out": x})
    assert a is b is kwargs["out"] and c.data_ptr() != a.data_ptr()


def test_what_is_no_plain_tensor_is_refused():
    with pytest.raises(NotRepeatableError):
        copy_tensor(torch.eye(3).to_sparse())
    with pytest.raises(NotRepeatableError):
        copy_tensor(torch.randn(3, dtype=torch.complex64).conj())


def test_there_are_enough_copies_that_no_cache_holds_them(monkeypatch, tmp_path):
    for index, size in enumerate(("48K", "2048K", "1M")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert host_cache_bytes(tmp_path) == 2 << 20
    assert host_cache_bytes(tmp_path / "none") is None
    monkeypatch.setattr("magneton.collectors.replay.copies.cache_bytes", lambda device: 1 << 20)
    turns = rotate((torch.randn(1 << 16),), {})
    assert turns.bytes_each == 1 << 18 and turns.cold
    assert (len(turns.calls) - 1) * turns.bytes_each >= 2 << 20
    assert not rotate((torch.randn(1 << 16),), {}, copies=2).cold
    monkeypatch.setattr("magneton.collectors.replay.copies.cache_bytes", lambda device: None)
    assert not rotate((torch.randn(16),), {}).cold, "an unknown cache is not claimed to be cold"
    # 16 MiB of room for calls of 64 bytes that write 1 MiB each.
    monkeypatch.setattr("magneton.collectors.replay.copies._free_bytes", lambda device: 64 << 20)
    assert len(rotate((torch.randn(16),), {}, outputs=1 << 20).calls) == 15
    assert check_repeatable(aten.outer.default, (torch.ones(8), torch.ones(4))) == 8 * 4 * 4


@pytest.mark.parametrize(
    ("function", "args", "why"),
    [
        (aten.add_.Tensor, (torch.ones(2), torch.ones(2)), "writes"),
        (aten.mm.out, (torch.ones(2, 2), torch.ones(2, 2)), "writes"),
        (aten.bernoulli.default, (torch.full((8,), 0.5),), "random"),
        (aten.native_dropout.default, (torch.ones(8), 0.5, True), "random"),
        (lambda x: torch.nn.functional.dropout(x, 0.5), (torch.ones(8),), "random"),
        (lambda x: x.mul_(2), (torch.ones(8),), "writes"),
        (lambda x: torch.randn(4) + x, (torch.ones(4),), "random"),
    ],
)
def test_side_effects_are_refused(function, args, why):
    before = [a.clone() for a in args if isinstance(a, torch.Tensor)]
    state = torch.get_rng_state()
    with pytest.raises(NotRepeatableError, match=why):
        check_repeatable(function, args)
    assert all(torch.equal(a, b) for a, b in zip(before, (a for a in args if isinstance(a, torch.Tensor)), strict=True))
    assert torch.equal(state, torch.get_rng_state()), "the trial leaves no trace"


def test_writing_without_saying_so_is_found_by_looking():
    running = torch.zeros(3), torch.ones(3)
    call = (torch.randn(4, 3), None, None, *running, True, 0.1, 1e-5)
    assert not aten.native_batch_norm.default._schema.is_mutable
    with pytest.raises(NotRepeatableError, match="writes"):
        check_repeatable(aten.native_batch_norm.default, call)
    check_repeatable(aten.native_batch_norm.default, (*call[:5], False, 0.1, 1e-5))
    assert torch.equal(running[0], torch.zeros(3))


def test_writing_to_what_it_made_itself_is_no_side_effect():
    def program(x: Any) -> Any:
        y = torch.zeros(4)
        y.add_(x)
        y[1:3].mul_(2)
        return y

    check_repeatable(program, (torch.ones(4),))


def test_writing_to_what_it_holds_is_a_side_effect():
    held = torch.zeros(4)
    with pytest.raises(NotRepeatableError, match="writes"):
        check_repeatable(held.add_, (torch.ones(4),))
    assert held.sum() == 0, "refused before it happened"


def test_a_collective_is_refused():
    distributed = torch.distributed
    if not distributed.is_available() or not hasattr(torch.ops, "_c10d_functional"):
        pytest.skip("this torch has no collectives")
    operator = torch.ops._c10d_functional.all_reduce.default
    with pytest.raises(NotRepeatableError, match="communicates"):
        check_repeatable(operator, (torch.ones(2), "sum", "0"))


def test_a_replay_fills_its_windows():
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    done = replay(aten.mm.default, (a, b), seconds=0.1, rounds=2, copies=3)
    assert done.operator == "aten::mm" and done.copies == 3 and done.bytes_each == 2 * 64 * 64 * 4
    assert len(done.windows) == 2 and done.windows[0].end_ns <= done.windows[1].start_ns
    assert all(0.02 < w.duration_s < 2 and w.calls > 1 for w in done.windows)
    made = replay(torch.arange, (1000,), seconds=0.02)
    assert made.windows[0].calls > 1 and made.cold, "nothing is read"


def test_a_program_with_an_operation_repeated_computes_the_same():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 8)).train()
    x = torch.randn(4, 32)
    torch.manual_seed(1)
    plain = [model(x) for _ in range(4)]
    seen: list[Any] = []
    torch.manual_seed(1)
    done = repeat_in_place(
        lambda: seen.append(model(x)), lambda name, _: name == "aten::addmm", times=3, iterations=1, rounds=1, copies=2
    )
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))
    assert done.repeated == {"aten::addmm": 2} and done.refused == {}
    assert [w.times for w in done.windows] == [3, 1]


def test_windows_take_turns_and_hold_the_repeated_work():
    a = torch.randn(192, 192)

    def step() -> None:
        torch.relu(a)
        a @ a

    done = repeat_in_place(step, lambda name, _: name == "aten::mm", times=20, iterations=5, rounds=4)
    assert [w.times for w in done.windows] == [20, 1, 1, 20, 20, 1, 1, 20]
    assert all(a.end_ns <= b.start_ns for a, b in zip(done.windows, done.windows[1:], strict=False))
    once = min(w.duration_s for w in done.windows if w.times == 1)
    often = min(w.duration_s for w in done.windows if w.times == 20)
    assert often > 5 * once


def test_what_cannot_be_repeated_in_place_is_said():
    x = torch.ones(4)
    with pytest.raises(NotRepeatableError, match="random"):
        repeat_in_place(lambda: torch.bernoulli(x * 0.5), lambda name, _: "bernoulli" in name, times=2, iterations=1)
    with pytest.raises(NotRepeatableError, match="nothing"):
        repeat_in_place(lambda: x + 1, lambda name, _: False, times=2, iterations=1)

    def step() -> Any:
        return (x * 0.5).bernoulli_()

    done = repeat_in_place(step, lambda name, _: True, times=2, iterations=1, rounds=1)
    assert set(done.repeated) == {"aten::mul"} and list(done.refused) == ["aten::bernoulli_ at 1"]


def test_senseless_numbers_are_refused():
    with pytest.raises(UsageError):
        repeat_in_place(lambda: None, lambda name, _: True, times=1, iterations=1)
    with pytest.raises(UsageError):
        replay(torch.arange, (3,), seconds=0)


def test_calls_replayed_together_keep_outputs_for_their_own_turns_only():
    alive, most = [], []

    def large(x):
        alive[:] = [ref for ref in alive if ref() is not None]
        most.append(len(alive))
        y = x + 1
        alive.append(weakref.ref(y))
        return y

    turns = rotate((torch.randn(4),), {}, copies=6), rotate((torch.randn(64, 64),), {}, copies=2)
    chosen = [
        _Chosen(operator, (), t, deque(maxlen=len(t.calls)))
        for operator, t in zip((aten.relu.default, large), turns, strict=True)
    ]
    done = _replay_calls(chosen, seconds=0.02, rounds=2)
    assert done.copies == 6 and all(w.calls > 6 for w in done.windows)
    assert [len(c.outputs) for c in chosen] == [6, 2]
    assert max(most) <= 2
