"""Values that consist of parts of any length, on small programs whose right answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.value_programs import Program

from magneton.analysis.values.match import MatchSettings, ValueMatch, match_values
from magneton.analysis.values.signed import _counts
from magneton.schemas.kinds import Evidence

RNG = np.random.default_rng(11)
WEIGHT, SECOND = (RNG.standard_normal((48, 48)).astype(np.float32) / 7 for _ in range(2))
TOKENS = RNG.standard_normal((64, 48)).astype(np.float32)
AGAIN = RNG.standard_normal((64, 48)).astype(np.float32)
OTHER = RNG.standard_normal((64, 48)).astype(np.float32)


def mm(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return x @ w


def two_products(
    rows: list[np.ndarray], precision: str = "float32", second: bool = True
) -> tuple[Program, list[list[int]]]:
    """Two products and a tanh between them, on some rows at a time: the program, and the inputs and the values of each step."""
    p = Program(precision, second)
    weights = p.parameter(WEIGHT), p.parameter(SECOND)
    made: list[list[int]] = [[], [], [], []]
    for which in rows:
        made[0].append(p.input(TOKENS[which], AGAIN[which]))
        made[1].append(p.op("aten::mm", mm, [made[0][-1], weights[0]]))
        made[2].append(p.op("aten::tanh", np.tanh, [made[1][-1]]))
        made[3].append(p.op("aten::mm", mm, [made[2][-1], weights[1]]))
    return p, made


def matched(match: ValueMatch) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    return {(u.a, u.b) for u in match.unions}


def expected(a: list[list[int]], b: list[list[int]]) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    return {(tuple(x), tuple(y)) for x, y in zip(a, b, strict=True)}


EVERY = np.arange(64)
SHUFFLED = np.random.default_rng(3).permutation(64)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([EVERY], [EVERY[:32], EVERY[32:]]),
        ([EVERY], [EVERY[:37], EVERY[37:]]),
        ([EVERY], [EVERY[:1], EVERY[1:]]),
        ([EVERY[:20]], [EVERY[i : i + 1] for i in range(20)]),
        ([EVERY[:20]], [EVERY[i : i + 10] for i in (0, 10)]),
        ([EVERY[:37], EVERY[37:]], [EVERY[:32], EVERY[32:]]),
        ([EVERY[:37], EVERY[37:]], [EVERY[:20], EVERY[20:50], EVERY[50:]]),
        ([EVERY[:33], EVERY[33:]], [EVERY[:32], EVERY[32:]]),
    ],
    ids=["32+32", "37+27", "1+63", "20x1", "10+10", "37+27 32+32", "37+27 20+30+14", "33+31 32+32"],
)
@pytest.mark.parametrize("turned", [False, True])
def test_parts_of_any_length_are_found(a: list[np.ndarray], b: list[np.ndarray], turned: bool) -> None:
    (p, left), (q, right) = (two_products(rows) for rows in ((b, a) if turned else (a, b)))
    match = match_values(p.graph(), q.graph())
    assert matched(match) == expected(left, right)
    assert all(u.evidence == (Evidence.UNION,) for u in match.unions)
    assert [(len(r.ops_a), len(r.ops_b)) for r in match.regions] == [(len(left[0]), len(right[0]))] * 3


def test_rows_in_another_order_are_found() -> None:
    (p, left), (q, right) = two_products([EVERY]), two_products([SHUFFLED])
    assert matched(match_values(p.graph(), q.graph())) == expected(left, right)


def test_single_rows_of_low_precision_match_by_many_numbers_or_not_at_all() -> None:
    rows = [EVERY[i : i + 1] for i in range(20)]
    (p, left), (q, right) = two_products([EVERY[:20]], "bfloat16"), two_products(rows, "bfloat16")
    found = matched(match_values(p.graph(), q.graph()))
    assert found == expected(left, right)
    (p, left), (q, right) = (
        two_products([EVERY], "bfloat16", False),
        two_products([EVERY[:1], EVERY[1:2], EVERY[2:]], "bfloat16", False),
    )
    # Without a second input a single row may say too little. Then the long part is found alone, and nothing is wrong.
    right_answer = dict(expected(left, right))
    for whole, parts in matched(match_values(p.graph(), q.graph())):
        assert set(parts) <= set(right_answer[whole])
        assert right_answer[whole][2] in parts


def test_other_values_are_no_parts() -> None:
    p, _ = two_products([EVERY])
    q = Program()
    weights = q.parameter(WEIGHT), q.parameter(SECOND)
    for rows in (OTHER[:37], OTHER[37:]):
        q.op(
            "aten::mm",
            mm,
            [q.op("aten::tanh", np.tanh, [q.op("aten::mm", mm, [q.input(rows, rows), weights[0]])]), weights[1]],
        )
    assert match_values(p.graph(), q.graph()).unions == ()


def test_what_is_the_same_on_the_first_input_only_is_no_part() -> None:
    p, _ = two_products([EVERY])
    q = Program()
    weight = q.parameter(WEIGHT)
    for rows in (slice(0, 37), slice(37, 64)):
        q.op("aten::mm", mm, [q.input(TOKENS[rows], OTHER[rows]), weight])
    assert match_values(p.graph(), q.graph()).unions == ()


def test_columns_of_a_product_over_ranks() -> None:
    p, q = Program(), Program()
    whole = p.op("aten::mm", mm, [p.input(TOKENS, AGAIN), p.parameter(WEIGHT)])
    x = q.input(TOKENS, AGAIN)
    order = np.arange(48).reshape(3, 2, 8).transpose(1, 0, 2).reshape(2, 24)
    parts = tuple(q.op("aten::mm", mm, [x, q.parameter(WEIGHT[:, columns])]) for columns in order)
    assert matched(match_values(p.graph(), q.graph())) == {((whole,), parts)}


def test_padding_is_said() -> None:
    def padded(x: np.ndarray) -> np.ndarray:
        return np.concatenate([np.tile(x[:1] + 1, (8, 1)), x[:56]])

    p, q = Program(), two_products([EVERY[:56]])[0]
    weight = p.parameter(WEIGHT)
    p.op("aten::mm", mm, [p.input(padded(TOKENS), padded(AGAIN)), weight])
    found = match_values(p.graph(), q.graph()).unions
    assert [u.evidence for u in found] == [(Evidence.UNION, Evidence.PARTIAL)] * 2  # the input and the product


def test_values_that_differ_in_some_rows_are_not_the_same() -> None:
    """No rows have moved, so what differs is no padding: the second half of the program's work is another one."""
    p, q = two_products([EVERY])[0], Program()
    changed, again = (np.concatenate([x[:40], OTHER[40:]]) for x in (TOKENS, AGAIN))
    q.op("aten::mm", mm, [q.input(changed, again), q.parameter(WEIGHT)])
    assert match_values(p.graph(), q.graph()).unions == ()


def test_recordings_without_signatures_are_matched_as_before() -> None:
    (p, _), (q, _) = two_products([EVERY]), two_products([EVERY[:37], EVERY[37:]])
    for value in (v for program in (p, q) for v in (*program.values, *program.again)):
        value.signatures = []
    assert match_values(p.graph(), q.graph()).unions == ()
    assert match_values(p.graph(), q.graph(), MatchSettings(unions=False)).unions == ()


def test_sums_of_a_mask_are_no_evidence() -> None:
    """Sums of zeros and ones agree by accident; sums of other numbers do not."""
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], (256, 4))
    mask = (rng.random((128, 256)) < 0.9) / 0.9
    assert _counts((mask @ signs).astype(np.float32))
    assert not _counts((rng.normal(size=(128, 256)) @ signs).astype(np.float32))
