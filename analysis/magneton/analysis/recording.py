"""A normalised recording as the analyses read it: manifest and tables, opened by path."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from magneton.schemas.errors import InputNotFoundError
from magneton.schemas.manifest import Manifest, read_manifest
from magneton.schemas.tables.parquet import read_table
from magneton.schemas.tables.run import RUN_TABLES

LOG = logging.getLogger(__name__)

TABLES_DIR = "tables"


# Columns of tables that some code will ask for, by table; None stands for all columns of a table.
Needs = Mapping[str, tuple[str, ...] | None]


@dataclass
class Recording:
    """A recording directory with normalised tables.

    A table is read when it is first asked for. Code that asks for several sets of columns of one table says so first
    (``expect``): the table is then read once, with all columns of these sets and no others.
    """

    directory: Path
    manifest: Manifest
    _tables: dict[str, pa.Table] = field(default_factory=dict, repr=False)
    _expected: dict[str, set[str]] = field(default_factory=dict, repr=False)

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
        cut_off = pc.any(recording.table("captures")["incomplete"]).as_py()
        manifest.incomplete = manifest.incomplete or bool(cut_off)
        return recording

    def expect(self, *needs: Needs) -> None:
        """Say which columns of which tables will be asked for.

        For example, ``expect({"ops": ("op_id", "rank")}, {"ops": ("name",), "steps": None})`` makes the first question
        for the table ``ops`` read three columns of it, and later ones for any of the three read nothing.
        """
        for one in needs:
            for name, columns in one.items():
                self._expected.setdefault(name, set()).update(_columns(name, columns))

    def table(self, name: str, columns: tuple[str, ...] | None = None) -> pa.Table:
        """Return a table of the recording, or some of its columns; one that was never written is empty."""
        wanted = _columns(name, columns)
        known = self._tables.get(name)
        if known is None:
            known = self._read(name, {*wanted, *self._expected.get(name, ())})
        elif missing := set(wanted) - set(known.column_names):
            more = self._read(name, missing)
            known = pa.Table.from_arrays(
                [*known.columns, *more.columns], schema=pa.schema([*known.schema, *more.schema])
            )
        self._tables[name] = known
        return known.select(wanted)

    def _read(self, name: str, columns: set[str]) -> pa.Table:
        path = self.directory / TABLES_DIR / f"{name}.parquet"
        wanted = [column for column in RUN_TABLES[name].column_names() if column in columns]
        LOG.debug("%s: %d columns read", path, len(wanted))
        return read_table(path, name, columns=wanted) if path.is_file() else RUN_TABLES[name].empty().select(wanted)

    def of_rank(self, name: str, rank: int, columns: tuple[str, ...] | None = None) -> pa.Table:
        """Return the rows of a table that belong to a rank. Rows without a rank belong to rank 0. ``columns`` must hold ``rank``."""
        table = self.table(name, columns)
        mine = pc.equal(pc.fill_null(table["rank"], 0), rank)
        # Most recordings have one rank: then there is nothing to copy.
        return table if pc.all(mine, min_count=0).as_py() else table.filter(mine)

    def ranks(self) -> list[int]:
        """Return the ranks that left operators or device activity, in order."""
        found: set[int] = set()
        for name in ("ops", "kernels"):
            found.update(r for r in pc.unique(self.table(name, ("rank",)).column("rank")).to_pylist() if r is not None)
        return sorted(found) or [0]

    def content(self) -> str | None:
        """Return a key of the events: equal for one content under two names, or in two encodings; None where there are none.

        It is made of the names and times of operators and device activities.
        """
        parts: list[object] = []
        for name in ("ops", "kernels"):
            table = self.table(name, ("name", "ts_ns", "dur_ns"))
            sums = [(pc.sum(table[c]).as_py(), pc.min(table[c]).as_py()) for c in ("ts_ns", "dur_ns")]
            counted = sorted((str(row["values"]), row["counts"]) for row in pc.value_counts(table["name"]).to_pylist())
            parts += [table.num_rows, sums, counted]
        if not parts[0] and not parts[3]:
            return None
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def same_content(recordings: Sequence[Recording]) -> list[tuple[int, int]]:
    """Return the pairs of recordings (by number, the first of its kind and a later one) that hold the same events.

    Only recordings with equal numbers of rows are read.
    """
    sizes: dict[tuple[int, ...], list[int]] = {}
    for number, recording in enumerate(recordings):
        paths = [recording.directory / TABLES_DIR / f"{name}.parquet" for name in ("ops", "kernels")]
        size = tuple(pq.read_metadata(path).num_rows if path.is_file() else 0 for path in paths)
        sizes.setdefault(size, []).append(number)
    pairs: list[tuple[int, int]] = []
    for numbers in sizes.values():
        first: dict[str, int] = {}
        for number in numbers if len(numbers) > 1 else ():
            key = recordings[number].content()
            if key is not None and first.setdefault(key, number) != number:
                pairs.append((first[key], number))
    return pairs


def _columns(name: str, columns: tuple[str, ...] | None) -> tuple[str, ...]:
    return tuple(RUN_TABLES[name].column_names()) if columns is None else columns
