"""The command ``magneton diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
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
        int | None, typer.Option(min=0, help="Leave out this many leading steps instead of judging warm-up by time.")
    ] = None,
    all_steps: Annotated[bool, typer.Option("--all-steps", help="Leave out no step.")] = False,
    rank: Annotated[int | None, typer.Option(min=0, help="Rank to compare (default: the lowest both have).")] = None,
    energy: Annotated[
        bool, typer.Option("--energy/--no-energy", help="Share out the energy of recordings with a power log.")
    ] = True,
    min_power_coverage: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Least share of the time that power samples must cover.")
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

    Inputs are recordings, or bare traces (files, or folders with one trace per rank), which are normalised on the way. The
    output directory holds diff.json, regions, matches and findings as Parquet, and report.md; an earlier diff there is
    replaced. Recordings that did not do the same work are refused.
    """
    from magneton.analysis.report.summary import blocks, statements
    from magneton.cli import output
    from magneton.cli.console import note, working
    from magneton.flows.pairs import DiffSettings, compare
    from magneton.schemas.errors import UsageError, printable

    if per not in ("step", "sample", "token"):
        raise UsageError(f"--per is step, sample or token, not {per}")
    if not 0 < threshold < float("inf"):
        raise UsageError(f"--threshold must be above 0 and finite, not {threshold}")
    for name, watts in (("a", idle_power_a), ("b", idle_power_b)):
        if watts is not None and not 0 <= watts < float("inf"):
            raise UsageError(f"--idle-power-{name} must be at least 0 and finite, not {watts}")
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
    with working("comparing") as show:
        task = show.task_ids[0]
        published = compare(
            run_a, run_b, out, settings, progress=lambda text: show.update(task, description=printable(text))
        )
    if as_json:
        output.write_document(msgspec.to_builtins(published.document))
    else:
        for block in blocks(published.document, top):
            output.show_table(block.names, block.rows, right=block.right, wrap=block.wrap, title=block.title)
            if block.remark:
                output.show_text(block.remark)
            output.show_text("")
        for line in statements(published.document):
            output.show_text(printable(line))
    note(f"written: {published.directory} (diff.json, report.md, regions, matches, findings)")
