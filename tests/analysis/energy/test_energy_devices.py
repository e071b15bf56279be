"""Which physical GPU is device 0: the visible-devices variables as the runtimes read them."""

from __future__ import annotations

import pytest

from magneton.analysis.energy.measure.devices import map_devices
from magneton.schemas.errors import InsufficientPowerDataError

GPUS = [(0, "GPU-aa1"), (1, "GPU-ab2"), (2, "GPU-b3")]
IDS = [g for _, g in GPUS]


@pytest.mark.parametrize(
    ("env", "ids", "warnings"),
    [
        ({}, IDS, ("device_order_assumed",)),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, IDS, ()),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ["GPU-ab2"], ()),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-aa"}, ["GPU-b3", "GPU-aa1"], ()),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a,1"}, ["GPU-b3"], ("device_order_assumed", "visible_devices_invalid")),
        (
            {"CUDA_VISIBLE_DEVICES": "2,2,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            ["GPU-b3"],
            ("visible_devices_invalid",),
        ),
        (
            {"CUDA_VISIBLE_DEVICES": "2,-1,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            ["GPU-b3"],
            ("visible_devices_invalid",),
        ),
        ({"CUDA_VISIBLE_DEVICES": ""}, [], ()),
        ({"ROCR_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "1"}, ["GPU-ab2"], ()),
    ],
)
def test_visible_devices(env, ids, warnings):
    mapped = map_devices(IDS, physical=GPUS, env=env)
    assert mapped.ids == dict(enumerate(ids)) and mapped.warnings == warnings
    assert set(mapped.excluded) == set(IDS) - set(ids)


def test_devices_without_a_list_of_gpus():
    assert map_devices(["GPU-x"], used=[0]).ids == {0: "GPU-x"}
    assert map_devices(["0", "1"], used=[1]).warnings == ("device_order_assumed",)
    assert map_devices(["2", "3"], used=[2]).ids == {2: "2", 3: "3"}
    assert map_devices(["GPU-x", "GPU-y"], explicit={0: "GPU-y"}, used=[0]).excluded == ("GPU-x",)
    with pytest.raises(InsufficientPowerDataError, match="device 5"):
        map_devices(IDS, physical=GPUS, used=[5])
