"""What ``magneton energy`` says of one recording: joules of its devices with intervals and provenance."""

from __future__ import annotations

import msgspec

from magneton.schemas.documents.diff import Note
from magneton.schemas.versions.registry import SCHEMA_VERSION


class EnergyRow(msgspec.Struct):
    """Energy of one device over a kind of window: NULL where it is unknown.

    ``what`` is ``run`` (from the first step to the end of the last), ``step``, ``phase``, ``token``, ``request`` or ``rest`` (outside the
    run, per second). ``energy_j`` is the mean of one of the ``count`` windows. ``low_j`` to ``high_j`` is its 95 % interval: readings, sensor
    model, gain and offset. ``label`` is ``measured`` where readings cover the window and fit the sensor model, else ``apportioned``;
    ``warnings`` say why.
    """

    device: str
    what: str
    name: str | None
    count: float
    seconds: float
    energy_j: float | None
    low_j: float | None
    high_j: float | None
    label: str | None
    warnings: list[str]


class SensorDoc(msgspec.Struct):
    """What was taken for the sensor of a device.

    ``scale_from`` is ``table`` (known sensors), or where a calibration is from. ``gain`` is reading per true watt; ``chi2`` tells how well
    readings follow the model (about 1 or less where they do).
    """

    device: str
    device_name: str | None
    field: str
    family: str
    confidence: str
    gain: float
    gain_sd: float
    offset_w: float
    offset_sd_w: float
    scale_from: str
    response: str | None
    chi2: float | None
    simulated: bool
    sources: list[str]


class EnergyDocument(msgspec.Struct):
    """The energy of a recording's devices: rows by device and window, and the sensors behind them."""

    run_id: str
    label: str
    tool: str
    rows: list[EnergyRow]
    sensors: list[SensorDoc]
    notes: list[Note]
    schema_version: int = SCHEMA_VERSION


class CalibrationDocument(msgspec.Struct, forbid_unknown_fields=True):
    """Gain and offset of one sensor beside a meter: what ``--calibration`` reads.

    A reading is ``offset_w + gain * true power``. ``source`` says which meter and recording it is from.
    """

    gain: float
    gain_sd: float
    offset_w: float
    offset_sd_w: float
    correlation: float
    source: str
    device_name: str | None = None
    field: str | None = None
    schema_version: int = SCHEMA_VERSION
