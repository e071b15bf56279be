"""Clocks meet through anchors, exactly, or not at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magneton.schemas.clocks import ClockMap, anchors_from_readings, clock_map
from magneton.schemas.errors import ClockAlignmentError
from magneton.schemas.manifest import ClockAnchor

S = 10**9


@given(
    st.lists(st.integers(1, 10**12), min_size=2, max_size=5),
    st.integers(-(2**40), 2**40),
    st.lists(st.integers(-999, 999), min_size=5, max_size=5),
    st.integers(-(2**62), 2**62),
)
def test_clock_maps_are_exact_and_meet_their_anchors(steps, offset, parts_per_million, ts):
    anchors, here, there = [], 0, offset
    for step, drift in zip(steps, parts_per_million, strict=False):
        here += step * 1000
        there += step * 1000 + step * drift // 1000
        anchors.append(ClockAnchor(unix_ns=there, clock="boottime", clock_ns=here))
    to_real = clock_map(anchors, "boottime")
    back = clock_map(anchors, "realtime", "boottime")
    for anchor in anchors:
        assert to_real.convert(anchor.clock_ns) == anchor.unix_ns and back.convert(anchor.unix_ns) == anchor.clock_ns
    assert abs(back.convert(to_real.convert(ts)) - ts) <= 1
    array = np.array([ts, here], np.int64)
    assert to_real.convert_array(array).tolist() == [to_real.convert(ts), to_real.convert(here)]


def test_one_anchor_is_an_offset_and_two_clocks_meet_through_the_wall():
    anchors = anchors_from_readings([{"realtime_ns": 100, "boottime_ns": 30, "monotonic_ns": 7}])
    assert clock_map(anchors, "monotonic").convert(8) == 101
    assert clock_map(anchors, "monotonic", "boottime").convert(2**60) == 2**60 + 23
    assert clock_map([], "realtime").convert(5) == 5
    assert ClockMap().convert_array(np.array([], np.int64)).tolist() == []


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "no anchor"),
        ([(0, 0), (0, 5)], "contradict"),
        ([(0, 10), (10, 10)], "contradict"),
        ([(0, 0), (100 * S, 137 * S)], "slept"),
    ],
)
def test_clocks_that_cannot_meet_are_refused(pairs, message):
    anchors = [ClockAnchor(unix_ns=u, clock="monotonic", clock_ns=c) for c, u in pairs]
    with pytest.raises(ClockAlignmentError, match=message):
        clock_map(anchors, "monotonic")
    with pytest.raises(ClockAlignmentError):
        anchors_from_readings([{"boottime_ns": 1}])
    with pytest.raises(ClockAlignmentError):
        clock_map([ClockAnchor(2**62, "monotonic", 0)], "monotonic").convert_array(np.array([2**62], np.int64))
