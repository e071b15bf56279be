"""The command line: data on stdout, one line per error on stderr, exit codes from one place."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from tests.support.small_recording import RUN_ID, small_tables, write_recording

from magneton.cli import app as cli
from magneton.cli import console, output
from magneton.cli.app import main
from magneton.cli.docs import commands
from magneton.schemas import errors
from magneton.schemas.documents.commands import CatalogDocument, InfoDocument
from magneton.schemas.tables.diff import DIFF_TABLES
from magneton.schemas.tables.run import RUN_TABLES
from magneton.schemas.versions.registry import SCHEMA_VERSION
from magneton.schemas.views.registry import RUNS, VIEWS

Run = Callable[..., tuple[int, bytes, str]]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("MAGNETON_TRACEBACK", raising=False)
    level = console.LOG.level
    yield
    console.LOG.setLevel(level)


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Run the command line in this process; return exit code, stdout and stderr."""

    def call(*words: object) -> tuple[int, bytes, str]:
        code = main([str(w) for w in words])
        sys.stdout.flush()
        sys.stderr.flush()
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return call


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_recording(tmp_path / "small", small_tables())


def spawn(*words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "magneton.cli", *words], capture_output=True, timeout=60, **options)


# --- errors and exit codes ---


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(name: str | None = None) -> None:
        raise error

    group = typer.main.get_command(cli.app)
    monkeypatch.setattr(group.commands["tables"], "callback", fail)
    monkeypatch.setattr(group.commands["tables"], "params", [])
    monkeypatch.setattr("typer.main.get_command", lambda _: group)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (errors.UsageError("no"), 2, "magneton: error: no"),
        (errors.InputFormatError("is\nbad", path="a\x1b[31m"), 2, "magneton: error: a\\x1b[31m: is\\nbad"),
        (
            errors.NotComparableError("differ", remedy="pass --per token"),
            2,
            "magneton: error: differ (pass --per token)",
        ),
        (KeyboardInterrupt(), 130, "magneton: interrupted"),
        (FileNotFoundError(2, "No such file or directory", "x"), 2, "magneton: error: x: No such file or directory"),
        (
            OSError(28, "No space left on device"),
            2,
            "magneton: error: stdout: cannot be written: No space left on device",
        ),
        (OSError(12, "Cannot allocate memory"), 2, "magneton: error: Cannot allocate memory"),
        (
            ValueError("ugly\nmessage"),
            70,
            "magneton: internal error: ValueError: ugly\\nmessage "
            "(this is a bug; run again with MAGNETON_TRACEBACK=1 to see where)",
        ),
        (AssertionError(), 70, "magneton: internal error: AssertionError:  (this is a bug;"),
    ],
)
def test_an_error_is_one_line_and_a_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, line: str
) -> None:
    failing(monkeypatch, error)
    found, out, err = run("tables")
    assert (found, out) == (code, b"")
    assert err.startswith(line)
    assert err.count("\n") == 1


@pytest.mark.parametrize("how", ["environment", "flag", "global flag"])
def test_tracebacks_are_shown_on_request(run: Run, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    failing(monkeypatch, ValueError("where"))
    if how == "environment":
        monkeypatch.setenv("MAGNETON_TRACEBACK", "1")
        code, _, err = run("tables")
    else:
        code, _, err = run("-vv", "tables")
    assert code == 70
    assert "Traceback" in err
    assert "raise error" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nope"], "No such command"),
        (["sql", "--nope"], "No such option"),
        (["sql"], "see magneton sql --help"),
        (["sql", "--rows", "many", "x", "y"], "--rows"),
        (["tables", "nope\x1b"], "no table or view nope\\x1b"),
    ],
)
def test_wrong_usage_is_one_line_and_2(run: Run, words: list[str], says: str) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, b"")
    assert err.startswith("magneton: error: ")
    assert says in err
    assert err.count("\n") == 1


def test_no_command_shows_help_on_stderr(run: Run) -> None:
    code, out, err = run()
    assert (code, out) == (2, b"")
    assert "Usage: magneton" in err


def test_version(run: Run) -> None:
    code, out, err = run("--version")
    assert (code, err) == (0, "")
    assert out.startswith(b"magneton ")


def test_the_installed_script_runs() -> None:
    done = spawn("--version")
    assert done.returncode == 0
    assert done.stdout.startswith(b"magneton ")


def test_a_reader_that_goes_away_is_no_error(small: Path) -> None:
    command = [sys.executable, "-m", "magneton.cli", "sql", str(small), "FROM events, range(200000)", "--csv"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"run,")
        process.stdout.close()
        assert process.wait(60) == errors.EXIT_PIPE_CLOSED
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    "words", [["tables"], ["tables", "ops"], ["--help"], ["sql", "RUN", "FROM range(20000)", "--rows=0"]]
)
def test_a_pipe_that_was_closed_before_is_no_error(small: Path, words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "magneton.cli", *(str(small) if w == "RUN" else w for w in words)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (errors.EXIT_PIPE_CLOSED, b"")


def test_a_query_is_interrupted_at_once(small: Path) -> None:
    command = [sys.executable, "-m", "magneton.cli", "sql", str(small), "FROM range(1000000000000)", "--json"]
    # What a shell starts in the background ignores interrupts, and so would the query.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (errors.EXIT_INTERRUPTED, b"magneton: interrupted\n")


def test_help_needs_no_engine() -> None:
    code = "import sys; from magneton.cli.app import main; main(['--help']); sys.exit('duckdb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0


def test_log_lines_cannot_drive_the_terminal(run: Run, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    run("-v", "tables")
    assert console.LOG.level == logging.INFO
    console.LOG.info("read %s", "evil\x1b]0;title\x07\nname")
    assert capfdbinary.readouterr().err == b"magneton: info: read evil\\x1b]0;title\\x07\\nname\n"


# --- every command ---


@pytest.mark.parametrize("name", commands())
def test_every_command_and_option_explains_itself(run: Run, name: str) -> None:
    command = commands()[name]
    assert command.help
    for parameter in command.params:
        assert parameter.help, f"{name} {parameter.name}"
    code, out, err = run(name, "--help")
    assert (code, err) == (0, "")
    assert command.help.splitlines()[0][:30] in out.decode()


@pytest.mark.parametrize("name", commands())
def test_one_command_per_file_with_json(root: Path, name: str) -> None:
    path = root / "cli" / "magneton" / "cli" / "commands" / f"{name}.py"
    assert f"def {name}(" in path.read_text()
    assert any("--json" in parameter.opts for parameter in commands()[name].params)


# --- sql ---


def test_sql_as_a_table(run: Run, small: Path) -> None:
    code, out, err = run("sql", small, "SELECT name, time_ns FROM op_time ORDER BY time_ns DESC NULLS LAST, name")
    assert code == 0
    assert err == "4 rows\n"
    lines = [line.split() for line in out.decode().splitlines()]
    assert lines[0] == ["name", "time_ns"]
    assert lines[2:] == [["aten::addmm", "1200"], ["aten::relu", "200"], ["aten::linear", "NULL"], ["NULL", "NULL"]]


def test_sql_table_says_what_it_leaves_out(run: Run, small: Path) -> None:
    code, out, err = run("sql", small, "SELECT range AS i FROM range(100000)", "--rows", "3")
    assert code == 0
    assert [line.strip() for line in out.decode().splitlines()[2:]] == ["0", "1", "2"]
    assert err == "100000 rows, the first 3 shown (--rows 0 shows all)\n"
    assert len(run("sql", small, "SELECT range FROM range(500)", "--rows", 0)[1].splitlines()) == 502


def test_sql_table_escapes_what_would_drive_the_terminal(run: Run, tmp_path: Path) -> None:
    hostile = "\x1b[2J[red]x[/red]\u202e\nend"
    kernels = [{"kernel_id": 0, "name": hostile, "category": "kernel", "ts_ns": 0, "dur_ns": 1}]
    directory = write_recording(tmp_path / "run", {"kernels": kernels}, label="\x1b]0;own\x07")
    code, out, _ = run("sql", directory, "SELECT run, name FROM kernels")
    assert code == 0
    assert "\\x1b[2J[red]x[/red]\\u202e\\nend" in out.decode()
    assert "\\x1b]0;own\\x07" in out.decode()
    assert b"\x1b" not in out
    assert b"\x1b" not in run("info", directory)[1]


def test_sql_as_json_keeps_numbers_and_nulls(run: Run, small: Path) -> None:
    sql = (
        "SELECT 9223372036854775807 AS big, sum(dur_ns) AS wide, 170141183460469231731687303715884105727::HUGEINT // 10 AS huge, "
        "'nan'::DOUBLE AS nan, '-inf'::DOUBLE AS inf, 1.50::DECIMAL(5, 2) AS money, NULL AS nothing, true AS yes, "
        "[1, NULL] AS list, {'a': 'nan'::DOUBLE} AS inner, DATE '2026-01-02' AS day, 'ü\"\n' AS text, ''::BLOB AS raw FROM ops"
    )
    code, out, err = run("sql", small, sql, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == [
        {
            "big": 9223372036854775807,
            "wide": 1600,
            "huge": 17014118346046923173168730371588410572,
            "nan": None,
            "inf": None,
            "money": 1.5,
            "nothing": None,
            "yes": True,
            "list": [1, None],
            "inner": {"a": None},
            "day": "2026-01-02",
            "text": 'ü"\n',
            "raw": "",
        }
    ]
    assert b"NaN" not in out
    assert run("sql", small, "SELECT 1 WHERE false", "--json")[1] == b"[]\n"
    assert len(json.loads(run("sql", small, "SELECT range FROM range(25000)", "--json")[1])) == 25_000


def test_sql_as_csv_is_rfc_4180_and_exact(run: Run, small: Path) -> None:
    sql = (
        "SELECT '=1+1' AS formula, '-x' AS dash, 'a,b' AS comma, 'q\"q' AS quote, 'two\nlines' AS lines, "
        "NULL AS nothing, '' AS empty, 0.1::DOUBLE AS real, [1, 2] AS list, true AS yes, ' x' AS blank, 'it''s, \"ü\"' AS \"a,b\""
    )
    code, out, err = run("sql", small, sql, "--csv")
    assert (code, err) == (0, "")
    assert out.decode() == (
        'formula,dash,comma,quote,lines,nothing,empty,real,list,yes,blank,"a,b"\r\n'
        '=1+1,-x,"a,b","q""q","two\nlines",,"",0.1,"[1,2]",true," x","it\'s, ""ü"""\r\n'
    )
    assert len(list(csv.reader(io.StringIO(out.decode(), newline="")))) == 2


@given(st.lists(st.lists(st.none() | st.text(), min_size=2, max_size=2), min_size=1))
def test_csv_cells_are_read_back_as_they_were(records: list[list[str | None]]) -> None:
    columns = [output._cells(pa.array([r[i] for r in records], pa.string())).to_pylist() for i in (0, 1)]
    text = "".join(f"{a},{b}\r\n" for a, b in zip(*columns, strict=True))
    assert list(csv.reader(io.StringIO(text, newline=""))) == [[cell or "" for cell in r] for r in records]
    for r, cells in zip(records, zip(*columns, strict=True), strict=True):
        assert [c == "" for c in cells] == [value is None for value in r], "NULL and empty text are told apart"


def test_sql_to_parquet_is_whole_and_never_over_another(run: Run, small: Path, tmp_path: Path) -> None:
    target = tmp_path / "it's [1]*?.parquet"
    code, out, err = run("sql", small, "SELECT name, dur_ns FROM ops ORDER BY op_id", "--parquet", target)
    assert (code, out) == (0, b"")
    assert err == f"{target}: 6 rows\n"
    table = pq.ParquetFile(target).read()
    assert table.column("dur_ns").to_pylist() == [400, 300, 100] * 2
    code, _, err = run("sql", small, "SELECT 1", "--parquet", target)
    assert code == 2
    assert "already exists" in err
    code, _, err = run("sql", small, "SELECT CAST(name AS BIGINT) FROM ops", "--parquet", target, "--force")
    assert code == 2
    assert pq.ParquetFile(target).read().equals(table)
    assert run("sql", small, "SELECT 1 AS one", "--parquet", target, "-f")[0] == 0
    assert pq.ParquetFile(target).read().to_pylist() == [{"one": 1}]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_sql_binds_values(run: Run, small: Path) -> None:
    sql = "SELECT count(*) AS n FROM kernels WHERE name = $name AND dur_ns >= $least"
    words = ["sql", small, sql, "--json", "-p", "name=gemm_128x64", "--param", "least=600"]
    assert json.loads(run(*words)[1]) == [{"n": 2}]
    assert json.loads(run("sql", small, "SELECT $v AS v", "--json", "-p", "v=a=b'\"; --")[1]) == [{"v": "a=b'\"; --"}]
    for bad, says in (
        (["-p", "name"], "NAME=VALUE"),
        (["-p", "1x=2"], "NAME=VALUE"),
        (["-p", "a=1", "-p", "a=2"], "given twice"),
        (["-p", "unused=1"], "does not use"),
    ):
        code, _, err = run("sql", small, "SELECT 1", *bad)
        assert code == 2
        assert says in err


def test_sql_reads_the_query_from_stdin(small: Path) -> None:
    done = spawn("sql", str(small), "-", "--json", input="SELECT 'ü' AS u".encode())
    assert json.loads(done.stdout) == [{"u": "ü"}]


def test_sql_wants_one_output_and_a_query(run: Run, small: Path) -> None:
    code, _, err = run("sql", small, "SELECT 1", "--json", "--csv")
    assert code == 2
    assert "exclude one another" in err
    code, _, err = run("sql", small, small)
    assert code == 2
    assert "the query is missing" in err


def test_sql_refuses_on_one_line(run: Run, small: Path) -> None:
    for sql in ("COPY ops TO 'x'", "SELECT * FROM read_csv('x')", "SELEC", "SELECT nope FROM ops"):
        code, out, err = run("sql", small, sql)
        assert (code, out) == (2, b"")
        assert err.count("\n") == 1


def test_names_that_begin_with_a_dash(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_recording(Path("-rf"), small_tables())
    for words in (["--", "-rf", "SELECT 1 AS x"], ["./-rf", "SELECT 1 AS x"]):
        code, out, _ = run("sql", "--json", *words)
        assert code == 0
        assert json.loads(out) == [{"x": 1}]


# --- tables, info ---


def test_tables_lists_everything_a_query_can_use(run: Run) -> None:
    code, out, err = run("tables", "--json")
    assert (code, err) == (0, "")
    listed = {entry["name"]: entry for entry in json.loads(out)["tables"]}
    msgspec.convert(json.loads(out), CatalogDocument)
    assert set(listed) == {RUNS.name, *RUN_TABLES, *DIFF_TABLES, *VIEWS}
    assert {n for n, e in listed.items() if e["kind"] == "view"} == set(VIEWS)
    assert all(e["columns"][0]["name"] == ("diff" if n in DIFF_TABLES else "run") for n, e in listed.items())
    duration = next(c for c in listed["kernels"]["columns"] if c["name"] == "dur_ns")
    assert duration == {"name": "dur_ns", "type": "int64", "unit": "ns", "doc": "length; NULL when unknown"}
    shown = run("tables")[1].decode()
    assert all(name in shown for name in listed)


@pytest.mark.parametrize("name", ["ops", "op_time", "runs"])
def test_tables_explains_one(run: Run, name: str) -> None:
    code, out, _ = run("tables", name)
    assert code == 0
    columns = json.loads(run("tables", name, "--json")[1])["tables"][0]["columns"]
    for column in columns:
        assert column["name"] in out.decode()
        assert column["doc"] in out.decode()
    assert ("SELECT" in out.decode()) == (name in VIEWS)


def test_info_accounts_for_every_event(run: Run, small: Path) -> None:
    code, out, err = run("info", small, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    msgspec.convert(document, InfoDocument)
    assert document["schema_version"] == SCHEMA_VERSION
    assert document["manifest"]["run_id"] == RUN_ID
    assert document["manifest"]["workload"]["batch"] == 2
    assert {k: v for k, v in document["tables"].items() if v} == {
        "captures": 1,
        "ops": 6,
        "launches": 4,
        "kernels": 5,
        "annotations": 1,
        "steps": 2,
        "modules": 2,
        "quarantine": 1,
        "warnings": 1,
    }
    (capture,) = document["captures"]
    parts = [capture[f"n_{k}"] for k in ("kept", "merged", "ignored", "quarantined")]
    assert capture["n_raw"] == sum(parts) == 12
    assert [(h["kind"], h["code"], h["count"]) for h in document["health"]] == [
        ("warning", "events_quarantined", 1),
        ("quarantine", "dur_negative", 1),
    ]
    shown = run("info", small)[1].decode()
    for fact in (RUN_ID, "tiny", "kineto", "events_quarantined", "dur_negative", "kernels"):
        assert fact in shown


def test_info_of_a_recording_without_tables(run: Run, small: Path) -> None:
    shutil.rmtree(small / "tables")
    code, out, err = run("info", small, "--json")
    assert code == 0
    assert json.loads(out)["tables"] is None
    msgspec.convert(json.loads(out), InfoDocument)
    assert (
        err == f"no tables could be made: {small}: keeps no trace of its own (normalise the trace it was made from)\n"
    )
    assert "holds no tables" in run("info", small)[1].decode()


def test_info_of_nothing(run: Run, tmp_path: Path) -> None:
    code, out, err = run("info", tmp_path / "none", "--json")
    assert (code, out) == (2, b"")
    assert err == f"magneton: error: {tmp_path / 'none'}: no such file or directory\n"


def test_no_color_is_honoured_on_a_terminal(small: Path) -> None:
    ours, theirs = os.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "magneton.cli", "sql", str(small), "SELECT name, dur_ns FROM kernels"]
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, env=environment, timeout=60)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert done.returncode == 0, done.stderr
    assert "gemm_128x64" in shown
    codes = {code for sequence in re.findall(r"\x1b\[([0-9;]*)m", shown) for code in sequence.split(";")}
    assert codes <= {"", "0", "1", "2"}, "no colour, at most bold and dim"
