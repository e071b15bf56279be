"""Which GPUs a program may use, from variables such as ``CUDA_VISIBLE_DEVICES``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

# The older name of a MIG device carries its GPU: MIG-GPU-<uuid>/<instance>/<compute instance>.
_OLD_MIG = re.compile(r"MIG-(GPU-[0-9a-f-]{36})/\d+/\d+", re.I)


@dataclass
class Visible:
    """GPUs in the order of the program, and what was noticed: codes of ``WARNING_CODES``."""

    ids: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def select_visible(
    ids: Sequence[str],
    entries: str | None,
    *,
    sure_of_order: bool,
    parent_of: Callable[[str], str | None] = lambda mig: None,
) -> Visible:
    """Return the GPUs that a list such as ``CUDA_VISIBLE_DEVICES`` names.

    The list ends at the first entry that names no device. The numbers in the list may count in another order than the
    management library does. Then all GPUs are taken, since reading one too many is better than one too few.

    Args:
        ids: UUIDs of all GPUs, in the order of the management library (PCI).
        entries: the list; None where it is not set, and then all are visible.
        sure_of_order: the program counts as the management library does.
        parent_of: returns the UUID of the GPU that a MIG device is a part of.
    """
    found = Visible()
    if entries is None:
        found.ids = list(ids)
        return found
    parts = [part.strip() for part in entries.split(",")]
    if not sure_of_order and any(part.isdigit() for part in parts):
        return Visible(list(ids), ["device_order_assumed"])
    for part in parts:
        one = _one(ids, part, parent_of)
        if one is None:
            if entries.strip() not in ("", "-1", "none", "NoDevFiles"):
                found.warnings.append("visible_devices_invalid")
            break
        if one not in found.ids:
            found.ids.append(one)
    return found


def _one(ids: Sequence[str], entry: str, parent_of: Callable[[str], str | None]) -> str | None:
    if entry.isascii() and entry.isdigit():
        return ids[int(entry)] if int(entry) < len(ids) else None
    if entry.upper().startswith("MIG-"):
        old = _OLD_MIG.fullmatch(entry)
        parent = old.group(1) if old else parent_of(entry)
        return parent if parent in ids else None
    # A UUID may be cut short as long as it stays unique.
    matches = [one for one in ids if entry and one.lower().startswith(entry.lower())]
    return matches[0] if len(matches) == 1 else None
