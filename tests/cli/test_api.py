"""The Python API: what ``magneton.flows`` declares, what its functions take, and what they give."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console
from tests.analysis.diff.test_diff import model

import magneton.flows
from magneton.flows import Diff, Result, Run, Runs, diff, measure, normalize, open_runs, record
from magneton.schemas.documents.diff import read_diff
from magneton.schemas.errors import InvalidNameError, MissingDependencyError, NotComparableError, UsageError
from magneton.schemas.manifest import Workload, read_manifest

HOSTILE = '<img src=x onerror="alert(1)">[red]'


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return model(steps=3).write(tmp_path / "a.json")


@pytest.fixture
def slower(tmp_path: Path) -> Path:
    return model(20.0, steps=3).write(tmp_path / "b.json")


def shown(result: Result) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(result)
    return captured.get()


def test_every_declared_name_is_there() -> None:
    for name in magneton.flows.__all__:
        value = getattr(magneton.flows, name)
        assert not isinstance(value, type(sys)), name
    assert set(magneton.flows.__all__) <= set(dir(magneton.flows))
    with pytest.raises(AttributeError, match="nothing"):
        _ = magneton.flows.nothing


def test_a_module_of_the_package_hides_no_function() -> None:
    for path in Path(magneton.flows.__file__).parent.glob("*.py"):
        if path.stem != "__init__":
            importlib.import_module(f"magneton.flows.{path.stem}")
    assert all(callable(getattr(magneton.flows, name)) for name in magneton.flows.__all__)


def test_the_import_is_cheap_and_free_of_frameworks() -> None:
    heavy = {"pyarrow", "duckdb", "numpy", "networkx", "torch", "jax", "tensorflow", "pandas"}
    code = f"import sys, magneton.flows; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
    code = (
        "import sys; from magneton.flows import *; print([m for m in ('torch', 'jax', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_text_and_paths_are_taken_alike(trace: Path, tmp_path: Path) -> None:
    one = normalize(str(trace), str(tmp_path / "one"), label="one")
    two = normalize([trace], tmp_path / "two", label="two")
    assert one.manifest.run_id == two.manifest.run_id
    assert (one.manifest.label, two.directory) == ("one", tmp_path / "two")
    found = diff(str(tmp_path / "one"), tmp_path / "two", out=str(tmp_path / "out"))
    assert read_diff(tmp_path / "out") == found.document
    with open_runs(str(tmp_path / "one"), tmp_path / "two", tmp_path / "out") as runs:
        assert len(runs.sql("SELECT * FROM runs")) == 2
    assert measure(str(trace)).document == measure(trace).document


def test_normalize_gives_a_run(trace: Path, tmp_path: Path) -> None:
    run = normalize(trace, tmp_path / "run")
    assert isinstance(run, Run)
    assert run.exists and run.exit_code is None
    assert run.table("steps").num_rows == 3
    assert run.table() == run.table(run.tables[0])
    assert run.to_dict()["tables"]["steps"] == 3
    assert "profile" in shown(run)
    assert repr(run) == f"Run({str(tmp_path / 'run')!r})"
    with pytest.raises(InvalidNameError, match="there is no table 'stepz'"):
        run.table("stepz")


def test_diff_gives_a_diff(trace: Path, slower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = diff(trace, slower, threshold_percent=5)
    assert isinstance(found, Diff)
    assert found.directory == Path("out/a-vs-b")
    assert found.document.settings["threshold_percent"] == 5
    assert found.table("regions").num_rows == len(found.document.regions)
    assert found.to_dict()["diff_id"] == found.document.diff_id
    assert "Where they differ, largest first" in shown(found)
    assert "<table>" in found._repr_html_()


def test_open_runs_answers_questions(trace: Path, slower: Path) -> None:
    with open_runs(trace, slower) as runs:
        assert isinstance(runs, Runs)
        rows = runs.sql(
            "SELECT run, name, dur_ns FROM kernels WHERE run = $run AND dur_ns > $least", run="b", least=3000
        )
        assert {row["run"] for row in rows.to_dict()} == {"b"}
        assert isinstance(rows.table(), pa.Table)
        assert runs.sql("SELECT $query AS q", query="x").to_dict() == [{"q": "x"}]
        assert runs.table("steps").num_rows == 6
        assert "NULL" in shown(runs.sql("SELECT NULL AS nothing"))
        assert repr(runs) == "Runs('a', 'b')"
        assert "1 more rows" in shown(runs.sql("SELECT * FROM range(41)"))
        with pytest.raises(UsageError, match="which has no value"):
            runs.sql("SELECT $x")
    with pytest.raises(UsageError, match="no recording given"):
        open_runs()


def test_a_table_becomes_a_data_frame(trace: Path) -> None:
    with open_runs(trace) as runs:
        rows = runs.sql("SELECT name FROM kernels")
        try:
            import pandas
        except ImportError:
            with pytest.raises(MissingDependencyError, match="pip install pandas"):
                rows.df()
        else:
            assert isinstance(rows.df(), pandas.DataFrame)
            assert list(rows.df().columns) == ["name"]


def test_names_are_data_in_every_look(tmp_path: Path) -> None:
    for name, us in (("a", 10.0), ("b", 30.0)):
        trace = model(us, steps=3)
        for event in trace.events:
            if event["cat"] in ("cpu_op", "kernel"):
                event["name"] += HOSTILE
        trace.write(tmp_path / f"{name}.json")
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    run = normalize(a, tmp_path / "run", label=HOSTILE)
    found = [run, diff(tmp_path / "run", b, out=tmp_path / "out"), measure(tmp_path / "run")]
    with open_runs(tmp_path / "run") as runs:
        found += [runs, runs.sql('SELECT DISTINCT name AS "<b>x" FROM ops')]
    for result in found:
        page = result._repr_html_()
        assert "<img" not in page and "<b>x" not in page
        assert "&lt;img" in page, type(result).__name__
        assert "[red]" in shown(result), type(result).__name__


def test_the_settings_are_checked_by_the_library(trace: Path, tmp_path: Path) -> None:
    for wrong in ({"per": "bogus"}, {"skip_steps": -2}, {"threshold_percent": float("nan")}, {"rank": -1}):
        (name,) = wrong
        with pytest.raises(UsageError, match=f"{name} is") as refused:
            diff(trace, trace, out=tmp_path / "out", **wrong)
        assert refused.value.remedy
    with pytest.raises(UsageError, match="there is no setting 'pre'") as refused:
        diff(trace, trace, out=tmp_path / "out", pre="step")
    assert "per" in str(refused.value.remedy)
    with pytest.raises(UsageError, match="memory_limit_mb is 1"):
        normalize(trace, tmp_path / "run", memory_limit_mb=1)
    with pytest.raises(UsageError, match="no output was named"):
        normalize(trace)
    with pytest.raises(UsageError, match="a path is None"):
        open_runs(None)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists() and not (tmp_path / "run").exists()


def test_tokens_and_batch_are_stored_and_divide(trace: Path, slower: Path, tmp_path: Path) -> None:
    """What ``record(tokens=, batch=)`` writes is what ``diff(per=)`` divides by."""
    seen: list[Workload] = []

    def recorded(command: list[str], out: Path, launch: object) -> int:
        seen.append(launch.workload)  # type: ignore[attr-defined]
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("magneton.flows.api.record_command", recorded)
        record(["python", "x.py"], tmp_path / "r", tokens=64, batch=2)
        record(["python", "x.py"], tmp_path / "r", workload=Workload(model="m", batch=1), batch=4)
        record(["python", "x.py"], tmp_path / "r")
    assert [None if w is None else (w.model, w.input_tokens, w.batch) for w in seen] == [
        (None, 64, 2),
        ("m", None, 4),
        None,
    ]
    for wrong in ({"tokens": 0}, {"batch": -1}, {"steps": 0}, {"tokens": 1.5}):
        with pytest.raises(UsageError):
            record(["python", "x.py"], tmp_path / "r", **wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the command is one text"):
        record("python x.py", tmp_path / "r")
    for name, path in (("a", trace), ("b", slower)):
        run = normalize(path, tmp_path / name)
        manifest = run.manifest
        manifest.workload = Workload(input_tokens=64, batch=2)
        from magneton.schemas.manifest import write_manifest

        write_manifest(run.directory, manifest)
        assert read_manifest(run.directory).workload.input_tokens == 64
    per_token = diff(tmp_path / "a", tmp_path / "b", out=tmp_path / "out", per="token").document
    assert per_token.totals["time_ns"].a == pytest.approx(36_000 / 64)
    with pytest.raises(NotComparableError):
        diff(trace, slower, out=tmp_path / "out", per="token")


def test_the_program_is_a_module_too() -> None:
    for name in ("magneton", "magneton.cli"):
        done = subprocess.run([sys.executable, "-m", name, "--version"], capture_output=True, text=True)
        assert (done.returncode, done.stdout.split()[0]) == (0, "magneton"), done.stderr
