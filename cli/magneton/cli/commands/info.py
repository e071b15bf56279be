"""The command ``magneton info``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from magneton.cli.console import Verbose


def info(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Recording or trace: a directory or a file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Write a JSON document.")] = False,
    verbose: Verbose = 0,
) -> None:
    """Show what a recording holds: manifest, captures with the fate of every input event, rows, warnings.

    Every event of an input was kept, merged into another row, ignored as empty or quarantined with a reason; the four
    counts add up to the events read. What has no tables gets them on the way; a note says where they are kept.
    """
    from magneton.cli import output
    from magneton.cli.console import note, working
    from magneton.flows.prepared import with_tables
    from magneton.flows.recordings import describe, facts

    said: list[str] = []
    with working("reading"):
        document = describe(with_tables(run, said.append))
    for line in said:
        note(line)
    if as_json:
        output.write_document(document)
    else:
        output.show_blocks(facts(document))
