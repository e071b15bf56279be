"""Calling back once a module has been imported, whatever the program does around the import.

Programs look for a package before they import it (``importlib.util.find_spec("torch")``), import it from several threads, or fail to
import it and try again. So the finder stays until the module has run to its end, and the loader that it found stays what it is: only its
``exec_module`` is wrapped.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Then = Callable[[ModuleType], None]


def after_import(name: str, then: Then) -> None:
    """Call ``then`` with a module as soon as it has been imported: now, if it already is.

    Args:
        name: full name of the module, ``torch`` or ``transformers.generation.utils``.
        then: called once. It must not raise.
    """
    known = sys.modules.get(name)
    if known is not None and not _being_imported(known):
        then(known)
        return
    sys.meta_path.insert(0, _AfterImport(name, then))
    if known is not None:
        # Its spec was found before this finder was there.
        _watch(getattr(known.__spec__, "loader", None), name, then)


def _being_imported(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


class _AfterImport(MetaPathFinder):
    """Finds one module as usual, and sees to it that the end of its import is noticed."""

    def __init__(self, name: str, then: Then) -> None:
        self._name, self._then = name, then
        # The finders behind this one are asked through the same list.
        self._asking = threading.local()

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return the spec that the other finders return."""
        if name != self._name or getattr(self._asking, "now", False):
            return None
        self._asking.now = True
        try:
            spec = _found(name, path, target)
        finally:
            self._asking.now = False
        if spec is not None:
            _watch(spec.loader, name, self._done)
        return spec

    def _done(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._then(module)


def _found(name: str, path: Any, target: Any) -> ModuleSpec | None:
    """Ask all finders in turn. ``importlib.util.find_spec`` would look into ``sys.modules`` first."""
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = None if find is None else find(name, path, target)
        if spec is not None:
            return spec
    return None


def _watch(loader: Any, name: str, then: Then) -> None:
    """Make a loader tell of the end of an import."""
    if not hasattr(loader, "exec_module"):
        return
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        if module.__name__ == name:
            then(module)

    # A loader without attributes of its own is one of Python's built-in modules, of which none is waited for.
    try:
        loader.exec_module = exec_module
    except (AttributeError, TypeError):
        return
