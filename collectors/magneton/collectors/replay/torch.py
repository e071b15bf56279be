"""Running one torch operation many times so that a sensor can see it.

``replay`` runs the operation alone. ``repeat_in_place`` runs it where it stands in a program. Both return windows with times of
CLOCK_MONOTONIC, the clock of ``power.parquet``. From these windows the analysis computes the energy of one call: ``E / calls`` inside
a replay; ``(E_r - E_1) / (r - 1)`` from windows of a program in which the operation runs r times, and windows in which it runs once.
The arguments and copies of them are used in turn, so that not every call finds its arguments in the cache.

Operations with side effects are refused: writing to arguments, random numbers, communication. Most operators declare side effects
in their schema or tags, but not all. So one trial on copies compares every byte of the arguments, and the state of the random
generators, before and after.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from magneton.collectors.replay.copies import Rotation, copy_call, rotate, tensors_of
from magneton.collectors.replay.windows import (
    NotRepeatableError,
    RepeatWindow,
    Replay,
    check_replay,
    refusal_of,
    replay_in_turns,
)
from magneton.collectors.torch.profile import import_torch
from magneton.schemas.errors import UsageError

__all__ = [
    "NotRepeatableError",
    "RepeatWindow",
    "Repetition",
    "Replay",
    "check_repeatable",
    "in_place_mode",
    "repeat_in_place",
    "replay",
]

_COMMUNICATION = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "symm_mem"})


@dataclass
class Repetition:
    """An operation repeated where it stands in a program.

    Attributes:
        windows: windows with ``times`` r or 1, in the order r 1 1 r r 1 ...
        repeated: name of each operation that was repeated, with how many calls of it there are in one iteration.
        refused: why operations that were selected were not repeated.
        cold: as in ``Replay``.
        spoiled: why the windows cannot be used; None if they can. Example: two iterations were not alike.
    """

    windows: list[RepeatWindow] = field(default_factory=list)
    repeated: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    cold: bool = True
    spoiled: str | None = None


def operator_name(function: Any) -> str:
    """Return the name of an operator or a Python function."""
    schema = getattr(function, "_schema", None)
    return str(schema.name) if schema is not None else str(getattr(function, "__name__", type(function).__name__))


def declared_effect(operator: Any) -> str | None:
    """Return the side effect that an operator's schema and tags declare, or None."""
    torch = import_torch()
    schema = getattr(operator, "_schema", None)
    if schema is None:
        return None
    if schema.name.split("::")[0] in _COMMUNICATION:
        return "communicates with other processes"
    if schema.is_mutable:
        return "writes to its arguments"
    if torch.Tag.nondeterministic_seeded in operator.tags:
        return "draws random numbers"
    return None


def _generators() -> list[Any]:
    torch = import_torch()
    states = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    return states


def _set_generators(states: Sequence[Any]) -> None:
    torch = import_torch()
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(list(states[1:]))


def _bytes(tensor: Any) -> Any:
    """Return a tensor's elements as bytes: NaN equals itself, and +0 is not -0."""
    torch = import_torch()
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _same(one: Any, other: Any) -> bool:
    torch = import_torch()
    return bool(one.numel() == 0 or torch.equal(_bytes(one), _bytes(other)))


def check_repeatable(function: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> int:
    """Run a call once on copies of its arguments and refuse it if it has side effects.

    Args:
        function: an operator (``torch.ops.aten.mm.default``) or any callable made of operators.
        args: its arguments; they are not touched.
        kwargs: its keyword arguments.

    Returns:
        Bytes of its outputs.

    Raises:
        NotRepeatableError: it writes to what it did not make, draws random numbers or communicates, or an argument cannot
            be copied.
    """
    name, torch = operator_name(function), import_torch()
    effect = declared_effect(function)
    if effect is not None:
        raise NotRepeatableError(f"{name} {effect}")
    call_args, call_kwargs = copy_call(args, kwargs or {})
    given = tensors_of(call_args, call_kwargs)
    before = [t.detach().clone() for t in given]
    generators = _generators()
    try:
        with _effects_mode()():
            made = function(*call_args, **call_kwargs)
        if not all(torch.equal(a, b) for a, b in zip(generators, _generators(), strict=True)):
            raise NotRepeatableError(f"{name} draws random numbers")
        if not all(_same(a, b) for a, b in zip(before, given, strict=True)):
            raise NotRepeatableError(f"{name} writes to its arguments without saying so")
    finally:
        _set_generators(generators)
    return sum(t.numel() * t.element_size() for t in tensors_of(made))


def _effects_mode() -> Any:
    """Return the class of a dispatch mode that refuses side effects on anything that was not made while it is on."""
    import_torch()
    from torch.utils._python_dispatch import TorchDispatchMode

    class Effects(TorchDispatchMode):  # type: ignore[misc]  # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            # Kept alive, so that no address is used twice.
            self._made: dict[int, Any] = {}

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            effect = declared_effect(func)
            if effect is not None and not (func._schema.is_mutable and self._inside(func, args, kwargs)):
                # Before it happens: the trial leaves nothing behind.
                raise NotRepeatableError(f"{func._schema.name} {effect}")
            given = {_storage(t) for t in tensors_of(args, kwargs)}
            result = func(*args, **kwargs)
            for tensor in tensors_of(result):
                storage = _storage(tensor)
                if storage is not None and storage not in given:
                    self._made[storage] = tensor.untyped_storage()
            return result

        def _inside(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
            """Whether everything it writes to was made here."""
            written = []
            for position, argument in enumerate(func._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    value = args[position] if position < len(args) else kwargs.get(argument.name)
                    written += tensors_of(value)
            return all(_storage(t) in self._made for t in written)

    return Effects


def _storage(tensor: Any) -> int | None:
    torch = import_torch()
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else None


def _synchronize(device: Any) -> None:
    torch = import_torch()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device_of(*values: Any) -> Any:
    torch = import_torch()
    found = [t.device for t in tensors_of(*values)]
    default = torch.device("cuda") if torch.cuda.is_available() and torch.cuda.is_initialized() else torch.device("cpu")
    return next((d for d in found if d.type != "cpu"), found[0] if found else default)


def replay(
    function: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    seconds: float,
    rounds: int = 1,
    copies: int | None = None,
    check: bool = True,
) -> Replay:
    """Run one call again and again, alone, for a number of seconds.

    A sensor lags and averages. So a window should last at least the averaging time of the sensor plus three update periods.
    Outputs are used in turn too, so that calls do not always write to the same memory.

    Args:
        function: an operator or any callable without side effects.
        args: its arguments; they are copied, never touched.
        kwargs: its keyword arguments.
        seconds: length of a window; it holds at least one call.
        rounds: number of windows.
        copies: sets of arguments that take turns (default: so many that none is still in a cache).
        check: check for side effects first; see ``check_repeatable``.

    Raises:
        NotRepeatableError: the call has side effects, or its arguments cannot be copied.
        UsageError: a time or number that is not above 0.
    """
    check_replay(seconds, rounds)
    outputs = check_repeatable(function, args, kwargs) if check else 0
    torch = import_torch()
    turns = rotate(args, kwargs or {}, copies=copies, outputs=outputs)
    device = _device_of(args, kwargs)
    calls = [partial(function, *call_args, **call_kwargs) for call_args, call_kwargs in turns.calls]
    with torch.no_grad():
        return replay_in_turns(
            operator_name(function),
            calls,
            seconds=seconds,
            rounds=rounds,
            synchronize=lambda _outputs: _synchronize(device),
            bytes_each=turns.bytes_each,
            cold=turns.cold,
        )


def repeat_in_place(
    step: Callable[[], Any],
    select: Callable[[str, int], bool],
    *,
    times: int,
    iterations: int,
    rounds: int = 2,
    device: Any = None,
    copies: int | None = None,
) -> Repetition:
    """Run a program's iteration with selected operations run r times each, and with all run once, in turns (r 1 1 r ...).

    The program computes what it always computes: the result of the first call is used, the others are thrown away.

    Args:
        step: runs one iteration.
        select: says of an operator's name (``aten::mm``) and its position among all that one iteration dispatches, from 0,
            whether it is repeated.
        times: r, at least 2.
        iterations: iterations in one window.
        rounds: pairs of windows.
        device: device to wait for (default: the GPU if one is in use).
        copies: sets of arguments that take turns (default: so many that none is still in a cache).

    Raises:
        NotRepeatableError: nothing that was selected can be repeated (why, for the first), or iterations were not alike.
        UsageError: fewer than two times, or a number that is not above 0.
    """
    if times < 2 or iterations < 1 or rounds < 1:
        raise UsageError(f"cannot repeat {times} times over {iterations} iterations", remedy="repeat at least twice")
    torch = import_torch()
    where = _device_of() if device is None else torch.device(device)
    done = Repetition()
    mode = in_place_mode()(copies)
    mode.begin(select, done)

    def run(often: int, count: int) -> RepeatWindow:
        mode.times = often
        _synchronize(where)
        start = time.monotonic_ns()
        for _ in range(count):
            with mode:
                step()
            mode.end_iteration()
        _synchronize(where)
        return RepeatWindow(start, time.monotonic_ns(), count, often)

    # The first iteration checks and copies; it is not measured.
    run(times, 1)
    if not done.repeated:
        first = next(iter(done.refused.items()), None)
        raise NotRepeatableError(first[1] if first else "nothing was selected")
    run(1, 1)
    for i in range(rounds):
        pair = (times, 1) if i % 2 == 0 else (1, times)
        done.windows += [run(often, iterations) for often in pair]
    if done.spoiled is not None:
        raise NotRepeatableError(done.spoiled)
    return done


def is_view(operator: Any) -> bool:
    """Return whether an operator by its schema returns a view of an argument, and so does no work on a device."""
    schema = getattr(operator, "_schema", None)
    returned = [] if schema is None else [r.alias_info for r in schema.returns]
    return bool(returned) and all(alias is not None and not alias.is_write for alias in returned)


def _form(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the form of a call: shapes, strides, types and devices of its tensors. The work of a call depends on it."""
    return tuple((t.shape, t.stride(), t.dtype, t.device) for t in tensors_of(args, kwargs))


@dataclass
class _Chosen:
    """A call that is repeated: its operator, the form of its arguments, copies of the arguments, and its latest outputs."""

    operator: Any
    form: tuple[Any, ...]
    turns: Rotation
    outputs: deque[Any]

    def call(self, turn: int) -> Any:
        """Call it once, on the arguments whose turn it is."""
        args, kwargs = self.turns.calls[turn % len(self.turns.calls)]
        return self.operator(*args, **kwargs)


def _replay_calls(chosen: Sequence[_Chosen], *, seconds: float, rounds: int) -> Replay:
    """Run calls one after the other, alone, again and again; a call of the replay is a pass through all of them."""
    torch = import_torch()
    from torch.utils._python_dispatch import _disable_current_modes

    device = _device_of([c.turns.calls for c in chosen])
    sets = max(len(c.turns.calls) for c in chosen)

    def once(turn: int) -> None:
        # A call keeps as many outputs as it has sets of arguments. Large calls have few sets, so their outputs do not fill the memory.
        for c in chosen:
            c.outputs.append(c.call(turn))

    with _disable_current_modes(), torch.no_grad():
        return replay_in_turns(
            ", ".join(dict.fromkeys(operator_name(c.operator) for c in chosen)),
            [partial(once, turn) for turn in range(sets)],
            seconds=seconds,
            rounds=rounds,
            synchronize=lambda _outputs: _synchronize(device),
            bytes_each=sum(c.turns.bytes_each for c in chosen),
            cold=all(c.turns.cold for c in chosen),
        )


def in_place_mode() -> Any:
    """Return the class of the dispatch mode that repeats operations where they stand.

    ``begin`` says what is repeated; the first iteration after it checks and copies. ``times`` may be changed between
    iterations, each of which is closed with ``end_iteration``. An error of a repetition never reaches the
    program. It is stored in ``Repetition.spoiled``, and nothing more is repeated.
    """
    torch = import_torch()
    from torch.utils._python_dispatch import TorchDispatchMode

    class InPlace(TorchDispatchMode):  # type: ignore[misc]  # torch is not typed here
        def __init__(self, copies: int | None = None) -> None:
            super().__init__()
            self.times = 1
            self._copies = copies
            self._turn = 0
            self.begin(lambda _name, _position: False, Repetition())

        def begin(self, select: Callable[[str, int], bool], done: Repetition, *, views: bool = True) -> None:
            """Repeat other operations from now on. Without ``views``, operators that only return views are left out."""
            self._select, self._done, self._views = select, done, views
            self._position = self._hits = 0
            self._first = True
            # Position -> what is repeated there; None: nothing.
            self._chosen: dict[int, _Chosen | None] = {}

        def end_iteration(self) -> None:
            """Close an iteration. If it lacks a call that is repeated, the repetition cannot be used."""
            expected = sum(chosen is not None for chosen in self._chosen.values())
            if self._hits != expected:
                self._spoil(f"an iteration had {self._hits} of the {expected} calls that are repeated")
            self._position = self._hits = 0
            self._first = False

        def _spoil(self, reason: str) -> None:
            if self._done.spoiled is None:
                self._done.spoiled = reason

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            position = self._position
            self._position += 1
            if self._first:
                self._chosen[position] = self._choose(func, position, args, kwargs)
            chosen = self._chosen.get(position)
            form = None if chosen is None else _form(args, kwargs)
            result = func(*args, **kwargs)
            if chosen is None or self._done.spoiled is not None:
                return result
            if chosen.operator is not func or chosen.form != form:
                self._spoil(
                    f"iterations are not alike: {operator_name(chosen.operator)} at {position} was another call"
                )
                return result
            self._hits += 1
            try:
                self._repeat(chosen)
            except Exception as error:
                self._spoil(
                    f"{operator_name(func)} at {position} could not be repeated: {type(error).__name__}: {error}"
                )
            return result

        def _repeat(self, chosen: _Chosen) -> None:
            with torch.no_grad():
                for _ in range(self.times - 1):
                    self._turn += 1
                    chosen.outputs.append(chosen.call(self._turn))

        def replay(self, *, seconds: float, rounds: int) -> Replay:
            """Run the repeated operations alone, again and again for ``seconds``, while the program waits."""
            return _replay_calls([c for c in self._chosen.values() if c is not None], seconds=seconds, rounds=rounds)

        def _choose(self, func: Any, position: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Chosen | None:
            name = operator_name(func)
            if not self._select(name, position) or (not self._views and is_view(func)):
                return None
            try:
                outputs = check_repeatable(func, args, kwargs)
                turns = rotate(args, kwargs, copies=self._copies, outputs=outputs)
            except Exception as error:
                self._done.refused[f"{name} at {position}"] = refusal_of(error)
                return None
            self._done.repeated[name] = self._done.repeated.get(name, 0) + 1
            self._done.cold = self._done.cold and turns.cold
            return _Chosen(func, _form(args, kwargs), turns, deque(maxlen=len(turns.calls)))

    return InPlace
