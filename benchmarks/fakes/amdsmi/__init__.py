"""A stand-in for ``amdsmi``: the functions, results and errors of AMD's binding, on machines without an AMD GPU.

``MAGNETON_FAKE_AMDSMI`` holds JSON: ``{"library": false}`` fails the way the binding does without ``libamd_smi.so``,
``{"init": 34}`` fails with that status, ``{"gpus": [{"uuid": "...", "resolution": 15.259, "ticks": 1000, "current_w": 300,
"average_w": null, "calls": {"amdsmi_get_temp_metric": 2}}], "lost": ["uuid"]}`` lists GPUs; NULL readings come back as ``N/A``.
"""

from __future__ import annotations

import json
import os
import sys
from enum import IntEnum

SIMULATED = True
_STATUS = {1: "INVAL", 2: "NOT_SUPPORTED", 3: "NOT_YET_IMPLEMENTED", 8: "RETRY", 10: "NO_PERM", 31: "NOT_FOUND"}
_STATUS |= {32: "NOT_INIT", 34: "DRIVER_NOT_LOADED", 30: "BUSY"}


def _state():
    return json.loads(os.environ.get("MAGNETON_FAKE_AMDSMI", "{}"))


if _state().get("library") is False:
    sys.stdout.write("Unable to find libamd_smi.so library try installing amd-smi-lib from your package manager\n")
    raise KeyError("libamd_smi.so")


class AmdSmiException(Exception):
    """Base of the binding's errors."""


class AmdSmiLibraryException(AmdSmiException):
    """The library returned a status."""

    def __init__(self, err_code):
        super().__init__(abs(err_code))
        self.err_code = abs(err_code)
        self.err_info = f"AMDSMI_STATUS_{_STATUS.get(self.err_code, 'UNKNOWN_ERROR')} - said by the stand-in"

    def __str__(self):
        return f"Error code:\n\t{self.err_code} | {self.err_info}"

    def get_error_code(self):
        """Return the status."""
        return self.err_code


class AmdSmiParameterException(AmdSmiException):
    """An argument of the wrong type."""

    def __init__(self, received, expected, msg=None):
        super().__init__(msg)
        self.err_code = None
        self.err_msg = msg or f"Invalid parameter:\nActual type: {type(received)}\nExpected type: {expected}"

    def __str__(self):
        return self.err_msg


class AmdSmiInitFlags(IntEnum):
    """What to look for."""

    INIT_AMD_GPUS = 2


class AmdSmiClkType(IntEnum):
    """Clocks."""

    SYS = 0
    GFX = 0
    MEM = 4


class AmdSmiTemperatureType(IntEnum):
    """Places."""

    EDGE = 0
    HOTSPOT = 1


class AmdSmiTemperatureMetric(IntEnum):
    """Kinds of temperature."""

    CURRENT = 0


class _Handle:
    def __init__(self, gpu):
        self.gpu = gpu


def _gpu(handle, function):
    if not isinstance(handle, _Handle):
        raise AmdSmiParameterException(handle, _Handle)
    if handle.gpu["uuid"] in _state().get("lost", ()):
        raise AmdSmiLibraryException(31)
    status = handle.gpu.get("calls", {}).get(function)
    if status:
        raise AmdSmiLibraryException(status)
    return handle.gpu


def _or_na(value):
    return "N/A" if value is None else value


def amdsmi_init(flag=AmdSmiInitFlags.INIT_AMD_GPUS):
    """Begin."""
    if _state().get("init"):
        raise AmdSmiLibraryException(_state()["init"])


def amdsmi_shut_down():
    """End."""


def amdsmi_get_processor_handles():
    """All GPUs."""
    return [_Handle(gpu) for gpu in _state().get("gpus", ())]


def amdsmi_get_gpu_device_uuid(handle):
    """UUID."""
    return _gpu(handle, "amdsmi_get_gpu_device_uuid")["uuid"]


def amdsmi_get_gpu_asic_info(handle):
    """Name and so on."""
    return {"market_name": _gpu(handle, "amdsmi_get_gpu_asic_info").get("name", "Fake MI300X")}


def amdsmi_get_energy_count(handle):
    """Ticks, microjoules per tick, time."""
    gpu = _gpu(handle, "amdsmi_get_energy_count")
    key = gpu.get("energy_key", "energy_accumulator")
    return {key: gpu.get("ticks", 0), "counter_resolution": gpu.get("resolution", 15.259), "timestamp": 0}


def amdsmi_get_power_info(handle):
    """Powers in W, voltages in mV."""
    gpu = _gpu(handle, "amdsmi_get_power_info")
    current, average = gpu.get("current_w"), gpu.get("average_w")
    found = {"current_socket_power": _or_na(current), "average_socket_power": _or_na(average), "gfx_voltage": "N/A"}
    return found | {"socket_power": _or_na(gpu.get("socket_w", current if current is not None else average))}


def amdsmi_get_power_cap_info(handle):
    """Caps in microwatts."""
    _gpu(handle, "amdsmi_get_power_cap_info")
    return {"power_cap": 750_000_000, "default_power_cap": 750_000_000}


def amdsmi_get_clock_info(handle, clock_type):
    """Clock in MHz."""
    _gpu(handle, "amdsmi_get_clock_info")
    if not isinstance(clock_type, AmdSmiClkType):
        raise AmdSmiParameterException(clock_type, AmdSmiClkType)
    return {"clk": 2100, "min_clk": "N/A", "max_clk": 2100}


def amdsmi_get_gpu_activity(handle):
    """Use in percent."""
    _gpu(handle, "amdsmi_get_gpu_activity")
    return {"gfx_activity": 40, "umc_activity": 20, "mm_activity": "N/A"}


def amdsmi_get_temp_metric(handle, sensor_type, metric):
    """Temperature in degrees Celsius."""
    _gpu(handle, "amdsmi_get_temp_metric")
    return 52
