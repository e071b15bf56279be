"""Run a system and leave a recording. The only stage that imports machine-learning frameworks and sensors.

``from magneton.collectors import Workload, record`` works without any framework installed. A recorder imports its
framework when it starts.
"""

from magneton.collectors.recording.record import record
from magneton.collectors.recording.recorder import Recorder
from magneton.schemas.manifest import Workload

__all__ = ["Recorder", "Workload", "record"]
