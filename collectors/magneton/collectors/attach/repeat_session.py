"""Repeating regions of a running program while sensors are read.

In place, each call runs r times in some windows and once in the others. Alone, the program waits while the region runs by itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from magneton.collectors.attach.request import CaptureReply, CaptureRequest, Region, RegionRepeats, Window
from magneton.collectors.attach.session import Session
from magneton.collectors.replay.torch import Repetition, in_place_mode
from magneton.collectors.sensors import Sampler, sample
from magneton.collectors.torch.call_stack import ModuleStack

NOT_SEEN = (
    "no step dispatched it: it is not in the program, runs inside another operator, or is made of other operators"
)
NO_TURN = "the command ended before its turn"
# The first step checks and copies the calls; a region that runs alone runs after this step. The second step runs each call once,
# with the copies in place. After that the steps are measured.
_TRY, _SETTLE, _MEASURE = range(3)


class RepeatSession(Session):
    """Repeats one region after the other.

    A region has ``rounds`` pairs of windows in the order r, 1, 1, r, or ``rounds`` windows if it runs alone. Only rank 0 repeats.
    Otherwise ranks that wait for one another would be measured while they wait.
    """

    def __init__(self, request: CaptureRequest, rank: int, modules: Sequence[object]) -> None:
        super().__init__(request, rank, modules)
        if request.repeat is None:
            raise ValueError("there is nothing to repeat")
        self._plan = request.repeat
        self._waiting: deque[Region] = deque(self._plan.regions if rank == 0 else ())
        self._region: Region | None = None
        # Regions that had a turn in a step without them.
        self._unseen: set[str] = set()
        self._found: list[RegionRepeats] = []
        self._done = Repetition()
        self._windows: list[Window] = []
        self._stage = _TRY
        self._stack: ModuleStack | None = None
        self._sampler: Sampler | None = None
        self._entered = False
        if rank:
            return
        self._mode = in_place_mode()(self._plan.copies)
        try:
            self._sampler = sample(request.directory(rank), request.sensors, rank=rank, deferred=True)
            self._sampler.__enter__()
            self._next()
            self._mode.__enter__()
            self._entered = True
        except BaseException:
            self.abandon()
            raise

    @property
    def complete(self) -> bool:
        """Whether every region had its turn."""
        return self._region is None

    def step(self, kind: str, phase: str | None = None, tokens: int | None = None, requests: int | None = None) -> None:
        """Close a step, and the window or the region if it is their last."""
        super().step(kind)
        if self._region is None:
            return
        self._mode.end_iteration()
        if self._stage == _TRY:
            self._leave_modules()
            if self._plan.alone and not (self._done.repeated or self._done.refused):
                # It may be in another step.
                self._later()
                return
            if self._done.repeated and self._plan.alone:
                self._replay()
            if self._plan.alone or not self._done.repeated:
                self._next()
                return
            self._stage, self._mode.times = _SETTLE, 1
        elif self._stage == _SETTLE:
            self._stage = _MEASURE
            self._begin_window()
        else:
            self._measure()
        if self._done.spoiled is not None:
            self._next()

    def _measure(self) -> None:
        self._steps += 1
        if time.monotonic_ns() - self._began < self._plan.window_s * 1e9:
            return
        self._synchronize()
        if self._done.spoiled is None:
            self._windows.append(Window(self._began, time.monotonic_ns(), self._steps, self._mode.times))
            if len(self._windows) < 2 * self._plan.rounds:
                self._begin_window()
            else:
                self._next()

    def _later(self) -> None:
        """Try the region again after the other regions."""
        region, self._region = self._region, None
        if region is not None:
            self._waiting.append(region)
            self._unseen.add(region.name)
        self._next()

    def _replay(self) -> None:
        """Run the region by itself, on the arguments that it had in this step."""
        try:
            done = self._mode.replay(seconds=self._plan.window_s, rounds=self._plan.rounds)
        except Exception as error:
            # The program goes on even if a replay fails.
            self._done.spoiled = f"it could not be replayed: {type(error).__name__}: {error}"
            return
        self._windows = [Window(w.start_ns, w.end_ns, w.calls, w.times) for w in done.windows]

    def _begin_window(self) -> None:
        region = self._region
        # The order r 1 1 r r 1 ... cancels an even drift.
        often = region is not None and (len(self._windows) + 1) // 2 % 2 == 0
        self._mode.times = region.times if region is not None and often else 1
        self._synchronize()
        self._began, self._steps = time.monotonic_ns(), 0

    def _next(self) -> None:
        """Store the result of the region, and begin with the next."""
        if self._region is not None:
            self._found.append(self._outcome(self._region))
        self._leave_modules()
        self._region = self._waiting.popleft() if self._waiting else None
        self._done, self._windows, self._stage = Repetition(), [], _TRY
        region = self._region
        if region is None:
            self._mode.begin(lambda _name, _position: False, self._done)
            self._mode.times = 1
            return
        # A region that will run alone runs once in its step.
        self._mode.times = 1 if self._plan.alone else region.times
        if region.module:
            # Modules are named from here on as in every recording: by class and number, in the order of first calls.
            self._stack = ModuleStack()
            self._stack.__enter__()
        self._mode.begin(_selection(region, self._stack), self._done, views=not region.module)

    def _outcome(self, region: Region) -> RegionRepeats:
        done = self._done
        reason = done.spoiled
        if reason is None and not done.repeated:
            reason = next(iter(done.refused.values()), NOT_SEEN)
        windows = [] if done.spoiled is not None else self._windows
        return RegionRepeats(region, windows, dict(done.repeated), dict(done.refused), done.cold, reason)

    def _leave_modules(self) -> None:
        if self._stack is not None:
            self._stack.__exit__(None, None, None)
            self._stack = None

    def _leave(self) -> None:
        self._leave_modules()
        if self._entered:
            self._entered = False
            self._mode.__exit__(None, None, None)

    def abandon(self) -> None:
        """Stop repeating, and the sensors."""
        self._leave()
        if self._sampler is not None:
            self._sampler.stop()

    def finish(self, reply: CaptureReply) -> None:
        """Stop repeating, and write into the reply what was done."""
        self._leave()
        if self._sampler is None:
            return
        result = self._sampler.stop()
        reply.sensors, reply.notes = result.sensors, list(result.notes)
        region = self._region
        if region is not None:
            known = self._outcome(region)
            if self._stage == _TRY:
                known = self._without_turn(region)
            self._found.append(known)
        reply.repeats = [*self._found, *map(self._without_turn, self._waiting)]

    def _without_turn(self, region: Region) -> RegionRepeats:
        tried = region.name in self._unseen
        return RegionRepeats(region, reason=NOT_SEEN if tried else NO_TURN, tried=tried)


def _selection(region: Region, stack: ModuleStack | None) -> Callable[[str, int], bool]:
    if stack is None:
        return lambda name, _position: name == region.name

    def inside(_name: str, _position: int) -> bool:
        innermost = stack.innermost
        path = "" if innermost is None else innermost.path
        return path == region.name or path.startswith(f"{region.name}/")

    return inside
