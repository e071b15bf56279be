"""Captures of values: the tables a value recorder left, checked, renumbered into the run and given their keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from magneton.schemas.errors import InputFormatError
from magneton.schemas.kinds import CaptureKind, OwnFormat
from magneton.schemas.manifest import Capture
from magneton.schemas.tables.parquet import inspect_file, read_table
from magneton.schemas.tables.run import VALUES_TABLES
from magneton.transforms.linking.host import NextIds
from magneton.transforms.staging.writer import RunWriter

# Beside the tables of a capture; it may be missing.
KNOBS = "knobs"
# Ids that a capture numbers from 0: the table that defines them, and the columns that refer to them.
_OWN_IDS = {"ops": "op_id", "modules": "module_id", "frames": "frame_id"}
_REFERENCES = {
    "ops": {"op_id": "ops", "parent_id": "ops", "forward_op_id": "ops", "module_id": "modules", "frame_id": "frames"},
    "uses": {"op_id": "ops"},
    "modules": {"module_id": "modules", "parent_id": "modules"},
    "frames": {"frame_id": "frames", "parent_id": "frames", "module_id": "modules"},
    "tensors": {},
}


@dataclass(frozen=True)
class ValuesInput:
    """The raw files of one capture of values: one rank, one input.

    Attributes:
        directory: where ``ops.parquet`` and the others lie.
        rank: rank of the process.
        input_id: which input it ran on.
        incomplete: it ends early.
    """

    directory: Path
    rank: int = 0
    input_id: str | None = None
    incomplete: bool = False

    @property
    def file(self) -> Path:
        """The file that stands for the capture."""
        return self.directory / "ops.parquet"

    def files(self) -> list[Path]:
        """Return the files of the capture.

        Raises:
            InputNotFoundError: one is missing.
            SchemaVersionError, InputFormatError: one is not what it should be.
        """
        found = [self.directory / f"{name}.parquet" for name in VALUES_TABLES]
        for name, path in zip(VALUES_TABLES, found, strict=True):
            inspect_file(path, name)
        knobs = self.directory / f"{KNOBS}.parquet"
        return [*found, knobs] if knobs.is_file() else found


def write_values(
    inputs: Sequence[ValuesInput], places: Mapping[Path, str], writer: RunWriter, next_ids: NextIds
) -> list[Capture]:
    """Write the rows of captures of values; return the captures for the manifest.

    Args:
        inputs: the captures.
        places: path of each of their files in the recording, by where it lies.
        writer: where to.
        next_ids: ids that are still free in the run.

    Raises:
        InputFormatError: ids that are not unique, or that refer to nothing.
    """
    captures = []
    for item in sorted(inputs, key=lambda i: (i.rank, i.input_id or "")):
        keys = {"capture": CaptureKind.VALUES, "rank": item.rank, "repeat": None, "input_id": item.input_id}
        tables = {name: read_table(item.directory / f"{name}.parquet", name) for name in VALUES_TABLES}
        _renumber(tables, next_ids, item.directory)
        knobs = item.directory / f"{KNOBS}.parquet"
        if knobs.is_file():
            tables[KNOBS] = read_table(knobs, KNOBS)
        for name, data in tables.items():
            _write(writer, name, data, keys)
        count = tables["ops"].num_rows
        file = places[item.file]
        row: dict[str, Any] = {
            "name": [CaptureKind.VALUES],
            "kind": [CaptureKind.VALUES],
            "source_format": [OwnFormat.VALUES],
            "file": [file],
            "incomplete": [item.incomplete],
            "n_raw": [count],
            "n_kept": [count],
        }
        row |= {name: [0] for name in ("n_merged", "n_ignored", "n_quarantined")}
        row |= {name: pa.nulls(1, pa.int64()) for name in ("ts_ns", "dur_ns")}
        writer.write("captures", 1, keys, {n: v if isinstance(v, pa.Array) else pa.array(v) for n, v in row.items()})
        captures.append(
            Capture(
                name=CaptureKind.VALUES,
                kind=CaptureKind.VALUES,
                rank=item.rank,
                input_id=item.input_id,
                source_format=OwnFormat.VALUES,
                file=file,
                incomplete=item.incomplete,
            )
        )
    return captures


def _write(writer: RunWriter, name: str, data: pa.Table, keys: dict[str, Any]) -> None:
    columns = {n: data[n].combine_chunks() for n in data.column_names if n != "run_id" and n not in keys}
    writer.write(name, data.num_rows, keys, columns)


def _renumber(tables: dict[str, pa.Table], next_ids: NextIds, directory: Path) -> None:
    """Give operators, modules and frames ids that are free in the run. Ids of tensors stay: inputs compare by them."""
    new: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, column in _OWN_IDS.items():
        old = tables[name].column(column)
        if old.null_count or pc.count_distinct(old).as_py() != len(old):
            raise InputFormatError(f"has missing or repeated values of {column}", path=directory / f"{name}.parquet")
        order = np.argsort(old.to_numpy(), kind="stable")
        ids = np.empty(len(old), np.int64)
        ids[order] = next_ids.take(name, len(old))
        new[name] = (old.to_numpy()[order], ids[order])
    tensors = tables["tensors"].column("tensor_id")
    if tensors.null_count or pc.count_distinct(tensors).as_py() != len(tensors):
        raise InputFormatError("has missing or repeated values of tensor_id", path=directory / "tensors.parquet")
    used = tables["uses"].column("tensor_id")
    if not pc.all(pc.is_in(used, value_set=tensors.combine_chunks())).as_py() and len(used):
        raise InputFormatError("names tensors that are not there", path=directory / "uses.parquet")
    for name, columns in _REFERENCES.items():
        for column, target in columns.items():
            index = tables[name].column_names.index(column)
            mapped = _mapped(tables[name].column(column), *new[target], directory / f"{name}.parquet")
            tables[name] = tables[name].set_column(index, tables[name].schema.field(index), mapped)


def _mapped(column: pa.ChunkedArray, old: np.ndarray, new: np.ndarray, path: Path) -> pa.Array:
    missing = column.is_null().to_numpy()
    wanted = column.fill_null(0).to_numpy()
    at = np.minimum(np.searchsorted(old, wanted), max(len(old) - 1, 0))
    known = missing | (old[at] == wanted) if len(old) else missing
    if not known.all():
        raise InputFormatError("refers to rows that are not there", path=path)
    return pa.array(new[at] if len(old) else wanted, mask=missing)
