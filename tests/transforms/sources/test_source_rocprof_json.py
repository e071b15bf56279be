"""rocprofv3 JSON. Every file here is SYNTHETIC: made from the documented schema, no recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.normalized import Normalizer

from magneton.schemas.errors import InputFormatError, LimitExceededError
from magneton.transforms.normalize import normalize
from magneton.transforms.sources import rocprof_json


def record(kind: int, operation: int, correlation: int, start: int, end: int, **more: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "operation": operation,
        "thread_id": 9,
        "correlation_id": {"internal": correlation, "external": 0},
        "start_timestamp": start,
        "end_timestamp": end,
        **more,
    }


def process(pid: int = 7, gpu: int = 0) -> dict[str, Any]:
    cpu = {"id": {"handle": 10}, "type": 1, "name": "EPYC", "logical_node_type_id": 0}
    card = {"id": {"handle": 20}, "type": 2, "name": "gfx942", "product_name": "MI300X", "logical_node_type_id": gpu}
    dispatch = {
        "agent_id": {"handle": 20},
        "queue_id": {"handle": 1},
        "kernel_id": 5,
        "private_segment_size": 16,
        "group_segment_size": 1024,
        "workgroup_size": {"x": 256, "y": 1, "z": 1},
        "grid_size": {"x": 1000, "y": 1, "z": 1},
    }
    agents = {"dst_agent_id": {"handle": 20}, "src_agent_id": {"handle": 10}}
    return {
        "metadata": {"pid": pid, "init_time": 1},
        "agents": [cpu, card],
        "strings": {
            "buffer_records": [
                {"kind": "NONE", "operations": []},
                {"kind": "HIP_RUNTIME_API", "operations": ["hipFree", "hipLaunchKernel"]},
                {"kind": "MEMORY_COPY", "operations": ["MEMORY_COPY_HOST_TO_DEVICE"]},
                {"kind": "MARKER", "operations": ["roctxRangePushA"]},
            ],
            "marker_api": [{"key": 3, "value": "train step"}],
        },
        "kernel_symbols": [{"kernel_id": 5, "kernel_name": "_Z1kPf.kd", "formatted_kernel_name": "k(float*)"}],
        "buffer_records": {
            "kernel_dispatch": [record(11, 0, 1, 2000, 5000, dispatch_info=dispatch, stream_id={"handle": 4})],
            "hip_api": [record(1, 1, 1, 1000, 1500)],
            "memory_copy": [record(2, 0, 2, 6000, 7000, bytes=4096, **agents)],
            "marker_api": [record(3, 0, 3, 500, 8000)],
            "scratch_memory": [{"kind": 9}],
        },
    }


def write(path: Path, *processes: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"rocprofiler-sdk-tool": list(processes)}))
    return path


def test_kernels_copies_calls_and_markers(tmp_path: Path, normalized: Normalizer) -> None:
    run = normalized(write(tmp_path / "results.json", process()))
    kernel, copy = run.rows("kernels")
    assert (kernel["name"], kernel["dur_ns"], kernel["device"], kernel["stream"]) == ("k(float*)", 3000, 0, 4)
    assert (kernel["grid"], kernel["block"], kernel["shared_memory_bytes"]) == ([4, 1, 1], [256, 1, 1], 1024)
    assert kernel["launch_latency_ns"] == 1000
    assert (copy["category"], copy["bytes"], copy["device"]) == ("gpu_memcpy", 4096, 0)
    assert [row["name"] for row in run.rows("launches")] == ["hipLaunchKernel"]
    assert [row["name"] for row in run.rows("annotations")] == ["train step"]
    (capture,) = run.rows("captures")
    assert (capture["source_format"], capture["clock"]) == ("rocprof_json", "boottime")
    assert json.loads(capture["metadata"])["records_not_read"] == ["scratch_memory"]


def test_processes_are_ranks(tmp_path: Path, normalized: Normalizer) -> None:
    run = normalized(write(tmp_path / "results.json", process(7, 0), process(8, 1)))
    assert {row["rank"]: row["device"] for row in run.rows("kernels")} == {0: 0, 1: 1}
    assert all(row["launch_id"] is not None for row in run.rows("kernels") if row["category"] == "kernel")


def test_a_record_without_times_is_set_aside(tmp_path: Path, normalized: Normalizer) -> None:
    one = process()
    del one["buffer_records"]["hip_api"][0]["start_timestamp"]
    run = normalized(write(tmp_path / "results.json", one))
    assert [row["reason"] for row in run.rows("quarantine")] == ["ts_missing"]


@pytest.mark.parametrize("content", ["5}", '[{"agents": 1}]}', "["])
def test_other_things_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "results.json").write_text('{"rocprofiler-sdk-tool": ' + content)
    with pytest.raises(InputFormatError):
        normalize([tmp_path / "results.json"], tmp_path / "run")


def test_what_is_too_large_is_refused_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocprof_json, "_MAX_BYTES", 100)
    with pytest.raises(LimitExceededError, match="rocpd"):
        normalize([write(tmp_path / "results.json", process())], tmp_path / "run")
