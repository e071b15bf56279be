"""Tables that are not what they claim (fault case 57): refused by name, at every layer that opens them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.small_recording import rows, small_tables, write_recording

from magneton.analysis.query import Recordings
from magneton.schemas import errors, manifest
from magneton.schemas.tables import parquet
from magneton.schemas.tables.parquet import TABLES, file_schema, inspect_file, read_table, write_table
from magneton.schemas.versions import registry as versions
from magneton.schemas.versions.registry import TABLE_KEY, VERSION_KEY

CASE = Path(__file__).resolve().parents[1] / "faults" / "cases" / "57-parquet-wrong-schema"
EXPECTED: dict[str, Any] = json.loads((CASE / "expected.md").read_text().split("```json")[1].split("```")[0])
FILES = [name for name in EXPECTED if name.endswith(".parquet")]


def prepared(name: str, to: Path) -> Path:
    """Copy a file of the case, its neutral key for the version rewritten to ours."""
    shutil.copyfile(CASE / name, to)
    try:
        table = pq.read_table(to, partitioning=None)
    except (pa.ArrowInvalid, OSError):
        return to
    metadata = {VERSION_KEY if k == b"schema_version" else k: v for k, v in (table.schema.metadata or {}).items()}
    pq.write_table(table.replace_schema_metadata(metadata), to)
    return to


def by_sql(path: Path) -> pa.Table:
    run = write_recording(path.parent / "run", {})
    shutil.copyfile(path, run / "tables" / "kernels.parquet")
    with Recordings([run]) as opened:
        return opened.query("SELECT name, ts_ns, dur_ns FROM kernels ORDER BY ts_ns").read_all()


def by_reader(path: Path) -> pa.Table:
    return read_table(path, "kernels").select(["name", "ts_ns", "dur_ns"])


READERS: list[Callable[[Path], pa.Table]] = [by_sql, by_reader]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("name", FILES)
def test_fault_57(name: str, read: Callable[[Path], pa.Table], tmp_path: Path) -> None:
    path = prepared(name, tmp_path / "kernels.parquet")
    expected = EXPECTED[name]
    if expected.startswith("accept"):
        assert read(path).column("dur_ns").null_count == 0
        return
    assert expected.startswith("refuse ")
    accepted = tuple(getattr(errors, word) for word in expected.replace(",", "").split() if word.endswith("Error"))
    with pytest.raises(accepted) as caught:
        read(path)
    line = str(caught.value)
    assert caught.value.exit_code == errors.EXIT_BAD_INPUT
    assert "\n" not in line
    assert "kernels.parquet" in line
    for fact in {
        "v999.parquet": ["999", versions.supported()],
        "missing_dur.parquet": ["dur_ns"],
        "float_ts.parquet": ["ts_ns", "double", "int64"],
    }.get(name, []):
        assert fact in line


def test_fault_57_forbids() -> None:
    """Both forbidden readings are covered by values above; a new one in the list must get its own test."""
    assert EXPECTED["forbidden"] == [
        "casting float timestamps to int silently",
        "reading missing dur_ns as null for all",
    ]


def table_with(schema: pa.Schema, **columns: Any) -> pa.Table:
    return pa.table(columns).replace_schema_metadata(schema.metadata)


def test_narrower_integers_dictionaries_and_null_columns_are_read(tmp_path: Path) -> None:
    path = tmp_path / "kernels.parquet"
    schema = file_schema(TABLES["kernels"])
    data = table_with(
        schema,
        run_id=["r1"],
        name=pa.array(["k"]).dictionary_encode(),
        ts_ns=pa.array([1], pa.int32()),
        dur_ns=pa.array([2], pa.uint16()),
        kernel_class=pa.array(["gemm"], pa.large_string()),
        bytes=pa.nulls(1),
    )
    pq.write_table(data, path)
    expected = {"name": "k", "ts_ns": 1, "dur_ns": 2, "kernel_class": "gemm", "bytes": None, "stream": None}
    assert read_table(path, "kernels", columns=list(expected)).select(list(expected)).to_pylist() == [expected]
    run = write_recording(tmp_path / "run", {})
    shutil.copyfile(path, run / "tables" / "kernels.parquet")
    with Recordings([run]) as opened:
        found = opened.query("SELECT name, ts_ns, dur_ns, kernel_class, bytes, stream FROM kernels").read_all()
    assert found.to_pylist() == [expected]


def test_a_renamed_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kernels.parquet"
    write_table(path, TABLES["ops"], rows("ops", small_tables()["ops"]))
    for read in (inspect_file, read_table):
        with pytest.raises(errors.SchemaVersionError, match="holds the table 'ops', where kernels belongs"):
            read(path, "kernels")


def test_a_column_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kernels.parquet"
    one = pa.array([1], pa.int64())
    schema = pa.schema([("run_id", pa.string()), ("name", pa.string()), ("ts_ns", pa.int64()), ("dur_ns", pa.int64())])
    data = pa.Table.from_arrays(
        [pa.array(["r"]), pa.array(["k"]), one, one, one], schema=schema.append(pa.field("ts_ns", pa.int64()))
    ).replace_schema_metadata({VERSION_KEY: b"1"})
    pq.write_table(data, path)
    with pytest.raises(errors.SchemaVersionError, match="ts_ns of table kernels more than once"):
        inspect_file(path, "kernels")


def test_damage_inside_is_named(tmp_path: Path) -> None:
    """The footer is whole, the pages are not."""
    run = write_recording(tmp_path / "run", small_tables())
    path = run / "tables" / "kernels.parquet"
    raw = bytearray(path.read_bytes())
    raw[4:400] = b"\xff" * 396
    path.write_bytes(raw)
    with pytest.raises(errors.InputFormatError, match="cannot be read"):
        read_table(path, "kernels")
    with Recordings([run]) as opened, pytest.raises(errors.InputFormatError, match="cannot be read"):
        opened.query("SELECT * FROM kernels").read_all()


def test_older_tables_are_upgraded_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two invented versions ahead: what this release writes is then two behind, and still opens beside a new one."""
    old = write_recording(tmp_path / "old", small_tables(), label="old")

    def add(table: pa.Table, path: Path) -> pa.Table:
        return table.append_column("added", pa.array(["x"] * table.num_rows))

    def mark(table: pa.Table, path: Path) -> pa.Table:
        assert "added" in table.column_names, "the steps run in order"
        index = table.schema.get_field_index("kernel_class")
        return table.drop_columns(["added"]).set_column(index, "kernel_class", pa.array(["upgraded"] * table.num_rows))

    now = versions.SCHEMA_VERSION
    for version, step in ((now + 1, add), (now + 2, mark)):
        monkeypatch.setitem(versions.TABLE_STEPS, version, {"kernels": step})
        monkeypatch.setitem(versions.MANIFEST_STEPS, version, lambda document: document)
    for module in (parquet, versions, manifest):
        monkeypatch.setattr(module, "SCHEMA_VERSION", now + 2)
    new = write_recording(tmp_path / "new", small_tables(), label="new")
    assert pq.read_schema(new / "tables" / "kernels.parquet").metadata[VERSION_KEY] == str(now + 2).encode()
    with Recordings([old, new]) as opened:
        found = opened.query(
            "SELECT run, kernel_class, count(*)::BIGINT AS n FROM kernels WHERE category = 'kernel' GROUP BY ALL ORDER BY ALL"
        ).read_all()
        assert opened.query("SELECT count(*) AS n FROM ops WHERE run = 'old'").read_all().to_pylist() == [{"n": 6}]
    assert found.to_pylist() == [
        {"run": "new", "kernel_class": "elementwise", "n": 2},
        {"run": "new", "kernel_class": "gemm", "n": 2},
        {"run": "old", "kernel_class": "upgraded", "n": 4},
    ]


def test_a_file_states_table_version_and_units(tmp_path: Path) -> None:
    path = tmp_path / "kernels.parquet"
    write_table(path, TABLES["kernels"], rows("kernels", small_tables()["kernels"]))
    schema = pq.read_schema(path)
    assert schema.metadata[TABLE_KEY] == b"kernels"
    assert schema.metadata[VERSION_KEY] == str(versions.SCHEMA_VERSION).encode()
    assert schema.field("dur_ns").metadata[b"magneton.unit"] == b"ns"
    assert schema.field("bytes").metadata[b"magneton.unit"] == b"bytes"
