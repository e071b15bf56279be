"""What the launcher asks of the recorder inside a command, and what that answers. No framework is needed to read it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from magneton.schemas.manifest import Capture, Device

VARIABLE = "MAGNETON_RECORD"


class Order(msgspec.Struct):
    """What to record.

    Attributes:
        capture: ``energy``, ``profile`` or ``values``.
        raw: directory for raw files.
        answers: directory for answers and claims.
        warmup_steps: steps that run before.
        steps: steps to record; None: all until the end.
        stacks: Python stacks in the profile.
        sensors: sensors to read; None: all there are.
    """

    capture: str
    raw: str
    answers: str
    warmup_steps: int = 1
    steps: int | None = 1
    stacks: bool = True
    sensors: list[str] | None = None

    def encode(self) -> str:
        """Return it as text for the environment."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_environment(cls) -> Order | None:
        """Return the order this process was started with, or None."""
        text = os.environ.get(VARIABLE)
        return None if text is None else msgspec.json.decode(text, type=cls)

    def directory(self, rank: int, *below: str) -> Path:
        """Return (and make) the directory for the raw files of a rank."""
        path = Path(self.raw, self.capture, f"rank{rank}", *below)
        path.mkdir(parents=True, exist_ok=True)
        return path


class Answer(msgspec.Struct):
    """What one process has recorded, or why it has not."""

    rank: int
    captures: list[Capture] = []
    notes: list[str] = []
    sensors: list[dict[str, Any]] = []
    devices: list[Device] = []
    versions: dict[str, str] = {}
    steps: int = 0
    step_kind: str = ""
    failure: str | None = None

    def write(self, order: Order) -> None:
        """Leave it for the launcher."""
        path = Path(order.answers, f"{order.capture}-rank{self.rank}.json")
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(msgspec.json.encode(self))
        temporary.replace(path)


def read_answers(order: Order) -> list[Answer]:
    """Return what the processes of one run have answered, by rank."""
    paths = sorted(Path(order.answers).glob(f"{order.capture}-rank*.json"))
    return sorted((msgspec.json.decode(p.read_bytes(), type=Answer) for p in paths), key=lambda a: a.rank)


def claim(order: Order, rank: int) -> bool:
    """Take a rank for this process; False where another process of the command already has."""
    try:
        descriptor = os.open(Path(order.answers, f"{order.capture}-rank{rank}.claim"), os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return False
    os.close(descriptor)
    return True
