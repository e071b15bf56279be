"""The views on real traces, against figures found by an independent script (FACTS.md of the shared recordings)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from magneton.analysis.query import Recordings
from magneton.flows.traces import normalize

# file below traces/: kernels, device activities, ms of kernels, of kernels with an operator, of any activity (each instant once)
FACTS = {
    "torch/aa_alexnet_run1.json.gz": (79, 98, 10.692, 10.692, 66.141),
    "torch_infer_h100_mi300/qwen1.5_0.5b_h100.json.gz": (1465, 1707, 45.433, 31.760, 45.647),
    "torch_infer_h100_mi300/qwen1.5_0.5b_mi300.json.gz": (1516, 1517, 43.062, 29.743, 43.063),
}


@pytest.fixture(scope="module")
def opened(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recordings]:
    directory = tmp_path_factory.mktemp("facts")
    runs = []
    for number, name in enumerate(FACTS):
        runs.append(directory / str(number))
        normalize([shared / "traces" / name], runs[-1], keep_raw=False)
    with Recordings(runs) as recordings:
        yield recordings


def ms(nanoseconds: int) -> float:
    return round(nanoseconds / 1e6, 3)


def test_device_time_by_device_operator_and_kernel_agree_with_the_facts(opened: Recordings) -> None:
    for run, (kernels, activities, kernel_ms, linked_ms, busy_ms) in zip(opened.runs, FACTS.values(), strict=True):
        values = {"run": run.run}
        (device,) = opened.query("SELECT * FROM device_time WHERE run = $run", values).read_all().to_pylist()
        assert (device["kernels"], ms(device["kernel_ns"]), ms(device["busy_ns"])) == (kernels, kernel_ms, busy_ms)
        sql = "SELECT sum(kernel_ns)::BIGINT AS a, sum(kernel_ns) FILTER (name IS NOT NULL)::BIGINT AS l FROM op_time WHERE run = $run"
        (sums,) = opened.query(sql, values).read_all().to_pylist()
        assert (ms(sums["a"]), ms(sums["l"])) == (kernel_ms, linked_ms)
        sql = "SELECT sum(calls)::BIGINT AS n, sum(total_ns) FILTER (category = 'kernel')::BIGINT AS t FROM kernel_time WHERE run = $run"
        (by_name,) = opened.query(sql, values).read_all().to_pylist()
        assert (by_name["n"], ms(by_name["t"])) == (activities, kernel_ms)


def test_module_time_agrees_with_the_facts(opened: Recordings) -> None:
    sql = (
        "SELECT run, class_name, count(*) AS n, sum(kernel_ns)::BIGINT AS own FROM module_time "
        "WHERE class_name IN ('Qwen2Attention', 'Qwen2RMSNorm') GROUP BY ALL ORDER BY ALL"
    )
    found = [(r["class_name"], r["n"], ms(r["own"])) for r in opened.query(sql).read_all().to_pylist()]
    assert [f[:2] for f in found] == [("Qwen2Attention", 24), ("Qwen2RMSNorm", 49)] * 2
    assert [f[2] for f in found] == pytest.approx([12.441, 7.378, 9.987, 5.674], abs=0.0011)


def test_totals_contain_what_is_inside(opened: Recordings) -> None:
    sql = (
        "SELECT m.run, m.module_id FROM module_time m JOIN modules s ON s.run = m.run AND s.parent_id = m.module_id "
        "JOIN module_time c ON c.run = s.run AND c.module_id = s.module_id "
        "GROUP BY ALL HAVING max(m.total_kernels) <> sum(c.total_kernels) + max(m.kernels)"
    )
    assert opened.query(sql).read_all().num_rows == 0
