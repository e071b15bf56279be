"""The profile capture of a PyTorch program: operators with shapes, Python frames and module calls from torch.profiler."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from magneton.collectors.frameworks import import_framework
from magneton.collectors.observed import Device
from magneton.collectors.scrub import Scrubber, compress_scrubbed

TRACE_NAME = "torch.pt.trace.json.gz"
# What a program does: operators, or kernels alone where a graph of them is replayed.
_WORK = re.compile(rb'"cat": "(?:cpu_op|kernel)"')


def import_torch() -> Any:
    """Return the torch module.

    Raises:
        MissingDependencyError: it is not installed.
    """
    return import_framework("torch", "recording a PyTorch program", extra="torch")


class TorchProfile:
    """torch.profiler with shapes, stacks and modules, for a number of announced steps or for all that runs.

    Args:
        warmup_steps: steps during which the profiler is on but keeps nothing.
        steps: steps to record after them, each marked ``ProfilerStep#N``; None records everything, unmarked. The number
            must be known beforehand: a profiler told afterwards leaves an empty step at the end.
        stacks: record Python stacks and module calls; without them the profile costs little, and names no places.

    Raises:
        MissingDependencyError: torch is not installed.

    Attributes:
        operators: number of operators and kernels in the exported trace; None before.
    """

    source_format = "kineto"

    def __init__(self, *, warmup_steps: int = 0, steps: int | None = None, stacks: bool = True) -> None:
        self._torch = import_torch()
        self.operators: int | None = None
        profiler = self._torch.profiler
        schedule = None
        if steps is not None:
            schedule = profiler.schedule(wait=0, warmup=warmup_steps, active=steps, repeat=1)
        self._profiler = profiler.profile(
            activities=profiler.supported_activities(),
            schedule=schedule,
            record_shapes=True,
            with_stack=stacks,
            with_modules=stacks,
        )

    def start(self) -> None:
        """Begin the first step."""
        self._profiler.start()

    def step(self) -> None:
        """End a step and begin the next."""
        self._profiler.step()

    def stop(self) -> None:
        """End the last step and wait for devices to deliver what they recorded."""
        self._profiler.stop()

    def export(self, directory: Path) -> Path:
        """Write the trace (gzip, scrubbed of what identifies the machine) and return its path."""
        target = directory / TRACE_NAME
        with tempfile.TemporaryDirectory(prefix="magneton-") as scratch:
            plain = Path(scratch) / "trace.json"
            self._profiler.export_chrome_trace(str(plain))
            self.operators = compress_scrubbed(plain, target, Scrubber(), _WORK)
        return target

    def rank(self) -> int:
        """Return this process's rank: of torch.distributed, else the ``RANK`` of its launcher, else 0."""
        distributed = self._torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
        launched = os.environ.get("RANK", "")
        return int(launched) if launched.isdecimal() else 0

    def devices(self) -> list[Device]:
        """Return the accelerators in use; see ``devices_in_use``."""
        return devices_in_use(self._torch)


def devices_in_use(torch: Any = None) -> list[Device]:
    """Return the accelerators this process has used through ``torch.cuda`` (NVIDIA, and AMD under ROCm).

    Args:
        torch: the module; None: the imported one. Without any there are none.
    """
    torch = sys.modules.get("torch") if torch is None else torch
    if torch is None or not torch.cuda.is_initialized():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(Device(index=index, name=properties.name, uuid=_uuid(torch, properties)))
    return found


def _uuid(torch: Any, properties: Any) -> str | None:
    """Return a GPU's UUID as its sensors write it: NVML puts ``GPU-`` before what CUDA, and so torch, calls it."""
    uuid = getattr(properties, "uuid", None)
    if uuid is None:
        return None
    amd = getattr(getattr(torch, "version", None), "hip", None) is not None
    return str(uuid) if amd or str(uuid).startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
