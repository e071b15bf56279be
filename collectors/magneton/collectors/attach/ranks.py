"""The rank of a process: as its framework or its launcher says, else as ``multiprocessing`` has numbered it."""

from __future__ import annotations

import os
import sys


def rank_of_process() -> tuple[int, bool]:
    """Return the rank of this process, and whether a framework or a launcher has given it.

    A rank that nobody has given is a proposal: several processes may come to the same.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), True
    launched = os.environ.get("RANK", "")
    if launched.isdecimal():
        return int(launched), True
    processes = sys.modules.get("multiprocessing.process")
    identity = () if processes is None else processes.current_process()._identity
    # The first child of a program that works in children only is rank 0.
    return (int(identity[-1]) - 1 if identity else 0), False
