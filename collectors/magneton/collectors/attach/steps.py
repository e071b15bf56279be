"""What counts as a step of a program that marks no steps: a step of its optimiser, or a call of an outermost module."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping, Sequence
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
        module_calls = importlib.import_module("magneton.collectors.torch.module_calls")
        module_calls.listen(self)
        self._follow_optimizers(torch)

    def entered(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Count how deep the calls are nested, and tell of an outermost one. Return whether it is one."""
        depth = getattr(self._depth, "now", 0)
        self._depth.now = depth + 1
        if depth:
            return False
        self._listener.called(module, [*args, *kwargs.values()])
        return True

    def left(self, outermost: bool, result: Any, raised: bool) -> None:
        """Tell of the end of an outermost call. One that raised is no step."""
        self._depth.now -= 1
        if not outermost or raised:
            return
        self._listener.returned(result)
        if not self.trains:
            self._listener.ended(MODULE_CALLS)

    def _follow_optimizers(self, torch: Any) -> None:
        original = torch.optim.Optimizer.__init__
        watcher, listener = self, self._listener

        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            watcher.trains = True
            original(optimizer, *args, **kwargs)

        torch.optim.Optimizer.__init__ = init
        hooks: Any = importlib.import_module("torch.optim.optimizer")
        hooks.register_optimizer_step_post_hook(lambda _optimizer, _args, _kwargs: listener.ended(OPTIMIZER_STEPS))
