"""Remarks for the manifest."""

from __future__ import annotations

SCRUBBED = (
    "Host name, output path and the directories of source files were removed from the trace; "
    "times and everything else are as the profiler wrote them."
)
NO_SECOND = "There is no second input: values that agree by accident for this one input are not told apart."
