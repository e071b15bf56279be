"""The recordings that ship: whole, unchanged, small, and silent about the machine they were made on."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from magneton.schemas.ids import run_id, sha256_file
from magneton.schemas.manifest import Manifest, read_manifest

RECORDINGS = ("gpt2-fused", "gpt2-hf", "llama-fused", "llama-hf")
# A directory that only exists on somebody's machine, at the start of a string or of a path in it.
MACHINE_PATH = re.compile(
    r'(?:^|[\s"\'=:(;])(/(?:home|root|Users|tmp|var|opt|usr|work|mnt|data|private|srv|workspace)/[^\s"]*)'
)


@pytest.fixture(scope="module")
def recordings(root: Path) -> Path:
    return root / "examples" / "recordings"


def texts(directory: Path, manifest: Manifest) -> dict[str, str]:
    """Return each file's text; the strings of a table as a JSON list."""
    found = {"manifest.json": (directory / "manifest.json").read_text()}
    for file in manifest.files:
        path = directory / str(file.path)
        if path.suffix == ".parquet":
            found[str(file.path)] = json.dumps(strings(pq.read_table(path).to_pylist()))
        else:
            found[str(file.path)] = gzip.decompress(path.read_bytes()).decode()
    return found


def trace_events(directory: Path) -> list[dict[str, Any]]:
    (path,) = directory.rglob("*.trace.json.gz")
    return list(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"])


def strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [*value, *(s for v in value.values() for s in strings(v))]
    return [s for v in value for s in strings(v)] if isinstance(value, list | tuple) else []


def test_these_recordings_ship_and_stay_small(recordings: Path) -> None:
    assert sorted(path.name for path in recordings.iterdir() if path.is_dir()) == list(RECORDINGS)
    raw = [path for name in RECORDINGS for path in (recordings / name / "raw").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in raw) < 4_000_000


@pytest.mark.parametrize("name", RECORDINGS)
def test_manifest_and_files_agree(recordings: Path, name: str) -> None:
    directory = recordings / name
    manifest = read_manifest(directory)
    assert manifest.label == name
    assert not manifest.incomplete
    present = {path.relative_to(directory).as_posix() for path in (directory / "raw").rglob("*") if path.is_file()}
    assert present == {file.path for file in manifest.files}
    for file in manifest.files:
        assert sha256_file(directory / str(file.path)) == file.sha256
        assert (directory / str(file.path)).stat().st_size == file.size_bytes
    assert manifest.run_id == run_id(file.sha256 for file in manifest.files if file.role == "primary")
    captures = {(c.kind, c.source_format, c.incomplete) for c in manifest.captures}
    assert captures == {("profile", "kineto", False), ("values", "magneton-values", False)}
    assert manifest.system.versions["torch"].startswith("2.13.0")
    assert {device.kind for device in manifest.devices} == {"cpu"}


@pytest.mark.parametrize("name", RECORDINGS)
def test_nothing_names_the_machine(recordings: Path, name: str) -> None:
    directory = recordings / name
    for file, text in texts(directory, read_manifest(directory)).items():
        found = {match.group(1) for string in strings(json.loads(text)) for match in MACHINE_PATH.finditer(string)}
        assert not found, f"{file} names {sorted(found)[:3]}"
        assert '"host_name": "' not in text


@pytest.mark.parametrize("name", RECORDINGS)
def test_steps_modules_and_shapes_are_in_the_trace(recordings: Path, name: str) -> None:
    manifest = read_manifest(recordings / name)
    events = trace_events(recordings / name)
    warmup, steps = manifest.workload.warmup_steps, manifest.workload.steps
    assert warmup is not None
    assert steps is not None
    assert [e["name"] for e in events if e.get("cat") == "user_annotation"] == [
        f"ProfilerStep#{index}" for index in range(warmup, warmup + steps)
    ]
    modules = [e["name"] for e in events if str(e.get("name")).startswith("nn.Module: ")]
    layers = manifest.workload.details["layers"]
    blocks = {m for m in modules if re.search(r"(FusedBlock|GPT2Block|LlamaDecoderLayer)_\d+$", m)}
    assert len(blocks) == layers
    assert all(modules.count(block) == steps for block in blocks)
    assert all("Input Dims" in e["args"] for e in events if e.get("name") in ("aten::addmm", "aten::mm"))


@pytest.mark.parametrize("pair", ["gpt2", "llama"])
def test_the_two_sides_of_a_pair_state_the_same_work(recordings: Path, root: Path, pair: str) -> None:
    a, b = read_manifest(recordings / f"{pair}-hf"), read_manifest(recordings / f"{pair}-fused")
    assert a.workload == b.workload
    assert a.devices == b.devices
    assert a.run_id != b.run_id
    assert (root / "examples" / pair / "record.py").is_file()
