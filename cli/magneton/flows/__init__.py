"""What strings the stages together, and the public Python API: ``docs/python.md`` is the guide.

Example: ``from magneton.flows import diff; diff("runs/a", "runs/b")``.

Nothing heavy is imported until a name is used, and no machine-learning framework ever is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magneton.analysis.diff.settings import DiffSettings
    from magneton.collectors.attach.launch import Launch
    from magneton.flows.api import diff, energy_of, measure, normalize, open_runs, record
    from magneton.flows.extras import ExtraFiles
    from magneton.flows.results import Diff, Energy, Measurement, Result, Rows, Run, Runs
    from magneton.schemas.errors import MagnetonError
    from magneton.transforms.job import NormalizeOptions
    from magneton.transforms.power.log import PowerOptions

__all__ = [
    "Diff",
    "DiffSettings",
    "Energy",
    "ExtraFiles",
    "Launch",
    "MagnetonError",
    "Measurement",
    "NormalizeOptions",
    "PowerOptions",
    "Result",
    "Rows",
    "Run",
    "Runs",
    "diff",
    "energy_of",
    "measure",
    "normalize",
    "open_runs",
    "record",
]

_HOMES = {
    "magneton.analysis.diff.settings": ("DiffSettings",),
    "magneton.collectors.attach.launch": ("Launch",),
    "magneton.flows.api": ("diff", "energy_of", "measure", "normalize", "open_runs", "record"),
    "magneton.flows.extras": ("ExtraFiles",),
    "magneton.flows.results": ("Diff", "Energy", "Measurement", "Result", "Rows", "Run", "Runs"),
    "magneton.schemas.errors": ("MagnetonError",),
    "magneton.transforms.job": ("NormalizeOptions",),
    "magneton.transforms.power.log": ("PowerOptions",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
