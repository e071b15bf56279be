"""Windows of replays, without a framework."""

from __future__ import annotations

import time

import pytest

from magneton.collectors.replay.windows import NotRepeatableError, Replay, attempt, replay_in_turns, turns_for
from magneton.schemas.errors import UsageError


def test_sets_drive_one_another_out_of_the_cache_where_there_is_room() -> None:
    assert turns_for(1 << 20, 4 << 20, 1 << 40) == (9, True)
    # A quarter of 12 MiB holds three sets of 1 MiB.
    assert turns_for(1 << 20, 4 << 20, 12 << 20) == (3, False)
    assert turns_for(1 << 20, 4 << 20, 1 << 40, copies=2) == (2, False)
    assert turns_for(1 << 20, 4 << 20, 12 << 20, copies=1000) == (3, False)
    assert turns_for(1, 1 << 30, 1 << 40) == (256, False)
    assert turns_for(8, None, 1 << 40) == (256, False)
    with pytest.raises(NotRepeatableError, match="no room"):
        turns_for(1 << 20, None, 1 << 20)


def test_calls_take_turns_and_windows_are_filled() -> None:
    made: list[int] = []
    seen: list[int] = []

    def one(which: int) -> int:
        time.sleep(0.0005)
        made.append(which)
        return which

    done = replay_in_turns(
        "sleep",
        [lambda which=i: one(which) for i in range(3)],
        seconds=0.02,
        rounds=2,
        synchronize=seen.append,
        bytes_each=8,
        cold=True,
    )
    assert made[:4] == [0, 1, 2, 0] and set(seen) <= {0, 1, 2}
    assert (done.operator, done.copies, done.bytes_each, done.cold) == ("sleep", 3, 8, True)
    assert len(done.windows) == 2
    for window in done.windows:
        assert window.duration_s >= 0.02 and window.calls >= 2
        # A call takes half a millisecond at least.
        assert window.calls * 0.0005 <= window.duration_s
    # Two calls before each window are not counted.
    assert sum(w.calls for w in done.windows) == len(made) - 4


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 1), (float("nan"), 1), (0.1, 0)])
def test_windows_need_a_length_and_a_number(seconds: float, rounds: int) -> None:
    with pytest.raises(UsageError):
        replay_in_turns("x", [int], seconds=seconds, rounds=rounds, synchronize=id, bytes_each=0, cold=True)


class ResourceExhaustedError(Exception):
    """Called as TensorFlow calls it."""


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (NotRepeatableError("it draws random numbers"), "it draws random numbers"),
        (ValueError("shapes differ"), "its trial failed: ValueError: shapes differ"),
        (RuntimeError("no such kernel"), "its trial failed: RuntimeError: no such kernel"),
        (MemoryError(), "there is no room in memory for copies of its inputs and outputs"),
        (ResourceExhaustedError("OOM"), "there is no room in memory for copies of its inputs and outputs"),
    ],
)
def test_a_call_that_fails_is_refused_with_the_reason(error: Exception, refusal: str) -> None:
    """One contract for every framework: the other calls go on."""

    def failing() -> Replay:
        raise error

    assert attempt(failing) == (None, refusal)
    done = Replay("op")
    assert attempt(lambda: done) == (done, None)
