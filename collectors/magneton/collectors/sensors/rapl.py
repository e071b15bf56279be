"""Processors and their memory through RAPL, as the powercap part of sysfs shows it.

A zone counts microjoules in ``energy_uj`` and starts again at 0 at its own ``max_energy_range_uj``. This is not 2^32:
some zones count 262 kJ, some 65 kJ, which is minutes at full power. Zones contain one another:

* ``package-N`` is the processor. It includes its cores and its uncore, which are left out so that they do not count twice.
  ``dram`` is listed below the package but is not part of it. It is read.
* ``psys`` is the whole platform and contains the packages: a device kind of its own.
* ``intel-rapl-mmio`` shows the same packages once more: left out.

Since 2020 (CVE-2020-8694) only root may read the counters.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from magneton.collectors.sensors import protocol as p
from magneton.schemas.kinds import DeviceKind, Flag, PowerField

POWERCAP = Path("/sys/class/powercap")
# Another place where powercap lies: for containers that mount the host's, and for tests.
POWERCAP_VARIABLE = "MAGNETON_POWERCAP"
_KINDS = {"package": "cpu", "dram": "dram", "psys": "psys"}
_REMEDY = (
    "run as root, or let everyone read it until the next boot: sudo chmod o+r "
    "/sys/class/powercap/intel-rapl*/energy_uj /sys/class/powercap/intel-rapl*/*/energy_uj"
)


@dataclass
class _Zone:
    """One zone: its directory, its name as sysfs has it, and the zone it lies in."""

    path: Path
    name: str
    parent: str | None

    @property
    def id(self) -> str:
        """Name with the package, so that zones of two packages have different names."""
        return self.name if self.parent is None else f"{self.parent}/{self.name}"

    @property
    def kind(self) -> str | None:
        """Device kind; None for parts of a package."""
        return _KINDS.get(self.name.split("-")[0])


class RaplSensor:
    """All packages, their memory and the platform.

    Args:
        root: where powercap lies (default: what the variable ``MAGNETON_POWERCAP`` says, or ``/sys/class/powercap``).
    """

    source = "rapl"

    def __init__(self, root: Path | None = None) -> None:
        self._root = Path(os.environ.get(POWERCAP_VARIABLE, POWERCAP)) if root is None else root
        self._files: list[tuple[int, int]] = []

    def open(self) -> p.SensorInfo:
        """See ``Sensor.open``."""
        info = p.SensorInfo(self.source)
        try:
            zones = self._zones()
            for zone in zones:
                self._add(info, zone)
        except BaseException:
            self.close()
            raise
        if not info.series:
            self.close()
            for refusal in info.refusals:
                if refusal.kind == "permission":
                    raise p.SensorPermissionError(
                        f"{refusal.device_id}: {refusal.reason}", path=self._root, remedy=refusal.remedy
                    )
            raise p.SensorUnavailableError(
                "there are no RAPL zones", path=self._root, remedy="load intel_rapl_msr; virtual machines have none"
            )
        return info

    def _zones(self) -> list[_Zone]:
        """Return the zones, each followed by those inside it."""
        if not self._root.is_dir():
            raise p.SensorUnavailableError(
                "there is no powercap here", path=self._root, remedy="load intel_rapl_msr; virtual machines have none"
            )
        zones = []
        # Every zone is linked here by its own name: intel-rapl:0, intel-rapl:0:1, intel-rapl-mmio:0.
        for path in sorted(self._root.iterdir(), key=lambda path: path.name):
            parts = path.name.split(":")
            name = _text(path / "name")
            if len(parts) < 2 or name is None:
                continue
            above = None
            if len(parts) > 2:
                above = _text(self._root / ":".join(parts[:-1]) / "name")
            zones.append(_Zone(path, name, above))
        return zones

    def _add(self, info: p.SensorInfo, zone: _Zone) -> None:
        if "mmio" in zone.path.name:
            return _left_out(info, f"{zone.id} (mmio)", "the same package once more, through another register")
        if zone.kind is None:
            return _left_out(info, zone.id, "a part of its package")
        wrap = _text(zone.path / "max_energy_range_uj")
        file = zone.path / "energy_uj"
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError:
            info.refusals.append(p.Refusal(zone.id, "energy_uj", "only root may read it", _REMEDY, "permission"))
            return None
        except OSError as error:
            info.refusals.append(p.Refusal(zone.id, "energy_uj", f"cannot be read: {error.strerror}", None, "error"))
            return None
        labels = {"zone": zone.path.name}
        if wrap is not None and wrap.isdecimal() and int(wrap) > 0:
            labels["range_j"] = repr(int(wrap) / 1e6)
        if zone.kind == "psys":
            labels["contains"] = DeviceKind.CPU
        self._files.append((len(info.series), descriptor))
        info.series.append(p.Series(zone.kind, zone.id, "energy_uj", PowerField.ENERGY_COUNTER, "J", labels=labels))
        info.devices.append({"device_kind": zone.kind, "device_id": zone.id, "range_j": labels.get("range_j")})
        return None

    def poll(self, *, slow: bool) -> Sequence[p.Reading]:
        """See ``Sensor.poll``."""
        readings: list[p.Reading] = []
        for number, descriptor in self._files:
            before = time.monotonic_ns()
            value, why = None, None
            try:
                value = int(os.pread(descriptor, 64, 0)) / 1e6
            except OSError:
                why = Flag.NOT_AVAILABLE
            except ValueError:
                why = Flag.VALUE_NOT_NUMERIC
            if value is not None and value < 0:
                value, why = None, Flag.NEGATIVE_ENERGY
            readings.append((number, (before + time.monotonic_ns()) // 2, value, why))
        return readings

    def close(self) -> None:
        """See ``Sensor.close``."""
        for _, descriptor in self._files:
            os.close(descriptor)
        self._files = []


def _left_out(info: p.SensorInfo, zone: str, why: str) -> None:
    info.refusals.append(p.Refusal(zone, "energy_uj", why, None, "left_out"))


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
