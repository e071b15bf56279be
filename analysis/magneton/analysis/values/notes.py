"""What must be said of a comparison by value: how sure it is, random numbers, NaN, and compiled code that was looked into eagerly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from magneton.analysis.values.graph import MIN_NUMEL
from magneton.analysis.values.join import ValueSide
from magneton.analysis.values.match import ValueMatch
from magneton.schemas.documents.diff import Note
from magneton.schemas.kinds import OpFlag

_NAMES_SHOWN = 3


def value_notes(sides: tuple[ValueSide, ValueSide], match: ValueMatch) -> list[Note]:
    """Return the notes on a comparison by value.

    Args:
        sides: captures of values of A and B.
        match: what corresponds in them.
    """
    return [*_second_input(sides, match), *_random(sides, match), *_nan(sides), *_compiled(sides)]


def _second_input(sides: tuple[ValueSide, ValueSide], match: ValueMatch) -> list[Note]:
    if match.second_input:
        return []
    found = []
    for letter, side in zip("AB", sides, strict=True):
        lost = side.graph.lost_second
        if lost is not None:
            text = (
                f"side {letter}: the second input is not used, because the program defined {lost[1]} values on it and "
                f"{lost[0]} on the first: which operators run depends on the data"
                if lost[0] != lost[1]
                else f"side {letter}: the second input is not used, because the program defined other values on it than on "
                "the first: what runs depends on the data"
            )
            found.append(Note("second_input_lost", text))
    text = "values were compared on one input only, without a second input; some may agree by accident"
    return [*found, Note("no_second_input", text)]


def _random(sides: tuple[ValueSide, ValueSide], match: ValueMatch) -> list[Note]:
    """Say which sides draw random numbers that the other side did not draw."""
    drawn = [_differing_draws(side, cuts) for side, cuts in zip(sides, (match.cuts_a, match.cuts_b), strict=True)]
    if not any(drawn):
        return []
    if drawn[0] == drawn[1]:
        who = f"the program draws random numbers ({_listed(drawn[0])}), other ones on either side"
    else:
        who = " and ".join(
            f"side {letter} draws random numbers ({_listed(names)})"
            for letter, names in zip("AB", drawn, strict=True)
            if names
        )
        who += ", and the other side did not draw the same"
    text = f"{who}: without a common seed the values computed from them differ, and their operators are matched by structure"
    return [Note("random_numbers", text)]


def _differing_draws(side: ValueSide, cuts: frozenset[int]) -> Counter[str]:
    """Return the operators whose random numbers have no counterpart."""
    values = side.graph.values
    names: Counter[str] = Counter()
    for operator, row in zip(side.graph.operators, side.rows, strict=True):
        drawn = [v for v in operator.writes if values.numel[v] >= MIN_NUMEL]
        if OpFlag.RANDOM in _flags(row) and drawn and not any(int(values.tensor_id[v]) in cuts for v in drawn):
            names[operator.name] += 1
    return names


def _nan(sides: tuple[ValueSide, ValueSide]) -> list[Note]:
    """Say where the first NaN appears on each side."""
    found = []
    for letter, side in zip("AB", sides, strict=True):
        values, graph = side.graph.values, side.graph
        holed = [v for v in range(len(values)) if values.holes[v][0] > 0]
        if not holed:
            continue
        makers = sorted(min(graph.producers[v]) for v in holed if graph.producers[v])
        given = [v for v in holed if not graph.producers[v]]
        where = "inputs or parameters" if given else f"the result of {graph.operators[makers[0]].name}"
        number = f"{len(holed)} of {len(values)} values hold NaN" if len(holed) > 1 else "one value holds NaN"
        found.append(Note("nan_values", f"side {letter}: {number}, first {where}"))
    return found


def _compiled(sides: tuple[ValueSide, ValueSide]) -> list[Note]:
    found = []
    for letter, side in zip("AB", sides, strict=True):
        count = sum(OpFlag.COMPILED in _flags(row) for row in side.rows)
        if count:
            text = (
                f"side {letter}: {count} operators of the capture of values lie under torch.compile; they were looked into "
                "eagerly, while the profile times the compiled code"
            )
            found.append(Note("compiled_seen_eagerly", text))
    return found


def _flags(row: dict[str, object]) -> list[str]:
    return str(row["flags"] or "").split()


def _listed(names: Counter[str]) -> str:
    ordered: Iterable[str] = sorted(names, key=lambda name: (-names[name], name))
    parts = [name if names[name] == 1 else f"{name} x{names[name]}" for name in ordered]
    more = len(parts) - _NAMES_SHOWN
    return ", ".join(parts[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
