"""Sensors without hardware, against stand-ins that answer and fail the way the libraries do."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.powercap import RANGE_UJ, TREE, powercap

from magneton.collectors.sensors import SensorInfo, SensorLostError, SensorPermissionError, SensorUnavailableError
from magneton.collectors.sensors.amd import AmdSmiSensor
from magneton.collectors.sensors.nvml import NvmlSensor
from magneton.collectors.sensors.rapl import RaplSensor
from magneton.collectors.sensors.visible import select_visible

FAKES = Path(__file__).resolve().parents[3] / "benchmarks" / "fakes"
A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000001", "GPU-bbbbbbbb-0000-0000-0000-000000000002"


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(FAKES))
    yield
    for name in [n for n in sys.modules if n.split(".")[0] in ("pynvml", "amdsmi")]:
        del sys.modules[name]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``nvml(gpu, gpu, ..., init=...)`` sets the machine up."""

    def set_up(*gpus: dict[str, Any], **more: Any) -> None:
        state = {"gpus": [{"uuid": A, "mig": False} | gpu for gpu in gpus], **more}
        monkeypatch.setenv("MAGNETON_FAKE_NVML", json.dumps(state))

    return set_up


@pytest.fixture
def amd(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_up(*gpus: dict[str, Any], **more: Any) -> None:
        state = {"gpus": [{"uuid": "ff-0"} | gpu for gpu in gpus], **more}
        monkeypatch.setenv("MAGNETON_FAKE_AMDSMI", json.dumps(state))

    return set_up


def values(info: SensorInfo, readings: Any) -> dict[tuple[str, str | None, str], float | None]:
    return {
        (info.series[n].device_kind, info.series[n].device_id, info.series[n].name): value
        for n, _, value, _ in readings
    }


def refused(info: SensorInfo) -> dict[tuple[str | None, str | None], str]:
    return {(r.device_id, r.name): r.kind for r in info.refusals}


def test_counter_instant_and_average_are_readings_of_their_own_in_joules_and_watts(nvml):
    nvml({"idle_w": 100, "busy_w": 100})
    sensor = NvmlSensor({})
    info = sensor.open()
    found = {s.name: (s.field, s.unit) for s in info.series}
    assert found["total_energy_consumption"] == ("energy_counter", "J")
    assert found["power_instant"] == ("power_instant", "W")
    assert found["power_average"] == ("power_average", "W")
    assert found["power_usage"] == ("power", "W")
    before, readings = time.monotonic_ns(), sensor.poll(slow=True)
    read = values(info, readings)
    assert read["gpu", A, "power_instant"] == pytest.approx(100)
    assert read["gpu", A, "total_energy_consumption"] == pytest.approx(100 * time.monotonic(), abs=3)
    assert (read["gpu", A, "clock_sm"], read["gpu", A, "temperature"], read["gpu", A, "utilization_gpu"]) == (
        1980,
        41,
        50,
    )
    assert read["gpu", A, "enforced_power_limit"] == 700
    assert all(before <= at <= time.monotonic_ns() for _, at, _, _ in readings)
    assert {s.name for s in info.series if not s.slow} == {info.series[n].name for n, *_ in sensor.poll(slow=False)}, (
        "what gives no energy is read less often"
    )
    sensor.close()
    assert info.facts["physical"] == [[0, A]]


def test_a_field_that_is_not_there_is_an_error_of_the_field(nvml):
    nvml({"fields": {"186": "NOT_SUPPORTED"}, "calls": {"nvmlDeviceGetUtilizationRates": "NOT_SUPPORTED"}})
    info = NvmlSensor({}).open()
    names = {s.name for s in info.series}
    assert "power_instant" not in names and "power_average" in names and "utilization_gpu" not in names
    assert refused(info)[A, "power_instant"] == "unsupported"
    assert refused(info)[A, "utilization_gpu"] == "unsupported"
    assert info.energetic


def test_a_field_that_may_not_be_read_is_refused_as_such(nvml):
    nvml({"calls": {"nvmlDeviceGetPowerUsage": "NO_PERMISSION"}})
    info = NvmlSensor({}).open()
    (refusal,) = [r for r in info.refusals if r.name == "power_usage"]
    assert refusal.kind == "permission" and refusal.remedy


def test_an_old_driver_without_fields_still_gives_energy_and_power(nvml):
    nvml({}, no_symbol=["nvmlDeviceGetFieldValues", "nvmlDeviceGetUtilizationRates"])
    info = NvmlSensor({}).open()
    assert {"total_energy_consumption", "power_usage"} <= {s.name for s in info.series}
    assert "power_instant" not in {s.name for s in info.series}


def test_a_field_that_failed_only_now_is_null_with_a_reason_and_asked_again(nvml):
    nvml({"fields": {"83": "UNKNOWN"}})
    sensor = NvmlSensor({})
    info = sensor.open()
    number = next(i for i, s in enumerate(info.series) if s.name == "total_energy_consumption")
    assert [(v, why) for n, _, v, why in sensor.poll(slow=False) if n == number] == [(None, "not_available")]
    nvml({})
    sensor._gpus[0].handle.gpu["fields"] = {}
    assert [why for n, _, v, why in sensor.poll(slow=False) if n == number] == [None]


def test_the_counter_stands_still_over_short_windows_and_is_kept(nvml):
    nvml({"counter_ms": 10_000})
    sensor = NvmlSensor({})
    info = sensor.open()
    number = next(i for i, s in enumerate(info.series) if s.field == "energy_counter")
    read = [v for _ in range(3) for n, _, v, _ in sensor.poll(slow=False) if n == number]
    assert len(read) == 3 and len(set(read)) == 1


def test_a_lost_gpu_ends_its_own_series_and_no_other(nvml):
    nvml({"lost_after_s": 0.2}, {"uuid": B})
    sensor = NvmlSensor({})
    info = sensor.open()
    assert all(v is not None for v in values(info, sensor.poll(slow=False)).values())
    time.sleep(0.25)
    lost = {k: v for k, v in values(info, sensor.poll(slow=False)).items() if k[1] == A}
    assert lost and set(lost.values()) == {None}
    assert {k[1] for k in values(info, sensor.poll(slow=False))} == {B}


def test_when_every_gpu_is_lost_the_sensor_says_so(nvml):
    nvml({"lost_after_s": 0.1})
    sensor = NvmlSensor({})
    sensor.open()
    time.sleep(0.15)
    sensor.poll(slow=False)
    with pytest.raises(SensorLostError):
        sensor.poll(slow=False)


@pytest.mark.parametrize(
    ("init", "error", "remedy"),
    [
        ("LIBRARY_NOT_FOUND", SensorUnavailableError, "driver"),
        ("DRIVER_NOT_LOADED", SensorUnavailableError, "driver"),
        ("LIB_RM_VERSION_MISMATCH", SensorUnavailableError, "restart"),
        ("NO_PERMISSION", SensorPermissionError, "user"),
    ],
)
def test_what_keeps_nvml_from_starting_is_said_with_its_remedy(nvml, init, error, remedy):
    nvml(init=init)
    with pytest.raises(error) as raised:
        NvmlSensor({}).open()
    assert init in str(raised.value) and remedy in raised.value.remedy


def test_without_nvidia_ml_py_the_sensor_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(SensorUnavailableError, match=r"magneton\[nvidia\]"):
        NvmlSensor({}).open()


def test_no_gpu_is_no_sensor(nvml):
    nvml()
    with pytest.raises(SensorUnavailableError, match="no GPU"):
        NvmlSensor({}).open()


def test_mig_and_module_are_flagged(nvml):
    nvml({"mig": True, "mig_uuids": ["MIG-1"], "module": True})
    info = NvmlSensor({"CUDA_VISIBLE_DEVICES": "MIG-1"}).open()
    assert info.devices[0]["mig"]
    assert all("mig" in s.labels for s in info.series)
    module = [s for s in info.series if s.device_kind == "module"]
    assert {s.labels["scope"] for s in module} == {"module"}
    assert {s.field for s in module} == {"power_instant", "power_average"}


def test_only_visible_gpus_are_read(nvml):
    nvml({}, {"uuid": B})
    for entries, ids in (("1", {B}), (B, {B}), ("GPU-bbbb,0", {A, B}), (f"{A},7", {A})):
        info = NvmlSensor({"CUDA_VISIBLE_DEVICES": entries}).open()
        assert {s.device_id for s in info.series} == ids, entries
    with pytest.raises(SensorUnavailableError):
        NvmlSensor({"CUDA_VISIBLE_DEVICES": ""}).open()


def test_numbers_in_an_unknown_order_read_every_gpu_and_say_so(nvml):
    nvml({"name": "H200"}, {"uuid": B, "name": "T4"})
    info = NvmlSensor({"CUDA_VISIBLE_DEVICES": "1"}).open()
    assert {s.device_id for s in info.series} == {A, B}
    assert info.warnings == ["device_order_assumed"]
    sure = NvmlSensor({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}).open()
    assert {s.device_id for s in sure.series} == {B}


def test_an_old_mig_name_carries_its_gpu():
    assert select_visible([A], f"MIG-{A}/1/0", sure_of_order=True).ids == [A]
    assert select_visible([A], "MIG-GPU-x/1/0", sure_of_order=True).warnings == ["visible_devices_invalid"]


def test_the_stand_in_is_like_nvidia_ml_py(monkeypatch):
    """Codes, classes, signatures and structures are those of the installed library, where there is one."""
    try:
        file = next(f for f in importlib.metadata.files("nvidia-ml-py") or () if f.name == "pynvml.py")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("nvidia-ml-py is not installed")
    spec = importlib.util.spec_from_file_location("real_pynvml", file.locate())
    assert spec and spec.loader
    real = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, real)
    spec.loader.exec_module(real)
    fake = importlib.import_module("pynvml")
    for name in dir(fake):
        if name.startswith("NVML_"):
            assert getattr(real, name) == getattr(fake, name), name
        elif name.startswith("nvml"):
            wanted, given = (list(inspect.signature(getattr(m, name)).parameters) for m in (real, fake))
            assert len(wanted) == len(given) or "args" in wanted, name
        elif name.startswith("c_"):
            assert [n for n, *_ in getattr(real, name)._fields_] == [n for n, *_ in getattr(fake, name)._fields_], name
        elif name.startswith("NVMLError_"):
            made = getattr(real, name)()
            assert isinstance(fake.NVMLError(made.value), getattr(fake, name)), name
            assert type(real.NVMLError(made.value)).__name__ == name


def test_amd_energy_is_ticks_times_resolution(amd):
    amd({"ticks": 2_000_000, "resolution": 15.259, "current_w": 300, "average_w": None})
    sensor = AmdSmiSensor()
    info = sensor.open()
    read = values(info, sensor.poll(slow=True))
    assert read["gpu", "ff-0", "energy_count"] == pytest.approx(30.518)
    assert read["gpu", "ff-0", "current_socket_power"] == 300
    assert read["gpu", "ff-0", "power_cap"] == 750
    assert read["gpu", "ff-0", "clock_graphics"] == 2100 and read["gpu", "ff-0", "temperature_hotspot"] == 52
    fields = {s.name: s.field for s in info.series}
    assert fields["current_socket_power"] == "power_instant"
    assert "average_socket_power" not in fields, "N/A on this chip"
    assert "socket_power" not in fields, "it says the same as the current power"
    sensor.close()


def test_amd_plain_power_is_used_where_nothing_better_is_there(amd):
    amd({"socket_w": 210, "energy_key": "power", "ticks": 10, "resolution": 100})
    sensor = AmdSmiSensor()
    info = sensor.open()
    read = values(info, sensor.poll(slow=False))
    assert read["gpu", "ff-0", "socket_power"] == 210
    assert read["gpu", "ff-0", "energy_count"] == pytest.approx(1e-3)


def test_amd_errors_belong_to_their_field_or_their_gpu(amd):
    amd({"current_w": 1, "calls": {"amdsmi_get_energy_count": 2, "amdsmi_get_temp_metric": 10}}, {"uuid": "ff-1"})
    info = AmdSmiSensor().open()
    assert refused(info)["ff-0", "energy_count"] == "unsupported"
    assert refused(info)["ff-0", "temperature_hotspot"] == "permission"
    assert ("gpu", "ff-1") in {(s.device_kind, s.device_id) for s in info.series}
    amd(init=34)
    with pytest.raises(SensorUnavailableError, match="DRIVER_NOT_LOADED"):
        AmdSmiSensor().open()


def test_an_amd_gpu_that_goes_is_null_once(amd):
    amd({"current_w": 1}, {"uuid": "ff-1", "current_w": 2})
    sensor = AmdSmiSensor()
    info = sensor.open()
    amd({"current_w": 1}, {"uuid": "ff-1", "current_w": 2}, lost=["ff-0"])
    lost = {k: v for k, v in values(info, sensor.poll(slow=False)).items() if k[1] == "ff-0"}
    assert lost and set(lost.values()) == {None}
    assert {k[1] for k in values(info, sensor.poll(slow=False))} == {"ff-1"}
    amd({"current_w": 1}, lost=["ff-0", "ff-1"])
    sensor.poll(slow=False)
    with pytest.raises(SensorLostError):
        sensor.poll(slow=False)


def test_amdsmi_without_its_library_writes_nothing_to_stdout(amd, capsys):
    amd(library=False)
    with pytest.raises(SensorUnavailableError, match="libamd_smi"):
        AmdSmiSensor().open()
    assert capsys.readouterr().out == ""


def test_packages_and_memory_once_and_the_platform_apart(tmp_path):
    sensor = RaplSensor(powercap(tmp_path / "powercap"))
    info = sensor.open()
    assert [(s.device_kind, s.device_id) for s in info.series] == [
        ("cpu", "package-0"),
        ("dram", "package-0/dram"),
        ("cpu", "package-1"),
        ("dram", "package-1/dram"),
        ("psys", "psys"),
    ]
    assert {r.device_id: r.kind for r in info.refusals} == {
        "package-0 (mmio)": "left_out",
        "package-0/core": "left_out",
        "package-0/uncore": "left_out",
    }
    assert float(info.series[0].labels["range_j"]) == RANGE_UJ / 1e6
    assert info.series[4].labels["contains"] == "cpu"
    zone = tmp_path / "powercap" / "intel-rapl:0" / "energy_uj"
    assert values(info, sensor.poll(slow=False))["cpu", "package-0", "energy_uj"] == 2.0
    zone.write_text(f"{RANGE_UJ}\n")
    first = values(info, sensor.poll(slow=False))["cpu", "package-0", "energy_uj"]
    zone.write_text("12\n")  # it wrapped: kept as it is, the range says where
    assert (first, values(info, sensor.poll(slow=False))["cpu", "package-0", "energy_uj"]) == (RANGE_UJ / 1e6, 12e-6)
    zone.write_text("")
    assert [why for n, _, v, why in sensor.poll(slow=False) if n == 0] == ["value_not_numeric"]
    sensor.close()


def test_counters_only_root_may_read_are_refused_with_the_remedy(tmp_path, monkeypatch):
    root = powercap(tmp_path / "powercap")
    real = os.open

    def guarded(path: Any, *arguments: Any, **more: Any) -> int:
        if str(path).endswith("energy_uj"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **more)

    monkeypatch.setattr(os, "open", guarded)
    with pytest.raises(SensorPermissionError) as raised:
        RaplSensor(root).open()
    assert "chmod" in raised.value.remedy and "root" in str(raised.value)


def test_no_powercap_and_no_zones_are_no_sensor(tmp_path):
    with pytest.raises(SensorUnavailableError):
        RaplSensor(tmp_path / "none").open()
    with pytest.raises(SensorUnavailableError, match="no RAPL zones"):
        RaplSensor(powercap(tmp_path / "powercap", {"intel-rapl-mmio:0": TREE["intel-rapl:0"]})).open()
