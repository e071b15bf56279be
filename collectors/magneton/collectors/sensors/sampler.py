"""``sample``: read sensors while a block of code runs, and leave the readings as a file of a recording."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from magneton.collectors.observed import Capture, ClockAnchor
from magneton.collectors.sensors import spool
from magneton.collectors.sensors.discover import open_sensors, split
from magneton.collectors.sensors.protocol import ENERGETIC, Meter, Series
from magneton.collectors.sensors.worker import Poller, describe
from magneton.schemas.errors import UsageError
from magneton.schemas.kinds import CaptureKind, Clock, OwnFormat, SensorKind

POWER_FILE = "power.parquet"
# Known sensors update their power every 20 to 100 ms. Faster polls show at which instants they update.
DEFAULT_PERIOD_S = 0.01
_START_S = 60.0
_STOP_S = 10.0
# Two anchors give the rate of a clock only if they are far enough apart, compared with the error of each.
_RATE_APART_NS = 100_000_000


def anchors_now() -> list[ClockAnchor]:
    """Return this instant on the wall clock, and on the monotonic and the boot clock.

    Each pair of clocks is read several times and the closest pair is taken, since another process may run in between.
    """
    found = []
    for clock, number in (
        (Clock.MONOTONIC, time.CLOCK_MONOTONIC),
        (Clock.BOOTTIME, getattr(time, "CLOCK_BOOTTIME", None)),
    ):
        if number is None:
            continue
        best: tuple[int, int, int] | None = None
        for _ in range(5):
            before = time.clock_gettime_ns(time.CLOCK_REALTIME)
            middle = time.clock_gettime_ns(number)
            after = time.clock_gettime_ns(time.CLOCK_REALTIME)
            if after >= before and (best is None or after - before < best[0]):
                best = (after - before, (before + after) // 2, middle)
        if best is not None:
            found.append(ClockAnchor(unix_ns=best[1], clock=clock, clock_ns=best[2]))
    return found


@dataclass
class Sampled:
    """What a sampler left.

    Attributes:
        files: ``power.parquet``, then the files of meters.
        anchors: clocks at the beginning and the end.
        sensors: entries for the manifest's ``sensors``: what was read, what was refused and why, what polling cost.
        notes: remarks for the manifest.
        incomplete: a sensor was lost, or the process that polled ended early.
        n_readings: rows of ``power.parquet``.
    """

    files: list[Path] = field(default_factory=list)
    anchors: list[ClockAnchor] = field(default_factory=list)
    sensors: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    incomplete: bool = False
    n_readings: int = 0

    @property
    def measured(self) -> bool:
        """Whether anything was read that gives energy; without it the energy is None, not 0."""
        return any(s["energetic"] for s in self.sensors)


class _Process:
    """Polls in a process of its own."""

    isolation = "process"

    def __init__(self, names: Sequence[str], period_s: float, target: Path) -> None:
        self._target = target
        # A file, not a pipe: nobody reads it while the program runs, and a full pipe would stop the polling.
        self._complaints = target.with_suffix(".stderr")
        self._said = self._complaints.open("wb")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, this module
            [sys.executable, "-m", "magneton.collectors.sensors.worker", str(target)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environment,
        )
        self._send({"names": list(names), "period_s": period_s})

    def _pipe(self, stream: IO[bytes] | None) -> IO[bytes]:
        if stream is None:
            raise RuntimeError("the process was started without pipes")
        return stream

    def _send(self, document: dict[str, Any]) -> None:
        stdin = self._pipe(self._process.stdin)
        try:
            stdin.write(json.dumps(document).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            return

    def _line(self, seconds: float) -> dict[str, Any] | None:
        """Return its next answer. None if the process ends, or does not answer in time and is stopped."""
        timer = threading.Timer(seconds, self._process.kill)
        timer.start()
        try:
            line = self._pipe(self._process.stdout).readline()
        finally:
            timer.cancel()
        found: dict[str, Any] | None = json.loads(line) if line else None
        return found

    def ready(self) -> dict[str, Any] | None:
        """Return what it found, once it has polled."""
        return self._line(_START_S)

    def stop(self) -> tuple[dict[str, Any] | None, str]:
        """Let it poll once more and end; return what it cost (None if it had ended before) and what it said on stderr."""
        # A message, because closing the pipe is not enough: a forked process of the program may hold it open.
        self._send({"stop": True})
        with contextlib.suppress(BrokenPipeError):
            self._pipe(self._process.stdin).close()
        summary = self._line(_STOP_S)
        self._process.wait()
        self._pipe(self._process.stdout).close()
        self._said.close()
        said = self._complaints.read_text(errors="replace").strip().splitlines()
        return summary, said[-1] if said else ""


class _Thread:
    """Polls in a thread of this process, for environments in which no other process can be started."""

    isolation = "thread"

    def __init__(self, names: Sequence[str], period_s: float, target: Path) -> None:
        self._opened = open_sensors(names)
        self._stream = target.open("ab", buffering=0)
        self._poller = Poller(self._opened, self._stream.write, period_s)
        self._poller.poll(slow=True)
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._poller.run, args=(self._over.wait,), name="magneton-sensors", daemon=True
        )
        self._thread.start()

    def ready(self) -> dict[str, Any] | None:
        """Return what was found."""
        return describe(self._opened) | {"pid": os.getpid()}

    def stop(self) -> tuple[dict[str, Any] | None, str]:
        """Poll once more and end."""
        self._over.set()
        self._thread.join()
        self._stream.close()
        self._opened.close()
        # The processor time includes the whole program, so it is not the cost of the sampler.
        return self._poller.summary() | {"cpu_s": None}, ""


class Sampler:
    """Reads sensors while its ``with`` block runs; see ``sample``, which makes one."""

    def __init__(
        self,
        directory: str | PathLike[str],
        sensors: Sequence[str] | None = None,
        *,
        period_s: float = DEFAULT_PERIOD_S,
        isolation: str = "process",
        capture: str = CaptureKind.ENERGY,
        rank: int = 0,
        repeat: int | None = None,
        deferred: bool = False,
    ) -> None:
        if not period_s > 0:
            raise UsageError(f"cannot poll every {period_s} s", remedy="give a period above 0")
        if isolation not in ("process", "thread"):
            raise UsageError(f"there is no isolation {isolation[:40]!r}", remedy="give process or thread")
        self.directory = Path(directory)
        self._names, self._meters = split(sensors)
        self._period_s, self._isolation = period_s, isolation
        self._capture, self._rank, self._repeat = capture, rank, repeat
        self._deferred = deferred
        self._started: list[Meter] = []
        self._source: _Process | _Thread | None = None
        self._found: dict[str, Any] | None = None
        self._stopped = False
        self.result = Sampled()

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._scratch = tempfile.TemporaryDirectory(prefix="magneton-")
        self._spool = Path(self._scratch.name) / "spool"
        self._spool.touch()
        try:
            for meter in self._meters:
                meter.start(self.directory)
                self._started.append(meter)
            if self._names:
                self._start_polling()
        except BaseException:
            self._abandon()
            raise
        self.result.anchors = anchors_now()
        self._began_ns = time.monotonic_ns()
        return self

    def _start_polling(self) -> None:
        make = _Process if self._isolation == "process" else _Thread
        try:
            self._source = make(self._names, self._period_s, self._spool)
        except OSError as error:
            # The program runs even without a sensor. Its energy is unknown then.
            self.result.notes.append(f"Sensors: the process that reads them could not be started: {error.strerror}.")
            self.result.incomplete = True
            return
        self._found = self._source.ready()

    @property
    def pid(self) -> int | None:
        """Process that polls, once it does; that of the program where it polls itself."""
        return None if self._found is None else self._found["pid"]

    def _abandon(self) -> None:
        for meter in self._started:
            path, _ = meter.stop()
            if path is not None:
                path.unlink(missing_ok=True)
        if self._source is not None:
            self._source.stop()
        self._scratch.cleanup()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> Sampled:
        """End sampling (leaving the block does) and return what it left."""
        result = self.result
        if self._stopped:
            return result
        self._stopped = True
        ended = anchors_now()
        wall_s = (time.monotonic_ns() - self._began_ns) / 1e9
        try:
            if self._source is not None:
                self._collect(self._source, wall_s)
            for meter in self._started:
                path, notes = meter.stop()
                result.notes += notes
                result.incomplete = result.incomplete or bool(notes)
                energetic = path is not None
                result.sensors.append(
                    {"kind": SensorKind.METER, "source": meter.source, "energetic": energetic, "notes": notes}
                )
                result.files += [] if path is None else [path]
        finally:
            self._scratch.cleanup()
        known = {a.clock: a.clock_ns for a in result.anchors}
        result.anchors += [
            a for a in ended if a.clock_ns - known.get(a.clock, 0) >= _RATE_APART_NS or a.clock not in known
        ]
        if not result.measured:
            result.notes.append("No sensor of power or energy could be read here: energies are unknown (NULL), not 0.")
        return result

    def _collect(self, source: _Process | _Thread, wall_s: float) -> None:
        result = self.result
        summary, said = source.stop()
        found = self._found or {"sensors": [], "refusals": {}}
        errors = list(summary["errors"]) if summary else []
        if self._found is None or summary is None:
            errors.append(f"the process that read the sensors ended early{': ' + said if said else ''}")
        result.notes += [f"Sensors: {text}." for text in errors]
        result.incomplete = result.incomplete or bool(errors)
        series = [(i["source"], Series(**s)) for i in found["sensors"] for s in i["series"]]
        if len(series):
            path = self.directory / POWER_FILE
            spool.keep(
                self._spool, path, series, {"capture": self._capture, "rank": self._rank, "repeat": self._repeat}
            )
            result.n_readings = spool.n_records(path)
            if not self._deferred:
                # Imported only now, so that nothing but polling is loaded while the program runs.
                from magneton.collectors.sensors import power_file

                result.n_readings = power_file.make_power(path)
            result.files.insert(0, path)
        cost = {k: v for k, v in (summary or {}).items() if k != "errors"}
        if cost.get("cpu_s") is not None and wall_s > 0:
            cost["cpu_share"] = cost["cpu_s"] / wall_s
        for info in found["sensors"]:
            energetic = any(s["field"] in ENERGETIC for s in info["series"])
            entry = {k: v for k, v in info.items() if v}
            result.sensors.append(
                {"kind": "sensor", "energetic": energetic, "isolation": source.isolation, "period_s": self._period_s}
                | entry
                | {"cost": cost}
            )
        # A sensor that cannot be read gets an entry too. Its refusal tells the user the remedy.
        for name, refusal in found["refusals"].items():
            result.sensors.append({"kind": "sensor", "source": name, "energetic": False, "refused": refusal})

    def captures(self) -> list[Capture]:
        """Return a capture of kind ``energy`` for each file that was left; ``file`` is the path where it lies."""
        result = self.result
        captures = []
        for number, file in enumerate(result.files):
            captures.append(
                Capture(
                    name=self._capture if number == 0 else f"{self._capture}-{number + 1}",
                    kind=CaptureKind.ENERGY,
                    rank=self._rank,
                    repeat=self._repeat,
                    source_format=OwnFormat.POWER if file.name == POWER_FILE else "csv",
                    file=str(file),
                    incomplete=result.incomplete,
                    anchors=list(result.anchors),
                )
            )
        return captures


def sample(
    path: str | PathLike[str],
    sensors: Sequence[str] | None = None,
    *,
    period_s: float = DEFAULT_PERIOD_S,
    isolation: str = "process",
    capture: str = CaptureKind.ENERGY,
    rank: int = 0,
    repeat: int | None = None,
    deferred: bool = False,
) -> Sampler:
    """Read power and energy while a block of code runs.

    Use it around the work::

        with sample("runs/mine/raw/energy/rank0") as sampler:
            work()
        sampler.result.files, sampler.result.anchors, sampler.captures()

    Sensors are read before the block begins and once more after it ends, so that its whole length lies between readings.
    Where there is no sensor the block runs all the same, and ``result.notes`` says that its energy is unknown.

    Args:
        path: directory for ``power.parquet`` (rows of the table ``power``, stamped by CLOCK_MONOTONIC) and meters' files.
        sensors: ``nvml``, ``amd-smi``, ``rapl``, ``command:WORDS...`` or ``file:PATH``; None takes every polled sensor there is.
        period_s: time between polls.
        isolation: ``process`` polls in a process of its own; ``thread`` in a thread, which takes the interpreter lock.
        capture: name of the capture.
        rank: rank of this process; give each rank its own path, and only one rank of a machine the sensors.
        repeat: number of the repetition, where the work is measured several times.
        deferred: leave making ``power.parquet`` to ``raw.tables.make_tables``, which runs where pyarrow is.

    Raises:
        UsageError: a sensor there is none of, or a period that is not above 0.
        SensorUnavailableError: a meter that was asked for cannot be read (raised on entering the block).
    """
    return Sampler(
        path,
        sensors,
        period_s=period_s,
        isolation=isolation,
        capture=capture,
        rank=rank,
        repeat=repeat,
        deferred=deferred,
    )
