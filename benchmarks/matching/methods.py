"""What is compared: the matcher at a tolerance, each part of it switched off, the published algorithm."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from benchmarks.matching.capture import Captured
from benchmarks.matching.dominator import dominator_match
from benchmarks.matching.metric import Score, Truth
from magneton.analysis.values.graph import ValueGraph, from_tables
from magneton.analysis.values.match import MatchSettings, ValueMatch, match_values

DEFAULT_TOLERANCE = MatchSettings().tolerance
# The published algorithm compares singular values, not elements; its authors do not say how closely.
SPECTRAL_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Method:
    """A way to match two captured sides."""

    name: str
    tolerance: float
    run: Callable[[Truth, ValueGraph, ValueGraph], ValueMatch]


@dataclass(frozen=True)
class Result:
    """One row: a pair matched by a method. ``seconds`` is of matching alone; ``nbytes`` of both value tables."""

    pair: str
    method: str
    tolerance: float
    score: Score
    seconds: float
    nbytes: int


def _matcher(name: str, settings: MatchSettings) -> Method:
    def run(_: Truth, a: ValueGraph, b: ValueGraph) -> ValueMatch:
        return match_values(a, b, settings)

    return Method(name, settings.tolerance, run)


def _published(name: str, kind: str) -> Method:
    def run(truth: Truth, _a: ValueGraph, _b: ValueGraph) -> ValueMatch:
        return dominator_match(truth, kind, SPECTRAL_TOLERANCE)

    return Method(name, SPECTRAL_TOLERANCE, run)


def ours(tolerance: float) -> Method:
    """The matcher as it is."""
    return _matcher("magneton", MatchSettings(tolerance=tolerance))


def ablations(tolerance: float) -> list[Method]:
    """The matcher without each of its parts."""
    parts = [field.name for field in fields(MatchSettings) if field.default is True]
    return [
        _matcher(f"without {part.replace('_', ' ')}", replace(MatchSettings(tolerance=tolerance), **{part: False}))
        for part in parts
    ]


def baselines() -> list[Method]:
    """The published algorithm, with its two notions of equivalent tensors."""
    return [
        _published("dominators, singular values", "singular"),
        _published("dominators, mean and std", "moments"),
    ]


def methods(tolerances: Sequence[float], everything: bool) -> list[Method]:
    """All that is asked for: the matcher at each tolerance, and, with ``everything``, what it is compared with."""
    chosen = [ours(tolerance) for tolerance in tolerances]
    if everything:
        chosen += [*ablations(DEFAULT_TOLERANCE), *baselines()]
    return chosen


def graph_of(side: Captured) -> ValueGraph:
    """The matcher's view of a side, from its tables alone."""
    return from_tables(side.ops, side.tensors, side.uses, side.second)


def apply(name: str, a: Captured, b: Captured, truth: Truth, method: Method) -> Result:
    """Match a pair by a method and score it."""
    graphs = graph_of(a), graph_of(b)
    start = time.perf_counter()
    match = method.run(truth, *graphs)
    seconds = time.perf_counter() - start
    return Result(name, method.name, method.tolerance, truth.score(match), seconds, a.nbytes + b.nbytes)
