"""Transformers: each forward pass of ``generate`` is a step, the first one the prefill."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from magneton.collectors.systems.protocol import DECODE, PREFILL, Facts, Listener, OperatorNote, StepKind

FRAMEWORK = "torch"
MODULES = ("transformers.generation.utils",)
OPERATORS: tuple[OperatorNote, ...] = ()


def install(module: ModuleType, listener: Listener) -> None:
    """Follow ``generate`` of every model."""
    mixin: Any = module.GenerationMixin
    generate = mixin.generate
    calls = importlib.import_module("magneton.collectors.torch.module_calls")

    @functools.wraps(generate)
    def watched(model: Any, *args: Any, **kwargs: Any) -> Any:
        passes = _Passes(model, listener)
        with listener.only(StepKind.GENERATION):
            calls.listen(passes)
            try:
                return generate(model, *args, **kwargs)
            finally:
                calls.unlisten(passes)

    mixin.generate = watched


def facts() -> Facts:
    """Return the name of the system."""
    return Facts(name="transformers")


class _Passes:
    """Tells of the calls of one model. The encoder, which is called by itself before, belongs to the prefill."""

    def __init__(self, model: Any, listener: Listener) -> None:
        self._model, self._listener = model, listener
        self._thread = threading.get_ident()
        self._n = 0

    def entered(
        self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[str, int | None, int | None] | None:
        """Return phase, tokens and sequences of a call of the model, and None for any other call."""
        if module is not self._model or threading.get_ident() != self._thread:
            return None
        phase = DECODE if self._n else PREFILL
        self._n += 1
        self._listener.begin(StepKind.GENERATION, phase)
        given = [kwargs.get("decoder_input_ids"), kwargs.get("input_ids"), kwargs.get("inputs_embeds"), *args]
        shape = next((tuple(t.shape) for t in given if hasattr(t, "shape")), ())
        return (phase, None, None) if len(shape) < 2 else (phase, shape[0] * shape[1], shape[0])

    def left(self, token: tuple[str, int | None, int | None] | None, result: Any, raised: bool) -> None:
        """Tell of the end of a pass."""
        if token is not None and not raised:
            self._listener.step(StepKind.GENERATION, *token)
