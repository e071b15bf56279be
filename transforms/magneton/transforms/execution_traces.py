"""Joining an execution trace to the trace of the same run: its tensors become those of the trace's operators.

PyTorch gives each call one number for both files: the ``rf_id`` of a node is the ``Record function id`` of the operator. Files from
before 2024 do not hold this number. In these files whole threads are matched: both files list the calls of a thread in the same
order, so a thread is recognised by its sequence of names. If several traces (ranks) fit, the one with the same process is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from magneton.schemas.kinds import CaptureKind
from magneton.transforms.staging.stage import NONE, Stage

if TYPE_CHECKING:
    from magneton.transforms.job import CaptureFile

CHAKRA = "chakra"
# Recordings rarely begin and end together; but what both have must agree, and be most of the shorter one.
_MOST = 0.9
_COLUMNS = ("name", "track", "ts_ns", "external_id", "record_function_id")

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class _Match:
    """Pairs of an operator of a trace and the same call of an execution trace, as three parallel columns."""

    track: Ints
    external_id: Ints
    record_function_id: Ints
    stated: bool

    def __len__(self) -> int:
        return len(self.record_function_id)


def join_execution_traces(files: Sequence[CaptureFile]) -> list[tuple[CaptureFile, CaptureFile]]:
    """Move the tensors of execution traces to the traces they belong to.

    Args:
        files: files that were read. Without any trace among them, execution traces are captures of their own.

    Returns:
        Pairs of an execution trace and its trace. The former have no stage any more, and ``said`` where they have joined.
    """
    profiles = [f for f in files if f.kind == CaptureKind.PROFILE and f.stage is not None]
    lone = [f for f in profiles if f.stage is not None and f.stage.info.source_format == CHAKRA]
    traces = [f for f in profiles if f.stage is not None and f.stage.info.source_format != CHAKRA]
    free = list(traces)
    pairs: list[tuple[CaptureFile, CaptureFile]] = []
    for file in lone if traces else ():
        found = _best(file, free)
        trace, match = found if found is not None else (traces[0], None)
        if match is not None:
            free = [t for t in free if t is not trace]
        if file.stage is not None and trace.stage is not None:
            if match is None:
                trace.stage.warn(
                    "execution_trace_unjoined",
                    f"{file.path.name} has the calls of none of the traces: it was left out",
                )
            else:
                file.said = _move(file, file.stage, trace.stage, match)
            for kind in ("ops", "annotations", "uses"):
                file.stage.drop(kind)
        file.stage = None
        pairs.append((file, trace))
    return pairs


def _best(file: CaptureFile, traces: Sequence[CaptureFile]) -> tuple[CaptureFile, _Match] | None:
    if file.stage is None:
        return None
    calls = _operators(file.stage)
    process = {pid for pid, _ in file.stage.tracks.names}
    ranked = []
    for number, trace in enumerate(traces):
        if trace.stage is None:
            continue
        operators = _operators(trace.stage)
        has_ids = bool((operators["record_function_id"] != NONE).any())
        match = _by_id(calls, operators) if has_ids else _by_threads(calls, operators)
        if match is not None:
            same = bool(process & {pid for pid, _ in trace.stage.tracks.names} - {None})
            ranked.append((same, len(match), -number, trace, match))
    if not ranked:
        return None
    *_, trace, match = max(ranked, key=lambda entry: entry[:3])
    return trace, match


def _operators(stage: Stage) -> dict[str, NDArray[Any]]:
    pieces = list(stage.batches("ops", order=None, columns=_COLUMNS))
    if not pieces:
        return {name: np.empty(0, np.int64) for name in _COLUMNS}
    return {name: np.concatenate([piece[name] for piece in pieces]).astype(np.int64) for name in _COLUMNS}


def _by_id(calls: dict[str, Ints], operators: dict[str, Ints]) -> _Match | None:
    """Match by the numbers that both state; names must agree."""
    order = np.argsort(calls["record_function_id"], kind="stable")
    ids, names = calls["record_function_id"][order], calls["name"][order]
    rows = np.flatnonzero(operators["record_function_id"] != NONE)
    at = np.minimum(np.searchsorted(ids, operators["record_function_id"][rows]), max(len(ids) - 1, 0))
    rows = rows[ids[at] == operators["record_function_id"][rows]] if len(ids) else rows[:0]
    at = np.searchsorted(ids, operators["record_function_id"][rows])
    agree = names[at] == operators["name"][rows]
    enough = _MOST * min(len(ids), int((operators["record_function_id"] != NONE).sum()))
    if not len(rows) or agree.sum() < max(enough, _MOST * len(rows)):
        return None
    rows = rows[agree]
    return _Match(
        operators["track"][rows], operators["external_id"][rows], operators["record_function_id"][rows], stated=True
    )


def _by_threads(calls: dict[str, Ints], operators: dict[str, Ints]) -> _Match | None:
    """Match whole threads by their sequences of names; a shorter one must lie in the longer one at one place only."""
    found: list[tuple[Ints, Ints]] = []
    free = np.unique(operators["track"]).tolist()
    for thread in np.unique(calls["track"]).tolist():
        mine = np.flatnonzero(calls["track"] == thread)
        mine = mine[np.argsort(calls["record_function_id"][mine], kind="stable")]
        for track in free:
            theirs = np.flatnonzero((operators["track"] == track) & (operators["external_id"] != NONE))
            theirs = theirs[np.lexsort((operators["ts_ns"][theirs], operators["external_id"][theirs]))]
            span = _overlap(calls["name"][mine], operators["name"][theirs])
            if span is not None:
                a, b, size = span
                found.append((mine[a : a + size], theirs[b : b + size]))
                free.remove(track)
                break
    if not found:
        return None
    ours = np.concatenate([a for a, _ in found])
    rows = np.concatenate([b for _, b in found])
    if len(rows) < _MOST * min(len(calls["name"]), len(operators["name"])):
        return None
    return _Match(
        operators["track"][rows], operators["external_id"][rows], calls["record_function_id"][ours], stated=False
    )


def _overlap(one: Ints, other: Ints) -> tuple[int, int, int] | None:
    """Return where two sequences coincide: start in the one, start in the other, length of the shorter one."""
    if not len(one) or not len(other):
        return None
    if len(one) < len(other):
        found = _overlap(other, one)
        return None if found is None else (found[1], found[0], found[2])
    places = _places(one.tobytes(), other.tobytes(), one.itemsize)
    return (places[0], 0, len(other)) if len(places) == 1 else None


def _places(text: bytes, part: bytes, width: int) -> list[int]:
    """Return the first two places, in numbers of ``width`` bytes, where ``part`` occurs in ``text``."""
    places: list[int] = []
    at = text.find(part)
    while at >= 0 and len(places) < 2:
        if at % width == 0:
            places.append(at // width)
        at = text.find(part, at + 1)
    return places


def _move(file: CaptureFile, source: Stage, target: Stage, match: _Match) -> dict[str, Any]:
    """Move tensors to a trace; return what its metadata says of that from now on."""
    if not match.stated:
        target.assign(
            "ops",
            "record_function_id",
            match.record_function_id,
            where={"track": match.track, "external_id": match.external_id},
        )
    calls = source.n_rows["ops"]
    for rows in source.batches("uses", order=None):
        known = np.isin(rows["record_function_id"], match.record_function_id)
        target.add("uses", {name: values[known] for name, values in rows.items()})
    said = target.info.metadata["execution_trace"] = {
        **source.info.metadata,
        "calls": calls,
        "joined": len(match),
        "joined_by": "record_function_id" if match.stated else "thread_order",
    }
    if len(match) < _MOST * calls:
        target.warn(
            "execution_trace_partial",
            f"calls of {file.path.name} that are not in the trace",
            calls - len(match),
        )
    return said
