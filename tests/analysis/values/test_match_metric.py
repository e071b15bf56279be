"""The metric of the match benchmark, on dataflows written down by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks.matching.dominator import dominator_match
from benchmarks.matching.flow import Flow, Op, pair_boundaries, segments
from benchmarks.matching.metric import Side, Truth
from benchmarks.matching.raw_values import (
    Array,
    agree,
    distance,
    is_concatenation,
    is_slice,
    same_elements,
    same_slices,
    varies,
)

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(6, 8)), RANDOM.normal(size=(6, 8))


# ---------------------------------------------------------------------------------------------------- values


def test_a_value_agrees_with_itself_in_another_layout_only() -> None:
    assert agree([X], [X], 1e-6)
    assert agree([X], [X.T.copy()], 1e-6)
    assert agree([X], [X.reshape(2, 3, 8)], 1e-6)
    assert agree([X.reshape(2, 3, 2, 4)], [X.reshape(2, 3, 2, 4).transpose(2, 0, 3, 1).copy()], 1e-6)
    for other in (X[::-1], X[:, ::-1], np.sort(X, axis=None).reshape(X.shape), 2 * X.mean() - X, X + 1e-2, Y):
        assert not agree([X], [np.ascontiguousarray(other)], 1e-4)
    assert same_elements([X], [X[::-1].copy()], 1e-6)
    assert not same_elements([X], [Y], 1e-5)


def test_any_arrangement_seen_may_agree() -> None:
    heads = X.reshape(6, 2, 4).transpose(1, 0, 2).copy()
    assert not agree([X], [heads], 1e-6)
    assert agree([X, X.reshape(6, 2, 4)], [heads], 1e-6)


def test_distance_is_of_what_varies() -> None:
    offset = 1e4 + X
    assert distance(offset, offset + 1e-4 * Y) < 1e-3
    assert distance(offset, 1e4 + Y) > 0.5
    assert distance(np.zeros(4), np.zeros(4)) == 0
    assert distance(np.zeros(4), np.ones(4)) == np.inf


def test_holes_must_be_in_the_same_places() -> None:
    masked = X.copy()
    masked[0] = -np.inf
    limit = X.copy()
    limit[0] = np.finfo(np.float32).min
    other = X.copy()
    other[1] = -np.inf
    assert distance(masked, limit) == 0
    assert distance(masked, other) == np.inf
    assert distance(masked, -masked) == np.inf
    assert distance(masked, X) == np.inf


def test_concatenations_are_recognised_along_any_axis() -> None:
    assert is_concatenation([np.concatenate([X, Y])], [[X], [Y]], 1e-6)
    assert is_concatenation([np.concatenate([X, Y], axis=1)], [[X], [Y]], 1e-6)
    assert is_concatenation([np.stack([X, Y])], [[X], [Y]], 1e-6)
    assert is_concatenation([np.stack([X, X])], [[X], [X]], 1e-6)
    assert not is_concatenation([np.stack([X, Y])], [[Y], [X]], 1e-6)
    assert not is_concatenation([np.stack([X, Y])], [[X], [X]], 1e-6)
    assert not is_concatenation([X], [[X], [Y]], 1e-6)
    assert is_slice([np.stack([X, Y])], [Y], 2, 1e-6)
    assert not is_slice([np.stack([X, X])], [Y], 2, 1e-6)


def test_slices_are_recognised_along_any_axis() -> None:
    for axis in range(3):
        assert is_slice([np.stack([X, Y], axis)], [Y], 2, 1e-6)
        assert is_slice([np.stack([X, Y], axis)], [Y.T.copy()], 2, 1e-6)
    for pieces in (2, 3, 6):
        assert is_slice([X], [np.split(X, pieces)[-1]], pieces, 1e-6)
    for pieces in (2, 4, 8):
        assert is_slice([X], [np.split(X, pieces, 1)[-1]], pieces, 1e-6)
    # Equal pieces, and one after the other: not any half of the elements.
    assert not is_slice([X], [X[::2].copy()], 2, 1e-6)
    assert not is_slice([X], [X[1:4].copy()], 2, 1e-6)
    assert not is_slice([X], [np.split(X, 2, 1)[0]], 4, 1e-6)


def test_what_varies_has_elements_that_differ() -> None:
    assert varies(X)
    assert varies(np.array([0.0, -np.inf]))
    assert not any(varies(np.full(4, fill)) for fill in (0.0, 3.0, -np.inf, np.nan))
    assert not varies(np.zeros(0))


# ---------------------------------------------------------------------------------------------------- labels


def flow(*calls: tuple[str, list[int], list[int], str], parameters: tuple[int, ...] = ()) -> Flow:
    """A dataflow of calls ``(name, reads, writes, flags)``; tensors read before they are written are inputs."""
    tensors = sorted({t for _, reads, writes, _ in calls for t in (*reads, *writes)} | set(parameters))
    written = {t for _, _, writes, _ in calls for t in writes}
    role = {t: "parameter" if t in parameters else None if t in written else "input" for t in tensors}
    return Flow(
        ops={
            n: Op(n, name, tuple(reads), tuple(writes), frozenset(flags.split()))
            for n, (name, reads, writes, flags) in enumerate(calls)
        },
        constant=set(parameters),
        precision=dict.fromkeys(tensors, "float32"),
        numel=dict.fromkeys(tensors, 48),
        role=role,
        dtype=dict.fromkeys(tensors, "float32"),
    )


def value(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(6, 8))


def side(dataflow: Flow, labels: dict[str, list[int]], values: dict[int, int]) -> Side:
    """A side whose tensor ``t`` holds the random value ``values[t]``."""
    return Side(dataflow, labels, [{t: [value(v)] for t, v in values.items()}], dict.fromkeys(dataflow.ops, 1.0))


def match(
    regions: list[tuple[list[int], list[int]]], pairs: list[tuple[list[int], list[int]]], unions: Any = ()
) -> Any:
    both = [*pairs, *unions]
    return SimpleNamespace(
        regions=[SimpleNamespace(ops_a=a, ops_b=b) for a, b in regions],
        pairs=[SimpleNamespace(a=a, b=b) for a, b in pairs],
        unions=[SimpleNamespace(a=a, b=b) for a, b in unions],
        cuts_a={t for a, _ in both for t in a},
        cuts_b={t for _, b in both for t in b},
    )


# A: two operators make "middle", one makes "end". B: one and two.
A = flow(("f", [0], [1], ""), ("g", [1], [2], ""), ("h", [2], [3], ""))
B = flow(("fg", [0], [1], ""), ("h1", [1], [2], ""), ("h2", [2], [3], ""))
LEFT = side(A, {"middle": [2], "end": [3]}, {0: 0, 1: 1, 2: 2, 3: 3})
RIGHT = side(B, {"middle": [1], "end": [3]}, {0: 0, 1: 2, 2: 7, 3: 3})
RIGHT_MATCH = match([([0, 1], [0]), ([2], [1, 2])], [([2], [1]), ([3], [3])])


def test_the_right_match_scores_one() -> None:
    score = Truth(LEFT, RIGHT).score(RIGHT_MATCH)
    assert (sorted(score.found), score.missing, score.wrong, score.f1) == (["end", "middle"], [], [], 1.0)
    assert score.coverage == (1.0, 1.0)
    assert (score.regions, score.largest_region, score.mean_region) == (2, 2, 1.5)
    assert score.largest_share == pytest.approx(2 / 3)
    # Both have one operator on one side.
    assert score.coarse == score.irreducible == []


def test_rotated_labels_score_nothing() -> None:
    rotated = Side(B, {"middle": [3], "end": [1]}, RIGHT.known, RIGHT.seconds)
    score = Truth(LEFT, rotated).score(RIGHT_MATCH)
    assert score.found == []
    assert score.f1 == 0
    assert len(score.wrong) == 2
    assert "is not" in score.wrong[0]


def test_a_match_left_out_is_missing() -> None:
    score = Truth(LEFT, RIGHT).score(match([([0, 1, 2], [0, 1, 2])], [([3], [3])]))
    assert (score.found, score.missing, score.wrong) == (["end"], ["middle"], [])
    assert score.f1 == pytest.approx(2 / 3)
    # The region could be split, by the oracle's word.
    assert len(score.coarse) == 1
    assert score.coverage == (0.0, 0.0)


def test_a_boundary_inside_a_region_is_missing_though_its_tensors_match() -> None:
    score = Truth(LEFT, RIGHT).score(match([([0, 1, 2], [0, 1, 2])], [([2], [1]), ([3], [3])]))
    assert (score.found, score.missing) == (["end"], ["middle"])


def test_sides_of_a_boundary_in_two_regions_are_missing() -> None:
    apart = match([([0, 1], []), ([], [0]), ([2], [1, 2])], [([2], [1]), ([3], [3])])
    assert Truth(LEFT, RIGHT).score(apart).missing == ["middle"]


def test_values_that_differ_are_wrong() -> None:
    score = Truth(LEFT, RIGHT).score(match([([0, 1], [0]), ([2], [1, 2])], [([2], [1]), ([3], [3]), ([1], [2])]))
    assert len(score.wrong) == 1
    assert "values differ" in score.wrong[0]
    assert score.f1 == pytest.approx(4 / 5)


def test_the_second_input_counts() -> None:
    sides = [Side(s.flow, s.labels, [*s.known, dict(s.known[0])], s.seconds) for s in (LEFT, RIGHT)]
    assert Truth(*sides).score(RIGHT_MATCH).wrong == []
    sides[1].known[1][1] = [value(99)]
    assert len(Truth(*sides).score(RIGHT_MATCH).wrong) == 1


def test_a_region_between_different_labels_is_wrong() -> None:
    crossed = match([([0, 1], [1, 2]), ([2], [0])], [])
    score = Truth(LEFT, RIGHT).score(crossed)
    assert len(score.wrong) == 2
    assert "between different labels" in score.wrong[0]


def test_an_irreducible_region_is_left_out_of_coverage() -> None:
    a = flow(("f", [0], [1], ""), ("g", [1], [2], ""))
    b = flow(("k", [0], [1], ""), ("l", [1], [2], ""))
    sides = side(a, {"end": [2]}, {0: 0, 1: 1, 2: 2}), side(b, {"end": [2]}, {0: 0, 1: 5, 2: 2})
    whole = match([([0, 1], [0, 1])], [([2], [2])])
    score = Truth(*sides).score(whole)
    assert (len(score.irreducible), score.coarse, score.coverage) == (1, [], (1.0, 1.0))
    shared = side(b, {"end": [2]}, {0: 0, 1: 1, 2: 2})
    score = Truth(sides[0], shared).score(whole)
    assert (score.irreducible, len(score.coarse), score.coverage) == ([], 1, (0.0, 0.0))


@pytest.mark.parametrize(
    ("shape", "axis"), [((10, 32), 0), ((16, 32), 0), ((2, 6, 64), 1), ((2, 6, 64), 2), ((2, 10, 32), 1)]
)
def test_a_loop_over_any_axis_can_be_split(shape: tuple[int, ...], axis: int) -> None:
    """All at once against one part after the other, left in one region: every part is a slice of the whole."""
    count = shape[axis] if shape[axis] < 32 else 4
    whole = flow(("f", [0], [1], ""), ("g", [1], [2], ""), ("sum", [2], [3], ""))
    calls = [
        (name, [0 if name == "f" else 10 + i], [(10 if name == "f" else 40) + i], "")
        for i in range(count)
        for name in "fg"
    ]
    parts = flow(*calls, ("sum", list(range(40, 40 + count)), [70], ""))
    x, f, g, total = (np.random.default_rng(seed).normal(size=shape) for seed in range(4))
    pieces = {base + i: [part] for base, y in ((10, f), (40, g)) for i, part in enumerate(np.split(y, count, axis))}
    a = Side(whole, {"end": [3]}, [{0: [x], 1: [f], 2: [g], 3: [total]}], dict.fromkeys(whole.ops, 1.0))
    b = Side(parts, {"end": [70]}, [{0: [x], **pieces, 70: [total]}], dict.fromkeys(parts.ops, 1.0))
    one = match([(list(whole.ops), list(parts.ops))], [([3], [70])])
    score = Truth(a, b).score(one)
    assert (len(score.coarse), score.irreducible, score.coverage) == (1, [], (0.0, 0.0))
    strangers = {t: [np.random.default_rng(t).normal(size=v[0].shape)] for t, v in pieces.items()}
    b = Side(parts, {"end": [70]}, [{0: [x], **strangers, 70: [total]}], dict.fromkeys(parts.ops, 1.0))
    assert len(Truth(a, b).score(one).irreducible) == 1


def test_a_constant_part_splits_nothing() -> None:
    a = flow(("f", [0], [1], ""), ("g", [1], [2], ""))
    b = flow(("k", [0], [1], ""), ("l", [1], [2], ""))
    b.numel[1] = 16
    masked = value(1)
    masked[:2] = 0
    left = Side(a, {"end": [2]}, [{0: [value(0)], 1: [masked], 2: [value(2)]}], dict.fromkeys(a.ops, 1.0))
    right = Side(b, {"end": [2]}, [{0: [value(0)], 1: [np.zeros((2, 8))], 2: [value(2)]}], dict.fromkeys(b.ops, 1.0))
    score = Truth(left, right).score(match([([0, 1], [0, 1])], [([2], [2])]))
    assert (len(score.irreducible), score.coarse) == (1, [])


def test_work_that_only_one_side_does_is_no_gap_in_coverage() -> None:
    a = flow(("f", [0], [1], ""), ("extra", [0], [2], ""))
    b = flow(("f", [0], [1], ""))
    alone = match([([0], [0]), ([1], [])], [([1], [1])])
    right = side(b, {"end": [1]}, {0: 0, 1: 1})
    score = Truth(side(a, {"end": [1]}, {0: 0, 1: 1, 2: 5}), right).score(alone)
    assert (score.coverage, score.one_sided) == ((1.0, 1.0), 0.5)
    twice = flow(("f", [0], [1], ""), ("extra", [0], [2], ""))
    missed = Truth(side(a, {"end": [1]}, {0: 0, 1: 1, 2: 5}), side(twice, {"end": [1]}, {0: 0, 1: 1, 2: 5})).score(
        match([([0], [0]), ([1], []), ([], [1])], [([1], [1])])
    )
    assert missed.coverage == (0.5, 0.5)


def test_a_control_is_failed_by_any_match_that_depends_on_parameters() -> None:
    a = flow(("shift", [0], [1], ""), ("f", [1, 9], [2], ""), parameters=(9,))
    sides = [side(a, {}, {0: 0, 1: 1, 2: k, 9: 9}) for k in (3, 4)]
    fine = match([([0], [0]), ([1], []), ([], [1])], [([1], [1])])
    score = Truth(*sides).score(fine)
    assert score.control
    assert score.f1 == 1
    assert Truth(*sides).score(match([([0, 1], [0, 1])], [])).f1 == 0
    assert Truth(*sides).score(match([([0], [0]), ([1], []), ([], [1])], [([2], [2])])).f1 == 0


def test_a_whole_is_found_by_its_parts() -> None:
    whole = flow(("batched", [0], [1], ""), ("next", [1], [2], ""))
    parts = flow(("one", [0], [1], ""), ("two", [0], [2], ""), ("next", [1, 2], [3], ""))
    joined = {0: [value(0)], 1: [np.stack([value(1), value(2)])], 2: [value(3)]}
    a = Side(whole, {"x": [1], "end": [2]}, [joined], dict.fromkeys(whole.ops, 1.0))
    b = side(parts, {"x": [1, 2], "end": [3]}, {0: 0, 1: 1, 2: 2, 3: 3})
    regions = [([0], [0, 1]), ([1], [2])]
    good = Truth(a, b).score(match(regions, [([2], [3])], unions=[([1], [1, 2])]))
    assert (sorted(good.found), good.wrong) == (["end", "x"], [])
    swapped = Truth(a, b).score(match(regions, [([2], [3])], unions=[([1], [2, 1])]))
    assert len(swapped.wrong) == 1
    half = Truth(a, b).score(match(regions, [([2], [3])], unions=[([1], [1, 1])]))
    assert "x" in half.missing


def test_labels_induce_segments() -> None:
    first, second = segments((A, B), [((2,), (1,)), ((3,), (3,))])
    assert first[0] == first[1] == second[0]
    assert first[2] == second[1] == second[2]
    assert first[0] != first[2]


def test_boundaries_pair_in_order_unless_counts_or_sizes_differ() -> None:
    a = {"x": [1], "y": [2, 3], "z": [4, 5], "only": [6], "chunks": [7, 8]}
    b = {"x": [10], "y": [20, 30], "z": [40], "chunks": [70, 80]}
    numel = (
        dict.fromkeys((1, 2, 3, 4, 5, 6), 48) | {7: 37, 8: 27},
        dict.fromkeys((10, 20, 30, 40), 48) | {70: 32, 80: 32},
    )
    assert pair_boundaries(a, b, numel) == {
        "x": ([1], [10]),
        "y#0": ([2], [20]),
        "y#1": ([3], [30]),
        "z": ([4, 5], [40]),
        "chunks": ([7, 8], [70, 80]),
    }


def test_slices_are_the_same_whatever_the_parts() -> None:
    x = np.random.default_rng(0).standard_normal((6, 4))
    other = np.random.default_rng(1).standard_normal((6, 4))

    def same(a: list[Array], b: list[Array], share: float = 1.0) -> bool:
        return same_slices([[v] for v in a], [[v] for v in b], 1e-6, share)

    assert same([x], [x[:4], x[4:]])
    assert not same([x], [x[4:], x[:4]])  # not in order
    assert same([x[:2], x[2:]], [x[:3], x[3:]])
    assert same([x[:, :2], x[:, 2:]], [x[:, :1], x[:, 1:]])  # by column
    assert same([x], [x[[0, 2, 5]], x[[1, 3, 4]]])
    assert not same([x], [x[:4], other[4:]])
    assert not same([x], [x[:4]])
    assert same([x], [x[:4]], 0.5)
    assert not same([x], [np.concatenate([x[:2], other[2:]])], 0.5)


# ---------------------------------------------------------------------------------------------------- baseline


@pytest.mark.parametrize("kind", ["singular", "moments"])
def test_the_published_algorithm_cuts_at_the_spine(kind: str) -> None:
    found = dominator_match(Truth(LEFT, RIGHT), kind, 1e-3)
    assert {(p.a, p.b) for p in found.pairs} == {((2,), (1,)), ((3,), (3,))}
    assert {(r.ops_a, r.ops_b) for r in found.regions} == {((0, 1), (0,)), ((2,), (1, 2))}
    assert Truth(LEFT, RIGHT).score(found).f1 == 1


def test_the_published_algorithm_is_blind_beside_the_spine() -> None:
    """Two branches: no operator of theirs is on every path."""
    calls = (("l", [0], [1], ""), ("r", [0], [2], ""), ("join", [1, 2], [3], ""))
    sides = [side(flow(*calls), {"left": [1], "right": [2], "end": [3]}, {0: 0, 1: 1, 2: 2, 3: 3}) for _ in "ab"]
    score = Truth(*sides).score(dominator_match(Truth(*sides), "singular", 1e-3))
    assert (score.found, sorted(score.missing)) == (["end"], ["left", "right"])
