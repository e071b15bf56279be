"""Windows in which one operation runs again and again, for the replays of all systems. No framework is needed.

The times of windows are those of CLOCK_MONOTONIC, as in ``power.parquet``. The arguments and copies of them are used in turn.
Otherwise every call would find its arguments in the cache, and the measured cost would be too low.
"""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from magneton.schemas.errors import MagnetonError, UsageError

# The host waits for the device this often in a window, so that the queue of the device stays short.
_BATCHES = 20
# All copies together are this many times as large as the cache.
_TIMES_CACHE = 2
_MAX_COPIES = 256
_MEMORY_SHARE = 0.25
_CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_SIZE = re.compile(r"(\d+)([KMG]?)")


# Reason if no operation of a program was selected.
NOT_SELECTED = "nothing was selected"


class NotRepeatableError(MagnetonError):
    """A second run of the call would have an effect of its own: it writes to its arguments, draws random numbers, communicates ..."""


@dataclass(frozen=True)
class RepeatWindow:
    """A stretch of time with nothing else on the device: start and end (CLOCK_MONOTONIC, ns), and what ran in it.

    Attributes:
        start_ns: when it began, the device idle.
        end_ns: when the device had finished.
        calls: iterations of the program, or calls of the operation in a replay.
        times: how often the operation ran in each iteration.
    """

    start_ns: int
    end_ns: int
    calls: int
    times: int = 1

    @property
    def duration_s(self) -> float:
        """Length, s."""
        return (self.end_ns - self.start_ns) / 1e9


@dataclass
class Replay:
    """An operation replayed alone.

    Attributes:
        operator: its name.
        windows: one per round.
        copies: number of sets of arguments that were used in turn.
        bytes_each: bytes of the arrays of one.
        cold: the arguments of each call were no longer in the cache. If not, the measured cost may be too low.
    """

    operator: str
    windows: list[RepeatWindow] = field(default_factory=list)
    copies: int = 1
    bytes_each: int = 0
    cold: bool = False


@dataclass(frozen=True)
class ReplayedCall:
    """One call of a program, replayed with the inputs it had there.

    Attributes:
        name: the operation: ``dot_general``, ``MatMul`` ...
        place: where it stands in the program: a path, a node's name, or a number.
        inputs: form of each array it was given, ``float32[8,16]``.
        replay: its windows; None where it was refused.
        refusal: why.
    """

    name: str
    place: str
    inputs: tuple[str, ...]
    replay: Replay | None
    refusal: str | None = None


def refusal_of(error: Exception) -> str:
    """Return why a call is not replayed, after an error of its own.

    Every framework has the same contract. A call that fails, for whatever reason, is refused with the reason, and the other calls
    go on. Example: ``its trial failed: ValueError: shapes do not match``.
    """
    if isinstance(error, NotRepeatableError):
        return str(error)
    if isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError":
        return "there is no room in memory for copies of its inputs and outputs"
    return f"its trial failed: {type(error).__name__}: {error}"


def attempt(replay: Callable[[], Replay]) -> tuple[Replay | None, str | None]:
    """Replay a call; return its windows, or None and why it is refused (see ``refusal_of``)."""
    try:
        return replay(), None
    except Exception as error:
        return None, refusal_of(error)


def host_cache_bytes(caches: Path = _CPU_CACHES) -> int | None:
    """Return the size of the processor's largest cache, bytes; None where it is not known."""
    sizes = []
    for file in sorted(caches.glob("index*/size")):
        found = _SIZE.fullmatch(file.read_text().strip())
        if found:
            sizes.append(int(found.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30}[found.group(2)])
    return max(sizes, default=None)


def host_free_bytes() -> int:
    """Return the memory that is free, bytes; 1 GiB where it is not known."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 1 << 30
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")), 1 << 30)


def turns_for(size: int, cache: int | None, free: int, copies: int | None = None) -> tuple[int, bool]:
    """Return the number of sets of arguments, and whether a set is out of the cache when it is used again.

    Args:
        size: bytes of one set; above 0.
        cache: bytes of the largest cache; None where it is not known.
        free: bytes of free memory, of which a quarter is used.
        copies: wanted number, as far as memory allows (default: so many that the cache cannot hold them all).

    Raises:
        NotRepeatableError: there is no room for one.
    """
    room = int(free * _MEMORY_SHARE // size)
    if room < 1:
        raise NotRepeatableError(f"there is no room in memory for a copy of {size} bytes of arguments")
    wanted = _MAX_COPIES if cache is None else math.ceil(_TIMES_CACHE * cache / size) + 1
    count = max(min(copies if copies is not None else min(wanted, _MAX_COPIES), room), 1)
    # The set used next was used (count - 1) sets ago.
    return count, cache is not None and (count - 1) * size >= cache


def fill_window(call: Callable[[], Any], seconds: float, synchronize: Callable[[], Any]) -> RepeatWindow:
    """Call again and again until ``seconds`` are over, with the device idle before and after.

    Calls are made in batches, each about a twentieth of the window, and the device is waited for after each.

    Args:
        call: what to run; it is run twice before the window begins.
        seconds: length of the window; it holds at least one call.
        synchronize: waits until the device has finished.
    """
    for _ in range(2):
        call()
    synchronize()
    start = last = time.monotonic_ns()
    end = start + round(seconds * 1e9)
    calls, batch, wanted = 0, 1, seconds * 1e9 / _BATCHES
    while last < end:
        for _ in range(batch):
            call()
        synchronize()
        now = time.monotonic_ns()
        calls += batch
        # A batch is at most doubled, since the time of a single call may be an exception.
        batch = max(1, min(2 * batch, round(batch * wanted / max(now - last, 1))))
        last = now
    return RepeatWindow(start, last, calls)


def check_replay(seconds: float, rounds: int) -> None:
    """Refuse a length or number of windows that is not above 0.

    Raises:
        UsageError: one is not.
    """
    if not seconds > 0 or rounds < 1:
        raise UsageError(f"cannot replay {rounds} times for {seconds} s", remedy="give both above 0")


def replay_in_turns(
    operator: str,
    calls: Sequence[Callable[[], Any]],
    *,
    seconds: float,
    rounds: int,
    synchronize: Callable[[Any], Any],
    bytes_each: int,
    cold: bool,
) -> Replay:
    """Run calls in turn, again and again, for ``rounds`` windows of ``seconds``.

    Args:
        operator: name of the operation.
        calls: the operation on each set of arguments. Each returns its outputs. These are kept for one turn, so that calls
            do not always write to the same memory.
        seconds: length of a window; it holds at least one call.
        rounds: number of windows.
        synchronize: called with the newest outputs; waits until the device has computed them.
        bytes_each: bytes of the arrays of one set.
        cold: a set is out of the cache when it is used again.

    Raises:
        UsageError: a time or number that is not above 0.
    """
    check_replay(seconds, rounds)
    done = Replay(operator, [], len(calls), bytes_each, cold)
    outputs: deque[Any] = deque(maxlen=len(calls))
    made = 0

    def call() -> None:
        nonlocal made
        outputs.append(calls[made % len(calls)]())
        made += 1

    for _ in range(rounds):
        done.windows.append(fill_window(call, seconds, lambda: synchronize(outputs[-1])))
    return done
