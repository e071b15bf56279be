"""Placing graph replays in the tables of a run, after all files were read. So the order of the files does not matter."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from magneton.schemas.kinds import CaptureKind, Flag
from magneton.schemas.tables.parquet import TableWriter
from magneton.schemas.tables.run import RUN_TABLES
from magneton.transforms.cuda_graphs.columns import KERNEL_COLUMNS, LAUNCH_COLUMNS, Warned, place_replays

_STEP_COLUMNS = ["step_id", "context_tokens", "generation_tokens"]
_ANNOTATION_COLUMNS = ["capture", "rank", "name", "ts_ns", "dur_ns"]


def place_replays_in(directory: Path) -> None:
    """Tie the kernels of graph replays to the operators that captured them, in the tables below ``directory``.

    Rewrites ``kernels`` and ``warnings`` where graphs were replayed, and touches nothing otherwise.
    """
    path = directory / "kernels.parquet"
    replayed = pq.read_table(path, columns=["graph_launch"]).column("graph_launch")
    if not pc.any(replayed).as_py():
        return
    captures = pq.read_table(directory / "captures.parquet", columns=["capture", "rank", "kind"])
    recorded = captures.filter(pc.equal(captures.column("kind"), CaptureKind.GRAPH_CAPTURE)).column("capture").unique()
    changed, warned = place_replays(
        pq.read_table(path, columns=list(KERNEL_COLUMNS), read_dictionary=["name", "category"]),
        _of(directory, "launches", LAUNCH_COLUMNS, recorded),
        captures,
        pq.read_table(directory / "steps.parquet", columns=_STEP_COLUMNS),
        _of(directory, "annotations", _ANNOTATION_COLUMNS, recorded),
    )
    if changed:
        _rewrite(path, changed)
        _warn(directory / "warnings.parquet", warned)


def _of(directory: Path, name: str, columns: tuple[str, ...] | list[str], captures: pa.ChunkedArray) -> pa.Table:
    """Return the rows of some captures."""
    found = pc.field("capture").isin(pa.array(captures.to_pylist(), pa.string()))
    return pq.read_table(directory / f"{name}.parquet", columns=list(columns), filters=found)


def _rewrite(path: Path, changed: dict[str, pa.Array]) -> None:
    """Replace columns of a table, a row group at a time."""
    whole = path.with_suffix(".placed")
    with pq.ParquetFile(path) as source, TableWriter(whole, RUN_TABLES["kernels"]) as writer:
        done = 0
        for number in range(source.num_row_groups):
            rows = source.read_row_group(number)
            for name, values in changed.items():
                piece = values.slice(done, len(rows))
                at = rows.schema.get_field_index(name)
                rows = rows.set_column(at, rows.schema.field(at), piece.cast(rows.schema.field(at).type))
            done += len(rows)
            writer.write(rows)
    whole.replace(path)


def _warn(path: Path, warned: list[Warned]) -> None:
    """Replace the warnings about replays that were written before the replays were placed."""
    table = RUN_TABLES["warnings"]
    rows = pq.read_table(path).to_pylist()
    told = {(w.capture, w.rank) for w in warned}
    kept = [r for r in rows if r["code"] != Flag.GRAPH_REPLAY_NO_OP or (r["capture"], r["rank"]) not in told]
    run = pq.read_table(path.with_name("captures.parquet"), columns=["run_id"]).column("run_id")[0].as_py()
    kept += [
        {"run_id": run, "capture": w.capture, "rank": w.rank, "code": w.code, "count": w.count, "message": w.message}
        for w in warned
    ]
    kept.sort(key=lambda r: (r["capture"] or "", r["rank"] or 0, r["code"]))
    with TableWriter(path.with_suffix(".placed"), table) as writer:
        writer.write(pa.Table.from_pylist(kept, schema=table.arrow_schema()))
    path.with_suffix(".placed").replace(path)
