"""Energy by span, phase, token and request. It is known even where kernels cannot be told apart.

The energy of a span is the energy of its device over the time of the span, idle time included.
Where spans overlap, each instant is divided equally among them. So a sum over spans never exceeds what the device used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from magneton.analysis.energy.measure.power import PowerCurve, cut
from magneton.analysis.energy.measure.result import Window
from magneton.schemas.kinds import EnergyLabel

PREFILL, DECODE, MIXED = "prefill", "decode", "mixed"
BASIS = "annotation window"


@dataclass(frozen=True)
class Span:
    """A stretch of time with a name: an annotation, a step, a request.

    Attributes:
        name: name, or id of the row it comes from.
        window: when.
        phase: ``prefill``, ``decode`` or ``mixed``, where it is a step of a server.
    """

    name: str
    window: Window
    phase: str | None = None


@dataclass(frozen=True)
class SpanEnergies:
    """Energy of spans.

    Attributes:
        energy_j: of each span, J, in their order; None where no power is known in it.
        covered: share of each span in which power is known.
        total_j: energy of the time that any of them covers, J; what ``energy_j`` sums to.
    """

    energy_j: tuple[float | None, ...]
    covered: tuple[float, ...]
    total_j: float | None


def span_energies(spans: Sequence[Span], curve: PowerCurve) -> SpanEnergies:
    """Return the energy of each span; see the module on overlaps."""
    if not spans:
        return SpanEnergies((), (), None)
    start = np.array([s.window.start_ns for s in spans], dtype=np.int64)
    end = np.array([s.window.end_ns for s in spans], dtype=np.int64)
    grid = cut(curve, Window(int(start.min()), int(end.max())), np.concatenate([start, end]))
    first, last = np.searchsorted(grid.t_ns, start), np.searchsorted(grid.t_ns, end)
    change = np.zeros(len(grid.t_ns))
    np.add.at(change, first, 1.0)
    np.add.at(change, last, -1.0)
    running = np.cumsum(change)[:-1]
    shared = np.divide(grid.joules, running, out=np.zeros_like(grid.joules), where=running > 0)
    values: list[float | None] = []
    covered: list[float] = []
    for a, b, window in zip(first.tolist(), last.tolist(), (s.window for s in spans), strict=True):
        seconds = float(grid.seconds[a:b].sum())
        covered.append(seconds / (window.length_ns / 1e9) if window.length_ns else 0.0)
        values.append(math.fsum(shared[a:b].tolist()) if seconds > 0 else None)
    known = [v for v in values if v is not None]
    return SpanEnergies(tuple(values), tuple(covered), math.fsum(known) if known else None)


@dataclass(frozen=True)
class Request:
    """One request of a server and its tokens."""

    id: str
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class ServingEnergy:
    """Energy of serving, by phase, token and request. The name of a number per token says which phases it includes.

    Attributes:
        prefill_j: energy of the prefill steps; None where there were none.
        decode_j: of the decode steps.
        mixed_j: of steps that did both; it is not divided.
        total_j: of all steps.
        j_per_prompt_token: prefill over prompt tokens; None with mixed steps.
        j_per_output_token_decode_only: decode over output tokens; None with mixed steps.
        j_per_output_token_all: everything over output tokens.
        per_request_j: for each request, its share by phase: prefill by prompt tokens, the rest by output tokens (mixed steps
            by both).
        label: ``apportioned``: tokens are not measured one by one.
    """

    prefill_j: float | None
    decode_j: float | None
    mixed_j: float | None
    total_j: float | None
    j_per_prompt_token: float | None
    j_per_output_token_decode_only: float | None
    j_per_output_token_all: float | None
    per_request_j: Mapping[str, Mapping[str, float]]
    label: str = EnergyLabel.APPORTIONED
    energy_basis: str = BASIS


def serving_energy(steps: Sequence[Span], requests: Sequence[Request], curve: PowerCurve) -> ServingEnergy:
    """Return the energy of serving from its steps.

    Args:
        steps: the server's steps, each with its phase; others are left out.
        requests: the requests that these steps served.
        curve: power of the device.
    """
    mine = [s for s in steps if s.phase in (PREFILL, DECODE, MIXED)]
    found = span_energies(mine, curve)
    by_phase: dict[str, float | None] = {}
    for phase in (PREFILL, DECODE, MIXED):
        values = [v for s, v in zip(mine, found.energy_j, strict=True) if s.phase == phase]
        unknown = not values or any(v is None for v in values)
        by_phase[phase] = None if unknown else math.fsum(v for v in values if v is not None)
    phases = {s.phase for s in mine}
    whole = bool(mine) and all(by_phase[p] is not None for p in phases if p is not None)
    total = found.total_j if whole else None
    prompt, output = sum(r.prompt_tokens for r in requests), sum(r.output_tokens for r in requests)
    alone = MIXED not in phases
    weights = {
        PREFILL: {r.id: r.prompt_tokens for r in requests},
        DECODE: {r.id: r.output_tokens for r in requests},
        MIXED: {r.id: r.prompt_tokens + r.output_tokens for r in requests},
    }
    shares: dict[str, dict[str, float]] = {r.id: {} for r in requests}
    for phase, energy in by_phase.items():
        if energy is not None:
            for name, value in share_by_weight(energy, weights[phase]).items():
                shares[name][phase] = value
    return ServingEnergy(
        prefill_j=by_phase[PREFILL],
        decode_j=by_phase[DECODE],
        mixed_j=by_phase[MIXED],
        total_j=total,
        j_per_prompt_token=_per(by_phase[PREFILL] if alone else None, prompt),
        j_per_output_token_decode_only=_per(by_phase[DECODE] if alone else None, output),
        j_per_output_token_all=_per(total, output),
        per_request_j=shares,
    )


def _per(energy: float | None, count: int) -> float | None:
    return None if energy is None or count <= 0 else energy / count


def share_by_weight(energy_j: float, weights: Mapping[str, float]) -> dict[str, float]:
    """Share an energy out by weight; nothing is shared where all weights are 0."""
    total = math.fsum(weights.values())
    return {name: energy_j * weight / total for name, weight in weights.items()} if total > 0 else {}
