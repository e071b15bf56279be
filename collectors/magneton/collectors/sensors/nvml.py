"""NVIDIA GPUs through NVML (``nvidia-ml-py``, ``import pynvml``).

The total-energy counter (mJ), the instant power and the average power are three separate readings. What
``nvmlDeviceGetPowerUsage`` averages over depends on chip and driver, so it is the plain ``power``. The code relies on these facts:

* ``nvmlDeviceGetFieldValues`` returns a status per field, and its number lies in the member of a union that ``valueType``
  names. Drivers before 530 know no instant power: ``NOT_SUPPORTED`` or ``INVALID_ARGUMENT`` in that field alone.
* The counter does not change over short windows. Such readings are kept like any other.
* A GPU that falls off the bus answers ``GPU_IS_LOST`` (or ``RESET_REQUIRED``) to everything from then on.
* Under MIG the power is that of the whole GPU, including its other users. The label ``mig`` says so.
* Scope ``MODULE`` (Grace Hopper) includes the CPU. It is a device kind of its own.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magneton.collectors.sensors import protocol as p
from magneton.collectors.sensors.visible import select_visible
from magneton.schemas.kinds import DeviceKind, Flag, PowerField

_LOST = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED", "NVML_ERROR_UNINITIALIZED")
_NEVER = ("NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_INVALID_ARGUMENT", "NVML_ERROR_FUNCTION_NOT_FOUND")
# Field ids are part of NVML's binary interface; older bindings have no name for the newer ones.
_ENERGY, _AVERAGE, _INSTANT = 83, 185, 186
_SCOPE_GPU, _SCOPE_MODULE = 0, 1
# valueType -> member of the union
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_INSTALL = "pip install 'magneton[nvidia]'"


@dataclass(frozen=True)
class _Field:
    """A reading that comes through ``nvmlDeviceGetFieldValues``: its id and scope, and the name, field and unit of its series."""

    id: int
    scope: int
    name: str
    field: str
    unit: str


_FIELDS = (
    _Field(_ENERGY, _SCOPE_GPU, "total_energy_consumption", PowerField.ENERGY_COUNTER, "J"),
    _Field(_INSTANT, _SCOPE_GPU, "power_instant", PowerField.POWER_INSTANT, "W"),
    _Field(_AVERAGE, _SCOPE_GPU, "power_average", PowerField.POWER_AVERAGE, "W"),
    _Field(_INSTANT, _SCOPE_MODULE, "module_power_instant", PowerField.POWER_INSTANT, "W"),
    _Field(_AVERAGE, _SCOPE_MODULE, "module_power_average", PowerField.POWER_AVERAGE, "W"),
)


class _Gpu:
    """One GPU: its handle, the fields it answers, and the calls for the rest."""

    def __init__(self, handle: Any, uuid: str, labels: Mapping[str, str]) -> None:
        self.handle, self.uuid, self.labels = handle, uuid, dict(labels)
        self.fields: list[tuple[int, _Field]] = []
        self.calls: list[tuple[int, Callable[[], float], bool]] = []
        self.lost = False


class NvmlSensor:
    """All GPUs that NVML shows, or those that the program may see.

    Args:
        env: environment that holds ``CUDA_VISIBLE_DEVICES`` (default: this process's).
    """

    source = "nvml"

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = os.environ if env is None else env
        self._nvml: Any = None
        self._gpus: list[_Gpu] = []
        self._series: list[p.Series] = []

    def open(self) -> p.SensorInfo:
        """See ``Sensor.open``."""
        self._nvml = self._library()
        try:
            self._call("nvmlInit")
        except p.SensorError:
            self._nvml = None
            raise
        try:
            return self._find()
        except BaseException:
            self.close()
            raise

    def _library(self) -> Any:
        try:
            return importlib.import_module("pynvml")
        except ImportError as error:
            raise p.SensorUnavailableError(
                "NVML needs nvidia-ml-py, which is not installed", remedy=_INSTALL
            ) from error

    def _error(self, code: int) -> p.SensorError:
        nvml = self._nvml
        known = {name: getattr(nvml, name) for name in dir(nvml) if name.startswith("NVML_ERROR_")}
        name = next((n for n, value in known.items() if value == code), f"error {code}")
        text = f"NVML says {name.removeprefix('NVML_ERROR_')}"
        if name in _LOST:
            return p.SensorLostError(text)
        if name in _NEVER:
            return p.FieldUnsupportedError(text)
        if name == "NVML_ERROR_NO_PERMISSION":
            return p.SensorPermissionError(
                text, remedy="run as a user who may read the GPU, or start the container with it"
            )
        if name in ("NVML_ERROR_LIBRARY_NOT_FOUND", "NVML_ERROR_DRIVER_NOT_LOADED"):
            return p.SensorUnavailableError(
                text, remedy="install the NVIDIA driver, or start the container with the GPU"
            )
        if name == "NVML_ERROR_LIB_RM_VERSION_MISMATCH":
            return p.SensorUnavailableError(
                text, remedy="the driver was updated under a running kernel: restart the machine"
            )
        return p.FieldError(text)

    def _call(self, function: str, *arguments: Any) -> Any:
        """Call NVML. Its errors become errors of ``protocol``."""
        call = getattr(self._nvml, function, None)
        if call is None:
            raise p.FieldUnsupportedError(f"this nvidia-ml-py has no {function}")
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            raise self._error(error.value) from error

    def _fact(self, function: str, *arguments: Any) -> Any:
        try:
            return self._call(function, *arguments)
        except p.SensorError:
            return None

    def _find(self) -> p.SensorInfo:
        info = p.SensorInfo(self.source)
        info.facts["driver"] = self._fact("nvmlSystemGetDriverVersion")
        info.facts["library"] = self._fact("nvmlSystemGetNVMLVersion")
        handles: dict[str, tuple[int, Any, str | None]] = {}
        for index in range(self._call("nvmlDeviceGetCount")):
            try:
                handle = self._call("nvmlDeviceGetHandleByIndex", index)
                uuid = self._call("nvmlDeviceGetUUID", handle)
                handles[uuid] = (index, handle, self._fact("nvmlDeviceGetName", handle))
            except p.SensorError as error:
                info.refusals.append(p.Refusal(None, None, f"GPU {index}: {error.reason}", error.remedy, "error"))
        chosen = self._choose(handles, info)
        self._gpus, self._series = [], info.series
        for uuid in chosen:
            index, handle, name = handles[uuid]
            self._add(info, index, handle, uuid, name)
        if not info.series:
            first = next(iter(info.refusals), None)
            reason = first.reason if first else "NVML shows no GPU that this program may use"
            raise p.SensorUnavailableError(reason, remedy=first.remedy if first else None)
        return info

    def _choose(self, handles: Mapping[str, tuple[int, Any, str | None]], info: p.SensorInfo) -> list[str]:
        visible = self._env.get("CUDA_VISIBLE_DEVICES")
        order = self._env.get("CUDA_DEVICE_ORDER")
        info.facts |= {"visible_devices": visible, "device_order": order}
        info.facts["physical"] = [[index, uuid] for uuid, (index, _, _) in handles.items()]
        names = {name for _, _, name in handles.values()}
        chosen = select_visible(
            list(handles), visible, sure_of_order=order == "PCI_BUS_ID" or len(names) <= 1, parent_of=self._parent_of
        )
        info.warnings += chosen.warnings
        return chosen.ids

    def _parent_of(self, mig: str) -> str | None:
        """Return the UUID of the GPU that a MIG device is a part of."""
        handle = self._fact("nvmlDeviceGetHandleByUUID", mig)
        parent = None if handle is None else self._fact("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        return None if parent is None else self._fact("nvmlDeviceGetUUID", parent)

    def _add(self, info: p.SensorInfo, index: int, handle: Any, uuid: str, name: str | None) -> None:
        mode = self._fact("nvmlDeviceGetMigMode", handle)
        mig = bool(mode and mode[0])
        labels = {"scope": "gpu"} | ({"mig": "whole GPU, shared by its instances"} if mig else {})
        gpu = _Gpu(handle, uuid, labels)
        self._gpus.append(gpu)
        info.devices.append(
            {"device_kind": DeviceKind.GPU, "device_id": uuid, "index": index, "name": name, "mig": mig}
        )
        self._add_fields(info, gpu)
        self._add_calls(info, gpu)

    def _enter(self, gpu: _Gpu, kind: str, name: str, field: str, unit: str, *, slow: bool = False) -> int:
        labels = gpu.labels | ({"scope": "module", "contains": "gpu"} if kind == DeviceKind.MODULE else {})
        simulated = bool(getattr(self._nvml, p.STAND_IN_ATTRIBUTE, False))
        self._series.append(p.Series(kind, gpu.uuid, name, field, unit, slow, labels, simulated))
        return len(self._series) - 1

    def _add_fields(self, info: p.SensorInfo, gpu: _Gpu) -> None:
        """Keep the fields that this GPU answers; where the call itself is missing, fall back to the older ones."""
        for field in _FIELDS:
            # One by one: some drivers refuse the whole call for one field they do not know.
            answer: float | p.SensorError
            try:
                (answer,) = self._field_values(gpu, [field])
            except p.SensorError as error:
                answer = error
            kind = DeviceKind.MODULE if field.scope == _SCOPE_MODULE else DeviceKind.GPU
            if not isinstance(answer, p.FieldUnsupportedError | p.SensorPermissionError):
                # A field that only failed this time may answer the next time.
                gpu.fields.append((self._enter(gpu, kind, field.name, field.field, field.unit), field))
            elif field.id != _ENERGY:
                info.refusals.append(_refusal(gpu.uuid, field.name, answer))
        if not any(field.id == _ENERGY for _, field in gpu.fields):
            self._try(
                info,
                gpu,
                "total_energy_consumption",
                PowerField.ENERGY_COUNTER,
                "J",
                "nvmlDeviceGetTotalEnergyConsumption",
                1e3,
            )

    def _add_calls(self, info: p.SensorInfo, gpu: _Gpu) -> None:
        nvml = self._nvml
        self._try(info, gpu, "power_usage", PowerField.POWER, "W", "nvmlDeviceGetPowerUsage", 1e3)
        self._try(
            info, gpu, "clock_sm", "clock_sm", "MHz", "nvmlDeviceGetClockInfo", 1, getattr(nvml, "NVML_CLOCK_SM", 1)
        )
        self._try(
            info,
            gpu,
            "clock_memory",
            "clock_memory",
            "MHz",
            "nvmlDeviceGetClockInfo",
            1,
            getattr(nvml, "NVML_CLOCK_MEM", 2),
        )
        self._try(
            info,
            gpu,
            "temperature",
            "temperature",
            "degC",
            "nvmlDeviceGetTemperature",
            1,
            getattr(nvml, "NVML_TEMPERATURE_GPU", 0),
        )
        self._try(
            info, gpu, "enforced_power_limit", PowerField.POWER_LIMIT, "W", "nvmlDeviceGetEnforcedPowerLimit", 1e3
        )
        self._try(info, gpu, "utilization_gpu", "utilization", "%", "nvmlDeviceGetUtilizationRates", 1, part="gpu")

    def _try(
        self,
        info: p.SensorInfo,
        gpu: _Gpu,
        name: str,
        field: str,
        unit: str,
        function: str,
        divisor: float,
        *arguments: Any,
        part: str | None = None,
    ) -> None:
        """Add a reading that has a call of its own, if the GPU answers it."""

        def read() -> float:
            value = self._call(function, gpu.handle, *arguments)
            return float(value if part is None else getattr(value, part)) / divisor

        try:
            read()
        except (p.FieldUnsupportedError, p.SensorPermissionError) as error:
            info.refusals.append(_refusal(gpu.uuid, name, error))
            return
        except p.SensorError:
            pass
        slow = field not in p.ENERGETIC
        gpu.calls.append((self._enter(gpu, DeviceKind.GPU, name, field, unit, slow=slow), read, slow))

    def _field_values(self, gpu: _Gpu, fields: Sequence[_Field]) -> list[float | p.SensorError]:
        """Return the value of each field in W or J, or its error."""
        values = self._call("nvmlDeviceGetFieldValues", gpu.handle, [(f.id, f.scope) for f in fields])
        return [self._field_value(value) for value in values]

    def _field_value(self, value: Any) -> float | p.SensorError:
        if value.nvmlReturn != 0:
            return self._error(value.nvmlReturn)
        if not 0 <= value.valueType < len(_MEMBERS):
            return p.FieldError(f"NVML gives a value of the unknown type {value.valueType}", Flag.VALUE_NOT_NUMERIC)
        return float(getattr(value.value, _MEMBERS[value.valueType])) / 1e3

    def poll(self, *, slow: bool) -> list[p.Reading]:
        """See ``Sensor.poll``."""
        readings: list[p.Reading] = []
        for gpu in self._gpus:
            if not gpu.lost:
                self._poll_gpu(gpu, readings, slow=slow)
        if all(gpu.lost for gpu in self._gpus) and not readings:
            raise p.SensorLostError("every GPU is lost")
        return readings

    def _poll_gpu(self, gpu: _Gpu, readings: list[p.Reading], *, slow: bool) -> None:
        if gpu.fields:
            before = time.monotonic_ns()
            try:
                answers = self._field_values(gpu, [field for _, field in gpu.fields])
            except p.SensorError as error:
                answers = [error] * len(gpu.fields)
            at = (before + time.monotonic_ns()) // 2
            for (number, field), answer in zip(gpu.fields, answers, strict=True):
                readings.append(_reading(number, at, answer, field.unit))
                gpu.lost = gpu.lost or isinstance(answer, p.SensorLostError)
        for number, read, is_slow in gpu.calls:
            if gpu.lost or (is_slow and not slow):
                continue
            before = time.monotonic_ns()
            said: float | p.SensorError
            try:
                said = read()
            except p.SensorError as error:
                said = error
            at = (before + time.monotonic_ns()) // 2
            readings.append(_reading(number, at, said, self._series[number].unit))
            gpu.lost = gpu.lost or isinstance(said, p.SensorLostError)

    def close(self) -> None:
        """See ``Sensor.close``."""
        if self._nvml is not None:
            self._fact("nvmlShutdown")
        self._nvml, self._gpus = None, []


def _reading(number: int, at: int, answer: float | p.SensorError, unit: str) -> p.Reading:
    if isinstance(answer, p.SensorError):
        return number, at, None, answer.flag if isinstance(answer, p.FieldError) else Flag.NOT_AVAILABLE
    if answer < 0 and unit in ("W", "J"):
        return number, at, None, Flag.NEGATIVE_POWER if unit == "W" else Flag.NEGATIVE_ENERGY
    return number, at, answer, None


def _refusal(uuid: str, name: str, error: p.SensorError) -> p.Refusal:
    kind = "permission" if isinstance(error, p.SensorPermissionError) else "unsupported"
    return p.Refusal(uuid, name, error.reason, error.remedy, kind)
