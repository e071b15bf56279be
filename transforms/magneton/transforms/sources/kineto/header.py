"""The parts of a kineto trace beside its events: clock, rank, devices, versions, names of processes and threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from magneton.schemas.kinds import Clock
from magneton.transforms.sources.kineto.events import Event
from magneton.transforms.staging.stage import Stage

# Top-level members that become fields of their own, or that name hosts and paths.
_TAKEN = {"deviceProperties", "baseTimeNanoseconds", "distributedInfo", "host_name", "traceName"}
_VERSIONS = {
    "cuda_runtime_version": "cuda_runtime",
    "cuda_driver_version": "cuda_driver",
    "cupti_version": "cupti",
    "hip_runtime_version": "hip_runtime",
    "hip_driver_version": "hip_driver",
    "roctracer_version": "roctracer",
    "vllm_version": "vllm",
    "sglang_version": "sglang",
    "torch_version": "torch",
    "pytorch_version": "torch",
}
# A time stamp of this many ns is a Unix time (1973 or later), not an offset.
_EPOCH_SIZED_NS = 10**17
# Operators and annotations that only one system writes; the first that is found names it.
_MARKS = (
    ("sglang", ("sglang::", "sgl_kernel::", "step[EXTEND", "step[DECODE")),
    ("vllm", ("vllm::", "_C_cache_ops::", "execute_context_", "execute_new_")),
)


class ProcessNames:
    """Names and labels of processes and threads, from metadata events; the last one written holds."""

    def __init__(self) -> None:
        self.processes: dict[str, dict[str, str]] = {}
        self.threads: dict[str, str] = {}
        self._prepared: dict[int, dict[str, Any]] = {}

    def prepare(self, events: Sequence[Event], args: Sequence[dict[str, Any]]) -> None:
        """Take the arguments of events that are about to be committed."""
        for event, arg in zip(events, args, strict=True):
            self._prepared[id(event)] = arg

    def commit(self, events: Sequence[Event]) -> None:
        """Apply events in the order of the file."""
        for event in events:
            arg = self._prepared.pop(id(event), {})
            pid = str(event.pid)
            if event.name == "process_name" and "name" in arg:
                self.processes.setdefault(pid, {})["name"] = str(arg["name"])
            elif event.name == "process_labels" and "labels" in arg:
                self.processes.setdefault(pid, {})["labels"] = str(arg["labels"])
            elif event.name == "thread_name" and "name" in arg:
                self.threads[f"{pid}/{event.tid}"] = str(arg["name"])
        self._prepared.clear()


def read_header(stage: Stage, metadata: dict[str, Any], names: ProcessNames, earliest_ns: int | None) -> None:
    """Fill ``stage.info`` from the other members of the top-level object.

    Args:
        stage: where to.
        metadata: the members.
        names: names of processes and threads.
        earliest_ns: the earliest time stamp, to tell Unix times from offsets.
    """
    info = stage.info
    base = _int(metadata.get("baseTimeNanoseconds"))
    if base is not None:
        info.base_unix_ns, info.clock = base, Clock.REALTIME
    elif earliest_ns is not None and earliest_ns > _EPOCH_SIZED_NS:
        info.base_unix_ns, info.clock = 0, Clock.REALTIME
    distributed = metadata.get("distributedInfo")
    if isinstance(distributed, dict):
        info.rank = _int(distributed.get("rank"))
        info.world_size = _int(distributed.get("world_size"))
        if "nccl_version" in distributed:
            info.versions["nccl"] = str(distributed["nccl_version"])
    devices = metadata.get("deviceProperties")
    if isinstance(devices, list):
        info.devices = [d for d in devices if isinstance(d, dict)]
    for key, name in _VERSIONS.items():
        if metadata.get(key) is not None:
            info.versions[name] = str(metadata[key])
    info.framework = _framework(stage, metadata)
    info.metadata = {k: v for k, v in metadata.items() if k not in _TAKEN}
    if isinstance(distributed, dict):
        info.metadata["distributedInfo"] = distributed
    if names.processes:
        info.metadata["processes"] = dict(sorted(names.processes.items()))
    if names.threads:
        info.metadata["threads"] = dict(sorted(names.threads.items()))


def _framework(stage: Stage, metadata: dict[str, Any]) -> str | None:
    for system in ("vllm", "sglang"):
        if f"{system}_version" in metadata:
            return system
    texts = stage.pool.texts()
    for system, starts in _MARKS:
        if any(t.startswith(starts) for t in texts):
            return system
    return "torch" if stage.n_rows["ops"] or stage.n_rows["frames"] else None


def _int(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and value.strip().lstrip("-").isdigit() and len(value) < 25:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else None
