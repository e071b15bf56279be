"""Joules of a recording whose power was measured beside the bare program, not beside the profile."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.analysis.diff.test_diff import powered

from magneton.flows.pairs import DiffSettings, compare
from magneton.schemas.documents.diff import DiffDocument
from magneton.schemas.errors import InsufficientPowerDataError
from magneton.schemas.tables.parquet import read_table, write_table
from magneton.schemas.tables.run import RUN_TABLES

AWAY_NS = 10**12
KERNELS_J = 4 * 200 * 100e-6  # 4 kernels of 100 us at 200 W


def bare(tmp_path: Path, step_us: int, n: int = 2) -> Path:
    """Four profiled steps; the power (200 W) was recorded elsewhere, beside ``n`` bare steps."""
    [run] = powered(tmp_path, "62-diff-different-iterations", "b")
    power = read_table(run / "tables" / "power.parquet", "power")
    start = pc.min(power["ts_ns"]).as_py() + AWAY_NS
    moved = pc.add(power["ts_ns"], AWAY_NS)
    power = power.set_column(power.schema.get_field_index("ts_ns"), "ts_ns", moved)
    steps = read_table(run / "tables" / "steps.parquet", "steps")
    added = [
        dict.fromkeys(steps.column_names)
        | {
            "run_id": steps["run_id"][0].as_py(),
            "capture": "energy",
            "rank": 0,
            "step_id": 1000 + k,
            "kind": "bare_step",
        }
        | {"ts_ns": start + k * step_us * 1000, "dur_ns": step_us * 1000}
        for k in range(n)
    ]
    table = pa.concat_tables([steps, pa.Table.from_pylist(added, schema=steps.schema)])
    write_table(run / "tables" / "power.parquet", RUN_TABLES["power"], power)
    write_table(run / "tables" / "steps.parquet", RUN_TABLES["steps"], table)
    return run


def diffed(run: Path, tmp_path: Path, **settings: float) -> DiffDocument:
    return compare(run, run, tmp_path / "diff", DiffSettings(**settings)).document  # type: ignore[arg-type]


def test_a_step_of_the_profile_has_the_energy_of_a_bare_one(tmp_path: Path) -> None:
    document = diffed(bare(tmp_path, 200), tmp_path)
    energy = document.a.energy
    assert energy is not None
    assert energy.total_j == pytest.approx(4 * 200 * 200e-6, rel=1e-9)
    assert (energy.attributed_j or 0.0) + (energy.unattributed_j or 0.0) == pytest.approx(KERNELS_J, rel=1e-9)
    assert energy.idle_j == pytest.approx((energy.total_j or 0.0) - KERNELS_J, rel=1e-9)
    assert energy.label == "apportioned"
    # Known for all of the bare time, which is not that of the profile.
    assert energy.covered_s == pytest.approx(energy.window_s, rel=1e-9) == 4 * 200e-6
    assert "energy_of_another_capture" in energy.warnings
    assert document.totals["energy_j"].a == pytest.approx(KERNELS_J / 4, rel=1e-9)
    [note] = [n for n in document.comparison.notes if n.code == "energy_of_another_capture"][:1]
    assert "times as long" in note.message


def test_bounds_are_the_least_and_the_greatest_power_that_was_read(tmp_path: Path) -> None:
    """Power rises from 150 to 250 W over the bare steps: what ran when is not known, so a kernel may have had either."""
    run = bare(tmp_path, 200)
    path = run / "tables" / "power.parquet"
    rows = read_table(path, "power").to_pylist()
    for number, row in enumerate(rows):
        row["value"] = 150.0 + 100.0 * number / (len(rows) - 1)
    write_table(path, RUN_TABLES["power"], pa.Table.from_pylist(rows, schema=read_table(path, "power").schema))
    for region in diffed(run, tmp_path).regions:
        if region.energy_j_a is not None:
            assert region.energy_low_j_a == pytest.approx(150 * 100e-6, rel=1e-9)
            assert region.energy_low_j_a < region.energy_j_a < region.energy_high_j_a <= 250 * 100e-6 * (1 + 1e-9)


def test_kernels_never_take_more_than_the_bare_program_did(tmp_path: Path) -> None:
    """The profile slowed the kernels themselves: the bare steps are shorter than its busy time."""
    energy = diffed(bare(tmp_path, 50, n=4), tmp_path).a.energy
    assert energy is not None
    assert energy.total_j == pytest.approx(4 * 200 * 50e-6, rel=1e-9)
    assert (energy.attributed_j or 0.0) + (energy.unattributed_j or 0.0) == pytest.approx(energy.total_j, rel=1e-9)
    assert energy.idle_j == pytest.approx(0.0, abs=1e-12)


def test_joules_above_rest_are_those_of_the_bare_steps(tmp_path: Path) -> None:
    energy = diffed(bare(tmp_path, 200), tmp_path, idle_power_a=50.0, idle_power_b=50.0).a.energy
    assert energy is not None
    assert energy.basis == "dynamic"
    assert energy.total_j == pytest.approx(4 * 150 * 200e-6, rel=1e-9)
    parts = (energy.attributed_j, energy.idle_j, energy.unattributed_j)
    assert sum(p or 0.0 for p in parts) == pytest.approx(energy.total_j, rel=1e-9)
    assert (energy.attributed_j or 0.0) + (energy.unattributed_j or 0.0) == pytest.approx(
        KERNELS_J * 150 / 200, rel=1e-9
    )


def test_each_kind_of_device_has_a_ledger(tmp_path: Path) -> None:
    """The processor and its memory drew 40 and 5 W beside the GPU: counted apart, per step, from the bare steps."""
    run = bare(tmp_path, 200)
    path = run / "tables" / "power.parquet"
    power = read_table(path, "power")
    rows = power.to_pylist()
    for kind, watts in (("cpu", 40.0), ("dram", 5.0)):
        rows += [r | {"device_kind": kind, "device_id": f"{kind}-0", "value": watts} for r in power.to_pylist()]
    write_table(path, RUN_TABLES["power"], pa.Table.from_pylist(rows, schema=power.schema))
    ledgers = {one.device_kind: one for one in diffed(run, tmp_path).a.ledgers}
    assert list(ledgers) == ["cpu", "dram", "gpu"]
    for kind, watts in (("cpu", 40.0), ("dram", 5.0), ("gpu", 200.0)):
        one = ledgers[kind]
        assert (one.n_steps, one.n_devices, one.label) == (2, 1, "apportioned")
        assert one.per_step_j == pytest.approx(watts * 200e-6, rel=1e-9)
        assert one.total_j == pytest.approx(2 * watts * 200e-6, rel=1e-9)


def test_a_ledger_leaves_out_the_steps_of_warm_up(tmp_path: Path) -> None:
    """Case 62: three steps of 400, 100 and 100 us at 200 W; the first is not compared."""
    [run] = powered(tmp_path, "62-diff-different-iterations", "a")
    document = diffed(run, tmp_path)
    [gpu] = document.a.ledgers
    assert gpu.n_steps == 2
    assert gpu.total_j == pytest.approx(200 * gpu.window_s, rel=1e-9)
    assert gpu.window_s < 400e-6


def test_processors_alone_have_a_ledger_and_no_kernels(tmp_path: Path) -> None:
    [run] = powered(tmp_path, "62-diff-different-iterations", "b")
    path = run / "tables" / "power.parquet"
    power = read_table(path, "power")
    rows = [r | {"device_kind": "cpu", "device_id": "package-0"} for r in power.to_pylist()]
    write_table(path, RUN_TABLES["power"], pa.Table.from_pylist(rows, schema=power.schema))
    document = diffed(run, tmp_path)
    assert document.a.energy is None
    assert [one.device_kind for one in document.a.ledgers] == ["cpu"]


def test_bare_steps_beyond_the_power_log_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InsufficientPowerDataError, match="bare steps"):
        diffed(bare(tmp_path, 10_000_000), tmp_path)
