"""The command ``magneton sensors``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.powercap import powercap

from magneton.cli.app import main
from magneton.collectors.sensors.rapl import POWERCAP_VARIABLE
from magneton.collectors.sensors.survey import survey
from magneton.schemas.documents.commands import SensorsDocument
from magneton.schemas.versions.registry import SCHEMA_VERSION

FAKES = Path(__file__).resolve().parents[2] / "benchmarks" / "fakes"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(FAKES))
    for name in ("pynvml", "amdsmi"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    gpu = {
        "uuid": "GPU-1",
        "mig": False,
        "update_ms": 50,
        "counter_ms": 20,
        "period_s": 0.31,
        "fields": {"185": "NOT_SUPPORTED"},
    }
    monkeypatch.setenv("MAGNETON_FAKE_NVML", json.dumps({"gpus": [gpu]}))
    monkeypatch.setenv("MAGNETON_FAKE_AMDSMI", json.dumps({"library": False}))
    monkeypatch.setenv(POWERCAP_VARIABLE, str(powercap(tmp_path / "powercap")))


def call(capfdbinary: Any, *words: str) -> tuple[int, bytes]:
    code = main(["sensors", *words])
    sys.stdout.flush()
    return code, capfdbinary.readouterr().out


def test_json_lists_what_can_be_read_and_why_the_rest_cannot(capfdbinary):
    code, out = call(capfdbinary, "--json", "--watch", "0.5")
    assert code == 0
    document = json.loads(out)
    assert msgspec.convert(document, SensorsDocument).schema_version == SCHEMA_VERSION
    nvml, amd, rapl = document["sensors"]
    assert [s["source"] for s in document["sensors"]] == ["nvml", "amd-smi", "rapl"]
    assert nvml["available"] and rapl["available"] and not amd["available"]
    assert "libamd_smi" in amd["refusals"][0]["reason"] and amd["refusals"][0]["remedy"]
    assert [(r["name"], r["kind"]) for r in nvml["refusals"] if r["name"] == "power_average"] == [
        ("power_average", "unsupported")
    ]
    counter = next(s for s in nvml["series"] if s["field"] == "energy_counter")
    assert counter["update_ms"] == pytest.approx(20, rel=0.4)
    assert nvml["poll_us"] > 0 and nvml["facts"]["driver"]
    assert {s["device_id"] for s in rapl["series"]} == {
        "package-0", "package-0/dram", "package-1", "package-1/dram", "psys"
    }  # fmt: skip


def test_the_table_names_readings_and_refusals(capfdbinary):
    code, out = call(capfdbinary, "--watch", "0")
    text = out.decode()
    assert code == 0 and "power_instant" in text and "libamd_smi" in text and "not read" in text


def test_a_machine_without_sensors_says_so_and_is_no_error(capfdbinary, monkeypatch):
    monkeypatch.setenv("MAGNETON_FAKE_NVML", json.dumps({"init": "LIBRARY_NOT_FOUND"}))
    monkeypatch.setenv(POWERCAP_VARIABLE, "/nonexistent")
    code, out = call(capfdbinary, "--watch", "0")
    assert code == 0 and b"no joules" in out


def test_a_sensor_lost_while_it_is_watched_is_not_available(monkeypatch):
    gpu = {"uuid": "GPU-1", "mig": False, "lost_after_s": 0.05}
    monkeypatch.setenv("MAGNETON_FAKE_NVML", json.dumps({"gpus": [gpu]}))
    (found,) = survey(["nvml"], seconds=0.2)["sensors"]
    assert not found["available"] and "lost" in found["refusals"][-1]["reason"]
