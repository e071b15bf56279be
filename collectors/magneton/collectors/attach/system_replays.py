"""Replaying operations of programs of other systems than PyTorch.

A program is the unit that its system compiles: a session of ONNX Runtime, or a function of ``jax.jit`` or ``tf.function``. After some
calls of a program, the program waits while its operations run alone. Only outermost calls are counted.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import os
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from magneton.collectors.attach.request import CaptureReply, CaptureRequest, Region, RegionRepeats, Window, claim
from magneton.collectors.recording.versions import versions
from magneton.collectors.replay.windows import NOT_SELECTED, NotRepeatableError, ReplayedCall
from magneton.collectors.sensors import Sampler, sample

NOT_SEEN = "no program that was seen to run more often than it takes to warm up has it"
PROGRAM_CALLS = "calls of a compiled program"

# Is given ``select``, and the length, number and copies of windows as keywords.
Replay = Callable[..., list[ReplayedCall]]


class SystemReplays:
    """Replays the wanted operations of each program, once, after its warm-up. Errors never reach the program."""

    def __init__(self, request: CaptureRequest, system: str) -> None:
        if request.repeat is None:
            raise ValueError("there is nothing to replay")
        self._request, self._plan, self._system = request, request.repeat, system
        self._process = os.getpid()
        self._waiting = list(self._plan.regions)
        # Calls of each program that is still there.
        self._calls: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._n_calls = 0
        self._found: list[RegionRepeats] = []
        self._reasons: list[str] = []
        self._sampler: Sampler | None = None
        self._begun = self._over = self._busy = False

    def follow(self, module: Any) -> None:
        """Watch the programs of a system that has just been imported."""
        self._guarded(lambda: _FOLLOW[self._system](module, self))

    @property
    def watching(self) -> bool:
        """Whether calls are still counted: not while operations are replayed, nor in processes that were forked."""
        return not (self._over or self._busy) and os.getpid() == self._process

    def called(self, program: Any, replay: Replay) -> None:
        """Take note of an outermost call of a program, which ``replay`` can replay."""
        if not self.watching:
            return
        self._n_calls += 1
        self._calls[program] = self._calls.get(program, 0) + 1
        if self._calls[program] == self._request.warmup_steps + 1:
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
        except Exception as error:
            # Another program may have what this one lacks, or do what this one cannot.
            refused = isinstance(error, NotRepeatableError)
            self._reasons.append(str(error) if refused else f"{type(error).__name__}: {error}")
            return
        for call in calls:
            region = wanted[call.name if call.name in wanted else call.place]
            self._found.append(_repeats(region, call))
        seen = {name for call in calls for name in (call.name, call.place)}
        self._waiting = [region for region in self._waiting if region.name not in seen]
        if not self._waiting:
            self._end()

    def _begin(self) -> None:
        self._begun = True
        if claim(self._request, (0, True)) is None:
            self._over = True
            return
        self._sampler = sample(self._request.directory(0), self._request.sensors, rank=0, deferred=True)
        self._sampler.__enter__()
        # After the sampler's own: what is registered last runs first.
        atexit.register(lambda: self._guarded(self._end))

    def _end(self) -> None:
        """Stop the sensors and reply."""
        if self._over or os.getpid() != self._process:
            return
        self._over = True
        reply = CaptureReply(rank=0, steps=self._n_calls, step_kind=PROGRAM_CALLS)
        reasons = [reason for reason in dict.fromkeys(self._reasons) if reason != NOT_SELECTED]
        lacking = "; ".join([NOT_SEEN, *(f"one could not be replayed: {reason}" for reason in reasons)])
        reply.repeats = [*self._found, *(RegionRepeats(region, reason=lacking) for region in self._waiting)]
        if self._sampler is not None:
            result = self._sampler.stop()
            reply.sensors, reply.notes = result.sensors, list(result.notes)
        reply.versions = versions()
        reply.write(self._request)

    def _guarded(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:
            self._over = True
            failure = self._request.failure(error)
            if self._sampler is not None:
                with contextlib.suppress(Exception):
                    self._sampler.stop()
            with contextlib.suppress(Exception):
                CaptureReply(rank=0, failure=failure).write(self._request)
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
    from magneton.collectors.replay.onnxruntime import replay_nodes

    session_class = onnxruntime.InferenceSession
    make, run = session_class.__init__, session_class.run
    models: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    @functools.wraps(make)
    def init(session: Any, path_or_bytes: Any, *args: Any, **kwargs: Any) -> None:
        make(session, path_or_bytes, *args, **kwargs)
        if replays.watching:
            models[session] = path_or_bytes if isinstance(path_or_bytes, bytes) else Path(path_or_bytes).absolute()

    @functools.wraps(run)
    def watched(session: Any, output_names: Any, input_feed: Any, *args: Any, **kwargs: Any) -> Any:
        def replay(**how: Any) -> list[ReplayedCall]:
            if session not in models:
                raise NotRepeatableError("its session was made before it could be watched")
            model, options = models[session], session.get_session_options()
            if isinstance(model, bytes):
                import onnx

                model = onnx.load_from_string(model)
            return replay_nodes(
                model,
                dict(input_feed),
                providers=session.get_providers(),
                provider_options=session.get_provider_options(),
                optimisation=options.graph_optimization_level,
                threads=options.intra_op_num_threads or None,
                **how,
            )

        result = run(session, output_names, input_feed, *args, **kwargs)
        replays.called(session, replay)
        return result

    session_class.__init__, session_class.run = init, watched


def _follow_jax(jax: Any, replays: SystemReplays) -> None:
    from magneton.collectors.replay.jax import replay_equations

    jit = jax.jit
    # Whether no function is being traced, which arguments alone do not tell, is not said in public.
    outermost = importlib.import_module("jax._src.core").trace_state_clean

    class Watched:
        """A function of ``jax.jit`` whose outermost calls are seen; in all else the function itself."""

        def __init__(self, compiled: Any) -> None:
            functools.update_wrapper(self, compiled)
            if hasattr(compiled, "__wrapped__"):
                self.__wrapped__ = compiled.__wrapped__
            self._compiled = compiled

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            # Before the call, which may be given its arguments to keep.
            if replays.watching and outermost():
                replays.called(self, functools.partial(self._replay, args, kwargs))
            return self._compiled(*args, **kwargs)

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            return self if instance is None else types.MethodType(self, instance)

        def __getattr__(self, name: str) -> Any:
            if name == "_compiled":
                raise AttributeError(name)
            return getattr(self._compiled, name)

        def __reduce_ex__(self, protocol: Any) -> Any:
            # Copies are of the function alone.
            return self._compiled.__reduce_ex__(protocol)

        def _replay(self, args: Sequence[Any], kwargs: dict[str, Any], **how: Any) -> list[ReplayedCall]:
            """Replay with all that is no array bound: it may be static."""
            leaves, structure = jax.tree_util.tree_flatten((args, kwargs))
            free = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array | np.ndarray | np.generic)]

            def program(*given: Any) -> Any:
                whole = list(leaves)
                for i, value in zip(free, given, strict=True):
                    whole[i] = value
                call_args, call_kwargs = jax.tree_util.tree_unflatten(structure, whole)
                return self._compiled(*call_args, **call_kwargs)

            return replay_equations(program, [leaves[i] for i in free], pure=True, **how)

    @functools.wraps(jit)
    def watched(*args: Any, **options: Any) -> Any:
        made = jit(*args, **options)
        # With options alone it makes what makes a function.
        return Watched(made) if args or "fun" in options else lambda *late, **more: Watched(made(*late, **more))

    jax.jit = watched


def _follow_tensorflow(tensorflow: Any, replays: SystemReplays) -> None:
    from magneton.collectors.replay.tensorflow import replay_operations

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
