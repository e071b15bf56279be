"""The recorder inside a recorded command. It waits for torch, follows the steps, records the wanted ones, and writes a reply."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from magneton.collectors.attach.importing import after_import
from magneton.collectors.attach.request import SYSTEMS, CaptureReply, CaptureRequest, claim

if TYPE_CHECKING:
    from magneton.collectors.attach.session import Session


class Attached:
    """Starts and stops recording at the right steps."""

    def __init__(self, request: CaptureRequest) -> None:
        self._request = request
        self._process = os.getpid()
        self._session: Session | None = None
        self._over = False
        self._ended = 0
        self._rank = 0
        self._modules: list[Any] = []

    # What the program does.

    def called(self, module: Any, args: Sequence[Any]) -> None:
        """An outermost module is about to be called."""
        if self._over:
            return
        if not any(module is known for known in self._modules):
            self._modules.append(module)
        if self._session is None and self._request.warmup_steps == 0:
            self.guarded(self._open)
        session = self._session
        if session is not None:
            self.guarded(lambda: session.called(module, args))

    def returned(self, result: Any) -> None:
        """An outermost module has returned."""
        session = self._session
        if session is not None:
            self.guarded(lambda: session.returned(result))

    def ended(self, kind: str) -> None:
        """A step has ended."""
        if not self._over:
            self.guarded(lambda: self._step(kind))

    def _step(self, kind: str) -> None:
        session = self._session
        if session is not None:
            session.step(kind)
            if session.complete:
                self._close()
            return
        self._ended += 1
        if self._ended >= self._opens_at:
            self._open()

    @property
    def _opens_at(self) -> int:
        """Number of steps before recording begins.

        A profiler is started before its warm-up steps, since it must run during them. It keeps nothing of them.
        """
        early = self._request.capture == "profile" and self._request.steps is not None
        return min(1, self._request.warmup_steps) if early else self._request.warmup_steps

    # What is done about it.

    def guarded(self, action: Callable[[], Any]) -> None:
        """Run code of the recorder. Its errors never reach the program."""
        try:
            action()
        except Exception as error:
            session, self._session, self._over = self._session, None, True
            if session is not None:
                with contextlib.suppress(Exception):
                    session.abandon()
            failure = f"{type(error).__name__}: {error}"
            with contextlib.suppress(Exception):
                CaptureReply(rank=self._rank, failure=failure).write(self._request)
                sys.stderr.write(f"magneton: the {self._request.name} failed: {failure}\n")

    def _open(self) -> None:
        from magneton.collectors.attach.session import rank_of_process
        from magneton.collectors.attach.sessions import open_session

        self._rank = rank_of_process()
        if not claim(self._request, self._rank):
            self._over = True
            return
        self._session = open_session(self._request, self._rank, self._modules)
        atexit.register(self._at_exit)

    def _close(self) -> None:
        self._over = True
        if self._session is not None:
            reply = self._session.close()
            self._session = None
            reply.write(self._request)

    def _at_exit(self) -> None:
        if self._session is not None and os.getpid() == self._process:
            self.guarded(self._close)


def attach() -> None:
    """Follow the request this process was started with, as soon as torch is imported."""
    request = CaptureRequest.from_environment()
    if request is None:
        return
    if request.repeat is not None and request.repeat.regions and request.repeat.regions[0].system in SYSTEMS:
        from magneton.collectors.attach.system_replays import SystemReplays

        system = request.repeat.regions[0].system
        after_import(SYSTEMS[system], SystemReplays(request, system).follow)
        return
    attached = Attached(request)

    def begin(torch: ModuleType) -> None:
        from magneton.collectors.attach.steps import StepWatcher

        attached.guarded(lambda: StepWatcher(torch, attached))

    after_import("torch", begin)
