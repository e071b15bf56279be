"""The command ``magneton info``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from magneton.cli.console import Verbose


def info(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Recording: a directory with a manifest.")],
    as_json: Annotated[bool, typer.Option("--json", help="Write a JSON document.")] = False,
    verbose: Verbose = 0,
) -> None:
    """Show what a recording holds: manifest, captures, what became of the input events, number of rows, warnings.

    Every input event was kept, merged into another row, ignored as empty, or quarantined with a reason. The four counts
    add up to the number of events in the input.
    """
    from magneton.cli import output
    from magneton.flows.recordings import describe

    document = describe(run)
    if as_json:
        output.write_document(document)
    else:
        show(document)


def show(document: dict[str, Any]) -> None:
    """Show the result of ``describe`` as text."""
    from magneton.cli import output

    manifest = document["manifest"]
    workload = {k: v for k, v in manifest.get("workload", {}).items() if not isinstance(v, dict)}
    devices = Counter(d.get("name") or "unnamed" for d in manifest.get("devices", []))
    facts = {
        "run id": manifest["run_id"],
        "directory": document["directory"],
        "recorded by": manifest.get("tool"),
        "system": manifest.get("system", {}).get("name"),
        "devices": ", ".join(f"{n} x {name}" if n > 1 else str(name) for name, n in devices.items()) or None,
        "workload": ", ".join(f"{k} {v}" for k, v in workload.items()) or None,
        "incomplete": "yes: totals are lower bounds" if manifest.get("incomplete") else None,
    }
    known = [(k, v) for k, v in facts.items() if v is not None]
    output.show_table(["", ""], known, wrap=[""], title=str(manifest["label"]))
    files = [(f["path"], f.get("role", "primary"), f["size_bytes"]) for f in manifest.get("files", [])]
    files = [f for f in files if f[1] != "derived"]
    if files:
        output.show_table(["file", "role", "bytes"], files, right=["bytes"])
    if document["tables"] is None:
        output.show_text("Not normalised yet: it holds no tables. `magneton normalize` makes them.")
        return
    captures = document["captures"]
    names = ["capture", "rank", "kind", "source_format", "n_raw", "n_kept", "n_merged", "n_ignored", "n_quarantined"]
    output.show_table(
        names, [[c[n] for n in names] for c in captures], right={n for n in names if n.startswith("n_")} | {"rank"}
    )
    output.show_table(["table", "rows"], [(k, v) for k, v in document["tables"].items() if v], right=["rows"])
    if document["health"]:
        names = ["capture", "rank", "kind", "code", "count", "message"]
        output.show_table(
            names, [[h[n] for n in names] for h in document["health"]], right=["rank", "count"], wrap=["message"]
        )
