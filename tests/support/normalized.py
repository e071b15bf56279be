"""Recordings normalised once per test session, and easy reading of their tables."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from magneton.flows.traces import ExtraFiles, normalize
from magneton.schemas.manifest import Manifest
from magneton.schemas.parquet import read_table
from magneton.transforms.job import NormalizeOptions


class Run:
    """A normalised recording."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.table = functools.cache(self._table)
        self.rows = functools.cache(self._rows)

    def _table(self, name: str) -> pa.Table:
        return read_table(self.path / "tables" / f"{name}.parquet", name)

    def _rows(self, name: str) -> list[dict[str, Any]]:
        return self.table(name).to_pylist()

    def warnings(self) -> dict[str, int]:
        """Counts by warning code, over all captures."""
        counts: dict[str, int] = {}
        for row in self.rows("warnings"):
            counts[row["code"]] = counts.get(row["code"], 0) + row["count"]
        return counts

    def by_name(self, table: str) -> dict[str, dict[str, Any]]:
        """Rows by their name (the last one, where a name occurs twice)."""
        return {row["name"]: row for row in self.rows(table)}


class Normalizer:
    """Normalises inputs, each combination of inputs and options once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._done: dict[str, Run] = {}

    def __call__(
        self,
        *inputs: Path,
        options: NormalizeOptions | None = None,
        capture_traces: Sequence[Path] = (),
        extras: ExtraFiles | None = None,
    ) -> Run:
        """Return the recording made of trace files and files beside them (raw files are not copied)."""
        options = options or NormalizeOptions(keep_raw=False)
        key = hashlib.sha256(repr((inputs, options, tuple(capture_traces), extras)).encode()).hexdigest()[:16]
        if key not in self._done:
            out = self._directory / key
            made = normalize(inputs, out, options, capture_traces=capture_traces, extras=extras)
            self._done[key] = Run(out, made)
        return self._done[key]
