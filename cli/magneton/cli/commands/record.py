"""The command ``magneton record``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from magneton.cli.console import SensorNames, Verbose, note


def record(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND", help="Program and arguments, after a double dash.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="RUN", help="Directory to write.", show_default=False)],
    capture: Annotated[
        list[str] | None,
        typer.Option(
            "--capture",
            metavar="KIND",
            help="energy, profile or values; may be repeated (default: all three). The command runs once for each.",
            show_default=False,
        ),
    ] = None,
    warmup: Annotated[int, typer.Option(metavar="N", help="Steps that run before those recorded.")] = 2,
    steps: Annotated[
        int, typer.Option(metavar="N", help="Steps in the energy and profile captures; 0: all until the end.")
    ] = 5,
    value_steps: Annotated[
        int, typer.Option(metavar="N", help="Steps in the values capture; 0: all until the end.")
    ] = 1,
    stacks: Annotated[
        bool,
        typer.Option(
            "--stacks/--no-stacks", help="Python stacks and modules in the profile; without them it disturbs less."
        ),
    ] = True,
    sensor: SensorNames = None,
    label: Annotated[
        str | None, typer.Option("--label", metavar="TEXT", help="What to call the run (default: the name of RUN).")
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="What runs, e.g. transformers.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", metavar="N", help="Input tokens of one step, for `magneton diff --per token`."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", help="Samples of one step, for `magneton diff --per sample`.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace an earlier recording at RUN.")] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Write what `magneton info --json` says of RUN; the command's own output goes to stderr."
        ),
    ] = False,
    verbose: Verbose = 0,
) -> None:
    """Record a PyTorch program as it is: its energy, its profile, and the values that flow through it.

    The command runs once for each capture, since it cannot be measured, timed and looked into at once; it should do the same each
    time. Nothing in it is changed: a folder on PYTHONPATH lets the recorder wait inside until torch is imported. A step is a step
    of the optimiser in a program that makes one, and a call of an outermost module in any other; steps can be marked
    exactly with magneton.collectors.record in the program itself. There is no second input, which only the program could offer.

    The command's exit code is passed on. When it fails, what was recorded until then is kept and marked incomplete.
    """
    from magneton.cli import output
    from magneton.collectors.recording.writer import CAPTURES
    from magneton.flows import Launch
    from magneton.flows import record as run

    launch = Launch(
        captures=tuple(capture or CAPTURES),
        warmup_steps=warmup,
        steps=steps or None,
        value_steps=value_steps or None,
        sensors=sensor,
        stacks=stacks,
        label=label,
        system=system,
        overwrite=force,
        report=note,
        output_to_stderr=as_json,
    )
    made = run(command, out, launch, tokens=tokens, batch=batch)
    if made.exists:
        if as_json:
            output.write_document(made.to_dict())
        note(f"written: {out}")
    if made.exit_code:
        raise typer.Exit(made.exit_code)
