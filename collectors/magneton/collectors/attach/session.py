"""One capture of a program that is recorded as it is: what every kind of capture does, from one end of a step to another."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from magneton.collectors.attach.request import CaptureReply, CaptureRequest
from magneton.collectors.recording.knobs import FILE, write_knobs
from magneton.collectors.recording.versions import versions
from magneton.collectors.systems.protocol import StepKind
from magneton.collectors.torch.profile import devices_in_use
from magneton.schemas.kinds import CaptureKind


class Session(ABC):
    """One capture while it is open.

    Args:
        request: what to record.
        rank: rank of this process.
        modules: outermost modules called so far.
    """

    def __init__(self, request: CaptureRequest, rank: int, modules: Sequence[Any]) -> None:
        self.request, self.rank = request, rank
        self.modules = list(modules)
        self.steps = 0
        self.kind = ""

    @property
    def complete(self) -> bool:
        """Whether all wanted steps have ended."""
        return self.request.steps is not None and self.steps >= self.request.steps

    def called(self, module: Any, args: Sequence[Any]) -> None:
        """Take note of a call of an outermost module."""
        if not any(module is known for known in self.modules):
            self.modules.append(module)

    def returned(self, result: Any) -> None:
        """Take note of what an outermost module returned; most captures have no use for it."""
        del result

    def step(self, kind: str, phase: str | None = None, tokens: int | None = None, requests: int | None = None) -> None:
        """Take note of the end of a step; see ``systems.protocol.Listener.step``."""
        del phase, tokens, requests
        self.kind = kind
        self.steps += 1

    @abstractmethod
    def finish(self, reply: CaptureReply) -> None:
        """Stop, write the raw files and say in the reply which."""

    def forked(self) -> None:
        """Stop watching in a process that was forked, and touch nothing that belongs to its parent."""
        self.modules = []

    @abstractmethod
    def abandon(self) -> None:
        """Stop watching the program, and write nothing."""

    def close(self) -> CaptureReply:
        """End the capture and return what it left."""
        reply = CaptureReply(rank=self.rank, steps=self.steps, step_kind=self.kind or StepKind.CALLS)
        self.finish(reply)
        keys = {"capture": self.request.capture, "rank": self.rank}
        below = ["0"] if self.request.capture == CaptureKind.VALUES else []
        if below:
            keys["input_id"] = "0"
        write_knobs(self.request.directory(self.rank, *below) / FILE, self.modules, keys)
        wanted = self.request.steps
        if wanted is not None and self.steps < wanted:
            reply.notes.append(f"The {self.request.name} ended after {self.steps} of {wanted} steps.")
            for capture in reply.captures:
                capture.incomplete = True
        reply.versions = versions()
        reply.devices = devices_in_use()
        return reply

    def _synchronize(self) -> None:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()
