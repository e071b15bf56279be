"""How good a match is, by labels and by the values themselves.

A labelled boundary is a tensor that carries the same label in A and in B.

* It is *found* if its two tensors are matched with each other and the regions respect it. The operators that compute the tensor on A
  and on B are one region, and no operator behind the boundary that reads the tensor is in that region.
* It is *missing* otherwise.
* Three things are *wrong*: matched tensors whose values differ, on either input and in every arrangement; matched tensors with
  different labels; and regions whose operators of A and of B lie in different segments. The labels alone cut each program into
  segments.

``F1 = 2 found / (2 found + wrong + missing)``. A pair whose sides share no label is a control: there, nothing that depends on
both an input and a parameter may match.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.matching.flow import Flow, pair_boundaries, segments
from benchmarks.matching.raw_values import (
    COARSE_NOISE,
    NOISE,
    Array,
    agree,
    is_concatenation,
    is_slice,
    same_elements,
    same_slices,
    varies,
)

# The oracle's tolerances do not move with the matcher's.
# They only tell the same from something else: true gaps stay well below them, false ones are about 1.
TOLERANCE = {"bfloat16": 5e-2, "float16": 5e-3}
STRICT = 2e-4
# In any order, different values of one distribution are close: only what is nearly exact counts.
SORTED = 1e-5
# A region above this share of the time is too coarse, unless it cannot be split.
COARSE = 0.1
SMALLEST = 16
# Of what is matched as parts of one another, so much is the same on both sides. The rest may be padding.
SHARE = 0.5
MAX_PIECES = 16


class Paired(Protocol):
    """Matched tensors: ids of A and of B."""

    @property
    def a(self) -> Sequence[int]: ...  # noqa: D102

    @property
    def b(self) -> Sequence[int]: ...  # noqa: D102


class Region(Protocol):
    """Matched operators."""

    @property
    def ops_a(self) -> Sequence[int]: ...  # noqa: D102

    @property
    def ops_b(self) -> Sequence[int]: ...  # noqa: D102


class Match(Protocol):
    """What the metric needs of a match; `magneton.analysis.values.match.ValueMatch` is one."""

    @property
    def regions(self) -> Sequence[Region]: ...  # noqa: D102

    @property
    def pairs(self) -> Sequence[Paired]: ...  # noqa: D102

    @property
    def unions(self) -> Sequence[Paired]: ...  # noqa: D102

    @property
    def cuts_a(self) -> Collection[int]: ...  # noqa: D102

    @property
    def cuts_b(self) -> Collection[int]: ...  # noqa: D102


Known = Mapping[int, Sequence[Array]]


@dataclass
class Side:
    """One side of a pair: its dataflow, labels, the values it really had on each input, and how long operators took."""

    flow: Flow
    labels: dict[str, list[int]]
    known: Sequence[Known]
    seconds: dict[int, float]


@dataclass
class Score:
    """The figures of one match. ``ops``, ``coverage`` are of A and B; shares are of the time of either side."""

    ops: tuple[int, int]
    labels: int
    regions: int = 0
    mean_region: float = 0.0
    several: list[int] = field(default_factory=list)
    largest_region: int = 0
    largest_share: float = 0.0
    coarse: list[str] = field(default_factory=list)
    irreducible: list[str] = field(default_factory=list)
    coverage: tuple[float, float] = (1.0, 1.0)
    one_sided: float = 0.0
    found: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    beyond_inputs: int = 0
    unchecked: int = 0
    pairs: int = 0

    @property
    def control(self) -> bool:
        """Nothing is labelled on both sides."""
        return self.labels == 0

    @property
    def median_region(self) -> float | None:
        """Median operators a side over regions with several on both sides; None if there is none."""
        return statistics.median(self.several) if self.several else None

    @property
    def f1(self) -> float:
        """2 found / (2 found + wrong + missing); for a control 1 if nothing matched that must not, else 0."""
        if self.control:
            return 0.0 if self.wrong or self.beyond_inputs else 1.0
        return 2 * len(self.found) / (2 * len(self.found) + len(self.wrong) + len(self.missing))


class Truth:
    """The labels and values of a pair, against which matches are scored."""

    def __init__(self, a: Side, b: Side) -> None:
        self.sides = (a, b)
        self.flows = (a.flow, b.flow)
        self.boundaries = pair_boundaries(a.labels, b.labels, (a.flow.numel, b.flow.numel))
        self.segments = segments(self.flows, self.boundaries.values())
        self.names: tuple[dict[int, set[str]], dict[int, set[str]]] = (defaultdict(set), defaultdict(set))
        for name, boundary in self.boundaries.items():
            for side in (0, 1):
                for tensor in boundary[side]:
                    self.names[side][self.flows[side].group[tensor]].add(name)

        # A segment of one side only says nothing of what may be paired with it.
        self._known_segments = set(self.segments[0].values()) & set(self.segments[1].values())
        self._partners: dict[tuple[int, int], bool] = {}
        self._held: dict[tuple[tuple[int, ...], tuple[int, ...], bool], bool | None] = {}

    # ------------------------------------------------------------------------------------------------ values

    def seen(self, side: int, which: int, tensors: Iterable[int]) -> list[Array]:
        """Every arrangement in which tensors that hold the same elements were seen on an input."""
        return [x for t in tensors for x in self.sides[side].known[which].get(t, ())]

    def tolerance(self, a: Iterable[int], b: Iterable[int]) -> tuple[float, float]:
        """Tolerance and noise for comparing tensors of A with tensors of B."""
        kinds = {self.flows[0].precision[t] for t in a} | {self.flows[1].precision[t] for t in b}
        tolerance = max((TOLERANCE.get(kind, STRICT) for kind in kinds), default=STRICT)
        return tolerance, COARSE_NOISE if "bfloat16" in kinds else NOISE

    def holds(self, pair: Paired, union: bool = False) -> bool | None:
        """Tell whether matched tensors really have the same value on every input; None if that is not known.

        Args:
            pair: the tensors.
            union: they are matched as parts of one another: slices of one side are slices of the other.
        """
        key = tuple(pair.a), tuple(pair.b), union
        if key not in self._held:
            self._held[key] = self._holds(pair, union)
        return self._held[key]

    def _holds(self, pair: Paired, union: bool) -> bool | None:
        tolerance, noise = self.tolerance(pair.a, pair.b)
        known = None
        for which in range(min(len(s.known) for s in self.sides)):
            parts = [self._by_group(side, which, ids) for side, ids in enumerate((pair.a, pair.b))]
            if not all(parts) or not all(p for side in parts for p in side):
                continue
            if len(parts[0]) == len(parts[1]) == 1:
                same = agree(parts[0][0], parts[1][0], tolerance, noise)
            elif 1 in (len(parts[0]), len(parts[1])):
                whole, pieces = (parts[0][0], parts[1]) if len(parts[0]) == 1 else (parts[1][0], parts[0])
                same = is_concatenation(whole, pieces, tolerance, noise)
            else:
                same = False
            if not same and not (union and same_slices(*parts, tolerance, SHARE, noise, ordered=which == 0)):
                return False
            known = True
        return known

    def _by_group(self, side: int, which: int, ids: Sequence[int]) -> list[list[Array]]:
        """Matched tensors as parts: copies of one value, all listed, are one; a part may be there twice."""
        flow = self.flows[side]
        parts = []
        at = 0
        while at < len(ids):
            members = flow.members[flow.group[ids[at]]]
            parts.append(self.seen(side, which, members))
            whole = sorted(ids[at : at + len(members)]) == members
            at += len(members) if whole else 1
        return parts if len(set(map(flow.group.__getitem__, ids))) > 1 or self._repeats(ids) else parts[:1]

    @staticmethod
    def _repeats(ids: Sequence[int]) -> bool:
        return len(set(ids)) < len(ids)

    # ------------------------------------------------------------------------------------------------ labels

    def shared_labels(self, side: int, ids: Iterable[int]) -> set[str]:
        """Names of the shared boundaries among tensors."""
        return {n for t in ids for n in self.names[side].get(self.flows[side].group[t], ())}

    def score(self, match: Match) -> Score:
        """Score a match."""
        score = Score(
            ops=(self._real(0, self.flows[0].ops), self._real(1, self.flows[1].ops)),
            labels=len(self.boundaries),
            pairs=len(match.pairs) + len(match.unions),
        )
        matched = [*match.pairs, *match.unions]
        wrong = [p for p in match.pairs if self._is_wrong(p, score)]
        wrong += [p for p in match.unions if self._is_wrong(p, score, union=True)]
        regions: tuple[dict[int, int], dict[int, int]] = ({}, {})
        for number, region in enumerate(match.regions):
            regions[0].update(dict.fromkeys(region.ops_a, number))
            regions[1].update(dict.fromkeys(region.ops_b, number))
        for name, boundary in self.boundaries.items():
            pieces = self._pieces(boundary, matched)
            kept = bool(pieces) and all(self._is_respected(piece, regions) for piece in pieces)
            (score.found if kept else score.missing).append(name)
        self._crossed(match, wrong, score)
        if score.control:
            score.beyond_inputs += sum(self._pairs_parametric(region) for region in match.regions)
        self._sizes(match, score)
        return score

    def _is_wrong(self, pair: Paired, score: Score, *, union: bool = False) -> bool:
        both = tuple(self.shared_labels(side, ids) for side, ids in enumerate((pair.a, pair.b)))
        if score.control:
            score.beyond_inputs += all(self._depends(side, ids) for side, ids in enumerate((pair.a, pair.b)))
        holds = self.holds(pair, union)
        score.unchecked += holds is None
        reason = ""
        if holds is False:
            reason = "values differ"
        elif both[0] and both[1] and not both[0] & both[1]:
            reason = f"{min(both[0])} is not {min(both[1])}"
        if reason:
            score.wrong.append(f"{_brief(pair.a)} = {_brief(pair.b)}: {reason}")
        return bool(reason)

    def _pairs_parametric(self, region: Region) -> bool:
        """Tell whether a region pairs work on inputs and parameters of A with such work of B."""
        return all(
            any(not self._idle(side, o) and self._depends(side, flow.ops[o].writes) for o in ops)
            for side, (flow, ops) in enumerate(zip(self.flows, (region.ops_a, region.ops_b), strict=True))
        )

    def _depends(self, side: int, ids: Iterable[int]) -> bool:
        """Tell whether tensors depend on an input and on a parameter."""
        flow = self.flows[side]
        return any(t not in flow.constant and t in flow.parametric for t in ids)

    def _pieces(
        self, boundary: tuple[list[int], list[int]], matched: Sequence[Paired]
    ) -> list[tuple[list[int], list[int]]]:
        """Return a boundary in the pieces in which it is matched: as a rule itself; nothing if it is not matched.

        Example of several pieces: each of two halves is two quarters of the other side.
        """
        wanted = [{self.flows[s].group[t] for t in boundary[s]} for s in (0, 1)]
        inside = []
        for pair in matched:
            held = [{self.flows[s].group[t] for t in ids} for s, ids in enumerate((pair.a, pair.b))]
            if wanted[0] <= held[0] and wanted[1] <= held[1]:
                return [boundary]
            if held[0] <= wanted[0] and held[1] <= wanted[1]:
                inside.append(held)
        if inside and all(set().union(*(held[s] for held in inside)) == wanted[s] for s in (0, 1)):
            return [(sorted(held[0]), sorted(held[1])) for held in inside]
        return [boundary] if self._is_matched_in_parts(boundary, matched) else []

    def _is_matched_in_parts(self, boundary: tuple[list[int], list[int]], matched: Sequence[Paired]) -> bool:
        """Tell whether a whole is matched with its parts through what only selects or assembles.

        Either each part is matched with a selection of the whole, or the whole with an assembly of the parts.
        """
        if 1 not in map(len, boundary) or len(boundary[0]) == len(boundary[1]):
            return False
        side = 0 if len(boundary[0]) == 1 else 1
        flow, other = self.flows[side], self.flows[1 - side]
        whole = flow.group[boundary[side][0]]
        parts = {other.group[t] for t in boundary[1 - side]}
        selections, assemblies = flow.selections(whole), other.assembled(parts)
        missing = set(parts)
        for pair in matched:
            ours, theirs = (pair.a, pair.b) if side == 0 else (pair.b, pair.a)
            held, held_there = {flow.group[t] for t in ours}, {other.group[t] for t in theirs}
            if held == {whole} and held_there <= assemblies - parts:
                return True
            if held <= selections:
                missing -= held_there
        return not missing

    def _is_respected(self, boundary: tuple[list[int], list[int]], regions: tuple[dict[int, int], ...]) -> bool:
        """Tell whether the operators behind a boundary are one region, apart from those beyond it."""
        brought: set[int] = set()
        own: set[int] = set()
        for side, flow in enumerate(self.flows):
            for group in {flow.group[t] for t in boundary[side]}:
                definers = flow.definers(group)
                own |= {self.segments[side][o] for o in definers}
                # A view that selects part of a joined result may be a region of its own, as movement.
                brought |= {regions[side][o] for o in definers if not flow.ops[o].free}
        for side, flow in enumerate(self.flows):
            for group in {flow.group[t] for t in boundary[side]}:
                for reader in flow.readers(group):
                    beyond = not flow.ops[reader].free and self.segments[side][reader] not in own
                    if beyond and regions[side][reader] in brought:
                        return False
        return len(brought) <= 1

    def _crossed(self, match: Match, wrong: Sequence[Paired], score: Score) -> None:
        """Add the regions whose operators of A and of B are between different boundaries."""
        blamed: tuple[set[int], set[int]] = (set(), set())
        for pair in wrong:
            for side, ids in enumerate((pair.a, pair.b)):
                for tensor in ids:
                    blamed[side].update(self.flows[side].definers(self.flows[side].group[tensor]))
        for region in match.regions:
            held = []
            for side, ops in enumerate((region.ops_a, region.ops_b)):
                held.append({self.segments[side][o] for o in ops if not self._idle(side, o)})
            held = [found & self._known_segments for found in held]
            explained = blamed[0] & set(region.ops_a) or blamed[1] & set(region.ops_b)
            if held[0] and held[1] and not held[0] & held[1] and not explained:
                score.wrong.append(
                    f"{self._text(0, region.ops_a)} | {self._text(1, region.ops_b)}: between different labels"
                )

    # ------------------------------------------------------------------------------------------------ sizes

    def _idle(self, side: int, op: int) -> bool:
        flow = self.flows[side]
        found = flow.ops[op]
        return found.free or (bool(found.writes) and all(t in flow.constant for t in found.writes))

    def _real(self, side: int, ops: Iterable[int]) -> int:
        return sum("assemble" not in self.flows[side].ops[o].flags for o in ops)

    def _text(self, side: int, ops: Sequence[int]) -> str:
        names = [self.flows[side].ops[o].name.removeprefix("aten::") for o in ops]
        return " ".join(names[:6]) + (f" … ({len(names)})" if len(names) > 6 else "")

    def _sizes(self, match: Match, score: Score) -> None:
        totals = [sum(side.seconds.values()) or 1.0 for side in self.sides]
        compute = [{o for o in f.ops if not self._idle(s, o)} for s, f in enumerate(self.flows)]
        sizes: list[float] = []
        several: list[int] = []
        left = [0.0, 0.0]
        covered = [0.0, 0.0]
        for region in match.regions:
            sides = (region.ops_a, region.ops_b)
            real = [self._real(side, ops) for side, ops in enumerate(sides)]
            if not any(real):
                continue
            score.regions += 1
            sizes.append(sum(real) / 2)
            score.largest_region = max(score.largest_region, *real)
            times = [sum(self.sides[s].seconds.get(o, 0.0) for o in ops) for s, ops in enumerate(sides)]
            busy = [
                sum(self.sides[s].seconds.get(o, 0.0) for o in ops if o in compute[s]) for s, ops in enumerate(sides)
            ]
            if not all(real):
                if self._has_partner(match, region):
                    left = [x + y for x, y in zip(left, busy, strict=True)]
                else:
                    score.one_sided += max(t / total for t, total in zip(busy, totals, strict=True))
                continue
            if min(real) > 1:
                several += real
            share = max(t / total for t, total in zip(times, totals, strict=True))
            score.largest_share = max(score.largest_share, share)
            single = any(sum(o in compute[s] for o in ops) <= 1 for s, ops in enumerate(sides))
            if share > COARSE and not single:
                text = f"{share:.0%}: {self._text(0, sides[0])} | {self._text(1, sides[1])}"
                if self._splits(match, region):
                    score.coarse.append(text)
                    left = [x + y for x, y in zip(left, busy, strict=True)]
                else:
                    score.irreducible.append(text)
                continue
            covered = [x + y for x, y in zip(covered, busy, strict=True)]
        score.mean_region = statistics.fmean(sizes) if sizes else 0.0
        score.several = several
        ratios = [c / (c + rest) if c + rest else 1.0 for c, rest in zip(covered, left, strict=True)]
        score.coverage = (ratios[0], ratios[1])

    def _inner(self, match: Match, side: int, ops: Iterable[int]) -> list[int]:
        """Groups that operators bring forth and that are not cut."""
        flow = self.flows[side]
        cut = {flow.group[t] for t in (match.cuts_a, match.cuts_b)[side]}
        written = {flow.group[t] for o in ops for t in flow.ops[o].writes if t not in flow.constant}
        return [g for g in sorted(written - cut) if flow.numel[g] >= SMALLEST and flow.dtype[g] != "bool"]

    def _splits(self, match: Match, region: Region) -> bool:
        """Tell whether some value inside a region that is not cut is on both sides, in any order of its elements."""
        inner = self._inner(match, 0, region.ops_a), self._inner(match, 1, region.ops_b)
        return any(self._shared(a, b) for a in inner[0] for b in inner[1])

    def _has_partner(self, match: Match, region: Region) -> bool:
        """Tell whether the other side computes some value of a one-sided region too, unmatched."""
        side = 0 if region.ops_a else 1
        others = self._inner(match, 1 - side, self.flows[1 - side].ops)
        for group in self._inner(match, side, (region.ops_a, region.ops_b)[side]):
            if any(self._shared(*((group, other) if side == 0 else (other, group))) for other in others):
                return True
        return False

    def _shared(self, a: int, b: int) -> bool:
        """Tell whether a group of A and one of B are the same value, or one is a slice of the other."""
        if (a, b) not in self._partners:
            self._partners[a, b] = self._compare(a, b)
        return self._partners[a, b]

    def _compare(self, a: int, b: int) -> bool:
        members = self.flows[0].members[a], self.flows[1].members[b]
        tolerance, noise = self.tolerance(*members)
        inputs = range(min(len(s.known) for s in self.sides))
        return all(
            _overlap(self.seen(0, which, members[0]), self.seen(1, which, members[1]), tolerance, noise)
            for which in inputs
        )


def _overlap(x: Sequence[Array], y: Sequence[Array], tolerance: float, noise: float) -> bool:
    if not x or not y or not varies(x[0]) or not varies(y[0]):
        return False
    if x[0].size == y[0].size:
        return agree(x, y, tolerance, noise) or (tolerance <= STRICT and same_elements(x, y, SORTED))
    whole, part = (x, y) if x[0].size > y[0].size else (y, x)
    pieces, rest = divmod(whole[0].size, part[0].size)
    return pieces <= MAX_PIECES and not rest and is_slice(whole, part, pieces, tolerance, noise)


def _brief(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids[:3])) + ("…" if len(ids) > 3 else "")


def as_json(score: Score) -> dict[str, Any]:
    """The figures under their names."""
    return {
        "ops_a": score.ops[0],
        "ops_b": score.ops[1],
        "regions": score.regions,
        "mean_region_ops": score.mean_region,
        "median_region_ops": score.median_region,
        "largest_region_ops": score.largest_region,
        "largest_share": score.largest_share,
        "labels": score.labels,
        "found": len(score.found),
        "wrong": score.wrong,
        "missing": score.missing,
        "f1": score.f1,
        "coverage_a": score.coverage[0],
        "coverage_b": score.coverage[1],
        "one_sided_share": score.one_sided,
        "coarse": score.coarse,
        "irreducible": score.irreducible,
        "control": score.control,
        "matched_beyond_inputs": score.beyond_inputs,
        "unchecked": score.unchecked,
        "pairs": score.pairs,
    }
