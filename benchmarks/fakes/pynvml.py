"""A stand-in for ``pynvml`` (nvidia-ml-py) on machines without a GPU: the same functions, structures and errors.

Put this directory first on ``sys.path`` (``PYTHONPATH`` for other processes). ``MAGNETON_FAKE_NVML`` holds JSON::

    {"init": "LIBRARY_NOT_FOUND", "no_symbol": ["nvmlDeviceGetFieldValues"],
     "gpus": [{"uuid": "GPU-...", "name": "...", "mig": true, "idle_w": 80, "busy_w": 400, "period_s": 0.2, "duty": 0.5,
               "counter_ms": 20, "update_ms": 100, "instant_ms": 25, "average_ms": 1000, "module": true,
               "fields": {"186": "NOT_SUPPORTED"}, "calls": {"nvmlDeviceGetPowerUsage": "NO_PERMISSION"},
               "lost_after_s": 1.5}]}

Power is a square wave of the monotonic clock, so what a sensor shows is known exactly: the counter is its integral in whole
mJ at the last multiple of ``counter_ms``, instant and average are boxcars at the last multiple of ``update_ms``. Everything
recorded with it is simulated.
"""

from __future__ import annotations

import ctypes
import json
import os
import string
import time

SIMULATED = True
NVML_SUCCESS = 0
_ERRORS = {
    "UNINITIALIZED": (1, "Uninitialized"),
    "INVALID_ARGUMENT": (2, "Invalid Argument"),
    "NOT_SUPPORTED": (3, "Not Supported"),
    "NO_PERMISSION": (4, "Insufficient Permissions"),
    "ALREADY_INITIALIZED": (5, "Already Initialized"),
    "NOT_FOUND": (6, "Not Found"),
    "INSUFFICIENT_SIZE": (7, "Insufficient Size"),
    "DRIVER_NOT_LOADED": (9, "Driver Not Loaded"),
    "TIMEOUT": (10, "Timeout"),
    "LIBRARY_NOT_FOUND": (12, "NVML Shared Library Not Found"),
    "FUNCTION_NOT_FOUND": (13, "Function Not Found"),
    "GPU_IS_LOST": (15, "GPU is lost"),
    "RESET_REQUIRED": (16, "GPU requires restart"),
    "LIB_RM_VERSION_MISMATCH": (18, "RM has detected an NVML/RM version mismatch."),
    "NO_DATA": (21, "No data"),
    "UNKNOWN": (999, "Unknown Error"),
}
NVML_VALUE_TYPE_UNSIGNED_INT, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 1, 3
NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION = 83
NVML_FI_DEV_POWER_AVERAGE, NVML_FI_DEV_POWER_INSTANT = 185, 186
NVML_POWER_SCOPE_GPU, NVML_POWER_SCOPE_MODULE = 0, 1
NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2
NVML_TEMPERATURE_GPU = 0
NVML_DEVICE_MIG_DISABLE, NVML_DEVICE_MIG_ENABLE = 0, 1


class NVMLError(Exception):
    """Made with a code, it becomes the class of that code."""

    _valClassMapping: dict[int, type] = {}

    def __new__(cls, value):
        chosen = NVMLError._valClassMapping.get(value, cls) if cls is NVMLError else cls
        made = Exception.__new__(chosen)
        made.value = value
        return made

    def __str__(self):
        return next(
            (text for code, text in _ERRORS.values() if code == self.value), f"NVML Error with code {self.value}"
        )

    def __eq__(self, other):
        return self.value == other.value

    __hash__ = None


def _class_of(code):
    def new(cls, *args):
        return NVMLError.__new__(cls, code)

    return new


for _name, (_code, _) in _ERRORS.items():
    globals()[f"NVML_ERROR_{_name}"] = _code
    _class = "NVMLError_" + string.capwords(_name, "_").replace("_", "")
    globals()[_class] = type(_class, (NVMLError,), {"__new__": _class_of(_code), "__module__": __name__})
    NVMLError._valClassMapping[_code] = globals()[_class]


class c_nvmlValue_t(ctypes.Union):
    """The union a field's number lies in."""

    _fields_ = [
        ("dVal", ctypes.c_double),
        ("uiVal", ctypes.c_uint),
        ("ulVal", ctypes.c_ulong),
        ("ullVal", ctypes.c_ulonglong),
        ("sllVal", ctypes.c_longlong),
        ("siVal", ctypes.c_int),
        ("usVal", ctypes.c_ushort),
    ]


class c_nvmlFieldValue_t(ctypes.Structure):
    """One field's answer."""

    _fields_ = [
        ("fieldId", ctypes.c_uint32),
        ("scopeId", ctypes.c_uint32),
        ("timestamp", ctypes.c_int64),
        ("latencyUsec", ctypes.c_int64),
        ("valueType", ctypes.c_uint),
        ("nvmlReturn", ctypes.c_uint),
        ("value", c_nvmlValue_t),
    ]


class c_nvmlUtilization_t(ctypes.Structure):
    """Use of the GPU and its memory, percent."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Handle:
    def __init__(self, gpu, *, part=False):
        self.gpu, self.part = gpu, part


_refs = 0
_began = 0.0


def _state():
    return json.loads(os.environ.get("MAGNETON_FAKE_NVML", "{}"))


def _raise(name):
    raise NVMLError(_ERRORS[name][0])


def _enter(function, handle=None):
    """What the library does on every call: is it loaded, has the driver the function, does the GPU answer."""
    if _refs == 0:
        _raise("UNINITIALIZED")
    if function in _state().get("no_symbol", ()):
        _raise("FUNCTION_NOT_FOUND")
    if handle is None:
        return
    if not isinstance(handle, _Handle):
        _raise("INVALID_ARGUMENT")
    if _lost(handle.gpu):
        _raise("GPU_IS_LOST")
    error = handle.gpu.get("calls", {}).get(function)
    if error:
        _raise(error)


def _lost(gpu):
    after = gpu.get("lost_after_s")
    return after is not None and time.monotonic() - _began >= after


def _integral_j(gpu, t):
    """Joules from the clock's zero to ``t``: a square wave, busy in the first part of every period."""
    idle, busy = gpu.get("idle_w", 80.0), gpu.get("busy_w", 400.0)
    period, duty = gpu.get("period_s", 0.2), gpu.get("duty", 0.5)
    whole, rest = divmod(t, period)
    return idle * t + (busy - idle) * (whole * period * duty + min(rest, period * duty))


def _boxcar_w(gpu, window_s):
    step = gpu.get("update_ms", 100) / 1e3
    t = time.monotonic() // step * step
    return (_integral_j(gpu, t) - _integral_j(gpu, t - window_s)) / window_s


def _counter_mj(gpu):
    step = gpu.get("counter_ms", 20) / 1e3
    return int(_integral_j(gpu, time.monotonic() // step * step) * 1e3)


def nvmlInit():
    """Load the library."""
    global _refs, _began
    error = _state().get("init")
    if error:
        _raise(error)
    if _refs == 0:
        _began = time.monotonic()
    _refs += 1


def nvmlShutdown():
    """Let go of the library."""
    global _refs
    _enter("nvmlShutdown")
    _refs -= 1


def nvmlSystemGetDriverVersion():
    """Driver's version."""
    _enter("nvmlSystemGetDriverVersion")
    return "580.0-fake"


def nvmlSystemGetNVMLVersion():
    """Library's version."""
    _enter("nvmlSystemGetNVMLVersion")
    return "13.580.0-fake"


def nvmlDeviceGetCount():
    """Number of GPUs."""
    _enter("nvmlDeviceGetCount")
    return len(_state().get("gpus", ()))


def nvmlDeviceGetHandleByIndex(index):
    """GPU by number."""
    _enter("nvmlDeviceGetHandleByIndex")
    gpus = _state().get("gpus", ())
    if not 0 <= index < len(gpus):
        _raise("INVALID_ARGUMENT")
    return _Handle(gpus[index])


def nvmlDeviceGetHandleByUUID(uuid):
    """GPU or MIG device by UUID."""
    _enter("nvmlDeviceGetHandleByUUID")
    for gpu in _state().get("gpus", ()):
        if gpu["uuid"] == uuid:
            return _Handle(gpu)
        if uuid in gpu.get("mig_uuids", ()):
            return _Handle(gpu, part=True)
    return _raise("NOT_FOUND")


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle):
    """GPU of a MIG device."""
    _enter("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
    if not handle.part:
        _raise("INVALID_ARGUMENT")
    return _Handle(handle.gpu)


def nvmlDeviceGetUUID(handle):
    """UUID."""
    _enter("nvmlDeviceGetUUID", handle)
    return handle.gpu["uuid"]


def nvmlDeviceGetName(handle):
    """Name."""
    _enter("nvmlDeviceGetName", handle)
    return handle.gpu.get("name", "Fake H200")


def nvmlDeviceGetMigMode(handle):
    """Current and pending mode."""
    _enter("nvmlDeviceGetMigMode", handle)
    mig = handle.gpu.get("mig")
    return _raise("NOT_SUPPORTED") if mig is None else [int(mig), int(mig)]


def nvmlDeviceGetFieldValues(handle, fieldIds):
    """Values of fields; each carries a status of its own."""
    _enter("nvmlDeviceGetFieldValues", handle)
    gpu = handle.gpu
    values = (c_nvmlFieldValue_t * len(fieldIds))()
    for value, wanted in zip(values, fieldIds, strict=True):
        try:
            value.fieldId, value.scopeId = wanted
        except TypeError:
            value.fieldId = wanted
        value.timestamp = time.time_ns() // 1000
        error = gpu.get("fields", {}).get(str(value.fieldId))
        known = value.fieldId in (83, 185, 186)
        if value.scopeId == NVML_POWER_SCOPE_MODULE and not gpu.get("module"):
            error = "NOT_SUPPORTED"
        if error or not known:
            value.nvmlReturn = _ERRORS[error or "INVALID_ARGUMENT"][0]
        elif value.fieldId == NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
            value.valueType, value.value.ullVal = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, _counter_mj(gpu)
        else:
            ms = (
                gpu.get("instant_ms", 25) if value.fieldId == NVML_FI_DEV_POWER_INSTANT else gpu.get("average_ms", 1000)
            )
            extra = 50.0 if value.scopeId == NVML_POWER_SCOPE_MODULE else 0.0
            value.valueType = NVML_VALUE_TYPE_UNSIGNED_INT
            value.value.uiVal = round((_boxcar_w(gpu, ms / 1e3) + extra) * 1e3)
    return values


def nvmlDeviceGetTotalEnergyConsumption(handle):
    """Energy since the driver was loaded, mJ."""
    _enter("nvmlDeviceGetTotalEnergyConsumption", handle)
    return _counter_mj(handle.gpu)


def nvmlDeviceGetPowerUsage(handle):
    """Power, mW."""
    _enter("nvmlDeviceGetPowerUsage", handle)
    return round(_boxcar_w(handle.gpu, handle.gpu.get("average_ms", 1000) / 1e3) * 1e3)


def nvmlDeviceGetEnforcedPowerLimit(handle):
    """Power limit, mW."""
    _enter("nvmlDeviceGetEnforcedPowerLimit", handle)
    return 700_000


def nvmlDeviceGetClockInfo(handle, type):
    """Clock, MHz."""
    _enter("nvmlDeviceGetClockInfo", handle)
    return {NVML_CLOCK_GRAPHICS: 1980, NVML_CLOCK_SM: 1980, NVML_CLOCK_MEM: 3201}[type]


def nvmlDeviceGetTemperature(handle, sensor):
    """Temperature, degrees Celsius."""
    _enter("nvmlDeviceGetTemperature", handle)
    return 41


def nvmlDeviceGetUtilizationRates(handle):
    """Use, percent."""
    _enter("nvmlDeviceGetUtilizationRates", handle)
    return c_nvmlUtilization_t(50, 20)
