"""What a system and the recorder say to one another."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from types import ModuleType
from typing import Any, Protocol

PREFILL, DECODE, MIXED = "prefill", "decode", "mixed"


class StepKind(StrEnum):
    """What one step of a program is.

    A program may take steps of several kinds at once: one step of the optimiser holds several calls of modules. Then only those
    of the strongest kind count.
    """

    CALLS = "calls of an outermost module"
    PROGRAMS = "calls of a compiled program"
    GENERATION = "forward passes of generate"
    DENOISING = "denoising steps"
    OPTIMIZER = "steps of the optimiser"
    ENGINE = "steps of the engine"
    MARKED = "steps that the program marks"

    @property
    def strength(self) -> int:
        """How strong it is. Those that a program may take in turn are equally strong."""
        return _STRENGTHS.get(self, 0)


_STRENGTHS = {StepKind.DENOISING: 1, StepKind.OPTIMIZER: 2, StepKind.ENGINE: 3, StepKind.MARKED: 4}


@dataclass(frozen=True)
class Facts:
    """What a system knows of itself.

    Attributes:
        name: the system.
        model: name of the model.
        workload: fields of ``schemas.manifest.Workload`` of one step: ``batch``, ``input_tokens``.
        knobs: settings in force, by name.
    """

    name: str | None = None
    model: str | None = None
    workload: dict[str, int] = field(default_factory=dict)
    knobs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OperatorNote:
    """What the schema of an operator does not say.

    Attributes:
        name: with its namespace, ``_C::onednn_mm``.
        overwrites: arguments that it fills without reading them.
        handles: arguments that are no data, such as a pointer in a tensor.
    """

    name: str
    overwrites: tuple[str, ...] = ()
    handles: tuple[str, ...] = ()


class Listener(Protocol):
    """Told by the hooks of a system what the program does. Nothing that goes wrong in it reaches the program."""

    def expect(self, kind: StepKind) -> None:
        """The program will take steps of this kind; weaker ones do not count from now on."""

    def only(self, kind: StepKind) -> AbstractContextManager[None]:
        """While this is entered, no other steps of equal strength count in this thread."""

    def begin(self, kind: StepKind, phase: str | None = None) -> None:
        """A step begins. Not needed where that is when the step before it ended."""

    def step(
        self, kind: StepKind, phase: str | None = None, tokens: int | None = None, requests: int | None = None
    ) -> None:
        """A step has ended.

        Args:
            kind: what it was.
            phase: ``prefill``, ``decode``, ``mixed``, or None where steps have no phases.
            tokens: tokens that were processed.
            requests: requests, or sequences of a batch, that they belong to.
        """

    def called(self, module: Any, args: Sequence[Any]) -> None:
        """A model is about to be called from outside, with these arguments."""

    def returned(self, result: Any) -> None:
        """It has returned."""


class System(Protocol):
    """A file of this folder; see ``magneton.collectors.systems``."""

    FRAMEWORK: str
    MODULES: tuple[str, ...]
    OPERATORS: tuple[OperatorNote, ...]

    def install(self, module: ModuleType, listener: Listener) -> None:
        """Put the hooks in place."""

    def facts(self) -> Facts:
        """Return what the system knows of itself."""
