"""Sensors of power and energy behind one protocol, and ``sample``, which reads them while a program runs."""

from magneton.collectors.sensors.protocol import (
    FieldError,
    FieldUnsupportedError,
    Reading,
    Refusal,
    Sensor,
    SensorError,
    SensorInfo,
    SensorLostError,
    SensorPermissionError,
    SensorUnavailableError,
    Series,
)
from magneton.collectors.sensors.sampler import Sampled, Sampler, anchors_now, sample

__all__ = [
    "FieldError",
    "FieldUnsupportedError",
    "Reading",
    "Refusal",
    "Sampled",
    "Sampler",
    "Sensor",
    "SensorError",
    "SensorInfo",
    "SensorLostError",
    "SensorPermissionError",
    "SensorUnavailableError",
    "Series",
    "anchors_now",
    "sample",
]
