"""Which steps of two recordings are compared with which, and why the others are not."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from statistics import median

from magneton.analysis.align.tree import Interner, Node, freeze
from magneton.analysis.align.work import Side, Step
from magneton.schemas.errors import NotComparableError, UsageError
from magneton.schemas.kinds import StepKind, Unit

# A leading step that takes more than 1.25 times the median of the rest is warm-up. A last step that takes less than half was
# cut off.
WARMUP_FACTOR = 1.25
CUT_FACTOR = 0.5

# A capture without step marks is a window of a loop if it holds as many repetitions and nothing else.
MIN_REPETITIONS = 5

_Signature = tuple[object, ...]


@dataclass
class Stratum:
    """Steps of both sides that do the same kind of work and are averaged per side."""

    name: str
    a: list[Step]
    b: list[Step]


@dataclass
class Choice:
    """Which steps are compared, what one of them is called, and notes on what was left out."""

    strata: list[Stratum]
    unit: str
    notes: list[tuple[str, str]] = field(default_factory=list)


def usable_steps(side: Side, intern: Interner) -> list[Step]:
    """Freeze the steps of a side and return those with device work. A capture without steps is split into model calls."""
    for step in side.steps:
        freeze(step.tree, intern)
    steps = [step for step in side.steps if step.tree.device_ns > 0]
    if len(steps) == 1 and steps[0].row is None:
        return _model_calls(steps[0], intern)
    return steps


def _model_calls(step: Step, intern: Interner) -> list[Step]:
    """Split a capture whose top level repeats a sequence with a model call into one step per repetition.

    Only a repetition that contains a module call is a step. A single operator that runs twice may be the waste that the diff
    looks for.
    """
    children = step.tree.children
    kinds = [child.loose for child in children]
    count = len(kinds)
    for period in range(1, count // 2 + 1):
        if count % period or kinds != kinds[:period] * (count // period):
            continue
        if not any(c.kind == "module" and c.n_items > 1 for c in children[:period]):
            return [step]
        calls = []
        for start in range(0, count, period):
            tree = Node("step", "step", None, children[start].order, children=children[start : start + period])
            freeze(tree, intern)
            calls.append(Step(None, tree, host=step.host_of_part(start, start + period)))
        return calls
    return [step]


def same_loop(a: list[Step], b: list[Step], intern: Interner) -> tuple[list[Step], list[Step], tuple[str, str]] | None:
    """Split two captures of one loop without step marks into its repetitions.

    A capture that began later, or ended earlier, holds fewer repetitions of the same work. They are compared one by one and not
    by their sums. Example: 60 repetitions against 57 and a half. The half is left out.

    Returns:
        The repetitions of A and of B, and a note; None where the captures are no two windows of one loop (one of them holds other
        work too), or hold the same number of repetitions.
    """
    if len(a) != 1 or len(b) != 1 or a[0].row or b[0].row:
        return None
    names = [[_signature(child) for child in side[0].tree.children] for side in (a, b)]
    patterns = [_loop(found) for found in names]
    if patterns[0] is None or patterns[0] != patterns[1]:
        return None
    sides = [_repetitions(side[0], found, patterns[0], intern) for side, found in zip((a, b), names, strict=True)]
    if len(sides[0][0]) == len(sides[1][0]):
        return None
    text = "the captures hold a loop without step marks: " + "; ".join(
        f"{len(steps)} repetitions of side {letter}" + (f", {left / 1e6:.3f} ms of cut ones left out" if left else "")
        for letter, (steps, left) in zip("AB", sides, strict=True)
    )
    return sides[0][0], sides[1][0], ("repetitions_compared", f"{text}; one repetition is compared with one")


def _signature(node: Node) -> _Signature:
    return node.name, node.detail, node.shapes, node.loose


def _loop(names: list[_Signature]) -> list[_Signature] | None:
    """Return the body of the loop that a sequence is a window of, rotated to its first form; None where it is no such window."""
    count = len(names)
    for period in range(2, count // MIN_REPETITIONS + 1):
        if names[period] == names[0] and names[period:] == names[:-period]:
            return _first_rotation(names[:period])
    return None


def _first_rotation(pattern: list[_Signature]) -> list[_Signature]:
    """Return the rotation of a loop's body that does not depend on where the capture began."""
    texts = [repr(name[:3]) for name in pattern]
    count = Counter(texts)
    rarest = min(texts, key=lambda text: (count[text], text))
    starts = [at for at, text in enumerate(texts) if text == rarest]
    first = min(starts, key=lambda at: texts[at:] + texts[:at])
    return pattern[first:] + pattern[:first]


def _repetitions(
    step: Step, names: list[_Signature], pattern: list[_Signature], intern: Interner
) -> tuple[list[Step], float]:
    """Return the whole repetitions of a loop's body in a capture as steps, and the device time outside them, ns."""
    children, period = step.tree.children, len(pattern)
    found = []
    at = 0
    while at + period <= len(names):
        if names[at : at + period] != pattern:
            at += 1
            continue
        tree = Node("step", "step", None, children[at].order, children=children[at : at + period])
        freeze(tree, intern)
        found.append(Step(None, tree, host=step.host_of_part(at, at + period)))
        at += period
    return found, step.tree.device_ns - sum(repetition.tree.device_ns for repetition in found)


def choose_steps(a: list[Step], b: list[Step], *, skip: int | None = None, all_steps: bool = False) -> Choice:
    """Choose the steps to compare.

    Serving steps are compared in strata: steps with the same phase, number of requests and number of prompt tokens. In other
    recordings two kinds of steps are left out: leading steps that take clearly longer than the rest (warm-up), and a last
    step that was cut off.

    Args:
        a: usable steps of side A.
        b: usable steps of side B.
        skip: leave out this many leading steps on each side, instead of judging by time.
        all_steps: leave none out.

    Raises:
        NotComparableError: a side has no device work, or the serving steps have nothing in common.
        UsageError: ``skip`` leaves nothing.
    """
    for side, steps in (("A", a), ("B", b)):
        if not steps:
            raise NotComparableError(
                f"side {side} has no operator or device activity to compare",
                remedy="check the trace with `magneton info`",
            )
    if all(step.row and step.row["kind"] == StepKind.SERVING_STEP for step in (*a, *b)):
        return _serving(a, b)
    notes: list[tuple[str, str]] = []
    kept: list[list[Step]] = []
    for side, steps in (("A", a), ("B", b)):
        if skip is not None:
            if skip >= len(steps):
                raise UsageError(f"skipping {skip} steps leaves none of the {len(steps)} of side {side}")
            kept.append(steps[skip:])
        else:
            kept.append(steps if all_steps else _steady(steps, side, notes))
    stepped = [bool(steps[0].row) for steps in kept]
    unit = Unit.STEP if all(stepped) else Unit.CALL if max(len(s) for s in kept) > 1 else Unit.CAPTURE
    if stepped[0] != stepped[1]:
        notes.append(
            ("steps_on_one_side", "only one side marks its steps; the other is taken as one step per model call")
        )
    return Choice([Stratum(unit, kept[0], kept[1])], unit, notes)


def _steady(steps: list[Step], side: str, notes: list[tuple[str, str]]) -> list[Step]:
    kept = list(steps)
    while len(kept) >= 3 and len(kept) > len(steps) / 2:
        rest = median(step.tree.device_ns for step in kept[1:])
        if kept[0].tree.device_ns <= WARMUP_FACTOR * rest:
            break
        kept = kept[1:]
    if len(kept) < len(steps):
        names = ", ".join(step.name for step in steps[: len(steps) - len(kept)])
        notes.append(
            ("warmup_dropped", f"side {side}: {names} left out as warm-up (over 1.25 x the median of the rest)")
        )
    if len(kept) >= 3 and kept[-1].tree.device_ns < CUT_FACTOR * median(s.tree.device_ns for s in kept[:-1]):
        notes.append(("last_step_dropped", f"side {side}: {kept[-1].name} left out, it looks cut off"))
        kept = kept[:-1]
    return kept


def _serving(a: list[Step], b: list[Step]) -> Choice:
    groups: dict[tuple[object, ...], tuple[list[Step], list[Step]]] = defaultdict(lambda: ([], []))
    for index, steps in enumerate((a, b)):
        for step in steps:
            groups[_load(step)][index].append(step)
    strata = [Stratum(_load_name(key), both[0], both[1]) for key, both in groups.items() if both[0] and both[1]]
    left = [
        (_load_name(key), "A" if both[0] else "B", len(both[0] or both[1]))
        for key, both in groups.items()
        if not (both[0] and both[1])
    ]
    if not strata:
        only = {side: ", ".join(sorted({name for name, s, _ in left if s == side})) for side in "AB"}
        raise NotComparableError(
            f"the serving steps have no load in common: A ran {only['A']}; B ran {only['B']}",
            remedy="record both under the same load",
        )
    notes = [
        ("unmatched_load", f"side {side}: {count} step(s) of {name} have no counterpart and are left out")
        for name, side, count in left
    ]
    strata.sort(key=lambda s: s.name)
    return Choice(strata, Unit.STEP, notes)


def _load(step: Step) -> tuple[object, ...]:
    row = step.row or {}
    return tuple(row.get(k) for k in ("phase", "context_requests", "context_tokens", "generation_requests"))


def _load_name(key: tuple[object, ...]) -> str:
    phase, requests, tokens, generating = key
    parts = [str(phase or "step")]
    if requests:
        parts.append(f"{requests} prompt(s) of {tokens} tokens" if tokens else f"{requests} prompt(s)")
    if generating:
        parts.append(f"{generating} decoding")
    return " ".join([parts[0], *([f"({', '.join(parts[1:])})"] if parts[1:] else [])])
