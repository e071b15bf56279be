"""The command ``magneton tables``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from magneton.cli.console import Verbose
from magneton.schemas.errors import UsageError
from magneton.schemas.versions.registry import SCHEMA_VERSION


def tables(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Table or view to explain; without it, list all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write a JSON document, columns included.")] = False,
    verbose: Verbose = 0,
) -> None:
    """Explain the tables and views of a recording: what a row is, the columns, their units.

    Tables hold the content of the trace. Views are sums and joins over tables. NULL always means unknown or not applicable.
    """
    from magneton.cli import output
    from magneton.flows.recordings import catalog

    entries = catalog()
    if name is not None:
        entries = [e for e in entries if e["name"] == name]
        if not entries:
            raise UsageError(f"there is no table or view {name}", remedy="magneton tables lists them")
    if as_json:
        output.write_document({"schema_version": SCHEMA_VERSION, "tables": entries})
    elif name is None:
        output.show_table(
            ["name", "kind", "a row is"], [(e["name"], e["kind"], e["doc"]) for e in entries], wrap=["a row is"]
        )
    else:
        _explain(entries[0])


def _explain(entry: dict[str, Any]) -> None:
    from magneton.cli import output

    columns = [(c["name"], c["type"], c["unit"] or "", c["doc"]) for c in entry["columns"]]
    title = f"{entry['name']} ({entry['kind']})"
    output.show_table(["column", "type", "unit", "meaning"], columns, wrap=["meaning"], title=title)
    output.show_text(entry["doc"])
    if entry["sql"]:
        output.show_text(f"Made by:\n{entry['sql']}")
