"""TensorFlow: a step is an outermost call of a function of ``tf.function``; Keras makes such functions too."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from magneton.collectors.systems.protocol import Facts, Listener, OperatorNote, StepKind

FRAMEWORK = "tensorflow"
MODULES = ("tensorflow",)
OPERATORS: tuple[OperatorNote, ...] = ()


def install(module: ModuleType, listener: Listener) -> None:
    """Follow every function that is compiled."""
    tensorflow: Any = module
    # The class of what tf.function returns.
    function_class: Any = type(tensorflow.function(lambda: None))
    call = function_class.__call__

    @functools.wraps(call)
    def watched(function: Any, *args: Any, **kwargs: Any) -> Any:
        if not tensorflow.executing_eagerly():
            return call(function, *args, **kwargs)
        listener.begin(StepKind.PROGRAMS)
        result = call(function, *args, **kwargs)
        listener.returned(result)
        listener.step(StepKind.PROGRAMS)
        return result

    function_class.__call__ = watched


def facts() -> Facts:
    """Return the name of the system."""
    return Facts(name="tensorflow")
