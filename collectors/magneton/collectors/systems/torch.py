"""PyTorch: steps of the optimiser, else calls of an outermost module."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from magneton.collectors.systems.protocol import Facts, Listener, OperatorNote, StepKind

FRAMEWORK = "torch"
MODULES = ("torch",)
OPERATORS: tuple[OperatorNote, ...] = ()


def install(module: ModuleType, listener: Listener) -> None:
    """Follow module calls and optimisers."""
    # These import torch, which is there only now.
    calls = importlib.import_module("magneton.collectors.torch.module_calls")
    calls.listen(_Outermost(listener))
    _follow_optimizers(module, listener)


def facts() -> Facts:
    """Return nothing: the modules themselves are known to the recorder."""
    return Facts()


class _Outermost:
    """Tells of outermost calls, in whatever thread they are."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._depth = threading.local()

    def entered(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Count how deep the calls are nested. Return whether this one is outermost."""
        depth = getattr(self._depth, "now", 0)
        self._depth.now = depth + 1
        if depth:
            return False
        self._listener.called(module, [*args, *kwargs.values()])
        return True

    def left(self, outermost: bool, result: Any, raised: bool) -> None:
        """Tell of the end of an outermost call. One that raised is no step."""
        self._depth.now -= 1
        if outermost and not raised:
            self._listener.returned(result)
            self._listener.step(StepKind.CALLS)


def _follow_optimizers(torch: Any, listener: Listener) -> None:
    original = torch.optim.Optimizer.__init__

    def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        listener.expect(StepKind.OPTIMIZER)
        original(optimizer, *args, **kwargs)

    torch.optim.Optimizer.__init__ = init
    hooks: Any = importlib.import_module("torch.optim.optimizer")
    hooks.register_optimizer_step_post_hook(lambda _optimizer, _args, _kwargs: listener.step(StepKind.OPTIMIZER))
