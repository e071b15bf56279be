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
            "--captures",
            metavar="KIND",
            help="energy, profile or values; may be repeated (default: all three). The command runs once per capture. "
            "Captures joined by a comma (energy,profile) are taken in one run, one after the other.",
            show_default=False,
        ),
    ] = None,
    warmup: Annotated[int, typer.Option(metavar="N", help="Number of steps before the recorded ones.")] = 2,
    steps: Annotated[
        int,
        typer.Option(metavar="N", help="Number of steps in the captures of energy and profile; 0: all until the end."),
    ] = 5,
    value_steps: Annotated[
        int, typer.Option(metavar="N", help="Number of steps in the capture of values; 0: all until the end.")
    ] = 1,
    stacks: Annotated[
        bool,
        typer.Option(
            "--stacks/--no-stacks",
            help="Record Python stacks and modules in the profile. Without them the profiler disturbs the program less.",
        ),
    ] = True,
    sensor: SensorNames = None,
    label: Annotated[
        str | None, typer.Option("--label", metavar="TEXT", help="Name of the recording (default: the name of RUN).")
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="Name of the system that runs, e.g. transformers.")
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
            "--json",
            help="Write the same document as `magneton info RUN --json`; the command's own output goes to stderr.",
        ),
    ] = False,
    verbose: Verbose = 0,
) -> None:
    """Record an unmodified program: its energy, its profile, and the values of its tensors.

    All three captures are taken of PyTorch programs. Of programs of JAX, ONNX Runtime and TensorFlow the energy and the times of
    steps are taken.

    The command runs once for each capture, because a profiler would disturb the energy, and reading tensors would disturb the
    profile. So the command should do the same work each time. The program is not changed: a folder on PYTHONPATH brings the
    recorder into the process, where it waits until a framework is imported.

    A step is what the system takes for one: a step of the optimiser, a pass of generate, a step of an engine, a denoising step, else a call of an
    outermost module or of a compiled program. Where steps have phases, recording begins with a prefill. A program can mark its steps
    itself with magneton.collectors.record.step(). There is no second input.

    The exit code is that of the command. If the command fails, everything recorded until then is kept and marked incomplete.
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
