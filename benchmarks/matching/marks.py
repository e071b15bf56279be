"""Name tensors inside a module, where no module boundary does.

``x = mark("layer0.q", x)`` returns ``x`` unchanged. It runs no operator and keeps nothing unless somebody listens, so a
program may be marked for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Listener = Callable[[str, object], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def mark(name: str, tensor: T) -> T:
    """Say that ``tensor``, as it is now, is the boundary called ``name``; return it.

    A name may be used again (a module called twice, a step of a loop): the listener sees every use, in order.
    """
    listener = _listener.get()
    if listener is not None:
        listener(name, tensor)
    return tensor


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Call ``listener(name, tensor)`` for every mark made inside the block; with None, nobody hears them."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
