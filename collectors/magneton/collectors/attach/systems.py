"""Replaying operations of programs of other systems than PyTorch: after some calls of a program, it waits while they run alone.

What counts as a program is what its system compiles: a session of ONNX Runtime, a function of ``jax.jit`` or of
``tf.function``. Only outermost calls count.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from magneton.collectors.attach.order import Answer, Order, Region, RegionRepeats, Window, claim
from magneton.collectors.recording import versions
from magneton.collectors.replays import NOT_SELECTED, NotRepeatableError, ReplayedCall
from magneton.collectors.sensors import Sampler, sample

NOT_SEEN = "no program that ran more often than it takes to warm up has it"
PROGRAM_CALLS = "calls of a compiled program"

# Is given ``select``, and the length, number and copies of windows as keywords.
Replay = Callable[..., list[ReplayedCall]]


class SystemReplays:
    """Replays what is asked for of each program, once, after its warm-up; whatever goes wrong is not the program's affair."""

    def __init__(self, order: Order, system: str) -> None:
        if order.repeat is None:
            raise ValueError("there is nothing to replay")
        self._order, self._plan, self._system = order, order.repeat, system
        self._process = os.getpid()
        self._waiting = list(self._plan.regions)
        self._calls: dict[int, int] = {}
        # Programs that were looked at, kept so that no id is used twice.
        self._known: list[Any] = []
        self._found: list[RegionRepeats] = []
        self._reasons: list[str] = []
        self._sampler: Sampler | None = None
        self._begun = self._over = self._busy = False

    def follow(self, module: Any) -> None:
        """Watch the programs of a system that has just been imported."""
        self._guarded(lambda: _FOLLOW[self._system](module, self))

    def called(self, program: Any, replay: Replay) -> None:
        """Take note of an outermost call of a program, which ``replay`` can replay."""
        if self._over or self._busy or os.getpid() != self._process:
            return
        key = id(program)
        if key not in self._calls:
            self._known.append(program)
        self._calls[key] = self._calls.get(key, 0) + 1
        if self._calls[key] == self._order.warmup_steps + 1:
            self._busy = True
            try:
                self._guarded(lambda: self._replay(replay))
            finally:
                self._busy = False

    def _replay(self, replay: Replay) -> None:
        if not self._begun:
            self._begin()
        if self._over:
            return
        wanted = {region.name: region for region in self._waiting}
        try:
            calls = replay(
                select=lambda name, place: name in wanted or place in wanted,
                seconds=self._plan.window_s,
                rounds=self._plan.rounds,
                copies=self._plan.copies,
            )
        except NotRepeatableError as error:
            # Another program may have what this one lacks.
            self._reasons.append(str(error))
            return
        for call in calls:
            for name in {call.name, call.place} & wanted.keys():
                self._found.append(_repeats(wanted[name], call))
        seen = {name for call in calls for name in (call.name, call.place)}
        self._waiting = [region for region in self._waiting if region.name not in seen]
        if not self._waiting:
            self._end()

    def _begin(self) -> None:
        self._begun = True
        if not claim(self._order, 0):
            self._over = True
            return
        self._sampler = sample(self._order.directory(0), self._order.sensors, rank=0)
        self._sampler.__enter__()
        # After the sampler's own: what is registered last runs first.
        atexit.register(lambda: self._guarded(self._end))

    def _end(self) -> None:
        """Stop the sensors and answer."""
        if self._over or os.getpid() != self._process:
            return
        self._over = True
        answer = Answer(rank=0, steps=sum(self._calls.values()), step_kind=PROGRAM_CALLS)
        reasons = [reason for reason in dict.fromkeys(self._reasons) if reason != NOT_SELECTED]
        lacking = "; ".join([NOT_SEEN, *reasons])
        answer.repeats = [*self._found, *(RegionRepeats(region, reason=lacking) for region in self._waiting)]
        if self._sampler is not None:
            result = self._sampler.stop()
            answer.sensors, answer.notes = result.sensors, list(result.notes)
        answer.versions = versions()
        answer.write(self._order)

    def _guarded(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:
            self._over = True
            if self._sampler is not None:
                self._sampler.stop()
            failure = f"{type(error).__name__}: {error}"
            Answer(rank=0, failure=failure).write(self._order)
            sys.stderr.write(f"magneton: the replay failed: {failure}\n")


def _repeats(region: Region, call: ReplayedCall) -> RegionRepeats:
    """Return a replayed call as a region of its own."""
    name = call.name if call.place == call.name else f"{call.name} at {call.place}"
    own = Region(name, False, 1, region.system)
    if call.replay is None:
        return RegionRepeats(own, reason=call.refusal or "it was not replayed")
    windows = [Window(w.start_ns, w.end_ns, w.calls, w.times) for w in call.replay.windows]
    return RegionRepeats(own, windows, {call.name: 1}, {}, call.replay.cold)


def _follow_onnx(onnxruntime: Any, replays: SystemReplays) -> None:
    from magneton.collectors.replay_onnx import replay_nodes

    session_class = onnxruntime.InferenceSession
    make, run = session_class.__init__, session_class.run
    models: dict[int, Any] = {}

    @functools.wraps(make)
    def init(session: Any, path_or_bytes: Any, *args: Any, **kwargs: Any) -> None:
        make(session, path_or_bytes, *args, **kwargs)
        models[id(session)] = path_or_bytes

    @functools.wraps(run)
    def watched(session: Any, output_names: Any, input_feed: Any, *args: Any, **kwargs: Any) -> Any:
        result = run(session, output_names, input_feed, *args, **kwargs)

        def replay(**how: Any) -> list[ReplayedCall]:
            model = models[id(session)]
            if isinstance(model, bytes):
                import onnx

                model = onnx.load_from_string(model)
            threads = session.get_session_options().intra_op_num_threads or None
            return replay_nodes(model, dict(input_feed), providers=session.get_providers(), threads=threads, **how)

        replays.called(session, replay)
        return result

    session_class.__init__, session_class.run = init, watched


def _follow_jax(jax: Any, replays: SystemReplays) -> None:
    from magneton.collectors.replay_jax import replay_equations

    jit = jax.jit

    class Watched:
        """A function of ``jax.jit`` whose outermost calls are seen; in all else the function itself."""

        def __init__(self, compiled: Any, static_argnums: Sequence[int], static_argnames: Sequence[str]) -> None:
            functools.update_wrapper(self, compiled)
            self._compiled, self._numbers, self._names = compiled, set(static_argnums), set(static_argnames)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            # Before the call, which may be given its arguments to keep.
            if not any(isinstance(x, jax.core.Tracer) for x in jax.tree_util.tree_leaves((args, kwargs))):
                replays.called(self._compiled, functools.partial(self._replay, args, kwargs))
            return self._compiled(*args, **kwargs)

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            return self if instance is None else functools.partial(self, instance)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._compiled, name)

        def _replay(self, args: Sequence[Any], kwargs: dict[str, Any], **how: Any) -> list[ReplayedCall]:
            """Replay with the static arguments bound."""
            numbers = {n % len(args) for n in self._numbers if -len(args) <= n < len(args)}
            free = [i for i in range(len(args)) if i not in numbers]
            static = {k: v for k, v in kwargs.items() if k in self._names}

            def program(*given: Any, **named: Any) -> Any:
                whole = list(args)
                for i, value in zip(free, given, strict=True):
                    whole[i] = value
                return self._compiled(*whole, **named, **static)

            named = {k: v for k, v in kwargs.items() if k not in self._names}
            return replay_equations(program, [args[i] for i in free], named, **how)

    @functools.wraps(jit)
    def watched(fun: Any = None, /, **options: Any) -> Any:
        if fun is None:
            return lambda late: watched(late, **options)
        numbers, names = options.get("static_argnums"), options.get("static_argnames")
        numbers = (numbers,) if isinstance(numbers, int) else tuple(numbers or ())
        names = (names,) if isinstance(names, str) else tuple(names or ())
        return Watched(jit(fun, **options), numbers, names)

    jax.jit = watched


def _follow_tensorflow(tensorflow: Any, replays: SystemReplays) -> None:
    from magneton.collectors.replay_tensorflow import replay_operations

    # The class of what tf.function returns; Keras uses it too.
    function_class = type(tensorflow.function(lambda: None))
    call = function_class.__call__

    @functools.wraps(call)
    def watched(function: Any, *args: Any, **kwargs: Any) -> Any:
        def replay(**how: Any) -> list[ReplayedCall]:
            # Tapes that are open do not see it.
            with tensorflow.init_scope():
                return replay_operations(function, args, kwargs, undo=True, **how)

        if tensorflow.executing_eagerly():
            replays.called(function, replay)
        return call(function, *args, **kwargs)

    function_class.__call__ = watched


_FOLLOW: dict[str, Callable[[Any, SystemReplays], None]] = {
    "onnx": _follow_onnx,
    "jax": _follow_jax,
    "tensorflow": _follow_tensorflow,
}
