"""Replaying equations of a JAX program: each one alone, with the inputs it had where it stands in the program.

The program is traced, and its equations are evaluated one by one with the real inputs, so each equation has the inputs
it has in the program (to rounding: a program compiled as a whole may fuse, and so round, otherwise). A selected
equation is compiled alone and replayed as soon as it is reached; the inputs of no other are held for it.

Equations with side effects are refused: effects, calls of Python, communication over named axes, random numbers from the device's
own generator. Keys of ``jax.random`` are plain inputs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

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

# Equations that call a jaxpr once with all their operands, and the parameter that holds it.
_CALLS = {
    "jit": "jaxpr",
    "remat2": "jaxpr",
    "call": "call_jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
# They name an axis, but nothing is sent.
_SILENT = frozenset({"axis_index", "pvary"})


def import_jax() -> Any:
    """Return the jax module, with ``jax.extend.core`` loaded.

    Raises:
        MissingDependencyError: it is not installed.
    """
    jax = import_framework("jax", "replaying a JAX program", extra="jax")
    importlib.import_module("jax.extend.core")
    return jax


def _form(aval: Any) -> str:
    """Return the form of an abstract value: ``float32[8,16]``; its type's name where it is no array."""
    known = hasattr(aval, "dtype")
    return f"{aval.dtype.name}[{','.join(map(str, aval.shape))}]" if known else type(aval).__name__


def _label(equation: Any, number: int) -> str:
    name = equation.params.get("name") if equation.primitive.name in _CALLS else None
    return f"{equation.primitive.name}{f':{name}' if isinstance(name, str) else ''}#{number}"


def _bind(equation: Any, values: Sequence[Any]) -> list[Any]:
    """Return the outputs of an equation for values of all its operands, literals included."""
    primitive = equation.primitive
    with equation.ctx.manager:
        made = primitive.bind(*values, **primitive.get_bind_params(equation.params))
    return list(made) if primitive.multiple_results else [made]


def _constant(atom: Any) -> bool:
    """Return whether an operand is a number in the program's text; literal arrays are inputs like others."""
    return isinstance(atom, import_jax().extend.core.Literal) and not atom.aval.shape


def _names_axis(equation: Any) -> bool:
    axes = equation.params.get("axis_name", equation.params.get("axes", ()))
    return any(isinstance(axis, str) for axis in (axes if isinstance(axes, tuple) else (axes,)))


def _reaches_out(equation: Any) -> str | None:
    """Return what an equation, or one inside it, asks of anything but its inputs, by its primitive; None: nothing."""
    name = equation.primitive.name
    if "callback" in name or name == "debug_print":
        return f"calls Python ({name})"
    if name == "rng_uniform":
        return f"draws random numbers ({name})"
    if name not in _SILENT and _names_axis(equation):
        return f"communicates over a named axis ({name})"
    jaxprs = import_jax().extend.core.jaxprs_in_params(equation.params)
    within = (_reaches_out(inner) for jaxpr in jaxprs for inner in jaxpr.eqns)
    return next((found for found in within if found is not None), None)


def side_effect(equation: Any) -> str | None:
    """Return what an equation does beside computing its outputs from its inputs; None: nothing."""
    found = _reaches_out(equation)
    # Effects inside it that are felt outside are its own too.
    if found is None and equation.effects:
        found = f"has side effects ({', '.join(sorted({type(effect).__name__ for effect in equation.effects}))})"
    return found


class Evaluation:
    """Evaluates a jaxpr equation by equation, going into calls, branches and loops.

    An equation's place is the path to it: for each level ``primitive#n``, its primitive and its number among the
    equations of its jaxpr, from 0; a ``jit`` has its function's name too. ``jit:mlp#0/dot_general#3`` is the fourth
    equation of ``mlp``, which is called by the first of the program. Inside a ``cond`` ``branch0``, ``branch1`` ...
    stands between, inside a ``while`` ``cond`` or ``body``.

    Of a loop the first iteration is visited; the loop's result is then computed as a whole. A loop with side effects is
    not entered: its first iteration would be run twice. Shardings that ``jit`` was given are not applied to what is
    inside; arrays stay where the arguments and the equations put them.

    Args:
        visit: called with each equation, the values of its operands and its place, before it is evaluated.
    """

    def __init__(self, visit: Callable[[Any, Sequence[Any], str], None]) -> None:
        self._visit = visit
        self._jax = import_jax()
        self._core = self._jax.extend.core

    def run(self, held: Any, args: Sequence[Any], path: str = "") -> list[Any]:
        """Return the outputs of a jaxpr.

        Args:
            held: the jaxpr, closed or without constants.
            args: values of its inputs.
            path: what its equations' places begin with.
        """
        closed = isinstance(held, self._core.ClosedJaxpr)
        jaxpr, consts = (held.jaxpr, held.consts) if closed else (held, ())
        given = zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True)
        known = {variable: self._array(value, variable.aval) for variable, value in given}

        def read(atom: Any) -> Any:
            if not isinstance(atom, self._core.Literal):
                return known[atom]
            return atom.val if _constant(atom) else self._array(atom.val, atom.aval)

        last = {id(atom): number for number, equation in enumerate(jaxpr.eqns) for atom in equation.invars}
        last |= {id(atom): len(jaxpr.eqns) for atom in jaxpr.outvars}
        for number, equation in enumerate(jaxpr.eqns):
            values = [read(atom) for atom in equation.invars]
            place = path + _label(equation, number)
            self._visit(equation, values, place)
            for variable, value in zip(equation.outvars, self._outputs(equation, values, place), strict=True):
                if id(variable) in last:
                    known[variable] = value
            for atom in equation.invars:
                if last[id(atom)] == number and not isinstance(atom, self._core.Literal):
                    known.pop(atom, None)
        return [read(atom) for atom in jaxpr.outvars]

    def _array(self, value: Any, aval: Any) -> Any:
        """Return a Python or numpy value as the array it is inside the program."""
        plain = isinstance(value, bool | int | float | complex) or hasattr(value, "__array__")
        foreign = plain and not isinstance(value, self._jax.Array)
        return self._jax.numpy.asarray(value, aval.dtype) if foreign else value

    def _outputs(self, equation: Any, values: Sequence[Any], place: str) -> Sequence[Any]:
        name, params = equation.primitive.name, equation.params
        if name in _CALLS:
            return self.run(params[_CALLS[name]], values, f"{place}/")
        if name == "cond":
            taken = int(values[0])
            return self.run(params["branches"][taken], values[1:], f"{place}/branch{taken}/")
        if name == "scan" and side_effect(equation) is None:
            self._first_of_scan(params, values, place)
        if name == "while" and side_effect(equation) is None:
            self._first_of_while(params, values, place)
        # The evaluation must have ended on the device when a window begins.
        made: list[Any] = self._jax.block_until_ready(_bind(equation, values))
        return made

    def _first_of_scan(self, params: Mapping[str, Any], values: Sequence[Any], place: str) -> None:
        whole = params["num_consts"] + params["num_carry"]
        if params["length"]:
            first = params["length"] - 1 if params["reverse"] else 0
            self.run(params["jaxpr"], [*values[:whole], *(x[first] for x in values[whole:])], f"{place}/")

    def _first_of_while(self, params: Mapping[str, Any], values: Sequence[Any], place: str) -> None:
        start = params["cond_nconsts"]
        carried = start + params["body_nconsts"]
        goes_on = self.run(params["cond_jaxpr"], [*values[:start], *values[carried:]], f"{place}/cond/")[0]
        # Under vmap there is one answer for each element, and the body runs for all while it does for one.
        if self._jax.numpy.any(goes_on):
            self.run(params["body_jaxpr"], values[start:], f"{place}/body/")


def alone(equation: Any, values: Sequence[Any]) -> tuple[Callable[..., list[Any]], list[Any]]:
    """Return an equation compiled alone, and the arrays to call it with.

    Args:
        equation: the equation; numbers among its operands stay constants.
        values: values of its operands.

    Returns:
        Function of one array for each operand that is no constant (one that is given twice counts once), and these
        arrays, in the same order. It returns all outputs of the equation, also those that the program does not use.
    """
    jax = import_jax()
    operands = list(zip(equation.invars, values, strict=True))
    constants = {id(atom): value for atom, value in operands if _constant(atom)}
    inputs = {id(atom): value for atom, value in operands if not _constant(atom)}

    def run(*arrays: Any) -> list[Any]:
        known = constants | dict(zip(inputs, arrays, strict=True))
        return _bind(equation, [known[id(atom)] for atom in equation.invars])

    arrays = list(inputs.values())
    return jax.jit(run).lower(*arrays).compile(), arrays


def copy_arrays(arrays: Sequence[Any]) -> list[Any]:
    """Return arrays of the same values, on the same devices, in memory of their own; one given twice is copied once."""
    jax = import_jax()
    made = {id(array): jax.device_put(array, array.sharding, may_alias=False) for array in arrays}
    return [made[id(array)] for array in arrays]


def device_memory(device: Any) -> tuple[int | None, int]:
    """Return the size of a device's largest cache (None where it is not known) and its free memory, both in bytes."""
    if device.platform == "cpu":
        return host_cache_bytes(), host_free_bytes()
    stats = device.memory_stats() or {}
    known = "bytes_limit" in stats and "bytes_in_use" in stats
    return None, stats["bytes_limit"] - stats["bytes_in_use"] if known else host_free_bytes()


def _check(equation: Any, values: Sequence[Any]) -> None:
    """Refuse an equation that is not the same when it is done again, or whose inputs cannot be copied.

    Raises:
        NotRepeatableError: with the reason.
    """
    jax, name = import_jax(), equation.primitive.name
    effect = side_effect(equation)
    if effect is not None:
        raise NotRepeatableError(f"{name} {effect}")
    if name == "device_put" and any(device is not None for device in equation.params["devices"]):
        raise NotRepeatableError(f"{name} moves arrays to another place")
    for atom, value in zip(equation.invars, values, strict=True):
        if _constant(atom):
            continue
        if not isinstance(value, jax.Array):
            raise NotRepeatableError(f"an input of {name} is a {type(value).__name__}, which is not copied")
        if not value.is_fully_addressable:
            raise NotRepeatableError(f"an input of {name} is spread over several processes")


def _replay(equation: Any, values: Sequence[Any], seconds: float, rounds: int, copies: int | None) -> Replay:
    jax = import_jax()
    _check(equation, values)
    name = equation.primitive.name
    function, arrays = alone(equation, values)
    written = sum(int(array.nbytes) for array in jax.block_until_ready(function(*arrays)))
    distinct = list({id(array): array for array in arrays}.values())
    size = sum(int(array.nbytes) for array in distinct)
    count, cold, sets = 1, True, [arrays]
    if size:
        cache, free = device_memory(next(iter(distinct[0].devices())))
        # Each set of inputs has a set of outputs, which needs memory too.
        free = free * size // (size + written)
        count, cold = turns_for(size, cache, free, copies)
        sets = [copy_arrays(arrays) for _ in range(count)]
        jax.block_until_ready(sets)
    return replay_in_turns(
        name,
        [partial(function, *one) for one in sets],
        seconds=seconds,
        rounds=rounds,
        synchronize=jax.block_until_ready,
        bytes_each=size,
        cold=cold,
    )


def replay_equations(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    select: Callable[[str, str], bool],
    seconds: float,
    rounds: int = 2,
    copies: int | None = None,
    pure: bool = False,
) -> list[ReplayedCall]:
    """Evaluate a JAX function once and replay the equations that were selected, each alone with the inputs it had.

    An equation that holds others (``jit``, ``scan`` ...) is replayed as a whole when it is selected; those inside are
    replayed when they are selected themselves.

    Args:
        function: a function that ``jax.make_jaxpr`` can trace. What it does beside computing happens once.
        args: its arguments: arrays, numbers, and nested lists, tuples and dictionaries of them.
        kwargs: its keyword arguments, likewise.
        select: says of an equation's primitive (``dot_general``) and place (see ``Evaluation``) whether it is replayed.
            It is asked about each equation that is reached, in order.
        seconds: length of a window.
        rounds: windows for each equation.
        copies: sets of inputs that take turns (default: so many that none is still in a cache).
        pure: refuse a function that does anything beside computing, before any of it is evaluated.

    Returns:
        What was selected, in the program's order; what was refused has no replay but a reason.

    Raises:
        MissingDependencyError: jax is not installed.
        NotRepeatableError: nothing was selected, or the function is to be pure and is not.
        UsageError: a length or number of windows that is not above 0.
    """
    check_replay(seconds, rounds)
    jax = import_jax()
    done: list[ReplayedCall] = []

    def visit(equation: Any, values: Sequence[Any], place: str) -> None:
        name = equation.primitive.name
        if not select(name, place):
            return
        replayed, refusal = attempt(lambda: _replay(equation, values, seconds, rounds, copies))
        inputs = tuple(_form(atom.aval) for atom in equation.invars if not _constant(atom))
        done.append(ReplayedCall(name, place, inputs, replayed, refusal))

    named = dict(kwargs or {})
    traced = jax.make_jaxpr(function)(*args, **named)
    if pure and traced.effects:
        effects = ", ".join(sorted({type(effect).__name__ for effect in traced.effects}))
        raise NotRepeatableError(f"a second run would have effects beside its result ({effects})")
    Evaluation(visit).run(traced, jax.tree.leaves((tuple(args), named)))
    if not done:
        raise NotRepeatableError(NOT_SELECTED)
    return done
