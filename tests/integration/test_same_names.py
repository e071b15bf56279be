"""Two inputs of one name stay two: in the recording, in its tables, and when it is normalised again."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zstandard
from tests.transforms.test_execution_traces import execution_trace
from tests.transforms.test_execution_traces import trace as operators

from magneton.flows.extras import ExtraFiles
from magneton.flows.traces import normalize
from magneton.schemas.errors import ChecksumError, InputFormatError
from magneton.schemas.ids import sha256_file
from magneton.schemas.manifest import ClockAnchor, FileEntry, Manifest, read_manifest, write_manifest
from magneton.schemas.tables.parquet import read_table

LOG = (Path(__file__).resolve().parents[1] / "faults" / "cases" / "37-clock-domains" / "power_realtime.csv").read_text()


def trace(path: Path, name: str, *, bad: int = 0, rank: int = 0) -> Path:
    """A trace of one operator, and of events that are set aside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 10, "dur": 50}
    events = [event | {"name": name}, *([event | {"name": "aten::bad", "dur": -1}] * bad)]
    top = {"baseTimeNanoseconds": 1718000000000000000, "distributedInfo": {"rank": rank, "world_size": rank + 1}}
    path.write_text(json.dumps({"schemaVersion": 1, **top, "traceEvents": events}))
    return path


def log(path: Path, watts: int, *, bad: int = 0) -> Path:
    """A power log that reads one value, and rows that are set aside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header, *rows = LOG.splitlines()
    kept = [row.rsplit(",", 2)[0] + f",{watts},W" for row in rows]
    path.write_text("\n".join([header, *kept, *(["not a row"] * bad)]) + "\n")
    return path


def rows(run: Path, name: str) -> list[dict[str, Any]]:
    return read_table(run / "tables" / f"{name}.parquet", name).to_pylist()


def kept(run: Path) -> dict[str, str]:
    """Return the hashes of the raw files, which must be those that are stated."""
    entries = [e for e in read_manifest(run).files if e.role == "primary"]
    found = {e.path: sha256_file(run / e.path) for e in entries}
    assert len(found) == len(entries), "no two files have one path"
    assert found == {e.path: e.sha256 for e in entries}
    assert {e.path: (run / e.path).stat().st_size for e in entries} == {e.path: e.size_bytes for e in entries}
    return found


def without_time(manifest: Manifest) -> Manifest:
    manifest.created_unix_ns = None
    return manifest


def again(run: Path, target: Path) -> None:
    """Normalise a recording again; nothing may change but the time it was made."""
    normalize([run], target)
    assert without_time(read_manifest(target)) == without_time(read_manifest(run))
    assert kept(target) == kept(run)
    for name in ("captures", "quarantine", "ops", "uses", "power"):
        assert rows(target, name) == rows(run, name), name


def test_a_trace_and_its_execution_trace(tmp_path: Path) -> None:
    for name in ("prof", "et"):
        (tmp_path / name).mkdir()
    one, two = operators(tmp_path / "prof" / "rank0.json"), execution_trace(tmp_path / "et" / "rank0.json")
    run = tmp_path / "run"
    normalize([one, two], run)
    assert kept(run) == {
        "raw/profile/rank0/rank0.json": sha256_file(one),
        "raw/profile/rank0/2/rank0.json": sha256_file(two),
    }
    (capture,) = rows(run, "captures")
    assert capture["file"] == read_manifest(run).captures[0].file == "raw/profile/rank0/rank0.json"
    assert json.loads(capture["metadata"])["execution_trace"]["file"] == "raw/profile/rank0/2/rank0.json"
    assert rows(run, "uses"), "the execution trace gave its tensors"
    again(run, tmp_path / "again")


def test_a_profile_and_a_graph_capture(tmp_path: Path) -> None:
    profile = trace(tmp_path / "profile" / "rank0.json", "aten::replay", bad=1)
    captured = trace(tmp_path / "capture" / "rank0.json", "aten::captured", bad=2)
    run = tmp_path / "run"
    normalize([profile], run, capture_traces=[captured])
    manifest = read_manifest(run)
    # What a recorder would know of each of the two.
    for number, capture in enumerate(manifest.captures):
        capture.anchors = [ClockAnchor(1718000000000000000, "monotonic", number)]
    write_manifest(run, manifest)
    files = {("profile", "aten::replay"): "raw/profile/rank0/rank0.json"}
    files |= {("graph_capture", "aten::captured"): "raw/graph_capture/rank0/rank0.json"}
    again(run, tmp_path / "again")
    for recording in (run, tmp_path / "again"):
        of_capture = {row["capture"]: row["file"] for row in rows(recording, "captures")}
        assert {(row["capture"], row["name"]): of_capture[row["capture"]] for row in rows(recording, "ops")} == files
        assert sorted(row["file"] for row in rows(recording, "quarantine")) == [
            *["raw/graph_capture/rank0/rank0.json"] * 2,
            "raw/profile/rank0/rank0.json",
        ]
        anchors = {c.kind: c.anchors[0].clock_ns for c in read_manifest(recording).captures}
        assert anchors == {"profile": 0, "graph_capture": 1}


def test_several_graph_captures_of_one_rank(tmp_path: Path) -> None:
    captured = [trace(tmp_path / str(n) / "graph.json", f"aten::captured{n}") for n in range(3)]
    run = tmp_path / "run"
    normalize([trace(tmp_path / "graph.json", "aten::replay")], run, capture_traces=captured)
    files = {row["capture"]: row["file"] for row in rows(run, "captures")}
    assert files == {
        "profile": "raw/profile/rank0/graph.json",
        "graph_capture": "raw/graph_capture/rank0/graph.json",
        "graph_capture_1": "raw/graph_capture_1/rank0/graph.json",
        "graph_capture_2": "raw/graph_capture_2/rank0/graph.json",
    }
    assert len(kept(run)) == 4
    again(run, tmp_path / "again")


@pytest.mark.parametrize("keep_raw", [True, False])
def test_two_power_logs(tmp_path: Path, keep_raw: bool) -> None:
    logs = [log(tmp_path / "a" / "power.csv", 100, bad=1), log(tmp_path / "b" / "power.csv", 250)]
    run = tmp_path / "run"
    profile = trace(tmp_path / "power.csv.json", "aten::mm")
    normalize([profile], run, keep_raw=keep_raw, extras=ExtraFiles(power=logs))
    files = {"power": "raw/extra/power.csv", "power-2": "raw/extra/2/power.csv"}
    assert {r["capture"]: r["file"] for r in rows(run, "captures") if r["kind"] == "energy"} == files
    assert [s["file"] for s in read_manifest(run).sensors] == list(files.values())
    assert {r["capture"]: r["value"] for r in rows(run, "power")} == {"power": 100, "power-2": 250}
    assert {r["file"] for r in rows(run, "quarantine")} == {"raw/extra/power.csv"}
    entries = {e.path: e for e in read_manifest(run).files if e.role == "primary"}
    assert set(entries) == {*files.values(), "raw/profile/rank0/power.csv.json"}
    assert {e.kept for e in entries.values()} == {keep_raw}
    if keep_raw:
        again(run, tmp_path / "again")
    else:
        assert not (run / "raw").exists()
        with pytest.raises(InputFormatError, match="keeps no copy of raw/"):
            normalize([run], tmp_path / "again")


def test_a_log_that_is_added_later_does_not_replace_one(tmp_path: Path) -> None:
    first, second = log(tmp_path / "a" / "power.csv", 100), log(tmp_path / "b" / "power.csv", 250)
    profile = trace(tmp_path / "t.json", "aten::mm")
    normalize([profile], tmp_path / "run", extras=ExtraFiles(power=[first]))
    normalize([tmp_path / "run"], tmp_path / "more", extras=ExtraFiles(power=[second]))
    assert kept(tmp_path / "more") == {
        "raw/profile/rank0/t.json": sha256_file(profile),
        "raw/extra/power.csv": sha256_file(first),
        "raw/extra/2/power.csv": sha256_file(second),
    }
    assert {r["capture"]: r["value"] for r in rows(tmp_path / "more", "power")} == {"power": 100, "power-2": 250}


def test_files_that_nothing_reads_stay_in_the_recording(tmp_path: Path) -> None:
    run, target = tmp_path / "run", tmp_path / "again"
    normalize([trace(tmp_path / "t.json", "aten::mm")], run)
    (run / "raw" / "extra").mkdir()
    notes = run / "raw" / "extra" / "notes.txt"
    notes.write_text("what I did")
    manifest = read_manifest(run)
    manifest.files.append(FileEntry("notes.txt", sha256_file(notes), 10, "raw/extra/notes.txt"))
    write_manifest(run, manifest)
    normalize([run], target)
    assert kept(target) == kept(run)


# --- how often a trace is read ---


@contextmanager
def full_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Path, int]]:
    """Count the bytes that are read of each file through Python."""
    counts: dict[Path, int] = {}
    real = io.open

    class Counted:
        def __init__(self, stream: Any, path: Path) -> None:
            self._stream, self._path = stream, path

        def read(self, size: int = -1) -> bytes:
            data: bytes = self._stream.read(size)
            counts[self._path] = counts.get(self._path, 0) + len(data)
            return data

        def __enter__(self) -> Counted:
            self._stream.__enter__()
            return self

        def __exit__(self, *exception: Any) -> None:
            self._stream.__exit__(*exception)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

    def opened(file: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
        stream = real(file, mode, *args, **named)
        return Counted(stream, Path(file)) if mode == "rb" else stream

    with monkeypatch.context() as patch:
        patch.setattr(io, "open", opened)
        yield counts


@pytest.mark.parametrize("keep_raw", [True, False])
@pytest.mark.parametrize("form", ["json", "json.gz", "json.zst"])
def test_a_trace_is_read_once_when_normalised_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_raw: bool, form: str
) -> None:
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 5}
    events = [event | {"name": hashlib.shake_256(b"%d" % n).hexdigest(256), "ts": 10 * n} for n in range(6_000)]
    text = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
    packed = {"json": text, "json.gz": gzip.compress(text), "json.zst": zstandard.compress(text)}[form]
    path = tmp_path / f"big.{form}"
    path.write_bytes(packed)
    run = tmp_path / "run"
    normalize([path], run)
    raw = run / "raw" / "profile" / "rank0" / path.name
    with full_reads(monkeypatch) as counts:
        normalize([run], tmp_path / "again", keep_raw=keep_raw)
    # The first bytes are looked at once more: what is it, how is it compressed?
    looked_at = (1 << 20) + 4096
    assert len(packed) > looked_at
    assert len(packed) <= counts[raw] <= len(packed) + looked_at
    assert read_manifest(tmp_path / "again").captures == read_manifest(run).captures
    if keep_raw:
        assert (tmp_path / "again" / raw.relative_to(run)).read_bytes() == packed


@pytest.mark.parametrize("change", ["a byte", "cut off", "no trace any more"])
@pytest.mark.parametrize("which", ["trace", "log"])
def test_a_file_with_another_hash_is_refused_before_anything_is_there(tmp_path: Path, change: str, which: str) -> None:
    run = tmp_path / "run"
    profile = trace(tmp_path / "t.json", "aten::mm")
    normalize([profile], run, extras=ExtraFiles(power=[log(tmp_path / "power.csv", 100)]))
    raw = run / ("raw/profile/rank0/t.json" if which == "trace" else "raw/extra/power.csv")
    data = raw.read_bytes()
    raw.write_bytes({"a byte": data + b" ", "cut off": data[: len(data) // 2], "no trace any more": b"?"}[change])
    with pytest.raises(ChecksumError, match="does not have the hash") as caught:
        normalize([run], tmp_path / "again")
    assert str(raw) in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["power.csv", "run", "t.json"]
