"""A recording small enough to do the sums by hand, written through the schemas alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from magneton.schemas.ids import run_id
from magneton.schemas.manifest import Capture, Manifest, Workload, write_manifest
from magneton.schemas.tables.parquet import TABLES, conform, write_table

RUN_ID = run_id(["0" * 64])


def rows(name: str, records: list[dict[str, Any]], run: str = RUN_ID, capture: str | None = "profile") -> pa.Table:
    """Return records as a table of the schema, with the run's keys filled in."""
    table = TABLES[name]
    keys = {"run_id": run, "capture": capture, "rank": 0}
    full = [dict.fromkeys(table.column_names()) | keys | r for r in records]
    return conform(table, pa.Table.from_pylist(full, schema=table.arrow_schema()))


def write_recording(
    directory: Path, tables: dict[str, list[dict[str, Any]]], *, label: str = "small", run: str = RUN_ID
) -> Path:
    """Write a recording with the tables given; others stay unwritten."""
    (directory / "tables").mkdir(parents=True)
    capture = {"name": "profile", "kind": "profile", "source_format": "kineto", "n_raw": 12, "n_kept": 11}
    everything = {"captures": [{**capture, "n_merged": 0, "n_ignored": 0, "n_quarantined": 1}], **tables}
    for name, records in everything.items():
        write_table(directory / "tables" / f"{name}.parquet", TABLES[name], rows(name, records, run))
    write_manifest(
        directory,
        Manifest(
            run_id=run,
            label=label,
            workload=Workload(model="tiny", batch=2),
            captures=[
                Capture(name="profile", kind="profile", source_format="kineto", file="raw/profile/rank0/tiny.json")
            ],
        ),
    )
    return directory


def small_tables(*, gemm_ns: int = 600) -> dict[str, list[dict[str, Any]]]:
    """Two steps of a model with one linear layer.

    Step 0 runs from 0 to 1000 ns on the host: ``aten::linear`` (400) around ``aten::addmm`` (300) launches a gemm, then
    ``aten::relu`` (100) launches an elementwise kernel of 100 ns. Step 1 does the same 2000 ns later, and a copy of
    64 bytes (50 ns) whose launch is not in the recording overlaps its gemm on another stream.
    """
    ops, launches, kernels = [], [], []
    for step in (0, 1):
        t, base = 2000 * step, 3 * step
        place = {"module_id": 1, "step_id": step}
        ops += [
            {"op_id": base, "name": "aten::linear", "ts_ns": t, "dur_ns": 400, "depth": 1, **place},
            {"op_id": base + 1, "name": "aten::addmm", "ts_ns": t + 50, "dur_ns": 300, "parent_id": base, **place},
            {"op_id": base + 2, "name": "aten::relu", "ts_ns": t + 500, "dur_ns": 100, "module_id": 0, "step_id": step},
        ]
        launches += [
            {"launch_id": 2 * step, "op_id": base + 1, "ts_ns": t + 100, "dur_ns": 20},
            {"launch_id": 2 * step + 1, "op_id": base + 2, "ts_ns": t + 520, "dur_ns": 10},
        ]
        kernels += [
            {
                **{"kernel_id": base, "name": "gemm_128x64", "kernel_class": "gemm", "category": "kernel"},
                **{"ts_ns": t + 200, "dur_ns": gemm_ns, "device": 0, "stream": 7, "launch_latency_ns": 100},
                **{"launch_id": 2 * step, "op_id": base + 1, "link": "launch", **place},
            },
            {
                **{"kernel_id": base + 1, "name": "relu_kernel", "kernel_class": "elementwise", "category": "kernel"},
                **{"ts_ns": t + 200 + gemm_ns + 100, "dur_ns": 100, "device": 0, "stream": 7},
                **{"launch_id": 2 * step + 1, "op_id": base + 2, "link": "launch", "launch_latency_ns": gemm_ns - 220},
                **{"module_id": 0, "step_id": step},
            },
        ]
    kernels.append(
        {
            **{"kernel_id": 5, "name": "Memcpy HtoD (Pageable -> Device)", "category": "gpu_memcpy", "bytes": 64},
            **{"ts_ns": 2300, "dur_ns": 50, "device": 0, "stream": 20, "step_id": 1},
        }
    )
    for launch in launches:
        launch |= {"name": "cudaLaunchKernel", "category": "cuda_runtime", "expects_device_activity": True}
    return {
        "ops": ops,
        "launches": launches,
        "kernels": kernels,
        "modules": [
            {"module_id": 0, "name": "Model", "class_name": "Model", "path": "Model_0", "depth": 0, "n_calls": 2},
            {
                **{"module_id": 1, "name": "Linear", "class_name": "Linear", "path": "Model_0/Linear_0"},
                **{"parent_id": 0, "depth": 1, "n_calls": 2},
            },
        ],
        "steps": [
            {"step_id": s, "name": f"ProfilerStep#{s}", "kind": "profiler_step", "index": s, "ts_ns": 2000 * s}
            | {"dur_ns": 1000}
            for s in (0, 1)
        ],
        "annotations": [
            {"annotation_id": 0, "name": "forward", "category": "user_annotation", "kind": "slice", "ts_ns": 0}
            | {"dur_ns": 600}
        ],
        "quarantine": [{"reason": "dur_negative", "file": "tiny.json", "position": 7, "raw": '{"ph": "X", "dur": -1}'}],
        "warnings": [{"code": "events_quarantined", "count": 1, "message": "1 event was set aside"}],
    }
