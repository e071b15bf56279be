"""JAX: a step is an outermost call of a function of ``jax.jit``."""

from __future__ import annotations

import functools
import importlib
import types
from types import ModuleType
from typing import Any

from magneton.collectors.systems.protocol import Facts, Listener, OperatorNote, StepKind

FRAMEWORK = "jax"
MODULES = ("jax",)
OPERATORS: tuple[OperatorNote, ...] = ()


def install(module: ModuleType, listener: Listener) -> None:
    """Follow every function that is compiled from now on."""
    jax: Any = module
    jit = jax.jit
    # Whether no function is being traced, which arguments alone do not tell, is not said in public.
    outermost = importlib.import_module("jax._src.core").trace_state_clean

    @functools.wraps(jit)
    def watched(*args: Any, **options: Any) -> Any:
        made = jit(*args, **options)

        def told(compiled: Any) -> Any:
            return _Watched(compiled, outermost, listener)

        # With options alone it makes what makes a function.
        return told(made) if args or "fun" in options else lambda *late, **more: told(made(*late, **more))

    jax.jit = watched


def facts() -> Facts:
    """Return the name of the system."""
    return Facts(name="jax")


class _Watched:
    """A function of ``jax.jit`` whose outermost calls are told; in all else the function itself."""

    def __init__(self, compiled: Any, outermost: Any, listener: Listener) -> None:
        functools.update_wrapper(self, compiled)
        if hasattr(compiled, "__wrapped__"):
            self.__wrapped__ = compiled.__wrapped__
        self._compiled, self._outermost, self._listener = compiled, outermost, listener

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._outermost():
            return self._compiled(*args, **kwargs)
        self._listener.begin(StepKind.PROGRAMS)
        result = self._compiled(*args, **kwargs)
        self._listener.returned(result)
        self._listener.step(StepKind.PROGRAMS)
        return result

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name == "_compiled":
            raise AttributeError(name)
        return getattr(self._compiled, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Copies are of the function alone.
        return self._compiled.__reduce_ex__(protocol)
