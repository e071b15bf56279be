"""What a step of one recording takes, as ``magneton.flows.measure`` returns it."""

from __future__ import annotations

import msgspec

from magneton.schemas.diffdoc import EnergyDoc, Note
from magneton.schemas.versions import SCHEMA_VERSION


class Quantity(msgspec.Struct):
    """A time or an energy of one step: the mean over the steps, NULL where it is unknown.

    ``quantity`` is ``time`` (of kernels, or of operators where nothing ran on a device), ``host_time`` (from the begin of a
    step to its end) or ``energy`` (of the devices of a kind, time between steps included). ``low`` to ``high`` is the 95 %
    interval of the mean, from how much the steps of this recording differ; another run may differ by more. It is NULL with
    fewer than three steps, and for an energy whose steps are too short for the sensor. ``label`` says where an energy comes
    from, ``coverage`` for which share (0 to 1) of the time it is known.
    """

    quantity: str
    unit: str
    value: float | None
    low: float | None
    high: float | None
    n_steps: int
    device_kind: str | None = None
    label: str | None = None
    fields: list[str] = []
    coverage: float | None = None
    simulated: bool = False
    warnings: list[str] = []


class MeasureDocument(msgspec.Struct):
    """The quantities of one step of a recording, and the energy of its devices; ``unit`` is ``step``, ``call`` or ``capture``."""

    run_id: str
    label: str
    tool: str
    rank: int
    unit: str
    on_device: bool
    incomplete: bool
    n_steps_recorded: int
    steps_used: list[str]
    quantities: list[Quantity]
    energy: EnergyDoc | None
    notes: list[Note]
    schema_version: int = SCHEMA_VERSION
