"""A normalised recording as the analyses read it: manifest and tables, opened by path."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from magneton.schemas.errors import InputNotFoundError
from magneton.schemas.manifest import Manifest, read_manifest
from magneton.schemas.parquet import read_table
from magneton.schemas.run_tables import RUN_TABLES

TABLES_DIR = "tables"


@dataclass
class Recording:
    """A recording directory with normalised tables. Tables are read when first asked for, whole."""

    directory: Path
    manifest: Manifest
    _cache: dict[tuple[str, tuple[str, ...] | None], pa.Table] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, directory: Path) -> Recording:
        """Open a recording.

        Raises:
            InputNotFoundError: there is no manifest, or the recording has not been normalised.
            SchemaVersionError: written by a newer release.
        """
        manifest = read_manifest(directory)
        if not (directory / TABLES_DIR / "captures.parquet").is_file():
            raise InputNotFoundError(
                "holds no tables", path=directory, remedy="run `magneton normalize` on it, or give its raw traces"
            )
        recording = cls(directory, manifest)
        # Tables may have been made later than the manifest, from files that turned out to be cut off.
        cut_off = pc.any(recording.table("captures", ("incomplete",))["incomplete"]).as_py()
        manifest.incomplete = manifest.incomplete or bool(cut_off)
        return recording

    def table(self, name: str, columns: tuple[str, ...] | None = None) -> pa.Table:
        """Return a table of the recording; one that was never written is empty."""
        key = (name, columns)
        if key not in self._cache:
            path = self.directory / TABLES_DIR / f"{name}.parquet"
            wanted = None if columns is None else list(columns)
            if path.is_file():
                self._cache[key] = read_table(path, name, columns=wanted)
            else:
                empty = RUN_TABLES[name].empty()
                self._cache[key] = empty if wanted is None else empty.select(wanted)
        return self._cache[key]

    def of_rank(self, name: str, rank: int, columns: tuple[str, ...] | None = None) -> pa.Table:
        """Return the rows of a table that are of a rank; those without one are of rank 0. ``columns`` must hold ``rank``."""
        table = self.table(name, columns)
        return table.filter(pc.equal(pc.fill_null(table["rank"], 0), rank))

    def ranks(self) -> list[int]:
        """Return the ranks that left operators or device activity, in order."""
        found: set[int] = set()
        for name in ("ops", "kernels"):
            found.update(r for r in pc.unique(self.table(name, ("rank",)).column("rank")).to_pylist() if r is not None)
        return sorted(found) or [0]
