"""Following the calls of ``torch.nn.Module``: one pair of functions takes the place of torch's own while somebody listens.

Both ``Module.__call__`` and ``Module._call_impl``, which it calls, are replaced, and each call is told once. A method that the program bound
before anybody listened (``run = model.__call__``) reaches ``_call_impl``. A module under ``Module.compile`` leaves ``__call__`` on another way.
Hooks on modules are not used, because they would switch off the fused paths of PyTorch's own layers.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from magneton.collectors.torch.profile import import_torch

torch: Any = import_torch()


class ModuleListener(Protocol):
    """Told of every call of a module, in the thread of the call."""

    def entered(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A module is about to be called. What is returned is given to ``left``."""

    def left(self, token: Any, result: Any, raised: bool) -> None:
        """The call has ended, with a result or by raising an exception."""


class _Thread(threading.local):
    # The module whose ``__call__`` has been told and whose ``_call_impl`` has not begun.
    passing: Any = None


_LISTENERS: list[ModuleListener] = []
_IN_PLACE: list[bool] = []
_THREAD = _Thread()
_compiling = torch.compiler.is_compiling
_call, _call_impl = torch.nn.Module.__call__, torch.nn.Module._call_impl


# A profiler recognises a module call by the frame of `nn.Module.__call__` and the variable `self` in it.
def _told_call(self: Any, *args: Any, **kwargs: Any) -> Any:
    if _compiling() or not _LISTENERS:  # folded away by the compiler, which so sees the call as it was
        return _call(self, *args, **kwargs)
    told = _enter(self, args, kwargs)
    _THREAD.passing = self
    try:
        result = _call(self, *args, **kwargs)
    except BaseException:
        _THREAD.passing = None
        _leave(told, None, True)
        raise
    _THREAD.passing = None
    _leave(told, result, False)
    return result


def _told_call_impl(self: Any, *args: Any, **kwargs: Any) -> Any:
    if _compiling() or not _LISTENERS:
        return _call_impl(self, *args, **kwargs)
    if _THREAD.passing is self:
        _THREAD.passing = None
        return _call_impl(self, *args, **kwargs)
    told = _enter(self, args, kwargs)
    try:
        result = _call_impl(self, *args, **kwargs)
    except BaseException:
        _leave(told, None, True)
        raise
    _leave(told, result, False)
    return result


def _enter(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[ModuleListener, Any]]:
    told: list[tuple[ModuleListener, Any]] = []
    # A listener may begin to listen while another is told. It hears of this call too.
    for listener in _LISTENERS:
        told.append((listener, listener.entered(module, args, kwargs)))
    return told


def _leave(told: list[tuple[ModuleListener, Any]], result: Any, raised: bool) -> None:
    for listener, token in told:
        listener.left(token, result, raised)


def listen(listener: ModuleListener) -> None:
    """Tell a listener of every call of a module from now on."""
    global _call, _call_impl
    module = torch.nn.Module
    if not _LISTENERS and not _IN_PLACE:
        _call, _call_impl = module.__call__, module._call_impl
        module.__call__, module._call_impl = _told_call, _told_call_impl
        _IN_PLACE.append(True)
    _LISTENERS.append(listener)


def unlisten(listener: ModuleListener) -> None:
    """Tell it no more. Where nobody listens, torch's own functions return to their places."""
    _LISTENERS.remove(listener)
    module = torch.nn.Module
    # If somebody else has replaced them meanwhile, ours lie below, and stay there.
    if not _LISTENERS and module.__call__ is _told_call and module._call_impl is _told_call_impl:
        module.__call__, module._call_impl = _call, _call_impl
        _IN_PLACE.clear()
