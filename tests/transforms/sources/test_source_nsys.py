"""Nsight Systems SQLite exports. Every file here is SYNTHETIC: made from the documented schema, no recording.

The values of the shared sample come from plain SQL over it (``SELECT sum("end" - start) ...``).
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.normalized import Normalizer

from magneton.schemas.errors import InputFormatError, InputNotFoundError, TruncatedInputError
from magneton.transforms.reading.codecs import TraceInput
from magneton.transforms.reading.limits import Limits
from magneton.transforms.sources.rows import Notes
from magneton.transforms.sources.sqlite import nsys
from magneton.transforms.sources.sqlite import source as sqlite
from magneton.transforms.sources.sqlite.database import integer, open_sqlite

PID = 4321
THREAD = PID << 24 | 77
EPOCH = 1_767_225_600_000_000_000


def make(path: Path, *statements: str, schema: bool = True) -> Path:
    with sqlite3.connect(path) as db:
        if schema:
            db.executescript(
                f"""
                CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
                INSERT INTO StringIds VALUES (1, 'gemm<float>'), (2, 'gemm'), (3, 'cudaLaunchKernel_v7000'),
                    (4, 'cuLaunchKernel'), (5, 'decode_step'), (6, 'cudaGraphLaunch_v10000');
                CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
                INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES ({EPOCH});
                """
            )
        for statement in statements:
            db.executescript(statement)
    db.close()
    return path


KERNELS = """CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
    correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER, gridX INTEGER, gridY INTEGER,
    gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER, staticSharedMemory INTEGER,
    dynamicSharedMemory INTEGER, registersPerThread INTEGER, graphNodeId INTEGER);"""


def kernel(start: object, end: object, correlation: int, node: object = "NULL") -> str:
    values = f"{start}, {end}, 1, 7, {correlation}, {PID << 24}, 1, 2, 4, 2, 1, 128, 1, 1, 16, 32, 40, {node}"
    return f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({values});"


def rows_of(path: Path) -> tuple[dict[str, list[dict[str, Any]]], Notes]:
    notes = Notes()
    found: dict[str, list[dict[str, Any]]] = {}
    with open_sqlite(path) as database:
        assert nsys.recognises(database)
        for kind, row in nsys.decode(database, notes):
            found.setdefault(kind, []).append(row)
    return found, notes


def test_kernels_launches_and_ranges(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.sqlite",
        KERNELS,
        kernel(2_000, 3_500, 9),
        f"""CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,
                correlationId INTEGER, nameId INTEGER);
            INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1000, 1100, 0, {THREAD}, 9, 3), (1200, 1300, 1, {THREAD}, 10, 4);
            CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER,
                globalTid INTEGER, domainId INTEGER, int64Value INTEGER);
            INSERT INTO NVTX_EVENTS VALUES (0, NULL, 75, 'mine', NULL, {THREAD}, 5, NULL),
                (900, 1400, 59, NULL, 5, {THREAD}, 5, 3),
                (950, 1350, 59, 'aten::mm, seq = 3, op_id = 12, sizes = [[2, 3], [3, 4]]', NULL, {THREAD}, 0, NULL),
                (960, 1340, 59, 'AddmmBackward0, seq = 4', NULL, {THREAD}, 0, NULL),
                (970, 1330, 59, 'MyApp::forward', NULL, {THREAD}, 0, NULL),
                (2000, 2500, 60, 'request', NULL, {THREAD}, 0, NULL),
                (2600, NULL, 34, 'mark', NULL, {THREAD}, 0, NULL),
                (2700, NULL, 59, 'killed', NULL, {THREAD}, 0, NULL);""",
        """CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
                correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER);
            INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (4000, 4200, 1, 7, 11, NULL, 4096, 2);
           CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end INTEGER, deviceId INTEGER, bytes INTEGER);
            INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (5000, 5100, 1, 64);""",
    )
    found, notes = rows_of(path)
    assert (notes.base_unix_ns, notes.clock) == (EPOCH, "session")
    ran, copied, filled = found["kernels"]
    assert (ran["name"], ran["ts_ns"], ran["dur_ns"], ran["pid"], ran["device"], ran["stream"]) == (
        "gemm<float>", 2_000, 1_500, str(PID), 1, 7,
    )  # fmt: skip
    assert (ran["grid"], ran["block"], ran["shared_memory_bytes"], ran["registers_per_thread"]) == (
        [4, 2, 1], [128, 1, 1], 48, 40,
    )  # fmt: skip
    assert (copied["category"], copied["name"], copied["bytes"]) == ("gpu_memcpy", "Memcpy DtoH", 4096)
    assert (filled["category"], filled["bytes"], filled["stream"]) == ("gpu_memset", 64, None)
    assert [(r["name"], r["category"], r["pid"], r["tid"]) for r in found["launches"]] == [
        ("cudaLaunchKernel", "cuda_runtime", str(PID), "77"),
        ("cuLaunchKernel", "cuda_driver", str(PID), "77"),
    ]
    # what torch's emit_nvtx writes is an operator; any other range is an annotation
    assert [(r["name"], r["sequence_number"], r["input_dims"]) for r in found["ops"]] == [
        ("aten::mm", 3, "[[2, 3], [3, 4]]"),
        ("AddmmBackward0", 4, None),
    ]
    annotations = {r["name"]: r for r in found["annotations"]}
    assert json.loads(annotations["decode_step"]["args"]) == {"int64Value": 3, "domain": "mine"}
    assert [annotations[n]["kind"] for n in ("MyApp::forward", "request", "mark")] == ["slice", "async", "instant"]
    assert (annotations["killed"]["dur_ns"], annotations["killed"]["flags"]) == (None, "unterminated_slice")
    assert notes.warnings["unterminated_slice"][0] == 1
    assert (notes.n_raw, notes.n_kept, notes.n_merged) == (13, 12, 1)  # the record that names the domain is merged


def test_a_graph_is_counted_once(tmp_path: Path) -> None:
    graph = """CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
        correlationId INTEGER, globalPid INTEGER, graphId INTEGER, graphExecId INTEGER);"""
    insert = f"INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (100, 400, 0, 7, 12, {PID << 24}, 3, 8);"
    whole, notes = rows_of(make(tmp_path / "graph.sqlite", graph, insert))
    assert [(r["name"], r["dur_ns"]) for r in whole["kernels"]] == [("CUDA graph 3", 300)]
    assert "graph_as_one_activity" in notes.warnings
    # in node mode the same launch has its kernels one by one
    nodes, notes = rows_of(
        make(tmp_path / "nodes.sqlite", graph, insert, KERNELS, kernel(100, 200, 12, 21), kernel(250, 400, 12, 22))
    )
    assert [(r["dur_ns"], r["graph_node_id"]) for r in nodes["kernels"]] == [(100, 21), (150, 22)]
    assert (notes.n_raw, notes.n_kept, notes.n_merged) == (3, 2, 1)


def test_processes_of_one_file_do_not_share_correlations(tmp_path: Path, normalized: Normalizer) -> None:
    """Every process counts its correlation ids from 1; an activity belongs to the launch of its own process."""
    launches = "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER);"
    rows = []
    for process, offset in ((PID, 0), (PID + 1, 5_000)):
        for correlation in (1, 2, 3):
            start = offset + 100 * correlation
            if (process, correlation) != (PID, 3):
                values = f"{start}, {start + 10}, {process << 24 | 5}, {correlation}, 3"
                rows.append(f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ({values});")
            rows.append(kernel(start + 50, start + 60, correlation).replace(str(PID << 24), str(process << 24)))
    run = normalized(make(tmp_path / "two.sqlite", KERNELS, launches, *rows))
    launch = {row["launch_id"]: row for row in run.rows("launches")}
    for row in run.rows("kernels"):
        if (row["pid"], row["correlation"]) == (str(PID), 3):
            assert row["launch_id"] is None  # its own launch is not in the file; the other process' is not it
        else:
            assert (launch[row["launch_id"]]["pid"], row["launch_latency_ns"]) == (row["pid"], 50)


def test_times_that_are_none_are_set_aside(tmp_path: Path) -> None:
    path = make(
        tmp_path / "odd.sqlite",
        KERNELS,
        kernel(1, 2, 1),
        kernel("NULL", 2, 2),
        kernel("'soon'", 2, 3),
        kernel(5, 4, 4),
        kernel(0, 9_000_000_000_000_000, 5),
        kernel("x'00ff'", 2, 6),
    )
    found, notes = rows_of(path)
    assert len(found["kernels"]) == 1
    assert Counter(r["reason"] for r in found["quarantine"]) == Counter(
        {"ts_missing": 1, "ts_not_numeric": 2, "dur_negative": 1, "dur_implausible": 1}
    )
    assert (notes.n_raw, notes.n_kept, notes.n_quarantined) == (6, 1, 5)


def test_missing_tables_columns_and_names_are_unknown(tmp_path: Path) -> None:
    path = make(
        tmp_path / "few.sqlite",
        "CREATE TABLE StringIds (id INTEGER, value TEXT);",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, demangledName INTEGER);",
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 3, 99);",
        schema=False,
    )
    found, notes = rows_of(path)
    (only,) = found["kernels"]
    assert (only["name"], only["dur_ns"]) == ("kernel 99", 2)
    assert [only[c] for c in ("pid", "device", "stream", "correlation", "grid", "shared_memory_bytes")] == [None] * 6
    assert notes.base_unix_ns is None


def read(path: Path) -> None:
    sqlite.read(TraceInput(path, Limits()), None, Limits())  # type: ignore[arg-type]


def test_files_that_must_be_refused(tmp_path: Path) -> None:
    whole = make(tmp_path / "a.sqlite", KERNELS, *[kernel(i, i + 1, i) for i in range(2_000)]).read_bytes()
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TruncatedInputError, match="cut off after"):
        read(cut)
    cut.write_bytes(whole[:60])
    with pytest.raises(TruncatedInputError):
        read(cut)
    other = make(tmp_path / "other.sqlite", "CREATE TABLE notes (text TEXT);", schema=False)
    with pytest.raises(InputFormatError, match="neither Nsight Systems nor rocprofv3"):
        read(other)
    text = tmp_path / "text.sqlite"
    text.write_text("not a database" * 20)
    with pytest.raises(InputFormatError, match="is not a SQLite file"), open_sqlite(text):
        pass
    with pytest.raises(InputNotFoundError), open_sqlite(tmp_path / "absent.sqlite"):
        pass


def test_damage_anywhere_is_one_typed_error(tmp_path: Path) -> None:
    whole = make(tmp_path / "a.sqlite", KERNELS, *[kernel(i, i + 1, i) for i in range(300)]).read_bytes()
    damaged = tmp_path / "damaged.sqlite"
    refused = 0
    for position in range(100, len(whole), 397):
        data = bytearray(whole)
        data[position : position + 16] = b"\xff" * 16
        damaged.write_bytes(data)
        try:
            rows_of(damaged)
        except (InputFormatError, AssertionError):  # the assertion: the table was not recognised any more
            refused += 1
    assert refused


def test_file_names_are_data(tmp_path: Path) -> None:
    for name in (
        "a?mode=rwc#x.sqlite",
        "100%25.sqlite",
        "quote'\".sqlite",
        "ü \N{SNOWMAN}.sqlite",
        "-.sqlite",
        "a&b=c;d.sqlite",
    ):
        path = make(tmp_path / "plain.sqlite", KERNELS, kernel(1, 2, 1)).rename(tmp_path / name)
        found, _ = rows_of(path)
        assert len(found["kernels"]) == 1
        assert sorted(p.name for p in tmp_path.iterdir()) == [name]  # no journal, no second file
        path.unlink()


def test_what_a_file_brings_along_is_not_run(tmp_path: Path) -> None:
    """Views, virtual tables and generated columns would run code chosen by whoever made the file."""
    path = make(
        tmp_path / "hostile.sqlite",
        "CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n) "
        "SELECT start, start AS end, 59 AS eventType, 'x' AS text FROM n;",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, demangledName INTEGER, "
        "streamId INTEGER GENERATED ALWAYS AS (length(hex(zeroblob(100000000)))));",
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, demangledName) VALUES (1, 2, 1);",
        """CREATE TABLE "x"" ; DROP TABLE StringIds; --" (a);""",
    )
    found, notes = rows_of(path)
    assert "annotations" not in found
    assert found["kernels"][0]["stream"] is None
    assert notes.n_raw == 1


def test_names_are_data(tmp_path: Path) -> None:
    path = make(
        tmp_path / "names.sqlite",
        "INSERT INTO StringIds VALUES (50, CAST(x'6bff6b' AS TEXT)), (51, ''' OR 1=1 --');",
        KERNELS,
        kernel(1, 2, 1).replace(", 1, 2, 4, 2, 1", ", 50, 2, 4, 2, 1"),
        kernel(3, 4, 2).replace(", 1, 2, 4, 2, 1", ", 51, 2, 4, 2, 1"),
    )
    found, _ = rows_of(path)
    assert [r["name"] for r in found["kernels"]] == ["k\N{REPLACEMENT CHARACTER}k", "' OR 1=1 --"]


def test_cells_of_any_type() -> None:
    assert [integer(v) for v in (3, 3.0, 3.5, "3", b"3", None, float("inf"), 1e300)] == [3, 3] + [None] * 6


def test_the_shared_sample(shared: Path) -> None:
    found, notes = rows_of(shared / "formats" / "nsys_export.sqlite")
    assert {kind: len(rows) for kind, rows in found.items()} == {"kernels": 4, "launches": 3, "annotations": 8}
    assert sum(r["dur_ns"] for r in found["kernels"] if r["category"] == "kernel") == 200_000
    assert [r["graph_node_id"] for r in found["kernels"]] == [None, 21, 22, None]
    assert notes.base_unix_ns == 1_767_225_600_000_000_000
    assert {(r["pid"], r["tid"]) for r in found["launches"]} == {("1234", "1234")}
    assert notes.devices[0]["name"] == "NVIDIA SYNTHETIC"


def test_a_version_behind_the_name_of_a_table_does_not_hide_it(tmp_path: Path, normalized: Normalizer) -> None:
    found = Path(__file__).resolve().parents[2] / "found" / "nsys-custom-op-no-grad" / "a.sqlite"
    (tmp_path / "a.sqlite").write_bytes(found.read_bytes())
    with sqlite3.connect(tmp_path / "a.sqlite") as db:
        db.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO CUPTI_ACTIVITY_KIND_KERNEL_V9")
        db.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME RENAME TO CUPTI_ACTIVITY_KIND_RUNTIME_V2")
        db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL_V3 (start INTEGER, end INTEGER)")
    versioned, plain = normalized(tmp_path / "a.sqlite"), normalized(found)
    for table in ("kernels", "launches"):
        rows = [[(r["name"], r["ts_ns"], r["dur_ns"]) for r in run.rows(table)] for run in (versioned, plain)]
        assert rows[0] == rows[1]
        assert rows[0]
