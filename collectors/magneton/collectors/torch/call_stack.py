"""Where in a program an operator is called: the ``nn.Module`` calls around it and the program's own source lines.

Module calls are followed as ``module_calls`` does it. Modules are named as torch.profiler names them, by class and number in the order of first calls.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Self

from magneton.collectors.scrub import Scrubber
from magneton.collectors.torch.module_calls import listen, unlisten
from magneton.collectors.torch.profile import import_torch

torch: Any = import_torch()

_TORCH = str(Path(torch.__file__).parent) + "/"
# All of this stage: what records a program is not the program.
_OWN = str(Path(__file__).parents[1]) + "/"
_OPTIMIZERS = _TORCH + "optim/"
_COMPILER = _TORCH + "_dynamo/eval_frame.py"
# Not the frame of the same file that switches the compiler off.
_COMPILED_CALL = "_TorchDynamoContext.__call__.<locals>."
_LIBRARY = tuple(f"/{name}.py" for name in ("contextlib", "functools", "threading", "runpy"))
_DEEPEST = 64

HIDDEN, OPTIMIZER, COMPILED = -1, -2, -3


@dataclass(slots=True)
class ModuleCall:
    """One instance at one place of the module tree.

    Attributes:
        number: its id.
        parent: the instance around it.
        name: class and number, ``Linear_3``.
        class_name: the class.
        path: names from the root, joined by ``/``.
        attribute_path: its name in the root module, ``transformer.h.3``; None if it has none.
        n_calls: how often it was called.
    """

    number: int
    parent: ModuleCall | None
    name: str
    class_name: str
    path: str
    depth: int
    attribute_path: str | None
    n_calls: int = 0


@dataclass(slots=True)
class Frame:
    """One line of the program that calls down to operators, and the line that calls it."""

    number: int
    parent: int | None
    file: str
    line: int
    function: str


@dataclass
class _Thread(threading.local):
    stack: list[ModuleCall] = field(default_factory=list)


# Called when a call of a module ends, with the module and what it returned.
Returned = Callable[[ModuleCall, Any], None]


class ModuleStack:
    """Follows module calls while it is entered.

    Args:
        returned: called after every module call.
    """

    def __init__(self, returned: Returned | None = None) -> None:
        self.modules: list[ModuleCall] = []
        self._returned = returned
        self._places: dict[tuple[int, str], ModuleCall] = {}
        self._names: dict[int, tuple[Any, str]] = {}
        self._numbers: Counter[str] = Counter()
        self._attributes: dict[int, str] = {}
        self._thread = _Thread()

    @property
    def innermost(self) -> ModuleCall | None:
        """The module call that this thread is in."""
        stack = self._thread.stack
        return stack[-1] if stack else None

    def __enter__(self) -> Self:
        listen(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unlisten(self)

    def entered(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ModuleCall:
        """Take note of a call that begins."""
        del args, kwargs
        return self._enter(module)

    def left(self, token: ModuleCall, result: Any, raised: bool) -> None:
        """Take note of its end."""
        del raised
        self._leave(token, result)

    def _enter(self, module: Any) -> ModuleCall:
        stack = self._thread.stack
        parent = stack[-1] if stack else None
        if parent is None:
            for path, part in module.named_modules():
                self._attributes.setdefault(id(part), path)
        known = self._names.get(id(module))
        if known is None:
            class_name = type(module).__name__
            # The module is kept so that its id is not used again.
            known = self._names[id(module)] = (module, f"{class_name}_{self._numbers[class_name]}")
            self._numbers[class_name] += 1
        name = known[1]
        place = (-1 if parent is None else parent.number, name)
        entered = self._places.get(place)
        if entered is None:
            entered = ModuleCall(
                number=len(self.modules),
                parent=parent,
                name=name,
                class_name=type(module).__name__,
                path=name if parent is None else f"{parent.path}/{name}",
                depth=0 if parent is None else parent.depth + 1,
                attribute_path=self._attributes.get(id(module)),
            )
            self._places[place] = entered
            self.modules.append(entered)
        entered.n_calls += 1
        stack.append(entered)
        return entered

    def _leave(self, entered: ModuleCall, result: Any) -> None:
        self._thread.stack.pop()
        if self._returned is not None and result is not None:
            self._returned(entered, result)


class Frames:
    """Finds the frames of the program around the current call, without frames of PyTorch and of this package."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self._scrubber = Scrubber()
        self._kinds: dict[CodeType, int | str] = {}
        self._known: dict[tuple[int | None, CodeType, int], Frame] = {}

    def _kind(self, code: CodeType) -> int | str:
        name = code.co_filename
        if name.startswith(_OPTIMIZERS):
            return OPTIMIZER
        if name == _COMPILER and code.co_qualname.startswith(_COMPILED_CALL):
            return COMPILED
        if name.startswith((_TORCH, _OWN, "<frozen")) or name.endswith(_LIBRARY):
            return HIDDEN
        return self._scrubber.path(name)

    def here(self) -> tuple[int | None, bool, bool]:
        """Return the innermost frame's number, whether an optimiser is around, and whether torch.compile is."""
        frame: FrameType | None = sys._getframe(1)
        optimizer = compiled = False
        around: list[tuple[CodeType, int, str]] = []
        while frame is not None and len(around) < _DEEPEST:
            code = frame.f_code
            kind = self._kinds.get(code)
            if kind is None:
                kind = self._kinds[code] = self._kind(code)
            if isinstance(kind, str):
                around.append((code, frame.f_lineno or code.co_firstlineno, kind))
            elif kind == OPTIMIZER:
                optimizer = True
            elif kind == COMPILED:
                compiled = True
            frame = frame.f_back
        parent: int | None = None
        for code, line, file in reversed(around):
            key = (parent, code, line)
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = Frame(len(self.frames), parent, file, line, code.co_name)
                self.frames.append(known)
            parent = known.number
        return parent, optimizer, compiled
