"""What counts as a step of a program that marks no steps: a step of its optimiser, or a call of an outermost module."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence
from typing import Any, Protocol

OPTIMIZER_STEPS = "steps of the optimiser"
MODULE_CALLS = "calls of an outermost module"


class Listener(Protocol):
    """Told what the program does."""

    def called(self, module: Any, args: Sequence[Any]) -> None:
        """An outermost module is about to be called."""

    def returned(self, result: Any) -> None:
        """It has returned."""

    def ended(self, kind: str) -> None:
        """A step has ended."""


class StepWatcher:
    """Follows outermost module calls and optimiser steps from the moment torch is there.

    If the program has made an optimiser, its steps end with the steps of the optimiser. In any other program a step is a call
    of an outermost module.
    """

    def __init__(self, torch: Any, listener: Listener) -> None:
        self._listener = listener
        self.trains = False
        self._depth = threading.local()
        self._follow_modules(torch)
        self._follow_optimizers(torch)

    def _follow_modules(self, torch: Any) -> None:
        original = torch.nn.Module.__call__
        compiling = torch.compiler.is_compiling
        watcher, listener, depths = self, self._listener, self._depth

        # The profiler recognises a module call by the frame of `nn.Module.__call__` and the variable `self` in it.
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if compiling():  # folded away by the compiler, which so sees the call as it was
                return original(self, *args, **kwargs)
            depth = getattr(depths, "now", 0)
            depths.now = depth + 1
            try:
                if depth:
                    return original(self, *args, **kwargs)
                before = torch.nn.Module.__call__
                listener.called(self, [*args, *kwargs.values()])
                after = torch.nn.Module.__call__
                # If recording began in `called`, `__call__` was replaced. The outermost call must go through the new one.
                result = (original if after is before else after)(self, *args, **kwargs)
                listener.returned(result)
            finally:
                depths.now = depth
            if not watcher.trains:
                listener.ended(MODULE_CALLS)
            return result

        torch.nn.Module.__call__ = call

    def _follow_optimizers(self, torch: Any) -> None:
        original = torch.optim.Optimizer.__init__
        watcher, listener = self, self._listener

        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            watcher.trains = True
            original(optimizer, *args, **kwargs)

        torch.optim.Optimizer.__init__ = init
        hooks: Any = importlib.import_module("torch.optim.optimizer")
        hooks.register_optimizer_step_post_hook(lambda _optimizer, _args, _kwargs: listener.ended(OPTIMIZER_STEPS))
