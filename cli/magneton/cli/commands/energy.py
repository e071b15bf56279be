"""The command ``magneton energy``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from magneton.cli.console import Verbose


def energy(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Recording with a power log.")],
    calibration: Annotated[
        Path | None,
        typer.Option("--calibration", metavar="FILE", help="Gain and offset of the sensor beside a meter, JSON."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write a JSON document.")] = False,
    verbose: Verbose = 0,
) -> None:
    """Show the energy of every GPU of a recording, with 95 % intervals: per run, step, phase and token, and at rest.

    The power between readings is estimated from the times of the kernels and from what is known of the sensor: how often it
    updates, over what it averages, and how its scale relates to the true power. A table of known sensors supplies what is not given, and its
    uncertainty is in every interval. So without a meter an interval is at least 5 % wide to either side.

    An energy is called measured where readings cover the window and fit the sensor model, else apportioned. The last column says why.

    Example: magneton energy runs/a
    """
    from magneton.cli import output
    from magneton.cli.console import note, working
    from magneton.flows import energy_of

    said: list[str] = []
    with working("estimating"):
        found = energy_of(run, calibration=calibration, report=said.append)
    for line in said:
        note(line)
    if as_json:
        output.write_document(found.to_dict())
    else:
        output.show_blocks(found.blocks())
