"""Rows of CSV files as sensors' tools write them: one line each, cells stripped, the last one perhaps cut off."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path

from magneton.transforms.reading.textfile import TextFile

_NUMBER_END = re.compile(r"[+-]?\d*(?:\.(\d*))?", re.ASCII)


def cells_of(line: str) -> list[str] | None:
    """Return the cells of one line, or None when it is no CSV."""
    if '"' not in line:
        return [cell.strip() for cell in line.split(",")]
    try:
        rows = list(csv.reader([line], skipinitialspace=True))
    except csv.Error:
        return None
    return [cell.strip() for cell in rows[0]] if rows else None


def may_be_cut(cells: list[str], before: list[str] | None) -> bool:
    """Say whether a last line without a newline may have lost digits.

    Its last cell is a bare number, and nothing shows that it is whole: a number with as many decimals as in the row
    before is.
    """
    match = _NUMBER_END.fullmatch(cells[-1])
    if match is None or not cells[-1]:
        return False
    decimals = match.group(1)
    if before is None or not decimals:
        return True
    earlier = _NUMBER_END.fullmatch(before[-1])
    return earlier is None or earlier.group(1) is None or len(earlier.group(1)) != len(decimals)


def raw_lines(path: Path, line_of: Mapping[int, int], positions: set[int]) -> dict[int, str]:
    """Return rows as written by reading the file once more.

    Args:
        path: the file.
        line_of: line number of each row position, where known.
        positions: rows wanted.
    """
    wanted = {line_of[p]: p for p in positions if p in line_of}
    found: dict[int, str] = {}
    for number, line in enumerate(TextFile(path)):
        if number in wanted:
            found[wanted[number]] = line
            if len(found) == len(wanted):
                break
    return found
