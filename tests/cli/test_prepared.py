"""What has no tables gets them on the way: beside the recording or in a cache, whole, and whoever else is at it."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.analysis.diff.test_diff import model

from magneton.analysis.recording import Recording
from magneton.cli.app import main
from magneton.flows import cache as tables_cache
from magneton.flows import prepared
from magneton.flows.prepared import cache_directory, has_tables, with_tables
from magneton.schemas.errors import InputFormatError, InputNotFoundError, OutputExistsError, UsageError
from magneton.schemas.files import leftovers
from magneton.schemas.manifest import read_manifest
from magneton.schemas.tables import parquet

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "recordings"
QUERY = "SELECT count(*) AS n FROM ops"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "magneton" / "recordings"


@pytest.fixture
def run(tmp_path: Path, cache: Path) -> Path:
    """A recording as ``magneton record`` leaves it."""
    copy = tmp_path / "gpt2-hf"
    shutil.copytree(EXAMPLES / "gpt2-hf", copy, ignore=shutil.ignore_patterns("tables"))
    return copy


@pytest.fixture
def trace(tmp_path: Path, cache: Path) -> Path:
    return model(steps=3).write(tmp_path / "trace.json")


def refuse_in(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Let nothing be made in a directory, as if it were read-only (the tests may run as root)."""
    make = leftovers.staging_directory

    def refusing(target: Path) -> contextlib.AbstractContextManager[Path]:
        if target.parent == directory:
            raise PermissionError(13, "Permission denied", str(directory))
        return make(target)

    monkeypatch.setattr(leftovers, "staging_directory", refusing)


def test_tables_of_a_recording_lie_beside_it(run: Path, cache: Path) -> None:
    before = (run / "manifest.json").read_bytes()
    said: list[str] = []
    assert with_tables(run, said.append) == run
    assert said == [f"{run} had no tables: made them and kept them in {run / 'tables'}"]
    assert (run / "manifest.json").read_bytes() == before, "what the recorder wrote stays as it is"
    assert sorted(p.name for p in run.iterdir()) == ["manifest.json", "raw", "tables"]
    assert with_tables(run, said.append) == run
    assert len(said) == 1
    assert not cache.exists()
    of_rows = pq.read_table(run / "tables" / "ops.parquet")["run_id"].unique().to_pylist()
    assert of_rows == [read_manifest(run).run_id]


def test_where_nothing_can_be_written_the_cache_holds_them(
    run: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_in(monkeypatch, run)
    said: list[str] = []
    place = with_tables(run, said.append)
    assert place.parent == cache and has_tables(place)
    assert said == [f"{run} had no tables: made them and kept them in {place}"]
    assert sorted(p.name for p in run.iterdir()) == ["manifest.json", "raw"]
    assert (with_tables(run, said.append), len(said)) == (place, 1)
    assert read_manifest(place).run_id == read_manifest(run).run_id
    assert [p.name for p in cache.iterdir()] == [place.name]


def test_tables_of_a_trace_are_kept_by_content(trace: Path, cache: Path) -> None:
    place = with_tables(trace)
    assert place.parent == cache
    assert read_manifest(place).label == "trace"
    copy = trace.parent / "elsewhere" / "trace.json"
    copy.parent.mkdir()
    shutil.copyfile(trace, copy)
    assert with_tables(copy) == place
    model(steps=4).write(trace)
    assert with_tables(trace) != place
    assert with_tables(copy) == place


def test_other_code_makes_other_tables(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = with_tables(trace)
    monkeypatch.setattr(prepared, "_code_stamp", lambda: "other")
    assert with_tables(trace) != place


def _make(path: str, start: str) -> None:
    while not Path(start).exists():
        pass
    assert has_tables(with_tables(Path(path)))


@pytest.mark.parametrize("what", ["run", "trace"])
def test_processes_that_do_the_same_at_once(what: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path: Path = request.getfixturevalue(what)
    go = tmp_path / "go"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_make, args=(str(path), str(go))) for _ in range(3)]
    for worker in workers:
        worker.start()
    go.touch()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    place = with_tables(path)
    left = [p.name for p in (*place.iterdir(), *place.parent.iterdir()) if p.name.startswith(".")]
    assert left == []
    assert Recording.open(place).table("ops").num_rows > 0


def test_half_a_deletion_is_mended(run: Path) -> None:
    with_tables(run)
    (run / "tables" / "captures.parquet").unlink()
    assert with_tables(run) == run
    assert has_tables(run)


def test_what_cannot_be_normalised_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    nothing = tmp_path / "nothing.json"
    with pytest.raises(InputNotFoundError, match="no such file or directory"):
        with_tables(nothing)
    nothing.write_text("{")
    with pytest.raises(InputFormatError):
        with_tables(nothing)
    assert not cache.exists() or list(cache.iterdir()) == []


def test_a_diff_is_no_recording(tmp_path: Path, trace: Path) -> None:
    assert main(["diff", str(trace), str(trace), "-o", str(tmp_path / "out")]) == 0
    with pytest.raises(UsageError, match="is a diff, not a recording"):
        with_tables(tmp_path / "out")


def test_no_place_to_keep_them(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(InputNotFoundError, match="cannot keep tables in it") as refused:
        with_tables(trace)
    assert "XDG_CACHE_HOME" in str(refused.value.remedy)


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "magneton" / "recordings"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_directory() == tmp_path / "home" / ".cache" / "magneton" / "recordings"


@pytest.mark.parametrize("what", ["run", "trace"])
def test_sql_info_and_diff_use_it_as_it_is(
    what: str, request: pytest.FixtureRequest, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = str(request.getfixturevalue(what))
    assert main(["sql", path, QUERY, "--json"]) == 0
    said = capfd.readouterr()
    assert json.loads(said.out)[0]["n"] > 0
    assert said.err.splitlines() == [line for line in said.err.splitlines() if line.startswith(f"{path} had no tables")]
    assert main(["info", path, "--json"]) == 0
    said = capfd.readouterr()
    assert json.loads(said.out)["tables"]["ops"] > 0
    assert said.err == ""
    assert main(["diff", path, path, "-o", str(tmp_path / "out")]) == 0
    assert "had no tables" not in capfd.readouterr().err


def test_record_then_sql_then_normalise_again(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The sequence that ended in three errors: no tables, no --out, already exists."""
    assert main(["sql", str(run), QUERY]) == 0
    assert main(["normalize", str(run)]) == 0
    assert f"written: {run}" in capfd.readouterr().err
    manifest = read_manifest(run)
    assert {f.role for f in manifest.files} == {"primary", "derived"}
    assert main(["normalize", str(run)]) == 0
    assert main(["sql", str(run), QUERY]) == 0


def test_normalising_in_place_loses_nothing(run: Path, trace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = {p.relative_to(run): p.read_bytes() for p in (run / "raw").rglob("*") if p.is_file()}
    assert main(["normalize", str(run)]) == 0
    assert {p.relative_to(run): p.read_bytes() for p in (run / "raw").rglob("*") if p.is_file()} == before
    assert main(["normalize", str(run), "--no-raw"]) == 2
    (run / "remarks.txt").write_text("mine")
    assert main(["normalize", str(run)]) == 2
    assert "would be lost" in capfd.readouterr().err
    assert (run / "remarks.txt").read_text() == "mine"
    assert main(["normalize", str(trace)]) == 2
    assert "magneton normalize TRACE -o RUN" in capfd.readouterr().err


def test_a_long_query_is_no_path(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", str(run), QUERY + " WHERE " + " OR ".join(["name = 'x'"] * 1000), "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == [{"n": 0}]
    assert main(["sql", str(run), str(run)]) == 2
    assert "the query is missing" in capfd.readouterr().err


def test_an_output_that_is_taken_stays(run: Path) -> None:
    from magneton.flows import normalize

    with pytest.raises(OutputExistsError):
        normalize(run, run)


def test_nothing_is_left_open(run: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with_tables(run)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


def test_what_killed_processes_left_in_a_recording_is_removed(run: Path) -> None:
    with_tables(run)
    with leftovers.staging_directory(run / "tables") as held:
        with leftovers.staging_directory(run / "tables") as left:
            (left / "file").touch()
        with_tables(run)
        assert held.exists(), "another process works in it"
        assert not left.exists()
        assert main(["normalize", str(run)]) == 0


def made_by_another(monkeypatch: pytest.MonkeyPatch, name: str = "magneton 0.0.9") -> None:
    for module in (parquet, prepared):
        monkeypatch.setattr(module, "tool_name", lambda: name)


def test_tables_of_another_version_are_made_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables say which program made them. The manifest stays as the recorder wrote it."""
    with monkeypatch.context() as patch:
        made_by_another(patch)
        with_tables(run)
    place = run / "tables" / "captures.parquet"
    assert parquet.made_by(place) == "magneton 0.0.9"
    before = (run / "manifest.json").read_bytes()
    said: list[str] = []
    assert with_tables(run, said.append) == run
    assert said == [f"{run} had tables of another version: made them and kept them in {run / 'tables'}"]
    assert parquet.made_by(place) == prepared.tool_name()
    assert (with_tables(run, said.append), len(said)) == (run, 1)
    assert (run / "manifest.json").read_bytes() == before
    assert sorted(p.name for p in run.iterdir()) == ["manifest.json", "raw", "tables"]


def test_tables_of_another_version_in_a_place_that_cannot_be_written(
    run: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        made_by_another(patch)
        with_tables(run)
    refuse_in(monkeypatch, run)
    place = with_tables(run)
    assert place.parent == cache
    assert parquet.made_by(run / "tables" / "captures.parquet") == "magneton 0.0.9"


def test_tables_that_normalize_made_stay(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options are the user's: `--no-raw`, a power log, a label."""
    with monkeypatch.context() as patch:
        made_by_another(patch)
        assert main(["normalize", str(run)]) == 0
    said: list[str] = []
    assert with_tables(run, said.append) == run
    assert said == []
    assert parquet.made_by(run / "tables" / "captures.parquet") == "magneton 0.0.9"


def traces(tmp_path: Path, count: int) -> list[Path]:
    return [model(steps=number + 1).write(tmp_path / f"trace{number}.json") for number in range(count)]


def hours_ago(place: Path, hours: float) -> None:
    then = time.time() - 3600 * hours
    os.utime(place, (then, then))


def test_what_was_used_longest_ago_leaves_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = traces(tmp_path, 3)
    places = [with_tables(path) for path in (one, two)]
    size = sum(p.stat().st_size for p in places[0].rglob("*"))
    hours_ago(places[0], 5)
    hours_ago(places[1], 3)
    assert with_tables(one) == places[0]
    hours_ago(places[0], 2)
    monkeypatch.setenv("MAGNETON_CACHE_GIB", str(2.5 * size / 2**30))
    last = with_tables(three)
    assert sorted(cache.iterdir()) == sorted([places[0], last]), "the second was used longest ago"
    assert has_tables(places[0]) and has_tables(last)


def test_what_may_be_in_use_stays(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNETON_CACHE_GIB", "0")
    one, two = traces(tmp_path, 2)
    places = [with_tables(one), with_tables(two)]
    assert sorted(cache.iterdir()) == sorted(places)
    hours_ago(places[0], 0.9)
    hours_ago(places[1], 1.1)
    tables_cache.make_room(cache / "another")
    assert list(cache.iterdir()) == [places[0]]


def test_what_killed_programs_left_in_the_cache_goes(trace: Path, cache: Path) -> None:
    kept = with_tables(trace)
    for name, hours in ((".magneton-gone-x", 25), (".magneton-staging-y", 1)):
        (cache / name).mkdir()
        (cache / name / "file").touch()
        hours_ago(cache / name, hours)
    tables_cache.make_room(kept)
    assert sorted(p.name for p in cache.iterdir()) == sorted([".magneton-staging-y", kept.name])


@pytest.mark.parametrize("stated", ["much", "-1", "nan", "inf", "1e999"])
def test_a_limit_that_is_none_is_refused_before_the_work(
    stated: str, trace: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGNETON_CACHE_GIB", stated)
    with pytest.raises(UsageError, match="which is no size"):
        with_tables(trace)
    assert not cache.exists()


@pytest.mark.parametrize(("stated", "expected"), [("", 5 * 2**30), (" ", 5 * 2**30), ("0", 0), ("2.5", 5 * 2**29)])
def test_the_limit_is_what_the_user_says(stated: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNETON_CACHE_GIB", stated)
    assert tables_cache.limit_bytes() == expected
