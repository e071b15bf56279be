"""Which reports of a diff there are: each is a module of this package that writes one file of the diff directory."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from magneton.schemas.documents.diff import DiffDocument

# Name of each file, and the module whose ``render(document) -> str`` gives its text.
REPORTS: dict[str, str] = {
    "report.md": "markdown",
}


def rendered(document: DiffDocument) -> Iterator[tuple[str, str]]:
    """Yield the file name and the text of every report."""
    for name, module in REPORTS.items():
        yield name, importlib.import_module(f"magneton.analysis.report.{module}").render(document)
