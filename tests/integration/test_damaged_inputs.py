"""Whatever is wrong with an input of any format: it is read with books that balance, or refused by name in one line.

Bytes are changed, dropped and inserted anywhere; and where a format has values, any value stands in place of any other.
"""

from __future__ import annotations

import copy
import json
import math
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.made_traces import document, kernel, op
from tests.support.power_cases import books_balance, codes
from tests.transforms.bench.test_bench_formats import ANCHORED, GUIDELLM, SGLANG, VLLM
from tests.transforms.sources import test_source_nsys, test_source_rocpd
from tests.transforms.sources.test_source_chakra import NEW, OLD
from tests.transforms.sources.test_source_jax_trace import named, slice_
from tests.transforms.sources.test_source_onnxruntime import event
from tests.transforms.sources.test_source_tensorflow_timeline import op as timeline_op
from tests.transforms.sources.test_source_tensorflow_timeline import process
from tests.transforms.sources.test_source_xplane import gpu_profile

from magneton.flows.extras import read_anchors
from magneton.schemas import codes as all_codes
from magneton.schemas.errors import EXIT_BAD_INPUT, MagnetonError
from magneton.schemas.tables.parquet import read_table
from magneton.schemas.tables.run import RUN_TABLES
from magneton.transforms.bench.registry import read_bench
from magneton.transforms.job import NormalizeOptions
from magneton.transforms.normalize import normalize
from magneton.transforms.power.log import PowerOptions
from magneton.transforms.power.registry import read_power

DAMAGE = settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


def kineto() -> bytes:
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 2, "dur": 1}
    return document(
        [
            op("aten::mm", 1, 9, args={"External id": 3, "Input Dims": [[2, 3], [3, 4]], "Sequence number": 1}),
            launch | {"args": {"correlation": 5, "External id": 3}},
            kernel("gemm", 4, 6, args={"correlation": 5, "device": 0, "stream": 7, "grid": [1, 2, 3]}),
            {"ph": "X", "cat": "python_function", "name": "m.py(3): f", "pid": 1, "tid": 1, "ts": 0, "dur": 20}
            | {"args": {"Python id": 1, "Python parent id": None}},
            {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
            {"ph": "s", "id": 4, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 1, "ts": 2},
            {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0, "dur": 30},
        ],
        baseTimeNanoseconds=1718000000000000000,
        distributedInfo={"rank": 0, "world_size": 1},
        deviceProperties=[{"id": 0, "name": "gpu"}],
    )


def jax_json() -> bytes:
    events = [
        slice_(701, 1, 1.0, 0.5, "add.1"),
        slice_(701, 9, 1.1, 0.2, "hipLaunchKernel", correlation_id="4", hlo_op="add.1"),
        slice_(1, 1, 2.0, 0.25, "fusion.kd", correlation_id="4", hlo_op="add.1"),
        slice_(701, 1, 0.0, 9.0, "train", step_num="7"),
        slice_(701, 1, 4.0, 1.0, "$api.py:3105 block_until_ready"),
        *named(1, "/device:GPU:0", t1="Stream #13", t2="XLA Ops - from #13"),
        *named(701, "/host:CPU", t1="python", t9="Host Threads/9"),
        {},
    ]
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events}).encode()


def timeline() -> bytes:
    name = "/job:localhost/replica:0/task:0/device:CPU:0 Compute"
    return json.dumps({"traceEvents": [process(1, name), timeline_op(1, "MatMul", 1795960176467840, 2)]}).encode()


def ort() -> bytes:
    return json.dumps(
        [
            event("Session", "model_run", 0, 30),
            event("Node", "mm_kernel_time", 10, 5, op_name="MatMul", node_index="4", provider="CUDAExecutionProvider"),
            event("Kernel", "gemm<float>", 11, 4, pid=-1, op_name="MatMul", stream="7", grid_x="2"),
            event("Api", "hipLaunchKernel", 10, 1, pid=-1, op_name="MatMul"),
        ]
    ).encode()


def chakra() -> bytes:
    return json.dumps({"schema": "1.0.1", "pid": 5, "nodes": [OLD, NEW | {"id": 9}]}).encode()


def nsys(folder: Path) -> Path:
    rows = (test_source_nsys.KERNELS, test_source_nsys.kernel(5, 9, 1), test_source_nsys.kernel(15, 19, 2, 3))
    return test_source_nsys.make(folder / "made.sqlite", *rows)


def rocpd(folder: Path) -> Path:
    return test_source_rocpd.make(folder / "made.db", 1)


JSONS: dict[str, Callable[[], bytes]] = {
    "kineto": kineto,
    "jax_trace": jax_json,
    "tensorflow_timeline": timeline,
    "onnxruntime": ort,
    "chakra": chakra,
}
TABLES: dict[str, Callable[[Path], Path]] = {"nsys": nsys, "rocpd": rocpd}

ODD = st.sampled_from(
    [
        None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 2**70, 1e308, -0.0, 0.5, math.nan, math.inf, "", "x", "-1",
        "1e400", "nan", "\x00", "\ud800", "é" * 3, "9" * 40, 10**400, [], {}, [[]], [None], {"": None}, [1, "x", None, {}], "Tensor(float)",
    ]
)  # fmt: skip
ANY = ODD | st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def read_or_refused(content: bytes | Path, name: str = "input") -> None:
    """Normalise one file, salvaging it where it is cut off; books balance, and what is refused leaves nothing."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / name
        if isinstance(content, Path):
            path = content
        else:
            path.write_bytes(content)
        for number, allow in enumerate((False, True)):
            out = Path(directory) / f"run{number}"
            try:
                normalize([path], out, NormalizeOptions(keep_raw=False, allow_truncated=allow))
            except MagnetonError as error:
                assert "\n" not in str(error)
                assert error.exit_code == EXIT_BAD_INPUT
                assert not out.exists()
                continue
            rows = {t: read_table(out / "tables" / f"{t}.parquet", t).to_pylist() for t in RUN_TABLES if t != "raw"}
            for capture in rows["captures"]:
                fates = [capture[f"n_{fate}"] for fate in ("kept", "merged", "ignored", "quarantined")]
                assert capture["n_raw"] == sum(fates)
            assert {w["code"] for w in rows["warnings"]} <= all_codes.WARNING_CODES.keys()
            assert {q["reason"] for q in rows["quarantine"]} <= all_codes.QUARANTINE_REASONS.keys()
            assert all((r["dur_ns"] or 0) >= 0 for t in ("ops", "launches", "kernels", "frames") for r in rows[t])
            return


def damaged(data: st.DataObject, content: bytes) -> bytes:
    """Content with a few bytes changed, dropped, inserted, or moved from elsewhere in it."""
    whole = bytearray(content)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(whole)))
        what = data.draw(st.sampled_from(["flip", "drop", "insert", "copy", "cut"]))
        if what == "flip":
            whole[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
        elif what == "drop":
            del whole[at : at + data.draw(st.integers(1, 40))]
        elif what == "insert":
            whole[at:at] = data.draw(
                st.sampled_from([b"{", b"}", b"]", b",", b'"', b"\\", b"NaN", b"-", b"\0", b"\xff"])
            )
        elif what == "copy":
            start = data.draw(st.integers(0, len(whole)))
            whole[at:at] = whole[start : start + data.draw(st.integers(1, 60))]
        elif data.draw(st.integers(0, 9)) == 0:
            del whole[at:]
        if not whole:
            break
    return bytes(whole)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything inside a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, item in inner for path in places(item, (*at, key)))]


def replaced(data: st.DataObject, value: Any) -> Any:
    """A document in which some values are others, are left out, or are there twice."""
    whole = copy.deepcopy(value)
    for _ in range(data.draw(st.integers(1, 4))):
        paths = [path for path in places(whole) if path]
        if not paths:
            return whole
        *way, last = data.draw(st.sampled_from(paths))
        where = whole
        for key in way:
            where = where[key]
        what = data.draw(st.sampled_from(["value", "value", "value", "drop", "twice"]))
        if what == "value":
            where[last] = copy.deepcopy(data.draw(ANY))
        elif what == "drop":
            del where[last]
        elif isinstance(where, list):
            where.append(copy.deepcopy(where[last]))
        else:
            where[data.draw(st.text(max_size=4))] = copy.deepcopy(where[last])
    return whole


@pytest.mark.parametrize("format_", [*JSONS, "xplane", *TABLES])
@DAMAGE
@given(data=st.data())
def test_any_bytes_changed(tmp_path_factory: pytest.TempPathFactory, format_: str, data: st.DataObject) -> None:
    if format_ in TABLES:
        with tempfile.TemporaryDirectory() as folder:
            content = TABLES[format_](Path(folder)).read_bytes()
    else:
        content = JSONS.get(format_, gpu_profile)()
    read_or_refused(damaged(data, content))


@pytest.mark.parametrize("format_", JSONS)
@DAMAGE
@given(data=st.data())
def test_any_value_in_place_of_any_other(format_: str, data: st.DataObject) -> None:
    read_or_refused(json.dumps(replaced(data, json.loads(JSONS[format_]()))).encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("format_", TABLES)
@DAMAGE
@given(data=st.data())
def test_any_cell_of_any_table(format_: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = TABLES[format_](Path(folder))
        db = sqlite3.connect(path)
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        for _ in range(data.draw(st.integers(1, 4))):
            table = data.draw(st.sampled_from(names))
            columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
            column = data.draw(st.sampled_from(columns))
            cell = (
                st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=4) | st.binary(max_size=4)
            )
            value = data.draw(cell)
            if isinstance(value, str):
                value = value.encode("utf-8", "replace").decode()
            try:
                db.execute(f'UPDATE "{table}" SET "{column}" = ?', (value,))
            except sqlite3.Error:
                continue
            if data.draw(st.integers(0, 9)) == 0:
                db.execute(f'DELETE FROM "{table}"')
        db.commit()
        db.close()
        read_or_refused(path)


PROMETHEUS = {
    "status": "success",
    "data": {
        "resultType": "matrix",
        "result": [
            {
                "metric": {"__name__": "DCGM_FI_DEV_POWER_USAGE", "gpu": "0", "UUID": "GPU-a", "pod": "p"},
                "values": [[1767225600, "100.5"], [1767225601.5, "101"]],
            },
            {
                "metric": {"__name__": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "gpu": "0", "UUID": "GPU-a"},
                "values": [[1767225600, "5000"], [1767225601, "5100"]],
            },
        ],
    },
}


@DAMAGE
@given(data=st.data())
def test_any_value_in_a_range_vector(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(json.dumps(replaced(data, PROMETHEUS)).encode("utf-8", "surrogatepass"))
    try:
        log = read_power(path, PowerOptions(tz="UTC"))
    except MagnetonError as error:
        assert "\n" not in str(error)
        return
    assert books_balance(log)
    assert codes(log) <= all_codes.WARNING_CODES.keys()
    assert set(log.report.dropped) <= all_codes.QUARANTINE_REASONS.keys()
    energies = [r["value"] for r in log.table.to_pylist() if r["unit"] in ("W", "J") and r["value"] is not None]
    assert all(value >= 0 and math.isfinite(value) for value in energies)


@pytest.mark.parametrize("made", [VLLM, SGLANG, GUIDELLM], ids=["vllm", "sglang", "guidellm"])
@DAMAGE
@given(data=st.data())
def test_any_value_in_a_benchmark_result(tmp_path: Path, made: Any, data: st.DataObject) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(json.dumps(replaced(data, made)).encode("utf-8", "surrogatepass"))
    try:
        result = read_bench(path, ANCHORED)
    except MagnetonError as error:
        assert "\n" not in str(error)
        return
    work = result.workload
    assert all(c is None or c >= 0 for c in (work.requests, work.input_tokens, work.output_tokens, work.duration_s))
    times = [t for r in result.requests for t in (r.ttft_s, r.latency_s)]
    assert all(t is None or (t >= 0 and math.isfinite(t)) for t in times)
    assert result.window_unix_ns is None or result.window_unix_ns[0] <= result.window_unix_ns[1]
    assert {code for code, *_ in result.warnings} <= all_codes.WARNING_CODES.keys()
    json.dumps(work.details, allow_nan=False)


@DAMAGE
@given(data=st.data())
def test_any_value_in_a_file_of_anchors(tmp_path: Path, data: st.DataObject) -> None:
    reading = {"realtime_ns": 1718000000000000000, "boottime_ns": 10000000000000, "monotonic_ns": 9963000000000}
    path = tmp_path / "a.json"
    found = replaced(data, {"clock_anchors": [reading, reading | {"boottime_ns": 11000000000000}]})
    path.write_bytes(json.dumps(found).encode("utf-8", "surrogatepass"))
    try:
        anchors = read_anchors(path)
    except MagnetonError as error:
        assert "\n" not in str(error)
        return
    assert all(type(number) is int for a in anchors for number in (a.unix_ns, a.clock_ns))
