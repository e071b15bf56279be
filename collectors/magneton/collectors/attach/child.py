"""The recorder inside a recorded command. It waits for frameworks, follows the steps, records the wanted ones, and writes a reply."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from magneton.collectors.attach.attached import Attached
from magneton.collectors.attach.importing import after_import
from magneton.collectors.attach.request import SYSTEMS, CaptureRequest
from magneton.collectors.systems import systems

if TYPE_CHECKING:
    from types import ModuleType

    from magneton.collectors.systems.protocol import System

_ATTACHED: list[Attached] = []


def attach() -> None:
    """Follow the request this process was started with, as soon as a framework is imported."""
    request = CaptureRequest.from_environment()
    if request is None:
        return
    if request.repeat is not None and request.repeat.regions and request.repeat.regions[0].system in SYSTEMS:
        from magneton.collectors.attach.system_replays import SystemReplays

        system = request.repeat.regions[0].system
        after_import(SYSTEMS[system], SystemReplays(request, system).follow)
        return
    attached = Attached(request)
    _ATTACHED.append(attached)
    os.register_at_fork(after_in_child=attached.forked)
    for name, known in systems().items():
        for module in known.MODULES:
            after_import(module, functools.partial(_install, attached, name, known))


def _install(attached: Attached, name: str, system: System, module: ModuleType) -> None:
    attached.guarded(lambda: system.install(module, attached.listener(name, system)))


def attached_here() -> Attached | None:
    """Return the recorder that follows this process from outside, or None."""
    return _ATTACHED[0] if _ATTACHED else None
