"""The command ``magneton normalize``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from magneton.cli.console import Verbose, note, working


def normalize(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE", help="Trace files of one job, one per rank, or a folder of them; or a recording."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="RUN",
            help="Directory to write; without it a recording is normalised where it lies.",
            show_default=False,
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option("--label", metavar="TEXT", help="Name of the recording (default: from the first input)."),
    ] = None,
    capture_trace: Annotated[
        list[Path] | None,
        typer.Option(
            "--capture-trace",
            metavar="PATH",
            help="Trace taken while GPU graphs were captured, or a folder of them; may be repeated.",
        ),
    ] = None,
    power: Annotated[
        list[Path] | None,
        typer.Option("--power", metavar="FILE", help="Power log that joins the recording; may be repeated."),
    ] = None,
    clock: Annotated[
        str | None,
        typer.Option(
            "--clock",
            metavar="CLOCK",
            help="Clock of the power log, if the log does not name one: realtime, monotonic or boottime.",
        ),
    ] = None,
    offset: Annotated[
        str | None,
        typer.Option(
            "--offset",
            metavar="TIME",
            help="Add this to times of the power log to get Unix time: seconds, or with a unit (250ms, -3us, 7ns).",
        ),
    ] = None,
    tz: Annotated[
        str | None,
        typer.Option("--tz", metavar="ZONE", help="Time zone of local times: UTC, +02:00, Europe/London ..."),
    ] = None,
    anchors: Annotated[
        Path | None,
        typer.Option(
            "--anchors", metavar="FILE", help="JSON file of clock anchors, which relate other clocks to the wall clock."
        ),
    ] = None,
    date_order: Annotated[
        str | None,
        typer.Option(
            "--date-order", metavar="ORDER", help="mdy or dmy, for dates such as 02-03-2026 that may be either."
        ),
    ] = None,
    device_map: Annotated[
        list[str] | None,
        typer.Option(
            "--device-map",
            metavar="N=ID",
            help="GPU of the power log that device N of the trace is: 0=GPU-aaaa,1=GPU-bbbb; for one rank 3:0=GPU-cccc.",
        ),
    ] = None,
    bench: Annotated[
        Path | None,
        typer.Option("--bench", metavar="FILE", help="Result of a serving benchmark: requests, tokens, duration."),
    ] = None,
    bench_index: Annotated[
        int | None,
        typer.Option(
            "--bench-index",
            metavar="N",
            help="Which of several results in the file to read, from 0 (default: the last).",
        ),
    ] = None,
    no_raw: Annotated[bool, typer.Option("--no-raw", help="Do not copy the traces into the recording.")] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace an earlier recording at RUN.")] = False,
    allow_truncated: Annotated[
        bool, typer.Option("--allow-truncated", help="Read a file that ends in the middle, as far as it goes.")
    ] = False,
    max_event_days: Annotated[float, typer.Option(metavar="DAYS", help="Quarantine events longer than this.")] = 7.0,
    max_decompressed_gib: Annotated[
        float, typer.Option(metavar="GIB", help="Refuse a file that decompresses to more than this.")
    ] = 64.0,
    max_ratio: Annotated[
        float, typer.Option(metavar="N", help="Refuse a file that decompresses to more than N times its size.")
    ] = 200.0,
    memory_limit_mib: Annotated[
        int, typer.Option(metavar="MIB", help="Room for staged events before they are spilled to disk.")
    ] = 256,
    as_json: Annotated[bool, typer.Option("--json", help="Write what `magneton info --json` says of RUN.")] = False,
    verbose: Verbose = 0,
) -> None:
    """Turn traces into a recording: a directory with Parquet tables, a manifest and the traces themselves.

    The format of a file is recognised by its content, not by its name. Files compressed with gzip or zstd can be given as they
    are. Every event is kept, merged into another row, ignored as empty, or quarantined with a reason; the counts are shown.

    If TRACE is a recording, its tables are made again from the raw files that it holds. An earlier recording at RUN is replaced
    only with --force, and only once the new one is complete.
    """
    from magneton.cli import output
    from magneton.flows import ExtraFiles, NormalizeOptions, PowerOptions
    from magneton.flows import normalize as run
    from magneton.flows.extras import parse_device_map, parse_offset
    from magneton.schemas.checks import need_number
    from magneton.schemas.errors import printable

    # The library has them in ns and bytes, into which what is no number cannot be converted.
    need_number("max_event_days", max_event_days, least=0)
    need_number("max_decompressed_gib", max_decompressed_gib, least=0)
    reading = PowerOptions(
        clock=clock, tz=tz, offset_ns=None if offset is None else parse_offset(offset), date_order=date_order
    )
    stated = tuple(one for text in device_map or () for one in parse_device_map(text))
    extras = ExtraFiles(power or (), bench, reading, anchors, bench_index, stated)
    with working("reading") as bar:
        task = bar.task_ids[0]
        options = NormalizeOptions(
            label=label,
            keep_raw=not no_raw,
            overwrite=force,
            allow_truncated=allow_truncated,
            max_event_dur_ns=round(max_event_days * 86_400 * 10**9),
            max_decompressed_bytes=round(max_decompressed_gib * 2**30),
            max_ratio=max_ratio,
            memory_limit_mb=memory_limit_mib,
            progress=lambda what, done, total: bar.update(
                task, description=printable(what), completed=done, total=total
            ),
        )
        made = run(traces, out, options, capture_traces=capture_trace or (), extras=extras)
    if as_json:
        output.write_document(made.to_dict())
    else:
        output.show_blocks(made.blocks())
    note(f"written: {made.directory}")
