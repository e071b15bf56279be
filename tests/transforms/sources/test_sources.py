"""Every format through the whole normaliser: samples, codecs, names that lie, files cut off, files with nothing in them.

Counts and sums of the samples are those found for each format in its own ``test_source_<format>.py``.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import zstandard
from tests.support.normalized import Normalizer, Run

from magneton.schemas.errors import InputFormatError, TruncatedInputError
from magneton.transforms.job import NormalizeOptions
from magneton.transforms.normalize import normalize

# file: format, rows by table, nanoseconds by table
SAMPLES: dict[str, tuple[str, dict[str, int], dict[str, int]]] = {
    "systems/samples/jax/perfetto_trace.json.gz": (
        "jax_trace", {"ops": 93, "frames": 7, "annotations": 128}, {"ops": 1_854_572},
    ),
    "systems/samples/jax/perfetto_trace_python.json.gz": (
        "jax_trace", {"ops": 5, "frames": 7, "annotations": 21}, {"ops": 49_550},
    ),
    "systems/samples/jax/host.xplane.pb.gz": (
        "xplane", {"ops": 10, "frames": 9, "annotations": 46, "steps": 2}, {"ops": 83_972, "steps": 3_986_135},
    ),
    "systems/samples/tensorflow/host.xplane.pb": (
        "xplane", {"ops": 29, "annotations": 123, "steps": 2}, {"steps": 4_148_957},
    ),
    "systems/samples/tensorflow/v1_timeline.json.gz": (
        "tensorflow_timeline", {"ops": 14, "annotations": 36, "counters": 24, "flows": 4}, {"ops": 172_000},
    ),
    "systems/samples/onnxruntime/gpt2_opt_none.json.gz": (
        "onnxruntime", {"ops": 164, "annotations": 6, "steps": 2}, {"ops": 40_548_000, "steps": 41_347_000},
    ),
    "systems/samples/onnxruntime/gpt2_opt_all.json.gz": (
        "onnxruntime", {"ops": 126, "annotations": 6, "steps": 2}, {"ops": 22_731_000, "steps": 23_402_000},
    ),
    "traces/jax/mi355_te_fused_attn.xplane.pb": (
        "xplane",
        {"kernels": 150, "launches": 150, "ops": 100, "frames": 59, "annotations": 1474, "counters": 177},
        {"kernels": 12_133_585, "launches": 3_697_277, "ops": 4_496_672},
    ),
    "traces/jax/mi355_te_fused_attn.trace.json.gz": (
        "jax_trace",
        {"kernels": 150, "launches": 150, "ops": 100, "frames": 59, "annotations": 1716},
        {"kernels": 12_133_585, "launches": 3_697_277, "ops": 4_496_672},
    ),
    "systems/samples/torch/mlp_execution_trace.json.gz": ("chakra", {"ops": 88, "annotations": 1, "uses": 207}, {}),
    "systems/samples/transformers/gpt2_eager_execution_trace.json.gz": (
        "chakra", {"ops": 429, "annotations": 1, "uses": 929}, {},
    ),
    "systems/samples/transformers/gpt2_sdpa_execution_trace.json.gz": (
        "chakra", {"ops": 334, "annotations": 1, "uses": 735}, {},
    ),
    "traces/odd/execution_trace_et.json.gz": ("chakra", {"ops": 28, "annotations": 8, "uses": 52}, {}),
    "traces/multirank/dlrm_v100_8rank/execution_trace_rank0.json.gz": (
        "chakra", {"ops": 1633, "annotations": 39, "uses": 3293}, {},
    ),
    "formats/nsys_export.sqlite": (
        "nsys", {"kernels": 4, "launches": 3, "annotations": 8}, {"kernels": 210_000, "launches": 17_000},
    ),
    "formats/rocpd_results.db": (
        "rocpd", {"kernels": 3, "launches": 3, "annotations": 1}, {"kernels": 300_000, "launches": 15_000},
    ),
}  # fmt: skip
TABLES = ("ops", "launches", "kernels", "frames", "annotations", "steps", "counters", "flows", "uses")


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(shared: Path, normalized: Normalizer, name: str) -> None:
    format_, counts, totals = SAMPLES[name]
    run = normalized(shared / name)
    assert {t: len(run.rows(t)) for t in TABLES if run.rows(t)} == counts
    assert {t: sum(r["dur_ns"] for r in run.rows(t)) for t in totals} == totals
    (capture,) = run.rows("captures")
    assert capture["source_format"] == format_
    fates = (capture[n] for n in ("n_kept", "n_merged", "n_ignored", "n_quarantined"))
    assert capture["n_raw"] == sum(fates)
    assert capture["n_quarantined"] == 0


def test_jax_json_and_xplane_of_one_run_link_alike(shared: Path, normalized: Normalizer) -> None:
    runs = [normalized(shared / f"traces/jax/mi355_te_fused_attn.{end}") for end in ("xplane.pb", "trace.json.gz")]
    linked = [per_operator(run) for run in runs]
    assert linked[0] == linked[1]
    # all 150 activities reach the operator that dispatched them, by their launch
    assert sum(count for count, _ in linked[0].values()) == 150
    assert sum(total for _, total in linked[0].values()) == 12_133_585
    assert {row["link"] for run in runs for row in run.rows("kernels")} == {"launch"}
    # five executions: five calls of each of twenty operators
    assert set(Counter(row["name"] for row in runs[0].rows("ops")).values()) == {5}
    assert len(linked[0]) == 20


def per_operator(run: Run) -> dict[str, tuple[int, int]]:
    names = {row["op_id"]: row["name"] for row in run.rows("ops")}
    found: dict[str, tuple[int, int]] = {}
    for row in run.rows("kernels"):
        count, total = found.get(names[row["op_id"]], (0, 0))
        found[names[row["op_id"]]] = (count + 1, total + row["dur_ns"])
    return found


def test_onnxruntime_before_and_after_optimisation(shared: Path, normalized: Normalizer) -> None:
    """What the model asks for is equal in both, whatever was fused: runs, and multiply-adds in each of them."""
    work = []
    for name in ("gpt2_opt_none", "gpt2_opt_all"):
        run = normalized(shared / f"systems/samples/onnxruntime/{name}.json.gz")
        per_step: Counter[int] = Counter()
        for row in run.rows("ops"):
            if row["name"] in ("MatMul", "Gemm", "FusedMatMul", "FusedGemm"):
                outputs = json.loads(row["attributes"])["output_dims"][0]
                size = 1
                for n in outputs:
                    size *= n
                per_step[row["step_id"]] += size * json.loads(row["input_dims"])[0][-1]
        work.append(sorted(per_step.values()))
    assert work[0] == work[1] == [17_203_200, 17_203_200]


# --- files made here ---


def jax_json() -> bytes:
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 701, "name": "process_name", "args": {"name": "/host:CPU"}},
        {"ph": "X", "pid": 701, "tid": 1, "ts": 1.5, "dur": 2.5, "name": "add.1", "args": {"hlo_op": "add.1"}},
        {"ph": "B", "pid": 701, "tid": 1, "ts": 5, "name": "outer"},
        {"ph": "E", "pid": 701, "tid": 1, "ts": 9},
        {},
    ]
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events}).encode()


def timeline() -> bytes:
    name = "/job:localhost/replica:0/task:0/device:CPU:0 Compute"
    events = [
        {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": name}},
        {"ph": "X", "cat": "Op", "name": "MatMul", "pid": 1, "tid": 0, "ts": 1795960176467840, "dur": 2, "args": {}},
    ]
    return json.dumps({"traceEvents": events}).encode()


def ort() -> bytes:
    node = {"cat": "Node", "pid": 3, "tid": 3, "dur": 60, "ts": 1020, "ph": "X", "name": "c_kernel_time"}
    return json.dumps(
        [{**node, "args": {"op_name": "Conv"}}, {**node, "ts": 2000, "args": {"op_name": "Relu"}}]
    ).encode()


def execution_trace() -> bytes:
    node = {"id": 2, "name": "aten::mm", "rf_id": 1, "parent": 1, "scope": 0, "tid": 1, "inputs": [], "outputs": []}
    return json.dumps({"schema": "1.0.1", "pid": 5, "nodes": [node, {**node, "id": 3, "rf_id": 2}]}).encode()


def xplane() -> bytes:
    def part(field: int, body: bytes) -> bytes:
        return bytes([field << 3 | 2, len(body)]) + body

    event = b"\x08\x01\x10\xe8\x07\x18\xd0\x0f"  # kind 1, at 1000 ps, 2000 ps long
    line = b"\x08\x01" + part(2, b"python") + part(4, event)
    kind = part(4, b"\x08\x01" + part(2, b"\x08\x01" + part(2, b"f")))
    return part(1, part(2, b"/host:CPU") + part(3, line) + kind) + part(4, b"host")


def nsys(path: Path) -> bytes:
    with sqlite3.connect(path) as db:
        db.executescript(
            """CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT); INSERT INTO StringIds VALUES (1, 'k');
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, demangledName INTEGER);
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (5, 9, 1);"""
        )
    db.close()
    return path.read_bytes()


FORMATS = ("jax_trace", "tensorflow_timeline", "onnxruntime", "chakra", "xplane", "nsys")


def made(format_: str, folder: Path) -> bytes:
    makers = {"jax_trace": jax_json, "tensorflow_timeline": timeline, "onnxruntime": ort, "chakra": execution_trace}
    if format_ == "nsys":
        return nsys(folder / "made.tmp")
    return makers.get(format_, xplane)()


@pytest.mark.parametrize("format_", FORMATS)
def test_codecs_and_names_that_lie(tmp_path: Path, normalized: Normalizer, format_: str) -> None:
    """A format is found by its content, whatever the file is called and however it was compressed."""
    data = made(format_, tmp_path)
    path = tmp_path / "input.txt"
    seen = set()
    zipped = tmp_path / "zipped"
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner.bin", data)
    half = len(data) // 2
    members = gzip.compress(data[:half]) + gzip.compress(data[half:])
    for content in (data, gzip.compress(data), members, zstandard.compress(data), zipped.read_bytes()):
        path.write_bytes(content)
        normalize([path], tmp_path / "run", NormalizeOptions(overwrite=True, keep_raw=False))
        run = Run(tmp_path / "run", None)  # type: ignore[arg-type]
        (capture,) = run.rows("captures")
        seen.add((capture["source_format"], capture["n_raw"], *(len(run.rows(t)) for t in TABLES)))
    assert len(seen) == 1
    assert next(iter(seen))[0] == format_
    assert not list(Path(tmp_path).glob("magneton-*"))


def test_the_folder_jax_writes_is_one_recording(tmp_path: Path) -> None:
    profiles = tmp_path / "log" / "plugins" / "profile"
    folder = profiles / "2026_01_01_00_00_00"
    folder.mkdir(parents=True)
    (folder / "host.xplane.pb").write_bytes(xplane())
    (folder / "perfetto_trace.json.gz").write_bytes(gzip.compress(jax_json()))
    for given in (tmp_path / "log", folder):
        manifest = normalize([given], tmp_path / "run", NormalizeOptions(overwrite=True))
        assert [c.source_format for c in manifest.captures] == ["xplane"]
        assert manifest.notes == ["left out perfetto_trace.json.gz: made from the xplane.pb beside it"]
    (profiles / "2026_01_02_00_00_00").mkdir()
    with pytest.raises(InputFormatError, match="2 profiles"):
        normalize([tmp_path / "log"], tmp_path / "run", NormalizeOptions(overwrite=True))


def test_begins_and_ends_are_paired_in_every_chrome_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(jax_json())
    normalize([path], tmp_path / "run")
    run = Run(tmp_path / "run", None)  # type: ignore[arg-type]
    assert [(r["name"], r["ts_ns"], r["dur_ns"]) for r in run.rows("annotations")] == [("outer", 5_000, 4_000)]
    (capture,) = run.rows("captures")
    assert (capture["n_raw"], capture["n_kept"], capture["n_merged"], capture["n_ignored"]) == (5, 2, 2, 1)


@pytest.mark.parametrize("format_", FORMATS)
def test_files_cut_off_are_refused_and_leave_nothing(tmp_path: Path, format_: str) -> None:
    data = made(format_, tmp_path)
    path = tmp_path / "cut"
    for size in (len(data) - 2, len(data) * 3 // 4):
        path.write_bytes(data[:size])
        with pytest.raises(TruncatedInputError):
            normalize([path], tmp_path / "run")
        packed = gzip.compress(data)
        path.write_bytes(packed[: len(packed) // 2])
        with pytest.raises(InputFormatError):
            normalize([path], tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("format_", ["jax_trace", "tensorflow_timeline", "onnxruntime", "chakra"])
def test_what_is_there_of_a_file_cut_off_is_kept_on_request(tmp_path: Path, format_: str) -> None:
    data = made(format_, tmp_path)
    path = tmp_path / "cut"
    path.write_bytes(data[:-30])
    normalize([path], tmp_path / "run", NormalizeOptions(allow_truncated=True))
    run = Run(tmp_path / "run", None)  # type: ignore[arg-type]
    (capture,) = run.rows("captures")
    assert (capture["source_format"], capture["incomplete"]) == (format_, True)
    assert capture["n_raw"] >= 1
    assert run.warnings()["truncated"] == 1


def test_files_with_no_events_are_accepted_with_a_warning(tmp_path: Path) -> None:
    contents = {
        "jax_trace": b'{"traceEvents": [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/host:CPU"}}, {}]}',
        "chakra": b'{"schema": "1.0.1", "pid": 1, "nodes": []}',
        "xplane": b"\x0a\x0b\x12\x09/host:CPU",
        "nsys": None,
    }
    for format_, content in contents.items():
        path = tmp_path / f"{format_}.bin"
        if content is None:
            with sqlite3.connect(path) as db:
                db.executescript(
                    "CREATE TABLE StringIds (id INTEGER, value TEXT); CREATE TABLE META_DATA_EXPORT (name, value);"
                )
            db.close()
        else:
            path.write_bytes(content)
        normalize([path], tmp_path / "run", NormalizeOptions(overwrite=True))
        run = Run(tmp_path / "run", None)  # type: ignore[arg-type]
        assert run.warnings()["no_events"] == 1
        assert run.rows("captures")[0]["source_format"] == format_
        assert not any(run.rows(t) for t in TABLES)
