"""AMD GPUs through AMD SMI (``import amdsmi``, which comes with ROCm).

The code relies on these facts:

* The energy counter is a number of ticks; its joules are ticks times ``counter_resolution`` (microjoules). The resolution
  differs between chips, and the key of the ticks between releases (``energy_accumulator``, before that ``power``).
* MI300 gives ``current_socket_power``, MI200 ``average_socket_power``; what a chip does not have reads ``N/A``.
  ``socket_power`` is whichever there is, and is used only where neither is.
* Power is in W, the cap in microwatts.
* Without its library ``import amdsmi`` writes to stdout and fails with ``KeyError``.
* In a partitioned GPU only the first partition has power.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import time
from collections.abc import Callable, Sequence
from typing import Any

from magneton.collectors.sensors import protocol as p
from magneton.schemas.kinds import DeviceKind, Flag, PowerField

_NEVER = ("AMDSMI_STATUS_NOT_SUPPORTED", "AMDSMI_STATUS_NOT_YET_IMPLEMENTED", "AMDSMI_STATUS_INVAL")
_GONE = ("AMDSMI_STATUS_NOT_FOUND", "AMDSMI_STATUS_NOT_INIT", "AMDSMI_STATUS_DRIVER_NOT_LOADED")


class AmdSmiSensor:
    """All GPUs that AMD SMI shows."""

    source = "amd-smi"

    def __init__(self) -> None:
        self._smi: Any = None
        self._series: list[p.Series] = []
        # Each call gives several series: what is called, and (number, how to take it out of what came back).
        self._calls: list[tuple[Callable[[], Any], list[tuple[int, Callable[[Any], Any]]], bool, str]] = []
        self._lost: set[str] = set()

    def open(self) -> p.SensorInfo:
        """See ``Sensor.open``."""
        self._smi = _library()
        try:
            self._call("amdsmi_init")
        except p.SensorPermissionError:
            self._smi = None
            raise
        except p.SensorError as error:
            self._smi = None
            raise p.SensorUnavailableError(error.reason, remedy="load the amdgpu driver") from error
        try:
            return self._find()
        except BaseException:
            self.close()
            raise

    def _call(self, function: str, *arguments: Any) -> Any:
        call = getattr(self._smi, function, None)
        if call is None:
            raise p.FieldUnsupportedError(f"this amdsmi has no {function}")
        try:
            return call(*arguments)
        except self._smi.AmdSmiException as error:
            raise _error(error) from error

    def _find(self) -> p.SensorInfo:
        info = p.SensorInfo(self.source)
        self._series, self._calls, self._lost = info.series, [], set()
        handles = self._call("amdsmi_get_processor_handles")
        if not handles:
            raise p.SensorUnavailableError("AMD SMI shows no GPU")
        for index, handle in enumerate(handles):
            try:
                uuid = self._call("amdsmi_get_gpu_device_uuid", handle)
            except p.SensorError:
                uuid = str(index)
            name = None
            with contextlib.suppress(p.SensorError):
                name = self._call("amdsmi_get_gpu_asic_info", handle).get("market_name")
            info.devices.append({"device_kind": DeviceKind.GPU, "device_id": uuid, "index": index, "name": name})
            self._add(info, handle, uuid)
        if not info.energetic:
            first = info.refusals[0]
            kind = p.SensorPermissionError if first.kind == "permission" else p.SensorUnavailableError
            raise kind(first.reason, remedy=first.remedy)
        return info

    def _add(self, info: p.SensorInfo, handle: Any, uuid: str) -> None:
        smi = self._smi
        self._try(
            info,
            uuid,
            "amdsmi_get_energy_count",
            (handle,),
            [("energy_count", PowerField.ENERGY_COUNTER, "J", _joules)],
            slow=False,
        )
        self._try(
            info,
            uuid,
            "amdsmi_get_power_info",
            (handle,),
            [
                ("current_socket_power", PowerField.POWER_INSTANT, "W", _item("current_socket_power")),
                ("average_socket_power", PowerField.POWER_AVERAGE, "W", _item("average_socket_power")),
                ("socket_power", PowerField.POWER, "W", _socket_power),
            ],
            slow=False,
        )
        self._try(
            info,
            uuid,
            "amdsmi_get_power_cap_info",
            (handle,),
            [("power_cap", PowerField.POWER_LIMIT, "W", lambda found: _number(found["power_cap"]) / 1e6)],
        )
        for name, kind in (("GFX", "clock_graphics"), ("MEM", "clock_memory")):
            clock = getattr(getattr(smi, "AmdSmiClkType", None), name, None)
            if clock is not None:
                self._try(info, uuid, "amdsmi_get_clock_info", (handle, clock), [(kind, kind, "MHz", _item("clk"))])
        self._try(
            info,
            uuid,
            "amdsmi_get_gpu_activity",
            (handle,),
            [("gfx_activity", "utilization", "%", _item("gfx_activity"))],
        )
        sensor = getattr(getattr(smi, "AmdSmiTemperatureType", None), "HOTSPOT", None)
        metric = getattr(getattr(smi, "AmdSmiTemperatureMetric", None), "CURRENT", None)
        if sensor is not None and metric is not None:
            self._try(
                info,
                uuid,
                "amdsmi_get_temp_metric",
                (handle, sensor, metric),
                [("temperature_hotspot", "temperature", "degC", _number)],
            )

    def _try(
        self,
        info: p.SensorInfo,
        uuid: str,
        function: str,
        arguments: tuple[Any, ...],
        wanted: Sequence[tuple[str, str, str, Callable[[Any], Any]]],
        *,
        slow: bool = True,
    ) -> None:
        """Add what a call gives; a part that is not there on this chip is refused, the others stay."""

        def call() -> Any:
            return self._call(function, *arguments)

        try:
            found = call()
        except p.SensorError as error:
            kind = "permission" if isinstance(error, p.SensorPermissionError) else "unsupported"
            if isinstance(error, p.FieldUnsupportedError | p.SensorPermissionError):
                info.refusals += [p.Refusal(uuid, name, error.reason, error.remedy, kind) for name, *_ in wanted]
                return
            found = None
        takers = []
        for name, field, unit, take in wanted:
            try:
                if found is not None:
                    take(found)
            except p.FieldError as error:
                info.refusals.append(p.Refusal(uuid, name, error.reason))
                continue
            takers.append((len(self._series), take))
            simulated = bool(getattr(self._smi, p.STAND_IN_ATTRIBUTE, False))
            self._series.append(p.Series(DeviceKind.GPU, uuid, name, field, unit, slow, {"scope": "socket"}, simulated))
        if takers:
            self._calls.append((call, takers, slow, uuid))

    def poll(self, *, slow: bool) -> list[p.Reading]:
        """See ``Sensor.poll``."""
        readings: list[p.Reading] = []
        for call, takers, is_slow, uuid in self._calls:
            if uuid in self._lost or (is_slow and not slow):
                continue
            before = time.monotonic_ns()
            found, failed = None, None
            try:
                found = call()
            except p.SensorLostError as error:
                self._lost.add(uuid)
                failed = p.FieldError(error.reason)
            except p.SensorError as error:
                failed = error if isinstance(error, p.FieldError) else p.FieldError(error.reason)
            at = (before + time.monotonic_ns()) // 2
            for number, take in takers:
                readings.append(_reading(number, at, take, found, failed))
        if not readings and self._lost:
            raise p.SensorLostError("every GPU is lost")
        return readings

    def close(self) -> None:
        """See ``Sensor.close``."""
        if self._smi is not None:
            with contextlib.suppress(p.SensorError):
                self._call("amdsmi_shut_down")
        self._smi, self._calls = None, []


def _library() -> Any:
    try:
        # amdsmi writes its message about a missing library to stdout, which carries our data.
        with contextlib.redirect_stdout(io.StringIO()):
            return importlib.import_module("amdsmi")
    except ImportError as error:
        remedy = "pip install 'magneton[amd]', in the release of the installed ROCm"
        raise p.SensorUnavailableError("AMD SMI needs amdsmi, which is not installed", remedy=remedy) from error
    except (KeyError, OSError, AttributeError) as error:
        remedy = "install amd-smi-lib, which is part of ROCm"
        raise p.SensorUnavailableError("amdsmi does not find libamd_smi.so", remedy=remedy) from error


def _error(error: Any) -> p.SensorError:
    # Parameter errors have no code. They concern the call of this field only.
    text = str(getattr(error, "err_info", None) or error).strip()
    name = text.split(" - ")[0].strip()
    reason = f"AMD SMI says {name.removeprefix('AMDSMI_STATUS_')}"
    if name in _NEVER:
        return p.FieldUnsupportedError(reason)
    if name == "AMDSMI_STATUS_NO_PERM":
        return p.SensorPermissionError(reason, remedy="add the user to the groups render and video")
    if name in _GONE:
        return p.SensorLostError(reason)
    return p.FieldError(reason)


def _number(value: Any) -> float:
    if isinstance(value, str) or value is None:
        raise p.FieldError(f"AMD SMI says {value}")
    return float(value)


def _item(key: str) -> Callable[[Any], float]:
    def take(found: Any) -> float:
        if key not in found:
            raise p.FieldError(f"AMD SMI gives no {key}")
        return _number(found[key])

    return take


def _socket_power(found: Any) -> float:
    """Return the plain power, unless one of the readings that say what they are is there."""
    for key in ("current_socket_power", "average_socket_power"):
        if not isinstance(found.get(key, "N/A"), str):
            raise p.FieldError(f"{key} says the same")
    return _item("socket_power")(found)


def _joules(found: Any) -> float:
    ticks = found.get("energy_accumulator", found.get("power"))
    resolution = _number(found.get("counter_resolution"))
    if resolution <= 0:
        raise p.FieldError("AMD SMI gives no resolution of its counter")
    return _number(ticks) * resolution / 1e6


def _reading(number: int, at: int, take: Callable[[Any], float], found: Any, failed: p.FieldError | None) -> p.Reading:
    if failed is not None:
        return number, at, None, failed.flag
    try:
        value = take(found)
    except p.FieldError as error:
        return number, at, None, error.flag
    return (number, at, None, Flag.NOT_AVAILABLE) if value < 0 else (number, at, value, None)
