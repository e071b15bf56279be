"""Which traces lie among the shared files."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

SHARED = Path(os.environ.get("MAGNETON_SHARED", Path(__file__).resolve().parents[3] / "shared"))
# Files that are no trace of operators or kernels.
_OTHERS = ("power/", "execution_details", "memory_timeline")


# Traces that take more than ten seconds.
_LARGE = ("hta_control", "hta_test", "a100_nccl", "flux1")


def real_traces() -> list[ParameterSet]:
    """Return the traces by their place below ``traces/``, as parameters of a test; none where there are no shared files."""
    manifest = SHARED / "traces" / "MANIFEST.csv"
    if not manifest.is_file():
        return []
    with manifest.open() as stream:
        names = [row["file"] for row in csv.DictReader(stream)]
    return [
        pytest.param(name, marks=[pytest.mark.slow] if any(large in name for large in _LARGE) else [])
        for name in names
        if not any(other in name for other in _OTHERS)
    ]
