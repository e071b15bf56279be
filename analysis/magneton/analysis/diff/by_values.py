"""From regions of the captures of values to regions of the profiles, whose calls have times."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from magneton.analysis.align.matcher import Correspondence
from magneton.analysis.align.tree import Node
from magneton.analysis.recording import Needs, Recording
from magneton.analysis.values.graph import ValueGraph, from_tables
from magneton.analysis.values.join import join_calls
from magneton.analysis.values.match import ValueMatch
from magneton.schemas.kinds import CaptureKind, Evidence

# Below this share of device time joined to a capture of values the diff says so.
MIN_JOINED = 0.9
_OP_COLUMNS = (
    "op_id", "parent_id", "name", "input_dims", "flags", "ts_ns", "step_id", "rank", "capture", "input_id",
)  # fmt: skip
# What this module asks of a recording that holds a capture of values.
NEEDS: Needs = {"ops": _OP_COLUMNS, "tensors": None, "uses": None}


@dataclass
class ValueSide:
    """The capture of values of one recording."""

    recording: Recording
    rank: int
    graph: ValueGraph
    rows: list[dict[str, Any]]


@dataclass
class ByValues:
    """Correspondences, and the share of device time that was joined.

    Calls that are joined to the capture of values correspond by value, the others by structure.
    """

    found: list[Correspondence]
    joined_a: float
    joined_b: float


def values_captures(recording: Recording, rank: int) -> list[dict[str, Any]]:
    """Return the complete captures of values of a rank: rows of ``captures``, first input first."""
    captures = [
        c
        for c in recording.table("captures").to_pylist()
        if c["kind"] == CaptureKind.VALUES and (c["rank"] or 0) == rank and not c["incomplete"]
    ]
    return sorted(captures, key=lambda c: (c["input_id"] or "", c["capture"] or ""))


def load_values(recording: Recording, rank: int) -> ValueSide | None:
    """Return the capture of values of a recording, or None where there is none."""
    captures = values_captures(recording, rank)
    if not captures:
        return None
    first = captures[0]
    second = captures[1] if len(captures) > 1 else None
    ops = _of(recording.table("ops", _OP_COLUMNS), first)
    graph = from_tables(
        ops,
        _of(recording.table("tensors"), first),
        _of(recording.table("uses"), first),
        _of(recording.table("tensors"), second) if second else None,
    )
    rows = sorted(ops.select(["op_id", "name", "input_dims"]).to_pylist(), key=lambda r: r["op_id"])
    return ValueSide(recording, rank, graph, rows)


def _of(table: pa.Table, capture: dict[str, Any]) -> pa.Table:
    mask = pc.and_(
        pc.equal(table.column("capture"), capture["capture"]),
        pc.equal(pc.fill_null(table.column("rank"), 0), capture["rank"] or 0),
    )
    if capture["input_id"] is not None:
        mask = pc.and_(mask, pc.equal(pc.fill_null(table.column("input_id"), ""), capture["input_id"]))
    return table.filter(mask)


def correspond(
    sides: tuple[ValueSide, ValueSide],
    match: ValueMatch,
    trees: tuple[Node, Node],
    steps: tuple[int | None, int | None],
    structural: list[Correspondence],
) -> ByValues:
    """Give each leaf of two averaged trees the region that its call has by value.

    A leaf whose call cannot be joined to the capture of values keeps its correspondence by structure.

    Args:
        sides: captures of values of A and B.
        match: regions of equal values in them.
        trees: averaged trees of A and B; the idents of their leaves are calls of one step each.
        steps: those steps (``step_id``), None where the capture is the step.
        structural: correspondences by structure.
    """
    region_of: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for number, region in enumerate(match.regions):
        region_of[0].update(dict.fromkeys(region.ops_a, number))
        region_of[1].update(dict.fromkeys(region.ops_b, number))
    placed: tuple[dict[Node, int], dict[Node, int]] = (
        _placed(sides[0], trees[0], steps[0], region_of[0]),
        _placed(sides[1], trees[1], steps[1], region_of[1]),
    )
    members: dict[int, tuple[list[Node], list[Node]]] = defaultdict(lambda: ([], []))
    for side in (0, 1):
        for leaf in trees[side].leaves():
            if leaf in placed[side]:
                members[placed[side][leaf]][side].append(leaf)
    found = []
    for number, (a, b) in members.items():
        region = match.regions[number]
        words = {Evidence.VALUES, Evidence.MOVEMENT} if region.movement else {Evidence.VALUES}
        if match.second_input:
            words.add(Evidence.SECOND_INPUT)
        score = 1.0 if a and b else None
        found.append(Correspondence(a, b, score, frozenset(words), (len(region.ops_a), len(region.ops_b))))
    for known in structural:
        a = [leaf for leaf in known.a if leaf not in placed[0]]
        b = [leaf for leaf in known.b if leaf not in placed[1]]
        if a or b:
            found.append(
                Correspondence(a, b, known.score if a and b else None, known.evidence if a and b else frozenset())
            )
    return ByValues(found, _share(trees[0], placed[0]), _share(trees[1], placed[1]))


def _placed(side: ValueSide, tree: Node, step: int | None, region_of: dict[int, int]) -> dict[Node, int]:
    """Return the region of every leaf whose call is joined to the capture of values, or lies within a joined call."""
    table = side.recording.table("ops", _OP_COLUMNS)
    rows = {r["op_id"]: r for r in table.to_pylist() if r["ts_ns"] is not None and (r["rank"] or 0) == side.rank}
    profile = sorted(
        (r for r in rows.values() if step is None or r["step_id"] == step), key=lambda r: (r["ts_ns"], r["op_id"])
    )
    joined = join_calls(side.rows, profile)
    found = {}
    for leaf in tree.leaves():
        at = leaf.ident if leaf.kind == "op" else None
        while at is not None and at in rows:
            if at in joined and joined[at] in region_of:
                found[leaf] = region_of[joined[at]]
                break
            at = rows[at]["parent_id"]
    return found


def _share(tree: Node, placed: dict[Node, int]) -> float:
    total = sum(leaf.device_ns for leaf in tree.leaves())
    return sum(leaf.device_ns for leaf in placed) / total if total else 0.0
