"""Run a system and leave a recording. The only stage that imports machine-learning frameworks and sensors.

``from magneton.collectors import Workload, record`` works without any framework installed. A recorder imports its
framework when it starts. Nothing is imported before it is asked for: parts of this package run inside programs that lack its dependencies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magneton.collectors.recording.record import record
    from magneton.collectors.recording.recorder import Recorder
    from magneton.schemas.manifest import Workload

__all__ = ["Recorder", "Workload", "record"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    places = {
        "Recorder": "magneton.collectors.recording.recorder",
        "Workload": "magneton.schemas.manifest",
        "record": "magneton.collectors.recording.record",
    }
    if name not in places:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(places[name]), name)
