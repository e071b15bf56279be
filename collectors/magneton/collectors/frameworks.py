"""Importing a framework when it is needed, with an error that says how to install it."""

from __future__ import annotations

import importlib
from typing import Any

from magneton.schemas.errors import MissingDependencyError


def import_framework(name: str, purpose: str, install: str) -> Any:
    """Return a module of a framework.

    Args:
        name: the module.
        purpose: what needs it, for the message: ``recording a PyTorch program``.
        install: what to give to ``pip install``.

    Raises:
        MissingDependencyError: the framework is not installed. An ImportError inside an installed framework is passed on.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingDependencyError(
            f"{purpose} needs {name}, which is not installed", remedy=f"pip install {install}"
        ) from error
