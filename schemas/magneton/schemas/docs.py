"""Makes ``docs/formats.md`` from the schemas, so that it cannot disagree with them.

``python -m magneton.schemas.docs`` writes it, with ``--check`` it only says whether it is up to date (exit code 1 when not).
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from magneton.schemas import errors
from magneton.schemas.codes import POWER_FLAGS, QUARANTINE_REASONS, WARNING_CODES
from magneton.schemas.documents.commands import CatalogDocument, GpuCheckDocument, InfoDocument, SensorsDocument
from magneton.schemas.documents.diff import DIFF_NAME, DiffDocument
from magneton.schemas.documents.measure import MeasureDocument
from magneton.schemas.documents.repeat import RepeatDocument, ReplayDocument
from magneton.schemas.files.publish import atomic_write
from magneton.schemas.manifest import MANIFEST_NAME, Manifest
from magneton.schemas.tables.columns import Column, Table
from magneton.schemas.tables.diff import DIFF_TABLES
from magneton.schemas.tables.run import RUN_TABLES
from magneton.schemas.versions.registry import OLDEST_READABLE, SCHEMA_VERSION, TABLE_KEY, VERSION_KEY
from magneton.schemas.views.columns import RUN_COLUMN
from magneton.schemas.views.registry import RUNS, VIEWS

# Title, the struct at the root, and what to say about it. Structs inside are documented with it.
DOCUMENTS: tuple[tuple[str, type[msgspec.Struct], str], ...] = (
    (
        f"`{MANIFEST_NAME}`",
        Manifest,
        "What was run, on what, and which files belong to the recording. It is written last: a directory without it is no "
        "recording. Fields at their default are left out; fields this release does not know are ignored.",
    ),
    (
        f"`{DIFF_NAME}`",
        DiffDocument,
        "What a diff found: the only input of reports, gates and verification. Beside it lie `regions.parquet`, "
        "`region_steps.parquet`, `matches.parquet` and `findings.parquet`. It is written last; sides are called A and B.",
    ),
    (
        "What `measure` returns",
        MeasureDocument,
        "What a step of one recording takes: `magneton.flows.measure(run).to_dict()`. It is not written to a file.",
    ),
    (
        "Repeats",
        RepeatDocument,
        "What `magneton repeat` prints with `--json` and writes with `--out`: what one call of an operator or module takes.",
    ),
    (
        "Replays",
        ReplayDocument,
        "What `magneton.flows.replays.measure_replays` returns: what one call of each operation takes, alone.",
    ),
    ("Recordings at a glance", InfoDocument, "What `magneton info --json` prints."),
    ("Catalogue", CatalogDocument, "What `magneton tables --json` prints."),
    ("Sensors", SensorsDocument, "What `magneton sensors --json` prints."),
    ("GPU check", GpuCheckDocument, "What `make gpu-check` leaves; `result` differs from stage to stage."),
)

_INTRODUCTION = f"""\
# Formats

`make docs` makes this page from the schemas; do not edit it. The page describes schema version {SCHEMA_VERSION}. This release reads
versions {OLDEST_READABLE} to {SCHEMA_VERSION}. It brings older versions up step by step and refuses newer ones. The [glossary](README.md#glossary)
explains words such as capture, region and stratum.

A recording is a directory:

```
{MANIFEST_NAME:<18}what was run, on what, and which files belong to it
raw/              files of the collectors and of the system's own tools, as they were written
tables/*.parquet  the tables below; computed from raw/, may be deleted and made again
```

Conventions:

* Times are integers in nanoseconds, relative to `base_unix_ns` of the row's capture. A column's name ends in its unit
  (`_ns`, `_j`, `_w`, `_bytes`). The Arrow field metadata holds the unit too, under `magneton.unit`, and the meaning, under `magneton.doc`.
* NULL means unknown or not applicable. It is never written as -1 or 0.
* Ids are unique within a run, across its captures and ranks. They follow time, not the order of events in the input.
* Every column may be NULL unless marked *required*. A column missing from a file reads as NULL, unless it is required.
* Parquet files carry the version in their key-value metadata under `{VERSION_KEY.decode()}` and the table's name under
  `{TABLE_KEY.decode()}`; JSON documents carry `schema_version`.
* A file of a recording is named by its path relative to the manifest, for example `raw/profile/rank0/trace.json.gz`. No
  two files have one path. A second input of the same name gets a folder of its own: `raw/profile/rank0/2/trace.json.gz`.
  An input that was not kept has a path too; its entry in `files` says `"kept": false`.
* Directories are built aside and put in place in one step; a reader sees the old one or the new one. A process that is
  killed may leave a hidden directory `.magneton-staging-...` beside its output. The next run with the same output removes it.

Versions:

* 2: files are named by their paths in the recording (`captures.file` and `quarantine.file` of the tables; `captures`,
  `sensors` and `files` of the manifest). `files` has `kept`.
* 1: files were named by bare names, and `path` was NULL for an input that was not kept.
"""


def cell(text: str) -> str:
    """Return text as it may stand in a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    lines += ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _type(kind: pa.DataType) -> str:
    return f"list of {kind.value_type}" if pa.types.is_list(kind) else str(kind)


def _columns(columns: Iterable[Column]) -> str:
    return markdown_table(
        ("column", "type", "unit", "meaning"),
        (
            (f"`{c.name}`", _type(c.type), c.unit or "", c.doc + (" *(required)*" if c.required else ""))
            for c in columns
        ),
    )


def _table(table: Table, leading: tuple[Column, ...] = ()) -> str:
    return f"### `{table.name}`\n\n{table.doc}\n\n{_columns((*leading, *table.columns))}\n"


def _annotation(kind: Any) -> str:
    """Return a field's type as one writes it, without module names."""
    named = isinstance(kind, type) and not getattr(kind, "__args__", ())
    return kind.__name__ if named else re.sub(r"\b[a-z_]+\.", "", str(kind))


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "*(required)*"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if isinstance(value, msgspec.Struct):
        return "all defaults"
    return f"`{msgspec.json.encode(value).decode()}`"


def _inner(kind: Any) -> list[type[msgspec.Struct]]:
    """Return the structs a type mentions."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [kind]
    return [s for argument in getattr(kind, "__args__", ()) for s in _inner(argument)]


def structs(root: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    """Return a struct and those its fields are made of, in the order in which they appear."""
    found = [root]
    for struct in found:
        for field in msgspec.structs.fields(struct):
            found += [s for s in _inner(field.type) if s not in found]
    return found


def _document(title: str, root: type[msgspec.Struct], about: str, described: set[type[msgspec.Struct]]) -> str:
    """Return a section; structs that an earlier one describes are not described again."""
    parts = [f"## {title}\n\n{about}\n"]
    for struct in structs(root):
        if struct in described:
            continue
        described.add(struct)
        doc = inspect.cleandoc(struct.__doc__ or "").replace("``", "`")
        rows = [(f"`{f.encode_name}`", f"`{_annotation(f.type)}`", _default(f)) for f in msgspec.structs.fields(struct)]
        parts.append(f"### {struct.__name__}\n\n{doc}\n\n{markdown_table(('field', 'type', 'default'), rows)}")
    return "\n".join(parts)


def _codes(title: str, about: str, codes: dict[str, str]) -> str:
    rows = ((f"`{code}`", meaning) for code, meaning in codes.items())
    return f"## {title}\n\n{about}\n\n{markdown_table(('code', 'meaning'), rows)}"


def _errors() -> str:
    classes = [
        c
        for c in vars(errors).values()
        if isinstance(c, type) and issubclass(c, errors.MagnetonError) and c is not errors.MagnetonError
    ]
    rows = ((f"`{c.__name__}`", (c.__doc__ or "").strip().splitlines()[0], str(c.exit_code)) for c in classes)
    return (
        "## Errors\n\nAn error a user can mend is one line on stderr that names the file, the reason and the remedy. "
        "In Python it is one of these, all of them `magneton.schemas.errors.MagnetonError`.\n\n"
        + markdown_table(("class", "meaning", "exit code"), rows)
    )


def text() -> str:
    """Return ``docs/formats.md``."""
    parts = [_INTRODUCTION]
    described: set[type[msgspec.Struct]] = set()
    parts += [_document(*document, described) for document in DOCUMENTS]
    parts.append(
        "## Tables of a run\n\nThe files `tables/<name>.parquet`. In SQL each has one more column, `run`, in front.\n"
    )
    parts += [_table(table) for table in RUN_TABLES.values()]
    parts.append(
        "## Tables of a diff\n\nThe files `<name>.parquet` beside `diff.json`. In SQL each has one more column, `diff`, in front.\n"
    )
    parts += [_table(table) for table in DIFF_TABLES.values()]
    parts.append(
        "## Views\n\nA view is a table that `magneton sql` computes from the tables above. `magneton tables NAME` shows its SQL.\n"
    )
    parts += [_table(table) for table in (RUNS, *(v.table for v in VIEWS.values()))]
    parts.append(f"The column `{RUN_COLUMN.name}` tells recordings apart. It is unique; labels need not be.\n")
    parts.append(_codes("Warnings", "The codes of the table `warnings`.", WARNING_CODES))
    parts.append(_codes("Quarantine", "The reasons of the table `quarantine`.", QUARANTINE_REASONS))
    parts.append(_codes("Flags of power readings", "The flags of the table `power`.", POWER_FLAGS))
    parts.append(_errors())
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def command(made: Callable[[], str], default: str, arguments: Sequence[str] | None = None) -> int:
    """Write a generated page, or with ``--check`` compare it.

    Args:
        made: makes the page.
        default: where it lies, relative to the project.
        arguments: words after the program's name (default: those of this process).

    Returns:
        0, or 1 when the page is out of date and only a check was asked for.
    """
    parser = argparse.ArgumentParser(description=f"Write {default}.")
    parser.add_argument("path", nargs="?", type=Path, default=Path(default))
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    chosen = parser.parse_args(arguments)
    page = made()
    if not chosen.check:
        atomic_write(chosen.path, page)
    elif not chosen.path.is_file() or chosen.path.read_text() != page:
        sys.stderr.write(f"{chosen.path} is out of date; run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(command(text, "docs/formats.md"))
