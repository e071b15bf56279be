"""The benchmark's trace is a trace, and large ones take a bounded amount of memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.ingest.copies import repeat
from benchmarks.ingest.kineto_trace import write
from tests.support.normalized import Normalizer


def test_generated_traces_are_whole_and_the_same_every_time(tmp_path: Path, normalized: Normalizer) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    count = write(one, 20_000)
    assert write(two, 20_000) == count
    assert one.read_bytes() == two.read_bytes()
    run = normalized(one)
    (capture,) = run.rows("captures")
    assert capture["n_raw"] == count
    assert run.warnings() == {}
    assert len(run.rows("steps")) >= 1
    assert all(k["op_id"] is not None and k["module_id"] is not None for k in run.rows("kernels"))
    assert all(f["parent_id"] is not None for f in run.rows("frames") if f["function"] != "step")


def test_copies_hold_each_event_once_more_under_an_id_of_its_own(tmp_path: Path, normalized: Normalizer) -> None:
    one, three = tmp_path / "one.json", tmp_path / "three.json"
    write(one, 5_000)
    repeat(one, three, 3)
    single, copies = normalized(one), normalized(three)
    assert copies.rows("captures")[0]["n_kept"] == 3 * single.rows("captures")[0]["n_kept"]
    assert copies.warnings() == {}
    for table, column in (("frames", "python_id"), ("ops", "external_id"), ("launches", "correlation")):
        before, after = single.rows(table), copies.rows(table)
        assert len({row[column] for row in after}) == len(after) == 3 * len(before)
    launched = {row["launch_id"]: row["correlation"] for row in copies.rows("launches")}
    assert all(launched[k["launch_id"]] == k["correlation"] for k in copies.rows("kernels"))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for events in (700_000, 2_800_000):
        trace = tmp_path / f"{events}.json"
        count = write(trace, events)
        # A child begins with the peak of its parent, and a process of many tests is a large one.
        alone = (
            "from pathlib import Path; from benchmarks.ingest.__main__ import measure; "
            f"print(measure('magneton', Path({str(trace)!r}), {count}).peak_mb)"
        )
        peak = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True, check=True).stdout
        peaks.append(float(peak))
        trace.unlink()
    assert max(peaks) < 600
    assert peaks[1] - peaks[0] < 150
