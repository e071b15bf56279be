"""Power logs of the field: every format gives the energy of the run it was made from, and nothing disappears."""

from __future__ import annotations

import gzip
import itertools
import json

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.power_cases import E0, books_balance, case, codes, energies, expected, run_json, spl, window, write

from magneton.schemas import codes as all_codes
from magneton.schemas.clocks import anchors_from_readings
from magneton.schemas.errors import ClockAlignmentError, InputFormatError, InputNotFoundError, MagnetonError, UsageError
from magneton.transforms.power.log import PowerOptions
from magneton.transforms.power.registry import find_format, formats, read_power, rebase

UUID = "GPU-00000000-0000-0000-0000-00000000000{}"
HEADER = "timestamp_ns,clock,device_kind,device_id,field,value,unit\n"
UTC = PowerOptions(tz="UTC")


# ---- the samples of one invented run -------------------------------------------------------------------------------

SAMPLES = [
    # file, format, options, start s, device ids, J over 10 s by device
    ("prometheus_query_range.json", "prometheus-json", {}, 0.0, {UUID.format(0): 3400.0, UUID.format(1): 3470.0}),
    ("openmetrics_timestamps.om", "prometheus-text", {}, 0.0, {"0": 3400.0, "1": 3470.0}),
    (
        "prometheus_text_timestamps_ms.prom",
        "prometheus-text",
        {},
        0.0,
        {UUID.format(0): 3400.0, UUID.format(1): 3470.0},
    ),
    ("amd_smi_monitor_watch.csv", "amd-smi", {}, 0.0, {"0": 3400.0, "1": 3470.0}),
    ("nvidia_smi_query_gpu.csv", "nvidia-smi", {"tz": "UTC"}, 0.003, {UUID.format(0): 3400.0}),
    ("nvidia_smi_query_gpu.csv", "nvidia-smi", {"tz": "UTC"}, 0.004, {UUID.format(1): 3470.0}),
    ("nvidia_smi_query_gpu_nounits_na.csv", "nvidia-smi", {"tz": "UTC"}, 0.003, {UUID.format(0): 3400.0}),
    # The meter at the wall reads 1.1 P + 80 W of GPU 0.
    ("mlperf_spl.txt", "ptdaemon", {}, 0.123, {"meter": 1.1 * 3400 + 800}),
]


@pytest.mark.parametrize(("name", "kind", "options", "start", "true"), SAMPLES)
def test_samples_give_the_true_energy(shared, name, kind, options, start, true):
    path = shared / "formats" / name
    found = find_format(path)
    assert found is not None and found.name == kind
    log = read_power(path, PowerOptions(**options))
    assert books_balance(log) and log.report.n_valid == log.report.n_rows
    result = energies(log.table, window(start, start + 10))
    for device, joules in true.items():
        assert result[device].value_j == pytest.approx(joules, abs=1e-9)
        assert result[device].coverage == 1


@pytest.mark.parametrize("name", ["prometheus_query_range.json", "openmetrics_timestamps.om"])
def test_counters_come_first_and_know_what_samples_miss(shared, name):
    result = energies(read_power(shared / "formats" / name).table, window(2, 8))
    assert [r.value_j for r in result.values()] == [3000.0, 3042.0]
    assert {r.provenance.field for r in result.values()} == {"energy_counter"}
    assert all(any(o.startswith("power ") for o in r.provenance.fields_not_used) for r in result.values())
    power = energies(read_power(shared / "formats" / name).table, window(2, 8), fields=["power"])
    assert [r.value_j for r in power.values()] == [2800.0, 2842.0]  # straight lines between samples 1 s apart


def test_the_scrape_without_times(shared):
    path = shared / "formats" / "dcgm_exporter_scrape.prom"
    log = read_power(path)
    assert codes(log) == {"no_time_stamps"} and log.table["ts_ns"].null_count == log.table.num_rows == 12
    assert set(log.table["flags"].to_pylist()) == {"ts_missing"}
    at = read_power(path, PowerOptions(at_unix_ns=E0 + 5 * 10**9))
    assert codes(at) == set() and set(at.table["ts_ns"].to_pylist()) == {E0 + 5 * 10**9}
    counters = {r["device_id"]: r["value"] for r in at.table.to_pylist() if r["field"] == "energy_counter"}
    assert counters == {
        UUID.format(0): 9e6 + 1700,
        UUID.format(1): 9e6 + 1735,
    }  # J since the run began, and 9 MJ before
    assert {r["unit"] for r in at.table.to_pylist()} == {"MHz", "degC", "W", "J", "%", "bytes"}


def test_several_analysers_are_a_sum_and_its_parts(shared):
    log = read_power(shared / "formats" / "mlperf_spl_multi_analyzer.txt")
    result = energies(log.table, window(0.123, 2.123))
    assert {k: r.value_j for k, r in result.items()} == {"total": 1200.0, "analyzer1": 600.0, "analyzer2": 600.0}
    kinds = set(zip(log.table["device_kind"].to_pylist(), log.table["device_id"].to_pylist(), strict=True))
    assert kinds == {("wall", "total"), ("wall_part", "analyzer1"), ("wall_part", "analyzer2")}
    assert log.report.missing_cells == {f: {"not_available": 3} for f in ("current", "power_factor", "voltage")}


def test_day_month_order_is_read_from_the_file(shared):
    log = read_power(shared / "formats" / "mlperf_spl_ddmm.txt")
    assert (log.report.date_order, log.report.date_order_source) == ("dmy", "a day above 12")
    assert log.table["ts_ns"][0].as_py() == E0 + 12 * 86400 * 10**9 + 123_000_000
    assert read_power(shared / "formats" / "mlperf_spl.txt").report.date_order_source == "same either way"


def test_real_logs_give_the_figures_of_facts(shared):
    """The right values are those of traces/FACTS.md, `naive J`; the files are in local time one hour east of UTC."""
    for run, field, joules in (
        ("a100_step", "power_instant", 1491.02),
        ("a100_square104ms", "power_instant", 1024.96),
        ("rtx3090_step", "power", 3272.00),
        ("rtx3090_step", "power_instant", 3259.16),
        ("rtx4090_step", "power", 2622.30),
    ):
        folder = shared / "traces" / "power" / run
        log = read_power(folder / "gpudata.csv.gz", PowerOptions(tz="Europe/London"))
        stamps = [int(x) * 1000 for x in (folder / "timestamps.csv").read_text().split()[1:]]
        over = window(0, (stamps[-1] - stamps[0]) / 1e9, stamps[0])
        result = energies(log.table, over, fields=[field])[None]
        assert result.value_j == pytest.approx(joules, abs=0.006) and result.coverage == 1
        assert log.report.time_zone == "Europe/London" and "device_unnamed" in codes(log)


# ---- fault cases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["power_realtime", "power_boottime", "power_monotonic", "power_boottime_us"])
def test_37_clock_domains(file):
    want = expected("37-clock-domains")
    anchors = anchors_from_readings(run_json("37-clock-domains")["clock_anchors"])
    log = read_power(case("37-clock-domains") / f"{file}.csv")
    base = 1718000000 * 10**9
    table = pa.concat_tables(rebase(log, base, anchors))
    start, end = want["kernel_window_realtime_ns"]
    result = energies(table, window(0, (end - start) / 1e9, start - base))["GPU-aaaa"]
    assert result.value_j == pytest.approx(want["energy_j_each"], rel=want["tolerance_rel"])
    assert table["ts_ns"][0].as_py() == 0 and table["dur_ns"].null_count == table.num_rows


def test_37_without_an_anchor_the_clocks_stay_apart():
    log = read_power(case("37-clock-domains") / "power_monotonic.csv")
    boottime = [
        a for a in anchors_from_readings(run_json("37-clock-domains")["clock_anchors"]) if a.clock == "boottime"
    ]
    for anchors in ([], boottime):
        with pytest.raises(ClockAlignmentError, match="monotonic"):
            rebase(log, 0, anchors)
    with pytest.raises(ClockAlignmentError, match="absolute"):
        rebase(read_power(case("37-clock-domains") / "power_realtime.csv"), None)


def test_40_power_samples_dirty():
    want = expected("40-power-samples-dirty")
    log = read_power(case("40-power-samples-dirty") / "power.csv")
    report = log.report
    assert report.n_rows == want["n_rows"] and report.n_valid == want["n_valid"] and report.dropped == want["dropped"]
    assert report.n_conflicting_instants == want["conflicting_instants"]
    assert books_balance(log) and codes(log) == {"conflicting_instants", "power_rows_dropped"}
    for gap in (want["max_gap_s"], None):
        result = energies(log.table, window(0, 5, 0), max_gap_s=gap)["GPU-aaaa"]
        assert result.value_j == pytest.approx(want["energy_j"]["0..5 s"], abs=1e-9)
    flagged = [r for r in log.table.to_pylist() if r["flags"] == "conflicting_instant"]
    assert sorted(r["value"] for r in flagged) == [100.0, 300.0]
    aside = {r["position"]: (r["reason"], r["raw"]) for r in log.quarantine.to_pylist()}
    assert aside[4] == ("exact_duplicate", "3000000000,realtime,gpu,GPU-aaaa,power_instant,200,W")
    assert aside[11] == ("negative_power", "8000000000,realtime,gpu,GPU-aaaa,power_instant,-5,W")
    assert aside[12][0] == "not_available"


@pytest.mark.parametrize("file", ["smi.csv", "smi_nounits.csv", "smi_utf16.csv"])
def test_52_nvidia_smi_csv(file):
    want = expected("52-nvidia-smi-csv")
    log = read_power(case("52-nvidia-smi-csv") / file, UTC)
    report = log.report
    devices = {d.device_id: d for d in report.devices}
    assert {k: d.n_valid for k, d in devices.items()} == want["n_rows_valid"]
    assert {k: d.n_missing for k, d in devices.items()} == want["n_missing"]
    assert report.n_malformed == want["n_malformed"] and report.n_repeated_headers == want["n_repeated_headers"]
    assert books_balance(log) and report.time_zone == "UTC" and report.time_zone_source == "given"
    over = window(0, 4, 1718000000 * 10**9)
    for gap in (want["max_gap_s"], None):
        result = energies(log.table, over, max_gap_s=gap)
        assert result["0"].value_j == pytest.approx(want["energy_j"]["0"])
        assert "1" not in result or result["1"].value_j is None
    assert {"repeated_headers", "power_rows_dropped"} <= codes(log)


def test_52_needs_a_time_zone():
    with pytest.raises(ClockAlignmentError, match="--tz"):
        read_power(case("52-nvidia-smi-csv") / "smi.csv")
    with pytest.raises(UsageError, match="time zone"):
        read_power(case("52-nvidia-smi-csv") / "smi.csv", PowerOptions(tz="Mars/Olympus"))
    with pytest.raises(UsageError, match="time zone"):
        read_power(case("52-nvidia-smi-csv") / "smi.csv", PowerOptions(tz="../../etc/passwd"))


@pytest.mark.parametrize(
    ("tz", "hours"), [("+02:00", 2), ("UTC-5", -5), ("Europe/Berlin", 2), ("America/New_York", -4)]
)
def test_52_zones_move_the_samples(tz, hours):
    here = read_power(case("52-nvidia-smi-csv") / "smi.csv", PowerOptions(tz=tz)).table["ts_ns"][0].as_py()
    assert here == (1718000000 - hours * 3600) * 10**9


# ---- kinds of faults, with inputs of our own -----------------------------------------------------------------------


SMI = "timestamp, index, power.draw [W], temperature.gpu\n"


def smi_line(second: int, value: str, temp: str = "50") -> str:
    return f"2024/06/10 06:13:{second:02d}.000, 0, {value}, {temp}\n"


def test_summer_time_ends(tmp_path):
    """In Berlin 02:00 to 03:00 comes twice on 2024-10-27; the file goes on."""
    times = ["01:59:50", "02:00:10", "02:59:50", "02:00:10", "02:59:50", "03:00:10"]
    text = SMI + "".join(f"2024/10/27 {t}.000, 0, 100.00 W, 5\n" for t in times)
    log = read_power(write(tmp_path, text), PowerOptions(tz="Europe/Berlin"))
    stamps = log.table["ts_ns"].to_pylist()[::2]  # two readings a line
    assert [(b - a) / 1e9 for a, b in itertools.pairwise(stamps)] == [20, 3580, 20, 3580, 20]
    assert "local_time_ambiguous" in codes(log)


def test_summer_time_begins(tmp_path):
    text = SMI + "2024/03/31 01:59:59.000, 0, 100.00 W, 5\n2024/03/31 02:30:00.000, 0, 100.00 W, 5\n"
    log = read_power(write(tmp_path, text), PowerOptions(tz="Europe/Berlin"))
    assert log.report.dropped == {"ts_local_invalid": 1} and books_balance(log)


@pytest.mark.parametrize(
    "spelling", ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "", "nan", "[GPU is lost]", "n/a"]
)
def test_missing_is_never_zero(tmp_path, spelling):
    log = read_power(write(tmp_path, SMI + smi_line(0, "100.00 W") + smi_line(1, spelling)), UTC)
    power = [r for r in log.table.to_pylist() if r["field"] == "power"]
    assert [r["value"] for r in power] == [100.0, None] and power[1]["flags"] == "not_available"
    assert log.report.missing_cells == {"power": {"not_available": 1}}
    assert (log.report.n_valid, log.report.n_other, log.report.n_rows) == (1, 1, 2) and books_balance(log)


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        ("2024/06/10 06:13:09", "row_cut"),
        ("2024/06/10 06:13:09.000, 0, 100.0", "row_cut"),
        ("2024/06/10 06:13:09.000, 0, 100.00 W, 5", "row_cut"),  # 50 may have been meant
        ("2024/06/10 06:13:09.000, 0, 100.00 W\n", "row_malformed"),
        ("Failed to initialize NVML: Driver/library version mismatch\n", "row_malformed"),
        ("2024/13/10 06:13:09.000, 0, 100.00 W, 50\n", "row_malformed"),
        ("yesterday, 0, 100.00 W, 50\n", "ts_not_numeric"),
        ("2024/06/10 06:13:09.000, 0, -3.00 W, [N/A]\n", "negative_power"),
        ("2024/06/10 06:13:09.000, 0, 3.00 GW, [N/A]\n", "unit_unknown"),
        ("2024/06/10 06:13:09.000, 0, 3.00 J, [N/A]\n", "unit_mismatch"),
        ("2024/06/10 06:13:09.000, 0, 3.0.0, [N/A]\n", "value_not_numeric"),
        ("2024/06/10 06:13:09.000, 0, 1e999, [N/A]\n", "value_not_finite"),
    ],
)
def test_broken_rows_are_set_aside_with_their_reason(tmp_path, tail, reason):
    log = read_power(write(tmp_path, SMI + smi_line(0, "100.00 W") + smi_line(1, "100.00 W") + tail), UTC)
    assert log.report.dropped == {reason: 1} and log.report.n_valid == 2 and books_balance(log)
    aside = log.quarantine.to_pylist()[0]
    assert aside == {"reason": reason, "file": "p.csv", "position": 2, "raw": tail.rstrip("\n")}
    assert reason in all_codes.QUARANTINE_REASONS


def test_a_last_line_without_newline_that_is_whole_counts(tmp_path):
    text = (
        "timestamp, index, power.draw [W]\n2024/06/10 06:13:00.000, 0, 100.00 W\n2024/06/10 06:13:01.000, 0, 100.00 W"
    )
    assert read_power(write(tmp_path, text), UTC).report.n_valid == 2
    bare = text.replace(" W", "")
    assert read_power(write(tmp_path, bare), UTC).report.n_valid == 2
    assert read_power(write(tmp_path, bare[:-1]), UTC).report.dropped == {"row_cut": 1}


def test_a_restart_with_other_columns(tmp_path):
    text = (
        SMI
        + smi_line(0, "100.00 W")
        + "timestamp, power.draw.instant [W], index\n2024/06/10 06:13:01.000, 90.00 W, 0\n"
    )
    log = read_power(write(tmp_path, text), UTC)
    assert [(r["field"], r["value"]) for r in log.table.to_pylist()] == [
        ("power", 100.0),
        ("temperature", 50.0),
        ("power_instant", 90.0),
    ]
    assert log.report.n_repeated_headers == 1


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_encodings_and_newlines(tmp_path, encoding, newline):
    text = (SMI + smi_line(0, "100.00 W") + smi_line(1, "100.00 W")).replace("\n", newline)
    log = read_power(write(tmp_path, text.encode(encoding)), UTC)
    assert log.report.n_valid == log.report.n_rows == 2


def test_compressed_and_cut(tmp_path):
    text = (SMI + "".join(smi_line(i % 60, f"{100 + i}.25 W") for i in range(3000))).encode()
    whole = gzip.compress(text)
    assert read_power(write(tmp_path, whole, "p.log"), UTC).report.n_rows == 3000
    log = read_power(write(tmp_path, whole[: len(whole) // 2]), UTC)
    assert log.report.truncated and "truncated" in codes(log) and 0 < log.report.n_rows < 3000 and books_balance(log)


@pytest.mark.parametrize(
    ("unit", "value", "base", "wanted"),
    [
        ("mW", "1500", "W", 1.5), ("uW", "1500000", "W", 1.5), ("kW", "1.5", "W", 1500.0), ("milliwatts", "1500", "W", 1.5),
        ("mJ", "9000100000", "J", 9000100.0), ("uJ", "262143328850", "J", 262143.32885), ("µJ", "5", "J", 5e-6),
        ("μJ", "5", "J", 5e-6), ("kWh", "1", "J", 3.6e6), ("MJ", "2", "J", 2e6), ("GHz", "1.2", "MHz", 1200.0),
        ("MiB", "2", "bytes", 2097152.0),
    ],
)  # fmt: skip
def test_units_come_out_in_base_units(tmp_path, unit, value, base, wanted):
    field = {"W": "power", "J": "energy_total"}.get(base, "other")
    log = read_power(write(tmp_path, f"{HEADER}0,realtime,gpu,a,{field},{value},{unit}\n0,realtime,gpu,a,power,1,W\n"))
    row = log.table.to_pylist()[0]
    assert row["value"] == wanted and row["unit"] == base
    assert row["field"] == {"W": "power", "J": "energy_counter"}.get(base, "other")


@pytest.mark.parametrize(
    ("column", "stamp", "wanted"),
    [
        ("timestamp_ns", "1718000000123456789", 1718000000123456789),
        ("timestamp_us", "1718000000123456.789", 1718000000123456789),
        ("timestamp_ms", "1718000000123.4567890", 1718000000123456789),
        ("timestamp_s", "1718000000.1234567895", 1718000000123456790),  # half to even
        ("timestamp_s", "1718000000.1234567885", 1718000000123456788),
        ("timestamp_us", "1.718000000123456789e15", 1718000000123456789),
        ("timestamp_ns", "-5", -5),
    ],
)
def test_time_stamps_are_exact(tmp_path, column, stamp, wanted):
    text = HEADER.replace("timestamp_ns", column) + f"{stamp},realtime,gpu,a,power,1,W\n"
    assert read_power(write(tmp_path, text)).table["ts_ns"].to_pylist() == [wanted]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("x,realtime,gpu,a,power,1,W", "ts_not_numeric"),
        (",realtime,gpu,a,power,1,W", "ts_missing"),
        ("inf,realtime,gpu,a,power,1,W", "ts_not_finite"),
        ("1e40,realtime,gpu,a,power,1,W", "ts_out_of_range"),
        ("9223372036854775808,realtime,gpu,a,power,1,W", "ts_out_of_range"),
        ("1,wallclock,gpu,a,power,1,W", "clock_unknown"),
        ("1,realtime,gpu,a,,1,W", "field_missing"),
        ("1,realtime,gpu,a,power,1,", "unit_unknown"),
        ("1,realtime,gpu,a,power,1,hp", "unit_unknown"),
        ("1,realtime,gpu,a,power,1,J", "unit_mismatch"),
        ("1,realtime,gpu,a,energy_total,-1,J", "negative_energy"),
        ("1,realtime,gpu,a,power,1_0,W", "value_not_numeric"),
        ("1,realtime,gpu,a,power,-inf,W", "value_not_finite"),
        ("1,realtime,gpu,a,power", "row_malformed"),
    ],
)
def test_neutral_rows_that_cannot_be_used(tmp_path, row, reason):
    log = read_power(write(tmp_path, f"{HEADER}0,realtime,gpu,a,power,1,W\n{row}\n"))
    assert log.report.dropped == {reason: 1} and books_balance(log)
    assert log.quarantine.to_pylist()[0]["raw"] == row


def test_the_clock_must_be_known_and_not_contradicted(tmp_path):
    text = "timestamp_us,device_id,field,value,unit\n5,a,power,1,W\n"
    with pytest.raises(ClockAlignmentError, match="--clock"):
        read_power(write(tmp_path, text))
    log = read_power(write(tmp_path, text), PowerOptions(clock="boottime", offset_ns=7))
    assert log.table.to_pylist()[0]["clock"] == "boottime" and log.table["ts_ns"].to_pylist() == [5000]
    assert [t["ts_ns"].to_pylist() for t in rebase(log, 10)] == [[4997]]
    with pytest.raises(UsageError, match="both"):
        rebase(log, 10, anchors_from_readings([{"realtime_ns": 0, "boottime_ns": 0}]))
    with pytest.raises(UsageError, match="realtime"):
        read_power(write(tmp_path, HEADER + "0,realtime,gpu,a,power,1,W\n"), PowerOptions(clock="monotonic"))
    with pytest.raises(UsageError, match="clock"):
        PowerOptions(clock="tai")
    with pytest.raises(InputFormatError, match="unit of its time stamps"):
        read_power(write(tmp_path, "timestamp,clock,field,value,unit\n5,realtime,power,1,W\n"))


# ---- anything ------------------------------------------------------------------------------------------------------


def test_what_is_no_power_log_is_refused(tmp_path):
    for text in ("", "hello\n", '{"traceEvents": []}', "a,b,c\n1,2,3\n", "\x00\x01\x02"):
        path = write(tmp_path, text)
        assert find_format(path) is None
        with pytest.raises(InputFormatError, match="not a power log"):
            read_power(path)
    with pytest.raises(InputNotFoundError):
        read_power(tmp_path / "absent.csv")
    with pytest.raises(InputNotFoundError):
        read_power(tmp_path)


SEEDS = [
    SMI + smi_line(0, "100.00 W") + smi_line(1, "[N/A]") + smi_line(2, "200.00 W"),
    HEADER + "".join(f"{i},realtime,gpu,a,power,{i},W\n" for i in range(4)),
    spl("01-01-2026") + spl("01-01-2026", "00:00:01.000"),
    "timestamp,gpu,power_usage\n1767225600,0,100\n1767225601,0,N/A\n",
    '# TYPE x_watts gauge\nx_watts{gpu="0",pod="p"} 5 1000\nx_watts{gpu="0"} 6 2000\n# EOF\n',
    json.dumps(
        {"data": {"resultType": "matrix", "result": [{"metric": {"__name__": "x_watts"}, "values": [[1, "1"]]}]}}
    ),
]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.sampled_from(SEEDS),
    edits=st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 12), st.sampled_from(["", "\n", ",", '"', "\x00", "é", "-", "9" * 30, "nan", "{", "}", "\r"]))
        | st.tuples(st.integers(0, 400), st.integers(0, 12), st.text(max_size=4)),
        max_size=4,
    ),
    encoding=st.sampled_from(["utf-8", "utf-16"]),
)  # fmt: skip
def test_damaged_logs_are_read_or_refused_and_the_books_balance(tmp_path, seed, edits, encoding):
    text = seed
    for at, length, new in edits:
        text = text[:at] + new + text[at + length :]
    path = write(tmp_path, text.encode(encoding, "surrogatepass" if encoding == "utf-8" else "replace"))
    try:
        log = read_power(path, UTC)
    except MagnetonError:
        return
    assert books_balance(log)
    values = [r for r in log.table.to_pylist() if r["unit"] in ("W", "J") and r["value"] is not None]
    assert all(r["value"] >= 0 for r in values)
    assert set(log.report.dropped) <= all_codes.QUARANTINE_REASONS.keys()
    assert codes(log) <= all_codes.WARNING_CODES.keys()
    flags = {f for r in log.table.to_pylist() for f in (r["flags"] or "").split()}
    assert flags <= all_codes.POWER_FLAGS.keys()


def test_every_format_tells_itself_from_the_others(tmp_path):
    named = {"nvidia-smi": 0, "csv": 1, "ptdaemon": 2, "amd-smi": 3, "prometheus-text": 4, "prometheus-json": 5}
    # Our own file is Parquet: no text can be taken for it.
    assert {f.name for f in formats()} == named.keys() | {"magneton_power"}
    for name, i in named.items():
        assert [f.name for f in formats() if f.sniff(SEEDS[i])] == [name]
