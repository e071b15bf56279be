"""SGLang: a step is one forward pass of a model runner."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from magneton.collectors.systems.protocol import (
    DECODE,
    MIXED,
    PREFILL,
    Facts,
    Listener,
    OperatorNote,
    StepKind,
)

FRAMEWORK = "torch"
MODULES = ("sglang.srt.model_executor.model_runner",)
OPERATORS: tuple[OperatorNote, ...] = ()


def install(module: ModuleType, listener: Listener) -> None:
    """Follow the runner. The request that warms the server up is like any other; what is recorded begins with a later prefill."""
    runner: Any = module.ModelRunner
    forward = runner.forward
    listener.expect(StepKind.ENGINE)

    @functools.wraps(forward)
    def watched(self: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        mode = forward_batch.forward_mode
        if mode.is_idle():
            return forward(self, forward_batch, *args, **kwargs)
        phase = MIXED if mode.is_mixed() else PREFILL if mode.is_extend() else DECODE
        listener.begin(StepKind.ENGINE, phase)
        result = forward(self, forward_batch, *args, **kwargs)
        listener.step(StepKind.ENGINE, phase, int(forward_batch.input_ids.shape[0]), int(forward_batch.batch_size))
        return result

    runner.forward = watched


def facts() -> Facts:
    """Return the name of the system."""
    return Facts(name="sglang")
