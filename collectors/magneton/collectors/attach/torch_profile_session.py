"""The capture of the profile of a PyTorch program that is recorded as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from magneton.collectors.attach.request import CaptureReply, CaptureRequest
from magneton.collectors.attach.session import Session
from magneton.collectors.observed import Capture
from magneton.collectors.recording.remarks import SCRUBBED
from magneton.collectors.sensors import anchors_now
from magneton.collectors.torch.profile import TorchProfile
from magneton.schemas.kinds import CaptureKind


class ProfileSession(Session):
    """The native profiler."""

    def __init__(self, request: CaptureRequest, rank: int, modules: Sequence[Any], warmed: int) -> None:
        super().__init__(request, rank, modules)
        steps = request.steps
        self._warmup = max(0, request.warmup_steps - warmed) if steps is not None else 0
        self._anchors = anchors_now()
        self._profile = TorchProfile(warmup_steps=self._warmup, steps=steps, stacks=request.stacks)
        self._profile.start()

    def step(self, kind: str, phase: str | None = None, tokens: int | None = None, requests: int | None = None) -> None:
        """Tell the profiler that a step ended; those of its warm-up are not counted."""
        if self._warmup:
            self._warmup -= 1
            self.kind = kind
        else:
            super().step(kind)
        if self.request.steps is not None:
            self._profile.step()

    def abandon(self) -> None:
        """Stop the profiler."""
        self._profile.stop()

    def finish(self, reply: CaptureReply) -> None:
        """Stop the profiler and write its trace."""
        self._profile.stop()
        file = self._profile.export(self.request.directory(self.rank))
        reply.operators = self._profile.operators
        reply.captures = [
            Capture(
                name=CaptureKind.PROFILE,
                kind=CaptureKind.PROFILE,
                rank=self.rank,
                source_format=self._profile.source_format,
                file=str(file),
                anchors=[*self._anchors, *anchors_now()],
            )
        ]
        reply.notes = [SCRUBBED]
