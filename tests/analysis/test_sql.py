"""SQL over recordings: what the views say, hostile names (fault case 58), and what a query may not do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.small_recording import RUN_ID, small_tables, write_recording

from magneton.analysis.query import Recordings, unique_names
from magneton.schemas import errors
from magneton.schemas.tables.diff import DIFF_TABLES
from magneton.schemas.tables.run import RUN_TABLES
from magneton.schemas.views.columns import RUN_COLUMN
from magneton.schemas.views.registry import RUNS, VIEWS

CASE = Path(__file__).resolve().parents[1] / "faults" / "cases" / "58-sql-hostile-names"
EXPECTED: dict[str, Any] = json.loads((CASE / "expected.md").read_text().split("```json")[1].split("```")[0])
HOSTILE_FILE = "run 'x' [1]*?.json"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recordings]:
    directory = write_recording(tmp_path_factory.mktemp("runs") / "small", small_tables())
    with Recordings([directory]) as opened:
        yield opened


def ask(opened: Recordings, sql: str, **values: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = opened.query(sql, values).read_all().to_pylist()
    return rows


# --- what the views say, against sums done by hand (see small_recording) ---


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "SELECT name, calls, host_ns, self_ns, kernels, time_ns, transfer_ns FROM op_time ORDER BY name NULLS LAST",
            [
                ("aten::addmm", 2, 600, 600, 2, 1200, None),
                ("aten::linear", 2, 800, 200, 0, None, None),
                ("aten::relu", 2, 200, 200, 2, 200, None),
                (None, None, None, None, 0, None, 50),
            ],
        ),
        (
            "SELECT name, total_kernels, total_time_ns FROM op_total_time ORDER BY name",
            [("aten::addmm", 2, 1200), ("aten::linear", 2, 1200), ("aten::relu", 2, 200)],
        ),
        ("SELECT round(sum(time_share), 9), round(sum(self_share), 9) FROM op_time", [(1.0, 1.0)]),
        (
            "SELECT name, category, calls, time_ns, mean_ns, min_ns, max_ns, bytes FROM kernel_time ORDER BY name",
            [
                ("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", 1, 50, 50.0, 50, 50, 64),
                ("gemm_128x64", "kernel", 2, 1200, 600.0, 600, 600, None),
                ("relu_kernel", "kernel", 2, 200, 100.0, 100, 100, None),
            ],
        ),
        (
            "SELECT path, calls, self_ns, kernels, time_ns, total_self_ns, total_kernels, total_time_ns FROM module_time "
            "ORDER BY path",
            [("Model_0", 2, 200, 2, 200, 1000, 4, 1400), ("Model_0/Linear_0", 2, 800, 2, 1200, 800, 2, 1200)],
        ),
        (
            'SELECT "index", dur_ns, ops, self_ns, kernels, time_ns, transfer_ns, busy_ns FROM step_time ORDER BY ts_ns',
            [(0, 1000, 3, 500, 2, 700, None, 700), (1, 1000, 3, 500, 2, 700, 50, 700)],
        ),
        (
            "SELECT device, ts_ns, span_ns, busy_ns, idle_ns, busy_share, kernels, time_ns, transfer_ns FROM device_time",
            [(0, 200, 2800, 1400, 1400, 0.5, 4, 1400, 50)],
        ),
        (
            "SELECT ts_ns, dur_ns, next_name, next_op_name, launch_late_ns FROM device_gaps ORDER BY ts_ns",
            [
                (800, 100, "relu_kernel", "aten::relu", 0),
                (1000, 1200, "gemm_128x64", "aten::addmm", 1100),
                (2800, 100, "relu_kernel", "aten::relu", 0),
            ],
        ),
        (
            "SELECT name, calls, host_ns, mean_ns, device_activities, mean_latency_ns FROM launch_time",
            [("cudaLaunchKernel", 4, 60, 15.0, 4, 240.0)],
        ),
        (
            "SELECT name, calls, transfer_ns, bytes, bytes_per_second FROM transfer_time",
            [("Memcpy HtoD (Pageable -> Device)", 1, 50, 64, 64 / 50e-9)],
        ),
        (
            "SELECT kind, count(*) FROM events GROUP BY kind ORDER BY kind",
            [("annotations", 1), ("kernels", 5), ("launches", 4), ("ops", 6)],
        ),
        (
            "SELECT kind, code, count FROM health ORDER BY kind",
            [("quarantine", "dur_negative", 1), ("warning", "events_quarantined", 1)],
        ),
        (
            "SELECT op_name, module_path, step_index, launch_name FROM kernel_calls WHERE kernel_id = 3",
            [("aten::addmm", "Model_0/Linear_0", 1, "cudaLaunchKernel")],
        ),
        (
            "SELECT parent_name, module_class, step_index, self_ns FROM op_calls WHERE op_id = 1",
            [("aten::linear", "Linear", 0, 300)],
        ),
        ("SELECT run, run_id, model, batch, steps, incomplete FROM runs", [("small", RUN_ID, "tiny", 2, None, False)]),
    ],
)
def test_views_say_what_one_finds_by_hand(small: Recordings, sql: str, expected: list[tuple[Any, ...]]) -> None:
    assert [tuple(row.values()) for row in ask(small, sql)] == expected


@pytest.mark.parametrize("name", [RUNS.name, *VIEWS])
def test_views_have_the_columns_they_describe(small: Recordings, name: str) -> None:
    described = (RUNS if name == RUNS.name else VIEWS[name].table).arrow_schema()
    found = small.query(f"SELECT * FROM {name}").schema
    assert [(f.name, f.type) for f in found] == [(f.name, f.type) for f in described]


@pytest.mark.parametrize("name", RUN_TABLES)
def test_tables_have_the_columns_of_the_schema_and_run(small: Recordings, name: str) -> None:
    found = small.query(f"SELECT * FROM {name}").schema
    assert [(f.name, f.type) for f in found] == [(c.name, c.type) for c in (RUN_COLUMN, *RUN_TABLES[name].columns)]


def test_every_view_works_on_a_recording_that_holds_nothing(tmp_path: Path) -> None:
    with Recordings([write_recording(tmp_path / "empty", {})]) as opened:
        for name in VIEWS:
            assert ask(opened, f"SELECT * FROM {name}") == []


def test_sums_never_mix_ranks_or_captures(tmp_path: Path) -> None:
    tables = small_tables()
    for table in ("ops", "kernels"):
        tables[table] += [
            row
            | {f"{table[:-1]}_id": row[f"{table[:-1]}_id"] + 100, "rank": 1, "module_id": None, "step_id": None}
            | {"op_id": None if row.get("op_id") is None else row["op_id"] + 100, "launch_id": None, "parent_id": None}
            if table == "kernels"
            else row | {"op_id": row["op_id"] + 100, "rank": 1, "parent_id": None, "module_id": None, "step_id": None}
            for row in tables[table]
        ]
    for row in tables["kernels"]:
        row.pop("parent_id", None)
    with Recordings([write_recording(tmp_path / "ranks", tables)]) as opened:
        for view, column in (("op_time", "time_share"), ("kernel_time", "time_share")):
            sums = ask(
                opened,
                f"SELECT rank, round(sum({column}), 9) AS s FROM {view} "
                "WHERE name IS NULL OR name NOT LIKE 'Memcpy%' GROUP BY rank ORDER BY rank",
            )
            assert sums == [{"rank": 0, "s": 1.0}, {"rank": 1, "s": 1.0}]
        assert ask(opened, "SELECT count(*) AS n FROM device_time") == [{"n": 2}]


def test_overlapping_kernels_are_busy_once(tmp_path: Path) -> None:
    """Long, short inside it, one that sticks out, one apart: 0-100, 10-20, 90-130, 200-210."""
    spans = [(0, 100), (10, 10), (90, 40), (200, 10)]
    kernels = [
        {"kernel_id": i, "name": "k", "category": "kernel", "ts_ns": t, "dur_ns": d, "device": 0, "stream": i}
        for i, (t, d) in enumerate(spans)
    ]
    with Recordings([write_recording(tmp_path / "run", {"kernels": kernels})]) as opened:
        assert ask(opened, "SELECT busy_ns, span_ns, time_ns FROM device_time") == [
            {"busy_ns": 140, "span_ns": 210, "time_ns": 160}
        ]
        assert ask(opened, "SELECT ts_ns, dur_ns FROM device_gaps") == [{"ts_ns": 130, "dur_ns": 70}]


def test_recursion_counts_a_kernel_once_per_name(tmp_path: Path) -> None:
    ops = [
        {"op_id": 0, "name": "to", "ts_ns": 0, "dur_ns": 9},
        {"op_id": 1, "name": "to", "ts_ns": 1, "dur_ns": 5, "parent_id": 0},
        {"op_id": 2, "name": "copy_", "ts_ns": 2, "dur_ns": 3, "parent_id": 1},
    ]
    kernel = {"kernel_id": 0, "name": "k", "category": "kernel", "ts_ns": 3, "dur_ns": 7, "op_id": 2}
    with Recordings([write_recording(tmp_path / "run", {"ops": ops, "kernels": [kernel]})]) as opened:
        assert ask(opened, "SELECT name, total_kernels, total_time_ns FROM op_total_time ORDER BY name") == [
            {"name": "copy_", "total_kernels": 1, "total_time_ns": 7},
            {"name": "to", "total_kernels": 1, "total_time_ns": 7},
        ]


def test_on_a_cpu_the_time_of_the_work_is_that_of_operators(tmp_path: Path) -> None:
    """The same recording without its device: ``linear`` calls ``addmm``; 2 steps of 800 - 600 + 600 + 200 = 1000 ns in all."""
    tables = {name: rows for name, rows in small_tables().items() if name != "kernels"}
    with Recordings([write_recording(tmp_path / "cpu", tables)]) as opened:
        for sql, expected in (
            (
                "SELECT name, kernels, time_ns, transfer_ns, round(time_share, 3) FROM op_time ORDER BY name",
                [
                    ("aten::addmm", 0, 600, None, 0.6),
                    ("aten::linear", 0, 200, None, 0.2),
                    ("aten::relu", 0, 200, None, 0.2),
                ],
            ),
            (
                "SELECT name, total_kernels, total_time_ns, total_transfer_ns FROM op_total_time ORDER BY name",
                [("aten::addmm", 0, 600, None), ("aten::linear", 0, 800, None), ("aten::relu", 0, 200, None)],
            ),
            (
                "SELECT path, time_ns, total_time_ns, total_time_share FROM module_time ORDER BY path",
                [("Model_0", 200, 1000, 1.0), ("Model_0/Linear_0", 800, 800, 0.8)],
            ),
            ("SELECT kernels, time_ns, busy_ns FROM step_time ORDER BY ts_ns", [(0, 500, None), (0, 500, None)]),
        ):
            assert [tuple(row.values()) for row in ask(opened, sql)] == expected


def test_one_quantity_has_one_name_in_all_views() -> None:
    names = {column.name for view in VIEWS.values() for column in view.table.columns}
    assert not {
        name for name in names if "kernel_ns" in name or name in ("total_ns", "total_share", "share", "kernel_share")
    }


# --- several recordings ---


def test_recordings_are_told_apart_whatever_their_labels(tmp_path: Path) -> None:
    runs = [
        write_recording(tmp_path / "one", small_tables(), label="x"),
        write_recording(tmp_path / "two", small_tables(gemm_ns=700), label="x", run="r" + "1" * 16),
        write_recording(tmp_path / "three", {}, label="x (2)"),
        write_recording(tmp_path / "four", {}, label=""),
    ]
    with Recordings(runs) as opened:
        assert [r["run"] for r in ask(opened, "SELECT run FROM runs")] == ["x", "x (3)", "x (2)", "four"]
        assert ask(opened, "SELECT run, time_ns FROM op_time WHERE name = 'aten::addmm' ORDER BY run") == [
            {"run": "x", "time_ns": 1200},
            {"run": "x (3)", "time_ns": 1400},
        ]


def test_the_same_recording_twice_is_two_runs(tmp_path: Path) -> None:
    run = write_recording(tmp_path / "one", small_tables())
    with Recordings([run, run]) as opened:
        assert ask(opened, "SELECT run, count(*) AS n FROM kernel_calls GROUP BY run ORDER BY run") == [
            {"run": "small", "n": 5},
            {"run": "small (2)", "n": 5},
        ]


@given(st.lists(st.sampled_from(["a", "a (2)", "a (3)", "a (2) (2)", "b", ""]), max_size=8))
def test_unique_names_are_unique_and_keep_the_first(names: list[str]) -> None:
    unique = unique_names(names, "{} ({})", first=2)
    assert len(set(unique)) == len(names)
    assert all(u == n for i, (u, n) in enumerate(zip(unique, names, strict=True)) if n not in names[:i])


@pytest.mark.parametrize(
    ("what", "error", "says"),
    [
        ("nothing", errors.InputNotFoundError, "no such recording"),
        ("file", errors.InputFormatError, "is a directory"),
        ("empty", errors.InputNotFoundError, "manifest.json"),
        ("no tables", errors.InputNotFoundError, "holds no tables"),
    ],
)
def test_what_is_no_recording_is_refused(
    tmp_path: Path, what: str, error: type[errors.MagnetonError], says: str
) -> None:
    path = tmp_path / "run"
    if what == "file":
        path.write_text("{}")
    elif what == "empty":
        path.mkdir()
    elif what == "no tables":
        write_recording(path, {})
        (path / "tables" / "captures.parquet").unlink()
    with pytest.raises(error, match=says):
        Recordings([path])


def test_a_directory_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    write_recording(tmp_path / "run", {}).rename(path)
    with pytest.raises(errors.InvalidNameError):
        Recordings([path])


# --- fault case 58 ---


def hostile_kernels(name: str) -> list[dict[str, Any]]:
    events = json.loads((CASE / name).read_text())["traceEvents"]
    return [
        {"kernel_id": i, "name": e["name"], "category": "kernel", "ts_ns": e["ts"] * 1000, "dur_ns": e["dur"] * 1000}
        for i, e in enumerate(events)
    ]


@pytest.fixture(params=[HOSTILE_FILE, "-rf.json", "a;b&c$(touch pwned).json", "q\"uo'te = %20 {a,b} \\ ünï ~\n"])
def hostile(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recordings]:
    """The case as a recording in a directory of a hostile name, opened by relative path, with the decoy beside it."""
    monkeypatch.chdir(tmp_path)
    run = write_recording(Path(request.param), {"kernels": hostile_kernels(HOSTILE_FILE)}, label=request.param)
    write_recording(Path("run 'x' 1zz.json"), {"kernels": hostile_kernels("run 'x' 1zz.json")})
    with Recordings([run]) as opened:
        yield opened
    assert not (tmp_path / "pwned").exists()


def test_fault_58_names_are_exact_and_the_decoy_is_not_read(hostile: Recordings) -> None:
    expected = EXPECTED[HOSTILE_FILE]
    rows = ask(hostile, "SELECT run, name, dur_ns FROM kernels ORDER BY ts_ns")
    assert [r["name"] for r in rows] == expected["names_exact"]
    assert len(rows) == expected["n_kept"]
    assert sum(r["dur_ns"] for r in rows) == expected["busy_ns"]
    assert {r["run"] for r in rows} == {hostile.runs[0].recording.manifest.label}
    assert expected["decoy_read"] is False
    assert "decoy" not in {r["name"] for r in rows}


def test_fault_58_values_are_bound(hostile: Recordings) -> None:
    for name, dur_ns in EXPECTED["query_by_exact_name"].items():
        assert ask(hostile, "SELECT dur_ns FROM kernels WHERE name = $name", name=name) == [{"dur_ns": dur_ns}]
    run = hostile.runs[0].run
    assert ask(hostile, "SELECT count(*) AS n FROM kernels WHERE run = $run", run=run) == [{"n": 9}]


def test_fault_58_wildcards_can_be_escaped(hostile: Recordings) -> None:
    assert EXPECTED["like_wildcards_escaped"] is True
    escaped = ask(hostile, r"SELECT name FROM kernels WHERE name LIKE $pattern ESCAPE '\'", pattern=r"x\%\_y")
    assert [r["name"] for r in escaped] == ["x%_y"]


def test_fault_58_tables_are_all_there_after(hostile: Recordings) -> None:
    for name in EXPECTED[HOSTILE_FILE]["names_exact"]:
        ask(hostile, "SELECT * FROM kernel_time WHERE name = $n", n=name)
    assert EXPECTED["tables_after"] == "all present"
    present = {r["name"] for r in ask(hostile, "SHOW TABLES")}
    assert present == {RUNS.name, *RUN_TABLES, *DIFF_TABLES, *VIEWS}


@given(name=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_a_value(small: Recordings, name: str) -> None:
    assert ask(small, "SELECT $v AS v, $v = $w AS same", v=name, w=name) == [{"v": name, "same": True}]


# --- what a query may not do ---


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("", "is empty"),
        ("-- nothing", "is empty"),
        ("SELECT 1; SELECT 2", "2 were given"),
        ("SELECT 1; DROP VIEW op_time", "2 were given"),
        ("COPY (SELECT 1) TO 'x.csv'", "COPY is not admitted"),
        ("COPY ops FROM 'x.csv'", "COPY is not admitted"),
        ("ATTACH 'x.db'", "ATTACH is not admitted"),
        ("DETACH memory", "DETACH is not admitted"),
        ("INSTALL httpfs", "is not admitted"),
        ("LOAD httpfs", "is not admitted"),
        ("PRAGMA database_list", "PRAGMA is not admitted"),
        ("CALL pragma_version()", "CALL is not admitted"),
        ("SET memory_limit = '1GB'", "SET is not admitted"),
        ("RESET memory_limit", "is not admitted"),
        ("CREATE TABLE t AS SELECT 1", "CREATE is not admitted"),
        ("CREATE OR REPLACE VIEW op_time AS SELECT 1", "CREATE is not admitted"),
        ("CREATE MACRO f() AS 1", "CREATE is not admitted"),
        ("DROP VIEW op_time", "DROP is not admitted"),
        ("ALTER VIEW op_time RENAME TO x", "ALTER is not admitted"),
        ("INSERT INTO ops VALUES (1)", "INSERT is not admitted"),
        ("UPDATE ops SET name = 'x'", "UPDATE is not admitted"),
        ("DELETE FROM ops", "DELETE is not admitted"),
        ("EXPORT DATABASE 'x'", "EXPORT is not admitted"),
        ("IMPORT DATABASE 'x'", "is not admitted"),
        ("PREPARE p AS SELECT 1", "PREPARE is not admitted"),
        ("EXPLAIN SELECT 1", "EXPLAIN is not admitted"),
        ("EXPLAIN ANALYZE SELECT 1", "EXPLAIN is not admitted"),
        ("VACUUM", "VACUUM is not admitted"),
        ("CHECKPOINT", "is not admitted"),
        ("BEGIN", "TRANSACTION is not admitted"),
        ("USE memory", "is not admitted"),
        ("PIVOT ops ON name USING count(*)", "list them"),
        ("SELECT * FROM read_csv('/etc/passwd')", "read_csv is not admitted"),
        ("SELECT * FROM READ_TEXT('/etc/passwd')", "READ_TEXT is not admitted"),
        ("SELECT (SELECT content FROM read_blob('/etc/passwd'))", "read_blob is not admitted"),
        ("SELECT 1 WHERE 1 IN (SELECT 1 FROM glob('*'))", "glob is not admitted"),
        ("WITH a AS (SELECT * FROM read_parquet('x')) SELECT * FROM a", "read_parquet is not admitted"),
        ("FROM ops, LATERAL (SELECT * FROM parquet_metadata('x'))", "parquet_metadata is not admitted"),
        ("SELECT 1 UNION ALL SELECT 1 FROM sniff_csv('x')", "sniff_csv is not admitted"),
        ("DESCRIBE SELECT * FROM read_json('x')", "read_json is not admitted"),
        ("SUMMARIZE SELECT * FROM read_json('x')", "read_json is not admitted"),
        ("SELECT * FROM query('SELECT 1')", "query is not admitted"),
        ("SELECT * FROM query_table('ops')", "query_table is not admitted"),
        ("SELECT * FROM json_execute_serialized_sql('{}')", "json_execute_serialized_sql is not admitted"),
        ("SELECT * FROM duckdb_settings()", "duckdb_settings is not admitted"),
        ("SELECT * FROM duckdb_secrets()", "duckdb_secrets is not admitted"),
        ("SELECT * FROM arrow_scan(1, 2, 3)", "arrow_scan is not admitted"),
        ("SELECT * FROM pandas_scan(1)", "pandas_scan is not admitted"),
        ("SELECT * FROM ops WHERE name = ANY (SELECT 1 FROM duckdb_functions())", "duckdb_functions is not admitted"),
        ("SELECT * FROM '/etc/passwd'", "does not exist"),
        ("SELECT * FROM 'tables/ops.parquet'", "sees the recordings only"),
        ("SELECT * FROM 'https://example.org/x.parquet'", "sees the recordings only"),
        ("SELECT getenv('HOME')", "does not exist"),
        ("SELECT * FROM nothing_here", "does not exist"),
        ("SELECT nothing_here FROM ops", "not found"),
        ("SELEC 1", "syntax error"),
        ("SELECT 'open", "Error"),
        ("SELECT $a", "no value"),
        ("SELECT ?", "no value"),
        ("SELECT '\ud800'", "not valid UTF-8"),
        ("SELECT CAST(name AS BIGINT) FROM ops", "Conversion Error"),
    ],
)
def test_refusals_are_one_clear_line(small: Recordings, sql: str, says: str) -> None:
    with pytest.raises(errors.UsageError) as caught:
        ask(small, sql)
    assert says.lower() in str(caught.value).lower()
    assert "\n" not in str(caught.value)
    assert len(ask(small, "SELECT * FROM op_time")) == 4, "the recording can still be asked"


@pytest.mark.parametrize(
    "sql",
    [
        "FROM ops",
        "TABLE ops",
        "VALUES (1)",
        "WITH a AS (SELECT 1 AS x) SELECT x FROM a;",
        "DESCRIBE ops",
        "SUMMARIZE ops",
        "SHOW TABLES",
        "SELECT unnest(grid) FROM kernels",
        "SELECT * FROM range(3), generate_series(1, 2), unnest([1])",
        "SELECT o.op_id, j.value FROM ops o, json_each('[1, 2]') j",
        "PIVOT ops ON name IN ('aten::relu') USING count(*)",
        "SELECT json_extract_string(metadata, '$.a') FROM captures",
        "SELECT quantile_cont(dur_ns, 0.9) FROM kernels",
        "SELECT lag(ts_ns) OVER (ORDER BY ts_ns) FROM kernels",
        "SELECT to_timestamp(1) AT TIME ZONE 'UTC'",
    ],
)
def test_what_reads_only_is_admitted(small: Recordings, sql: str) -> None:
    ask(small, sql)


def test_variables_of_the_program_are_not_visible(small: Recordings) -> None:
    secret = duckdb.sql("SELECT 'secret' AS s").to_arrow_table()
    with pytest.raises(errors.UsageError, match="does not exist"):
        ask(small, "SELECT * FROM secret")
    assert secret.num_rows == 1


def test_the_engine_itself_is_shut(small: Recordings, tmp_path: Path) -> None:
    """What keeps a query in holds even if one got past the admission."""
    (tmp_path / "x.csv").write_text("a\n1\n")
    engine = small._engine.connection
    for sql in (
        f"SELECT * FROM read_csv('{tmp_path}/x.csv')",
        f"COPY (SELECT 1) TO '{tmp_path}/y.csv'",
        f"ATTACH '{tmp_path}/z.db'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SET allowed_directories = ['/']",
        "SET python_enable_replacements = true",
        "RESET lock_configuration",
    ):
        with pytest.raises(duckdb.Error):
            engine.execute(sql).fetchall()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.csv"]


def test_values_take_the_type_of_what_they_meet(small: Recordings) -> None:
    assert ask(small, "SELECT count(*) AS n FROM kernels WHERE dur_ns > $least", least="100") == [{"n": 2}]
    assert ask(small, "SELECT name FROM kernel_time ORDER BY name LIMIT $n", n="1")[0]["name"].startswith("Memcpy")
    assert ask(small, "SELECT $x::DOUBLE * 2 AS y", x="1.5") == [{"y": 3.0}]
    with pytest.raises(errors.UsageError, match=r"\$b, which the query does not use"):
        ask(small, "SELECT $a", a="1", b="2")
    with pytest.raises(errors.UsageError, match=r"uses \$b, which has no value"):
        ask(small, "SELECT $a, $b", a="1")
    with pytest.raises(errors.UsageError, match="Conversion Error"):
        ask(small, "SELECT * FROM kernels WHERE dur_ns > $least", least="much")


# --- results ---


def test_columns_of_one_name_are_told_apart(small: Recordings) -> None:
    assert ask(small, "SELECT 1 AS a, 2 AS a, 3 AS a_1") == [{"a": 1, "a_2": 2, "a_1": 3}]


def test_results_are_computed_while_they_are_read(small: Recordings) -> None:
    """A thousand billion rows: the first ones come at once, and the rest is never made."""
    result = small.query("SELECT i.range AS i, j.range AS j FROM range(1000000) i, range(1000000) j")
    assert next(iter(result)).num_rows > 0
    del result
    assert ask(small, "SELECT 1 AS one") == [{"one": 1}]


def test_spill_files_stay_out_of_sight_and_go_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scratch = tmp_path / "it's [scratch]"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    run = write_recording(tmp_path / "run", small_tables())
    with Recordings([run], memory_limit="64MB") as opened:
        count = ask(
            opened,
            "SELECT count(*) AS n FROM (SELECT range AS i, hash(range) AS h, repeat('x', 30) AS s FROM range(2000000) ORDER BY h, s)",
        )
        assert count == [{"n": 2_000_000}]
    assert list(scratch.iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == [scratch.name, "run"]


def test_a_memory_limit_that_is_none_is_refused(tmp_path: Path) -> None:
    run = write_recording(tmp_path / "run", {})
    with pytest.raises(errors.UsageError, match="2GB"):
        Recordings([run], memory_limit="much")
    with pytest.raises(errors.UsageError, match="no recording"):
        Recordings([])


def test_too_little_memory_is_said(tmp_path: Path) -> None:
    run = write_recording(tmp_path / "run", {})
    with Recordings([run], memory_limit="20MB") as opened, pytest.raises(errors.LimitExceededError, match="memory"):
        ask(opened, "SELECT list(hash(range)) FROM range(10000000)")
