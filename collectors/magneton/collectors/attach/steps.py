"""What counts as a step of a program that marks none: a call of an outermost module, or a step of its optimiser."""

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

    A program that has made an optimiser trains: its steps end with the optimiser's. Any other program's steps are the
    calls of outermost modules.
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

        # The profiler takes the frame of `nn.Module.__call__` for the call of a module, which it finds as its `self`.
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
                # If that has begun to record, the outermost call is to be seen as well.
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
