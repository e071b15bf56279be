"""The captures of profile and values of a PyTorch program that is recorded as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from magneton.collectors.attach.request import CaptureReply, CaptureRequest
from magneton.collectors.attach.session import Session
from magneton.collectors.recording.program import NO_SECOND
from magneton.collectors.recording.recorder import SCRUBBED
from magneton.collectors.sensors import anchors_now
from magneton.collectors.torch.dataflow import INPUT, PARAMETER
from magneton.collectors.torch.dispatch import ValueRecorder
from magneton.collectors.torch.profile import TorchProfile, import_torch
from magneton.collectors.torch.values_capture import notes_of
from magneton.collectors.torch.values_tables import tables_of, write_tables
from magneton.schemas.kinds import CaptureKind, OwnFormat
from magneton.schemas.manifest import Capture


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


class ValuesSession(Session):
    """The dispatch-level hook. What the program feeds its outermost modules counts as input."""

    def __init__(self, request: CaptureRequest, rank: int, modules: Sequence[Any]) -> None:
        super().__init__(request, rank, modules)
        self._torch = import_torch()
        self._recorder = ValueRecorder(unknown_constant=False)
        for module in self.modules:
            self._announce(module)
        self._recorder.__enter__()

    def _announce(self, module: Any) -> None:
        self._recorder.announce([*module.parameters(), *module.buffers()], PARAMETER)

    def called(self, module: Any, args: Sequence[Any]) -> None:
        """Take note of parameters and inputs."""
        if not any(module is known for known in self.modules):
            self._announce(module)
        super().called(module, args)
        leaves = self._torch.utils._pytree.tree_leaves(list(args))
        tensors = [t for t in leaves if isinstance(t, self._torch.Tensor)]
        self._recorder.announce(tensors, INPUT)

    def returned(self, result: Any) -> None:
        """Take note of outputs."""
        self._recorder.finish(result)

    def forked(self) -> None:
        """Stop recording."""
        self.abandon()

    def abandon(self) -> None:
        """Stop recording."""
        self._recorder.__exit__(None, None, None)

    def finish(self, reply: CaptureReply) -> None:
        """Stop recording and write the tables."""
        self._recorder.__exit__(None, None, None)
        keys = {"run_id": None, "capture": CaptureKind.VALUES, "rank": self.rank, "repeat": None, "input_id": "0"}
        directory = self.request.directory(self.rank, "0")
        write_tables(directory, tables_of(self._recorder, keys))
        reply.operators = len(self._recorder.calls)
        reply.captures = [
            Capture(
                name=CaptureKind.VALUES,
                kind=CaptureKind.VALUES,
                rank=self.rank,
                input_id="0",
                source_format=OwnFormat.VALUES,
                file=str(directory / "ops.parquet"),
            )
        ]
        reply.notes = [*notes_of(self._recorder), NO_SECOND]
