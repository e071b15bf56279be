"""Which physical GPU a program calls device 0, 1, ...: visible-devices variables, interpreted as the runtimes do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from magneton.schemas.errors import InsufficientPowerDataError

CUDA_VISIBLE, CUDA_ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
ROCR_VISIBLE, HIP_VISIBLE = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"


@dataclass(frozen=True)
class DeviceMap:
    """Physical devices by the number the program gives them.

    Attributes:
        ids: device id (as the sensor names it) by device number.
        excluded: devices of the sensor log that the program did not see.
        warnings: ``device_order_assumed``, ``visible_devices_invalid``.
    """

    ids: dict[int, str | None]
    excluded: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def map_devices(
    sensor_ids: Iterable[str | None],
    *,
    used: Iterable[int] = (),
    physical: Sequence[tuple[int, str]] = (),
    env: Mapping[str, str] | None = None,
    explicit: Mapping[int, str] | None = None,
    indexed: Mapping[int, str] | None = None,
) -> DeviceMap:
    """Find the sensor's name of each device that a program used.

    Args:
        sensor_ids: GPUs in the sensor log.
        used: device numbers in the trace.
        physical: (index, id) of all GPUs of the machine, index as the management library counts (PCI order).
        env: environment of the program.
        explicit: the mapping, where the caller knows it. The other arguments are then ignored.

        indexed: id by the index that the log itself gives. The log need not hold all GPUs of the machine.

    Raises:
        InsufficientPowerDataError: the devices cannot be told apart from what is known, or one that was used is not
            among the visible ones.
    """
    given = list(sensor_ids)
    logged = sorted({s for s in given if s is not None})
    wanted = sorted(set(used))
    if explicit is not None:
        return _finish(dict(explicit), logged, wanted, set())
    codes: set[str] = set()
    if physical:
        ids = {i: s for i, (_, s) in enumerate(sorted(physical))}
        ids = _visible(ids, env or {}, codes)
    elif len({*given}) == 1 and len(wanted) <= 1:
        codes.add("device_order_assumed")
        # A log that names no device is of one device.
        return _finish(dict.fromkeys(wanted or [0], given[0]), logged, wanted, codes)
    elif indexed:
        codes.add("device_order_assumed")
        ids = _visible(dict(indexed), env or {}, codes)
    elif logged and all(s.isdigit() for s in logged):
        # The log counts the GPUs itself. It need not hold all of them, so numbers stay what they are.
        codes.add("device_order_assumed")
        ids = _visible({int(s): s for s in logged}, env or {}, codes)
    else:
        raise InsufficientPowerDataError(
            "device mapping unknown: nothing says which GPU of the power log is device 0",
            remedy=f"say so: magneton normalize ... --device-map {wanted[0] if wanted else 0}={logged[0] if logged else 'ID'} (the log has {', '.join(logged[:8]) or 'no names'})",
        )
    return _finish(ids, logged, wanted, codes)


def _finish(ids: Mapping[int, str | None], logged: list[str], wanted: list[int], codes: set[str]) -> DeviceMap:
    lost = [n for n in wanted if n not in ids]
    if lost:
        raise InsufficientPowerDataError(
            f"device {lost[0]} of the trace is not among the devices of the power log ({', '.join(logged[:8])})",
            remedy=f"say which it is: magneton normalize ... --device-map {lost[0]}=ID",
        )
    excluded = tuple(s for s in logged if s not in ids.values())
    return DeviceMap(dict(ids), excluded, tuple(sorted(codes)))


def _visible(ids: dict[int, str], env: Mapping[str, str], codes: set[str]) -> dict[int, str]:
    """Apply the visible-devices variables. ROCm has two: HIP's list counts the devices that ROCR's list leaves."""
    if CUDA_VISIBLE in env or not {ROCR_VISIBLE, HIP_VISIBLE} & env.keys():
        # Without an order, CUDA puts the fastest GPU first. That is the PCI order only where all are alike.
        by_uuid = not any(e.strip().lstrip("-").isdigit() for e in env.get(CUDA_VISIBLE, "0").split(","))
        if env.get(CUDA_ORDER) != "PCI_BUS_ID" and len(ids) > 1 and not by_uuid:
            codes.add("device_order_assumed")
        return _select(ids, env.get(CUDA_VISIBLE), codes)
    return _select(_select(ids, env.get(ROCR_VISIBLE), codes), env.get(HIP_VISIBLE), codes)


def _select(ids: dict[int, str], entries: str | None, codes: set[str]) -> dict[int, str]:
    """Return the devices of a list. As in the runtimes, the list ends at the first entry that is invalid or a repetition."""
    if entries is None:
        return ids
    chosen: list[str] = []
    for entry in (part.strip() for part in entries.split(",")):
        if entry.isascii() and entry.isdigit():
            device = ids.get(int(entry))
        else:  # a UUID may be cut short as long as it stays unique
            matches = [s for s in ids.values() if entry and s.startswith(entry)]
            device = matches[0] if len(matches) == 1 else None
        if device is None or device in chosen:
            if entries.strip() not in ("", "-1"):
                codes.add("visible_devices_invalid")
            break
        chosen.append(device)
    return dict(enumerate(chosen))
