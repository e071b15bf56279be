"""What a sensor's number includes: cores are a part of their package, containers of their node. Nested scopes are never added."""

from __future__ import annotations

import re
from collections.abc import Iterable

from magneton.schemas.kinds import DeviceKind

# Logs call every zone of RAPL a CPU. What the zone is stands in its name: `core`, `package-0/dram`, `psys-1`.
_ZONE = re.compile(r"(?:.*[/:.-])?(cores?|pp0|uncore|pp1|dram|ram|psys|platform)(?:[-_:]?\d+)?", re.IGNORECASE)
_KINDS: dict[str, str] = {
    "core": DeviceKind.CORE,
    "cores": DeviceKind.CORE,
    "pp0": DeviceKind.CORE,
    "uncore": DeviceKind.UNCORE,
    "pp1": DeviceKind.UNCORE,
    "dram": DeviceKind.DRAM,
    "ram": DeviceKind.DRAM,
    "psys": DeviceKind.PSYS,
    "platform": DeviceKind.PSYS,
}
_PACKAGES = frozenset({DeviceKind.CPU, DeviceKind.CPU_PACKAGE, DeviceKind.PACKAGE})
_ALL = (DeviceKind.NODE, DeviceKind.WALL, DeviceKind.METER)
# What includes a kind of device, besides itself.
_HOLDERS: dict[str, tuple[str, ...]] = {
    DeviceKind.CORE: (*sorted(_PACKAGES), DeviceKind.PSYS, *_ALL),
    DeviceKind.UNCORE: (*sorted(_PACKAGES), DeviceKind.PSYS, *_ALL),
    **dict.fromkeys(_PACKAGES, (DeviceKind.MODULE, DeviceKind.PSYS, *_ALL)),
    DeviceKind.DRAM: (DeviceKind.PSYS, *_ALL),
    DeviceKind.GPU: (DeviceKind.MODULE, DeviceKind.PSYS, *_ALL),
    DeviceKind.MODULE: _ALL,
    DeviceKind.PSYS: _ALL,
    DeviceKind.NODE: (DeviceKind.WALL, DeviceKind.METER),
    "wall_part": (DeviceKind.WALL,),
}
# Parts that a tool divides a node's energy into: `container_cpu`, `pod_dram`, `idle_cpu`.
_OWNED = re.compile(r"(?:(?:container|pod|process|vm|active|idle|dynamic)_)+(.+)")


def scope_of(kind: str | None, device_id: str | None) -> str | None:
    """Return the kind of device that a number is of: ``core`` for the zone that a log calls a CPU named ``core``."""
    if kind in _PACKAGES and device_id and (match := _ZONE.fullmatch(device_id)):
        return _KINDS[match.group(1).lower()]
    return kind


def holders(kind: str, present: Iterable[str]) -> list[str]:
    """Return those of the kinds that are present whose numbers include those of ``kind``, the narrowest first."""
    there = set(present) - {kind}
    owned = _OWNED.fullmatch(kind)
    if owned:
        whole = owned.group(1)
        around = (whole, *_HOLDERS.get(whole, ()))
    else:
        around = _HOLDERS.get(kind, ())
    return [one for one in around if one in there]
