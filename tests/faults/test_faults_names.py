"""Fault cases of names and of files that are not what they claim: SQL, reports, paths, tables, archives.

One test per expected value.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.schemas.test_parquet_schema import READERS, prepared
from tests.support.fault_cases import ARCHIVES, COUNTS, HTML, Case, Context, accept, busy_ns, capture, equal, params
from tests.support.normalized import Normalizer

from magneton.analysis.query import Recordings
from magneton.cli.app import main
from magneton.flows.pairs import compare
from magneton.schemas import errors
from magneton.schemas.tables.diff import DIFF_TABLES
from magneton.schemas.tables.run import RUN_TABLES
from magneton.schemas.versions import registry as versions
from magneton.schemas.views.registry import RUNS, VIEWS

# --- 58 names and SQL ----------------------------------------------------------------------------------------------------

HOSTILE_FILE = "run 'x' [1]*?.json"
Ask = dict[str, Any]


def _ask(context: Context, sql: str, **bound: Any) -> list[Ask]:
    with Recordings([context.run(HOSTILE_FILE).path]) as opened:
        found: list[Ask] = opened.query(sql, bound).read_all().to_pylist()
        return found


def _by_exact_name(context: Context, value: int, key: str) -> None:
    sql = "SELECT sum(dur_ns)::BIGINT AS ns FROM kernels WHERE name = $name"
    assert _ask(context, sql, name=key) == [{"ns": value}]


def _like_is_escaped(context: Context, value: Any) -> None:
    sql = r"SELECT name FROM kernels WHERE name LIKE $pattern ESCAPE '\'"
    assert _ask(context, sql, pattern=r"%\%\_%") == [{"name": "x%_y"}]


def _tables_after(context: Context, value: Any) -> None:
    for name in context.run(HOSTILE_FILE).by_name("kernels"):
        _ask(context, "SELECT * FROM kernel_time WHERE name = $n", n=name)
    present = {row["name"] for row in _ask(context, "SHOW TABLES")}
    assert present == {RUNS.name, *RUN_TABLES, *DIFF_TABLES, *VIEWS}


def _typed(context: Context, monkeypatch: pytest.MonkeyPatch, file: str, *words: str) -> list[str]:
    """Normalise a file from inside its folder, as somebody types it; return what then lies there."""
    folder = context.tmp_path / "typed"
    folder.mkdir()
    shutil.copy(context.file(file), folder)
    monkeypatch.chdir(folder)
    assert main(["normalize", *words]) == errors.EXIT_OK
    return sorted(path.name for path in folder.iterdir())


def _like_an_option(context: Context, value: Any) -> None:
    assert [k["name"] for k in context.run("-rf.json").rows("kernels")] == ["dash"]
    for words in (["-o", "run", "--", "-rf.json"], ["-o", "run", "./-rf.json"]):
        with pytest.MonkeyPatch.context() as patch:
            assert _typed(context, patch, "-rf.json", *words) == ["-rf.json", "run"]
        shutil.rmtree(context.tmp_path / "typed")


def _no_command_ran(context: Context, value: Any) -> None:
    file = "a;b&c$(touch pwned).json"
    with pytest.MonkeyPatch.context() as patch:
        assert _typed(context, patch, file, file, "-o", "run") == [file, "run"]


def _no_name_is_sql(context: Context, value: Any) -> None:
    """Every name is found by binding it, in every table and view that has names, and changes nothing."""
    for name in context.run(HOSTILE_FILE).by_name("kernels"):
        for table in ("kernels", "kernel_time"):
            assert len(_ask(context, f"SELECT name FROM {table} WHERE name = $n", n=name)) == 1
    assert len(_ask(context, "SELECT * FROM kernels")) == 9


SQL = Case(
    "58-sql-hostile-names",
    {
        f"{HOSTILE_FILE}.verdict": lambda c, v: equal(
            (capture(c.run(HOSTILE_FILE))["n_quarantined"], "events_quarantined" in c.run(HOSTILE_FILE).warnings()),
            (0, False),
        ),
        f"{HOSTILE_FILE}.n_kept": lambda c, v: equal(capture(c.run(HOSTILE_FILE))["n_kept"], v),
        f"{HOSTILE_FILE}.busy_ns": lambda c, v: equal(busy_ns(c.run(HOSTILE_FILE)), v),
        f"{HOSTILE_FILE}.names_exact": lambda c, v: equal([k["name"] for k in c.run(HOSTILE_FILE).rows("kernels")], v),
        f"{HOSTILE_FILE}.decoy_read": lambda c, v: equal("decoy" in c.run(HOSTILE_FILE).by_name("kernels"), v),
        "-rf.json": _like_an_option,
        "a;b&c$(touch pwned).json": _no_command_ran,
        "query_by_exact_name.*": _by_exact_name,
        "like_wildcards_escaped": _like_is_escaped,
        "tables_after": _tables_after,
        "forbidden.0": _no_name_is_sql,
        "forbidden.1": lambda c, v: equal(busy_ns(c.run(HOSTILE_FILE)), 45_000),
    },
)

# --- 60, 61 names in reports, paths in frames -----------------------------------------------------------------------------

NAMES = [
    "<img src=x onerror=alert(1)>", '=HYPERLINK("http://example.invalid","x")', "@SUM(1+1)", "+1|2", "a|b",
    "\x1b[31mred\x1b[0m", "</script><script>1</script>", "${7*7}{{7*7}}",
]  # fmt: skip


def _exact(context: Context, value: Any) -> None:
    events = json.loads(context.file().read_text())["traceEvents"]
    assert [k["name"] for k in context.run().rows("kernels")] == [e["name"] for e in events] == NAMES


def _printed(context: Context, capsysbinary: pytest.CaptureFixture[bytes], *words: str) -> bytes:
    assert main([*words]) == errors.EXIT_OK
    return capsysbinary.readouterr().out


def _csv_is_raw(context: Context, capsysbinary: pytest.CaptureFixture[bytes], root: Path) -> None:
    query = "SELECT name FROM kernels ORDER BY ts_ns"
    out = _printed(context, capsysbinary, "sql", str(context.run().path), query, "--csv").decode()
    quoted = [f'"{n}"'.replace('"', '""')[1:-1] if '"' in n else n for n in NAMES]
    assert out.split("\r\n")[1:-1] == quoted
    assert "spreadsheet may take a name that begins with =" in " ".join((root / "docs/cli.md").read_text().split())


def _terminal(context: Context, capsysbinary: pytest.CaptureFixture[bytes], root: Path) -> None:
    run = str(context.run().path)
    out = _printed(context, capsysbinary, "sql", run, "SELECT name FROM kernels ORDER BY ts_ns")
    assert rb"\x1b[31mred\x1b[0m" in out
    assert b"\x1b[31m" not in out
    twin = shutil.copy(context.file(), context.tmp_path / "twin.json")
    out = _printed(context, capsysbinary, "diff", run, str(twin), "-o", str(context.tmp_path / "out"))
    assert b"\x1b[31m" not in out


def _markdown(context: Context, capsysbinary: pytest.CaptureFixture[bytes], root: Path) -> None:
    """Longer kernels on one side, so that all names stand in the report's tables."""
    longer = json.loads(context.file().read_text())
    for event in longer["traceEvents"]:
        event["dur"] *= 2
    other = context.tmp_path / "longer.json"
    other.write_text(json.dumps(longer))
    report = (compare(context.file(), other, context.tmp_path / "out").directory / "report.md").read_text()
    tables = [line for line in report.splitlines() if line.startswith("| ")]
    assert {line.count("|") for line in tables} <= {6, 7, 8, 9, 11}
    assert any("a&#124;b" in line for line in tables)
    assert not any(word in report for word in ("<script", "<img", "\x1b"))


REPORTS = Case(
    "60-report-injection",
    COUNTS | {"verdict": accept, "parquet_names_exact": _exact},
    later={"html": HTML, "json_in_html": HTML},
)
OUTPUTS = {"csv": _csv_is_raw, "terminal": _terminal, "markdown": _markdown}
PRINTED = Case("60-report-injection", dict.fromkeys(OUTPUTS, accept))


@pytest.mark.parametrize(("case", "path", "value"), params(PRINTED))
def test_output(
    case: Case,
    path: str,
    value: Any,
    normalized: Normalizer,
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    root: Path,
) -> None:
    OUTPUTS[path](Context(case.name, normalized, tmp_path), capsysbinary, root)


def _places(context: Context, value: list[dict[str, Any] | None]) -> None:
    found = [
        None if f["file"] is None else {"file": f["file"], "line": f["line"], "func": f["function"]}
        for f in context.run().rows("frames")
    ]
    assert found == value


def _addresses_do_not_matter(context: Context, value: Any) -> None:
    """The case with work below its frames, recorded twice: objects lie elsewhere the second time."""
    sides = []
    for letter, address in (("a", "0x7f00aa"), ("b", "0x55d0c0ffee10")):
        text = context.file().read_text().replace("0x7f00aa", address)
        document = json.loads(text)
        for number, frame in enumerate(document["traceEvents"][:]):
            at = frame["ts"]
            thread = {"ph": "X", "pid": 100, "tid": 100}
            op = f"call of {frame['name']}"
            document["traceEvents"] += [
                thread | {"cat": "cpu_op", "name": op, "ts": at + 1, "dur": 3, "args": {"Input Dims": [[8, number]]}},
                thread
                | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 2, "dur": 1}
                | {"args": {"correlation": number + 1}},
                {"ph": "X", "cat": "kernel", "name": f"k at {address}", "pid": 0, "tid": 7, "ts": at + 3, "dur": 4}
                | {"args": {"device": 0, "stream": 7, "correlation": number + 1}},
            ]
        path = context.tmp_path / f"{letter}.json"
        path.write_text(json.dumps(document))
        sides.append(path)
    assert "0x7f00aa" in sides[0].read_text()
    document = compare(*sides, context.tmp_path / "out").document
    assert (document.coverage.n_only_a, document.coverage.n_only_b, document.findings) == (0, 0, [])
    assert {r.delta_ns for r in document.regions} == {0.0}
    assert all(row.time_ns.delta == 0 for rows in document.rollups.values() for row in rows)


PATHS = Case(
    "61-windows-paths-and-redaction",
    COUNTS
    | {
        "verdict": accept,
        "frames": _places,
        "matching_key_equal_across_runs": _addresses_do_not_matter,
        "forbidden.0": lambda c, v: equal(c.run().rows("frames")[0]["file"], "C:\\Users\\u\\model.py"),
    },
    later={"archive_with_redaction.*": ARCHIVES},
)

# --- 57 tables that are not what they claim ---------------------------------------------------------------------------------

_FACTS = {
    "v999.parquet": ["999", versions.supported()],
    "missing_dur.parquet": ["dur_ns"],
    "float_ts.parquet": ["ts_ns", "double", "int64"],
}


def _table(context: Context, value: str, file: str) -> None:
    """Read one table of the case through each reader: refused as said, or whole."""
    for number, read in enumerate(READERS):
        folder = context.tmp_path / f"{file}-{number}"
        folder.mkdir()
        path = prepared(file, folder / "kernels.parquet")
        if value.startswith("accept"):
            assert read(path).column("dur_ns").null_count == 0
            continue
        accepted = tuple(getattr(errors, word) for word in value.replace(",", "").split() if word.endswith("Error"))
        with pytest.raises(accepted) as caught:
            read(path)
        line = str(caught.value)
        assert caught.value.exit_code == errors.EXIT_BAD_INPUT
        assert "\n" not in line
        assert all(fact in line for fact in ["kernels.parquet", *_FACTS.get(file, [])])


TABLES = Case(
    "57-parquet-wrong-schema",
    {
        "forbidden.0": lambda c, v: _table(c, "refuse SchemaVersionError", "float_ts.parquet"),
        "forbidden.1": lambda c, v: _table(c, "refuse SchemaVersionError", "missing_dur.parquet"),
        "*": _table,
    },
)

# --- 54 archives -------------------------------------------------------------------------------------------------------------

ARCHIVE = Case("54-archive-zip-slip", {}, later={"*": ARCHIVES})

CASES = (SQL, REPORTS, PRINTED, PATHS, TABLES, ARCHIVE)


@pytest.mark.parametrize(("case", "path", "value"), params(*(c for c in CASES if c is not PRINTED)))
def test_value(case: Case, path: str, value: Any, normalized: Normalizer, tmp_path: Path) -> None:
    case.check(Context(case.name, normalized, tmp_path), path, value)
