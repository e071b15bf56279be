"""The capture of values of a PyTorch program that is recorded as it is. It needs NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from magneton.collectors.attach.request import CaptureReply, CaptureRequest
from magneton.collectors.attach.session import Session
from magneton.collectors.observed import Capture
from magneton.collectors.raw.values import keep_values
from magneton.collectors.recording.remarks import NO_SECOND
from magneton.collectors.torch.dataflow import INPUT, PARAMETER
from magneton.collectors.torch.dispatch import ValueRecorder
from magneton.collectors.torch.profile import import_torch
from magneton.collectors.torch.values_capture import notes_of
from magneton.collectors.torch.values_tables import columns_of
from magneton.schemas.kinds import CaptureKind, OwnFormat


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
        keep_values(directory, columns_of(self._recorder), keys)
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
