"""Replays of any system with sensors beside them: what the document says."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from magneton.collectors.replay.windows import NotRepeatableError, Replay, ReplayedCall, replay_in_turns
from magneton.collectors.sensors.rapl import POWERCAP_VARIABLE
from magneton.flows.replays import measure_replays, replay_window_s
from magneton.schemas.documents.repeat import ReplayDocument, read_replays
from magneton.schemas.errors import UsageError
from magneton.schemas.manifest import encode_json
from magneton.schemas.versions.registry import SCHEMA_VERSION

FAKES = Path(__file__).resolve().parents[2] / "benchmarks" / "fakes"


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine whose only sensor is a stand-in for NVML that always reads 100 W."""
    monkeypatch.syspath_prepend(str(FAKES))
    monkeypatch.setenv("PYTHONPATH", str(FAKES))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setenv(POWERCAP_VARIABLE, str(tmp_path / "none"))
    gpu = {"uuid": "GPU-1", "mig": False, "idle_w": 100, "busy_w": 100, "update_ms": 20, "counter_ms": 10}
    monkeypatch.setenv("MAGNETON_FAKE_NVML", json.dumps({"gpus": [gpu]}))
    monkeypatch.setenv("MAGNETON_FAKE_AMDSMI", json.dumps({"library": False}))


def replays(seconds: float = 0.4, rounds: int = 3) -> list[ReplayedCall]:
    done: Replay = replay_in_turns(
        "pause",
        [partial(time.sleep, 0.002)],
        seconds=seconds,
        rounds=rounds,
        synchronize=id,
        bytes_each=64,
        cold=True,
    )
    return [
        ReplayedCall("pause", "a/pause#0", ("float32[4,4]",), done),
        ReplayedCall("draw", "a/draw#1", (), None, "draw draws random numbers"),
    ]


def document(found: ReplayDocument, folder: Path) -> dict[str, Any]:
    """Return a document as it is in a file, which reads back as it was."""
    file = folder / "replays.json"
    file.write_bytes(encode_json(found))
    assert read_replays(file) == found and found.schema_version == SCHEMA_VERSION
    return json.loads(file.read_text())


@pytest.mark.usefixtures("one_gpu")
def test_energy_of_a_call_is_power_times_its_time(tmp_path: Path) -> None:
    found = document(measure_replays(replays), tmp_path)
    pause, draw = found["calls"]
    assert found["format"] == "magneton-replays" and found["simulated"]
    assert (pause["name"], pause["place"], pause["inputs"]) == ("pause", "a/pause#0", ["float32[4,4]"])
    assert (pause["copies"], pause["cold"]) == (1, True) and len(pause["windows"]) == 3
    assert 0.002 <= pause["time"]["value_s"] < 0.02
    (energy,) = pause["energies"]
    assert (energy["device_id"], energy["label"], energy["simulated"]) == ("GPU-1", "replayed", True)
    assert energy["value_j"] == pytest.approx(100 * pause["time"]["value_s"], rel=0.1)
    assert energy["low_j"] < energy["value_j"] < energy["high_j"]
    assert draw["refusal"] == {"code": "NotRepeatableError", "reason": "draw draws random numbers"}
    assert draw["time"] is None and draw["energies"] == [] and draw["windows"] == []


def test_without_a_sensor_there_is_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(POWERCAP_VARIABLE, str(tmp_path / "none"))
    found = document(measure_replays(partial(replays, 0.01), sensors=[]), tmp_path)
    pause = found["calls"][0]
    assert pause["time"]["value_s"] >= 0.002 and not found["simulated"]
    assert pause["energies"][0]["value_j"] is None and "no sensor" in pause["energies"][0]["refusal"]["reason"]
    assert replay_window_s([]) == 0.5


def test_one_window_says_nothing_and_a_meter_is_refused(tmp_path: Path) -> None:
    pause = document(measure_replays(partial(replays, 0.01, 1), sensors=[]), tmp_path)["calls"][0]
    assert pause["refusal"]["code"] == "InsufficientRepeatsError" and pause["time"] is None
    with pytest.raises(UsageError, match="meter"):
        measure_replays(replays, sensors=["file:x.csv"])

    def broken() -> list[ReplayedCall]:
        raise NotRepeatableError("nothing was selected")

    with pytest.raises(NotRepeatableError, match="nothing was selected"):
        measure_replays(broken, sensors=[])
