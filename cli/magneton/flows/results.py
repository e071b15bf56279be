"""What the functions of the Python API return: tables in Arrow, facts as a document, and a look for people."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa
from rich.console import Group

from magneton.analysis.query import Recordings
from magneton.analysis.recording import Recording
from magneton.analysis.report.blocks import Block, duration, energy
from magneton.analysis.report.summary import blocks, statements
from magneton.flows.display import html_blocks, rich_blocks
from magneton.flows.prepared import with_tables
from magneton.flows.recordings import describe, facts
from magneton.schemas.documents.diff import DiffDocument
from magneton.schemas.documents.energy import EnergyDocument, EnergyRow, SensorDoc
from magneton.schemas.documents.measure import MeasureDocument
from magneton.schemas.errors import InvalidNameError, MissingDependencyError
from magneton.schemas.manifest import MANIFEST_NAME, Manifest, read_manifest
from magneton.schemas.tables.diff import DIFF_TABLES
from magneton.schemas.tables.parquet import read_table
from magneton.schemas.tables.run import RUN_TABLES
from magneton.schemas.views.registry import RUNS, VIEWS

_ROWS_SHOWN = 40


class Result:
    """What every result offers. ``tables`` are the names that ``table`` and ``df`` take; the first one is their default."""

    tables: Sequence[str] = ()

    def table(self, name: str | None = None) -> pa.Table:
        """Return a table in Arrow.

        Args:
            name: one of ``tables`` (default: the first).

        Raises:
            InvalidNameError: there is no table of that name.
        """
        wanted = self.tables[0] if name is None else name
        if wanted not in self.tables:
            raise InvalidNameError(f"there is no table {wanted!r}", remedy=f"there are {', '.join(self.tables)}")
        return self._table(wanted)

    def df(self, name: str | None = None) -> Any:
        """Return a table as a ``pandas.DataFrame``.

        Raises:
            InvalidNameError: there is no table of that name.
            MissingDependencyError: pandas is not installed.
        """
        table = self.table(name)
        if find_spec("pandas") is None:
            raise MissingDependencyError(
                "pandas is not installed", remedy="pip install pandas, or use .table(), which is an Arrow table"
            )
        return table.to_pandas()

    def to_dict(self) -> Any:
        """Return the facts as plain dictionaries, lists, texts and numbers."""
        raise NotImplementedError

    def blocks(self) -> list[Block]:
        """Return what is shown to people."""
        raise NotImplementedError

    def _table(self, name: str) -> pa.Table:
        raise NotImplementedError

    def __rich__(self) -> Group:
        return rich_blocks(self.blocks())

    def _repr_html_(self) -> str:
        return html_blocks(self.blocks())


class Run(Result):
    """A recording on disk. Tables that it does not have yet are made when one is first asked for.

    Attributes:
        directory: where it lies.
        exit_code: how the recorded command ended; NULL where nothing was run.
    """

    tables = tuple(RUN_TABLES)

    def __init__(self, directory: Path, exit_code: int | None = None) -> None:
        self.directory = directory
        self.exit_code = exit_code

    @property
    def exists(self) -> bool:
        """Whether a recording was written: a command that fails early leaves none."""
        return (self.directory / MANIFEST_NAME).is_file()

    @property
    def manifest(self) -> Manifest:
        """What the manifest says."""
        return read_manifest(self.directory)

    def to_dict(self) -> dict[str, Any]:
        """Return what ``magneton info --json`` says."""
        return describe(self.directory)

    def blocks(self) -> list[Block]:
        """Return what ``magneton info`` shows."""
        return facts(self.to_dict())

    def _table(self, name: str) -> pa.Table:
        return Recording.open(with_tables(self.directory)).table(name)

    def __repr__(self) -> str:
        return f"Run({str(self.directory)!r})"


class Diff(Result):
    """Two recordings compared.

    Attributes:
        directory: where the diff was written.
        document: everything that was found.
    """

    tables = tuple(DIFF_TABLES)

    def __init__(self, directory: Path, document: DiffDocument) -> None:
        self.directory = directory
        self.document = document

    def to_dict(self) -> dict[str, Any]:
        """Return the document ``diff.json``."""
        found: dict[str, Any] = msgspec.to_builtins(self.document)
        return found

    def blocks(self, top: int = 15) -> list[Block]:
        """Return what ``magneton diff`` shows; ``top`` rows of each list, 0 for all."""
        return [*blocks(self.document, top), *(Block("", [], [], remark=line) for line in statements(self.document))]

    def _table(self, name: str) -> pa.Table:
        return read_table(self.directory / f"{name}.parquet", name)

    def __repr__(self) -> str:
        return f"Diff({str(self.directory)!r}, {len(self.document.findings)} findings)"


class Measurement(Result):
    """What a step of a recording takes.

    Attributes:
        document: the quantities, with intervals, provenance and coverage.
    """

    tables = ("quantities",)

    def __init__(self, document: MeasureDocument) -> None:
        self.document = document

    def to_dict(self) -> dict[str, Any]:
        """Return the document."""
        found: dict[str, Any] = msgspec.to_builtins(self.document)
        return found

    def blocks(self) -> list[Block]:
        """Return the quantities as a table, and the notes."""
        document = self.document
        rows = []
        for one in document.quantities:
            show = duration if one.unit == "ns" else energy
            interval = "-" if one.low is None else f"{show(one.low)} to {show(one.high)}"
            source = ", ".join([*one.fields, *([one.label] if one.label else []), *(["simulated"] * one.simulated)])
            known = "-" if one.coverage is None else f"{100 * one.coverage:.1f} %"
            name = " ".join(part for part in (one.quantity.replace("_", " "), one.device_kind) if part)
            rows.append([name, show(one.value), interval, str(one.n_steps), known, source or "-"])
        title = f"{document.label}, per {document.unit}"
        names = ["", "mean", "95 % interval", "steps", "power known for", "provenance"]
        found = [Block(title, names, rows, right={"mean", "95 % interval", "steps", "power known for"})]
        return found + [Block("", [], [], remark=f"Note ({n.code}): {n.message}.") for n in document.notes]

    def _table(self, name: str) -> pa.Table:
        # Of a column in which nothing is known Arrow could not tell the type.
        real, text, whole = pa.float64(), pa.string(), pa.int64()
        kinds = {"value": real, "low": real, "high": real, "coverage": real, "n_steps": whole, "simulated": pa.bool_()}
        lists = dict.fromkeys(("fields", "warnings"), pa.list_(text))
        rows = self.to_dict()["quantities"]
        names = list(rows[0]) if rows else []
        schema = pa.schema([(name, (kinds | lists).get(name, text)) for name in names])
        return pa.Table.from_pylist(rows, schema=schema)

    def __repr__(self) -> str:
        return f"Measurement({self.document.label!r}, {len(self.document.quantities)} quantities)"


class Energy(Result):
    """Energy of the GPUs of a recording.

    Attributes:
        document: rows by device and window with intervals, and the sensors behind them.
    """

    tables = ("rows", "sensors")

    def __init__(self, document: EnergyDocument) -> None:
        self.document = document

    def to_dict(self) -> dict[str, Any]:
        """Return the document."""
        found: dict[str, Any] = msgspec.to_builtins(self.document)
        return found

    def blocks(self) -> list[Block]:
        """Return the energies and the sensors as tables, and the notes."""
        document = self.document
        rows = [
            [
                one.device,
                one.what if one.name is None else f"{one.what}: {one.name}",
                f"{one.count:.6g}",
                f"{one.seconds:.4g} s",
                energy(one.energy_j),
                "-" if one.low_j is None else f"{energy(one.low_j)} to {energy(one.high_j)}",
                one.label or "-",
                " ".join(one.warnings),
            ]
            for one in document.rows
        ]
        names = ["device", "energy of one", "of", "length", "energy", "95 % interval", "label", "why not measured"]
        found = [
            Block(document.label, names, rows, right={"of", "length", "energy"}, wrap={"device", "why not measured"})
        ]
        sensors = [
            [
                one.device,
                one.device_name or "-",
                one.field,
                f"{one.family} ({one.confidence})",
                f"{one.gain:.4g} +- {1.96 * one.gain_sd:.2g}",
                f"{one.offset_w:.3g} +- {1.96 * one.offset_sd_w:.2g} W",
                one.scale_from,
                one.response or "-",
                "-" if one.chi2 is None else f"{one.chi2:.2g}",
            ]
            for one in document.sensors
        ]
        names = ["device", "name", "field", "family", "gain", "offset", "scale from", "response", "misfit"]
        found.append(Block("Sensors", names, sensors, wrap={"device", "name"}))
        return found + [Block("", [], [], remark=f"Note ({n.code}): {n.message}.") for n in document.notes]

    def _table(self, name: str) -> pa.Table:
        real, text = pa.float64(), pa.string()
        reals = (
            "count",
            "seconds",
            "energy_j",
            "low_j",
            "high_j",
            "gain",
            "gain_sd",
            "offset_w",
            "offset_sd_w",
            "chi2",
        )
        kinds = (
            dict.fromkeys(reals, real)
            | dict.fromkeys(("warnings", "sources"), pa.list_(text))
            | {"simulated": pa.bool_()}
        )
        fields = EnergyRow.__struct_fields__ if name == "rows" else SensorDoc.__struct_fields__
        schema = pa.schema([(field, kinds.get(field, text)) for field in fields])
        return pa.Table.from_pylist(self.to_dict()[name], schema=schema)

    def __repr__(self) -> str:
        return f"Energy({self.document.label!r}, {len(self.document.rows)} rows)"


class Rows(Result):
    """Rows of a query, in memory."""

    tables = ("rows",)

    def __init__(self, table: pa.Table) -> None:
        self._rows = table

    def to_dict(self) -> list[dict[str, Any]]:
        """Return one dictionary a row."""
        rows: list[dict[str, Any]] = self._rows.to_pylist()
        return rows

    def blocks(self) -> list[Block]:
        """Return the first rows as a table."""
        rows = [list(row.values()) for row in self._rows.slice(0, _ROWS_SHOWN).to_pylist()]
        kinds = self._rows.schema
        right = {f.name for f in kinds if pa.types.is_integer(f.type) or pa.types.is_floating(f.type)}
        more = self._rows.num_rows - len(rows)
        return [Block("", kinds.names, rows, right=right, remark=f"{more} more rows" if more else None)]

    def _table(self, name: str) -> pa.Table:
        return self._rows

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def __repr__(self) -> str:
        return f"Rows({self._rows.num_rows} rows: {', '.join(self._rows.schema.names)})"


class Runs(Result):
    """Recordings and diffs that were opened for questions. Close it, or use it in a ``with`` statement."""

    tables = (RUNS.name, *RUN_TABLES, *DIFF_TABLES, *VIEWS)

    def __init__(self, recordings: Recordings) -> None:
        self.recordings = recordings
        # Kept, so that it can still be said what was open once it is closed.
        self._opened = recordings.query(f"SELECT * FROM {RUNS.name}").read_all()

    def sql(self, query: str, /, **values: Any) -> Rows:
        """Ask a question: one SELECT over the tables and views that ``magneton tables`` lists.

        Args:
            query: the SELECT; ``$name`` stands for a value.
            values: values by name. They are bound as text, and compared as the type of what they meet.

        Raises:
            UsageError: not one SELECT, wrong SQL, or values that do not fit the query.
        """
        found = self.recordings.query(query, {name: str(value) for name, value in values.items()})
        return Rows(found.read_all())

    def to_dict(self) -> list[dict[str, Any]]:
        """Return the table ``runs`` as one dictionary a recording."""
        rows: list[dict[str, Any]] = self.table().to_pylist()
        return rows

    def blocks(self) -> list[Block]:
        """Return the recordings as a table."""
        names = ["run", "run_id", "system", "model", "directory"]
        rows = [[row[name] for name in names] for row in self.to_dict()]
        return [Block("", names, rows, wrap={"directory"})]

    def close(self) -> None:
        """Release the engine and its files."""
        self.recordings.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _table(self, name: str) -> pa.Table:
        if name == RUNS.name:
            return self._opened
        # Only names of our own come here.
        return self.recordings.query(f"SELECT * FROM {name}").read_all()

    def __repr__(self) -> str:
        return f"Runs({', '.join(repr(opened.run) for opened in self.recordings.runs)})"
