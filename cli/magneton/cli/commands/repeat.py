"""The command ``magneton repeat``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from magneton.cli.console import SensorNames, Verbose, note


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
            help="Operators (aten::addmm) or paths of modules, as RUN has them; of other systems onnx:MatMul, jax:dot_general, tensorflow:MatMul, with --alone. May be repeated.",
            show_default=False,
        ),
    ],
    times: Annotated[
        int | None,
        typer.Option(
            metavar="R", help="How often a call runs (default: from RUN's times and the sensor's update period)."
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(metavar="S", help="Least length of a window (default: from the sensor, 0.5 s without)."),
    ] = None,
    rounds: Annotated[
        int, typer.Option(metavar="N", help="Pairs of windows for each region; windows with --alone.")
    ] = 3,
    warmup: Annotated[int, typer.Option(metavar="N", help="Steps that run before the first repetition.")] = 2,
    copies: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Copies of arguments that take turns (default: so many that no cache holds them)."
        ),
    ] = None,
    alone: Annotated[
        bool,
        typer.Option("--alone", help="Replay a region by itself, on the inputs it had in one step; the program waits."),
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
    """Run a program with chosen operators repeated in place, or alone, and say what one call takes: time and energy.

    The command runs once. In windows of its steps each call of a region is run r times, on copies of its arguments, and in
    windows between them once; E = (E_r - E_1) / (r - 1), the same for time. The program computes what it always does. Its
    steps have to be alike, and there have to be enough of them; what has side effects, or runs at other clocks, temperature or
    power cap when it is repeated, is refused with the reason. Without a sensor the time is told and the energy is NULL.

    With --alone the program waits while the region runs by itself, on copies of what it was given in one step: that needs few
    steps, and leaves out what its neighbours leave in the caches.

    A module's operators are repeated one by one, those that only make views left out. The command's exit code is passed on.

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


def show(document: dict[str, Any]) -> None:
    """Show for people what ``repeat_program`` found."""
    from magneton.cli import output

    rows = []
    for region in document["regions"]:
        time = region["time"]
        known = (
            region["name"],
            region["calls_per_step"] or None,
            region["times"],
            None if time is None else time["value_s"] * 1e6,
            None if time is None else time["value_s_per_call"] * 1e6,
            None if time is None else _half(time, "s") * 1e6,
        )
        for energy in region["energies"] or [None]:
            rows.append((*known, *_energy(energy, region["refusal"])))
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
    for region in document["regions"]:
        left_out = region["not_repeated"]
        if left_out and region["refusal"] is None:
            first = next(iter(left_out.values()))
            output.show_text(f"{region['name']}: {len(left_out)} more calls were not repeated (the first: {first}).")
        if region["calls_per_step"] and not region["cold"]:
            output.show_text(f"{region['name']}: copies of its arguments may have stayed in a cache.")
    output.show_text("+- is half of the 95 % interval of a call. NULL is unknown." + _simulated(document))


def _simulated(document: dict[str, Any]) -> str:
    return " Energies come from a stand-in for a sensor: they are simulated." if document["simulated"] else ""


def _half(estimate: dict[str, Any], unit: str) -> float:
    return float(estimate[f"high_{unit}_per_call"] - estimate[f"low_{unit}_per_call"]) / 2


def _energy(energy: dict[str, Any] | None, refusal: dict[str, Any] | None) -> tuple[Any, ...]:
    """Return device, mJ a step and a call, half of the interval of a call, label and remark."""
    if energy is None:
        return None, None, None, None, None, "" if refusal is None else f"{refusal['code']}: {refusal['reason']}"
    device = " ".join(part for part in (energy["device_kind"], energy["device_id"]) if part) or None
    if energy["refusal"] is not None:
        return device, None, None, None, None, f"{energy['refusal']['code']}: {energy['refusal']['reason']}"
    label = energy["label"] + (", simulated" if energy["simulated"] else "")
    remark = "" if energy["identified"] else "not identified: the interval is wider than 10 %"
    per_step, per_call = energy["value_j"] * 1e3, energy["value_j_per_call"] * 1e3
    return device, per_step, per_call, _half(energy, "j") * 1e3, label, remark
