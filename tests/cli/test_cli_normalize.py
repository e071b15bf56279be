"""``magneton normalize`` from the command line: what it writes, carries over, refuses and never loses."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magneton.cli.app import main
from magneton.schemas import errors
from magneton.schemas.files.publish import publish_directory
from magneton.schemas.ids import run_id, sha256_file
from magneton.schemas.manifest import (
    MANIFEST_NAME,
    Capture,
    ClockAnchor,
    Device,
    FileEntry,
    Manifest,
    System,
    Workload,
    read_manifest,
    write_manifest,
)

Run = Callable[..., tuple[int, bytes, str]]
CASE = Path(__file__).resolve().parents[1] / "faults" / "cases" / "58-sql-hostile-names"
EXPECTED: dict[str, Any] = json.loads((CASE / "expected.md").read_text().split("```json")[1].split("```")[0])
HOSTILE = "run 'x' [1]*?.json"


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    def call(*words: object) -> tuple[int, bytes, str]:
        code = main([str(w) for w in words])
        sys.stdout.flush()
        sys.stderr.flush()
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return call


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two kernels under one operator, launched in order, and an event that is set aside."""
    args = {"External id": 1, "correlation": 5, "device": 0, "stream": 7}
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10, "dur": 50, "args": args},
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 1,
            "tid": 1,
            "ts": 20,
            "dur": 5,
            "args": args,
        },
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 40, "dur": 30, "args": args},
        {"ph": "X", "cat": "cpu_op", "name": "aten::bad", "pid": 1, "tid": 1, "ts": 90, "dur": -1},
    ]
    path = tmp_path / "job.pt.trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_a_trace_becomes_a_recording(run: Run, trace: Path, tmp_path: Path) -> None:
    target = tmp_path / "runs" / "it's [1]*?"
    code, out, err = run("normalize", trace, "-o", target, "--label", "my run", "--json")
    assert (code, err) == (0, f"written: {target}\n")
    document = json.loads(out)
    assert document["manifest"]["label"] == "my run"
    assert document["manifest"]["run_id"] == run_id([sha256_file(trace)])
    (capture,) = document["captures"]
    assert (capture["n_raw"], capture["n_kept"], capture["n_quarantined"]) == (4, 3, 1)
    raw = next(f for f in document["manifest"]["files"] if f.get("role", "primary") == "primary")
    assert (target / raw["path"]).read_bytes() == trace.read_bytes()
    code, out, _ = run("sql", target, "SELECT op_name, dur_ns, launch_name FROM kernel_calls", "--json")
    assert json.loads(out) == [{"op_name": "aten::mm", "dur_ns": 30000, "launch_name": "cudaLaunchKernel"}]


def test_the_same_content_is_the_same_run(run: Run, trace: Path, tmp_path: Path) -> None:
    other = tmp_path / "renamed"
    shutil.copy(trace, other)
    ids = []
    for number, path in enumerate((trace, other)):
        assert run("normalize", path, "-o", tmp_path / f"run{number}", "--no-raw")[0] == 0
        manifest = read_manifest(tmp_path / f"run{number}")
        ids.append(manifest.run_id)
        assert not (tmp_path / f"run{number}" / "raw").exists()
        (entry,) = [f for f in manifest.files if f.role == "primary"]
        assert (entry.kept, entry.path) == (False, f"raw/profile/rank0/{path.name}")
    assert ids[0] == ids[1]


def test_an_earlier_recording_is_replaced_only_by_force_and_a_whole_one(run: Run, trace: Path, tmp_path: Path) -> None:
    target = tmp_path / "run"
    assert run("normalize", trace, "-o", target)[0] == 0
    before = (target / MANIFEST_NAME).read_bytes()
    code, out, err = run("normalize", trace, "-o", target)
    assert (code, out) == (2, b"")
    assert "--force" in err
    broken = tmp_path / "broken.json"
    broken.write_text('{"traceEvents": [{"ph": "X", "cat"')
    code, out, err = run("normalize", broken, "-o", target, "--force")
    assert (code, out) == (2, b"")
    assert err.startswith(f"magneton: error: {broken}: ")
    assert err.count("\n") == 1
    assert (target / MANIFEST_NAME).read_bytes() == before
    assert run("normalize", trace, "-o", target, "--force", "--label", "new")[0] == 0
    assert read_manifest(target).label == "new"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["broken.json", trace.name, "run"]


def test_truncated_files_are_read_on_request(run: Run, trace: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(gzip.compress(trace.read_bytes())[:-20])
    code, _, err = run("normalize", cut, "-o", tmp_path / "run")
    assert code == 2
    assert "cut.json.gz" in err
    assert not (tmp_path / "run").exists()
    code, out, _ = run("normalize", cut, "-o", tmp_path / "run", "--allow-truncated", "--json")
    assert code == 0
    document = json.loads(out)
    assert document["manifest"]["incomplete"] is True
    assert "truncated" in {h["code"] for h in document["health"]}


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--max-ratio", "nope"], "--max-ratio"),
        (["--max-ratio", "nan"], "max_ratio is nan (give a number, at least 1 and finite)"),
        (["--max-event-days", "-1"], "max_event_days is -1.0"),
        (["--max-event-days", "nan"], "max_event_days is nan"),
        (["--max-decompressed-gib", "inf"], "max_decompressed_gib is inf"),
        (["--memory-limit-mib", "1"], "memory_limit_mb is 1 (give a whole number, at least 64)"),
    ],
)
def test_limits_that_are_none_are_refused(run: Run, trace: Path, tmp_path: Path, option: list[str], says: str) -> None:
    code, _, err = run("normalize", trace, "-o", tmp_path / "run", *option)
    assert code == 2
    assert says in err


def test_limits_hold(run: Run, trace: Path, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 40_000_000 + b"]}"))
    code, _, err = run("normalize", bomb, "-o", tmp_path / "run", "--max-ratio", "50")
    assert code == 2
    assert "bomb.json.gz" in err
    code, _, err = run("normalize", trace, "-o", tmp_path / "run", "--max-decompressed-gib", "0.0000001")
    assert code == 2
    assert not (tmp_path / "run").exists()


# --- names (fault case 58) ---


def test_fault_58_from_file_to_query(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in EXPECTED:
        if (CASE / name).is_file():
            shutil.copy(CASE / name, tmp_path)
    shutil.copy(CASE / "run 'x' 1zz.json", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run("normalize", HOSTILE, "-o", "out 'x' [1]*?")[0] == 0
    code, out, _ = run("sql", "out 'x' [1]*?", "SELECT name, dur_ns FROM kernels ORDER BY ts_ns", "--json")
    assert code == 0
    rows = json.loads(out)
    expected = EXPECTED[HOSTILE]
    assert [r["name"] for r in rows] == expected["names_exact"]
    assert sum(r["dur_ns"] for r in rows) == expected["busy_ns"]
    assert len(rows) == expected["n_kept"]


@pytest.mark.parametrize("words", [["-o", "run", "--", "-rf.json"], ["-o", "run", "./-rf.json"]])
def test_fault_58_a_name_that_looks_like_an_option(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    shutil.copy(CASE / "-rf.json", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run("normalize", *words)[0] == 0
    assert json.loads(run("sql", "run", "SELECT name FROM kernels", "--json")[1]) == [{"name": "dash"}]


def test_fault_58_a_name_that_looks_like_a_command(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("normalize", CASE / "a;b&c$(touch pwned).json", "-o", "run")[0] == 0
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


# --- recordings that hold only raw files ---


@pytest.fixture
def recorded(trace: Path, tmp_path: Path) -> Path:
    """What a collector leaves: the trace and what it knew of the run, no tables."""
    target = tmp_path / "recorded"
    with publish_directory(target, last=MANIFEST_NAME) as staging:
        raw = staging / "raw" / "profile" / "rank0" / trace.name
        raw.parent.mkdir(parents=True)
        shutil.copy(trace, raw)
        entry = FileEntry(
            name=trace.name,
            sha256=sha256_file(raw),
            size_bytes=raw.stat().st_size,
            path=raw.relative_to(staging).as_posix(),
        )
        write_manifest(
            staging,
            Manifest(
                run_id=run_id([entry.sha256]),
                label="by collector",
                system=System("transformers", {"torch": "2.13.0"}),
                workload=Workload(model="m", batch=4),
                devices=[Device(name="CPU", kind="cpu")],
                captures=[Capture("profile", "profile", file=entry.path, anchors=[ClockAnchor(1, "monotonic", 2)])],
                files=[entry],
                notes=["a note"],
            ),
        )
    return target


@pytest.mark.parametrize("place", ["elsewhere", "in place"])
def test_a_recording_gets_its_tables_and_keeps_what_was_known(
    run: Run, recorded: Path, tmp_path: Path, place: str
) -> None:
    known = read_manifest(recorded)
    target = recorded if place == "in place" else tmp_path / "full"
    code, _, err = run("normalize", recorded, "-o", target, *(["--force"] if place == "in place" else []))
    assert code == 0, err
    manifest = read_manifest(target)
    for field in ("run_id", "label", "workload", "system", "devices", "notes"):
        assert getattr(manifest, field) == getattr(known, field), field
    assert manifest.captures[0].anchors == known.captures[0].anchors
    assert (target / known.files[0].path).is_file()
    code, out, _ = run("sql", target, "SELECT model, batch FROM runs", "--json")
    assert json.loads(out) == [{"model": "m", "batch": 4}]


def test_normalising_again_changes_nothing_but_the_time(run: Run, recorded: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert run("normalize", recorded, "-o", one)[0] == 0
    assert run("normalize", one, "-o", two)[0] == 0
    manifests = [read_manifest(one), read_manifest(two)]
    for manifest in manifests:
        manifest.created_unix_ns = None
    assert manifests[0] == manifests[1]


def test_a_raw_file_that_was_changed_is_refused(run: Run, recorded: Path, tmp_path: Path) -> None:
    raw = recorded / str(read_manifest(recorded).files[0].path)
    raw.write_bytes(raw.read_bytes() + b" ")
    code, _, err = run("normalize", recorded, "-o", tmp_path / "full")
    assert code == 2
    assert "hash" in err
    assert raw.name in err
    raw.unlink()
    code, _, err = run("normalize", recorded, "-o", tmp_path / "full")
    assert code == 2
    assert "not there" in err


@pytest.mark.parametrize("stated", ["../job.pt.trace.json", "/etc/passwd", "raw/link/passwd"])
def test_a_manifest_that_points_outside_is_refused(run: Run, recorded: Path, tmp_path: Path, stated: str) -> None:
    (recorded / "raw" / "link").symlink_to("/etc")
    manifest = read_manifest(recorded)
    manifest.files[0].path = stated
    write_manifest(recorded, manifest)
    code, _, err = run("normalize", recorded, "-o", tmp_path / "full")
    assert code == 2
    assert "outside of itself" in err


def test_nothing_of_a_recording_is_lost_in_place(run: Run, recorded: Path) -> None:
    code, _, err = run("normalize", recorded, "-o", recorded, "--force", "--no-raw")
    assert code == 2
    assert "would lose job.pt.trace.json" in err
    manifest = read_manifest(recorded)
    extra = recorded / "raw" / "power.csv"
    extra.write_text("x")
    manifest.files.append(FileEntry("power.csv", sha256_file(extra), 1, role="auxiliary", path="raw/power.csv"))
    write_manifest(recorded, manifest)
    code, _, err = run("normalize", recorded, "-o", recorded, "--force")
    assert code == 2
    assert "would lose power.csv" in err
    assert extra.exists()


def test_a_recording_comes_alone(run: Run, recorded: Path, trace: Path, tmp_path: Path) -> None:
    code, _, err = run("normalize", recorded, trace, "-o", tmp_path / "full")
    assert code == errors.EXIT_BAD_INPUT
    assert "give it alone" in err
