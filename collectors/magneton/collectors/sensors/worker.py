"""The process that polls sensors. As a separate process it never holds the interpreter lock of the program.

Run as ``python -m magneton.collectors.sensors.worker SPOOL`` with a JSON object on stdin (``names``, ``period_s``). It answers
one JSON line once the first poll is done, polls until a line comes or stdin closes, or the program is gone, polls once more,
and answers a second line with what it cost.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from magneton.collectors.sensors import spool
from magneton.collectors.sensors.discover import Opened, open_sensors
from magneton.collectors.sensors.protocol import SensorError

SLOW_EVERY_NS = 100_000_000


class Poller:
    """Polls open sensors at equally spaced instants and writes the readings.

    A late poll is not repeated. The gap is visible in the time stamps.

    Args:
        opened: the sensors.
        write: takes packed records.
        period_s: time between polls.
    """

    def __init__(self, opened: Opened, write: Callable[[bytes], Any], period_s: float) -> None:
        self._write = write
        self._period_ns = max(round(period_s * 1e9), 1)
        self._sensors = []
        offset = 0
        for sensor, info in opened.sensors:
            self._sensors.append((sensor, offset))
            offset += len(info.series)
        self._next_slow = 0
        self.errors: list[str] = []
        self.polls, self.missed = 0, 0
        self.costs_ns: list[int] = []
        self._cpu = time.process_time()

    def poll(self, *, slow: bool = False) -> None:
        """Read everything once."""
        before = time.monotonic_ns()
        if slow or before >= self._next_slow:
            slow = True
            self._next_slow = before + SLOW_EVERY_NS
        for sensor, offset in list(self._sensors):
            try:
                readings = sensor.poll(slow=slow)
            except SensorError as error:
                self.errors.append(f"{sensor.source}: {error}")
                self._sensors.remove((sensor, offset))
                continue
            self._write(spool.pack(offset, readings))
        self.polls += 1
        self.costs_ns.append(time.monotonic_ns() - before)

    def run(self, wait: Callable[[float], bool]) -> None:
        """Poll until ``wait(seconds)`` says that it is over; the caller has polled once."""
        due = time.monotonic_ns() + self._period_ns
        while not wait(max(due - time.monotonic_ns(), 0) / 1e9):
            self.poll()
            due += self._period_ns
            late = time.monotonic_ns() - due
            if late > 0:
                skipped = late // self._period_ns + 1
                self.missed += skipped
                due += skipped * self._period_ns
        self.poll(slow=True)

    def summary(self) -> dict[str, Any]:
        """Return what polling cost: numbers of polls, their time, and processor time of this process."""
        costs = sorted(self.costs_ns)
        return {
            "polls": self.polls,
            "missed_polls": self.missed,
            "poll_ns_median": costs[len(costs) // 2] if costs else None,
            "poll_ns_p99": costs[min(len(costs) - 1, len(costs) * 99 // 100)] if costs else None,
            "poll_ns_max": costs[-1] if costs else None,
            "cpu_s": time.process_time() - self._cpu,
            "errors": self.errors,
        }


def describe(opened: Opened) -> dict[str, Any]:
    """Return what was found as JSON has it."""
    return {
        "sensors": [dataclasses.asdict(info) for _, info in opened.sensors],
        "refusals": {name: dataclasses.asdict(refusal) for name, refusal in opened.refusals.items()},
    }


def _answer(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def main(target: Path) -> int:
    """Serve one recording; see the module."""
    # Ctrl-C is meant for the program. We end when it closes our stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wanted = json.loads(sys.stdin.readline())
    stdin, program = sys.stdin.fileno(), os.getppid()

    def wait(seconds: float) -> bool:
        # Processes the program forked may hold our stdin open after its end.
        return bool(select.select([stdin], [], [], seconds)[0]) or os.getppid() != program

    opened = open_sensors(wanted["names"])
    try:
        with target.open("ab", buffering=0) as stream:
            poller = Poller(opened, stream.write, wanted["period_s"])
            poller.poll(slow=True)
            _answer(describe(opened) | {"pid": os.getpid()})
            if opened.sensors:
                poller.run(wait)
            _answer(poller.summary())
    except BrokenPipeError:
        return 0
    finally:
        opened.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
