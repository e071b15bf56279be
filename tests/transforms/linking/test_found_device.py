"""Device records that cannot be, and launches that share an id: right values from tries and public reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.made_traces import run_of
from tests.support.normalized import Normalizer

FOUND = Path(__file__).resolve().parents[2] / "found"


def codes(run: Any) -> set[str]:
    return {row["code"] for row in run.rows("warnings")}


def test_a_kernel_a_little_before_its_launch_is_not_given_to_an_earlier_one(normalized: Normalizer) -> None:
    run = normalized(FOUND / "corr-reuse-skew" / "trace.json")
    ops = {row["op_id"]: row["name"] for row in run.rows("ops")}
    of = {row["name"]: ops[row["op_id"]] for row in run.rows("kernels")}
    assert of["k_late"] == "op_late" or of["k_late"].endswith("late"), of
    assert "correlation_reused" in codes(run)


def test_a_copy_ends_where_the_next_activity_of_its_stream_begins(normalized: Normalizer) -> None:
    """A lost end stamp made a copy of 50 us one of 4.29 s."""
    run = normalized(FOUND / "memcpy-overrun" / "trace.json")
    copies = [row["dur_ns"] for row in run.rows("kernels") if row["category"] != "kernel"]
    assert copies == [None] or all(length is not None and length <= 50_000 for length in copies)
    assert "activity_overrun" in codes(run)
    # What the file said stays.
    assert any("dur_ns_as_written" in (row["attributes"] or "") for row in run.rows("kernels"))


def test_two_containers_of_one_process_id_are_said(normalized: Normalizer) -> None:
    run = normalized(FOUND / "same-pid-two-ranks" / "merged.json")
    by_device: dict[int, int] = {}
    for row in run.rows("kernels"):
        by_device[row["device"]] = by_device.get(row["device"], 0) + row["dur_ns"]
    assert by_device == {0: 20_000, 1: 30_000}
    assert codes(run) & {"overlapping_slices", "correlation_reused"}


def trace(*kernels: tuple[float, float, int, str], category: str = "kernel") -> bytes:
    """A trace of launches and of kernels (start us, length us, stream, name)."""
    import json

    events: list[dict[str, Any]] = []
    for number, (start, length, stream, name) in enumerate(kernels, 1):
        common = {"ph": "X", "pid": 1, "tid": 1}
        launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": float(number), "dur": 0.5}
        events.append(common | launch | {"args": {"correlation": number}})
        place = {"pid": 0, "tid": stream, "ts": start, "dur": length, "cat": category, "name": name}
        events.append(common | place | {"args": {"correlation": number, "device": 0, "stream": stream}})
    return json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": 0, "traceEvents": events}).encode()


@pytest.mark.parametrize(
    ("kernels", "right"),
    [
        pytest.param([(10, 40, 7, "a"), (50, 20, 7, "b")], [40_000, 20_000], id="one after the other"),
        pytest.param([(10, 4_294_967.295, 7, "a"), (60, 20, 7, "b")], [50_000, 20_000], id="a lost end"),
        pytest.param([(10, 200, 7, "a"), (60, 20, 8, "b")], [200_000, 20_000], id="two streams overlap"),
        pytest.param([(10, 41, 7, "a"), (50, 20, 7, "b")], [41_000, 20_000], id="rounded times touch"),
        pytest.param([(10, 4_294_967.295, 7, "a")], [None], id="a lost end and nothing after it"),
    ],
)
def test_what_a_stream_can_do(kernels: list[tuple[float, float, int, str]], right: list[int | None]) -> None:
    run = run_of(trace(*kernels))
    lengths = {row["name"]: row["dur_ns"] for row in run.rows("kernels")}
    assert [lengths[name] for *_, name in kernels] == right
