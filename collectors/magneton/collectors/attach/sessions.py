"""The kinds of capture of a program that is recorded as it is, by name."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from magneton.collectors.attach.request import CaptureReply, CaptureRequest
from magneton.collectors.attach.session import Session
from magneton.collectors.observed import Capture
from magneton.collectors.recording import step_times
from magneton.collectors.sensors import anchors_now, sample
from magneton.schemas.kinds import CaptureKind, OwnFormat


class EnergySession(Session):
    """Sensors beside the bare program."""

    def __init__(self, request: CaptureRequest, rank: int, modules: Sequence[Any]) -> None:
        super().__init__(request, rank, modules)
        self._spans: list[tuple[int, int]] = []
        self._phases: list[dict[str, Any]] = []
        self._synchronize()
        self._anchors = anchors_now()
        self._sampler = sample(request.directory(rank), request.sensors, rank=rank, deferred=True)
        self._sampler.__enter__()
        self._begin = time.monotonic_ns()

    def step(self, kind: str, phase: str | None = None, tokens: int | None = None, requests: int | None = None) -> None:
        """Note when the step ended."""
        super().step(kind)
        if self.complete:
            self._synchronize()
        now = time.monotonic_ns()
        self._spans.append((self._begin, now))
        self._phases.append(step_times.of_phase(phase, tokens, requests))
        self._begin = now

    def abandon(self) -> None:
        """Stop the sensors."""
        self._sampler.stop()

    def finish(self, reply: CaptureReply) -> None:
        """Stop the sensors and write the times of the steps."""
        result = self._sampler.stop()
        path = self.request.directory(self.rank) / step_times.FILE
        step_times.write_steps(path, self._spans, {"capture": CaptureKind.ENERGY, "rank": self.rank}, self._phases)
        reply.captures = self._sampler.captures() or [
            Capture(
                name=CaptureKind.ENERGY,
                kind=CaptureKind.ENERGY,
                rank=self.rank,
                source_format=OwnFormat.STEPS,
                file=str(path),
                anchors=[*self._anchors, *anchors_now()],
            )
        ]
        reply.sensors, reply.notes = result.sensors, list(result.notes)


class UnsupportedCaptureError(Exception):
    """There is no capture of this kind for this framework."""


def open_session(
    request: CaptureRequest, rank: int, framework: str, modules: Sequence[Any], warmed: int = 0
) -> Session:
    """Begin a capture.

    Args:
        request: what to record.
        rank: rank of this process.
        framework: whose steps are recorded.
        modules: outermost modules called so far.
        warmed: steps that have ended; those still missing to the warm-up run under the profiler.

    Raises:
        UnsupportedCaptureError: there is no such capture of programs of this framework.
    """
    # What needs torch is imported where there is torch.
    if request.repeat is not None:
        from magneton.collectors.attach.repeat_session import RepeatSession

        return RepeatSession(request, rank, modules)
    if request.capture == CaptureKind.ENERGY:
        return EnergySession(request, rank, modules)
    if framework != "torch":
        raise UnsupportedCaptureError(f"there is no capture of {request.capture} of programs of {framework}")
    if request.capture == CaptureKind.PROFILE:
        from magneton.collectors.attach.torch_profile_session import ProfileSession

        return ProfileSession(request, rank, modules, warmed)
    if find_spec("numpy") is None:
        raise UnsupportedCaptureError(
            "the capture of values needs NumPy in the program's environment: pip install numpy"
        )
    from magneton.collectors.attach.torch_values_session import ValuesSession

    return ValuesSession(request, rank, modules)
