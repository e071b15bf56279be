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
    per: Annotated[
        str, typer.Option(metavar="UNIT", help="Unit of all times: per step, per sample or per token.")
    ] = "step",
    threshold: Annotated[float, typer.Option(help="Difference in percent from which a group is a finding.")] = 10.0,
    skip_steps: Annotated[
        int | None,
        typer.Option(help="Leave out this many leading steps. By default warm-up steps are recognised by their time."),
    ] = None,
    all_steps: Annotated[bool, typer.Option("--all-steps", help="Leave out no step.")] = False,
    rank: Annotated[int | None, typer.Option(help="Rank to compare (default: the lowest both have).")] = None,
    energy: Annotated[
        bool,
        typer.Option("--energy/--no-energy", help="Divide the energy of recordings with a power log among regions."),
    ] = True,
    min_power_coverage: Annotated[
        float, typer.Option(help="Least share of the time that power samples must cover, from 0 to 1.")
    ] = 0.9,
    idle_power_a: Annotated[
        float | None,
        typer.Option(
            metavar="W", help="Power of A's device at rest; it is subtracted from A's energy.", show_default=False
        ),
    ] = None,
    idle_power_b: Annotated[
        float | None, typer.Option(metavar="W", help="The same for B. Give both or neither.", show_default=False)
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="Number of rows to show of each list; 0 shows all.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Write the document diff.json to stdout instead.")] = False,
    verbose: Verbose = 0,
) -> None:
    """Match the operators of two recordings by what they compute, and show where their time differs, region by region.

    A and B are recordings or traces (a file, or a folder with one trace per rank). An input without tables gets them on the
    way: beside the recording, or in a cache directory. A note says where. The output directory holds report.md, diff.json,
    and the tables regions, matches and findings as Parquet. An earlier diff in the same directory is replaced. Recordings
    that did not do the same work are refused.
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
    note(f"written: {found.directory} (diff.json, report.md, regions, region_steps, matches, findings)")
