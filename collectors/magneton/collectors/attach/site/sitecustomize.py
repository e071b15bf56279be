"""Runs at the start of every Python of a recorded command: first the ``sitecustomize`` it shadows, then the recorder."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_HERE = Path(__file__).parent


def _chain() -> None:
    """Run the ``sitecustomize`` that Python would have run without the recorder."""
    elsewhere = [entry for entry in sys.path if entry and Path(entry).absolute() != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        # From now on the name stands for the one that was there before us.
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _attach() -> None:
    if "MAGNETON_RECORD" not in os.environ:
        return
    try:
        from magneton.collectors.attach import child
    except ImportError as error:
        sys.stderr.write(f"magneton: this Python cannot load the recorder and is not recorded: {error}\n")
        return
    child.attach()


_chain()
_attach()
