"""The command ``magneton diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from magneton.cli.console import Verbose


def diff(
    run_a: Annotated[Path, typer.Argument(metavar="A", help="Recording or trace: a directory or a file.")],
    run_b: Annotated[Path, typer.Argument(metavar="B", help="Recording or trace to compare with it.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Directory to write (default: out/<A>-vs-<B>).", show_default=False),
    ] = None,
    per: Annotated[str, typer.Option(metavar="UNIT", help="Divide times by: step, sample or token.")] = "step",
    threshold: Annotated[float, typer.Option(help="Difference in percent from which a group is a finding.")] = 10.0,
    skip_steps: Annotated[
        int | None, typer.Option(help="Leave out this many leading steps instead of judging warm-up by time.")
    ] = None,
    all_steps: Annotated[bool, typer.Option("--all-steps", help="Leave out no step.")] = False,
    rank: Annotated[int | None, typer.Option(help="Rank to compare (default: the lowest both have).")] = None,
    energy: Annotated[
        bool, typer.Option("--energy/--no-energy", help="Share out the energy of recordings with a power log.")
    ] = True,
    min_power_coverage: Annotated[
        float, typer.Option(help="Least share of the time that power samples must cover, from 0 to 1.")
    ] = 0.9,
    idle_power_a: Annotated[
        float | None,
        typer.Option(metavar="W", help="Power of A's device at rest, taken off its joules.", show_default=False),
    ] = None,
    idle_power_b: Annotated[
        float | None, typer.Option(metavar="W", help="The same of B; give both or neither.", show_default=False)
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="Rows shown of each list; 0 shows all.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Write the document diff.json to stdout instead.")] = False,
    verbose: Verbose = 0,
) -> None:
    """Line up two recordings by what they do and show where their time differs, region by region.

    Inputs are recordings, or bare traces (files, or folders with one trace per rank). What has no tables gets them on the way:
    beside the recording, or in a cache directory; a note says where. The output directory holds diff.json,
    regions, matches and findings as Parquet, and report.md; an earlier diff there is replaced. Recordings that did not do the same work are refused.
    """
    from magneton.cli import output
    from magneton.cli.console import note, working
    from magneton.flows import DiffSettings
    from magneton.flows import diff as run
    from magneton.schemas.errors import printable

    settings = DiffSettings(
        per=per,
        threshold_percent=threshold,
        skip_steps=skip_steps,
        all_steps=all_steps,
        rank=rank,
        energy=energy,
        min_power_coverage=min_power_coverage,
        idle_power_a=idle_power_a,
        idle_power_b=idle_power_b,
    )
    said: list[str] = []
    with working("comparing") as show:
        task = show.task_ids[0]
        found = run(
            run_a,
            run_b,
            settings,
            out=out,
            progress=lambda text: show.update(task, description=printable(text)),
            report=said.append,
        )
    for line in said:
        note(line)
    if as_json:
        output.write_document(found.to_dict())
    else:
        output.show_blocks(found.blocks(top))
    note(f"written: {found.directory} (diff.json, report.md, regions, matches, findings)")
