"""Inputs made to break the reader: what they hold is set aside or refused in one line, whatever their numbers say."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from magneton.flows.traces import normalize
from magneton.schemas.errors import InputFormatError, UnsupportedCompressionError
from magneton.schemas.parquet import read_table
from magneton.transforms.linking.steps import parse


def trace(path: Path, *events: dict[str, Any]) -> Path:
    common = {"ph": "X", "pid": 1, "tid": 1, "cat": "cpu_op", "name": "aten::add", "dur": 1}
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [common | e for e in events]}))
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_archives_whose_output_cannot_be_bounded_are_refused(tmp_path: Path, method: int) -> None:
    path = tmp_path / "trace.json.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("trace.json", b" " * 1_000_000)
    with pytest.raises(UnsupportedCompressionError, match="store nor deflate"):
        normalize([path], tmp_path / "run")


@pytest.mark.parametrize(
    "event",
    [
        {"name": "execute_new_99999999999999999999_cached_1", "cat": "user_annotation"},
        {"name": f"execute_new_{'9' * 5000}_cached_1", "cat": "user_annotation"},
        {"name": "step", "cat": "user_annotation", "args": {"step_num": 1e30}},
        {"name": "step", "cat": "user_annotation", "args": {"step_num": 1 << 64}},
    ],
)
def test_step_numbers_beyond_64_bits_mark_no_step(tmp_path: Path, event: dict[str, Any]) -> None:
    normalize([trace(tmp_path / "t.json", {"ts": 1}, event | {"ts": 3})], tmp_path / "run")
    assert read_table(tmp_path / "run" / "tables" / "steps.parquet", "steps").num_rows == 0
    assert read_table(tmp_path / "run" / "tables" / "annotations.parquet", "annotations").num_rows == 1


def test_a_step_number_is_a_whole_number() -> None:
    assert getattr(parse("step", '{"step_num": 3}'), "index", None) == 3
    assert parse("step", '{"step_num": 1.5}') is None
    assert parse("step", '{"step_num": true}') is None


@pytest.mark.parametrize("ts", [[9_223_372_036_854_775], [9.22e15, -9.22e15], ["9223372036854775.5", 1]])
def test_times_whose_differences_leave_64_bits_are_set_aside(tmp_path: Path, ts: list[Any]) -> None:
    path = trace(tmp_path / "t.json", {"ts": 5}, *({"ts": t, "dur": 100_000} for t in ts))
    normalize([path], tmp_path / "run")
    reasons = read_table(tmp_path / "run" / "tables" / "quarantine.parquet", "quarantine").column("reason").to_pylist()
    assert reasons == ["ts_out_of_range"] * sum(t != 1 for t in ts)


def test_numbers_too_large_for_their_column_are_refused(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.json", {"ts": 5})
    normalize([path], tmp_path / "run")
    file = tmp_path / "run" / "tables" / "ops.parquet"
    table = pq.read_table(file)
    at = table.schema.get_field_index("op_id")
    pq.write_table(
        table.set_column(at, "op_id", pa.array(np.array([1 << 63], np.uint64))).cast(
            table.schema.set(at, pa.field("op_id", pa.uint64()))
        ),
        file,
    )
    with pytest.raises(InputFormatError, match="op_id"):
        read_table(file, "ops")
