"""Power logs from tries and public reports whose energy was wrong once; the right joules came with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.normalized import Normalizer, Run

from magneton.analysis.diff.pipeline import diff
from magneton.analysis.diff.settings import DiffSettings
from magneton.analysis.recording import Recording
from magneton.flows.extras import DeviceName, ExtraFiles, parse_device_map
from magneton.schemas.documents.diff import DiffDocument, LedgerDoc, SideDoc
from magneton.schemas.errors import (
    InputFormatError,
    InsufficientPowerDataError,
    LimitExceededError,
    NotComparableError,
    UsageError,
)
from magneton.transforms.power.log import PowerOptions

FOUND = Path(__file__).resolve().parents[2] / "found"
TEN_STEPS = FOUND / "_trace-for-power-logs" / "trace.json"
CSV = "timestamp_ns,clock,device_kind,device_id,field,value,unit\n"
T0 = 1_718_000_000_000_000_000


class Measured:
    """A recording made of a trace and power logs, compared with itself."""

    def __init__(self, run: Run, rank: int | None = None) -> None:
        self.run = run
        self.document: DiffDocument = diff(
            Recording.open(run.path), Recording.open(run.path), DiffSettings(rank=rank), "test"
        ).document
        self.side: SideDoc = self.document.a
        self.notes = {note.code for note in self.document.comparison.notes}

    def ledger(self, kind: str, *, used: bool = True) -> LedgerDoc:
        (found,) = [one for one in self.side.ledgers if one.device_kind == kind and one.used is used]
        return found


@pytest.fixture
def measured(normalized: Normalizer):  # type: ignore[no-untyped-def]
    def of(*traces: Path, power: Sequence[Path], rank: int | None = None, **extras: object) -> Measured:
        return Measured(normalized(*traces, extras=ExtraFiles(power=tuple(power), **extras)), rank)  # type: ignore[arg-type]

    return of


def folder(name: str) -> tuple[Path, Path]:
    return FOUND / name / "trace.json", FOUND / name / "power.csv"


def log(tmp_path: Path, rows: Sequence[tuple[int, str]], name: str = "power.csv") -> Path:
    """Write a long CSV of (ms after the trace begins, ``kind,id,field,value,unit``)."""
    path = tmp_path / name
    path.write_text(CSV + "".join(f"{T0 + ms * 1_000_000},realtime,{rest}\n" for ms, rest in rows))
    return path


def test_a_field_of_amd_gives_energy(measured) -> None:  # type: ignore[no-untyped-def]
    trace, power = folder("amd-fields")
    assert measured(trace, power=[power]).ledger("gpu").total_j == pytest.approx(306, rel=1e-6)


@pytest.mark.parametrize(
    "field", ["average_socket_power", "socket_power", "package_power", "power_usage", "board_power"]
)
def test_other_names_of_power_give_energy(measured, tmp_path: Path, field: str) -> None:  # type: ignore[no-untyped-def]
    power = log(tmp_path, [(ms, f"gpu,0,{field},306,W") for ms in range(0, 1001, 100)], f"{field}.csv")
    assert measured(folder("amd-fields")[0], power=[power]).ledger("gpu").total_j == pytest.approx(306, rel=1e-6)


def test_a_log_without_a_field_that_gives_energy_is_said(normalized: Normalizer, tmp_path: Path) -> None:
    power = log(tmp_path, [(ms, "gpu,0,vdd_soc_rail,30,W") for ms in range(0, 1001, 100)])
    run = normalized(folder("amd-fields")[0], extras=ExtraFiles(power=(power,)))
    (said,) = [row["message"] for row in run.rows("warnings") if row["code"] == "no_energy_field"]
    assert "vdd_soc_rail (W)" in said and "power_instant" in said


def test_a_metric_without_a_unit_is_said(normalized: Normalizer, tmp_path: Path) -> None:
    power = tmp_path / "m.prom"
    rows = [f'{n}{{gpu="0"}} 300 {1783117320000 + i * 1000}' for i in range(12) for n in ("odd_power", "scaph_host_power_microwatts")]  # fmt: skip
    power.write_text("\n".join(rows) + "\n")
    run = normalized(TEN_STEPS, extras=ExtraFiles(power=(power,)))
    assert any("odd_power" in row["message"] for row in run.rows("warnings") if row["code"] == "no_energy_field")


def test_the_drivers_blank_is_set_aside(measured) -> None:  # type: ignore[no-untyped-def]
    trace, power = folder("blank-u32mW")
    found = measured(trace, power=[power])
    assert found.ledger("gpu").total_j == pytest.approx(300, rel=1e-6)
    assert [row["reason"] for row in found.run.rows("quarantine")] == ["value_implausible"]
    assert found.run.warnings()["power_rows_dropped"] == 1


@pytest.mark.parametrize(("value", "unit"), [("65535", "W"), ("4294967295", "mW"), ("4294967295", "uW"), ("9e9", "W")])
def test_other_impossible_powers_are_set_aside(measured, tmp_path: Path, value: str, unit: str) -> None:  # type: ignore[no-untyped-def]
    rows = [(ms, "gpu,GPU-a,power_instant,300,W") for ms in range(0, 1001, 100)]
    rows[5] = (500, f"gpu,GPU-a,power_instant,{value},{unit}")
    found = measured(folder("blank-u32mW")[0], power=[log(tmp_path, rows, f"{value}{unit}.csv")])
    assert found.ledger("gpu").total_j == pytest.approx(300, rel=1e-6)


def test_impossible_values_of_nvidia_smi_are_set_aside(measured, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    power = tmp_path / "smi.csv"
    cells = [("4294967.29 W" if i == 5 else "300.00 W") for i in range(11)]
    power.write_text("timestamp, index, power.draw.instant [W]\n" + "".join(f"2024/06/10 06:13:2{i // 10}.{i % 10}00, 0, {c}\n" for i, c in enumerate(cells)))  # fmt: skip
    found = measured(folder("blank-u32mW")[0], power=[power], options=PowerOptions(tz="UTC"))
    assert found.ledger("gpu").total_j == pytest.approx(300, rel=1e-6)


def test_a_counter_that_jumps_by_more_than_a_device_can_draw_is_unknown_there(measured, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    rows = [(ms, f"gpu,GPU-a,energy_total,{1_000_000 + 300 * ms},mJ") for ms in range(0, 1001, 50)]
    rows[10] = (500, "gpu,GPU-a,energy_total,4294967295,mJ")
    found = measured(folder("blank-u32mW")[0], power=[log(tmp_path, rows)]).ledger("gpu")
    assert found.total_j == pytest.approx(300 * 0.9, rel=1e-6)
    assert found.covered_s == pytest.approx(0.9)


@pytest.mark.parametrize("side", ["a", "b"])
def test_an_update_of_a_counter_is_spread_over_its_interval(measured, side: str) -> None:  # type: ignore[no-untyped-def]
    case = FOUND / "counter-step-edge"
    found = measured(case / f"{side}.json", power=[case / "power.csv"]).ledger("gpu")
    assert found.total_j == pytest.approx(9, rel=1e-6)
    assert found.label == "apportioned"


def test_a_counter_that_is_updated_at_each_poll_stays_as_it_is(measured, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    rows = [(ms, f"gpu,GPU-a,energy_total,{300 * ms},mJ") for ms in range(0, 1001, 10)]
    found = measured(folder("blank-u32mW")[0], power=[log(tmp_path, rows)]).ledger("gpu")
    assert (found.total_j, found.label) == (pytest.approx(300, rel=1e-9), "measured")


def test_a_counter_that_stands_still_is_set_aside(measured) -> None:  # type: ignore[no-untyped-def]
    trace, power = folder("stuck-counter")
    found = measured(trace, power=[power])
    assert found.ledger("gpu").total_j == pytest.approx(306, rel=1e-6)
    assert "counter_disagrees_with_power" in found.ledger("gpu").warnings
    assert "counter_disagrees_with_power" in found.notes


def test_a_counter_of_another_unit_is_set_aside(measured, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    rows = [(ms, f"gpu,GPU-a,energy_total,{3 * ms},mJ") for ms in range(0, 1001, 50)]
    rows += [(ms, "gpu,GPU-a,power_instant,300,W") for ms in range(0, 1001, 50)]
    found = measured(folder("stuck-counter")[0], power=[log(tmp_path, rows)])
    assert found.ledger("gpu").total_j == pytest.approx(300, rel=1e-6)
    assert "counter_disagrees_with_power" in found.notes


def test_a_counter_that_stands_still_alone_gives_no_energy(measured, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    rows = [(ms, "cpu,package-0,energy_total,5000000,uJ") for ms in range(0, 1001, 50)]
    found = measured(folder("stuck-counter")[0], power=[log(tmp_path, rows)]).ledger("cpu")
    assert found.total_j is None and "counter_stands_still" in found.warnings


def test_blanks_of_dcgm_are_no_readings(measured) -> None:  # type: ignore[no-untyped-def]
    found = measured(TEN_STEPS, power=[FOUND / "dcgm-blank-and-zero" / "blank.prom"])
    assert found.ledger("gpu").total_j == pytest.approx(2997, rel=1e-6)


def test_a_counter_of_dcgm_that_stays_at_zero_is_set_aside(measured) -> None:  # type: ignore[no-untyped-def]
    found = measured(TEN_STEPS, power=[FOUND / "dcgm-blank-and-zero" / "zero_counter.prom"])
    assert found.ledger("gpu").total_j == pytest.approx(247.541 * 9.99, rel=1e-6)
    assert "counter_disagrees_with_power" in found.notes


def test_containers_are_parts_of_their_node(measured) -> None:  # type: ignore[no-untyped-def]
    found = measured(TEN_STEPS, power=[FOUND / "kepler-scopes" / "kepler.prom"])
    assert found.ledger("cpu").total_j == pytest.approx(999, rel=1e-6)
    assert found.ledger("container_cpu").part_of == ["cpu"]
    assert all((one.total_j or 0) <= 1000 for one in found.side.ledgers)


def test_processes_of_scaphandre_are_parts_of_their_host(measured, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    parts = [("scaph_host_power_microwatts", "", 200), ("scaph_socket_power_microwatts", 'socket_id="0"', 120), ("scaph_domain_power_microwatts", 'socket_id="0",domain_name="dram"', 20), ("scaph_process_power_consumption_microwatts", 'pid="7"', 90)]  # fmt: skip
    power = tmp_path / "s.prom"
    power.write_text("".join(f"{n}{{{label}}} {w}000000 {1783117320000 + i * 1000}\n" for i in range(12) for n, label, w in parts))  # fmt: skip
    found = measured(TEN_STEPS, power=[power])
    watts = {one.device_kind: round((one.total_j or 0) / 9.99, 6) for one in found.side.ledgers}
    assert watts == {"node": 200, "cpu": 120, "dram": 20, "process_node": 90}
    assert found.ledger("process_node").part_of == ["node"]


def test_zones_of_rapl_stay_apart(measured) -> None:  # type: ignore[no-untyped-def]
    trace, power = folder("rapl-names")
    found = measured(trace, power=[power])
    joules = {one.device_kind: one.total_j for one in found.side.ledgers}
    assert joules == {"cpu": 100, "core": 60, "dram": 20, "psys": 150}
    assert found.ledger("core").part_of == ["cpu", "psys"]


def test_a_board_that_is_divided_is_said_to_be_shared(measured) -> None:  # type: ignore[no-untyped-def]
    case = FOUND / "mig-own-recorder"
    found = measured(case / "trace.json", power=[case / "power.parquet"], anchors=case / "anchors.json")
    assert "device_shared" in found.notes
    assert "device_shared" in found.ledger("gpu").warnings


def test_an_instance_of_mig_in_dcgm_shares_its_board(measured, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    power = tmp_path / "d.prom"
    power.write_text("".join(f'DCGM_FI_DEV_POWER_USAGE{{gpu="0",UUID="GPU-a",GPU_I_ID="{k}"}} 300 {1783117320000 + i * 1000}\n' for i in range(12) for k in (1, 2)))  # fmt: skip
    found = measured(TEN_STEPS, power=[power])
    assert found.ledger("gpu").total_j == pytest.approx(2997, rel=1e-6)
    assert "device_shared" in found.notes


def test_a_device_is_found_by_its_index(measured) -> None:  # type: ignore[no-untyped-def]
    case = FOUND / "nvsmi-two-gpus"
    found = measured(case / "trace.json", power=[case / "smi.csv"], options=PowerOptions(tz="UTC"))
    assert found.ledger("gpu").total_j == pytest.approx(300, rel=1e-6)
    assert found.ledger("gpu").devices == ["GPU-aaaa"]
    assert found.ledger("gpu", used=False).total_j == pytest.approx(100, rel=1e-6)


def eight(tmp_path: Path, columns: str) -> Path:
    """Write an nvidia-smi log of eight GPUs, GPU k at 100 (k + 1) W, whose UUIDs sort the other way round."""
    power = tmp_path / f"{columns.replace(', ', '-')}.csv"
    cells = {"index": "{k}", "uuid": "GPU-{u}000"}
    lines = [f"timestamp, {columns}, power.draw.instant [W]"]
    for i in range(21):
        for k in range(8):
            named = ", ".join(cells[c] for c in columns.split(", ")).format(k=k, u=9 - k)
            lines.append(f"2024/06/10 06:13:{20 + i // 10}.{i % 10}00, {named}, {100 * (k + 1)}.00 W")
    power.write_text("\n".join(lines) + "\n")
    return power


@pytest.mark.parametrize("columns", ["index", "index, uuid", "uuid, index"])
def test_a_log_of_eight_gpus_works(measured, tmp_path: Path, columns: str) -> None:  # type: ignore[no-untyped-def]
    found = measured(
        FOUND / "nvsmi-two-gpus" / "trace.json", power=[eight(tmp_path, columns)], options=PowerOptions(tz="UTC")
    )
    assert found.ledger("gpu").total_j == pytest.approx(200, rel=1e-6)
    assert found.ledger("gpu", used=False).n_devices == 7


def test_a_scrape_of_eight_gpus_works(measured, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    power = tmp_path / "d.prom"
    power.write_text("".join(f'DCGM_FI_DEV_POWER_USAGE{{gpu="{k}",UUID="GPU-{9 - k}",Hostname="h"}} {100 * (k + 1)} {1783117320000 + i * 1000}\n' for i in range(12) for k in range(8)))  # fmt: skip
    assert measured(TEN_STEPS, power=[power]).ledger("gpu").total_j == pytest.approx(999, rel=1e-6)


def test_gpus_known_by_uuid_alone_are_named_by_an_option(measured, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    trace, power, utc = FOUND / "nvsmi-two-gpus" / "trace.json", eight(tmp_path, "uuid"), PowerOptions(tz="UTC")
    with pytest.raises(InsufficientPowerDataError, match="--device-map 1="):
        measured(trace, power=[power], options=utc)
    stated = tuple(parse_device_map("0=GPU-9000,1=GPU-8"))
    found = measured(trace, power=[power], options=utc, devices=stated)
    assert found.ledger("gpu").total_j == pytest.approx(200, rel=1e-6)
    with pytest.raises(UsageError, match="no GPU GPU-q"):
        measured(trace, power=[power], options=utc, devices=(DeviceName(1, "GPU-q"),))


@pytest.mark.parametrize("text", ["", "0", "a=GPU", "0=GPU-a,", "1:=x"])
def test_a_device_map_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="does not say which GPU"):
        parse_device_map(text)


def test_a_log_that_names_no_device_is_one_device(measured, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    power = tmp_path / "smi.csv"
    power.write_text("timestamp, power.draw.instant [W]\n" + "".join(f"2024/06/10 06:13:2{i // 10}.{i % 10}00, 300.00 W\n" for i in range(11)))  # fmt: skip
    found = measured(folder("blank-u32mW")[0], power=[power], options=PowerOptions(tz="UTC"))
    assert found.ledger("gpu").total_j == pytest.approx(300, rel=1e-6)
    assert found.side.energy is not None and found.side.energy.total_j == pytest.approx(300, rel=1e-4)


def test_a_package_that_was_not_read_does_not_hide_the_other(measured) -> None:  # type: ignore[no-untyped-def]
    trace, power = folder("one-package-late")
    found = measured(trace, power=[power]).ledger("cpu")
    assert (found.total_j, found.devices, found.unread) == (100, ["package-0"], ["package-1"])
    assert "device_unread" in found.warnings


def test_a_kernel_that_overran_does_not_stretch_the_window(measured) -> None:  # type: ignore[no-untyped-def]
    trace, power = folder("overrun-energy")
    found = measured(trace, power=[power])
    assert found.ledger("gpu").total_j == pytest.approx(300, rel=1e-6)
    joules = {group.ops_a: group.energy_j.a for group in found.document.groups}
    assert (joules["aten::add"] or 0.0) <= 0.015 + 1e-9


def test_each_rank_has_its_own_time(measured) -> None:  # type: ignore[no-untyped-def]
    case = FOUND / "rank-bases-power"
    for rank, joules in ((0, 100), (1, 300)):
        found = measured(case / "r0.json", case / "r1.json", power=[case / "power.csv"], rank=rank)
        assert found.ledger("gpu").total_j == pytest.approx(joules, rel=1e-6)
        assert found.side.energy is not None and found.side.energy.total_j == pytest.approx(joules, rel=1e-4)


def test_a_gpu_that_was_not_used_stays_apart(measured) -> None:  # type: ignore[no-untyped-def]
    trace, power = folder("two-gpus-one-used")
    found = measured(trace, power=[power])
    assert found.ledger("gpu").total_j == pytest.approx(250, rel=1e-6)
    assert found.ledger("gpu", used=False).total_j == pytest.approx(400, rel=1e-6)


def test_two_logs_of_one_gpu_are_not_averaged(measured, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    case = FOUND / "two-tools-one-gpu"
    found = measured(case / "trace.json", power=[case / "a.csv", case / "b.csv"])
    assert found.ledger("gpu").total_j == pytest.approx(300, rel=1e-6)
    assert "power_logs_disagree" in found.notes


def test_two_logs_that_follow_one_another_are_one(measured, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    halves = [log(tmp_path, [(ms, "gpu,GPU-a,power_instant,300,W") for ms in times], f"{k}.csv") for k, times in enumerate((range(0, 501, 100), range(550, 1051, 100)))]  # fmt: skip
    found = measured(folder("blank-u32mW")[0], power=halves)
    assert found.ledger("gpu").total_j == pytest.approx(300, rel=1e-6)
    assert "power_logs_disagree" not in found.notes


NESTED = {
    "prom": ("power", '{"status":"success","data":{"resultType":"matrix","result":'),
    "prom2": ("power", '{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"__name__":"DCGM_FI_DEV_POWER_USAGE"},"values":'),
    "bench": ("bench", '{"total_output_tokens":1,"duration":'),
    "b2": ("bench", '[{"request_throughput":1.0, "date":'),
    "anchors": ("anchors", '{"clock_anchors":'),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(NESTED))
def test_files_nested_too_deeply_are_refused_in_one_line(normalized: Normalizer, tmp_path: Path, name: str) -> None:
    option, start = NESTED[name]
    file = tmp_path / f"{name}.json"
    file.write_text(start + "[" * 100_000 + "]" * 100_000)
    extras = ExtraFiles(**{option: (file,) if option == "power" else file})  # type: ignore[arg-type]
    with pytest.raises((InputFormatError, LimitExceededError)) as refused:
        normalized(folder("blank-u32mW")[0], extras=extras)
    assert "\n" not in str(refused.value)


def conditioned(tmp_path: Path, name: str, readings: dict[str, float]) -> Path:
    power = tmp_path / f"{name}.csv"
    columns = ", ".join(readings)
    cells = ", ".join(f"{v:g}" for v in readings.values())
    power.write_text(f"timestamp, index, power.draw.instant [W], {columns}\n" + "".join(f"2024/06/10 06:13:2{i // 10}.{i % 10}00, 0, 300.00, {cells}\n" for i in range(11)))  # fmt: skip
    return power


@pytest.mark.parametrize(
    ("column", "a", "b", "name"),
    [
        ("enforced.power.limit [W]", 700, 400, "power cap"),
        ("clocks.current.sm [MHz]", 1980, 1200, "SM clock"),
        ("temperature.gpu", 45, 88, "temperature"),
        ("driver_version", 535, 550, "driver"),
    ],
)
def test_conditions_that_differ_are_said(normalized: Normalizer, tmp_path: Path, column: str, a: float, b: float, name: str) -> None:  # fmt: skip
    trace, utc = folder("blank-u32mW")[0], PowerOptions(tz="UTC")
    runs = [normalized(trace, extras=ExtraFiles(power=(conditioned(tmp_path, side, {column: v}),), options=utc)) for side, v in (("a", a), ("b", b))]  # fmt: skip
    document = diff(*(Recording.open(run.path) for run in runs), DiffSettings(), "test").document
    (said,) = [note.message for note in document.comparison.notes if note.code == "conditions_differ"]
    assert said.startswith(f"{name} was {a:g}") and said.endswith("not comparable")
    (one,) = document.comparison.conditions
    assert (one.a, one.b, one.comparable) == (f"{a:g}", f"{b:g}", False)
    same = diff(*(Recording.open(runs[0].path) for _ in "ab"), DiffSettings(), "test").document
    assert [one.comparable for one in same.comparison.conditions] == [True]


def test_tokens_of_a_benchmark_are_those_of_its_window(normalized: Normalizer, tmp_path: Path) -> None:
    """2400 J over 10 s for 1000 output tokens are 2.4 J per output token, whatever a step of the trace took."""
    bench = tmp_path / "bench.json"
    bench.write_text('{"model_id": "m", "completed": 10, "total_input_tokens": 4520, "total_output_tokens": 1000, "duration": 9.99}')  # fmt: skip
    power = tmp_path / "d.prom"
    power.write_text("".join(f'DCGM_FI_DEV_POWER_USAGE{{gpu="0",UUID="GPU-a"}} 240.24024024 {1783117320000 + i * 1000}\n' for i in range(12)))  # fmt: skip
    recording = Recording.open(normalized(TEN_STEPS, extras=ExtraFiles(power=(power,), bench=bench)).path)
    served = diff(recording, recording, DiffSettings(), "test").document.a.served
    assert served is not None
    assert served.j_per_output_token == pytest.approx(2.4, rel=1e-6)
    assert served.j_per_request == pytest.approx(240, rel=1e-6)
    with pytest.raises(NotComparableError, match="total of a benchmark"):
        diff(recording, recording, DiffSettings(per="token"), "test")
