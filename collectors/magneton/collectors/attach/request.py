"""Requests and replies: what the launcher asks of the recorder inside a command, and the result. No framework is needed."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from magneton.collectors.observed import Capture, Device

VARIABLE = "MAGNETON_RECORD"
# Systems beside PyTorch whose operations are replayed: the module whose import is waited for.
SYSTEMS = {"onnx": "onnxruntime", "jax": "jax", "tensorflow": "tensorflow"}


@dataclass
class Region:
    """What is repeated.

    Attributes:
        name: an operator (``aten::addmm``), or the path of a module, whose operators are repeated one by one. For other
            systems an operation (``MatMul``) or its place in the program.
        module: whether it is the path of a module.
        times: r, how often each call is run in the windows that repeat; at least 2.
        system: ``torch``, or one of ``SYSTEMS``.
    """

    name: str
    module: bool
    times: int
    system: str = "torch"


@dataclass
class RepeatRequest:
    """How regions are repeated, one after the other.

    Attributes:
        regions: which.
        window_s: least length of a window, s; it ends with a step.
        rounds: number of pairs of windows: one in which the region runs r times, and one in which it runs once. For a region
            that runs alone, number of windows.
        copies: number of sets of arguments, used in turn; None: so many that the cache cannot hold them all.
        alone: the program waits while the region runs by itself, on the inputs it had in one step.
    """

    regions: list[Region]
    window_s: float
    rounds: int
    copies: int | None = None
    alone: bool = False


@dataclass
class Window:
    """A stretch of the run (CLOCK_MONOTONIC, ns), its steps, and how often each call of the region ran in a step.

    For a region that runs alone, the steps are passes through the region.
    """

    start_ns: int
    end_ns: int
    steps: int
    times: int


@dataclass
class RegionRepeats:
    """What was done about one region.

    Attributes:
        region: the region.
        windows: the completed windows.
        repeated: operators that were repeated, with their calls in one step.
        refused: operators that were not repeated, with the reason.
        cold: there were so many copies of the arguments that a copy was no longer in the cache when it was used again.
        reason: why there is no result for the region; None if there is one.
        tried: the region was tried in at least one step.
    """

    region: Region
    windows: list[Window] = field(default_factory=list)
    repeated: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    cold: bool = False
    reason: str | None = None
    tried: bool = True


@dataclass
class CaptureRequest:
    """What to record.

    Attributes:
        capture: ``energy``, ``profile``, ``values`` or ``repeat``.
        raw: directory for raw files.
        replies: directory for replies and claims.
        warmup_steps: steps that run before.
        steps: steps to record; None: all until the end.
        stacks: Python stacks in the profile.
        sensors: sensors to read; None: all there are.
        repeat: what to repeat, where that is what is asked.
        then: captures that follow in the same run of the program, one after the other.
    """

    capture: str
    raw: str
    replies: str
    warmup_steps: int = 1
    steps: int | None = 1
    stacks: bool = True
    sensors: list[str] | None = None
    repeat: RepeatRequest | None = None
    then: list[CaptureRequest] = field(default_factory=list)

    def encode(self) -> str:
        """Return it as text for the environment."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_environment(cls) -> CaptureRequest | None:
        """Return the request this process was started with, or None."""
        text = os.environ.get(VARIABLE)
        if text is None:
            return None
        asked = json.loads(text)
        repeat = asked.pop("repeat")
        if repeat is not None:
            regions = [Region(**region) for region in repeat.pop("regions")]
            repeat = RepeatRequest(regions=regions, **repeat)
        then = [cls(**later) for later in asked.pop("then")]
        return cls(**asked, repeat=repeat, then=then)

    def failure(self, error: Exception) -> str:
        """Return an error inside the command in words. The directory of the raw files is left out: it is gone when one reads them."""
        return f"{type(error).__name__}: {error}".replace(self.raw + os.sep, "")

    @property
    def name(self) -> str:
        """What it asks for, for messages: ``capture of values``, ``repetition``."""
        return "repetition" if self.repeat is not None else f"capture of {self.capture}"

    def directory(self, rank: int, *below: str) -> Path:
        """Return (and make) the directory for the raw files of a rank."""
        path = Path(self.raw, self.capture, f"rank{rank}", *below)
        path.mkdir(parents=True, exist_ok=True)
        return path


@dataclass
class CaptureReply:
    """What one process has recorded, or why it has not.

    Attributes:
        operators: how many operators its captures hold; None where captures of this kind hold none.
        system: name of the system whose steps were recorded.
        model: name of its model.
        workload: fields of the workload that the system knows.
    """

    rank: int
    captures: list[Capture] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sensors: list[dict[str, Any]] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    operators: int | None = None
    system: str | None = None
    model: str | None = None
    workload: dict[str, int] = field(default_factory=dict)
    step_kind: str = ""
    failure: str | None = None
    repeats: list[RegionRepeats] = field(default_factory=list)

    def write(self, request: CaptureRequest) -> None:
        """Write the reply for the launcher."""
        path = Path(request.replies, f"{request.capture}-rank{self.rank}.json")
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(dataclasses.asdict(self)), encoding="ascii")
        temporary.replace(path)


@dataclass
class Seen:
    """What a process has done that recorded nothing.

    Attributes:
        framework: the framework that it imported.
        steps: steps that it took.
        prefills: how many of them held a prefill.
        kind: their kind.
    """

    framework: str
    steps: int = 0
    prefills: int = 0
    kind: str = ""

    def write(self, request: CaptureRequest) -> None:
        """Write it for the launcher."""
        path = Path(request.replies, f"{request.capture}-seen-{os.getpid()}-{self.framework}.json")
        path.write_text(json.dumps(dataclasses.asdict(self)), encoding="ascii")


def read_seen(request: CaptureRequest) -> list[Seen]:
    """Return what processes of one run have done that recorded nothing."""
    paths = sorted(Path(request.replies).glob(f"{request.capture}-seen-*.json"))
    return [Seen(**json.loads(path.read_bytes())) for path in paths]


def forget(request: CaptureRequest) -> None:
    """Remove all replies of a run that is to be repeated."""
    for path in Path(request.replies).glob(f"{request.capture}-*"):
        path.unlink()


def read_replies(request: CaptureRequest) -> list[CaptureReply]:
    """Return what the processes of one run have replied, by rank."""
    paths = sorted(Path(request.replies).glob(f"{request.capture}-rank*.json"))
    # What runs inside the command only writes replies, and does without this package.
    import msgspec

    return sorted((msgspec.json.decode(p.read_bytes(), type=CaptureReply) for p in paths), key=lambda a: a.rank)


# So many processes of one command may be recorded without a rank that a launcher gave.
_MOST = 64


def claim(request: CaptureRequest, rank: tuple[int, bool]) -> int | None:
    """Claim a rank for this process.

    Args:
        request: what is recorded.
        rank: from ``ranks.rank_of_process``. A rank that nobody has given moves on to the next free one, so that no process takes
            the place of another.

    Returns:
        The rank; None if another process of the command has it.
    """
    first, given = rank
    for number in range(first, first + (1 if given else _MOST)):
        try:
            descriptor = os.open(Path(request.replies, f"{request.capture}-rank{number}.claim"), os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            continue
        os.close(descriptor)
        return number
    return None
