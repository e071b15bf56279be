"""One version number for all files, and the steps that bring older files up to it.

A version-N reader opens any older version by applying the steps to k = old+1 .. N, refuses a newer one by name, and
refuses a file that states none. The steps to one version live in one module, for example ``update_to_2``, and are
registered below under the version they lead to. A step is a plain function:

* on a decoded document: ``step(document) -> document``;
* on an Arrow table: ``step(table, path) -> table``. ``path`` is the file it was read from, for a step that needs the manifest
  beside it. Tables that a version did not change have no step to it, and are read like new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from magneton.schemas.errors import SchemaVersionError
from magneton.schemas.versions import update_diff_to_2, update_to_2

SCHEMA_VERSION = 2
OLDEST_READABLE = 1
VERSION_KEY = b"magneton.schema_version"
TABLE_KEY = b"magneton.table"
TOOL_KEY = b"magneton.tool"

TableStep = Callable[[Any, Path], Any]
DocumentStep = Callable[[dict[str, Any]], dict[str, Any]]
# version -> table name -> step
TableSteps = Mapping[int, Mapping[str, TableStep]]

TABLE_STEPS: dict[int, Mapping[str, TableStep]] = {2: {**update_to_2.TABLES, **update_diff_to_2.TABLES}}
MANIFEST_STEPS: dict[int, DocumentStep] = {2: update_to_2.update_manifest}
DIFF_STEPS: dict[int, DocumentStep] = {2: update_diff_to_2.update_diff}


def supported() -> str:
    """Return the range of versions this release reads, for messages."""
    return str(SCHEMA_VERSION) if OLDEST_READABLE == SCHEMA_VERSION else f"{OLDEST_READABLE} to {SCHEMA_VERSION}"


def parse_version(found: object, where: object, *, newest: int | None = None) -> int:
    """Return a stated version as a number.

    Args:
        found: what the file states: bytes or text from Parquet metadata, an int from JSON, or None.
        where: file, for the message.
        newest: newest readable version (default: ``SCHEMA_VERSION``).

    Raises:
        SchemaVersionError: no version, not a whole number, older than readable, or newer than ``newest``.
    """
    newest = SCHEMA_VERSION if newest is None else newest
    if found is None:
        raise SchemaVersionError(
            f"states no schema version; this release reads {supported()}",
            path=str(where),
            remedy="normalise the raw trace again",
        )
    text = found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)
    if isinstance(found, bool) or not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise SchemaVersionError(
            f"states schema version {text[:40]!r}, which is not a version; this release reads {supported()}",
            path=str(where),
            remedy="normalise the raw trace again",
        )
    version = int(text)
    if version > newest:
        raise SchemaVersionError(
            f"has schema version {version}; this release reads {supported()}",
            path=str(where),
            remedy="install a newer magneton, or normalise the raw trace with this one",
        )
    if version < OLDEST_READABLE:
        raise SchemaVersionError(
            f"has schema version {version}; this release reads {supported()}",
            path=str(where),
            remedy="normalise the raw trace again",
        )
    return version


def upgrade_document(
    document: dict[str, Any], steps: Mapping[int, DocumentStep], where: object, *, newest: int | None = None
) -> dict[str, Any]:
    """Bring a decoded JSON document with a ``schema_version`` field up to the newest version, step by step."""
    newest = SCHEMA_VERSION if newest is None else newest
    version = parse_version(document.get("schema_version"), where, newest=newest)
    for step in range(version + 1, newest + 1):
        document = {**steps[step](document), "schema_version": step}
    return document


def table_steps(name: str, version: int, newest: int, steps: TableSteps) -> list[TableStep]:
    """Return the steps that bring a table of an older version up to the newest, in order; none where nothing changed."""
    return [steps[step][name] for step in range(version + 1, newest + 1) if name in steps[step]]
