"""What a recording holds, what its tables mean, and SQL over several recordings."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from magneton.analysis.query import OpenRun, Recordings, Result
from magneton.analysis.recording import TABLES_DIR
from magneton.analysis.report.blocks import Block
from magneton.schemas.manifest import MANIFEST_NAME, read_manifest
from magneton.schemas.tables.columns import Table
from magneton.schemas.tables.diff import DIFF_TABLES
from magneton.schemas.tables.run import RUN_TABLES
from magneton.schemas.versions.registry import SCHEMA_VERSION
from magneton.schemas.views.columns import DIFF_COLUMN, RUN_COLUMN
from magneton.schemas.views.registry import RUNS, VIEWS

__all__ = ["OpenRun", "Recordings", "Result", "catalog", "describe", "facts"]


def describe(directory: Path) -> dict[str, Any]:
    """Return what a recording holds, as a JSON-able document: ``documents.commands.InfoDocument``.

    Returns:
        ``directory``; ``manifest`` as written; ``tables`` (rows by table); ``captures`` (rows of that table, with the counts
        of input events kept, merged, ignored and quarantined); ``health`` (warnings, and quarantined events by reason).
        The last three are None for a recording that has not been normalised.

    Raises:
        MagnetonError: as ``Recordings`` does.
    """
    if (directory / MANIFEST_NAME).is_file() and not (directory / TABLES_DIR).exists():
        raw = msgspec.to_builtins(read_manifest(directory))
        return {
            "schema_version": SCHEMA_VERSION,
            "directory": str(directory),
            "manifest": raw,
            "tables": None,
            "captures": None,
            "health": None,
        }
    with Recordings([directory]) as opened:
        counts = " UNION ALL ".join(f"SELECT '{name}' AS name, count(*) AS n FROM {name}" for name in RUN_TABLES)
        rows = {row["name"]: row["n"] for row in _records(opened, counts)}
        return {
            "schema_version": SCHEMA_VERSION,
            "directory": str(directory),
            "manifest": msgspec.to_builtins(opened.runs[0].recording.manifest),
            "tables": {name: rows[name] for name in RUN_TABLES},
            "captures": _records(opened, "SELECT * EXCLUDE (run) FROM captures ORDER BY capture, rank"),
            "health": _records(opened, "SELECT * EXCLUDE (run) FROM health ORDER BY capture, rank, kind DESC, code"),
        }


def facts(document: dict[str, Any]) -> list[Block]:
    """Return what ``describe`` says of a recording as tables for people."""
    manifest = document["manifest"]
    workload = {k: v for k, v in manifest.get("workload", {}).items() if not isinstance(v, dict)}
    devices = Counter(d.get("name") or "unnamed" for d in manifest.get("devices", []))
    known = {
        "run id": manifest["run_id"],
        "directory": document["directory"],
        "recorded by": manifest.get("tool"),
        "system": manifest.get("system", {}).get("name"),
        "devices": ", ".join(f"{n} x {name}" if n > 1 else str(name) for name, n in devices.items()) or None,
        "workload": ", ".join(f"{k} {v}" for k, v in workload.items()) or None,
        "incomplete": "yes: totals are lower bounds" if manifest.get("incomplete") else None,
    }
    rows = [[k, v] for k, v in known.items() if v is not None]
    found = [Block(str(manifest["label"]), ["", ""], rows, wrap={""})]
    files = [[f["path"], f.get("role", "primary"), f["size_bytes"]] for f in manifest.get("files", [])]
    files = [f for f in files if f[1] != "derived"]
    if files:
        found.append(Block("", ["file", "role", "bytes"], files, right={"bytes"}))
    if document["tables"] is None:
        return [*found, Block("", [], [], remark="It holds no tables yet.")]
    names = ["capture", "rank", "kind", "source_format", "n_raw", "n_kept", "n_merged", "n_ignored", "n_quarantined"]
    captures = [[c[n] for n in names] for c in document["captures"]]
    found.append(Block("", names, captures, right={n for n in names if n.startswith("n_")} | {"rank"}))
    found.append(Block("", ["table", "rows"], [[k, v] for k, v in document["tables"].items() if v], right={"rows"}))
    if document["health"]:
        names = ["capture", "rank", "kind", "code", "count", "message"]
        rows = [[h[n] for n in names] for h in document["health"]]
        found.append(Block("", names, rows, right={"rank", "count"}, wrap={"message"}))
    return found


def _records(opened: Recordings, sql: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = opened.query(sql).read_all().to_pylist()
    return rows


def catalog() -> list[dict[str, Any]]:
    """Return every table and view a query can use: name, kind, meaning, columns with type, unit and meaning, SQL of views."""
    entries = [_entry(RUNS, "table", RUNS.columns)]
    entries += [_entry(t, "table", (RUN_COLUMN, *t.columns)) for t in RUN_TABLES.values()]
    entries += [_entry(t, "table", (DIFF_COLUMN, *t.columns)) for t in DIFF_TABLES.values()]
    entries += [_entry(v.table, "view", v.table.columns, inspect.cleandoc(v.sql)) for v in VIEWS.values()]
    return entries


def _entry(table: Table, kind: str, columns: Iterable[Any], sql: str | None = None) -> dict[str, Any]:
    described = [{"name": c.name, "type": str(c.type), "unit": c.unit, "doc": c.doc} for c in columns]
    return {"name": table.name, "kind": kind, "doc": table.doc, "columns": described, "sql": sql}
