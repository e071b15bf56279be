"""Run single operations of a program many times while sensors are read: time and energy of one call of each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from magneton.analysis.energy.repeats.alone import energies_alone, time_alone
from magneton.analysis.energy.repeats.in_place import RepeatedWindow
from magneton.collectors.attach.repeat_launch import check_sensors
from magneton.collectors.replay.windows import NotRepeatableError, ReplayedCall
from magneton.collectors.sensors import sample
from magneton.collectors.sensors.sampler import POWER_FILE
from magneton.flows.repeat import (
    energy_document,
    refusal_document,
    sensor_of,
    time_document,
    window_documents,
    window_for,
)
from magneton.schemas.documents.repeat import ReplayDocument, ReplayedCallDoc
from magneton.schemas.errors import MagnetonError
from magneton.schemas.tables.parquet import read_table

__all__ = ["measure_replays", "replay_window_s"]

Replays = Callable[[], Sequence[ReplayedCall]]


def replay_window_s(sensors: Sequence[str] | None = None) -> float:
    """Return how long a window must be for the sensors of this machine, s. The sensors are watched for a second.

    Args:
        sensors: names of sensors; None: all there are.

    Raises:
        UsageError: a name that cannot be used here.
    """
    check_sensors(sensors)
    return window_for(*sensor_of(sensors))


def measure_replays(replays: Replays, *, sensors: Sequence[str] | None = None) -> ReplayDocument:
    """Run replays while sensors are read, and return time and energy of one call of each operation.

    Example::

        from magneton.collectors.replay.onnxruntime import replay_nodes

        window_s = replay_window_s()
        measure_replays(lambda: replay_nodes("model.onnx", feeds, select=lambda name, place: name == "MatMul", seconds=window_s))

    Args:
        replays: runs them: ``replay_nodes`` of an ONNX model, ``replay_equations`` of a JAX function or
            ``replay_operations`` of a TensorFlow function (modules ``magneton.collectors.replay.*``), with its arguments.
        sensors: sensors to read; None: all there are.

    Returns:
        The document: for each call its name, place, inputs, windows, time (s) and energy (J) with 95 % intervals, or a
        refusal with its reason. Without a sensor the document has times, and the energies are None.

    Raises:
        UsageError: a name of a sensor that cannot be used here.
        MagnetonError: the program cannot be replayed at all.
    """
    check_sensors(sensors)
    with tempfile.TemporaryDirectory(prefix="magneton-") as folder:
        with sample(Path(folder) / "rank0", sensors) as sampler:
            calls = replays()
        result = sampler.result
        file = next((f for f in result.files if f.name == POWER_FILE), None)
        power = None if file is None else read_table(file, "power")
    entries = [_call(call, power) for call in calls]
    return ReplayDocument(
        simulated=any(e.simulated for c in entries for e in c.energies),
        calls=entries,
        sensors=result.sensors,
        notes=list(result.notes),
    )


def _call(call: ReplayedCall, power: pa.Table | None) -> ReplayedCallDoc:
    found = ReplayedCallDoc(name=call.name, place=call.place, inputs=list(call.inputs))
    try:
        if call.replay is None:
            raise NotRepeatableError(call.refusal or "it was not replayed")
        windows = [RepeatedWindow(w.start_ns, w.end_ns, w.calls, 1) for w in call.replay.windows]
        found.windows, found.copies, found.cold = window_documents(windows), call.replay.copies, call.replay.cold
        time, energies = time_alone(windows), energies_alone(windows, power)
    except MagnetonError as refusal:
        found.refusal = refusal_document(refusal)
        return found
    found.time = time_document(time, 1)
    found.energies = [energy_document(one, 1) for one in energies]
    return found
