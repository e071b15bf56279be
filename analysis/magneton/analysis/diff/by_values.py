"""From regions of the captures of values to regions of the profiles, whose calls have times.

Regions that both sides have by value stand. Structure fills what values leave open; see ``fill``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from magneton.analysis.align.matcher import Correspondence
from magneton.analysis.align.tree import Node
from magneton.analysis.diff.regions import is_coarse
from magneton.analysis.recording import Needs, Recording
from magneton.analysis.values.fill import fill
from magneton.analysis.values.graph import from_tables
from magneton.analysis.values.join import ValueSide, join_calls
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
class ByValues:
    """Correspondences, and the share of device time that was joined.

    A correspondence with ``Evidence.VALUES`` is one by value, any other is one by structure.
    """

    found: list[Correspondence]
    joined_a: float
    joined_b: float


def values_captures(recording: Recording, rank: int) -> list[dict[str, Any]]:
    """Return the complete captures of values of a rank: rows of ``captures``, by name, first input first."""
    captures = [
        c
        for c in recording.table("captures").to_pylist()
        if c["kind"] == CaptureKind.VALUES and (c["rank"] or 0) == rank and not c["incomplete"]
    ]
    return sorted(captures, key=lambda c: (c["capture"] or "", c["input_id"] or ""))


def load_values(a: Recording, rank_a: int, b: Recording, rank_b: int) -> list[tuple[ValueSide, ValueSide]]:
    """Return the captures of values that can be matched: those of the same name, one of each side.

    A program may have several, one for each phase. Example: ``prefill`` and ``decode``. Where no name is on both sides, the
    first captures are matched. A side without a capture of values gives none.
    """
    both = values_captures(a, rank_a), values_captures(b, rank_b)
    if not all(both):
        return []
    names = [list(dict.fromkeys(c["capture"] for c in captures)) for captures in both]
    common = [(name, name) for name in names[0] if name in names[1]] or [(names[0][0], names[1][0])]
    return [
        (
            _load(a, rank_a, [c for c in both[0] if c["capture"] == one]),
            _load(b, rank_b, [c for c in both[1] if c["capture"] == other]),
        )
        for one, other in common
    ]


def _load(recording: Recording, rank: int, captures: list[dict[str, Any]]) -> ValueSide:
    """Return one capture of values with its second input: captures of one name that ran on different inputs."""
    first = captures[0]
    second = next((c for c in captures[1:] if c["input_id"] not in (None, first["input_id"])), None)
    ops = _of(recording.table("ops", _OP_COLUMNS), first)
    graph = from_tables(
        ops,
        _of(recording.table("tensors"), first),
        _of(recording.table("uses"), first),
        _of(recording.table("tensors"), second) if second else None,
    )
    rows = sorted(ops.select(["op_id", "name", "input_dims", "flags"]).to_pylist(), key=lambda r: r["op_id"])
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
    """Give each leaf of two averaged trees the region that its call has by value, else its partner by structure.

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
    moves = {number for number, region in enumerate(match.regions) if region.movement}
    placed: tuple[dict[Node, int], dict[Node, int]] = (
        _placed(sides[0], trees[0], steps[0], region_of[0], moves),
        _placed(sides[1], trees[1], steps[1], region_of[1], moves),
    )
    members: dict[int, tuple[list[Node], list[Node]]] = defaultdict(lambda: ([], []))
    for side in (0, 1):
        for leaf in trees[side].leaves():
            if leaf in placed[side]:
                members[placed[side][leaf]][side].append(leaf)
    times = [sum(leaf.work.time_ns for leaf in tree.leaves() if leaf.work) for tree in trees]
    by_value: list[Correspondence] = []
    coarse: list[Correspondence] = []
    for number, (a, b) in members.items():
        if not a or not b:
            continue
        region = match.regions[number]
        words = {Evidence.VALUES, Evidence.MOVEMENT} if region.movement else {Evidence.VALUES}
        if match.second_input:
            words.add(Evidence.SECOND_INPUT)
        found = Correspondence(a, b, 1.0, frozenset(words), (len(region.ops_a), len(region.ops_b)))
        (coarse if is_coarse(found, times[0], times[1]) else by_value).append(found)
    return ByValues(fill(trees, by_value, coarse, structural), _share(trees[0], placed[0]), _share(trees[1], placed[1]))


def _placed(
    side: ValueSide, tree: Node, step: int | None, region_of: dict[int, int], moves: set[int]
) -> dict[Node, int]:
    """Return the region of every leaf whose call belongs to one of the capture of values.

    The call itself is joined to the capture, or it lies within a joined call, or it is a wrapper around a single region. Example of
    a wrapper: the capture has ``aten::bmm``, and ``aten::matmul`` in the profile works a little by itself around it. A region that
    only moves data counts only where the wrapper holds no other.
    """
    table = side.recording.table("ops", _OP_COLUMNS)
    rows = {r["op_id"]: r for r in table.to_pylist() if r["ts_ns"] is not None and (r["rank"] or 0) == side.rank}
    profile = sorted(
        (r for r in rows.values() if step is None or r["step_id"] == step), key=lambda r: (r["ts_ns"], r["op_id"])
    )
    joined = join_calls(side.rows, profile)
    found = {}
    around: dict[int, set[int]] = defaultdict(set)
    for leaf in tree.leaves():
        within = []
        at = leaf.ident if leaf.kind == "op" else None
        while at is not None and at in rows:
            within.append(at)
            if leaf not in found and at in joined and joined[at] in region_of:
                found[leaf] = region_of[joined[at]]
            at = rows[at]["parent_id"]
        if leaf in found:
            for wrapper in within[1:]:
                around[wrapper].add(found[leaf])
    for leaf in tree.leaves():
        if leaf not in found and leaf.kind == "op" and leaf.ident in around:
            only = around[leaf.ident] - moves or around[leaf.ident]
            if len(only) == 1:
                (found[leaf],) = only
    return found


def _share(tree: Node, placed: dict[Node, int]) -> float:
    total = sum(leaf.device_ns for leaf in tree.leaves())
    return sum(leaf.device_ns for leaf in placed) / total if total else 0.0
