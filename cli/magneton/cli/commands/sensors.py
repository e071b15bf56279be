"""The command ``magneton sensors``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from magneton.cli.console import Verbose


def sensors(
    seconds: Annotated[
        float,
        typer.Option(
            "--watch", metavar="SECONDS", min=0.0, max=600.0, help="Time to watch the values, for the update periods."
        ),
    ] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Write a JSON document.")] = False,
    verbose: Verbose = 0,
) -> None:
    """List the power and energy sensors of this machine: fields, update periods, permissions.

    Supported are NVIDIA GPUs (NVML), AMD GPUs (AMD SMI), processors and memory (RAPL). A sensor that cannot be read is listed
    with the reason and the remedy. The update period is the median time between changes of a value. On an idle device a value
    changes less often than the sensor updates. Any other meter can join a recording as a command or a file in the long CSV
    form, see docs/power.md.
    """
    from magneton.cli import output
    from magneton.cli.console import working
    from magneton.collectors.sensors.survey import survey

    with working("watch sensors"):
        document = survey(seconds=seconds)
    if as_json:
        output.write_document(document)
    else:
        show(document)


def show(document: dict[str, Any]) -> None:
    """Show for people what ``survey`` found."""
    from magneton.cli import output

    rows = [
        (
            sensor["source"],
            series["device_kind"],
            series["device_id"],
            series["name"],
            _number(series["value"]),
            series["unit"],
            _number(series["update_ms"]),
        )
        for sensor in document["sensors"]
        for series in sensor["series"]
    ]
    names = ["sensor", "kind", "device", "reading", "value", "unit", "update ms"]
    if rows:
        output.show_table(names, rows, right=["value", "update ms"], wrap=["device"])
    refused = [
        (sensor["source"], _what(refusal), refusal["reason"], refusal["remedy"] or "")
        for sensor in document["sensors"]
        for refusal in sensor["refusals"]
    ]
    if refused:
        names = ["not read", "what", "reason", "remedy"]
        output.show_table(names, refused, wrap=["what", "reason", "remedy"])
    if not any(series["energetic"] for sensor in document["sensors"] for series in sensor["series"]):
        output.show_text("Nothing here measures power or energy, so recordings will have no joules.")


def _what(refusal: dict[str, Any]) -> str:
    return " ".join(part for part in (refusal["device_id"], refusal["name"]) if part)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
