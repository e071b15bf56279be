"""Device time: what is compared and what is left out add up to all of it, to the nanosecond, and count in the headline."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.normalized import Normalizer
from tests.support.traces import SHARED, real_traces

from magneton.analysis.diff.document import DiffResult
from magneton.analysis.diff.pipeline import diff
from magneton.analysis.diff.settings import DiffSettings
from magneton.analysis.recording import Recording
from magneton.analysis.report.summary import statements
from magneton.schemas.documents.diff import DeviceTimeDoc
from magneton.schemas.errors import NotComparableError

H100, MI300 = "torch_infer_h100_mi300/{}_h100.json.gz", "torch_infer_h100_mi300/{}_mi300.json.gz"


def left_out(time: DeviceTimeDoc | None) -> dict[str, tuple[int, float]]:
    """Number of activities and time in ms by reason."""
    assert time is not None
    return {one.reason: (one.n_activities, one.time_ns / 1e6) for one in time.left_out}


@pytest.fixture
def of_shared(shared: Path, normalized: Normalizer):  # type: ignore[no-untyped-def]
    return lambda name: Recording.open(normalized(shared / "traces" / name).path)


def test_a_pair_of_which_nearly_everything_is_left_out(of_shared) -> None:  # type: ignore[no-untyped-def]
    """16 of 18 activities were launched before the recording began. One kernel of 4 us a step is all that can be compared."""
    a, b = (of_shared(f"torch/hta_compare_{name}.json.gz") for name in ("base", "test"))
    document = diff(a, b, DiffSettings(), "test").document
    assert left_out(document.a.device_time)["no_launch"] == (16, pytest.approx(1.686, abs=5e-4))
    assert left_out(document.b.device_time)["no_launch"] == (16, pytest.approx(1.686, abs=5e-4))
    assert document.a.device_time.device_ns / 1e6 == pytest.approx(1.694, abs=5e-4)
    # Two steps: half of it each.
    assert document.totals["device_ns"].a / 1e6 == pytest.approx(1.694 / 2, abs=5e-4)
    assert document.totals["left_out_ns"].b / 1e6 == pytest.approx(1.686 / 2, abs=5e-4)
    assert max(document.coverage.a, document.coverage.b) < 0.05
    first = statements(document)
    assert first[0].startswith("Note (low_coverage): most of the device time of side")
    assert "has no launch in the recording" in first[0]
    assert first[1].startswith("Left out of side A, whose device time is 1.694 ms in all: 1.686 ms without a launch")


def test_the_end_of_an_earlier_iteration_counts(of_shared) -> None:  # type: ignore[no-untyped-def]
    document = diff(
        of_shared(H100.format("qwen1.5_0.5b")), of_shared(MI300.format("qwen1.5_0.5b")), DiffSettings(), "t"
    ).document
    assert left_out(document.a.device_time) == {"no_launch": (509, pytest.approx(13.7418, abs=5e-5))}
    assert left_out(document.b.device_time) == {"no_launch": (463, pytest.approx(13.3189, abs=5e-5))}
    assert document.totals["device_ns"].a / 1e6 == pytest.approx(45.647, abs=5e-4)
    assert document.totals["device_ns"].delta_percent == pytest.approx(100 * (43.063 / 45.647 - 1), abs=0.01)
    assert document.coverage.a < 0.71
    # What has no counterpart: at least the kernels among them.
    assert document.coverage.unmatched_ns_a > 13e6
    assert statements(document)[0].startswith("Left out of side A")


DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def cut(source: Path, into: Path, since: float, *, kernels_too: bool) -> Path:
    """Write a trace without the events that begin before an instant (a share of the time of its host), as a late profiler would.

    Kernels stay if only the host's records are lost.
    """
    document = json.loads(gzip.decompress(source.read_bytes()))
    ops = [e["ts"] for e in document["traceEvents"] if e.get("ph") == "X" and e.get("cat") == "cpu_op"]
    at = min(ops) + since * (max(ops) - min(ops))

    def stays(event: dict[str, Any]) -> bool:
        on_device = event.get("cat") in DEVICE and not kernels_too
        return event["ph"] == "M" or event.get("ts", at) >= at or on_device

    document["traceEvents"] = [event for event in document["traceEvents"] if stays(event)]
    into.write_text(json.dumps(document))
    return into


def device_ns(path: Path) -> float:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return sum(e["dur"] for e in json.loads(text)["traceEvents"] if e.get("cat") in DEVICE) * 1e3


@pytest.mark.parametrize(("since", "kernels_too"), [(0.2, True), (0.5, True), (0.1, False), (0.2, False)])
def test_a_trace_cut_in_time_has_all_its_device_time_in_the_headline(
    shared: Path, normalized: Normalizer, tmp_path: Path, since: float, kernels_too: bool
) -> None:
    """The launches before the cut are gone, their kernels are not."""
    whole, source = (shared / "traces" / one.format("timesformer") for one in (MI300, H100))
    late = cut(source, tmp_path / "late.json", since, kernels_too=kernels_too)
    a, b = (Recording.open(normalized(path).path) for path in (whole, late))
    document = diff(a, b, DiffSettings(), "test").document
    right = 100 * (device_ns(late) / device_ns(whole) - 1)
    assert document.totals["device_ns"].delta_percent == pytest.approx(right, abs=1e-6)
    if not kernels_too:
        # 158.433 against 119.853 ms, as in the whole trace; of the operators alone it is far less.
        assert right == pytest.approx(32.19, abs=0.01)
        assert document.totals["time_ns"].delta_percent < right - 1
        assert any(text.startswith("Left out of side B") for text in statements(document)[:2])


def slices(*events: tuple[str, str, float, float, dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": args.get("device", 9),
            "tid": 1,
            "ts": ts,
            "dur": dur,
            "args": args,
        }
        for cat, name, ts, dur, args in events
    ]


@pytest.fixture
def made(tmp_path: Path, normalized: Normalizer):  # type: ignore[no-untyped-def]
    def of(name: str, *events: tuple[str, str, float, float, dict[str, Any]]) -> Recording:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": slices(*events)}))
        return Recording.open(normalized(path).path)

    return of


def test_two_devices_of_which_one_has_no_launches(made) -> None:  # type: ignore[no-untyped-def]
    """842 of 1,926 us ran on a device whose launches are in another file."""
    recording = made(
        "two",
        ("cpu_op", "aten::mm", 0, 20, {}),
        ("cuda_runtime", "cudaLaunchKernel", 5, 5, {"correlation": 1}),
        ("kernel", "gemm", 30, 1084, {"device": 0, "stream": 7, "correlation": 1}),
        ("kernel", "gemm", 30, 800, {"device": 1, "stream": 7, "correlation": 2}),
        ("gpu_memcpy", "Memcpy PtoP", 900, 42, {"device": 1, "stream": 7, "correlation": 3}),
    )
    document = diff(recording, recording, DiffSettings(), "test").document
    assert document.a.device_time.device_ns == 1_926_000
    assert left_out(document.a.device_time) == {"no_launch": (2, 0.842)}
    assert document.totals["device_ns"].a == 1_926_000
    assert document.coverage.a == 1084 / (1084 + 800)


def test_work_outside_steps_and_in_steps_that_are_not_compared(made) -> None:  # type: ignore[no-untyped-def]
    """Four steps of 100 us; the first takes 900 us and is warm-up. 200 us lie after the last step: 50 for each of the four."""
    events: list[tuple[str, str, float, float, dict[str, Any]]] = []
    for number, (at, length) in enumerate([(0, 900), (1000, 100), (2000, 100), (3000, 100), (4000, 200)]):
        if number < 4:
            events.append(("user_annotation", f"ProfilerStep#{number}", at, 990, {}))
        launch = {"correlation": number + 1}
        events += [
            ("cpu_op", "aten::mm", at + 1, 20, {}),
            ("cuda_runtime", "cudaLaunchKernel", at + 5, 5, launch),
            ("kernel", "gemm", at + 30, length, {"device": 0, "stream": 7, **launch}),
        ]
    recording = made("outside", *events)
    document = diff(recording, recording, DiffSettings(), "test").document
    assert left_out(document.a.device_time) == {"outside_steps": (1, 0.2), "other_steps": (1, 0.9)}
    assert (document.a.device_time.kernels_ns, document.a.device_time.device_ns) == (300_000, 1_400_000)
    assert (document.totals["time_ns"].a, document.totals["device_ns"].a) == (100_000, 150_000)
    assert document.coverage.a == 100 / 150


@pytest.mark.parametrize("name", real_traces())
def test_the_device_identity_of_real_traces(normalized: Normalizer, name: str) -> None:
    recording = Recording.open(normalized(SHARED / "traces" / name).path)
    for rank in recording.ranks():
        kernels = recording.of_rank("kernels", rank).to_pylist()
        try:
            result = diff(recording, recording, DiffSettings(rank=rank), "test")
        except NotComparableError:
            assert not any(row["dur_ns"] for row in kernels)
            continue
        check(result, sum(row["dur_ns"] or 0 for row in kernels))


def check(result: DiffResult, right: int) -> None:
    """Rows + copies + left out = device time; and per step, in the headline."""
    document = result.document
    time = document.a.device_time
    if not document.a.on_device:
        assert time is None and not right
        return
    assert time is not None
    steps = [row for row in result.tables["region_steps"][1].to_pylist() if row["side"] == "a"]
    rows, copies = (sum(row[what] for row in steps) for what in ("time_ns", "transfer_ns"))
    assert abs(rows - time.kernels_ns) < 1.0 and abs(copies - time.copies_ns) < 1.0
    assert abs(rows + copies + sum(one.time_ns for one in time.left_out) - right) < 1.0
    assert time.device_ns == right
    totals = document.totals
    assert totals["device_ns"].a == pytest.approx(
        totals["time_ns"].a + totals["transfer_ns"].a + totals["left_out_ns"].a, abs=1.0
    )
