"""ONNX Runtime: a step is one run of a session."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from magneton.collectors.systems.protocol import Facts, Listener, OperatorNote, StepKind

FRAMEWORK = "onnxruntime"
MODULES = ("onnxruntime",)
OPERATORS: tuple[OperatorNote, ...] = ()


def install(module: ModuleType, listener: Listener) -> None:
    """Follow the runs of every session."""
    session: Any = module.InferenceSession
    for name in ("run", "run_with_ort_values", "run_with_iobinding"):
        original = getattr(session, name, None)
        if original is not None:
            setattr(session, name, _watched(original, listener))


def facts() -> Facts:
    """Return the name of the system."""
    return Facts(name="onnxruntime")


def _watched(run: Any, listener: Listener) -> Any:
    @functools.wraps(run)
    def watched(session: Any, *args: Any, **kwargs: Any) -> Any:
        listener.begin(StepKind.PROGRAMS)
        result = run(session, *args, **kwargs)
        listener.step(StepKind.PROGRAMS)
        return result

    return watched
