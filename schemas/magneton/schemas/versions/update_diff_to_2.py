"""From schema version 1 to 2, for diffs: the time of the work is ``time_ns``, and evidence stands strongest first.

Version 1 called it ``kernel_ns``, on a CPU too, where no kernel runs. It listed evidence by the alphabet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from magneton.schemas.kinds import in_order

_COLUMNS = {"kernel_ns_a": "time_ns_a", "kernel_ns_b": "time_ns_b"}
_IN_GROUPS = {"kernel_ns": "time_ns"}
_INVENTORY = {"kernel_ns": "time_ns", "linked_kernel_ns": "linked_time_ns"}


def update_diff(document: dict[str, Any]) -> dict[str, Any]:
    """Rename the fields of a diff's document; what is no diff is left for the reader to refuse."""
    found = dict(document)
    for side in ("a", "b"):
        if isinstance(found.get(side), dict):
            renamed = _renamed(found[side], {"kernel_time": "step_time"})
            found[side] = renamed | {"inventory": _renamed(renamed.get("inventory"), _INVENTORY)}
    if isinstance(found.get("comparison"), dict):
        strata = _each(found["comparison"].get("strata"), lambda row: _renamed(row, _IN_GROUPS))
        found["comparison"] = found["comparison"] | {"strata": strata}
    if "totals" in found:
        found["totals"] = _renamed(found["totals"], _IN_GROUPS)
    if isinstance(found.get("rollups"), dict):
        found["rollups"] = {
            name: _each(rows, lambda row: _renamed(row, _IN_GROUPS)) for name, rows in found["rollups"].items()
        }
    found["groups"] = _each(found.get("groups"), lambda row: _sorted(_renamed(row, _IN_GROUPS)))
    found["regions"] = _each(found.get("regions"), lambda row: _sorted(_renamed(row, _COLUMNS)))
    return found


def _renamed(row: Any, names: Mapping[str, str]) -> Any:
    return {names.get(key, key): value for key, value in row.items()} if isinstance(row, dict) else row


def _each(rows: Any, change: Callable[[Any], Any]) -> Any:
    return [change(row) for row in rows] if isinstance(rows, list) else rows


def _sorted(row: Any) -> Any:
    """Put the evidence of a group (a list) or of a region (text) strongest first."""
    evidence = row.get("evidence") if isinstance(row, dict) else None
    if isinstance(evidence, list) and all(isinstance(word, str) for word in evidence):
        return row | {"evidence": in_order(evidence)}
    return row | {"evidence": " ".join(in_order(evidence.split()))} if isinstance(evidence, str) else row


def _update_regions(table: Any, path: Path) -> Any:
    import pyarrow as pa

    table = table.rename_columns([_COLUMNS.get(name, name) for name in table.column_names])
    if "evidence" not in table.column_names or not pa.types.is_string(table.schema.field("evidence").type):
        return table
    words = [None if text is None else " ".join(in_order(text.split())) for text in table["evidence"].to_pylist()]
    return table.set_column(table.column_names.index("evidence"), "evidence", pa.array(words, pa.string()))


TABLES: Mapping[str, Callable[[Any, Path], Any]] = {"regions": _update_regions}
