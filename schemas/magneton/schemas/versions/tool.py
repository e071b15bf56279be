"""Which program writes: the name and version that files state."""

from __future__ import annotations

import functools
from importlib import metadata


@functools.cache
def tool_name() -> str:
    """Return ``magneton <version>``, or ``magneton`` when it runs from a source tree that is not installed."""
    try:
        return f"magneton {metadata.version('magneton')}"
    except metadata.PackageNotFoundError:
        return "magneton"
