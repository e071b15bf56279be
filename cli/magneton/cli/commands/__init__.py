"""One command per file; its docstring is what ``--help`` shows.

Commands import what they run inside their function, so that ``--help`` and shell completion wait for no engine.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

# Modules of this package, each with a function of its own name, in the order in which one uses them.
COMMANDS: list[str] = [
    "record",
    "normalize",
    "diff",
    "energy",
    "info",
    "sql",
    "tables",
    "sensors",
    "repeat",
]


def load() -> Iterator[Callable[..., Any]]:
    """Yield the functions behind the commands."""
    for name in COMMANDS:
        yield getattr(importlib.import_module(f"{__name__}.{name}"), name)
