"""What calls of CUDA, HIP and other runtimes do, by their names."""

from __future__ import annotations

import re

# Calls that leave a device activity: a kernel, a copy, a memset or a whole graph. Host callbacks do not.
_ACTIVITY = re.compile(
    r"(?:cuda|hip|cu|mu|musa)(?:Ext|Hcc)?(?:Module)?Launch(?!HostFunc)(?:\w*Kernel\w*|ByPtr\w*|Grid\w*)?(?:_\w+)?$"
    r"|(?:cuda|hip|cu|mu|musa)Mem(?:cpy|set)\w*"
    r"|(?:cuda|hip|cu|mu|musa)GraphLaunch\w*"
    r"|urEnqueue(?:KernelLaunch|USM(?:Memcpy|Fill)|Mem(?:Buffer|Image)\w+)\w*"
    r"|zeCommandListAppend(?:Launch\w*Kernel\w*|Memory(?:Copy|Fill)\w*)"
)
_TRANSFER = re.compile(r"(?:cuda|hip|cu|mu|musa)Mem(?:cpy|set)|urEnqueueUSM|zeCommandListAppendMemory")
_GRAPH = re.compile(r"(?:cuda|hip|cu|mu|musa)GraphLaunch\w*")
_BEGIN_CAPTURE = re.compile(r"(?:cuda|hip|cu|mu|musa)StreamBeginCapture\w*")
_END_CAPTURE = re.compile(r"(?:cuda|hip|cu|mu|musa)StreamEndCapture\w*")


def leaves_activity(name: str) -> bool:
    """Tell whether a call of this name should leave a device activity (outside of a graph capture)."""
    return _ACTIVITY.match(name) is not None


def moves_memory(name: str) -> bool:
    """Tell whether a call of this name copies or fills memory: it leaves an activity only where there are bytes to move."""
    return _TRANSFER.match(name) is not None


def launches_graph(name: str) -> bool:
    """Tell whether a call of this name replays a captured graph."""
    return _GRAPH.match(name) is not None


def capture_step(name: str) -> int:
    """Return 1 for a call that begins a stream capture, -1 for one that ends it, 0 for all others.

    Launches in between are recorded into a graph and run nothing.
    """
    if _BEGIN_CAPTURE.match(name):
        return 1
    return -1 if _END_CAPTURE.match(name) else 0
