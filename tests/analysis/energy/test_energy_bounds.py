"""Upper bounds of the energy of several kernels: what they share is not counted twice."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from magneton.analysis.align.tree import Work
from magneton.analysis.energy.attribute import attribute
from magneton.analysis.energy.measure.result import Window
from magneton.schemas.tables.run import RUN_TABLES

MS = 1_000_000


def work(start: float, end: float, energy: float = 1.0) -> Work:
    return Work(n_kernels=1, n_measured=1, energy_j=energy, energy_high_j=end - start, stretches=[(start, end, 1.0)])


def test_kernels_of_one_stretch_share_its_energy() -> None:
    total = Work()
    for one in (work(0.0, 10.0), work(0.0, 10.0), work(10.0, 30.0), work(20.0, 30.0), work(40.0, 41.0)):
        total.add(one)
    assert total.energy_high_j == 51.0
    assert total.most_energy_j == pytest.approx(31.0)


def test_means_over_steps_keep_what_was_shared() -> None:
    one, other = Work(), Work()
    for step in range(4):
        one.add(work(100.0 * step, 100.0 * step + 8.0))
        other.add(work(100.0 * step + 4.0, 100.0 * step + 8.0))
    both = one.divided(4)
    both.add(other.divided(4))
    assert both.energy_high_j == pytest.approx(12.0) and both.most_energy_j == pytest.approx(8.0)
    # Means over another number of steps are of other steps: nothing is shared with them.
    both.add(work(0.0, 2.0).divided(2))
    assert both.most_energy_j == pytest.approx(9.0)


def test_bounds_that_add_up_are_added() -> None:
    total = Work(n_kernels=1, n_measured=1, energy_j=1.0, energy_high_j=2.0)
    total.add(Work(n_kernels=1, n_measured=1, energy_j=1.0, energy_high_j=2.0))
    assert total.most_energy_j == 4.0


def test_a_kernel_knows_the_stretches_that_it_touches() -> None:
    watts = [100.0, 300.0, 200.0, 200.0]
    power = pa.Table.from_pylist(
        [
            {
                "run_id": "r",
                "ts_ns": i * 10 * MS,
                "source": "nvml",
                "name": "power",
                "device_kind": "gpu",
                "device_id": "GPU-1",
                "field": "power_instant",
                "value": w,
                "unit": "W",
            }
            for i, w in enumerate(watts)
        ],
        schema=RUN_TABLES["power"].empty().schema,
    )
    # In the first stretch, over the edge of the second and third, in the third.
    start, length = [2, 18, 25], [3, 4, 2]
    kernels = pa.table(
        {
            "kernel_id": pa.array([0, 1, 2], pa.int64()),
            "kernel_class": ["gemm"] * 3,
            "ts_ns": pa.array(np.array(start) * MS, pa.int64()),
            "dur_ns": pa.array(np.array(length) * MS, pa.int64()),
            "device": pa.array([0] * 3, pa.int64()),
            "launch_id": pa.array([1, 2, 3], pa.int64()),
            "op_id": pa.nulls(3, pa.int64()),
        }
    )
    found = attribute(kernels, power, Window(0, 30 * MS))[0].kernels
    # 2 J, 2.5 J and 2 J.
    assert found["from_j"].to_pylist() == pytest.approx([0.0, 2.0, 4.5])
    assert found["to_j"].to_pylist() == pytest.approx([2.0, 6.5, 6.5])
    assert found["high_j"].to_pylist() == pytest.approx([2.0, 4.5, 2.0])
    total = Work()
    for row in found.to_pylist():
        total.add(
            Work(energy_j=row["energy_j"], energy_high_j=row["high_j"], stretches=[(row["from_j"], row["to_j"], 1)])
        )
    assert total.most_energy_j == pytest.approx(6.5)
