"""Which traces lie among the shared files."""

from __future__ import annotations

import csv
import os
from pathlib import Path

SHARED = Path(os.environ.get("MAGNETON_SHARED", Path(__file__).resolve().parents[3] / "shared"))
# Files that are no trace of operators or kernels.
_OTHERS = ("power/", "execution_details", "memory_timeline")


def real_traces() -> list[str]:
    """Return the traces by their place below ``traces/``; none where there are no shared files."""
    manifest = SHARED / "traces" / "MANIFEST.csv"
    if not manifest.is_file():
        return []
    with manifest.open() as stream:
        names = [row["file"] for row in csv.DictReader(stream)]
    return [name for name in names if not any(other in name for other in _OTHERS)]
