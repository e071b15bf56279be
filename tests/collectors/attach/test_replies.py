"""What the launcher makes of the replies of several processes."""

from __future__ import annotations

import pytest

from magneton.collectors.attach.launch import without_operators
from magneton.collectors.attach.request import CaptureReply
from magneton.collectors.observed import Capture


def reply(kind: str, operators: int | None, rank: int = 0) -> CaptureReply:
    return CaptureReply(rank=rank, captures=[Capture(name=kind, kind=kind, rank=rank)], operators=operators)


@pytest.mark.parametrize(
    ("operators", "empty", "kept"),
    [
        ({"energy": [None], "profile": [7], "values": [9]}, [], ["energy", "profile", "values"]),
        ({"energy": [None], "profile": [7], "values": [0]}, ["values"], ["energy", "profile"]),
        ({"energy": [None], "profile": [0], "values": [9]}, ["profile"], ["energy", "values"]),
        ({"energy": [None], "profile": [0], "values": [0]}, ["profile", "values"], []),
        ({"energy": [None], "profile": [0, 5]}, [], ["energy", "profile", "profile"]),
        ({"energy": [None]}, [], ["energy"]),
    ],
)
def test_captures_without_operators(operators: dict[str, list[int | None]], empty: list[str], kept: list[str]) -> None:
    replies = [reply(kind, n, rank) for kind, numbers in operators.items() for rank, n in enumerate(numbers)]
    assert without_operators(replies) == empty
    assert [c.kind for r in replies for c in r.captures] == kept
