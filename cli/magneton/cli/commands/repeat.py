"""The command ``magneton repeat``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from magneton.cli.console import SensorNames, Verbose, note

if TYPE_CHECKING:
    from magneton.schemas.documents.repeat import EnergyEstimate, RefusalDoc, RepeatDocument


def repeat(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Recording of the program, whose names are used.")],
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND", help="Program and arguments, after a double dash.")
    ],
    regions: Annotated[
        list[str],
        typer.Option(
            "--regions",
            metavar="NAME,...",
            help="Operators (aten::addmm) or paths of modules, as RUN names them. For other systems, with --alone: onnx:MatMul, jax:dot_general, tensorflow:MatMul. May be repeated.",
            show_default=False,
        ),
    ],
    times: Annotated[
        int | None,
        typer.Option(
            metavar="R",
            help="Number r of runs of each call (default: from the times in RUN and the update period of the sensor).",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(metavar="S", help="Least length of a window (default: from the sensor; 0.5 s without one)."),
    ] = None,
    rounds: Annotated[
        int,
        typer.Option(metavar="N", help="Number of pairs of windows for each region; with --alone, number of windows."),
    ] = 3,
    warmup: Annotated[int, typer.Option(metavar="N", help="Number of steps before the first repetition.")] = 2,
    copies: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of copies of the arguments, used in turn (default: so many that the cache cannot hold them all).",
        ),
    ] = None,
    alone: Annotated[
        bool,
        typer.Option(
            "--alone", help="Run a region by itself, on the inputs it had in one step, while the program waits."
        ),
    ] = False,
    sensor: SensorNames = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the JSON document to a file too.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace an existing FILE.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write a JSON document; the command's own output goes to stderr.")
    ] = False,
    verbose: Verbose = 0,
) -> None:
    """Measure the time and energy of one call of chosen operators, by running them many times inside a program.

    The command runs once. Its steps are divided into windows. In some windows each call of a region runs r times, on copies of
    its arguments, and in the others once. The energy is E = (E_r - E_1) / (r - 1), and the same for time. The program computes
    what it always computes. Its steps must be alike, and there must be enough of them. Calls with side effects are refused with
    the reason. So are windows with different clocks, temperatures or power caps. Without a sensor the energy is NULL.

    With --alone the program waits while the region runs by itself, on copies of the arguments that it had in one step. This
    needs few steps. The result does not include the effect of other operators on the caches.

    The operators of a module are repeated one by one; operators that only make views are left out. The exit code is that of
    the command.

    Example: magneton repeat runs/a --regions aten::addmm -- python serve.py
    """
    from magneton.cli import output
    from magneton.flows.repeat import RepeatSettings, repeat_program

    settings = RepeatSettings(
        times=times,
        window_s=seconds,
        rounds=rounds,
        copies=copies,
        alone=alone,
        warmup_steps=warmup,
        sensors=sensor,
        output_to_stderr=as_json,
        report=note,
    )
    names = [name.strip() for text in regions for name in text.split(",") if name.strip()]
    code, document = repeat_program(run, names, command, settings, out=out, overwrite=force)
    if document is not None:
        if as_json:
            output.write_document(document)
        else:
            show(document)
        if out is not None:
            note(f"written: {out}")
    if code:
        raise typer.Exit(code)


def show(document: RepeatDocument) -> None:
    """Show for people what ``repeat_program`` found."""
    from magneton.cli import output

    rows = []
    for region in document.regions:
        time = region.time
        known = (
            region.name,
            region.calls_per_step or None,
            region.times,
            None if time is None else time.value_s * 1e6,
            None if time is None else time.value_s_per_call * 1e6,
            None if time is None else (time.high_s_per_call - time.low_s_per_call) / 2 * 1e6,
        )
        energies: list[EnergyEstimate | None] = [*region.energies] or [None]
        rows += [(*known, *_energy(energy, region.refusal)) for energy in energies]
    names = [
        "region",
        "calls/step",
        "r",
        "us/step",
        "us/call",
        "+-",
        "device",
        "mJ/step",
        "mJ/call",
        "+-",
        "label",
        "remark",
    ]
    output.show_table(names, rows, right={n for n in names if "/" in n} | {"r", "+-"}, wrap=["region", "remark"])
    for region in document.regions:
        left_out = region.not_repeated
        if left_out and region.refusal is None:
            first = next(iter(left_out.values()))
            output.show_text(f"{region.name}: {len(left_out)} more calls were not repeated (the first: {first}).")
        if region.calls_per_step and not region.cold:
            output.show_text(f"{region.name}: copies of its arguments may have stayed in a cache.")
    output.show_text("+- is half of the 95 % interval of a call. NULL is unknown." + _simulated(document))


def _simulated(document: RepeatDocument) -> str:
    return " Energies come from a stand-in for a sensor: they are simulated." if document.simulated else ""


def _energy(energy: EnergyEstimate | None, refusal: RefusalDoc | None) -> tuple[Any, ...]:
    """Return device, mJ a step and a call, half of the interval of a call, label and remark."""
    if energy is None:
        return None, None, None, None, None, "" if refusal is None else f"{refusal.code}: {refusal.reason}"
    device = " ".join(part for part in (energy.device_kind, energy.device_id) if part) or None
    if energy.refusal is not None:
        return device, None, None, None, None, f"{energy.refusal.code}: {energy.refusal.reason}"
    if energy.value_j is None or energy.value_j_per_call is None:
        return device, None, None, None, energy.label, ""
    label = f"{energy.label}{', simulated' if energy.simulated else ''}"
    remark = "" if energy.identified else "not identified: the interval is wider than 10 %"
    half = ((energy.high_j_per_call or 0.0) - (energy.low_j_per_call or 0.0)) / 2
    return device, energy.value_j * 1e3, energy.value_j_per_call * 1e3, half * 1e3, label, remark
