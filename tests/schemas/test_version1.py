"""What version 1 wrote opens today, gives the answers it gave then, and can be normalised again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from magneton.analysis.query import Recordings
from magneton.flows.traces import normalize
from magneton.schemas.documents.diff import read_diff
from magneton.schemas.errors import InputFormatError, SchemaVersionError
from magneton.schemas.manifest import read_manifest
from magneton.schemas.tables.diff import DIFF_TABLES
from magneton.schemas.tables.parquet import inspect_file, read_table
from magneton.schemas.versions.registry import SCHEMA_VERSION
from magneton.schemas.versions.update_to_2 import update_manifest

VERSION_1 = Path(__file__).resolve().parents[1] / "fixtures" / "version1"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "recordings"
ANSWERS: dict[str, list[dict[str, Any]]] = json.loads((VERSION_1 / "answers.json").read_text())

JOB = {
    ("profile", 0): "raw/profile/rank0/rank0.json",
    ("profile", 1): "raw/profile/rank1/rank1.json",
    ("graph_capture", 0): "raw/graph_capture/rank0/rank0.json",
    ("power", 0): "raw/extra/0/power.csv",
    ("power-2", 0): "raw/extra/1/power.csv",
}
NOT_KEPT = {("profile", 0): "raw/profile/rank0/rank0.json", ("power", 0): "raw/power/rank0/power.csv"}


def files_of(directory: Path) -> dict[tuple[str, int], str | None]:
    return {(c.name, c.rank): c.file for c in read_manifest(directory).captures}


def test_the_fixtures_are_of_version_1() -> None:
    for name in ("job", "not-kept", "overwritten"):
        assert json.loads((VERSION_1 / name / "manifest.json").read_text())["schema_version"] == 1
    assert not inspect_file(VERSION_1 / "job" / "tables" / "captures.parquet", "captures")
    assert inspect_file(VERSION_1 / "job" / "tables" / "kernels.parquet", "kernels"), "no step changed it"


@pytest.mark.parametrize(("name", "files"), [("job", JOB), ("not-kept", NOT_KEPT)])
def test_a_recording_gives_the_same_answers(name: str, files: dict[tuple[str, int], str]) -> None:
    with Recordings([VERSION_1 / name]) as opened:
        for answer in ANSWERS[name]:
            found = opened.query(answer["sql"]).read_all().to_pylist()
            for row in found:
                if "file" in row:
                    # The bare name of then is a path now.
                    assert row["file"] == files[row["capture"], row["rank"]]
                    row["file"] = PurePosixPath(row["file"]).name
            assert found == answer["rows"], answer["sql"]


def test_files_are_named_by_their_paths() -> None:
    manifest = read_manifest(VERSION_1 / "job")
    assert manifest.schema_version == SCHEMA_VERSION
    assert files_of(VERSION_1 / "job") == JOB
    assert [s["file"] for s in manifest.sensors] == ["raw/extra/0/power.csv", "raw/extra/1/power.csv"]
    assert all(entry.kept for entry in manifest.files)


def test_files_that_were_not_kept_have_a_path_too() -> None:
    assert files_of(VERSION_1 / "not-kept") == NOT_KEPT
    entries = [e for e in read_manifest(VERSION_1 / "not-kept").files if e.role == "primary"]
    assert {e.path: e.kept for e in entries} == dict.fromkeys(NOT_KEPT.values(), False)


def test_of_two_files_at_one_path_the_earlier_is_not_kept(tmp_path: Path) -> None:
    entries = [e for e in read_manifest(VERSION_1 / "overwritten").files if e.role == "primary"]
    assert [(e.path, e.kept) for e in entries] == [
        ("raw/profile/rank0/2/rank0.json", False),
        ("raw/profile/rank0/rank0.json", True),
    ]
    with pytest.raises(InputFormatError, match=r"keeps no copy of raw/profile/rank0/2/rank0\.json"):
        normalize([VERSION_1 / "overwritten"], tmp_path / "again")
    assert not list(tmp_path.iterdir())


def test_a_recording_of_version_1_is_normalised_again(tmp_path: Path) -> None:
    before = read_manifest(VERSION_1 / "job")
    for source, out in ((VERSION_1 / "job", tmp_path / "once"), (tmp_path / "once", tmp_path / "twice")):
        after = normalize([source], out)
        assert json.loads((out / "manifest.json").read_text())["schema_version"] == SCHEMA_VERSION
        assert files_of(out) == JOB
        assert (after.run_id, after.system, after.devices, after.workload) == (
            (before.run_id, before.system, before.devices, before.workload)
        )
        anchors = {c.file: c.anchors for c in after.captures}
        assert anchors == {c.file: c.anchors for c in before.captures}
        with Recordings([out]) as opened:
            for answer in ANSWERS["job"]:
                found = opened.query(answer["sql"]).read_all().to_pylist()
                bare = [row | ({"file": PurePosixPath(row["file"]).name} if "file" in row else {}) for row in found]
                assert bare == answer["rows"], answer["sql"]


def test_tables_are_read_without_their_manifest(tmp_path: Path) -> None:
    shutil.copytree(VERSION_1 / "job" / "tables", tmp_path / "tables")
    rows = read_table(tmp_path / "tables" / "captures.parquet", "captures").to_pylist()
    assert {r["file"] for r in rows if r["kind"] != "energy"} == {
        f for (name, _), f in JOB.items() if "power" not in name
    }


def test_a_diff_opens() -> None:
    document = read_diff(VERSION_1 / "diff")
    stored = json.loads((VERSION_1 / "diff" / "diff.json").read_text())
    assert stored["schema_version"] == 1
    assert (document.schema_version, document.diff_id) == (SCHEMA_VERSION, stored["diff_id"])
    assert document.totals["time_ns"].a == stored["totals"]["kernel_ns"]["a"]
    assert document.a.step_time.mean_ns == stored["a"]["kernel_time"]["mean_ns"]
    assert document.a.inventory["linked_time_ns"] == stored["a"]["inventory"]["linked_kernel_ns"]
    assert document.comparison.strata[0].time_ns.b == stored["comparison"]["strata"][0]["kernel_ns"]["b"]
    assert [r.time_ns.a for r in document.rollups["op"]] == [r["kernel_ns"]["a"] for r in stored["rollups"]["op"]]
    assert [g.time_ns.delta for g in document.groups] == [g["kernel_ns"]["delta"] for g in stored["groups"]]
    assert [r.time_ns_a for r in document.regions] == [r["kernel_ns_a"] for r in stored["regions"]]
    assert [set(g.evidence) for g in document.groups] == [set(g["evidence"]) for g in stored["groups"]]
    rows = read_table(VERSION_1 / "diff" / "regions.parquet", "regions").to_pylist()
    assert [r["time_ns_b"] for r in rows] == [r["kernel_ns_b"] for r in stored["regions"]]
    assert [r["evidence"] for r in rows] == [r.evidence for r in document.regions]
    with Recordings([VERSION_1 / "diff"]) as opened:
        assert opened.query("SELECT time_ns_a FROM regions WHERE region_id = 0").read_all().num_rows == 1
    tables = [path.stem for path in (VERSION_1 / "diff").glob("*.parquet")]
    assert tables and set(tables) <= set(DIFF_TABLES)
    for name in tables:
        assert read_table(VERSION_1 / "diff" / f"{name}.parquet", name).num_rows >= 0


@pytest.mark.parametrize(
    "wrong", [{"a": 5}, {"groups": [5]}, {"rollups": []}, {"regions": [{"evidence": 5}]}, {"comparison": {}}]
)
def test_a_damaged_diff_of_version_1_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    document = json.loads((VERSION_1 / "diff" / "diff.json").read_text()) | wrong
    (tmp_path / "diff.json").write_text(json.dumps(document))
    with pytest.raises(SchemaVersionError, match="is not a diff"):
        read_diff(tmp_path)


@pytest.mark.parametrize("directory", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_the_shipped_recordings_open_unchanged(directory: Path) -> None:
    stored = json.loads((directory / "manifest.json").read_text())
    assert stored["schema_version"] == 1
    manifest = read_manifest(directory)
    listed = {entry.path for entry in manifest.files}
    assert {(c.kind, c.input_id): c.file for c in manifest.captures} == {
        ("values", "0"): "raw/values/rank0/0/ops.parquet",
        ("values", "1"): "raw/values/rank0/1/ops.parquet",
        ("profile", None): "raw/profile/rank0/torch.pt.trace.json.gz",
    }
    assert {c.file for c in manifest.captures} <= listed
    assert [(e["path"], e["sha256"]) for e in stored["files"]] == [(e.path, e.sha256) for e in manifest.files]


@pytest.mark.parametrize(
    "wrong",
    [{"files": 5}, {"files": [{"name": 5}]}, {"captures": [{"rank": "x"}]}, {"sensors": [5]}, {"captures": [[]]}],
)
def test_a_damaged_manifest_of_version_1_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    document = {"schema_version": 1, "run_id": "r", "label": "x"} | wrong
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(SchemaVersionError, match="is not a manifest"):
        read_manifest(tmp_path)


def test_names_from_a_manifest_stay_below_raw() -> None:
    entry = {"sha256": "0", "size_bytes": 1}
    files = [{"name": "../../x"} | entry, {"name": ".."} | entry]
    captures = [{"name": "../..", "kind": "profile", "file": "../../x"}]
    document = update_manifest({"files": files, "captures": captures})
    for path in [f["path"] for f in document["files"]] + [c["file"] for c in document["captures"]]:
        assert PurePosixPath(path).parts[0] == "raw" and ".." not in PurePosixPath(path).parts
