"""Keeping Ctrl-C out of the few moments in which an output is neither the old one nor the new one."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let the body run to its end; Ctrl-C pressed meanwhile takes effect after it.

    People press Ctrl-C twice. Without this the second one would stop the removal of what the first one left.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        # Only the main thread is interrupted, and only where someone has asked to be told.
        yield
        return
    pressed: list[tuple[Any, ...]] = []
    signal.signal(signal.SIGINT, lambda *how: pressed.append(how))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            before(*pressed[-1])
