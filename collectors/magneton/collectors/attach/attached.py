"""Which steps of a process are recorded: what the hooks of all systems tell, and when a session opens and closes."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from magneton.collectors.attach.request import CaptureReply, CaptureRequest, Seen, claim
from magneton.collectors.systems.protocol import MIXED, PREFILL, StepKind, System
from magneton.schemas.kinds import CaptureKind

if TYPE_CHECKING:
    from magneton.collectors.attach.session import Session


@dataclass
class _Framework:
    """What is known of the steps of one framework in this process.

    Attributes:
        strength: weaker steps do not count.
        ended: steps that have ended before the session was open.
        prefills: how many of them held a prefill.
        system: the system whose steps count.
        kind: their kind.
    """

    strength: int = 0
    ended: int = 0
    prefills: int = 0
    system: str = ""
    kind: str = ""


class _Thread(threading.local):
    # Set inside `Listener.only`.
    only: StepKind | None = None
    # The model that is being called, with its arguments.
    inside: tuple[Any, Sequence[Any]] | None = None


class Attached:
    """Starts and stops recording at the right steps. One process records the steps of one framework: the first that is warm."""

    def __init__(self, request: CaptureRequest) -> None:
        self._request = request
        self._process = os.getpid()
        self._session: Session | None = None
        self._recorded: str | None = None
        self._over = False
        self._rank = 0
        self._modules: list[Any] = []
        self._frameworks: dict[str, _Framework] = {}
        self._systems: dict[str, System] = {}
        self._thread = _Thread()

    def listener(self, name: str, system: System) -> Heard:
        """Return what the hooks of a system talk to."""
        if not self._systems:
            # What is registered first runs last.
            atexit.register(self._at_exit)
        self._systems[name] = system
        self._frameworks.setdefault(system.FRAMEWORK, _Framework())
        return Heard(self, name, system.FRAMEWORK)

    def forked(self) -> None:
        """Begin anew in a process that was forked. What its parent is recording stays with the parent."""
        if self._session is not None:
            self._session.forked()
            self._session, self._over = None, True
        self._process = os.getpid()
        for known in self._frameworks.values():
            known.ended = known.prefills = 0

    # What the program does.

    @contextlib.contextmanager
    def only(self, kind: StepKind) -> Iterator[None]:
        """See ``Listener.only``."""
        before, self._thread.only = self._thread.only, kind
        try:
            yield
        finally:
            self._thread.only = before

    def expect(self, framework: str, kind: StepKind) -> None:
        """See ``Listener.expect``."""
        known = self._frameworks[framework]
        if kind.strength > known.strength:
            known.strength = kind.strength
            if self._session is None:
                known.ended = known.prefills = 0

    def called(self, framework: str, module: Any, args: Sequence[Any]) -> None:
        """See ``Listener.called``."""
        if self._over or _in_data_worker():
            return
        self._thread.inside = (module, args)
        if not any(module is known for known in self._modules):
            self._modules.append(module)
        session, known = self._session, self._frameworks[framework]
        if session is not None:
            if self._recorded == framework:
                session.called(module, args)
        elif (
            self._request.warmup_steps == known.ended == 0
            and self._thread.only is None
            and known.strength <= StepKind.OPTIMIZER.strength
        ):
            self._open(framework)

    def returned(self, framework: str, result: Any) -> None:
        """See ``Listener.returned``."""
        self._thread.inside = None
        if self._session is not None and self._recorded == framework:
            self._session.returned(result)

    def begin(self, framework: str, kind: StepKind, phase: str | None) -> None:
        """See ``Listener.begin``. Where steps have phases, recording begins with a prefill, if there ever was one."""
        known = self._frameworks[framework]
        if self._session is not None or self._ignored(known, kind) or known.ended < self._request.warmup_steps:
            return
        if phase in (PREFILL, MIXED) or not known.prefills:
            self._open(framework)

    def step(
        self, framework: str, system: str, kind: StepKind, phase: str | None, tokens: int | None, requests: int | None
    ) -> None:
        """See ``Listener.step``."""
        known = self._frameworks[framework]
        if self._ignored(known, kind):
            return
        self.expect(framework, kind)
        known.system, known.kind = system, kind
        session = self._session
        if session is not None and self._recorded == framework:
            session.step(kind, phase, tokens, requests)
            if session.complete:
                self._close()
            return
        known.ended += 1
        known.prefills += phase in (PREFILL, MIXED)
        # Where there are prefills, the next one is waited for.
        if session is None and known.ended >= self._opens_at and not known.prefills:
            self._open(framework)

    def _ignored(self, known: _Framework, kind: StepKind) -> bool:
        if self._over or kind.strength < known.strength or _in_data_worker():
            return True
        only = self._thread.only
        return only is not None and kind is not only and kind.strength <= only.strength

    @property
    def _opens_at(self) -> int:
        """Number of steps before recording begins.

        A profiler is started before its warm-up steps, since it must run during them. It keeps nothing of them.
        """
        early = self._request.capture == CaptureKind.PROFILE and self._request.steps is not None
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
            failure = self._request.failure(error)
            with contextlib.suppress(Exception):
                CaptureReply(rank=self._rank, failure=failure).write(self._request)
                sys.stderr.write(f"magneton: the {self._request.name} failed: {failure}\n")

    def _open(self, framework: str) -> None:
        from magneton.collectors.attach.ranks import rank_of_process
        from magneton.collectors.attach.sessions import open_session

        rank = claim(self._request, rank_of_process())
        if rank is None:
            self._over = True
            return
        self._rank, self._recorded = rank, framework
        warmed = self._frameworks[framework].ended
        self._session = open_session(self._request, self._rank, framework, self._modules, warmed)
        if self._thread.inside is not None:
            self._session.called(*self._thread.inside)
        # After the session's own: what is registered last runs first.
        atexit.register(self._at_exit)
        # Children of `multiprocessing` end without what is registered there.
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.Finalize(None, self._at_exit, exitpriority=100)

    def _close(self) -> None:
        self._over = True
        session, self._session = self._session, None
        if session is None or self._recorded is None:
            return
        reply = session.close()
        known = self._frameworks[self._recorded]
        if known.system:
            facts = self._systems[known.system].facts()
            reply.system, reply.model = facts.name, facts.model
            reply.workload = dict(facts.workload)
        others = {name: f for name, f in self._frameworks.items() if name != self._recorded and f.ended}
        reply.notes += [
            f"The process also took steps of {name}, which are not in this recording: {f.ended} {f.kind}."
            for name, f in others.items()
        ]
        reply.write(self._request)
        if self._request.then:
            self._go_on(self._recorded, known)

    def _go_on(self, framework: str, known: _Framework) -> None:
        """Begin with the next capture of the same run. The program is warm, only a profiler is not."""
        request, *later = self._request.then
        request.then = later
        profiled = request.capture == CaptureKind.PROFILE and request.steps is not None
        request.warmup_steps = int(profiled and not known.prefills)
        self._request, self._over, self._recorded = request, False, None
        known.ended = 0
        if not known.prefills:
            self._open(framework)

    def marked(self) -> None:
        """The program says that one of its steps has ended."""
        names = [name for name, system in self._systems.items() if self._recorded == system.FRAMEWORK]
        name = next(iter(names or self._systems), None)
        if name is not None:
            self.listener(name, self._systems[name]).step(StepKind.MARKED)

    def _at_exit(self) -> None:
        if os.getpid() != self._process:
            return
        if self._session is not None:
            self.guarded(self._close)
        elif not self._over:
            self._over = True
            with contextlib.suppress(OSError):
                for name, known in self._frameworks.items():
                    seen = Seen(framework=name, steps=known.ended, prefills=known.prefills, kind=known.kind)
                    seen.write(self._request)


class Heard:
    """A ``systems.protocol.Listener``: passes on what the hooks of one system tell, and keeps errors from the program."""

    def __init__(self, attached: Attached, system: str, framework: str) -> None:
        self._attached, self._system, self._framework = attached, system, framework

    def expect(self, kind: StepKind) -> None:
        """Pass it on."""
        self._attached.expect(self._framework, kind)

    def only(self, kind: StepKind) -> contextlib.AbstractContextManager[None]:
        """Pass it on."""
        return self._attached.only(kind)

    def begin(self, kind: StepKind, phase: str | None = None) -> None:
        """Pass it on."""
        self._attached.guarded(lambda: self._attached.begin(self._framework, kind, phase))

    def step(
        self, kind: StepKind, phase: str | None = None, tokens: int | None = None, requests: int | None = None
    ) -> None:
        """Pass it on."""
        attached = self._attached
        attached.guarded(lambda: attached.step(self._framework, self._system, kind, phase, tokens, requests))

    def called(self, module: Any, args: Sequence[Any]) -> None:
        """Pass it on."""
        self._attached.guarded(lambda: self._attached.called(self._framework, module, args))

    def returned(self, result: Any) -> None:
        """Pass it on."""
        self._attached.guarded(lambda: self._attached.returned(self._framework, result))


def _in_data_worker() -> bool:
    """Tell whether this process loads data for another one."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None
