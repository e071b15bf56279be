"""One file that holds several processes: each process that uses devices becomes a rank.

Nsight Systems records all processes below a launcher into one file, rocpd databases and Chrome traces are merged by tools.
Correlation ids, threads and steps are those of one process, so the processes are separated before anything is linked.

* A merged Chrome trace may have a tag before each process id: ``[TP01] 83`` is rank 1.
* nsys and rocpd name the process of each device activity.
* Else the process that launched the activities of a device owns that device (kineto gives devices process ids of their own).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from magneton.schemas.kinds import CaptureKind
from magneton.transforms.job import CaptureFile
from magneton.transforms.naming.rank_names import ranks_of_names
from magneton.transforms.staging.stage import NONE, Stage

_TAG = re.compile(r"\[(?P<tag>[^\]]{1,80})\]\s*.+|(?P<rank>rank[ _-]?\d{1,6})[ /:_-]+.+", re.IGNORECASE)
# A process with less than this share of the device activities of the busiest one helps another one.
_MINOR = 0.01
# So much of what is launched on a device must be by one process for it to own the device.
_OWNED = 0.99

_USERS = """
SELECT l.process, count(*) FROM launch l WHERE l.correlation IN (SELECT correlation FROM activity) GROUP BY l.process
"""
_VOTES = """
WITH home AS (SELECT correlation, min(process) AS process FROM launch GROUP BY correlation HAVING count(DISTINCT process) = 1)
SELECT a.process, h.process, count(*) FROM activity a JOIN home h USING (correlation) GROUP BY 1, 2 ORDER BY 1, 3 DESC, 2
"""
_SIZES = "SELECT process, count(*), min(device) FILTER (device <> ?) FROM activity GROUP BY process"


@dataclass
class _Group:
    """The process ids of one rank: its host process and its devices."""

    name: str
    members: set[str] = field(default_factory=set)
    activities: int = 0
    device: int | None = None


def processes_apart(files: Sequence[CaptureFile]) -> list[CaptureFile]:
    """Return the files, each of several processes as several captures with ranks."""
    out: list[CaptureFile] = []
    index, first_rank = len(files), 0
    for file in files:
        out.append(file)
        if file.stage is None or file.kind != CaptureKind.PROFILE:
            continue
        groups = _groups(file.stage)
        if len(groups) < 2:
            continue
        stage = file.stage
        named = dict(zip(ranks_of_names([g.name for g in groups]), groups, strict=True))
        ranks = dict(enumerate(groups))
        if None not in named and len(named) == len(groups):
            ranks = {rank: named[rank] for rank in sorted(r for r in named if r is not None)}
        groups, numbers = list(ranks.values()), list(ranks)
        stage.warn(
            "processes_as_ranks",
            "the file holds several processes: "
            + ", ".join(f"{g.name} is rank {n}" for g, n in zip(groups, numbers, strict=True)),
            len(groups),
        )
        devices = stage.info.devices
        for group, number in zip(groups[1:], numbers[1:], strict=True):
            tracks = [i for i, (pid, _) in enumerate(stage.tracks.names) if pid in group.members]
            part = CaptureFile(file.path, file.kind, file.source, file.sha256, copy=file.copy)
            part.stage = stage.part(index, np.array(tracks, np.int32))
            part.stage.info.rank = first_rank + number
            index += 1
            out.append(part)
        stage.info.rank = first_rank + numbers[0]
        for part in out[-len(groups) :]:
            if part.stage is not None:
                part.stage.info.devices = _devices_of(part.stage, devices)
        first_rank += numbers[-1] + 1
    return out


def _groups(stage: Stage) -> list[_Group]:
    """Return the ranks of a file in their order; none or one where it is a single process."""
    stage.flush()
    pids = {pid for pid, _ in stage.tracks.names if pid is not None}
    if len(pids) < 2 or not stage.n_rows["kernels"]:
        return []
    groups = _by_tag(pids) or _by_owner(stage)
    if len(groups) < 2:
        return []
    _measure(stage, groups)
    return sorted(_without_minor(groups), key=_order)


def _by_tag(pids: set[str]) -> list[_Group]:
    groups: dict[str, _Group] = {}
    for pid in pids:
        found = _TAG.fullmatch(pid)
        if found is not None:
            tag = found["tag"] or found["rank"]
            groups.setdefault(tag, _Group(tag)).members.add(pid)
    return list(groups.values())


def _by_owner(stage: Stage) -> list[_Group]:
    if not stage.n_rows["launches"]:
        return []
    _views(stage)
    users = {process for process, _ in stage.connection.execute(_USERS).fetchall()}
    if len(users) < 2:
        return []
    groups = {process: _Group(process, {process}) for process in users}
    votes: dict[str, list[tuple[str, int]]] = {}
    for place, process, count in stage.connection.execute(_VOTES).fetchall():
        votes.setdefault(place, []).append((process, count))
    places = [place for place, *_ in stage.connection.execute(_SIZES, [NONE]).fetchall()]
    unknown = []
    for place in places:
        if place in groups:
            continue
        told = votes.get(place)
        if told is None:
            unknown.append(place)
        elif told[0][1] < _OWNED * sum(count for _, count in told):
            stage.warn("processes_mixed", f"several processes use the device {place!r}")
            return []
        else:
            groups[told[0][0]].members.add(place)
    free = sorted((g for g in groups.values() if len(g.members) == 1 and g.name not in places), key=_order)
    for place, group in zip(sorted(unknown, key=_natural), free, strict=False):
        group.members.add(place)
    idle = [g for g in groups.values() if not g.members & set(places)]
    if idle:
        stage.warn("processes_mixed", f"no device could be given to the process {idle[0].name}")
        return []
    return list(groups.values())


def _views(stage: Stage) -> None:
    """Put activities, and launches where there are any, beside their process for queries."""
    names = stage.tracks.names
    processes = pa.table({"track": pa.array(range(len(names)), pa.int32()), "process": [pid for pid, _ in names]})
    stage.connection.register("given_processes", processes)
    view = "CREATE OR REPLACE TEMP VIEW {} AS SELECT process, correlation{} FROM {} JOIN given_processes USING (track)"
    stage.connection.execute(view.format("activity", ", device", stage.table("kernels")))
    if stage.n_rows["launches"]:
        launches = view.format("launch", "", stage.table("launches"))
        stage.connection.execute(f"{launches} WHERE correlation <> {NONE}")


def _measure(stage: Stage, groups: list[_Group]) -> None:
    _views(stage)
    for process, count, device in stage.connection.execute(_SIZES, [NONE]).fetchall():
        for group in groups:
            if process in group.members:
                group.activities += count
                if device is not None and (group.device is None or device < group.device):
                    group.device = device


def _without_minor(groups: list[_Group]) -> list[_Group]:
    """Let processes with hardly any device work join the one that uses the same device, else the busiest."""
    most = max(g.activities for g in groups)
    major = [g for g in groups if g.activities and g.activities >= _MINOR * most]
    for group in groups:
        if group not in major:
            host = next((m for m in major if m.device == group.device), max(major, key=lambda g: g.activities))
            host.members |= group.members
    return major


def _order(group: _Group) -> tuple[object, ...]:
    return (group.device is None, group.device or 0, _natural(group.name))


def _natural(text: str) -> tuple[object, ...]:
    """Return a key that sorts numbers in texts by value."""
    return tuple((0, int(p), "") if p.isdigit() and p.isascii() else (1, 0, p) for p in re.split(r"(\d{1,18})", text))


def _devices_of(stage: Stage, devices: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return the properties of the devices that a rank used. All of them, where the file does not say which is which."""
    used = set(np.unique(stage.column("kernels", "device")).tolist()) - {NONE}
    named = [d for d in devices if d.get("id") in used]
    return named or devices
