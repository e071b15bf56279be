"""Rows for the time of the host in which no operator ran: Python between operators, and waiting.

They are compared with each other and are no part of the alignment: whatever the operators do, Python is compared with Python and waiting with
waiting. They count neither as operator time nor as aligned time.
"""

from __future__ import annotations

from math import fsum

import numpy as np

from magneton.analysis.align.average import Average
from magneton.analysis.align.tree import Node, Work
from magneton.analysis.align.work import Step, total_work
from magneton.analysis.diff.regions import RawRegion
from magneton.analysis.diff.spread import per_step
from magneton.analysis.diff.stratum import Aligned
from magneton.analysis.host.timeline import HostTime
from magneton.schemas.documents.diff import HostTimeDoc
from magneton.schemas.kinds import Evidence, KernelClass

PYTHON = "Python and other host code"
# After all operators of a step.
_LAST = (1 << 62, 0)


def host_rows(aligned: list[Aligned]) -> list[RawRegion]:
    """Return the rows of each stratum of which the time of the host is known on both sides.

    Args:
        aligned: the strata.
    """
    found: list[RawRegion] = []
    for part in aligned:
        if _known(part.a) and _known(part.b):
            for nodes in (_python, _waiting):
                a, b = nodes(part.a.host), nodes(part.b.host)
                if a or b:
                    found.append(_row(part.name, a, b))
    return found


def _known(average: Average) -> bool:
    return len(average.host) == average.n_steps


def _row(stratum: str, a: list[Node], b: list[Node]) -> RawRegion:
    both = bool(a and b)
    work_a, work_b = (total_work(nodes) if nodes else None for nodes in (a, b))
    row = RawRegion(stratum, a, b, work_a, work_b, 1.0 if both else None, (Evidence.NAME,) if both else ())
    row.steps_a, row.steps_b = per_step(a), per_step(b)
    return row


def _python(host: list[HostTime]) -> list[Node]:
    return _nodes(PYTHON, KernelClass.PYTHON, [time.python_ns for time in host])


def _waiting(host: list[HostTime]) -> list[Node]:
    found: list[Node] = []
    for name in sorted({name for time in host for name in time.waiting_ns}):
        found += _nodes(f"host wait: {name}", KernelClass.HOST_WAIT, [time.waiting_ns.get(name, 0.0) for time in host])
    return found


def _nodes(name: str, kind: str, times: list[float]) -> list[Node]:
    """Return a leaf with a time of every step; none where it took no time in any."""
    total = fsum(times)
    if not total:
        return []
    mean = total / len(times)
    node = Node("host", name, None, _LAST, work=Work(time_ns=mean, class_ns={kind: mean}))
    steps = np.array([times, [0.0] * len(times)])
    node.per_step, node.class_steps = steps, {kind: steps[0]}
    return [node]


def host_docs(averages: list[Average], used: list[Step]) -> tuple[HostTimeDoc | None, list[HostTimeDoc]]:
    """Return the mean time of the host in a step, and its time in every step.

    Args:
        averages: the strata of one side. Of several, the mean is the sum of one step of each.
        used: the steps that they were made of, in the same order.

    Returns:
        Both, or neither where the time of a step is not known.
    """
    if not all(_known(average) for average in averages):
        return None, []
    times = [time for average in averages for time in average.host]
    steps = [_doc(step.name, time) for step, time in zip(used, times, strict=True)]
    weighted = [time.divided(average.n_steps) for average in averages for time in average.host]
    return _doc(None, *weighted), steps


def _doc(step: str | None, *times: HostTime) -> HostTimeDoc:
    return HostTimeDoc(
        step=step,
        wall_ns=fsum(time.wall_ns for time in times),
        operators_ns=fsum(time.operators_ns for time in times),
        dispatch_ns=fsum(time.dispatch_ns for time in times),
        python_ns=fsum(time.python_ns for time in times),
        waiting_ns=fsum(value for time in times for value in time.waiting_ns.values()),
        beside_ns=fsum(time.beside_ns for time in times),
    )
