"""rocprofv3 databases (rocpd). Every file here is SYNTHETIC: made from the documented schema, no recording."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from magneton.transforms.sources.rows import Notes
from magneton.transforms.sources.sqlite import rocpd
from magneton.transforms.sources.sqlite.database import open_sqlite

UUID = "_0000abcd_0000_0000_0000_00000000000{}"


def make(path: Path, *sets: int, extra: str = "") -> Path:
    with sqlite3.connect(path) as db:
        for number in sets:
            u = UUID.format(number)
            db.executescript(
                f"""
                CREATE TABLE rocpd_string{u} (id INTEGER PRIMARY KEY, string TEXT);
                INSERT INTO rocpd_string{u} VALUES (1, 'HIP_RUNTIME_API'), (2, 'hipLaunchKernel'), (3, 'MARKER_CORE_API'),
                    (4, 'step {number}'), (5, 'KERNEL_DISPATCH'), (6, 'MEMORY_COPY_HOST_TO_DEVICE'), (7, 'HSA_CORE_API');
                CREATE TABLE rocpd_info_process{u} (id INTEGER PRIMARY KEY, pid INTEGER);
                INSERT INTO rocpd_info_process{u} VALUES (1, {1000 + number});
                CREATE TABLE rocpd_info_thread{u} (id INTEGER PRIMARY KEY, tid INTEGER);
                INSERT INTO rocpd_info_thread{u} VALUES (1, {2000 + number});
                CREATE TABLE rocpd_info_agent{u} (id INTEGER PRIMARY KEY, type TEXT, type_index INTEGER, name TEXT,
                    product_name TEXT);
                INSERT INTO rocpd_info_agent{u} VALUES (1, 'CPU', 0, 'epyc', NULL), (2, 'GPU', 3, 'gfx942', 'MI300X');
                CREATE TABLE rocpd_info_kernel_symbol{u} (id INTEGER PRIMARY KEY, display_name TEXT, kernel_name TEXT);
                INSERT INTO rocpd_info_kernel_symbol{u} VALUES (1, 'gemm', 'gemm.kd');
                CREATE TABLE rocpd_event{u} (id INTEGER PRIMARY KEY, category_id INTEGER, correlation_id INTEGER);
                INSERT INTO rocpd_event{u} VALUES (1, 3, 90), (2, 1, 5), (3, 5, 5), (4, 6, 6), (5, 7, 7);
                CREATE TABLE rocpd_region{u} (id INTEGER PRIMARY KEY, pid INTEGER, tid INTEGER, start INTEGER, "end" INTEGER,
                    name_id INTEGER, event_id INTEGER, extdata TEXT);
                INSERT INTO rocpd_region{u} VALUES (1, 1, 1, 100, 900, 4, 1, '{{"k": 1}}'), (2, 1, 1, 200, 250, 2, 2, '{{}}'),
                    (3, 1, 1, 300, 310, 99, 5, '{{}}');
                CREATE TABLE rocpd_kernel_dispatch{u} (id INTEGER PRIMARY KEY, pid INTEGER, tid INTEGER, agent_id INTEGER,
                    kernel_id INTEGER, queue_id INTEGER, stream_id INTEGER, start INTEGER, "end" INTEGER,
                    workgroup_size_x INTEGER, workgroup_size_y INTEGER, workgroup_size_z INTEGER, grid_size_x INTEGER,
                    grid_size_y INTEGER, grid_size_z INTEGER, group_segment_size INTEGER, event_id INTEGER);
                INSERT INTO rocpd_kernel_dispatch{u} VALUES
                    (1, 1, 1, 2, 1, 9, 4, 400, 700, 256, 1, 1, 1000, 2, 1, 64, 3),
                    (2, 1, 1, 2, 77, 9, NULL, 800, 750, 256, 1, 1, 1000, 2, 1, 64, 3);
                CREATE TABLE rocpd_memory_copy{u} (id INTEGER PRIMARY KEY, pid INTEGER, tid INTEGER, start INTEGER,
                    "end" INTEGER, name_id INTEGER, dst_agent_id INTEGER, src_agent_id INTEGER, size INTEGER,
                    stream_id INTEGER, event_id INTEGER);
                INSERT INTO rocpd_memory_copy{u} VALUES (1, 1, 1, 710, 720, 6, 2, 1, 4096, 4, 4);
                """
            )
        db.executescript(extra)
    db.close()
    return path


def rows_of(path: Path) -> tuple[dict[str, list[dict[str, Any]]], Notes]:
    notes = Notes()
    found: dict[str, list[dict[str, Any]]] = {}
    with open_sqlite(path) as database:
        assert rocpd.recognises(database)
        for kind, row in rocpd.decode(database, notes):
            found.setdefault(kind, []).append(row)
    return found, notes


def test_kernels_copies_calls_and_markers(tmp_path: Path) -> None:
    found, notes = rows_of(make(tmp_path / "a.db", 1))
    ran, copied = found["kernels"]
    assert (ran["name"], ran["ts_ns"], ran["dur_ns"], ran["device"], ran["stream"]) == ("gemm", 400, 300, 3, 4)
    # ROCm counts work items: 1000 x 2 in groups of 256 x 1 are 4 x 2 blocks
    assert (ran["grid"], ran["block"], ran["shared_memory_bytes"]) == ([4, 2, 1], [256, 1, 1], 64)
    assert (ran["pid"], ran["tid"], ran["correlation"]) == ("1001", "2001", 5)
    assert (copied["category"], copied["name"], copied["bytes"], copied["device"]) == (
        "gpu_memcpy", "MEMORY_COPY_HOST_TO_DEVICE", 4096, 3,
    )  # fmt: skip
    assert [(r["name"], r["category"], r["correlation"]) for r in found["launches"]] == [
        ("hipLaunchKernel", "cuda_runtime", 5),
        ("region 99", "cuda_driver", 7),
    ]
    (marker,) = found["annotations"]
    assert (marker["name"], marker["category"], marker["dur_ns"]) == ("step 1", "MARKER_CORE_API", 800)
    assert json.loads(marker["args"]) == {"extdata": '{"k": 1}'}
    assert [r["reason"] for r in found["quarantine"]] == ["dur_negative"]
    assert (notes.n_raw, notes.n_kept, notes.n_quarantined) == (6, 5, 1)
    assert (notes.base_unix_ns, notes.clock) == (None, "boottime")
    assert notes.devices == [{"id": 3, "name": "MI300X", "gfx": "gfx942"}]


def test_a_merged_file_keeps_its_processes_apart(tmp_path: Path) -> None:
    found, notes = rows_of(make(tmp_path / "a.db", 1, 2))
    assert sorted((r["pid"], r["name"]) for r in found["annotations"]) == [("1001", "step 1"), ("1002", "step 2")]
    assert notes.n_raw == 12


def test_views_are_not_read(tmp_path: Path) -> None:
    endless = "CREATE VIEW rocpd_region AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT * FROM n;"
    _, notes = rows_of(make(tmp_path / "a.db", 1, extra=endless))
    assert notes.n_raw == 6


def test_the_shared_sample(shared: Path) -> None:
    found, notes = rows_of(shared / "formats" / "rocpd_results.db")
    assert {kind: len(rows) for kind, rows in found.items()} == {"kernels": 3, "launches": 3, "annotations": 1}
    assert sum(r["dur_ns"] for r in found["kernels"]) == 300_000
    assert [r["correlation"] for r in found["kernels"]] == [r["correlation"] for r in found["launches"]] == [1, 2, 3]
    assert [(r["name"], r["dur_ns"]) for r in found["annotations"]] == [("decode_step", 31_000_000)]
    assert (notes.framework, notes.clock, notes.base_unix_ns) == ("rocprofv3", "boottime", None)
