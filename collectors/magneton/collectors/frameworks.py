"""Importing a framework when it is needed, with an error that says how to install it."""

from __future__ import annotations

import importlib
from typing import Any

from magneton.schemas.errors import MissingDependencyError


def import_framework(name: str, purpose: str, extra: str) -> Any:
    """Return a module of a framework.

    Args:
        name: the module.
        purpose: what needs it, for the message: ``recording a PyTorch program``.
        extra: the extra of this package that brings it (``[project.optional-dependencies]`` of pyproject.toml).

    Raises:
        MissingDependencyError: the framework is not installed. An ImportError inside an installed framework is passed on.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingDependencyError(
            f"{purpose} needs {name}, which is not installed", remedy=f"pip install 'magneton[{extra}]'"
        ) from error
