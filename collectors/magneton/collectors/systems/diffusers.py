"""Diffusers: a step of a scheduler ends a denoising step, however often the network was called for it."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from magneton.collectors.systems.protocol import Facts, Listener, OperatorNote, StepKind

FRAMEWORK = "torch"
MODULES = ("diffusers.schedulers.scheduling_utils",)
OPERATORS: tuple[OperatorNote, ...] = ()


def install(module: ModuleType, listener: Listener) -> None:
    """Follow ``step`` of every scheduler, all of which are made later than the class they derive from."""
    mixin: Any = module.SchedulerMixin

    def init_subclass(cls: Any, /, **options: Any) -> None:
        super(mixin, cls).__init_subclass__(**options)
        if "step" in vars(cls):
            cls.step = _watched(cls.step, listener)
        if "__init__" in vars(cls):
            cls.__init__ = _announced(cls.__init__, listener)

    mixin.__init_subclass__ = classmethod(init_subclass)


def facts() -> Facts:
    """Return the name of the system."""
    return Facts(name="diffusers")


def _announced(make: Any, listener: Listener) -> Any:
    # The encoders of the prompt run before the first step. They are none, as is known once there is a scheduler.
    @functools.wraps(make)
    def announced(scheduler: Any, *args: Any, **kwargs: Any) -> None:
        listener.expect(StepKind.DENOISING)
        make(scheduler, *args, **kwargs)

    return announced


def _watched(step: Any, listener: Listener) -> Any:
    @functools.wraps(step)
    def watched(scheduler: Any, model_output: Any, *args: Any, **kwargs: Any) -> Any:
        result = step(scheduler, model_output, *args, **kwargs)
        shape = getattr(model_output, "shape", ())
        listener.step(StepKind.DENOISING, requests=int(shape[0]) if shape else None)
        return result

    return watched
