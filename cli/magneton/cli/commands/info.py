"""The command ``magneton info``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from magneton.cli.console import Verbose


def info(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Recording, trace or diff: a directory or a file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Write a JSON document.")] = False,
    verbose: Verbose = 0,
) -> None:
    """Show what a recording holds: manifest, captures, what became of the input events, number of rows, warnings.

    Every input event was kept, merged into another row, ignored as empty, or quarantined with a reason. The four counts
    add up to the number of events in the input.

    An input without tables gets them on the way. A note says where they are kept.

    Of a diff, `info` shows what `magneton diff` showed when it was made.
    """
    from magneton.cli import output
    from magneton.cli.console import note, working
    from magneton.flows.prepared import with_tables
    from magneton.flows.recordings import describe, facts
    from magneton.flows.results import Diff
    from magneton.schemas.documents.diff import DIFF_NAME, read_diff
    from magneton.schemas.errors import MagnetonError
    from magneton.schemas.manifest import MANIFEST_NAME

    if (run / DIFF_NAME).is_file():
        found = Diff(run, read_diff(run))
        if as_json:
            output.write_document(found.to_dict())
        else:
            output.show_blocks(found.blocks())
        return
    said: list[str] = []
    with working("reading"):
        try:
            place = with_tables(run, said.append)
        except MagnetonError as error:
            # A manifest says much of a recording whose files are gone or cannot be read.
            if not (run / MANIFEST_NAME).is_file():
                raise
            said.append(f"no tables could be made: {error}")
            place = run
        document = describe(place)
    for line in said:
        note(line)
    if as_json:
        output.write_document(document)
    else:
        output.show_blocks(facts(document))
