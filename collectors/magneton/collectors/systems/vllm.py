"""vLLM: a step is one pass of a worker's engine, in whichever process the worker runs."""

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
MODULES = ("vllm.v1.worker.worker_base",)
OPERATORS = (
    OperatorNote("_C::onednn_mm", overwrites=("c",), handles=("handler",)),
    OperatorNote("vllm::unified_attention_with_output", overwrites=("output",)),
)


def install(module: ModuleType, listener: Listener) -> None:
    """Follow the worker. Passes at start-up, which profile memory and warm up, do not go this way."""
    wrapper: Any = module.WorkerWrapperBase
    execute = wrapper.execute_model
    listener.expect(StepKind.ENGINE)

    @functools.wraps(execute)
    def watched(worker: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        scheduled = dict(getattr(scheduler_output, "num_scheduled_tokens", None) or {})
        if not scheduled:
            return execute(worker, scheduler_output, *args, **kwargs)
        fresh = len(getattr(scheduler_output, "scheduled_new_reqs", ()))
        phase = DECODE if not fresh else PREFILL if fresh == len(scheduled) else MIXED
        listener.begin(StepKind.ENGINE, phase)
        result = execute(worker, scheduler_output, *args, **kwargs)
        listener.step(StepKind.ENGINE, phase, sum(scheduled.values()), len(scheduled))
        return result

    wrapper.execute_model = watched


def facts() -> Facts:
    """Return the name of the system."""
    return Facts(name="vllm")
