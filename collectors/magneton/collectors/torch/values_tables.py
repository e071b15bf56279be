"""What a value recorder has seen, as rows of the tables ``ops``, ``tensors``, ``uses``, ``modules`` and ``frames``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magneton.collectors.torch.call_stack import Frame, ModuleCall
from magneton.collectors.torch.dataflow import Value
from magneton.collectors.torch.dispatch import Call, ValueRecorder

if TYPE_CHECKING:
    import pyarrow as pa

# What a fingerprint has of the columns of `tensors`, but for the lists.
_STATISTICS = ("mean", "std", "l1", "l2_squared", "l4_fourth", "sum_cubes", "min", "max")


def columns_of(recorder: ValueRecorder) -> dict[str, dict[str, Sequence[Any]]]:
    """Return the columns of the tables of one capture, by table. ``sketches``, ``slices`` and ``signatures`` are as in ``Fingerprint``."""
    recorder.dataflow.signatures.trim()
    return {
        "ops": _ops(recorder.calls),
        "tensors": _tensors(recorder.dataflow.values),
        "uses": _uses(recorder.calls),
        "modules": _modules(recorder.modules.modules),
        "frames": _frames(recorder.frames.frames),
    }


def tables_of(recorder: ValueRecorder, keys: Mapping[str, Any]) -> dict[str, pa.Table]:
    """Return the tables of one capture.

    Args:
        recorder: what was recorded.
        keys: run id, capture, rank, repeat and input of all rows.
    """
    # Imported only here: inside a recorded program the columns alone are needed.
    from magneton.collectors.raw.sketch_lists import lists_of_signatures, lists_of_sketches, lists_of_slices
    from magneton.collectors.raw.tables import table_of
    from magneton.schemas.tables.run import RUN_TABLES

    columns = columns_of(recorder)
    tensors: dict[str, Any] = columns["tensors"]
    tensors["sketches"] = lists_of_sketches(tensors["sketches"])
    tensors["slices"] = lists_of_slices(tensors["slices"])
    tensors["signatures"] = lists_of_signatures(tensors["signatures"])
    return {name: table_of(RUN_TABLES[name], found, keys) for name, found in columns.items()}


def write_tables(directory: Path, tables: Mapping[str, pa.Table]) -> None:
    """Write tables to a directory, one Parquet file each."""
    from magneton.schemas.tables.parquet import write_table
    from magneton.schemas.tables.run import RUN_TABLES

    for name, data in tables.items():
        write_table(directory / f"{name}.parquet", RUN_TABLES[name], data)


def _ops(calls: Sequence[Call]) -> dict[str, Sequence[Any]]:
    return {
        "name": [c.name for c in calls],
        "op_id": [c.number for c in calls],
        "depth": [0 for _ in calls],
        "module_id": [c.module for c in calls],
        "frame_id": [c.frame for c in calls],
        "sequence_number": [c.sequence for c in calls],
        "forward_op_id": [c.forward for c in calls],
        "input_dims": [c.dims for c in calls],
        "input_types": [c.types for c in calls],
        "attributes": [_attributes(c) for c in calls],
        "flags": [" ".join(c.flags) or None for c in calls],
    }


def _attributes(call: Call) -> str | None:
    known: dict[str, Any] = {}
    if call.overload:
        known["overload"] = call.overload
    if call.module_path is not None:
        known["module_path"] = call.module_path
    if call.compiled:
        known["compiled"] = True
    return json.dumps(known, ensure_ascii=False) if known else None


def _tensors(values: Sequence[Value]) -> dict[str, Sequence[Any]]:
    prints = [v.fingerprint for v in values]
    stats = [p.statistics for p in prints]
    found: dict[str, Sequence[Any]] = {
        "tensor_id": [v.number for v in values],
        "storage_id": [v.storage for v in values],
        "version": [v.version for v in values],
        "dims": [v.dims for v in values],
        "dtype": [v.dtype for v in values],
        "precision": [v.precision for v in values],
        "numel": [v.numel for v in values],
        "role": [v.role for v in values],
        "constant": [v.constant for v in values],
        "hash": [p.hash for p in prints],
        "why_no_values": [p.why if s is None else None for p, s in zip(prints, stats, strict=True)],
        "sketches": [p.sketches for p in prints],
        "slices": [p.slices for p in prints],
        "signatures": [p.signatures for p in prints],
        "quantiles": [None if s is None else s.quantiles for s in stats],
    }
    for name in ("n_nan", "n_posinf", "n_neginf"):
        found[name] = [None if s is None else getattr(s, name) for s in stats]
    for name in _STATISTICS:
        numbers = [math.nan if s is None else getattr(s, name) for s in stats]
        found[name] = [None if math.isnan(n) else n for n in numbers]
    return found


def _uses(calls: Sequence[Call]) -> dict[str, Sequence[Any]]:
    edges = [(c.number, e) for c in calls for e in c.edges]
    return {
        "op_id": [number for number, _ in edges],
        "direction": ["output" if e.output else "input" for _, e in edges],
        "position": [e.position for _, e in edges],
        "element": [e.element for _, e in edges],
        "tensor_id": [e.value.number for _, e in edges],
        "storage_id": [e.value.storage for _, e in edges],
        "storage_offset": [e.offset for _, e in edges],
        "numel": [e.value.numel for _, e in edges],
        "itemsize": [e.itemsize for _, e in edges],
        "device": [e.device for _, e in edges],
        "dtype": [e.value.dtype for _, e in edges],
        "dims": [e.dims for _, e in edges],
        "strides": [e.strides for _, e in edges],
    }


def _modules(modules: Sequence[ModuleCall]) -> dict[str, Sequence[Any]]:
    return {
        "name": [m.name for m in modules],
        "module_id": [m.number for m in modules],
        "parent_id": [None if m.parent is None else m.parent.number for m in modules],
        "class_name": [m.class_name for m in modules],
        "path": [m.path for m in modules],
        "depth": [m.depth for m in modules],
        "n_calls": [m.n_calls for m in modules],
    }


def _frames(frames: Sequence[Frame]) -> dict[str, Sequence[Any]]:
    return {
        "name": [f"{f.file}({f.line}): {f.function}" for f in frames],
        "frame_id": [f.number for f in frames],
        "parent_id": [f.parent for f in frames],
        "file": [f.file for f in frames],
        "line": [f.line for f in frames],
        "function": [f.function for f in frames],
    }
