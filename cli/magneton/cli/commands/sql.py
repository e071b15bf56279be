"""The command ``magneton sql``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from magneton.cli.console import Verbose, note, working
from magneton.schemas.errors import UsageError


def sql(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Recordings, traces and diffs to ask.")],
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One SELECT, or - to read it from stdin.")],
    as_json: Annotated[bool, typer.Option("--json", help="Write a JSON array of objects.")] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Write CSV with a header line (RFC 4180), cells exact.")
    ] = False,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE", help="Write a Parquet file instead of to stdout.")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", metavar="NAME=VALUE", help="Value for $NAME in the query; may be repeated."),
    ] = None,
    rows: Annotated[
        int, typer.Option("--rows", min=0, metavar="N", help="Rows the table on the terminal shows; 0 for all.")
    ] = 40,
    memory_limit: Annotated[
        str | None,
        typer.Option("--memory-limit", metavar="SIZE", help="Memory to use before spilling to disk, e.g. 2GB."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace an existing FILE of --parquet.")] = False,
    verbose: Verbose = 0,
) -> None:
    """Ask recordings a question in SQL.

    Every table and view (see `magneton tables`) has a column run that names the recording a row is from, so that one
    query can compare several. The engine is DuckDB. One SELECT is admitted; it sees the recordings and nothing else: no
    files, no settings, no extensions. docs/sql.md is the guide.

    What has no tables gets them on the way: beside the recording, or in a cache directory; a note says where.

    The result is a table, and the number of rows goes to stderr. In JSON, NaN and infinity are null. In CSV, NULL is an
    empty cell and text is written exactly, so that a spreadsheet may take a name that begins with = for a formula.

    Example: magneton sql runs/a runs/b "SELECT run, name, kernel_ns FROM op_time ORDER BY kernel_ns DESC"
    """
    if query != "-" and _is_directory(query):
        raise UsageError("the query is missing", remedy='magneton sql RUN "SELECT * FROM op_time"')
    if sum((as_json, as_csv, parquet is not None)) > 1:
        raise UsageError("--json, --csv and --parquet exclude one another")
    text = sys.stdin.read() if query == "-" else query
    values = _values(param or [])

    from magneton.cli import output
    from magneton.flows import open_runs

    said: list[str] = []
    with working("opening recordings"):
        opened = open_runs(*runs, memory_limit=memory_limit, report=said.append)
    for line in said:
        note(line)
    with opened:
        # Rows are written as they come: a result may be larger than memory.
        result = opened.recordings.query(text, values)
        if as_json:
            output.write_json(result)
        elif as_csv:
            output.write_csv(result)
        elif parquet is not None:
            with working("writing"):
                count = output.write_parquet(result, parquet, overwrite=force)
            note(f"{parquet}: {count} rows")
        else:
            shown, count = output.show_rows(result, limit=rows)
            cut = f", the first {shown} shown (--rows 0 shows all)" if shown < count else ""
            note(f"{count} row{'' if count == 1 else 's'}{cut}")


def _is_directory(text: str) -> bool:
    """Say whether a text is the name of a directory; a query is longer than a name may be."""
    try:
        return Path(text).is_dir()
    except (OSError, ValueError):
        return False


def _values(params: list[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for param in params:
        name, equals, value = param.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"{param!r} is no value for the query", remedy="give --param NAME=VALUE")
        if name in values:
            raise UsageError(f"--param {name} is given twice")
        values[name] = value
    return values
